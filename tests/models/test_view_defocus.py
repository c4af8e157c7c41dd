"""A defocus for every view: it is what free space does, and a scan over a tilted sample finds its slope."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import ptymesh as pm
from ptymesh.errors import BadInput
from ptymesh.measurement import ArraySource
from ptymesh.models import OPTICS
from ptymesh.physics.operators import Placed
from ptymesh.physics.propagate import angular_spectrum_kernel, apply_kernel
from ptymesh.run.loop import Loop
from ptymesh.simulate import simulate
from toy import make, relative


def placed(toy) -> Placed:  # type: ignore[no-untyped-def]
    return Placed.of(OPTICS["view_defocus"](), toy.measurement.geometry, torch.complex128, "cpu")


def test_it_is_free_space() -> None:
    toy = make()
    geometry, one = toy.measurement.geometry, placed(toy)
    psi = toy.truth.probe[None].repeat(2, 1, 1, 1)
    z = torch.tensor([0.0, 3e-7], dtype=torch.float64)
    found = one.operator.forward(psi, {"defocus": z}, one.tables)
    kernel = angular_spectrum_kernel(geometry.shape, geometry.object_pixel_m, geometry.wavelength_m, 3e-7)
    assert relative(found[0], psi[0]) < 1e-14
    assert relative(found[1], apply_kernel(psi[1], kernel)) < 1e-12
    assert relative(one.operator.adjoint(found, {"defocus": z}, one.tables), psi) < 1e-13


@pytest.mark.long
def test_the_tilt_of_a_sample_is_found() -> None:
    """Defocus grows across the scan; its slope is found from none, and the residual falls by what it explains."""
    toy = make(views=80, counts=1e5)
    e, one = toy.truth, placed(toy)
    across = e.positions[:, 1] - e.positions[:, 1].mean()
    true = across / across.abs().max() * 1e-3
    model = replace(toy.model, operators=(one,))
    every = torch.arange(80)
    counts = model.intensity(
        e.object, e.probe, e.anchors, e.fractions(every), e.weights, values={"defocus": true}
    ).numpy()
    scan = replace(toy.measurement, patterns=ArraySource(np.random.default_rng(0).poisson(counts).astype(np.uint16)))
    residuals, slopes = [], []
    for optics in ({}, {"view_defocus": True}):
        recon = pm.Reconstruction(scan, optics=optics)
        recon.state.estimate.probe.copy_(e.probe.to(torch.complex64))
        unknowns = {"object": True, **({"defocus": {"start": 2, "lr": 0.5}} if optics else {})}
        list(recon.run(pm.Adam(epochs=80, batch=20, unknowns=unknowns)))
        residuals.append(recon.problem.residual(recon.state.estimate)[0])
        if optics:
            found = recon.state.estimate.others["defocus"].double()
            slopes.append(float((found * across).sum() / (true * across).sum()))
    assert residuals[1] < 0.8 * residuals[0]
    assert slopes[0] == pytest.approx(1, abs=0.1)


def test_what_all_views_have_in_common_is_the_probes() -> None:
    """In the near field, where the beam's own defocus hardly shows, views would walk away together, and leave those
    that are held out behind."""
    scan = simulate(kind="near", window=32, views=60, seed=7).measurement
    found = []
    for optics in ({}, {"view_defocus": True}):
        stage = pm.Adam(epochs=8, batch=20, unknowns={"defocus": True} if optics else {})
        recon = pm.Reconstruction(scan, optics=optics)
        loop = Loop(recon.problem, recon.state, [stage], seed=0, hold_out=0.2)
        found.append([report.held_out for report in loop.epochs()][-1])
    z = recon.state.estimate.others["defocus"].double()
    unit = recon.problem.model.sizes["defocus"]
    assert z.abs().max() > 0 and abs(float(z.mean())) < 0.03 * unit
    assert found[1] < 1.02 * found[0]


def test_it_needs_a_wavelength() -> None:
    geometry = replace(make().measurement.geometry, wavelength_m=None, object_pixel_m=None)
    with pytest.raises(BadInput, match=r"optics\.view_defocus needs the wavelength and the object pixel"):
        OPTICS["view_defocus"]().check(geometry)
