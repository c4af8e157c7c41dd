"""Several scans of one object, each with a background of its own, or a detector of other efficiency."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import yaml

import ptymesh as pm
from joint import TwoScans, same_bits, two_scans
from ptymesh.compare import compare_results
from ptymesh.distributed.world import Solo, World
from ptymesh.engines import ENGINES
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.io.joint_scans import join_measurements
from ptymesh.io.labelled import dataset
from ptymesh.measurement import ArraySource, Measurement
from ptymesh.physics.backend import Backend
from ptymesh.problem import Batch
from ptymesh.recipe.schema import load_recipe
from ptymesh.run.session import run_recipe
from ptymesh.run_folder.patterns import compared_patterns, model_of, modelled, patterns_of
from stopped_runs import end_of_run

NO_SHIFT = [(0.0, 0.0), (0.0, 0.0)]
REFINED = {"object": True, "probe": True, "background": True}
FOUND = {"background": True}


def hilly(window: tuple[int, int], level: float, seed: int) -> np.ndarray:
    """A background (h, w) between a half and one and a half of a level."""
    return level * np.random.default_rng(seed).uniform(0.5, 1.5, window)


def with_backgrounds(scans: list[Measurement], levels: tuple[float, float], known: bool = True) -> list[Measurement]:
    """The scans with light of these levels in every pattern, which each of them knows or not."""
    found = []
    for number, (scan, level) in enumerate(zip(scans, levels, strict=True)):
        background = hilly(scan.window, level, number)
        counts = scan.patterns.read(np.arange(scan.views)) + np.random.default_rng(9 + number).poisson(
            background, scan.patterns.shape
        )
        patterns = ArraySource(counts.astype(np.uint32))
        found.append(replace(scan, patterns=patterns, background=background if known else None))
    return found


@pytest.fixture(scope="module")
def both() -> TwoScans:
    return two_scans(shift_px=(0.0, 0.0))


@pytest.fixture(scope="module")
def lit(both: TwoScans) -> list[Measurement]:
    return with_backgrounds(both.scans, (6.0, 30.0))


def truth_of(both: TwoScans) -> pm.Result:
    first, pixel = both.truths[0], both.scans[0].geometry.object_pixel_m
    return pm.Result(first.object, first.probe, first.positions, pixel_size_m=pixel)


def test_scans_keep_their_backgrounds_side_by_side(both: TwoScans, lit: list[Measurement]) -> None:
    joint = join_measurements(lit, NO_SHIFT)
    assert joint.background is not None and joint.background.shape == (2, *joint.window)
    shares = np.array([lit[0].views, lit[1].views]) / joint.views
    np.testing.assert_allclose(joint.mean_background, np.tensordot(shares, joint.background, 1))
    one_alone = join_measurements([lit[0], both.scans[1]], NO_SHIFT)
    assert one_alone.background is not None and not one_alone.background[1].any()
    alike = join_measurements([lit[0], replace(both.scans[1], background=lit[0].background)], NO_SHIFT)
    assert alike.background is not None and alike.background.shape == joint.window


def test_what_shines_beside_the_beam_makes_no_scan_brighter(lit: list[Measurement]) -> None:
    intensity = join_measurements(lit, NO_SHIFT).intensity
    assert intensity is not None and intensity[-1] / intensity[0] == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("engine", ["rpie", "lsqml", "dm", "adam"])
def test_an_engine_explains_each_scan_with_its_own_background(lit: list[Measurement], engine: str) -> None:
    sizes = {} if engine == "dm" else {"batch": 30}

    def residual(scans: list[Measurement]) -> float:
        found = pm.reconstruct(scans, ENGINES[engine](epochs=12, **sizes), seed=1)
        return float(found.attrs["final_residual"])

    mean = sum(one.background for one in lit if one.background is not None) / 2
    assert residual(lit) < 0.5 * residual([replace(one, background=mean) for one in lit])


@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("loss", ["fidelity", "nrmse"])
def test_sums_are_those_of_each_scan_alone(lit: list[Measurement], precision: str, loss: str) -> None:
    """Slopes of a batch of both scans are those of its two parts, by kernels and by the reference."""
    stage = pm.Adam(unknowns=REFINED, loss=loss)
    recon = pm.Reconstruction(lit, precision=precision, device="cpu")
    problem, estimate = recon.problem, recon.state.estimate
    problem.begin_epoch(estimate)
    views = np.random.default_rng(0).permutation(problem.views)[:50]
    assert problem.scan_index is not None
    stage.before_epoch(problem, estimate)

    def slope(backend: Any) -> torch.Tensor:
        problem.backend = backend
        part = stage.gradient(problem, estimate, Batch(views), {"background"}).parts["background"]
        return (part.slope * part.scale).to(torch.float64)

    kernels, reference = slope(problem.backend), slope(Backend())
    assert kernels.shape == (2, *problem.window)
    tolerance = 1e-9 if precision == "double" else 1e-4
    torch.testing.assert_close(kernels, reference, rtol=tolerance, atol=tolerance * float(reference.abs().max()))
    for scan in (0, 1):  # the step of a scan is that of its views, however many others the batch has
        own = views[problem.scan_index[views] == scan]
        part = stage.gradient(problem, estimate, Batch(own), {"background"}).parts["background"]
        alone, other = part.slope[scan], part.slope[1 - scan]
        assert float(alone.abs().max()) > 0 and float(other.abs().max()) == 0


def test_the_background_of_each_scan_is_found(both: TwoScans) -> None:
    scans = with_backgrounds(both.scans, (6.0, 30.0), known=False)
    stage = pm.Adam(epochs=40, batch=20, unknowns={**REFINED, "background": {"lr": 0.3}})
    found = pm.reconstruct(scans, stage, seed=1)
    assert found.background is not None and found.background.shape == (2, *scans[0].window)
    np.testing.assert_allclose(np.median(found.background, axis=(1, 2)), [6.0, 30.0], rtol=0.12)
    assert np.corrcoef(found.background[1].ravel(), hilly(scans[1].window, 30.0, 1).ravel())[0, 1] > 0.7
    assert found.attrs["final_residual"] < 1.15 * found.attrs["noise_floor"]


@pytest.mark.parametrize(
    "stage", [pm.RPIE(epochs=30, batch=20, unknowns=FOUND), pm.LSQML(epochs=30, batch=20, unknowns=FOUND)]
)
def test_engines_of_revised_waves_find_the_background_of_each_scan(both: TwoScans, stage: pm.Engine) -> None:
    scans = with_backgrounds(both.scans, (6.0, 30.0), known=False)
    found = pm.reconstruct(scans, stage, seed=1)
    assert found.background is not None and found.background.shape == (2, *scans[0].window)
    np.testing.assert_allclose(np.median(found.background, axis=(1, 2)), [6.0, 30.0], rtol=0.12)


def test_backgrounds_of_scans_are_smoothed_each_by_itself(both: TwoScans) -> None:
    scans, smooth = with_backgrounds(both.scans, (6.0, 30.0), known=False), {"sigma": {"background": 2}}
    for settings in ({}, {"constraints": {"unknown_smoothness": smooth}}):
        found = pm.reconstruct(scans, pm.RPIE(epochs=6, batch=20, unknowns=FOUND, **settings), seed=1).background
        assert found is not None and np.median(found[1]) > 2 * np.median(found[0])
        steps = np.abs(np.diff(np.fft.fftshift(found, axes=(-2, -1)), axis=-1))
        rough = np.median(steps, axis=(1, 2)) / np.median(found, axis=(1, 2))
        assert (rough < 0.1).all() if settings else (rough > 0.2).all()


def outcome(world: World, layout: str, engine: str, how: dict[str, Any]) -> dict[str, np.ndarray]:
    """What one rank ends with."""
    scans, folder = with_backgrounds(two_scans().scans, (6.0, 30.0), how["known"]), how.get("folder")
    saved = checkpoint.load(folder, world) if folder and "stop" not in how else None
    recon = pm.Reconstruction(scans, device=world, layout=layout, seed=3, saved=saved, precision="single")
    moved = {"adam": {"unknowns": REFINED, "loss": how.get("loss", "fidelity")}, "epie": {"unknowns": FOUND}}
    options = moved.get(engine, {})
    recon.stages = [pm.RPIE(epochs=1, batch=17), ENGINES[engine](epochs=3, batch=17, **options)]
    return end_of_run(recon, how, "background")


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("engine", "how"),
    [
        ("adam", {"known": True}),
        ("adam", {"known": False, "loss": "nrmse"}),
        ("lsqml", {"known": True}),
        ("epie", {"known": False}),
    ],
)
def test_ranks_and_layouts_end_with_the_same_bits(ranks: Any, engine: str, how: dict[str, Any]) -> None:
    one = outcome(Solo(), "replicated", engine, how)
    assert one["background"].shape == (2, 32, 32) and not np.array_equal(*one["background"])
    for size, layout in ((2, "replicated"), (3, "tiled")):
        for other in ranks(size, outcome, layout, engine, how):
            same_bits(one, other)


@pytest.mark.parametrize("stop", [3, 11])
def test_a_run_that_was_stopped_goes_on_with_the_same_bits(ranks: Any, tmp_path: Path, stop: int) -> None:
    """In the first stage all scans have one background still."""
    how = {"known": False}
    one = outcome(Solo(), "replicated", "adam", how)
    ranks(2, outcome, "tiled", "adam", {**how, "folder": tmp_path, "stop": stop})
    same_bits(one, outcome(Solo(), "replicated", "adam", {**how, "folder": tmp_path}))


def test_a_coarse_stage_moves_the_inner_part_of_each(lit: list[Measurement]) -> None:
    stages = [pm.Adam(epochs=2, batch=20, coarsen=2, unknowns=REFINED), pm.RPIE(epochs=1, batch=20)]
    found = pm.reconstruct(lit, stages, seed=1)
    assert found.background is not None
    moved = found.background != np.stack([one.background for one in lit]).astype(np.float32)
    assert moved[:, 0, 0].all() and not moved[:, 16, 16].any()


def test_the_result_holds_the_background_of_each_scan(lit: list[Measurement], tmp_path: Path) -> None:
    found = pm.reconstruct(lit, pm.RPIE(epochs=3, batch=20), seed=1)
    found.save(tmp_path / "result.h5")
    result = pm.Result.load(tmp_path / "result.h5")
    assert result.background is not None
    np.testing.assert_array_equal(result.background, found.background)
    np.testing.assert_array_equal(result.of_scan(1).background, result.background[1])
    with h5py.File(tmp_path / "result.h5") as file:
        np.testing.assert_array_equal(file["scans/1/background"][:], result.background[1])
    joint = join_measurements(lit, NO_SHIFT)
    views = np.array([3, lit[0].views + 5])
    counts = joint.patterns.read(views).astype(np.float64)
    misfit = ((np.sqrt(modelled(model_of(result, joint.geometry), result, views, joint)) - np.sqrt(counts)) ** 2).sum(
        axis=(1, 2)
    )
    assert result.residuals is not None
    np.testing.assert_allclose(misfit / counts.sum(axis=(1, 2)), result.residuals[views], rtol=1e-3)
    assert compared_patterns(result, joint).pairs
    pytest.importorskip("xarray")
    assert dataset(result)["background"].dims == ("scan", "detector_y", "detector_x")


def test_a_recipe_names_background_and_efficiency_of_each_scan(lit: list[Measurement], tmp_path: Path) -> None:
    scans, files = [], {"keys": {"patterns": "patterns", "positions": "positions"}}
    geometry = lit[0].geometry
    for scan in lit:
        np.savez(
            tmp_path / f"{scan.name}.npz",
            patterns=np.fft.fftshift(scan.patterns.read(np.arange(scan.views)), axes=(1, 2)),
            positions=scan.positions * np.array(geometry.object_pixel_m),
        )
        assert scan.background is not None
        np.save(tmp_path / f"{scan.name}-background.npy", np.fft.fftshift(scan.background))
        efficiency = np.ones(scan.window)
        efficiency[: scan.views % 7 + 3] = 0.5
        np.save(tmp_path / f"{scan.name}-efficiency.npy", efficiency if scan.name == "right" else np.ones(scan.window))
        data = {
            "path": f"{scan.name}.npz",
            **files,
            "wavelength_m": geometry.wavelength_m,
            "object_pixel_m": list(geometry.object_pixel_m or ()),
            "background": f"{scan.name}-background.npy",
            "efficiency": f"{scan.name}-efficiency.npy",
        }
        scans.append({"data": data})
    recipe = {
        "scans": scans,
        "optics": {"detector_efficiency": True},
        "probe": {"start": "auto"},
        "stages": [{"engine": "adam", "epochs": 2, "batch": 20, "unknowns": REFINED}],
        "output": {"dir": str(tmp_path / "out"), "figures": False},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    result = pm.Result.load(run_recipe(load_recipe(tmp_path / "recipe.yaml"), device="cpu").path)
    assert result.background is not None and result.background.shape == (2, 32, 32)
    np.testing.assert_allclose(np.median(result.background, axis=(1, 2)), [6.0, 30.0], rtol=0.2)
    assert result.unknowns["efficiency"].shape == (2, 32, 32)
    assert np.ptp(result.unknowns["efficiency"][0]) == 0 < np.ptp(result.unknowns["efficiency"][1])
    assert patterns_of(result).pairs


def test_both_together_are_better_than_either_alone(both: TwoScans, lit: list[Measurement]) -> None:
    stages = [pm.RPIE(epochs=10, batch=20), pm.Adam(epochs=20, batch=20)]
    truth = truth_of(both)
    together = compare_results(pm.reconstruct(lit, stages, seed=1), truth).nrmse
    alone = [compare_results(pm.reconstruct(one, stages, seed=1), truth).nrmse for one in lit]
    assert together < min(alone)


def test_probes_of_scans_go_with_backgrounds_of_scans(lit: list[Measurement]) -> None:
    recon = pm.Reconstruction(lit, probe={"scans": "own"}, device="cpu", seed=1)
    residuals = [one.residual for one in recon.run(pm.Adam(epochs=3, batch=20, unknowns=REFINED))]
    assert residuals[-1] < residuals[0] and recon.state.estimate.has_own_backgrounds


def uneven(scans: list[Measurement], seed: int = 0) -> list[Measurement]:
    """The scans as detectors of uneven pixels count them, each another one."""
    rng, found = np.random.default_rng(seed), []
    for scan in scans:
        efficiency = rng.uniform(0.2, 1.0, scan.window)
        efficiency /= efficiency.mean()
        counts = rng.binomial(scan.patterns.read(np.arange(scan.views)).astype(np.int64), efficiency / 3)
        found.append(replace(scan, patterns=ArraySource(counts.astype(np.uint32)), efficiency=efficiency))
    return found


@pytest.mark.parametrize("engine", ["rpie", "lsqml", "adam"])
def test_each_scan_has_the_efficiency_of_its_detector(both: TwoScans, engine: str, tmp_path: Path) -> None:
    scans = uneven(both.scans)
    how = {"optics": {"detector_efficiency": True}, "seed": 1}
    stage = ENGINES[engine](epochs=12, batch=30)
    own = pm.reconstruct(scans, stage, **how)
    wrong = pm.reconstruct([replace(one, efficiency=scans[0].efficiency) for one in scans], stage, **how)
    assert own.attrs["final_residual"] < 0.7 * wrong.attrs["final_residual"]
    np.testing.assert_allclose(own.unknowns["efficiency"], np.stack([one.efficiency for one in scans]))
    joint = join_measurements(scans, NO_SHIFT)
    views = np.array([3, scans[0].views + 5])
    counts = joint.patterns.read(views).astype(np.float64)
    own = replace(own, recipe="optics: {detector_efficiency: true}")  # as runs of a recipe hold it
    misfit = ((np.sqrt(modelled(model_of(own, joint.geometry, joint), own, views, joint)) - np.sqrt(counts)) ** 2).sum(
        axis=(1, 2)
    )
    assert own.residuals is not None
    np.testing.assert_allclose(misfit / counts.sum(axis=(1, 2)), own.residuals[views], rtol=1e-3)
