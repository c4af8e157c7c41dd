"""Pixels that count the light of several of the model's: against scans whose patterns are binned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ptymesh as pm
from ptymesh.compare import compare_results
from ptymesh.errors import BadInput
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.io.results import Result
from ptymesh.measurement import ArraySource, Measurement
from ptymesh.models.binned_detector import BinnedDetector
from ptymesh.planning.plan import scan_of
from ptymesh.recipe.schema import Recipe
from ptymesh.recipe.starts import ObjectOptions, ProbeOptions
from ptymesh.run.session import run_recipe
from ptymesh.run.simulate_file import write
from ptymesh.simulate import Simulated, checked, simulate
from stopped_runs import run_to_end_or_stop

TWICE: dict[str, Any] = {"binned_detector": {"factor": 2}}


def binned(views: int = 64, window: int = 48) -> tuple[Simulated, Measurement]:
    """A scan, and the same with 2 x 2 pixels of its patterns summed, whose windows are narrower than the beam."""
    made = simulate(views=views, window=window, photons_per_view=1e6, seed=3)
    fine, half = made.measurement, window // 2
    y = np.fft.fftshift(fine.patterns.read(np.arange(views)), axes=(1, 2))
    summed = y.reshape(views, half, 2, half, 2).sum(axis=(2, 4))
    assert fine.probe is not None
    return made, replace(
        fine,
        patterns=ArraySource(np.ascontiguousarray(np.fft.ifftshift(summed, axes=(1, 2)))),
        geometry=fine.geometry.binned(2),
        mask=np.ones((half, half), bool),
        probe=fine.probe[:, half // 2 : half // 2 + half, half // 2 : half // 2 + half],
    )


@pytest.mark.parametrize("factor", [2, 3])
def test_it_sums_the_pixels_about_the_zero_frequency(factor: int) -> None:
    piece, S = BinnedDetector(factor=factor), torch.rand(3, 24, 36, dtype=torch.float64)
    found = piece.forward(S, {}, ())
    before = (factor - 1) // 2
    for y, x in ((0, 0), (1, 2), (24 // factor - 1, 36 // factor - 1)):
        rows, columns = (torch.arange(factor * i - before, factor * (i + 1) - before) for i in (y, x))
        assert torch.allclose(found[:, y, x], S[:, rows % 24][:, :, columns % 36].sum((1, 2)))


def test_it_is_what_binning_the_data_makes_of_a_scan(tmp_path: Path) -> None:
    """The true estimate of the whole scan explains the binned patterns, to their noise."""
    made, _ = binned(16)
    write(made.truth.options, tmp_path / "scan.cxi")
    scan = pm.load(tmp_path / "scan.cxi", bin=2)
    recon = pm.Reconstruction(scan, optics=TWICE, probe_modes=1, precision="double")
    e, truth = recon.state.estimate, made.truth.estimate()
    e.positions += (truth.positions - e.positions)[0].round()
    moved = truth.positions - e.positions
    assert float(moved.abs().max()) < 1e-6
    e.object, e.extent, e.origin = truth.object, truth.extent, truth.origin
    e.anchors = torch.floor(e.positions + 0.5).long()
    e.probe.copy_(truth.probe)
    recon.problem.begin_epoch(e)
    assert recon.noise_level is not None
    assert recon.problem.residual(e)[0] == pytest.approx(recon.noise_level, rel=0.1)


@pytest.mark.parametrize("engine", ["rpie", "lsqml", "adam", "raar"])
def test_a_beam_wider_than_the_window_is_found(engine: str) -> None:
    """At the pixels of the object that the scan has without it, where part of the beam lies beyond the window."""
    made, coarse = binned()
    stage = {"engine": engine, "epochs": 20 if engine == "rpie" else 12} | ({} if engine == "raar" else {"batch": 12})
    residuals, errors = [], []
    for optics in (TWICE, None):
        recon = pm.Reconstruction(coarse, optics=optics, probe_modes=1, seed=1)
        residuals.append(list(recon.run(stage))[-1].residual)
        assert recon.probe.shape == ((1, 48, 48) if optics else (1, 24, 24))
        errors.append(compare_results(recon.result(), made.truth).nrmse)
    assert residuals[0] < 0.5 * residuals[1] and errors[0] < 0.6 * errors[1], (residuals, errors)


def reconstructed(world: Any, engine: str, layout: str) -> list[np.ndarray]:
    """Object, probe, positions and background after two epochs."""
    _, coarse = binned(16)
    efficiency = np.linspace(0.9, 1.1, 24 * 24).reshape(24, 24)
    coarse = replace(coarse, background=np.full((24, 24), 0.5), efficiency=efficiency)
    optics = {**TWICE, "detector_efficiency": True, "detector_blur": {"start": {"blur_width": 0.4}}}
    recon = pm.Reconstruction(coarse, optics=optics, device=world, layout=layout, probe_modes=1, seed=1)
    unknowns = {"blur_width": True}
    if engine == "adam":
        unknowns |= {"object": True, "probe": True, "background": True, "positions": True}
    list(recon.run({"engine": engine, "epochs": 2, "batch": 5, "positions": {"gain": 1}, "unknowns": unknowns}))
    e = recon.state.estimate
    assert e.background.shape == (24, 24) and e.others["efficiency"].shape == (24, 24)
    whole = recon.problem.layout.gather_whole(e.object, e)
    return [x.numpy().copy() for x in (whole, e.probe, e.positions, e.background, e.others["blur_width"])]


@pytest.mark.parametrize("engine", ["rpie", "adam"])
def test_ranks_and_layouts_have_the_same_bits(ranks, engine: str) -> None:  # type: ignore[no-untyped-def]
    wanted = ranks(1, reconstructed, engine, "replicated")[0]
    for layout in ("replicated", "tiled"):
        for found in ranks(2, reconstructed, engine, layout):
            assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True)), layout


def test_results_and_figures_have_patterns_of_other_sides_than_windows(tmp_path: Path) -> None:
    """And held-out views are fitted on half of the pixels."""
    write(checked(views=25, window=16, optics=TWICE, seed=2), tmp_path / "scan.cxi")
    adam = {"engine": "adam", "epochs": 4, "batch": 8, "positions": {"gain": 1}}
    adam |= {"unknowns": {"object": True, "probe": True, "background": True, "positions": True}}
    raw = {"data": {"path": str(tmp_path / "scan.cxi")}, "optics": TWICE, "hold_out": 0.1, "stages": [adam]}
    whole = Recipe.parse({**raw, "output": {"dir": str(tmp_path / "whole")}})
    outcome = run_recipe(whole, device="cpu")
    result = Result.load(tmp_path / "whole" / "result.h5")
    assert result.probe.shape == (1, 32, 32) and result.background is not None and result.background.shape == (16, 16)
    assert outcome.patterns is not None and outcome.patterns.mean[0].shape == (16, 16)
    assert {"positions"} == {*result.attrs["held_out_fitted"]}


def test_a_stopped_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    _, coarse = binned(16)

    def recon(saved: checkpoint.Checkpoint | None = None) -> pm.Reconstruction:
        made = pm.Reconstruction(coarse, optics=TWICE, probe_modes=1, seed=1, saved=saved)
        made.stages = [pm.RPIE(epochs=2, batch=5), pm.Adam(epochs=2, batch=5, coarsen=2)]
        return made

    whole, stopped = recon(), recon()
    assert run_to_end_or_stop(whole, {})
    assert not run_to_end_or_stop(stopped, {"folder": tmp_path / "checkpoint", "stop": 11})
    resumed = recon(checkpoint.load(tmp_path / "checkpoint"))
    assert run_to_end_or_stop(resumed, {})
    for name in ("object", "probe"):
        assert torch.equal(resumed.state.estimate[name], whole.state.estimate[name])


def test_a_plan_reckons_with_the_windows_of_the_model() -> None:
    _, coarse = binned(16)
    rest = ObjectOptions(), ProbeOptions(), "fourier", "single", 3
    plain, twice = (scan_of(coarse, *rest, optics) for optics in ((), (BinnedDetector(factor=2),)))  # type: ignore[arg-type]
    assert plain.window == (24, 24) and twice.window == (48, 48) and twice.pattern_bytes == plain.pattern_bytes


def test_what_cannot_be_is_refused() -> None:
    near = simulate(views=9, window=32, kind="near").measurement
    with pytest.raises(BadInput, match=r"optics\.binned_detector is for far-field scans"):
        pm.Reconstruction(near, optics=TWICE)
    with pytest.raises(BadInput, match=r"optics\.binned_detector is for far-field scans"):
        simulate(views=9, window=32, kind="near", optics=TWICE)
    uneven = replace(binned(16)[1], efficiency=np.ones((24, 24)))
    with pytest.raises(BadInput, match=r"optics\.detector_efficiency is of pixels of the detector; name it behind"):
        pm.Reconstruction(uneven, optics={"detector_efficiency": True, **TWICE})
    coarse = binned(16)[1]
    with pytest.raises(BadInput, match=r"geometry is for windows of \(48, 48\), the patterns are \(24, 24\)"):
        pm.Reconstruction(replace(coarse, geometry=coarse.geometry.binned(0.5)))
    two = [coarse, replace(coarse)]
    with pytest.raises(BadInput, match="Objects of single scans lie a window of the detector apart"):
        pm.Reconstruction(two, object={"scans": "own"}, optics=TWICE)
