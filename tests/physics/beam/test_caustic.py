"""Beams whose waists, sizes and depths are known: Gaussians, mirrors, a zone plate; noise, tilts and modes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.physics.beam.caustic import caustic_of
from ptymesh.physics.beam.probes import kb_mirror, zone_plate
from ptymesh.physics.propagate import angular_spectrum_kernel, apply_kernel

WAVELENGTH, PIXEL, SHAPE = 1.5e-10, (1e-8, 1.25e-8), (96, 80)
#: Root mean square widths (y, x) of the power of the Gaussian at its waist.
SIGMA = (25e-9, 45e-9)


def gaussian(order: int = 0) -> Tensor:
    """A beam at its waist, elliptic; of an order along x."""
    y, x = ((torch.arange(n, dtype=torch.float64) - n // 2) * d for n, d in zip(SHAPE, PIXEL, strict=True))
    wave = (
        torch.exp(-((y / SIGMA[0]) ** 2) / 4)[:, None] * (x / SIGMA[1]) ** order * torch.exp(-((x / SIGMA[1]) ** 2) / 4)
    )
    return wave.to(torch.complex128)


def moved(wave: Tensor, distance: float) -> Tensor:
    return apply_kernel(wave, angular_spectrum_kernel(SHAPE, PIXEL, WAVELENGTH, distance))


@pytest.mark.parametrize("focus", [0.0, 50e-6, -80e-6])
def test_gaussian(focus: float) -> None:
    """Size 2 sqrt(2 ln 2) sigma, depth 8 pi sigma^2 / lambda, and the width a hyperbola of the distance."""
    found = caustic_of(moved(gaussian(), -focus)[None], PIXEL, WAVELENGTH)
    np.testing.assert_allclose(found.waist_m, focus, atol=1e-9)
    fwhm = 2 * math.sqrt(2 * math.log(2)) * np.array(SIGMA)
    # Pixels are 0.4 sigma wide, within which the power is taken for constant.
    np.testing.assert_allclose(found.size_m, fwhm, rtol=0.02)
    depth = 8 * math.pi * np.array(SIGMA) ** 2 / WAVELENGTH
    np.testing.assert_allclose(found.depth_m, depth, rtol=0.03)
    away = (found.z_m[:, None] - focus) / (depth / 2)
    near = np.abs(away) < 3
    np.testing.assert_allclose(found.width_m[near], (fwhm * np.sqrt(1 + away**2))[near], rtol=0.02)
    assert found.z_m[0] < min(0, focus) and found.z_m[-1] > max(0, focus)
    np.testing.assert_allclose(found.images[0], np.abs(moved(gaussian(), -focus).numpy()) ** 2, atol=1e-9)


def test_mirrors_whose_foci_do_not_coincide() -> None:
    probe = kb_mirror(SHAPE, PIXEL, WAVELENGTH, (1e-4, 2e-4), (0.05, 0.06), (40e-6, -20e-6))
    found = caustic_of(probe[None], PIXEL, WAVELENGTH)
    np.testing.assert_allclose(found.waist_m, (40e-6, -20e-6), rtol=1e-6)
    assert found.astigmatism_m == pytest.approx(-60e-6)
    # A sinc^2 holds 76 % of its power within 0.96 wavelengths over twice the half-angle.
    np.testing.assert_allclose(found.size_m, [0.96 * WAVELENGTH / angle for angle in (2e-3, 2e-4 / 0.06)], rtol=0.06)


def test_zone_plate_is_round() -> None:
    found = caustic_of(zone_plate(SHAPE, PIXEL, WAVELENGTH, 40e-9, 1e-4, 2e-5, -60e-6)[None], PIXEL, WAVELENGTH)
    np.testing.assert_allclose(found.waist_m, -60e-6, rtol=1e-6)
    assert abs(found.size_m[0] / found.size_m[1] - 1) < 0.05


def test_tilt_place_and_noise_do_not_matter() -> None:
    """A noise of 1 % of the brightest pixel, at all angles, holds 2 % of the power here."""
    wave = moved(gaussian(), -50e-6) * torch.exp(0.2j * torch.arange(SHAPE[1]))
    wave = wave.roll((5, -4), (0, 1))
    noise = torch.randn(SHAPE, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
    found = caustic_of((wave + 0.01 * wave.abs().max() * noise)[None], PIXEL, WAVELENGTH)
    np.testing.assert_allclose(found.waist_m, 50e-6, rtol=0.03)
    np.testing.assert_allclose(found.size_m, 2 * math.sqrt(2 * math.log(2)) * np.array(SIGMA), rtol=0.06)


def test_modes_add_up() -> None:
    """A second mode of the same waist makes the beam wider along x, and no mode changes where the waist is."""
    modes = torch.stack([moved(gaussian(), 30e-6), 0.7 * moved(gaussian(1), 30e-6)])
    one, both = (caustic_of(modes[:count], PIXEL, WAVELENGTH) for count in (1, 2))
    np.testing.assert_allclose(both.waist_m, -30e-6, rtol=1e-3)
    assert both.size_m[1] > 1.1 * one.size_m[1] and both.size_m[0] == pytest.approx(one.size_m[0], rel=1e-3)
    np.testing.assert_allclose(both.images[0], (modes.abs() ** 2).sum(0), atol=1e-9)


@pytest.mark.parametrize("probe", [torch.zeros(1, 16, 16), torch.ones(1, 16, 16)])
def test_no_waist(probe: Tensor) -> None:
    with pytest.raises(BadInput, match="no waist to find"):
        caustic_of(probe, PIXEL, WAVELENGTH)
