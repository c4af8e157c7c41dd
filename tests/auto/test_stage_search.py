"""What a scan needs is found, and what it does not need is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ptymesh.auto import stage_search as module
from ptymesh.auto.candidates import Budget, Candidate, CandidateRunner, OverBudget, SearchContext, Undecided
from ptymesh.auto.data import described
from ptymesh.auto.deciding import decide
from ptymesh.auto.hypotheses import GAINS, Hypothesis
from ptymesh.auto.recipe_text import recipe_text
from ptymesh.auto.stage_search import ENGINE, TRIAL_EPOCHS, Decision, StageSearch, StageTrial
from ptymesh.distributed.world import Solo
from ptymesh.io import load_measurement
from ptymesh.recipe.schema import Recipe, default_stages
from ptymesh.recipe.starts import ObjectOptions, ProbeOptions
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked
from ptymesh.verdict.held_out import Judged, judge_held_out


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def found(folder: Path, sweeps: int, settings: tuple[str, ...] = (), **options: object) -> Decision:
    path = folder / "scan.cxi"
    write(checked(**{"kind": "xray", "views": 60, "window": 32, "seed": 5, **options}), path, force=True)
    recipe = Recipe.parse(described(path, [f"auto.sweeps={sweeps}", *settings])[0])
    return decide(recipe, Solo(), write=False)


def answers(made: Decision) -> str:
    return "\n".join(sentence for said in made.reasons.values() for sentence in said)


@pytest.mark.long
def test_positions_that_are_wrong(tmp_path: Path) -> None:
    made = found(tmp_path, 240, position_error_px=1.5)
    assert "without" in answers(made) and made.recipe.stages[-1].positions is not None, answers(made)
    assert made.recipe.stages[0].positions is None and made.recipe.auto is None


@pytest.mark.long
def test_a_beam_of_three_modes(tmp_path: Path) -> None:
    made = found(tmp_path, 600, modes=3)
    assert made.recipe.probe.modes is not None and made.recipe.probe.modes >= 2, answers(made)
    assert made.recipe.stages[-1].positions is None, answers(made)
    assert made.reasons["probe.modes"][0].startswith("2 probe modes: ")
    assert "# 2 probe modes: " in recipe_text(made.recipe, made.reasons)


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
def search(tmp_path: Path) -> StageSearch:
    """About 20 views, with 1000 sweeps and the engine that begins."""
    write(checked(kind="xray", views=20, window=32, seed=5), tmp_path / "scan.cxi")
    recipe = Recipe.parse(described(tmp_path / "scan.cxi")[0])
    made = StageSearch(
        recipe,
        load_measurement(recipe.data),
        SearchContext(Solo(), lambda: False, Budget(1000)),
        {},
        lambda sentence: None,
    )
    made.opening = {"engine": "rpie", "batch": 8}
    return made


def test_engines_that_can_be_afforded_are_asked(search: StageSearch) -> None:
    """Of rPIE, Adam, LSQML and rPIE with Poisson's likelihood, the first two."""
    budget, runner = search.budget, search.make_runner(search.recipe, search.scan)
    candidate = runner.run(runner.start(search.opening), 3)
    budget.spent = ENGINE * budget.sweeps - 2.5 * runner.cost(candidate, TRIAL_EPOCHS)
    best = next(iter(search._engines(runner, candidate).values()))
    runner.close()
    assert best.engine["engine"] in ("rpie", "adam") and budget.spent <= ENGINE * budget.sweeps
    said = search.reasons["stages"]
    assert [sentence.partition(" was not asked")[0] for sentence in said[:2]] == [
        "Whether rpie with Poisson's likelihood goes on better",
        "Whether lsqml goes on better",
    ]
    assert "goes on best: rpie " in said[2] and len(said) == 3


@pytest.mark.parametrize(("epochs", "kept"), [(1, False), (80, True)])
def test_the_default_stages_are_taken_where_they_come_further(search: StageSearch, epochs: int, kept: bool) -> None:
    """At as much work as the stages that were found take, which is said here to be 12 epochs of rPIE."""
    runner = search.make_runner(search.recipe, search.scan)
    end = runner.run(runner.start(search.opening), epochs)
    held, search.budget.kept = runner.held, runner.cost(end, 12)
    runner.close()
    stages = [{**search.opening, "epochs": epochs}]
    _, chosen = search._choose_over_default(search.recipe, held, end, stages)
    assert (chosen == stages) == kept and chosen[0]["engine"] == "rpie", search.reasons
    said = "come no further" if kept else "are taken"
    assert f"The default stages at as much work {said}: " in search.reasons["stages"][-1]


def test_default_stages_are_taken_as_they_are_unless_more_work_comes_further(search: StageSearch) -> None:
    """What was found ends where they do, after more epochs."""
    runner = search.make_runner(search.recipe, search.scan)
    end = runner.start(search.opening)
    for one in (given := default_stages(search.recipe.object, search.recipe.probe)):
        end = runner.run(end.using({k: v for k, v in one.items() if k != "epochs"}), one["epochs"])
    held, search.budget.kept = runner.held, 2 * runner.cost(end, 25)
    runner.close()
    _, chosen = search._choose_over_default(search.recipe, held, end, [{**search.opening, "epochs": 90}])
    assert "The default stages as they are are taken: " in search.reasons["stages"][0]
    assert [one["engine"] for one in chosen] == [one["engine"] for one in given]
    assert chosen == given or "at as much work are taken" in search.reasons["stages"][1]


def test_the_default_stages_of_a_lens_and_slices_are_those_of_a_run(search: StageSearch) -> None:
    """What is found is held against what a run without `stages` does with the same object and probe."""
    lens = {"kind": "electron", "semiangle_rad": 20e-3, "aberrations_m": {"C10": -15e-9}}
    geometry = replace(
        search.scan.geometry, wavelength_m=2e-12, distance_m=None, detector_pixel_m=None, object_pixel_m=(2e-11, 2e-11)
    )
    search.scan = replace(search.scan, geometry=geometry)
    obj = ObjectOptions(slices=2, slice_spacing_m=2e-9)
    probe = ProbeOptions.parse({"modes": 1, "start": lens}, "probe")
    plain = search.recipe.model_copy(update={"object": obj, "probe": probe})
    runner = search.make_runner(plain, search.scan)
    start = runner.start(search.opening)
    held, search.budget.kept = runner.held, 60.0
    end = replace(start, judged=judge_held_out(runner.recon.problem, start.estimate, held, frozenset()))
    runner.close()
    _, chosen = search._choose_over_default(plain, held, end, [{**search.opening, "epochs": 1}])
    (stage,) = default_stages(obj, probe)
    assert stage["engine"] == "adam" and stage["models"] and stage["constraints"]
    assert [{**one, "epochs": 0} for one in chosen] == [{**stage, "epochs": 0}], search.reasons
    assert any(f"{chosen[0]['epochs']} epochs of adam: " in said for said in search.reasons["stages"])


@pytest.mark.parametrize(
    ("lsqml", "kept", "others"),
    [
        ([0.50, 0.51, 0.52, 0.51], "lsqml", []),
        ([0.60, 0.66, 0.62, 0.66], "adam", ["lsqml"]),  # further by a hair, on some views
    ],
)
def test_of_engines_that_come_as_far_the_cheapest_goes_on(
    search: StageSearch, lsqml: list[float], kept: str, others: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adam and LSQML surely come further than rPIE. What comes close to the best is kept beside it."""
    runner = search.make_runner(search.recipe, search.scan)
    ends = {"rpie": [0.8, 0.81, 0.79, 0.8], "adam": [0.64, 0.63, 0.65, 0.64], "lsqml": lsqml}

    def side_by_side(ways: Sequence[tuple[CandidateRunner, Candidate, int]], *others: object) -> list[Candidate]:
        return [replace(way, judged=Judged(np.array(ends[way.engine["engine"]]), np.ones(4))) for _, way, _ in ways]

    def cost(candidate: Candidate, epochs: int) -> float:
        return {"rpie": 1.0, "adam": 1.4, "lsqml": 1.5}[candidate.engine["engine"]] * epochs

    monkeypatch.setattr(module, "side_by_side", side_by_side)
    monkeypatch.setattr(runner, "cost", cost)
    found = search._engines(runner, runner.start(search.opening))
    runner.close()
    assert list(found) == [kept, *others] and found[kept].engine["engine"] == kept
    how = "goes on best" if kept == "lsqml" else "goes on as well as any, at the least cost"
    assert search.reasons["stages"][-1].startswith(f"{kept} {how}: rpie 0.8000, ")


def answer(one: Hypothesis, residuals: list[float], base: list[float]) -> StageTrial:
    """Of these views."""
    counts = np.ones(len(base))
    with_it, without = (Judged(np.array(each), counts) for each in (residuals, base))
    return StageTrial(one, replace(one.candidate, judged=with_it), replace(one.without, judged=without))


@pytest.mark.parametrize(
    ("background", "beside", "kept"),
    [
        ([0.60, 0.61, 0.62, 0.61], [1.0] * 4, "background"),
        ([0.50, 0.90, 0.40, 0.88], [1.0] * 4, "modes"),  # more by a hair, on some views
        ([0.60, 0.61, 0.62, 0.61], [0.7] * 4, "modes"),  # furthest, but Adam alone comes as far
    ],
)
def test_of_what_gains_as_much_the_cheapest_is_kept(
    search: StageSearch, background: list[float], beside: list[float], kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gains are shares of what the same engine comes to without."""
    runner = search.make_runner(search.recipe, search.scan)
    candidate = runner.start(search.opening)

    def answers(runner: CandidateRunner, asked: list[Hypothesis], *others: object) -> list[StageTrial]:
        ends = {"background": (background, beside), "modes": ([0.70, 0.69, 0.71, 0.70], [1.0] * 4)}
        return [answer(one, *ends.get(one.name, ([1.0] * 4, [1.0] * 4))) for one in asked]

    monkeypatch.setattr(search, "_answers", answers)
    monkeypatch.setattr(search, "_apart", lambda *given: None)
    best, _ = search._round(runner, candidate, candidate, search._hypotheses(runner), set(GAINS))
    runner.close()
    assert search.kept == [kept] and best is not None
    said = search.reasons["probe.modes" if kept == "modes" else "stages"][-1]
    assert "is kept; the others are asked about again" in said and ("as much as any" in said) == (background[0] == 0.5)


@pytest.mark.parametrize(
    ("residuals", "asked", "kept"),
    [
        ({"modes": 0.5, "background": 0.4}, ["positions", "intensity", "modes", "background"], "background"),
        ({"modes": 0.4, "background": 0.5}, ["positions", "intensity", "modes", "background"], "modes"),
        ({"positions": 0.6, "modes": 0.5, "background": 0.4}, ["positions", "intensity"], "positions"),
    ],
)
def test_what_looks_alike_is_held_side_by_side(
    search: StageSearch, residuals: dict[str, float], asked: list[str], kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A background is asked about where further modes help, too; both wait where a view's own unknowns do."""
    runner, names = search.make_runner(search.recipe, search.scan), []
    candidate = runner.start(search.opening)

    def answers(runner: CandidateRunner, asked: list[Hypothesis], *others: object) -> list[StageTrial]:
        names.extend(one.name for one in asked)
        return [answer(one, [residuals.get(one.name, 1.0)] * 4, [1.0] * 4) for one in asked]

    monkeypatch.setattr(search, "_answers", answers)
    monkeypatch.setattr(search, "_apart", lambda *given: None)
    best, _ = search._round(runner, candidate, candidate, search._hypotheses(runner), set(GAINS))
    runner.close()
    assert names == asked and search.kept == [kept]
    assert best is not None and best.value == residuals[kept]


@pytest.mark.parametrize(
    ("background", "modes", "kept", "value"),
    [
        ([0.60, 0.61, 0.62, 0.61], [0.50, 0.52, 0.51, 0.51], "modes", 0.51),
        ([0.50, 0.52, 0.51, 0.51], [0.60, 0.61, 0.62, 0.61], "background", 0.51),
        ([0.50, 0.52, 0.51, 0.51], [0.52, 0.50, 0.51, 0.511], "background", 0.70),  # it costs less
    ],
)
def test_modes_and_a_background_are_held_apart(
    search: StageSearch,
    background: list[float],
    modes: list[float],
    kept: str,
    value: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By which one comes further in the same engine's steps, though the background gains more at first."""
    runner = search.make_runner(search.recipe, search.scan)
    candidate, engines = runner.start(search.opening), []

    def answers(runner: CandidateRunner, asked: list[Hypothesis], *others: object) -> list[StageTrial]:
        first = {"background": 0.7, "modes": 0.8}
        return [answer(one, [first.get(one.name, 1.0)] * 4, [1.0] * 4) for one in asked]

    def side_by_side(ways: Sequence[tuple[CandidateRunner, Candidate, int]], *others: object) -> list[Candidate]:
        engines.extend(way.engine["engine"] for _, way, _ in ways)
        return [
            replace(way, judged=Judged(np.array(modes if way.modes > 1 else background), np.ones(4)))
            for _, way, _ in ways
        ]

    monkeypatch.setattr(search, "_answers", answers)
    monkeypatch.setattr(module, "side_by_side", side_by_side)
    best, _ = search._round(runner, candidate, candidate, search._hypotheses(runner), set(GAINS))
    runner.close()
    assert best is not None and search.kept == [kept] and engines == ["adam"] * 3, "four modes, too"
    assert best.engine["engine"] == ("rpie" if kept == "modes" else "adam")
    assert best.value == pytest.approx(value)


@pytest.mark.parametrize(
    ("later", "asked", "kept"),
    [
        ([(0.75, 0.85)], 1, True),  # gains 12 %, falls by 6 %
        ([(0.86, 0.88)], 1, False),  # gains 2 %, less than is asked for
        ([(0.69, 0.72), (0.555, 0.58)], 2, False),  # gains 4 %, and falls by a fifth, again
    ],
)
def test_what_gains_less_than_falls_anyway_is_seen_longer(
    search: StageSearch, later: list[tuple[float, float]], asked: int, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = search.make_runner(search.recipe, search.scan)
    all_, candidate = search._hypotheses(runner), runner.start(search.opening)
    (one,) = (one for one in all_.of(candidate) if one.name == "modes")
    runs = iter(later)

    def side_by_side(ways: Sequence[tuple[CandidateRunner, Candidate, int]], *others: object) -> list[Candidate]:
        values = next(runs)
        return [
            replace(way, judged=Judged(np.full(4, value), np.ones(4)))
            for (_, way, _), value in zip(ways, values, strict=True)
        ]

    monkeypatch.setattr(module, "side_by_side", side_by_side)
    _, enough = search._decide(runner, answer(one, [0.86] * 4, [0.90] * 4), 0.2, all_)
    runner.close()
    assert enough == kept and len(list(runs)) == len(later) - asked
    assert (2 in all_.refused_modes) == (not kept)


def test_residuals_are_said_to_four_digits(search: StageSearch) -> None:
    """In the near field as well, where they are small."""
    runner = search.make_runner(search.recipe, search.scan)
    candidate = runner.start(search.opening)
    runner.close()
    assert candidate.formatted_residual == "diverged"
    for value, said in ((0.000123456, "0.0001235"), (0.0804161, "0.08042"), (1.23456, "1.235"), (0.0, "0.000")):
        assert replace(candidate, judged=Judged(np.full(4, value), np.ones(4))).formatted_residual == said


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
