"""What a scan needs is found, and what it does not need is left out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ptymesh.auto import decide, described
from ptymesh.auto import interview as module
from ptymesh.auto.hypotheses import GAINS, Hypothesis
from ptymesh.auto.interview import ANSWER, ENGINE, STRIDE, Answer, Found, _Interview
from ptymesh.auto.judging import Judged
from ptymesh.auto.race import Arena, Budget, OverBudget, Track, Undecided
from ptymesh.auto.written import written
from ptymesh.distributed.world import Solo
from ptymesh.io import load_measurement
from ptymesh.run.recipe import Recipe
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def found(folder: Path, sweeps: int, settings: tuple[str, ...] = (), **options: object) -> Found:
    path = folder / "scan.cxi"
    write(checked(**{"kind": "xray", "views": 60, "window": 32, "seed": 5, **options}), path, force=True)
    recipe = Recipe.parse(described(path, [f"auto.sweeps={sweeps}", *settings])[0])
    return decide(recipe, Solo(), write=False)


def answers(made: Found) -> str:
    return "\n".join(sentence for said in made.reasons.values() for sentence in said)


def test_positions_that_are_wrong(tmp_path: Path) -> None:
    made = found(tmp_path, 240, position_error_px=1.5)
    assert "without" in answers(made) and made.recipe.stages[-1].positions is not None, answers(made)
    assert made.recipe.stages[0].positions is None and made.recipe.auto is None


def test_a_beam_of_three_modes(tmp_path: Path) -> None:
    made = found(tmp_path, 600, modes=3)
    assert made.recipe.probe.modes is not None and made.recipe.probe.modes >= 2, answers(made)
    assert made.recipe.stages[-1].positions is None, answers(made)
    assert made.reasons["probe.modes"][0].startswith("2 probe modes: ")
    assert "# 2 probe modes: " in written(made.recipe, made.reasons)


def test_a_clean_scan_keeps_what_it_has(tmp_path: Path) -> None:
    made = found(tmp_path, 300)
    last = made.recipe.stages[-1]
    assert last.positions is None and last.probe.intensity is None, answers(made)
    assert made.recipe.probe.modes == 1 and made.recipe.probe.opr_modes == 0, answers(made)


def test_what_the_recipe_says_is_not_asked(tmp_path: Path) -> None:
    made = found(tmp_path, 160, ("probe.modes=2", "positions.subpixel=none"))
    assert made.recipe.probe.modes == 2 and "A position of each view" not in answers(made)


def test_stopped_while_it_asks(tmp_path: Path) -> None:
    path = tmp_path / "scan.cxi"
    write(checked(kind="xray", views=20, window=32, seed=5), path)
    with pytest.raises(Undecided, match="Stopped before the stages were found"):
        decide(Recipe.parse(described(path)[0]), Solo(), lambda: True, write=False)


@pytest.fixture
def interview(tmp_path: Path) -> _Interview:
    """About 20 views, with 1000 sweeps and the engine that begins."""
    write(checked(kind="xray", views=20, window=32, seed=5), tmp_path / "scan.cxi")
    recipe = Recipe.parse(described(tmp_path / "scan.cxi")[0])
    made = _Interview(
        recipe, load_measurement(recipe.data), Solo(), lambda: False, Budget(1000), {}, lambda sentence: None
    )
    made.opening = {"engine": "rpie", "batch": 8}
    return made


def test_engines_that_can_be_afforded_are_asked(interview: _Interview) -> None:
    """Of rPIE, Adam, LSQML and rPIE with Poisson's likelihood, the first two."""
    budget, arena = interview.budget, interview._arena(interview.recipe, interview.scan)
    track = arena.run(arena.start(interview.opening), 3)
    budget.spent = ENGINE * budget.sweeps - 2.5 * arena.cost(track, ANSWER)
    best = next(iter(interview._engines(arena, track).values()))
    arena.close()
    assert best.engine["engine"] in ("rpie", "adam") and budget.spent <= ENGINE * budget.sweeps
    said = interview.reasons["stages"]
    assert [sentence.partition(" was not asked")[0] for sentence in said[:2]] == [
        "Whether rpie with Poisson's likelihood goes on better",
        "Whether lsqml goes on better",
    ]
    assert "goes on best: rpie " in said[2] and len(said) == 3


@pytest.mark.parametrize(
    ("lsqml", "kept", "others"),
    [
        ([0.50, 0.51, 0.52, 0.51], "lsqml", []),
        ([0.60, 0.66, 0.62, 0.66], "adam", ["lsqml"]),  # further by a hair, on some views
    ],
)
def test_of_engines_that_come_as_far_the_cheapest_goes_on(
    interview: _Interview, lsqml: list[float], kept: str, others: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adam and LSQML surely come further than rPIE. What comes close to the best is kept beside it."""
    arena = interview._arena(interview.recipe, interview.scan)
    ends = {"rpie": [0.8, 0.81, 0.79, 0.8], "adam": [0.64, 0.63, 0.65, 0.64], "lsqml": lsqml}

    def side_by_side(ways: Sequence[tuple[Arena, Track, int]], *others: object) -> list[Track]:
        return [replace(way, judged=Judged(np.array(ends[way.engine["engine"]]), np.ones(4))) for _, way, _ in ways]

    def cost(track: Track, epochs: int) -> float:
        return {"rpie": 1.0, "adam": 1.4, "lsqml": 1.5}[track.engine["engine"]] * epochs

    monkeypatch.setattr(module, "side_by_side", side_by_side)
    monkeypatch.setattr(arena, "cost", cost)
    found = interview._engines(arena, arena.start(interview.opening))
    arena.close()
    assert list(found) == [kept, *others] and found[kept].engine["engine"] == kept
    how = "goes on best" if kept == "lsqml" else "goes on as well as any, at the least cost"
    assert interview.reasons["stages"][-1].startswith(f"{kept} {how}: rpie 0.8000, ")


@pytest.mark.parametrize(
    ("sweeps", "fourth", "goes_on", "said"),
    [
        (1000.0, 0.25, "lsqml", "40 epochs from the start: adam 0.4000, lsqml 0.2500."),
        (1000.0, 0.393, "adam", "40 epochs from the start: adam 0.4000, lsqml 0.3930."),  # by a hair
        (150.0, 0.25, "adam", "After 60 epochs the residual, 0.3900, falls no longer."),  # too few to ask
    ],
)
def test_what_comes_close_is_held_beside_it_from_the_start(
    interview: _Interview, sweeps: float, fourth: float, goes_on: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LSQML comes further by itself; both go on from the epochs that they have run for that."""
    arena = interview._arena(interview.recipe, interview.scan)
    falls = {"rpie": [0.9], "adam": [0.7, 0.5, 0.45, 0.40, 0.39, 0.39], "lsqml": [0.6, 0.45, 0.42, fourth, fourth]}
    asked = []

    def steps(track: Track, *others: object) -> Iterator[Track]:
        for value in falls[str(track.engine["engine"])]:
            asked.append(track.engine["engine"])
            yield replace(track, judged=Judged(np.full(4, value), np.ones(4)))

    monkeypatch.setattr(arena, "steps", steps)
    monkeypatch.setattr(arena, "cost", lambda track, epochs: epochs)
    interview.budget.sweeps = sweeps
    start = arena.start(interview.opening)
    stages = interview._length(arena, {name: start.using({"engine": name}) for name in ("adam", "lsqml")})
    arena.close()
    assert [stage["engine"] for stage in stages] == ["rpie", goes_on]
    assert stages[1]["epochs"] == (40 if goes_on == "lsqml" else 50) and said in interview.reasons["stages"]
    assert asked.count(goes_on) == (5 if goes_on == "lsqml" else 6)
    assert asked.count("adam" if goes_on == "lsqml" else "lsqml") == (4 if sweeps == 1000 else 0)


def answer(one: Hypothesis, residuals: list[float], base: list[float]) -> Answer:
    """Of these views."""
    counts = np.ones(len(base))
    with_it, without = (Judged(np.array(each), counts) for each in (residuals, base))
    return Answer(one, replace(one.track, judged=with_it), replace(one.without, judged=without))


@pytest.mark.parametrize(
    ("lit", "beside", "kept"),
    [
        ([0.60, 0.61, 0.62, 0.61], [1.0] * 4, "background"),
        ([0.50, 0.90, 0.40, 0.88], [1.0] * 4, "modes"),  # more by a hair, on some views
        ([0.60, 0.61, 0.62, 0.61], [0.7] * 4, "modes"),  # furthest, but Adam alone comes as far
    ],
)
def test_of_what_gains_as_much_the_cheapest_is_kept(
    interview: _Interview, lit: list[float], beside: list[float], kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gains are shares of what the same engine comes to without."""
    arena = interview._arena(interview.recipe, interview.scan)
    track = arena.start(interview.opening)

    def answers(arena: Arena, asked: list[Hypothesis], *others: object) -> list[Answer]:
        ends = {"background": (lit, beside), "modes": ([0.70, 0.69, 0.71, 0.70], [1.0] * 4)}
        return [answer(one, *ends.get(one.name, ([1.0] * 4, [1.0] * 4))) for one in asked]

    monkeypatch.setattr(interview, "_answers", answers)
    best, _ = interview._round(arena, track, track, interview._hypotheses(arena), set(GAINS))
    arena.close()
    assert interview.kept == [kept] and best is not None
    said = interview.reasons["probe.modes" if kept == "modes" else "stages"][-1]
    assert "is kept; the others are asked about again" in said and ("as much as any" in said) == (lit[0] == 0.5)


@pytest.mark.parametrize(
    ("residuals", "asked", "kept"),
    [
        ({"modes": 0.5, "background": 0.4}, ["positions", "intensity", "modes", "background"], "background"),
        ({"modes": 0.4, "background": 0.5}, ["positions", "intensity", "modes", "background"], "modes"),
        ({"positions": 0.6, "modes": 0.5, "background": 0.4}, ["positions", "intensity"], "positions"),
    ],
)
def test_what_looks_alike_is_held_side_by_side(
    interview: _Interview, residuals: dict[str, float], asked: list[str], kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A background is asked about where further modes help, too; both wait where a view's own unknowns do."""
    arena, names = interview._arena(interview.recipe, interview.scan), []
    track = arena.start(interview.opening)

    def answers(arena: Arena, asked: list[Hypothesis], *others: object) -> list[Answer]:
        names.extend(one.name for one in asked)
        return [answer(one, [residuals.get(one.name, 1.0)] * 4, [1.0] * 4) for one in asked]

    monkeypatch.setattr(interview, "_answers", answers)
    best, _ = interview._round(arena, track, track, interview._hypotheses(arena), set(GAINS))
    arena.close()
    assert names == asked and interview.kept == [kept]
    assert best is not None and best.value == residuals[kept]


def test_there_are_sweeps_for_the_run_as_well(interview: _Interview, monkeypatch: pytest.MonkeyPatch) -> None:
    """However far the residual goes on falling."""
    monkeypatch.setattr(module, "STILL", -math.inf)
    budget, arena = interview.budget, interview._arena(interview.recipe, interview.scan)
    track = arena.run(arena.start(interview.opening), 3)
    budget.spent, budget.sweeps = 0.0, 20 * arena.cost(track, STRIDE)
    first, last = interview._length(arena, {"rpie": track})
    run = arena.cost(track, first["epochs"]) + arena.cost(track, last["epochs"])
    arena.close()
    assert budget.sweeps - 2.5 * arena.cost(track, STRIDE) < budget.spent + run <= budget.sweeps
    assert "no sweeps are left for more" in interview.reasons["stages"][-1]


def test_residuals_are_said_to_four_digits(interview: _Interview) -> None:
    """In the near field as well, where they are small."""
    arena = interview._arena(interview.recipe, interview.scan)
    track = arena.start(interview.opening)
    arena.close()
    assert track.said == "diverged"
    for value, said in ((0.000123456, "0.0001235"), (0.0804161, "0.08042"), (1.23456, "1.235"), (0.0, "0.000")):
        assert replace(track, judged=Judged(np.full(4, value), np.ones(4))).said == said


def test_a_budget_is_not_overdrawn() -> None:
    budget = Budget(10)
    budget.pay(4, 0.5)
    assert budget.holds(1, 0.5) and not budget.holds(2, 0.5) and budget.holds(6)
    with pytest.raises(OverBudget):
        budget.pay(2, 0.5)
    budget.pay(6)
    assert budget.spent == 10
    budget = Budget(10, kept=5)
    assert budget.holds(5) and not budget.holds(6)
