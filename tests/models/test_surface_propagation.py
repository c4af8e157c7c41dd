"""A stage that moves a leaning surface across the beam: each view's distance to the focus, and what that does."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ptymesh as pm
from ptymesh.errors import BadInput
from ptymesh.models.surface_propagation import SurfacePropagation, leaning_rate
from ptymesh.simulate import Simulated, simulate

WAVELENGTH, PIXELS = 13.5e-9, (40e-9, 30e-9)


@pytest.mark.parametrize(("axis", "degrees"), [(1, 40.0), (1, -65.0), (0, 20.0), (0, 0.0)])
def test_the_phase_is_that_of_plane_waves_further_along_the_beam(axis: int, degrees: float) -> None:
    """Against wave vectors in three dimensions; within the band in which waves leave the surface."""
    sine, cosine, inverse = math.sin(math.radians(degrees)), math.cos(math.radians(degrees)), 1 / WAVELENGTH
    found = leaning_rate((16, 12), PIXELS, WAVELENGTH, sine, axis).numpy()
    ky, kx = np.meshgrid(np.fft.fftfreq(16, PIXELS[0]), np.fft.fftfreq(12, PIXELS[1]), indexing="ij")
    along, across = (ky, kx) if axis == 0 else (kx, ky)
    vector = [inverse * sine + along, across]
    normal = np.sqrt(np.maximum(inverse**2 - vector[0] ** 2 - vector[1] ** 2, 0))
    wanted = 2 * np.pi * (vector[0] * sine + normal * cosine - inverse)
    inside = normal > 0
    assert inside.mean() > 0.5 and np.allclose(found[inside], wanted[inside], atol=1e-7 * inverse, rtol=1e-9)
    assert (found[~inside] == 0).all() and found[0, 0] == 0


def leaning_scan(**options: Any) -> Simulated:
    """At 60 degrees and 13.5 nm, with diffraction to 1.3 degrees."""
    lengths = {"energy_eV": 92, "pixel_m": 300e-9, "detector_pixel_m": 1e-5, "surface_deg": (0.0, 60.0)}
    return simulate(views=60, window=48, seed=3, photons_per_view=1e6, **lengths, **options)


def test_distances_follow_from_positions() -> None:
    scan = simulate(views=20, window=32, energy_eV=92, surface_deg=(0.0, 30.0)).measurement
    pixel = scan.geometry.object_pixel_m
    assert pixel is not None
    across = (scan.positions[:, 1] - scan.positions[:, 1].mean()) * pixel[1]
    for options, by_position in (({}, -0.5), ({"rate": 0.2}, 0.2), ({"incidence_deg": -90 + 60.0}, 0.5)):
        found = SurfacePropagation(**options).start_values(scan)["along_beam"]
        assert np.allclose(found, by_position * across, rtol=1e-12, atol=0)
    turned = replace(scan, geometry=replace(scan.geometry, surface_deg=(30.0, 0.0)))
    down = (scan.positions[:, 0] - scan.positions[:, 0].mean()) * pixel[0]
    assert np.allclose(SurfacePropagation().start_values(turned)["along_beam"], -0.5 * down)


def test_a_surface_that_moves_along_the_beam() -> None:
    """With the piece the residual ends at the noise; without, or with the wrong sign, far above."""
    moves = {"surface_propagation": {"rate": -10.0}}
    made = leaning_scan(optics=moves)
    ends = {}
    for name, optics in (
        ("without", {"surface_propagation": {"rate": 0.0}}),
        ("wrong", {"surface_propagation": {"rate": 10.0}}),
        ("right", moves),
    ):
        recon = pm.Reconstruction(made.measurement, optics=optics)
        ends[name] = [report.residual for report in recon.run(pm.LSQML(epochs=10, batch=15))][-1]
    assert 3 * ends["right"] < min(ends["without"], ends["wrong"]), ends


def test_what_it_needs_is_asked_for() -> None:
    scan = simulate(views=20, window=32).measurement
    with pytest.raises(BadInput, match=r"give data\.surface_deg"):
        pm.Reconstruction(scan, optics={"surface_propagation": True})
    bare = replace(scan.geometry, surface_deg=(0.0, 20.0), wavelength_m=None)
    with pytest.raises(BadInput, match=r"data\.energy_eV"):
        SurfacePropagation().check(bare)
    with pytest.raises(BadInput, match="incidence_deg"):
        SurfacePropagation.parse({"incidence_deg": 90}, "optics.surface_propagation")
