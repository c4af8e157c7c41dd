"""What ptychography cannot decide is removed exactly, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from ptymesh.compare import align, object_error, twin
from ptymesh.errors import BadInput


def smooth(rng: np.random.Generator, shape: tuple[int, int], sigma: float = 2.5) -> np.ndarray:
    """Periodic structure of unit variance."""
    image = ndimage.gaussian_filter(rng.normal(size=shape), sigma, mode="wrap")
    return image / image.std()


def sample(shape: tuple[int, int] = (72, 88), contrast: float = 0.5, seed: int = 0) -> np.ndarray:
    """A transmission with that phase contrast (rad) and half as much absorption."""
    rng = np.random.default_rng(seed)
    return np.exp(1j * contrast * smooth(rng, shape) - contrast / 2 * np.abs(smooth(rng, shape)))


def moved(image: np.ndarray, shift: tuple[float, float]) -> np.ndarray:
    """Circular sub-pixel shift."""
    qy, qx = (np.fft.fftfreq(n) for n in image.shape)
    return np.fft.ifft2(np.fft.fft2(image) * np.exp(-2j * np.pi * (shift[0] * qy[:, None] + shift[1] * qx)))


def tilted(image: np.ndarray, slope: tuple[float, float]) -> np.ndarray:
    """A phase ramp, rad per pixel."""
    y, x = np.indices(image.shape)
    return image * np.exp(1j * (slope[0] * y + slope[1] * x))


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    shift=st.tuples(st.floats(-20, 20), st.floats(-20, 20)),
    slope=st.tuples(st.floats(-1.5, 1.5), st.floats(-1.5, 1.5)),
    scale=st.floats(0.01, 100),
    phase=st.floats(-3.1, 3.1),
    contrast=st.sampled_from([0.05, 0.5, 1.5]),
    ramp_last=st.booleans(),
)
def test_ambiguities_are_removed(
    shift: tuple[float, float],
    slope: tuple[float, float],
    scale: float,
    phase: float,
    contrast: float,
    ramp_last: bool,
) -> None:
    """Either copy against the other, whichever came first, ramp or shift: NRMSE below 1e-6."""
    truth = sample(contrast=contrast)
    if ramp_last:
        copy = tilted(moved(truth, shift), slope)
    else:  # Whole cycles: any other ramp breaks at the border, and its shift is no copy of a weak object.
        slope = tuple(2 * np.pi * round(s * n / (2 * np.pi)) / n for s, n in zip(slope, truth.shape, strict=True))
        copy = moved(tilted(truth, slope), shift)
    copy = copy * scale * np.exp(1j * phase)
    assert align(copy, truth).nrmse < 1e-6
    found = align(truth, copy)
    assert found.nrmse < 1e-6
    np.testing.assert_allclose(found.shift, shift, atol=1e-6)
    np.testing.assert_allclose(found.ramp, slope, atol=1e-6)
    assert abs(found.factor) == pytest.approx(scale, rel=1e-6)
    np.testing.assert_allclose(found.aligned[found.region], found.reference[found.region], atol=1e-5 * scale)


def test_noise_is_not_removed() -> None:
    """Independent complex noise of relative size s gives NRMSE s / sqrt(1 + s^2), shift and ramp notwithstanding."""
    truth = sample((128, 128))
    rng = np.random.default_rng(3)
    noise = rng.normal(size=truth.shape) + 1j * rng.normal(size=truth.shape)
    noise *= 0.2 * np.linalg.norm(truth) / np.linalg.norm(noise)
    copy = tilted(moved(truth + noise, (3.3, -5.2)), (0.2, -0.1))
    found = align(copy, truth)
    assert found.nrmse == pytest.approx(0.2 / np.sqrt(1.04), rel=0.02)
    np.testing.assert_allclose(found.shift, (-3.3, 5.2), atol=0.02)


def test_only_the_region_counts() -> None:
    """Garbage outside the region, of either object, changes nothing when the shift is whole."""
    truth = sample((96, 96))
    inside = np.zeros(truth.shape, dtype=bool)
    inside[20:76, 24:80] = True
    rng = np.random.default_rng(1)
    garbage = 5 * (rng.normal(size=truth.shape) + 1j * rng.normal(size=truth.shape))
    broken = np.roll(tilted(np.where(inside, truth, garbage), (0.1, 0.2)), (4, -3), axis=(0, 1))
    mask = np.roll(inside, (4, -3), axis=(0, 1))
    found = align(broken, np.where(inside, truth, garbage.conj()), inside, mask)
    assert found.nrmse < 1e-9
    assert found.region.sum() == inside.sum()
    assert align(broken, truth).nrmse > 0.5


@pytest.mark.parametrize("larger", ["moving", "reference"])
def test_different_shapes(larger: str) -> None:
    """One object has a wider margin; what both show agrees."""
    whole = sample((96, 112), seed=5)
    part = whole[10:86, 20:100]
    a, b = (whole, part) if larger == "moving" else (part, whole)
    found = align(tilted(a * 2j, (0.05, -0.3)), b)
    assert found.nrmse < 1e-9
    assert found.region.sum() == part.size
    expected = (-10, -20) if larger == "moving" else (10, 20)
    np.testing.assert_allclose(found.shift, expected, atol=1e-6)


def test_start_is_tried() -> None:
    """A periodic sample fits at many shifts; the one proposed is taken when it fits best."""
    truth = np.tile(sample((24, 24)), (4, 4)) + 0.02 * sample((96, 96), seed=9)
    found = align(np.roll(truth, (24, 0), axis=(0, 1)), truth, start=(-24.0, 0.0))
    np.testing.assert_allclose(found.shift, (-24, 0), atol=1e-6)


def test_twin_twice_is_itself() -> None:
    image = sample()[None]
    np.testing.assert_array_equal(twin(twin(image)), image)
    assert align(twin(image)[0], image[0]).nrmse > 0.3


def test_object_error_of_slices() -> None:
    """Every slice has a phase, scale and ramp of its own; the errors add up by weight."""
    truth = np.stack([sample(seed=1), 2 * sample(seed=2)])
    copy = np.stack([tilted(truth[0], (0.1, 0)), tilted(3j * truth[1], (-0.1, 0.2))])
    assert object_error(copy, truth) < 1e-9
    assert object_error(copy[0], truth[0]) < 1e-9
    rng = np.random.default_rng(0)
    copy[1] += rng.normal(size=copy[1].shape)
    each = [object_error(a, b) for a, b in zip(copy, truth, strict=True)]
    norms = [np.linalg.norm(image) for image in truth]
    assert object_error(copy, truth) == pytest.approx(np.hypot(each[1] * norms[1], 0) / np.hypot(*norms), rel=0.05)


def test_single_precision_copies() -> None:
    truth = sample().astype(np.complex64)
    assert object_error((truth * np.complex64(1.3 - 0.4j)), truth) < 1e-6


def test_nothing_to_compare() -> None:
    truth = sample()
    with pytest.raises(BadInput, match="aligned image is zero"):
        align(np.zeros_like(truth), truth)
    with pytest.raises(BadInput, match="reference is zero, not finite or outside"):
        align(truth, np.full_like(truth, np.nan))
    with pytest.raises(BadInput, match="reference is zero, not finite or outside"):
        align(truth, truth, np.zeros(truth.shape, dtype=bool))
    with pytest.raises(BadInput, match=r"region has shape \(3, 3\)"):
        align(truth, truth, np.ones((3, 3), dtype=bool))
    with pytest.raises(BadInput, match="1 and 2 slices"):
        object_error(truth, np.stack([truth, truth]))
