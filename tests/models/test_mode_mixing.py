"""A mixture of the modes for each view: against the sum by hand, rotations of the modes, and a beam that changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ptymesh as pm
from joint import two_scans
from ptymesh.compare import compare_results
from ptymesh.engines import DM
from ptymesh.errors import BadInput
from ptymesh.measurement import ArraySource, Measurement
from ptymesh.models.mode_mixing import ModeMixing
from ptymesh.physics.model import Model
from ptymesh.run_folder.figures import write_products
from ptymesh.simulate import simulate
from ptymesh.simulate.simulation import Truth


def randn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.complex128)


def test_it_is_the_product_of_matrices() -> None:
    psi, mixing = randn(4, 3, 8, 10, seed=1), randn(4, 2, 3, seed=2)
    found = ModeMixing(rank=2).forward(psi, {"mixing": mixing}, ())
    assert torch.allclose(found, torch.einsum("brm,bmhw->brhw", mixing, psi), rtol=1e-12)


def test_it_starts_with_the_modes_unmixed() -> None:
    psi = randn(4, 3, 8, 10, seed=1)
    for rank in (1, 2, 3):
        piece = ModeMixing(rank=rank)
        values = piece.starts({"N": 4, "M": 3, "h": 8, "w": 10}, "cpu", torch.float64)
        assert torch.equal(piece.forward(psi, values, ()), psi[:, :rank])


def test_a_rotation_of_the_modes_changes_no_wave() -> None:
    psi, values = randn(4, 3, 8, 10, seed=1), {"mixing": randn(4, 2, 3, seed=2)}
    rotation = torch.linalg.qr(randn(3, 3, seed=3))[0]
    piece = ModeMixing(rank=2)
    before = piece.forward(psi, values, ())
    piece.rotate_modes(values, rotation)
    after = piece.forward(torch.einsum("nm,bmhw->bnhw", rotation, psi), values, ())
    assert torch.allclose(before, after, rtol=1e-11, atol=1e-12)


def changing_beam(rank: int, views: int = 100) -> tuple[Measurement, Truth]:
    """A scan in each view of which both modes mix anew, and its truth."""
    made = simulate(views=views, window=32, modes=2, mode_powers=(0.7, 0.3), noise=False, overlap=0.7, seed=3)
    rng = np.random.default_rng(5)
    mixing = np.eye(rank, 2) + 0.5 * (
        rng.standard_normal((views, rank, 2)) + 1j * rng.standard_normal((views, rank, 2))
    )
    truth = made.truth
    e, every = truth.estimate(), torch.arange(views)
    model = Model.for_geometry(truth.geometry, optics=[ModeMixing(rank=rank)], dtype=torch.complex128)
    waves = {"mixing": torch.from_numpy(mixing)}
    counts = model.intensity(e.object, e.probe, e.anchors, e.fractions(every), values=waves).numpy()
    noisy = rng.poisson(counts).astype(np.uint32)
    return replace(made.measurement, patterns=ArraySource(noisy), probe=truth.probe), truth


@pytest.mark.sample(1)
@pytest.mark.parametrize("rank", [1, 2])
def test_a_beam_that_changes_is_found(rank: int) -> None:
    """Against a model of two incoherent modes whose intensity alone follows the beam."""
    scan, truth = changing_beam(rank)
    unknowns: dict[str, Any] = {"object": True, "probe": True}
    mixed = pm.Adam(epochs=25, batch=10, unknowns={**unknowns, "mixing": True})
    plain = pm.Adam(epochs=25, batch=10, unknowns=unknowns, probe={"intensity": True})
    found = pm.reconstruct(scan, mixed, probe={"modes": 2}, optics={"mode_mixing": {"rank": rank}}, seed=1)
    other = pm.reconstruct(scan, plain, probe={"modes": 2}, seed=1)
    assert found.unknowns["mixing"].shape == (100, rank, 2)
    assert found.attrs["final_residual"] < 0.3 * other.attrs["final_residual"]
    assert compare_results(found, truth).nrmse < 0.5 * compare_results(other, truth).nrmse


def test_what_cannot_be_is_refused() -> None:
    scan = simulate(views=6, window=16).measurement
    with pytest.raises(
        BadInput, match=r"optics.mode_mixing.rank is 2, and the probe has 1 modes; give at most so many"
    ):
        pm.Reconstruction(scan, optics={"mode_mixing": {"rank": 2}})
    with pytest.raises(BadInput, match=r"mixing of optics.mode_mixing would stay as it starts; add unknowns:"):
        pm.reconstruct(scan, pm.RPIE(epochs=1), optics={"mode_mixing": True}, probe={"modes": 2})
    recon = pm.Reconstruction(scan, optics={"mode_mixing": True}, probe={"modes": 2})
    with pytest.raises(BadInput, match=r"dm keeps a wave of each mode, which optics.mode_mixing mixes"):
        DM().check(recon.problem)
    with pytest.raises(BadInput, match=r"optics.mode_mixing is of a single probe, and each scan has its own"):
        pm.Reconstruction(two_scans(views=10).scans, optics={"mode_mixing": True}, probe={"scans": "own"}, device="cpu")


@pytest.mark.usefixtures("coarse_figures")
def test_no_figure_shows_mixtures_as_images(tmp_path: Path) -> None:
    scan = simulate(views=6, window=16).measurement
    stage = pm.Adam(epochs=1, unknowns={"object": True, "probe": True, "mixing": True})
    found = pm.reconstruct(scan, stage, optics={"mode_mixing": {"rank": 2}}, probe={"modes": 2})
    found.save(tmp_path / "result.h5")
    made = {path.name for path in write_products(tmp_path / "result.h5", figures=True, writers=(), patterns=None)}
    assert "probe.png" in made and "mixing.png" not in made


@pytest.mark.parametrize("stage", [pm.LSQML(epochs=2, batch=20), pm.RPIE(epochs=2, batch=20)])
def test_other_engines_go_on_with_mixtures_that_were_found(stage: Any) -> None:
    scan, _ = changing_beam(1)
    unknowns = {"object": True, "probe": True, "mixing": True}
    first = pm.Adam(epochs=10, batch=20, unknowns=unknowns)
    recon = pm.Reconstruction(scan, optics={"mode_mixing": True}, probe={"modes": 2}, seed=1)
    before = [report.residual for report in recon.run(first)][-1]
    after = [report.residual for report in recon.run(stage)][-1]
    assert after < before
