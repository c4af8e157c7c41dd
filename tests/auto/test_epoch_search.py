"""The numbers of epochs are found, and there are sweeps for them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ptymesh.auto import epoch_search as module
from ptymesh.auto.candidates import Budget, Candidate, CandidateRunner, SearchContext
from ptymesh.auto.epoch_search import ADAM, STRIDE, EpochSearch
from ptymesh.distributed.world import Solo
from ptymesh.io import load_measurement
from ptymesh.recipe.schema import Recipe
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked
from ptymesh.verdict.held_out import Judged

OPENING = {"engine": "rpie", "batch": 8}
BOLD = "adam 0.03"


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[CandidateRunner]:
    """About 20 views, with 1000 sweeps."""
    torch.set_num_threads(1)
    write(checked(kind="xray", views=20, window=32, seed=5), tmp_path / "scan.cxi")
    recipe = Recipe.parse({"data": {"path": str(tmp_path / "scan.cxi")}})
    scan = load_measurement(recipe.data)
    made = CandidateRunner(recipe, scan, SearchContext(Solo(), lambda: False, Budget(1000)), scan.views)
    yield made
    made.close()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def search(runner: CandidateRunner, said: list[str]) -> EpochSearch:
    return EpochSearch(runner, OPENING, lambda key, sentence: said.append(sentence))


class Falls:
    """Residuals after every stride of each engine, in the place of a run; which were asked for."""

    def __init__(self, **falls: list[float]) -> None:
        self.falls = {"rpie": [0.9], BOLD: [2.0], "adam 0.0033": [2.0]} | {
            name.replace("bold", BOLD).replace("small", "adam 0.0033"): values for name, values in falls.items()
        }
        self.asked: list[str] = []

    def steps(self, candidate: Candidate, *others: object) -> Iterator[Candidate]:
        engine, lr = candidate.engine["engine"], candidate.engine.get("lr", ADAM["lr"])
        name = str(engine) if engine != "adam" or lr == ADAM["lr"] else f"adam {lr:g}"
        for value in self.falls[name]:
            self.asked.append(name)
            yield replace(candidate, judged=Judged(np.full(4, value), np.ones(4)))


def ways(runner: CandidateRunner, *engines: str) -> dict[str, Candidate]:
    start = runner.start(OPENING)
    return {name: start.using({**ADAM, "batch": 8} if name == "adam" else {"engine": name}) for name in engines}


@pytest.mark.parametrize(
    ("sweeps", "fourth", "goes_on", "last"),
    [
        (1000.0, 0.25, "lsqml", "40 epochs on from there: adam 0.4000, lsqml 0.2500."),
        (1000.0, 0.393, "adam", "40 epochs on from there: adam 0.4000, lsqml 0.3930."),  # by a hair
        (160.0, 0.25, "adam", "After 60 epochs the residual, 0.3900, falls no longer."),  # too few to ask
    ],
)
def test_what_comes_close_is_held_beside_it_behind_the_large_steps(
    runner: CandidateRunner,
    search: EpochSearch,
    said: list[str],
    sweeps: float,
    fourth: float,
    goes_on: str,
    last: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LSQML comes further by itself; both go on from the epochs that they have run for that."""
    falls = Falls(adam=[0.7, 0.5, 0.45, 0.40, 0.39, 0.39], lsqml=[0.6, 0.45, 0.42, fourth, fourth])
    monkeypatch.setattr(runner, "steps", falls.steps)
    monkeypatch.setattr(runner, "cost", lambda candidate, epochs: epochs)
    runner.budget.sweeps = sweeps
    stages = search.stages(ways(runner, "adam", "lsqml"))
    assert [stage["engine"] for stage in stages] == ["rpie", goes_on]
    assert stages[1]["epochs"] == (40 if goes_on == "lsqml" else 50) and last in said
    assert falls.asked.count(goes_on) == (5 if goes_on == "lsqml" else 6)
    assert falls.asked.count("adam" if goes_on == "lsqml" else "lsqml") == (4 if sweeps == 1000 else 0)


@pytest.mark.parametrize(
    ("bold", "epochs"),
    [
        ([0.5, 0.4, 0.37, 0.36, 0.2], 30),  # the fourth falls by less than a twentieth
        ([0.5, 0.4, 0.41, 0.2], 20),
        ([0.88, 0.2], 0),  # where there is little to be had, large steps lead away from it
        ([math.inf], 0),  # as where it diverges
    ],
)
def test_large_steps_as_long_as_they_lead_down_fast(
    runner: CandidateRunner, search: EpochSearch, bold: list[float], epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "steps", Falls(bold=bold, adam=[0.3, 0.3]).steps)
    _, *others, last = search.stages(ways(runner, "adam"))
    assert [(stage["lr"], stage["epochs"]) for stage in others] == [(0.03, epochs)][: bool(epochs)]
    assert (last["lr"], last["epochs"]) == (0.01, 10)


@pytest.mark.parametrize(("small", "kept"), [(0.27, True), (0.2999, False), (0.4, False)])
def test_small_steps_where_they_help(
    runner: CandidateRunner, search: EpochSearch, small: float, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After LSQML, too, whose unknowns of views go on."""
    monkeypatch.setattr(runner, "steps", Falls(bold=[0.5, 0.49], lsqml=[0.3, 0.3], small=[small]).steps)
    way = ways(runner, "lsqml")["lsqml"].sharing({"positions": True}, "positions")
    stages = search.stages({"lsqml": way})
    assert [stage["engine"] for stage in stages] == ["rpie", "adam", "lsqml", *["adam"] * kept]
    assert all(stage["positions"] for stage in stages[1:])
    assert not kept or (stages[-1]["lr"], stages[-1]["epochs"]) == (0.0033, 10)


def test_there_are_sweeps_for_the_run_as_well(
    runner: CandidateRunner, search: EpochSearch, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However far the residual goes on falling, and however fast."""
    monkeypatch.setattr(module, "STILL", -math.inf)
    candidate = runner.run(runner.start(OPENING), 3)
    runner.budget.spent, runner.budget.sweeps = 0.0, 30 * runner.cost(candidate, STRIDE)
    stages = search.stages({"rpie": candidate})
    run = sum(
        runner.cost(candidate.using({k: v for k, v in one.items() if k != "epochs"}), one["epochs"]) for one in stages
    )
    spent = runner.budget.spent + run
    assert runner.budget.sweeps - 3.5 * runner.cost(candidate, STRIDE) < spent <= runner.budget.sweeps * 1.001
    assert any("no sweeps are left for more" in sentence for sentence in said)
