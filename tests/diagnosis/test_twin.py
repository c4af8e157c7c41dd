"""The wrong one of two twins is named of a thick crystal, and the right one is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from ptymesh.diagnosis import ResultView, twin
from ptymesh.diagnosis.report import report
from ptymesh.errors import BadInput
from ptymesh.io import load_measurement
from ptymesh.io.results import Result
from ptymesh.measurement import ArraySource, Measurement
from ptymesh.recipe.schema import Recipe, put
from ptymesh.recipe.starts import ObjectOptions
from ptymesh.run.session import run_recipe
from ptymesh.run.simulate_file import write
from ptymesh.run.trials import twins
from ptymesh.run.trials.twins import TwinTrial
from ptymesh.simulate import checked, simulate

CRYSTAL = {
    "structure": "strontium_titanate",
    "thickness_m": 6e-9,
    "rotation_deg": 5,
    "aberrations_m": {"C10": -10e-9},
    "configurations": 4,
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A crystal of 6 nm behind a lens out of focus."""
    options = checked(
        kind="crystal", scan="raster", views=100, window=48, seed=1, photons_per_view=1e5, crystal=CRYSTAL
    )
    return write(options, tmp_path_factory.mktemp("crystal") / "scan.cxi")[0]


def reconstructed(path: Path, rotation_deg: float, c10_m: float) -> tuple[Measurement, Result]:
    """Return the scan, turned by an angle, and what three slices make of it behind this lens."""
    lens = {"kind": "electron", "semiangle_rad": 20e-3, "aberrations_m": {"C10": c10_m, "C12": (1e-10, 0.3)}}
    out = path.parent / f"out{rotation_deg:.0f}"
    recipe = Recipe.parse(
        {
            "data": {"path": str(path)},
            "positions": {"rotation_deg": rotation_deg},
            "object": {"slices": 3, "slice_spacing_m": 2e-9, "kind": "potential"},
            "probe": {"modes": 2, "start": lens},
            "stages": [{"engine": "adam", "epochs": 10, "batch": 16, "loss": "fidelity"}],
            "output": {"dir": str(out), "figures": False},
        }
    )
    run_recipe(recipe)
    return load_measurement(recipe.data, recipe.positions), Result.load(out / "result.h5")


@pytest.fixture(scope="module")
def right(path: Path) -> tuple[Measurement, Result]:
    """The scan as it is, and the result behind the lens that it was made with."""
    return reconstructed(path, 0, -9.5e-9)


def test_the_wrong_twin_is_named_first_and_the_right_one_is_not(path: Path, right: tuple[Measurement, Result]) -> None:
    scan, wrong = reconstructed(path, 180, 9.5e-9)
    assert wrong.verdict in ("poor", "failed")
    found = report(wrong, scan).findings[0]
    assert found.cause == "twin" and "are dark" in found.sentence
    tried = report(wrong, scan, trials_s=1e-9).findings[0]  # no time for trials but its own
    assert tried.cause == "twin" and tried.sentence.startswith("tried on 100 views")
    assert set(tried.settings) == {
        "positions.rotation_deg=0.0",
        "probe.start.aberrations_m={C10: -1.35e-08, C12: [-1.0e-10, 0.3]}",
    }
    scan, result = right
    assert report(result, scan).numbers["twin"][0] == 0
    assert result.attrs["final_residual"] < 0.8 * wrong.attrs["final_residual"]


@pytest.mark.parametrize(
    "lens",
    [
        {"defocus_m": 9.5e-9},
        {"aberrations_m": {"C10": -9.5e-9, "C12": [1e-10, 0.3]}},
        {"aberrations_m": {"C12": [1e-10, 0.3]}},
    ],
)
def test_the_twin_of_the_twin_is_the_lens(lens: dict[str, Any]) -> None:
    """Opposite in the middle of the slices, where C10 is larger than at the first one, and turned by half a turn."""
    start = {"kind": "electron", "semiangle_rad": 20e-3, **lens}
    raw: dict[str, Any] = {"data": {"path": "scan.h5"}, "probe": {"start": start}}
    for obj, middle in (({"slices": 5, "slice_spacing_m": 1e-9}, 2e-9), ({}, 0.0)):
        recipes = [Recipe.parse({**raw, "object": obj})]
        for _ in range(2):
            again = recipes[-1].as_values()
            for key, value in (twins.twin_settings(recipes[-1]) or {}).items():
                put(again, key, value, "")
            recipes.append(Recipe.parse(again))
        one, twin, back = (recipe.probe.start.parameters()["aberrations"] for recipe in recipes)
        assert one["C10"] + twin["C10"] == pytest.approx(-2 * middle, abs=1e-16)
        assert one.get("C12a", 0.0) == -twin.get("C12a", 0.0)
        assert back == pytest.approx(one, abs=1e-16) and recipes[1].positions.rotation_deg == -180


def test_short_runs_name_the_wrong_one_of_several_slices_alone(
    right: tuple[Measurement, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = ResultView(right[1], right[0]).recipe
    assert recipe is not None
    for of_twin, errors, is_named in ((0.05, 9.0, True), (0.05, 3.0, False), (0.095, 9.0, False), (0.2, 9.0, False)):
        trial = TwinTrial(0.1, of_twin, 100, errors)
        monkeypatch.setattr(twins, "compare_with_twin", lambda *_, trial=trial: trial)
        sign = twins.sign_of_twin(recipe, (48, 48))
        assert (sign is not None) == is_named
        assert sign is None or (sign.cause == "twin" and sign.strength > 1 and "0.05, as given to 0.1" in sign.sentence)
    thin = recipe.model_copy(update={"object": ObjectOptions(kind="potential")})
    monkeypatch.setattr(twins, "compare_with_twin", lambda *_: TwinTrial(0.1, 0.05, 100))
    assert twins.sign_of_twin(thin, (48, 48)) is None


def test_runs_that_fail_say_nothing(right: tuple[Measurement, Result], monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's result must not be lost for want of memory in a trial that follows it."""
    recipe = ResultView(right[1], right[0]).recipe
    assert recipe is not None
    for error in (BadInput("no"), FileNotFoundError(), MemoryError(), RuntimeError("can't allocate memory")):
        monkeypatch.setattr(twins, "compare_recipes_of_twins", Mock(side_effect=error))
        assert twins.sign_of_twin(recipe, (48, 48)) is None


def test_counting_is_no_part_of_what_is_to_be_explained() -> None:
    """The true intensities explain all of it, their mean over the views nothing."""
    scan, rng = simulate(views=40, window=32, seed=1).measurement, np.random.default_rng(2)
    intensities = rng.gamma(20.0, 1.0, (40, 32, 32))
    y = rng.poisson(intensities)
    counted = replace(scan, patterns=ArraySource(y.astype(np.uint16)))
    for model, share in ((np.sqrt(intensities), 1.0), (np.sqrt(y).mean(axis=0), 0.0)):
        residual = float(((np.sqrt(y) - model) ** 2).sum() / y.sum())
        assert twins.share_explained(counted, residual) == pytest.approx(share, abs=0.02)


def test_a_thicker_sample_is_tried_where_the_first_runs_are_not_clear(
    right: tuple[Measurement, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = ResultView(right[1], right[0]).recipe
    assert recipe is not None
    thin = recipe.model_copy(update={"object": ObjectOptions(kind="potential")})
    for one, first, tried in (
        (thin, TwinTrial(0.1, 0.09, 100, 2.0, 0.4), [3, 6]),
        (thin, TwinTrial(0.1, 0.09, 100, 2.0, 0.1), [3]),
        (thin, TwinTrial(0.1, 0.05, 100, 9.0, 0.9), [3]),
        (recipe, TwinTrial(0.1, 0.09, 100, 2.0, 0.4), [3]),
    ):
        called: list[int] = []

        def compare(*given: Any, found: TwinTrial = first, called: list[int] = called) -> TwinTrial:
            called.append(given[2])
            return found

        monkeypatch.setattr(twins, "_compare_potentials", compare)
        assert twins.compare_with_twin(one, (48, 48)) == first and called == tried


def test_a_trial_takes_back_what_an_object_seems_to_show(
    right: tuple[Measurement, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where atoms look dark for another reason, both twins are tried, and the right one is not named."""
    scan, result = right
    view = ResultView(replace(result, object=result.object.conj()), scan)
    seen = twin.find_twin(view)
    assert seen is not None and seen.number > 1
    for of_twin, number in ((0.2, 0.0), (0.105, seen.number), (0.095, seen.number), (0.05, pytest.approx(0.5 / 0.1))):
        monkeypatch.setattr(twin, "compare_with_twin", lambda *_, of=of_twin: TwinTrial(0.1, of, 100))
        found = twin.try_twin(view, seen)
        assert found is not None and found.number == number
    monkeypatch.setattr(twin, "compare_with_twin", lambda *_: TwinTrial(0.1, 0.05, 100, explained=0.4))
    assert twin.try_twin(view, seen) == seen, "nothing is told where neither explains much"


def test_without_a_lens_that_is_told_there_is_no_twin(right: tuple[Measurement, Result]) -> None:
    scan, result = right
    assert (
        twin.find_twin(ResultView(replace(result, recipe=Recipe.parse({"data": {"path": "x"}}).to_yaml()), scan))
        is None
    )
