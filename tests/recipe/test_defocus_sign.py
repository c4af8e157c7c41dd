"""Every kind of probe takes one sign of defocus: positive puts the sample upstream of the focus.

Judged by a propagator that shares nothing with ptymesh's: Fresnel's integral as a sum in real space,

    U(x) = (i lambda z)^(-1/2) sum_x' U_0(x') exp(i pi (x - x')^2 / (lambda z)) d

along y and x, with the sign of the phase of a wave exp(i 2 pi z / lambda) that travels along +z.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptymesh.geometry import Geometry
from ptymesh.measurement import ArraySource, Measurement
from ptymesh.recipe.starts import PROBE_STARTS

SIDE, PIXEL_M, WAVELENGTH_M = 128, 1e-8, 1e-10
ANGLE_RAD, DEFOCUS_M = 1.5e-3, 2e-4

STARTS: dict[str, dict[str, Any]] = {
    "electron": {"semiangle_rad": ANGLE_RAD},
    "zone_plate": {"outer_zone_m": WAVELENGTH_M / (2 * ANGLE_RAD), "diameter_m": 1e-4, "central_stop_m": 3e-5},
    "kb": {"aperture_m": (6e-4, 4e-4), "focal_length_m": (0.2, 0.2)},
    "data": {},
}


def summed(wave: np.ndarray, z: float) -> np.ndarray:
    """Return the wave (n, n) a distance z (m) further along the beam."""
    x = (np.arange(SIDE) - SIDE // 2) * PIXEL_M
    one = np.exp(1j * np.pi * (x[:, None] - x) ** 2 / (WAVELENGTH_M * z)) * PIXEL_M / np.sqrt(1j * WAVELENGTH_M * z)
    return one @ wave @ one.T


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    """Return |<a, b>| of waves of unit norm."""
    return float(abs(np.vdot(a, b)) / np.sqrt(np.vdot(a, a).real * np.vdot(b, b).real))


def scan() -> Measurement:
    """Return a scan whose mean pattern is an off-axis bright disc, so that no symmetry hides a sign."""
    angle = np.fft.fftfreq(SIDE, PIXEL_M) * WAVELENGTH_M
    pattern = 1000.0 * (np.hypot(angle[:, None], angle) < ANGLE_RAD)
    geometry = Geometry((SIDE, SIDE), "far_field", "photon", WAVELENGTH_M, object_pixel_m=(PIXEL_M, PIXEL_M))
    return Measurement(
        patterns=ArraySource(np.repeat(pattern[None], 3, axis=0)),
        positions=np.array([[0.0, 0.0], [0.0, 5.0], [5.0, 0.0]]),
        geometry=geometry,
        mask=np.ones((SIDE, SIDE), bool),
    )


def probe(kind: str, **options: Any) -> np.ndarray:
    """Return the probe (n, n) of this kind of start."""
    start = PROBE_STARTS.find(kind)
    assert start is not None
    measurement = scan()
    mean = measurement.patterns.read(np.arange(3)).mean(axis=0)
    made = start.parse({"kind": kind, **STARTS[kind], **options}, "probe.start").make(measurement, mean)
    return made.numpy().reshape(SIDE, SIDE)


@pytest.mark.parametrize("kind", STARTS)
@pytest.mark.parametrize("defocus", [DEFOCUS_M, -DEFOCUS_M])
def test_positive_defocus_is_upstream_of_the_focus(kind: str, defocus: float) -> None:
    """The focus, taken back along the beam by the defocus, is the probe; taken the other way it is not."""
    focus, defocused = probe(kind), probe(kind, defocus_m=defocus)
    assert overlap(summed(focus, -defocus), defocused) > 0.99
    assert overlap(summed(focus, defocus), defocused) < 0.5


def test_astigmatism_adds_to_c10_along_its_angle() -> None:
    """A beam with C10 and C12 along y is that of a line focus: in y it spreads by C10 + C12, in x by C10 - C12."""
    c10, c12 = 1e-4, 8e-5
    wave = probe("electron", aberrations_m={"C10": c10, "C12": [c12, np.pi / 2]})
    power = np.abs(wave) ** 2
    y = (np.arange(SIDE) - SIDE // 2) * PIXEL_M
    widths = [np.sqrt((power.sum(axis=1 - axis) * y**2).sum() / power.sum()) for axis in (0, 1)]
    # a uniform disc of radius |C| alpha has the rms width of half its radius; diffraction widens the narrow one
    assert widths[0] == pytest.approx((c10 + c12) * ANGLE_RAD / 2, rel=0.1)
    assert widths[1] < 0.5 * widths[0]


def test_pinhole_lies_upstream_of_the_sample() -> None:
    """The hole, taken along the beam by `distance_m`, is the probe."""
    start = PROBE_STARTS.find("pinhole")
    assert start is not None
    made = [
        start.parse({"kind": "pinhole", "diameter_m": 4e-7, "distance_m": z}, "probe.start").make(scan(), np.ones(1))
        for z in (0.0, DEFOCUS_M)
    ]
    hole, at_sample = (one.numpy().reshape(SIDE, SIDE) for one in made)
    assert overlap(summed(hole, DEFOCUS_M), at_sample) > 0.98
    assert overlap(summed(hole, -DEFOCUS_M), at_sample) < 0.9
