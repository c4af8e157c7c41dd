"""Propagators against closed forms."""

import math

import pytest
import torch

from ptymesh.physics.propagate import angular_spectrum_kernel, apply_kernel, fresnel_kernel

N, D, LAMBDA = 128, 1e-7, 1e-9


def gaussian(waist_m: float) -> torch.Tensor:
    r = (torch.arange(N, dtype=torch.float64) - N // 2) * D
    return torch.exp(-(r[:, None] ** 2 + r[None, :] ** 2) / waist_m**2).to(torch.complex128)


def rms_radius(psi: torch.Tensor) -> float:
    r = (torch.arange(N, dtype=torch.float64) - N // 2) * D
    intensity = psi.abs() ** 2
    return math.sqrt(float((intensity * (r[:, None] ** 2 + r[None, :] ** 2)).sum() / intensity.sum()))


@pytest.mark.parametrize("kernel", [angular_spectrum_kernel, fresnel_kernel])
def test_gaussian_beam_widens_as_it_should(kernel) -> None:  # type: ignore[no-untyped-def]
    """w(z) = w0 sqrt(1 + (z / z_R)^2), z_R = pi w0^2 / lambda (Goodman)."""
    waist = 1e-6
    rayleigh = math.pi * waist**2 / LAMBDA
    start = gaussian(waist)
    moved = apply_kernel(start, kernel((N, N), (D, D), LAMBDA, 0.7 * rayleigh))
    assert rms_radius(moved) / rms_radius(start) == pytest.approx(math.sqrt(1 + 0.7**2), rel=1e-4)


@pytest.mark.parametrize("kernel", [angular_spectrum_kernel, fresnel_kernel])
def test_there_and_back(kernel) -> None:  # type: ignore[no-untyped-def]
    start = gaussian(1e-6)
    there = apply_kernel(start, kernel((N, N), (D, D), LAMBDA, 1e-3))
    back = apply_kernel(there, kernel((N, N), (D, D), LAMBDA, -1e-3))
    assert torch.allclose(back, start, atol=1e-9)


def test_tilt_moves_the_image_by_minus_z_tan() -> None:
    z, tilt = 1e-3, (2e-4, -3e-4)
    straight = apply_kernel(gaussian(1e-6), angular_spectrum_kernel((N, N), (D, D), LAMBDA, z)).abs() ** 2
    tilted = apply_kernel(gaussian(1e-6), angular_spectrum_kernel((N, N), (D, D), LAMBDA, z, tilt)).abs() ** 2
    expected = straight.roll((-round(z * math.tan(tilt[0]) / D), -round(z * math.tan(tilt[1]) / D)), (0, 1))
    assert torch.allclose(tilted, expected, atol=1e-6)


def test_no_tilt_leaves_the_axis_alone() -> None:
    """A half-bin offset of the frequencies would move the centre of mass."""
    moved = apply_kernel(gaussian(1e-6), angular_spectrum_kernel((N, N), (D, D), LAMBDA, 2e-3)).abs() ** 2
    r = torch.arange(N, dtype=torch.float64) - N // 2
    for axis in (0, 1):
        assert abs(float((moved.sum(1 - axis) * r).sum() / moved.sum())) < 1e-9


def test_band_limit() -> None:
    """Far beyond the sampling limit the kernel keeps only frequencies that it samples (Matsushima 2009, eq. 13)."""
    near = angular_spectrum_kernel((N, N), (D, D), LAMBDA, 1e-4).abs()
    far = angular_spectrum_kernel((N, N), (D, D), LAMBDA, 1e-1).abs()
    assert near.min() > 1 - 1e-12
    limit = 1 / (LAMBDA * math.sqrt((2 * 1e-1 / (N * D)) ** 2 + 1))
    k = torch.fft.fftfreq(N, D, dtype=torch.float64).abs()
    assert torch.equal(far[:, 0] > 0, k <= limit)


def test_fresnel_is_the_paraxial_angular_spectrum() -> None:
    exact = angular_spectrum_kernel((N, N), (D, D), LAMBDA, 1e-4)
    paraxial = fresnel_kernel((N, N), (D, D), LAMBDA, 1e-4)
    # next term of the phase: 2 pi z lambda^3 k^4 / 8 at k = 1 / (2 D) per axis
    bound = 2 * math.pi * 1e-4 * LAMBDA**3 * (0.5 / D**2) ** 2 / 8
    assert (exact - paraxial).abs().max() < 1.1 * bound
