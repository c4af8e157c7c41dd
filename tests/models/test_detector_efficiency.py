"""Pixels that count a share of the light: read from a file, in the model, and better than divided counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptymesh as pm
from ptymesh.compare import compare_results
from ptymesh.distributed.world import Solo, World
from ptymesh.errors import BadInput
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.io.formats.cxi_writer import write_measurement
from ptymesh.measurement import ArraySource, Measurement
from ptymesh.recipe.schema import Recipe
from ptymesh.simulate import simulate
from ptymesh.simulate.simulation import Truth

PIECE = {"detector_efficiency": True}


def uneven(photons: float = 3e4, views: int = 100) -> tuple[Measurement, Truth]:
    """A scan whose pixels count between a tenth and all of the light, relative to the mean, and its truth."""
    made = simulate(views=views, window=32, photons_per_view=photons, noise=False, seed=3)
    rng = np.random.default_rng(4)
    efficiency = rng.uniform(0.1, 1.0, (32, 32))
    efficiency /= efficiency.mean()
    light = made.measurement.patterns.read(np.arange(views))
    counts = rng.poisson(light * efficiency).astype(np.uint16)
    return replace(made.measurement, patterns=ArraySource(counts), efficiency=efficiency), made.truth


@pytest.mark.long
def test_it_is_better_than_counts_that_are_divided() -> None:
    scan, truth = uneven()
    assert scan.efficiency is not None
    counts = scan.patterns.read(np.arange(scan.views))
    divided = replace(scan, patterns=ArraySource((counts / scan.efficiency).astype(np.float32)), efficiency=None)
    stages = [pm.Adam(epochs=60, batch=10)]
    errors = [
        compare_results(pm.reconstruct(one, stages, optics=optics, seed=1), truth).nrmse
        for one, optics in ((scan, PIECE), (divided, None), (replace(scan, efficiency=None), None))
    ]
    assert errors[0] < 0.92 * errors[1] and errors[0] < 0.7 * errors[2], errors


@pytest.mark.parametrize("engine", [pm.RPIE(epochs=3, batch=20), pm.LBFGS(epochs=3)])
def test_no_engine_moves_it(engine: pm.RPIE | pm.LBFGS) -> None:
    scan, _ = uneven(views=30)
    recon = pm.Reconstruction(scan, optics=PIECE, precision="double", seed=1)
    residuals = [report.residual for report in recon.run(engine)]
    assert residuals[-1] < residuals[0]
    np.testing.assert_array_equal(recon.state.estimate.others["efficiency"].numpy(), scan.efficiency)
    np.testing.assert_array_equal(recon.result().unknowns["efficiency"], scan.efficiency)


def outcome(world: World, layout: str, folder: Path | None, stop: bool) -> list[np.ndarray]:
    """Object and probe after four batches, with saturated pixels too; of a run from a checkpoint, or up to it."""
    scan, _ = uneven(views=40)
    saved = checkpoint.load(folder, world) if folder and not stop else None
    optics = {**PIECE, "detector_saturation": {"level": 200}}
    recon = pm.Reconstruction(scan, optics=optics, device=world, layout=layout, seed=1, saved=saved)
    recon.stages = [pm.Adam(epochs=2, batch=20)]
    for report in recon.loop().epochs():
        if stop and folder and report.epoch == 1:
            recon.state.save(folder, recon.problem, {})
            break
    estimate = recon.state.estimate
    whole = recon.problem.layout.gather_whole(estimate.object, estimate)
    return [x.numpy() for x in (whole, estimate.probe, estimate.others["efficiency"])]


def test_ranks_layouts_and_runs_that_go_on_end_with_the_same_bits(ranks: Any, tmp_path: Path) -> None:
    scan, _ = uneven(views=40)
    assert 0.01 < float((scan.patterns.read(np.arange(40)) >= 200).mean()) < 0.3
    wanted = outcome(Solo(), "replicated", None, False)
    for found in ranks(3, outcome, "tiled", tmp_path, True):
        assert np.array_equal(found[2], wanted[2]) and not np.array_equal(found[0], wanted[0])
    for size, layout in ((2, "replicated"), (3, "tiled")):
        for found in ranks(size, outcome, layout, None, False):
            assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True)), (size, layout)
    resumed = outcome(Solo(), "replicated", tmp_path, False)
    assert all(np.array_equal(a, b) for a, b in zip(resumed, wanted, strict=True))


@pytest.mark.parametrize("engine", [pm.Adam, pm.RPIE])
def test_moving_it_is_refused(engine: type[pm.Adam | pm.RPIE]) -> None:
    with pytest.raises(BadInput, match=r"efficiency of optics.detector_efficiency, which is known and stays; leave it"):
        engine(unknowns={"efficiency": True})


def test_a_file_brings_it_through_crop_bin_and_turns(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    efficiency = rng.uniform(0.5, 2.0, (20, 24))
    efficiency[3, 7] = 0
    np.save(tmp_path / "efficiency.npy", efficiency)
    patterns = np.full((5, 20, 24), 7, np.uint16)
    np.savez(tmp_path / "scan.npz", patterns=patterns, positions=rng.uniform(0, 1e-7, (5, 2)))
    options = {
        "path": str(tmp_path / "scan.npz"),
        "keys": {"patterns": "patterns", "positions": "positions"},
        "wavelength_m": 1e-10,
        "object_pixel_m": [1e-8, 1e-8],
        "crop": [16, 16],
        "bin": 2,
        "transpose": True,
        "efficiency": str(tmp_path / "efficiency.npy"),
    }
    scan = pm.load(**options)
    cropped = efficiency[2:18, 4:20].T
    wanted = np.fft.ifftshift(cropped.reshape(8, 2, 8, 2).mean((1, 3)))
    good = np.fft.ifftshift((cropped > 0).reshape(8, 2, 8, 2).all((1, 3)))
    assert scan.efficiency is not None and (scan.mask == good).all() and (~good).sum() == 1
    np.testing.assert_allclose(scan.efficiency[good], wanted[good] / wanted[good].mean())
    assert (scan.efficiency[~good] == 1).all()
    write_measurement(scan, tmp_path / "prepared.cxi")
    again = pm.load(tmp_path / "prepared.cxi")
    np.testing.assert_allclose(again.efficiency, scan.efficiency)


def test_what_cannot_be_is_refused() -> None:
    scan, _ = uneven(views=10)
    plain = replace(scan, efficiency=None)
    with pytest.raises(BadInput, match=r"optics.detector_efficiency needs the share .* give it as data.efficiency"):
        pm.Reconstruction(plain, optics=PIECE)
    with pytest.raises(BadInput, match=r"add optics: \{detector_efficiency: true\}, or remove it"):
        Recipe.parse({"data": {"path": "scan.cxi", "efficiency": "flat.npy"}})
    with pytest.raises(BadInput, match=r"efficiency .* is 0 or less at good pixels"):
        replace(scan, efficiency=np.zeros((32, 32)))
    with pytest.raises(BadInput, match="must have the patterns' shape"):
        replace(scan, efficiency=np.ones((3, 3)))
    recon = pm.Reconstruction(scan, optics=PIECE)
    with pytest.raises(BadInput, match="coarsen: 2 does not know how efficiency of the optics looks there"):
        list(recon.run(pm.RPIE(epochs=1, coarsen=2)))
