"""Fourier ring correlation: identical, independent and partly equal images."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from ptymesh.compare import align, ring_correlation
from ptymesh.compare.rings import half_bit
from ptymesh.errors import BadInput


def noise(seed: int, shape: tuple[int, int] = (128, 128)) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


def circle(shape: tuple[int, int], radius: float) -> np.ndarray:
    y, x = np.indices(shape)
    return np.hypot(y - shape[0] / 2, x - shape[1] / 2) < radius


def test_threshold_of_the_paper() -> None:
    """van Heel & Schatz (2005), equation 17: 1 for one pixel, 0.1716 for many."""
    np.testing.assert_allclose(half_bit(np.array([1.0, 1e12])), [1.0, 0.2071 / 1.2071], rtol=1e-4)
    assert half_bit(np.array([100.0]))[0] == pytest.approx((0.2071 + 0.19102) / (1.2071 + 0.09102))


def test_identical_images_agree_to_the_pixel_limit() -> None:
    rings = ring_correlation(noise(0), noise(0), pixel_size_m=(1e-8, 1e-8))
    np.testing.assert_allclose(rings.correlation, 1.0)
    assert rings.at_limit and rings.unit == "m"
    assert rings.resolution == pytest.approx(2e-8)
    assert rings.frequency[-1] == pytest.approx(0.5e8)


@pytest.mark.parametrize("region", [None, circle((128, 128), 50)])
def test_independent_noise_does_not_agree(region: np.ndarray | None) -> None:
    """With a common mean, a common region and a common apodisation, and still no correlation."""
    rings = ring_correlation(5 + noise(1), 5 + noise(2), region)
    assert rings.resolution is None and not rings.at_limit and rings.unit == "px"
    assert np.abs(rings.correlation[5:]).max() < 0.25
    assert (rings.correlation < rings.threshold).mean() > 0.98


def test_independent_pixels_are_not_overestimated() -> None:
    """Re FRC of complex noise has variance 1 / (2 n): with the n behind the threshold a little less, never more."""
    region = circle((96, 96), 40)
    values, pixels = [], []
    for seed in range(40):
        rings = ring_correlation(noise(2 * seed, (96, 96)), noise(2 * seed + 1, (96, 96)), region)
        values.append(rings.correlation)
        pixels.append(rings.independent)
    spread = np.std(values, axis=0)[4:]
    independent = pixels[0][4:]
    assert 0.6 < np.mean(spread**2 * 2 * independent) < 1.0


def test_crossing_where_the_noise_begins() -> None:
    """Common up to a quarter of the sampling frequency, independent beyond: 4 pixels."""
    q = np.hypot(*np.meshgrid(np.fft.fftfreq(160), np.fft.fftfreq(160)))
    common, spectra = np.fft.fft2(noise(0, (160, 160))), [np.fft.fft2(noise(seed, (160, 160))) for seed in (1, 2)]
    images = [np.fft.ifft2(np.where(q < 0.25, common, spectrum)) for spectrum in spectra]
    rings = ring_correlation(*images, circle((160, 160), 70))
    assert rings.resolution == pytest.approx(4.0, rel=0.05)
    assert not rings.at_limit


def test_pixels_that_are_not_square() -> None:
    """Frequencies are physical: structure common along x only up to 1/(40 nm) is found at 40 nm."""
    shape, pixel = (100, 200), (20e-9, 10e-9)
    fy, fx = (np.fft.fftfreq(n, d) for n, d in zip(shape, pixel, strict=True))
    q = np.hypot(fy[:, None], fx)
    common, spectra = np.fft.fft2(noise(0, shape)), [np.fft.fft2(noise(seed, shape)) for seed in (1, 2)]
    images = [np.fft.ifft2(np.where(q < 1 / 60e-9, common, spectrum)) for spectrum in spectra]
    rings = ring_correlation(*images, pixel_size_m=pixel)
    assert rings.resolution == pytest.approx(60e-9, rel=0.08)
    assert rings.frequency[-1] <= 0.5 / 20e-9


def test_region_too_small() -> None:
    with pytest.raises(BadInput, match="Only 6 x 6 pixels"):
        ring_correlation(noise(0), noise(1), np.pad(np.ones((6, 6), dtype=bool), ((0, 122), (0, 122))))
    with pytest.raises(BadInput, match="Only 0 x 0 pixels"):
        ring_correlation(noise(0), noise(1), np.zeros((128, 128), dtype=bool))


def smooth_object(rng: np.random.Generator, side: int) -> np.ndarray:
    """Return a complex object (side, side) with structure of a few pixels in amplitude and phase."""
    amplitude, phase = (ndimage.gaussian_filter(rng.normal(size=(side, side)), 1.5) for _ in range(2))
    return (1 + 0.1 * amplitude / amplitude.std()) * np.exp(0.5j * phase / phase.std())


@pytest.mark.sample(1)
@pytest.mark.parametrize("side", [24, 36, 64])
def test_small_fields_resolve_nothing_by_chance(side: int) -> None:
    """Flat, flipped and unrelated objects, aligned as results are, are not resolved; a noisy copy is."""
    resolved = {"flat": 0, "flipped": 0, "other": 0, "noisy": 0}
    for seed in range(8):
        rng = np.random.default_rng(seed)
        truth = smooth_object(rng, side)
        hiss = rng.normal(size=truth.shape) + 1j * rng.normal(size=truth.shape)
        compared = {
            "flat": 1 + 0.01 * hiss,
            "flipped": truth[:, ::-1].copy(),
            "other": smooth_object(rng, side),
            "noisy": truth + 0.05 * hiss,
        }
        for name, image in compared.items():
            moved = align(image, truth)
            resolved[name] += ring_correlation(moved.aligned, moved.reference, moved.region).resolution is not None
    assert resolved == {"flat": 0, "flipped": 0, "other": 0, "noisy": 8}


def test_field_that_is_too_small_for_any_ring() -> None:
    """Of 9 x 9 pixels even equal images give no resolution, and that is said."""
    rings = ring_correlation(noise(0, (9, 9)), noise(0, (9, 9)))
    assert rings.is_too_small and rings.resolution is None and not rings.at_limit
    assert not ring_correlation(noise(0, (36, 36)), noise(0, (36, 36))).is_too_small
