"""Helpers change how long something takes, and nothing else."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ptymesh.auto import decide, described, helpers
from ptymesh.auto.helpers import Helpers, Task
from ptymesh.auto.race import Arena, Budget, Course, OverBudget, Terms, Track, ahead, side_by_side
from ptymesh.distributed.world import Solo
from ptymesh.errors import Interrupted
from ptymesh.io import load_measurement
from ptymesh.run.recipe import Recipe
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked

RPIE = {"engine": "rpie", "batch": 8}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("helpers") / "scan.cxi"
    write(checked(kind="xray", views=30, window=32, position_error_px=1.5, seed=3), path)
    return path


@pytest.fixture(scope="module")
def one() -> Iterator[Helpers]:
    with Helpers(2) as made:
        (helper,) = made._all
        assert helper.ready(120)
        yield made


@pytest.fixture
def arena(scan: Path, one: Helpers) -> Iterator[Arena]:
    made = arena_of(scan, one)
    yield made
    made.close()


def arena_of(scan: Path, helpers: Helpers | None) -> Arena:
    recipe = Recipe.parse({"data": {"path": str(scan)}})
    return Arena(recipe, load_measurement(recipe.data), Terms(Solo(), lambda: False, Budget(1e6), helpers), 30)


def same(a: Track, b: Track) -> None:
    assert torch.equal(a.estimate.object, b.estimate.object) and torch.equal(a.estimate.probe, b.estimate.probe)
    assert a.value == b.value and a.history["residual"] == b.history["residual"]


def slow() -> str:
    """Long enough for a helper to take the other task."""
    time.sleep(0.5)
    return "here"


class Unknown:
    """Of this process alone."""

    def __reduce__(self) -> Any:
        raise TypeError("no message")


def test_the_same_is_found(scan: Path, one: Helpers) -> None:
    recipe, before = Recipe.parse(described(scan, ["auto.sweeps=240"])[0]), one.tasks
    found = [decide(recipe, Solo(), write=False, helpers=some) for some in (one, None)]
    assert found[0] == found[1] and one.tasks > before


def test_tracks_that_go_on_side_by_side(arena: Arena, scan: Path) -> None:
    alone, helpers = arena_of(scan, None), arena.terms.helpers
    ways = [arena.start(RPIE), arena.start(RPIE).sharing({"positions": True}, "positions")]
    beside = side_by_side([(arena, way, 3) for way in ways])
    assert helpers is not None and helpers.tasks
    for a, b in zip(beside, side_by_side([(alone, way, 3) for way in ways]), strict=True):
        same(a, b)
    assert arena.budget.spent == alone.budget.spent
    alone.close()


def test_what_the_budget_does_not_hold_is_left_out(arena: Arena) -> None:
    way = arena.start(RPIE)
    arena.budget = Budget(2.5 * arena.cost(way, 1))
    assert len(side_by_side([(arena, way, 1)] * 3)) == 2
    with pytest.raises(OverBudget):
        side_by_side([(arena, way, 1)])


def test_who_has_begun_a_course_goes_on(arena: Arena, scan: Path) -> None:
    """Adam's memory goes on with it; where it is lost, the course is begun once more."""
    way = arena.start({"engine": "adam", "batch": 8})
    alone = arena_of(scan, None)
    told = [track for track, _ in zip(Course(alone, way, 8, 2), range(4), strict=False)]
    with Helpers(2) as lost:
        arena.terms.helpers = lost
        (helper,) = lost._all
        assert helper.ready(120)
        courses = [Course(arena, way, 8, 2) for _ in range(2)]
        ahead(courses, 1)
        theirs = next(course for course in courses if course._by)
        for course in courses:
            same(next(course), told[0])
        same(next(theirs), told[1])
        assert theirs._by is helper and theirs._here is None and helper.tasks == 2
        os.kill(helper._process.pid, signal.SIGKILL)
        same(next(theirs), told[2])
        assert theirs._by is None and helper.lost
        for course in courses:
            same(list(course)[-1], told[3])
    alone.close()


def test_a_task_that_a_helper_fails_with_is_done_here(one: Helpers) -> None:
    tasks = [Task("no message that it knows", slow), Task(Unknown(), slow), Task(None, slow)]
    before = one.tasks
    assert one.share(tasks, lambda: False) == ["here"] * 3
    assert one.tasks == before and not one._all[0].lost


def test_asked_to_stop_while_it_waits(arena: Arena, one: Helpers, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left is done here, where it stops."""
    asked = threading.Event()

    def ask(message: object) -> None:
        asked.wait(60)

    def stopped() -> None:
        raise Interrupted("Stopped.")

    with Helpers(2) as others:
        (helper,) = others._all
        monkeypatch.setattr(helper, "ready", lambda patience_s: True)
        monkeypatch.setattr(helper, "ask", ask)
        first = Task(None, lambda: None)
        with pytest.raises(Interrupted):
            others.share([first, Task("long", stopped)], lambda: True)
        asked.set()
        assert others.processes == 1, "none is left"


@pytest.mark.parametrize(
    ("told", "cores", "processes", "threads"),
    [("", 16, 4, 4), ("", 2, 2, 1), ("3,1", 16, 3, 1), ("1", 16, 1, 1), ("many", 1, 1, 1)],
)
def test_how_many_there_are(
    told: str, cores: int, processes: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    monkeypatch.setattr(helpers, "Helper", lambda threads: made.append(threads) or Closed())
    monkeypatch.setenv("OMP_NUM_THREADS", told)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    with Helpers() as some:
        assert (some.processes, some.threads) == (processes, threads) and made == [threads] * (processes - 1)


class Closed:
    """Does nothing."""

    def close(self) -> None: ...


def test_none_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **more: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(helpers.subprocess, "Popen", refuse)
    with Helpers(4) as none:
        assert none.processes == 1
        assert none.share([Task("one", slow), Task("two", slow)], lambda: False) == ["here"] * 2


def test_it_ends_when_nobody_is_left_to_ask() -> None:
    made = Helpers(2)
    (helper,) = made._all
    helper._pipe.close()
    assert helper._process.wait(120) is not None
    helper.lost = True
    assert not helper.ready(0) and helper.ask("anything") is None
    made.close()
