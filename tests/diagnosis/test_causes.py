"""Causes on small scans that suffer from them, and on made-up results."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from ptymesh.diagnosis import CAUSES, ResultView
from ptymesh.diagnosis.frames import find_astray_views, find_bad_frames, find_two_beams
from ptymesh.diagnosis.report import is_open, last_words, report
from ptymesh.diagnosis.sampling import find_other_plane
from ptymesh.diagnosis.shadows import find_hidden_near_field
from ptymesh.errors import BadInput
from ptymesh.io.results import Result
from ptymesh.measurement import NO_CHECKS, ArraySource, Measurement
from ptymesh.recipe.schema import Recipe
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.simulate import simulate

sys.path.insert(0, str(Path(__file__).parent))
import simulator


def load() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "diagnose.py"
    spec = importlib.util.spec_from_file_location("benchmarks_diagnose", path)
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


benchmark = load()


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "truth", ["drift", "few_modes", "vibration", "background", "hot_pixels", "border", "orientation", "healthy"]
)
def test_a_cause_is_named(truth: str) -> None:
    """Seeds of tuning: the benchmark reports others."""
    row = benchmark.diagnosed(truth, 3)
    assert row["named"] == truth
    assert truth != "healthy" or row["times_noise_floor"] < 1.3


def test_every_cause_of_the_benchmark_is_a_row_of_the_table() -> None:
    names = [cause.name for cause in CAUSES]
    assert len(set(names)) == len(names)
    assert set(benchmark.MAKERS) <= set(names)


def test_the_matrix_counts_what_is_named_first() -> None:
    rows = [{"truth": "drift", "named": "drift"}, {"truth": "drift", "named": "healthy"}]
    line = next(line for line in benchmark.matrix(rows) if line.startswith("| drift (2)"))
    cells = [cell.strip() for cell in line.split("|")[2:-1]]
    found = [name for name, cell in zip([*benchmark.MAKERS, "unfinished", "healthy"], cells, strict=True) if cell]
    assert found == ["drift", "healthy"]


def result(**changes: object) -> Result:
    """A beam of 12 px on a spiral over an object of ones."""
    y, x = np.mgrid[:32, :32] - 16
    k = np.arange(60)
    places = 24 + 2.5 * np.sqrt(k)[:, None] * np.stack([np.sin(2.4 * k), np.cos(2.4 * k)], axis=1)
    given = {
        "object": np.ones((1, 96, 96), complex),
        "probe": (np.hypot(y, x) < 6).astype(complex)[None],
        "positions_px": places,
        "attrs": {"final_residual": 0.01, "noise_floor": 0.0099},
    }
    return Result(**{**given, **changes})  # type: ignore[arg-type]


#: Attributes of a result that leaves much unexplained.
POOR = {"final_residual": 0.05, "noise_floor": 0.01}


def named(of: Result) -> list[str]:
    return [one.cause for one in report(of).findings]


def test_a_sound_result_by_itself() -> None:
    assert named(result()) == []
    assert report(result()).lines()[-1] == "No cause among 7 is recognised."


@pytest.mark.parametrize("verdict, asked", [("good", False), ("poor", True)])
def test_two_beams_are_looked_for_in_what_is_not_good(verdict: str, asked: bool) -> None:
    """Parts of a thick crystal differ as much as by another beam, though all is explained but for twice the noise."""
    made = result()
    made.attrs |= {
        "verdict": verdict,
        "verdict_sentence": verdict,
        "final_residual": 2.0,
        "noise_floor": 1.0,
        "times_noise": 2.0,
    }
    row = next(cause for cause in CAUSES if cause.name == "two_beams")
    assert is_open(ResultView(made, None), row) is asked


def test_vortices_and_ramps_of_the_object() -> None:
    y, x = np.mgrid[:96, :96] - 40.5
    winding = np.exp(1j * np.arctan2(y, x))[None]
    assert named(result(object=winding, attrs=POOR)) == ["vortices"]
    assert named(result(object=winding)) == [], "a sample may wind where the patterns are explained"
    assert named(result(object=np.exp(2j * np.pi * 1.5 * x / 32)[None])) == ["confused"]


def test_modes_that_hold_nothing() -> None:
    probe = result().probe
    assert named(result(probe=np.concatenate([probe, 0.03 * probe, 0.02 * probe]))) == ["many_modes"]
    assert named(result(probe=np.concatenate([probe, 0.3 * probe, 0.2 * probe]))) == []


def test_steps_as_wide_as_the_beam() -> None:
    places = result().positions_px
    wide = 24 + 2.0 * (places - 24)
    found = report(result(positions_px=wide, object=np.ones((1, 128, 128), complex), attrs=POOR)).findings[0]
    near = ResultView(result()).nearest_px.mean()
    assert found.cause == "overlap" and found.number == pytest.approx(2 * near / 12, rel=0.1)


def test_a_probe_that_left_the_defocus_of_its_start() -> None:
    """The fit has brought it from half of its spread; a start that was right is left alone."""
    scan = simulator.make(np.random.default_rng(1), views=36)
    recipe = Recipe.parse({"data": {"path": "scan.cxi"}}).to_yaml()
    for told, named in ((0.5, True), (-1.0, True), (0.9, False)):
        start = simulator.lens(scan.window, 0.2 * 48, told * 8, 0.06 * 48, 0.5)
        view = ResultView(
            result(probe=scan.probes, positions_px=scan.positions, recipe=recipe), scan.measurement(probe=start[None])
        )
        evidence = find_other_plane(view)
        assert evidence is not None and (evidence.number > 4) == named, told
        assert ("another defocus than that of the start" in evidence.sentence) == named


def test_over_fitting_is_said_from_held_out_views_alone() -> None:
    assert named(result(attrs={"final_residual": 0.008, "noise_floor": 0.01})) == [], "parameters take their share"
    rising = {"stage": np.zeros(9), "residual": np.linspace(0.02, 0.01, 9), "held_out": np.linspace(0.02, 0.04, 9)}
    (found,) = report(result(history=rising)).findings
    assert found.cause == "over_fitting" and "risen from 0.02 to 0.04" in found.sentence
    falling = {**rising, "held_out": np.linspace(0.03, 0.0125, 9)}
    assert named(result(history=falling)) == [], "noise and parameters alone explain a ratio of 1.25"
    refined = result(history=rising)
    refined.nominal_px = refined.positions_px + 0.01
    assert "over_fitting" not in named(refined), "held-out views keep the positions that they had"


def test_the_end_of_a_run_is_three_lines_at_most() -> None:
    converged = {"convergence": "converged: the residual falls by 0.01 % an epoch"}
    converged["verdict_sentence"] = "as it is"
    good = {**converged, "verdict": "good", "final_residual": 0.01, "noise_floor": 0.01}
    lines, cause = last_words(result(attrs=good), Path("out/result.h5"))
    assert (
        lines == ["Convergence of the iteration: converged: the residual falls by 0.01 % an epoch."] and cause is None
    )
    poor = {**converged, "verdict": "poor", "final_residual": 0.05, "noise_floor": 0.01}
    lines, cause = last_words(result(attrs=poor), Path("out/result.h5"))
    assert len(lines) == 2 and "`ptymesh diagnose out/result.h5`" in lines[1] and cause is None
    y, x = np.mgrid[:96, :96] - 40.5
    vortex = result(object=np.exp(1j * np.arctan2(y, x))[None], attrs=poor)
    lines, cause = last_words(vortex, Path("r.h5"))
    assert len(lines) == 3 and lines[1].startswith("Likely cause: Phase vortices") and cause == "vortices"
    assert lines[2].startswith("What would help: ")


def test_patterns_tell_a_narrow_probe_from_too_little_overlap() -> None:
    """A probe that stayed in focus is as narrow as one that hardly overlaps; the size of the speckles is another."""
    measured, found = benchmark.plane(np.random.default_rng([3, 77]), 3)
    assert report(found).findings[0].cause == "overlap"
    assert report(found, measured).findings[0].cause == "plane"
    found.attrs |= {"verdict": "poor", "verdict_sentence": "the residual is 9 times what counting leaves"}
    lines, cause = last_words(found, Path("r.h5"), lambda: measured)
    assert cause == "plane" and "The probe is not that of the sample's plane" in "".join(lines)
    assert "defocus_m" in lines[-1]

    def gone() -> Measurement:
        raise BadInput("It is not there.")

    assert last_words(found, Path("r.h5"), gone) == last_words(found, Path("r.h5"))


def test_an_iteration_that_is_not_at_its_end() -> None:
    """It is named with the epochs that would pay, unless steps were made small or the curve lies flat."""
    epochs = np.arange(30.0)

    def of(per_epoch: float, rate: np.ndarray | None = None) -> Result:
        history = {"residual": 0.2 * per_epoch**epochs, "stage": np.zeros(30)}
        return result(
            attrs=POOR | {"verdict": "poor", "verdict_sentence": "it is"},
            history=history | ({} if rate is None else {"rate": rate}),
        )

    (found,) = (one for one in report(of(0.97)).findings if one.cause == "unfinished")
    assert found.number == pytest.approx(3, rel=0.1) and "ptymesh resume OUT --set stages.0.epochs=" in found.remedy
    assert "unfinished" not in named(of(0.9999))
    assert "unfinished" not in named(of(0.97, 0.5 * (1 + np.cos(np.pi * epochs / 29.5))))


def test_two_beams_are_looked_for_in_each_scan_of_several_of_other_brightness() -> None:
    """Of one scan after another of eight times the dose nothing is said; of a change within one it is."""
    made = [simulate(views=64, window=24, photons_per_view=dose, seed=k) for k, dose in ((1, 2e4), (2, 1.6e5))]
    scans = [replace(one.measurement, name=f"s{k}", checks=NO_CHECKS) for k, one in enumerate(made)]
    found = []
    for counts in (None, np.where(np.arange(64) < 40, 1, 3)):
        second = scans[1].patterns.read(np.arange(64))
        second = second if counts is None else second * counts[:, None, None].astype(second.dtype)
        recon = Reconstruction([scans[0], replace(scans[1], patterns=ArraySource(second))], probe_modes=1)
        list(recon.run({"engine": "rpie", "epochs": 3, "batch": 16}))
        view = ResultView(recon.result(), recon.scan)
        evidence = find_two_beams(view)
        assert evidence is not None
        bad, astray = find_bad_frames(view), find_astray_views(view)
        assert bad is not None and astray is not None and bad.number == astray.number == 0
        found.append(evidence)
    assert found[0].number < 80 < found[1].number, found
    assert "from about view 104 on the brightness" in found[1].sentence


def test_images_wider_than_the_window_are_no_near_field_where_pixels_are_divided() -> None:
    """A beam out of focus, wider than what pixels of twice the side can sample."""
    made = simulate(views=100, window=64, photons_per_view=1e6, seed=3)
    fine = made.measurement
    y = np.fft.fftshift(fine.patterns.read(np.arange(100)), axes=(1, 2)).reshape(100, 32, 2, 32, 2).sum(axis=(2, 4))
    scan = replace(
        fine,
        patterns=ArraySource(np.ascontiguousarray(np.fft.ifftshift(y, axes=(1, 2)))),
        geometry=fine.geometry.binned(2),
        mask=np.ones((32, 32), bool),
        probe=None,
    )
    numbers = []
    for optics in (None, {"binned_detector": {"factor": 2}}):
        recon = Reconstruction(scan, optics=optics, probe_modes=1)
        evidence = find_hidden_near_field(ResultView(recon.result(), scan))
        numbers.append(None if evidence is None else evidence.number)
    assert numbers[0] is not None and numbers[1] is not None and numbers[1] < 1 < numbers[0], numbers


def test_a_single_view_is_refused() -> None:
    one = Result(np.ones((1, 20, 20), "c8"), np.ones((1, 16, 16), "c8"), np.zeros((1, 2)))
    with pytest.raises(BadInput, match="a single view, and causes show between views; give a result of more views"):
        report(one)
