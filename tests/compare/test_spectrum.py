"""Power spectra of phases with a known band limit, and of noise alone."""

from __future__ import annotations

import numpy as np
import pytest

from ptymesh.compare import power_spectrum
from ptymesh.errors import BadInput


def phantom(band: float, noise: float, size: int = 128, seed: int = 0) -> np.ndarray:
    """A phase of random structure up to a frequency (1/px), rms about 0.5 rad, with white noise of that deviation."""
    rng = np.random.default_rng(seed)
    axis = np.fft.fftfreq(size)
    inside = np.hypot(axis[:, None], axis) <= band
    return np.fft.ifft2(np.fft.fft2(rng.normal(size=(size, size))) * inside).real + noise * rng.normal(
        size=(size, size)
    )


@pytest.mark.parametrize("band", [0.1, 0.2, 0.35])
@pytest.mark.parametrize("noise", [0.1, 0.3])
def test_the_limit_is_that_of_the_phantom(band: float, noise: float) -> None:
    """Found within two rings: the taper to the middle spreads a ring over its neighbours."""
    found = power_spectrum(phantom(band, noise))
    assert found.limit == pytest.approx(band, abs=2.5 / 128)
    assert found.noise == pytest.approx(noise**2, rel=0.1), "white noise of variance v has the power v"
    assert not found.at_edge and found.unit == "px"


def test_the_limit_is_in_metres_along_both_axes() -> None:
    """Of oblong pixels the rings are round in 1/m, and a pixel of the spectrum is as wide as it should be."""
    size, pixel = 128, (1e-9, 2e-9)
    rng = np.random.default_rng(1)
    axes = [np.fft.fftfreq(size, d) for d in pixel]
    inside = np.hypot(axes[0][:, None], axes[1]) <= 0.15e9
    phase = np.fft.ifft2(np.fft.fft2(rng.normal(size=(size, size))) * inside).real + 0.1 * rng.normal(size=(size, size))
    found = power_spectrum(phase, None, pixel)
    assert found.unit == "m" and found.step == pytest.approx((1 / (size * 1e-9), 1 / (size * 2e-9)))
    assert found.limit == pytest.approx(0.15e9, abs=2.5 * found.step[0])


def test_noise_has_no_limit() -> None:
    """None of 20 spectra of white noise crosses the threshold; one of 1,000 may."""
    assert [power_spectrum(phantom(-1.0, 0.2, 64, seed)).limit for seed in range(20)] == [None] * 20


def test_structure_up_to_the_pixels_is_said_to_end_there() -> None:
    """A lattice at 0.48 1/px stands above the noise, among the rings that tell it."""
    phase = 0.5 * np.cos(2 * np.pi * 0.48 * np.arange(128)) + phantom(-1.0, 0.1)
    found = power_spectrum(phase)
    assert found.at_edge and found.limit == pytest.approx(0.48, abs=2 / 128)


def test_what_lies_outside_the_region_does_not_count() -> None:
    region = np.zeros((128, 128), dtype=bool)
    region[20:120, 10:110] = True
    phase = phantom(0.2, 0.1)
    outside = np.where(region, phase, 50.0)
    expected, found = power_spectrum(phase[20:120, 10:110]), power_spectrum(outside, region)
    np.testing.assert_array_equal(found.power, expected.power)
    holes = np.where(region, phase, np.nan)
    np.testing.assert_array_equal(power_spectrum(holes).power, expected.power)


def test_a_flat_phase_has_no_limit() -> None:
    found = power_spectrum(np.zeros((32, 32)))
    assert found.limit is None and found.noise == 0


def test_a_narrow_region_is_refused() -> None:
    region = np.zeros((64, 64), dtype=bool)
    region[:7, :40] = True
    with pytest.raises(BadInput, match="7 x 40 pixels; 8 each way are needed"):
        power_spectrum(np.zeros((64, 64)), region)


def test_pixels_without_a_ring_are_refused() -> None:
    with pytest.raises(BadInput, match=r"pixels of 1e-10 x 1e-06 m leave no ring .* check the pixel size"):
        power_spectrum(np.zeros((32, 32)), None, (1e-10, 1e-6))
