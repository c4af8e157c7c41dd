"""Candidates that go on one after the other, each as if it were alone, within a budget."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch

from ptymesh.auto.candidates import Budget, Candidate, CandidateRunner, OverBudget, SearchContext, side_by_side
from ptymesh.distributed.world import Solo
from ptymesh.io import load_measurement
from ptymesh.recipe.schema import Recipe
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked

RPIE = {"engine": "rpie", "batch": 8}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("race") / "scan.cxi"
    write(checked(kind="xray", views=30, window=32, position_error_px=1.5, seed=3), path)
    return path


@pytest.fixture
def runner(scan: Path) -> Iterator[CandidateRunner]:
    recipe = Recipe.parse({"data": {"path": str(scan)}})
    made = CandidateRunner(recipe, load_measurement(recipe.data), SearchContext(Solo(), lambda: False, Budget(1e6)), 30)
    yield made
    made.close()


def same(a: Candidate, b: Candidate) -> None:
    assert torch.equal(a.estimate.object, b.estimate.object) and torch.equal(a.estimate.probe, b.estimate.probe)
    assert a.value == b.value and a.history["residual"] == b.history["residual"]


def test_candidates_do_not_touch_each_other(runner: CandidateRunner) -> None:
    ways = [runner.start(RPIE), runner.start(RPIE).sharing({"positions": True}, "positions")]
    together = side_by_side([(runner, way, 3) for way in ways])
    spent = runner.budget.spent
    for a, way in zip(together[::-1], ways[::-1], strict=True):
        same(a, runner.run(way, 3))
    assert runner.budget.spent == pytest.approx(2 * spent)


def test_what_the_budget_does_not_hold_is_left_out(runner: CandidateRunner) -> None:
    way = runner.start(RPIE)
    runner.budget = Budget(2.5 * runner.cost(way, 1))
    assert len(side_by_side([(runner, way, 1)] * 3)) == 2
    with pytest.raises(OverBudget):
        side_by_side([(runner, way, 1)])


def test_an_engine_keeps_its_memory_from_stride_to_stride(runner: CandidateRunner) -> None:
    """Adam's moments go on; each stride is paid for when it is asked for, and not before."""
    way = runner.start({"engine": "adam", "batch": 8})
    first, second = (runner.follow(way, 8, 2, 1.0) for _ in range(2))
    mixed = [next(course) for _ in range(2) for course in (first, second)]
    assert runner.budget.spent == pytest.approx(4 * runner.cost(way, 2))
    same(mixed[0], mixed[1])
    same(mixed[2], mixed[3])
    last = list(first)[-1]
    same(last, runner.run(way, 8))
    assert len(list(islice(second, 9))) == 2, "8 epochs are four strides"
    runner.budget = Budget(0.0)
    with pytest.raises(OverBudget):
        next(runner.follow(way, 8, 2, 1.0))
