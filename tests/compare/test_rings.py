"""Fourier ring correlation: identical, independent and partly equal images."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from ptymesh.compare import align, ring_correlation
from ptymesh.compare.rings import half_bit, one_bit
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


def test_one_bit_asks_for_a_ratio_of_one() -> None:
    """A ratio of 1 in the mean of two images is 1/2 in each, whose correlation is 1/3; and 1 for one pixel."""
    np.testing.assert_allclose(one_bit(np.array([1e12])), [1 / 3], rtol=1e-4)
    assert one_bit(np.array([1.0]))[0] == pytest.approx(1.0)
    assert (one_bit(np.arange(2, 1e4, 7)) > half_bit(np.arange(2, 1e4, 7))).all()


def test_signal_to_noise_ratio_is_that_of_the_mean_of_both() -> None:
    """Signal of power 4 and noise of power 1 in each image: 8 in their mean, whose noise is half as strong."""
    signal = 2 * noise(0, (192, 192))
    rings = ring_correlation(signal + noise(1, (192, 192)), signal + noise(2, (192, 192)))
    assert np.median(rings.snr[10:]) == pytest.approx(8.0, rel=0.1)
    assert np.isinf(ring_correlation(signal, signal).snr).all()


def test_one_bit_resolution_is_coarser_where_the_noise_grows() -> None:
    q = np.hypot(*np.meshgrid(np.fft.fftfreq(160), np.fft.fftfreq(160)))
    signal = np.fft.fft2(noise(0, (160, 160))) * np.exp(-((q / 0.12) ** 2))
    rings = ring_correlation(*(np.fft.ifft2(signal + 0.1 * np.fft.fft2(noise(seed, (160, 160)))) for seed in (1, 2)))
    assert rings.resolution is not None and rings.one_bit_resolution is not None
    # The ratio in the mean of both is 200 exp(-2 (q / 0.12)^2) = r, and their correlation r / (r + 2).
    ratio = 200 * np.exp(-2 * (rings.frequency / 0.12) ** 2)
    for threshold, found in ((rings.threshold, rings.resolution), (rings.one_bit, rings.one_bit_resolution)):
        below = rings.frequency[(ratio / (ratio + 2) < threshold) & (threshold < 1)]
        assert 1 / found == pytest.approx(below[0], rel=0.04)
    assert rings.one_bit_resolution > 1.03 * rings.resolution


def test_bands_beyond_a_dip_are_told() -> None:
    """Nothing in common below 0.1, all in common up to 0.3."""
    q = np.hypot(*np.meshgrid(np.fft.fftfreq(160), np.fft.fftfreq(160)))
    common = np.fft.fft2(noise(0, (160, 160)))
    spectra = [np.fft.fft2(noise(seed, (160, 160))) for seed in (1, 2)]
    rings = ring_correlation(*(np.fft.ifft2(np.where((q > 0.1) & (q < 0.3), common, own)) for own in spectra))
    assert rings.resolution is None and rings.finest_agreement == pytest.approx(1 / 0.3, rel=0.05)
