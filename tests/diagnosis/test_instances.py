"""Every cause on scans of a simulator of its own, at two severities; and no alarm for healthy results of all kinds."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from ptymesh import RPIE, load, reconstruct
from ptymesh.diagnosis import CAUSES, ResultView
from ptymesh.diagnosis.blur import find_few_slices
from ptymesh.diagnosis.remedies import UsableRemedy
from ptymesh.diagnosis.report import report
from ptymesh.diagnosis.trials import Trials
from ptymesh.recipe.schema import Recipe
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked, simulate

sys.path.insert(0, str(Path(__file__).parent))
import instances

#: Kinds that are made in every run of the tests: those that no part of the fit has a say in are quick.
QUICK = ["transposed", "defocus_sign", "lag", "serpentine", "over_subtracted", "astray", "near_field", "amplitudes"]
#: A sample of several slices is named by a trial alone, which a small scan in fog does not always allow.
OTHERS = [name for name in instances.INSTANCES if name not in (*QUICK, "few_slices")]


def check_first(name: str, severity: int) -> None:
    measured, result = instances.instance(name, severity, 0)
    found = report(result, measured)
    assert found.findings[0].cause in instances.INSTANCES[name][1], found.lines()


@pytest.mark.sample(4)
@pytest.mark.parametrize("severity", [0, 1])
@pytest.mark.parametrize("name", QUICK)
def test_cause_is_named_first(name: str, severity: int) -> None:
    check_first(name, severity)


@pytest.mark.long
@pytest.mark.parametrize("severity", [0, 1])
@pytest.mark.parametrize("name", OTHERS)
def test_other_cause_is_named_first(name: str, severity: int) -> None:
    check_first(name, severity)


def test_every_expected_cause_is_a_row_of_the_table() -> None:
    assert {name for _, names in instances.INSTANCES.values() for name in names} <= {cause.name for cause in CAUSES}


@pytest.mark.sample(1)
@pytest.mark.parametrize("index", [0, 5, 12, 16, 25])
def test_no_alarm_for_a_healthy_result(index: int) -> None:
    _, measured, result = instances.healthy(index)
    on_its_way = ["unfinished"] if result.verdict == "poor" else []  # 40 epochs are few for some near fields
    assert [one.cause for one in report(result, measured).findings] == on_its_way


@pytest.mark.long
@pytest.mark.parametrize("index", range(len(instances.HEALTHY)))
def test_no_alarm_for_any_healthy_result(index: int) -> None:
    _, measured, result = instances.healthy(index)
    on_its_way = ["unfinished"] if result.verdict == "poor" else []
    assert [one.cause for one in report(result, measured).findings] == on_its_way


def test_trial_of_a_remedy_that_helps_is_told_and_one_that_is_set_is_not_named() -> None:
    """Three modes fitted by one: more modes lower the residual of views that no update uses."""
    measured, result = instances.instance("few_modes", 1, 0)
    (found,) = (one for one in report(result, measured, trials_s=60).findings if one.cause == "few_modes")
    assert found.settings == ("probe.modes=3",)
    assert found.tried.startswith("tried: held-out residual ")
    without, with_remedy = (float(word) for word in found.tried.split()[3:6:2])
    assert with_remedy < 0.9 * without


def test_trial_of_a_remedy_reads_the_file_again_where_that_is_what_it_changes(tmp_path: Path) -> None:
    """Patterns that are transposed in the file: the axes of the detector turned are tried by reading it so."""
    path, _ = write(checked(views=60, window=32, overlap=0.75, photons_per_view=1e5), tmp_path / "scan.cxi")
    scan = load(path, transpose=True)
    result = reconstruct(scan, RPIE(epochs=8, batch=10))
    result.recipe = Recipe.parse({"data": {"path": str(path), "transpose": True}}).to_yaml()
    trial = Trials(ResultView(result, scan), 60).run(
        UsableRemedy("", ("data.transpose=false",), Recipe.parse({"data": {"path": str(path)}}))
    )
    assert trial is not None and trial.with_remedy < 0.9 * trial.without


def test_positions_that_lag_are_said_to_lag_by_their_frames() -> None:
    measured, result = instances.instance("lag", 1, 0)
    found = report(result, measured).findings[0]
    assert "3 frames behind" in found.sentence
    assert np.isfinite(found.number)


def test_brightness_that_comes_and_goes_is_not_taken_for_a_drift() -> None:
    measured, result = instances.instance("fading", 0, 0)
    result.attrs["verdict_causes"] = ["drift"]  # which the verdict reads from what brighter views ask for
    assert report(result, measured).findings[0].cause == "intensity"


def test_more_slices_are_tried_of_several() -> None:
    """Half as thick, and in a sample that is half as thick again; the residual of one epoch is a reason."""
    scan = simulate(kind="electron", views=30, window=32, slices=2, seed=1)
    spacing = scan.truth.slice_spacing_m
    assert spacing is not None
    thick = {"slices": 2, "slice_spacing_m": spacing}
    result = reconstruct(scan.measurement, RPIE(epochs=1), object=thick, probe={"start": "file"})
    found = find_few_slices(ResultView(result, scan.measurement, None))
    assert found is not None and "than 2" in found.sentence
    tried = [(one.settings["object.slices"], one.settings["object.slice_spacing_m"]) for one in found.remedies]
    assert tried == [(4, pytest.approx(spacing / 2, rel=0.05)), (3, pytest.approx(spacing, rel=0.05))]


@pytest.mark.long
@pytest.mark.parametrize(("slices", "named"), [(6, True), (2, False)])
def test_two_slices_of_a_thicker_sample_are_too_few(slices: int, named: bool) -> None:
    made = simulate(kind="electron", views=225, window=48, slices=slices, photons_per_view=2e6, seed=2)
    thickness = slices * (made.truth.slice_spacing_m or 0.0)
    thick = {"slices": 2, "slice_spacing_m": thickness / 2}
    stages = [{"engine": "adam", "epochs": 40, "batch": 16}]
    result = reconstruct(made.measurement, stages, object=thick, probe={"start": "file"})
    found = report(result, made.measurement, trials_s=300)
    assert [one.cause for one in found.findings] == (["few_slices"] if named else [])
