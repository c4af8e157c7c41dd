"""Whole reconstructions against each other: object, probe, positions, twin, pixel sizes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import ndimage

from ptymesh.compare import compare_results, illuminated, illumination
from ptymesh.compare.comparison import orthogonal
from ptymesh.errors import BadInput


@dataclass(frozen=True)
class Scan:
    """A reconstruction with known truth."""

    object: np.ndarray
    probe: np.ndarray
    positions_px: np.ndarray
    pixel_size_m: tuple[float, float] | None = (1e-8, 1e-8)
    weights: np.ndarray | None = None


def smooth(rng: np.random.Generator, shape: tuple[int, ...], sigma: float) -> np.ndarray:
    image = ndimage.gaussian_filter(rng.normal(size=shape), sigma, mode="wrap")
    return image / image.std()


def scan(slices: int = 1, modes: int = 2, size: int = 120, window: int = 32, sigma: float = 2.0) -> Scan:
    """A raster scan of phase objects by curved Gaussian beams."""
    rng = np.random.default_rng(4)
    layers = [np.exp(0.6j * smooth(rng, (size, size), sigma)) for _ in range(slices)]
    y, x = np.indices((window, window)) - window // 2
    first = np.exp(-(x**2 + y**2) / (2 * (window / 7) ** 2) + 0.02j * (x**2 + y**2) + 0.01j * x * y + 0.05j * y)
    probe = np.stack([first * (x + 0.3j * y) ** m / (2 + 8 * m) ** m for m in range(modes)])
    steps = np.arange(6, size - window - 6, 8.0)
    positions = np.stack(np.meshgrid(steps, steps, indexing="ij"), axis=-1).reshape(-1, 2)
    return Scan(np.stack(layers), probe, positions + rng.uniform(-2, 2, positions.shape))


def shifted(image: np.ndarray, shift: tuple[float, float]) -> np.ndarray:
    """Circular sub-pixel shift."""
    qy, qx = (np.fft.fftfreq(n) for n in image.shape[-2:])
    return np.fft.ifft2(np.fft.fft2(image) * np.exp(-2j * np.pi * (shift[0] * qy[:, None] + shift[1] * qx)))


def ramp(shape: tuple[int, ...], slope: tuple[float, float]) -> np.ndarray:
    y, x = np.indices(shape[-2:])
    return np.exp(1j * (slope[0] * y + slope[1] * x))


def disguised(truth: Scan) -> Scan:
    """The same physics written differently: ramp, scale, phase, translation, and mixed modes."""
    slope = (0.11, -0.07)
    object_ = 2.5 * np.exp(0.7j) * shifted(truth.object, (3.4, -2.2)) * ramp(truth.object.shape, slope)
    mix = np.linalg.qr(np.random.default_rng(0).normal(size=(len(truth.probe),) * 2) + 0.5j)[0]
    probe = np.tensordot(mix, truth.probe, axes=1) * np.conj(ramp(truth.probe.shape, slope)) / 2.5
    return replace(truth, object=object_, probe=probe, positions_px=truth.positions_px + np.array([3.4, -2.2]))


def turned(truth: Scan) -> Scan:
    """The twin: exactly the same far-field patterns."""
    corner = np.array(truth.object.shape[-2:]) - truth.probe.shape[-2:]
    flip = (slice(None), slice(None, None, -1), slice(None, None, -1))
    return Scan(truth.object[flip].conj(), truth.probe[flip].conj(), corner - truth.positions_px, truth.pixel_size_m)


def test_objects_without_light_are_named_as_they_were_given() -> None:
    truth = scan(slices=2)
    for wrong in (replace(truth, object=0 * truth.object), replace(truth, probe=0 * truth.probe)):
        for pair, name in (((wrong, truth), "A"), ((truth, wrong), "B")):
            with pytest.raises(BadInput, match=f"The object of {name} is zero, not finite or outside the region"):
                compare_results(*pair)


def test_the_same_reconstruction_in_disguise() -> None:
    truth = scan()
    found = compare_results(disguised(truth), truth)
    assert found.nrmse < 1e-6 and found.probe_nrmse < 1e-6 and max(found.probe_mode_nrmse) < 1e-6
    assert not found.twin and found.twin_nrmse > 0.3
    assert found.position_mean_px is not None and found.position_mean_px < 1e-9
    assert found.rings.at_limit and found.rings.resolution == pytest.approx(2e-8)
    assert found.notes == ()
    np.testing.assert_allclose(found.powers[0], found.powers[1])
    assert sum(found.powers[0]) == pytest.approx(100)
    np.testing.assert_allclose(found.alignment.shift, (-3.4, 2.2), atol=1e-5)


def test_twin_is_detected() -> None:
    truth = scan()
    found = compare_results(turned(disguised(truth)), truth)
    assert found.twin
    assert found.nrmse < 1e-6 and found.twin_nrmse == found.nrmse
    assert found.probe_nrmse < 1e-6
    assert found.position_p95_px is not None and found.position_p95_px < 1e-9


@pytest.mark.parametrize("twin", [True, False])
def test_twin_of_a_weak_object_under_noise(twin: bool) -> None:
    """Turned or not, most of the error is noise: that the positions were negated decides."""
    truth = scan()
    weak = replace(truth, object=1 + 0.05 * (truth.object - truth.object.mean()))
    noise = np.random.default_rng(4).normal(size=(2, *truth.object.shape))
    noisy = replace(weak, object=weak.object + 0.1 * (noise[0] + 1j * noise[1]))
    found = compare_results(turned(noisy) if twin else noisy, weak)
    assert found.twin == twin and found.position_mean_px is not None and found.position_mean_px < 1e-9
    assert found.nrmse > 0.1, "noise"


def test_twin_patterns_are_the_same() -> None:
    """The twin of this module is the physical one: equal far-field intensities view by view."""
    truth = scan(modes=1)
    truth = replace(truth, positions_px=np.rint(truth.positions_px))
    other = turned(truth)

    def patterns(side: Scan) -> np.ndarray:
        waves = [side.probe[0] * side.object[0, int(y) :, int(x) :][:32, :32] for y, x in side.positions_px[:5]]
        return np.abs(np.fft.fft2(np.stack(waves))) ** 2

    np.testing.assert_allclose(patterns(other), patterns(truth), rtol=1e-9, atol=1e-9)


def test_positions_and_noise_are_measured() -> None:
    truth = scan()
    rng = np.random.default_rng(7)
    steps = rng.normal(scale=0.4, size=truth.positions_px.shape)
    noise = rng.normal(scale=0.05, size=truth.object.shape) + 1j * rng.normal(scale=0.05, size=truth.object.shape)
    copy = replace(truth, object=truth.object + noise, positions_px=truth.positions_px + steps + 5)
    copy = replace(copy, object=np.roll(copy.object, (5, 5), axis=(1, 2)))
    found = compare_results(copy, truth)
    distance = np.linalg.norm(steps - steps.mean(axis=0), axis=1)
    assert found.position_mean_px == pytest.approx(distance.mean())
    assert found.position_p95_px == pytest.approx(np.percentile(distance, 95))
    assert found.nrmse == pytest.approx(np.sqrt(2) * 0.05, rel=0.05)


def test_probe_difference() -> None:
    """A second mode of wrong power counts by that power."""
    truth = scan()
    copy = replace(truth, probe=truth.probe * np.array([1.0, 0.0])[:, None, None])
    found = compare_results(copy, truth)
    powers = (np.abs(orthogonal(truth.probe)) ** 2).sum(axis=(1, 2))
    assert found.probe_nrmse == pytest.approx(np.sqrt(powers[1] / powers.sum()), rel=1e-3)
    fewer = replace(truth, probe=truth.probe[:1])
    found = compare_results(fewer, truth)
    assert found.notes == ("A has 1 probe modes and B 2: the missing ones count as zero.",)
    assert len(found.probe_mode_nrmse) == 2


def test_slices() -> None:
    truth = scan(slices=2)
    found = compare_results(disguised(truth), truth)
    assert len(found.slice_nrmse) == 2 and max(found.slice_nrmse) < 1e-6
    flat = replace(truth, object=truth.object.prod(axis=0)[None])
    found = compare_results(flat, truth)
    assert found.nrmse < 1e-6 and found.slice_nrmse == ()
    assert "1 slices and B 2" in found.notes[0]


def test_other_pixel_size() -> None:
    """Every second pixel of a well sampled object agrees with the whole, whichever is brought to the other's grid."""
    truth = scan(modes=1, sigma=4.0)
    coarse = Scan(truth.object[:, ::2, ::2], truth.probe[:, ::2, ::2], truth.positions_px / 2, (2e-8, 2e-8))
    for pair in ((coarse, truth), (truth, coarse)):
        found = compare_results(*pair)
        assert found.nrmse < 0.02
        assert found.pixel_size_m == (1e-8, 1e-8)
        assert found.position_p95_px is not None and found.position_p95_px < 1e-9
        assert "20 x 20 nm pixels to 10 x 10 nm" in found.notes[0]
        assert found.probe_nrmse < 0.02
    with pytest.raises(BadInput, match="object pixels are 10 x 10 and 1000 x 1000 nm"):
        compare_results(truth, replace(truth, pixel_size_m=(1e-6, 1e-6)))


def test_pixel_size_of_one_only() -> None:
    truth = scan()
    found = compare_results(replace(truth, pixel_size_m=None), truth)
    assert found.pixel_size_m is None and found.rings.unit == "px"
    assert "pixel by pixel" in found.notes[0]


def test_other_views_and_margins() -> None:
    """Fewer views and a wider margin: the common part agrees, positions are not compared."""
    truth = scan()
    wide = np.pad(truth.object, ((0, 0), (20, 30), (10, 0)), constant_values=1)
    other = Scan(wide, truth.probe, truth.positions_px[10:] + np.array([20, 10]), truth.pixel_size_m)
    found = compare_results(other, truth)
    assert found.nrmse < 1e-6
    assert found.position_mean_px is None
    assert "positions were not compared" in found.notes[0]


def test_other_window() -> None:
    """The same probe in a wider window, its axis still at the middle."""
    truth = scan()
    wide = replace(truth, probe=np.pad(truth.probe, ((0, 0), (4, 4), (3, 3))), positions_px=truth.positions_px - [4, 3])
    found = compare_results(wide, truth)
    assert found.nrmse < 1e-9 and found.probe_nrmse < 1e-6


def test_summary_is_json() -> None:
    truth = scan(modes=1)
    found = compare_results(truth, truth)
    back = json.loads(json.dumps(found.summary(), allow_nan=False))
    assert back["nrmse"] < 1e-9 and back["twin"] is False and back["resolution_unit"] == "m"


def test_illumination_is_the_sum_over_views() -> None:
    truth = scan(size=60)
    weights = np.linspace(0.5, 1.5, len(truth.positions_px))[:, None]
    expected = np.zeros((60, 60))
    for (y, x), weight in zip(np.rint(truth.positions_px).astype(int), weights[:, 0], strict=True):
        expected[y : y + 32, x : x + 32] += weight**2 * (np.abs(truth.probe) ** 2).sum(axis=0)
    light = illumination((60, 60), truth.probe, truth.positions_px, weights)
    np.testing.assert_allclose(light, expected, atol=1e-9)
    outside = illumination((60, 60), truth.probe, truth.positions_px - 20)
    inside = illumination((60, 60), truth.probe, truth.positions_px)
    np.testing.assert_allclose(outside[:40, :40], inside[20:, 20:], atol=1e-9)
    region = illuminated(light)
    assert region.any() and not region.all()


def test_orthogonal_modes_keep_the_density_matrix() -> None:
    modes = scan(modes=3).probe
    turned_modes = orthogonal(modes)
    flat, turned_flat = modes.reshape(3, -1), turned_modes.reshape(3, -1)
    np.testing.assert_allclose(flat.T @ flat.conj(), turned_flat.T @ turned_flat.conj(), atol=1e-10)
    gram = turned_flat @ turned_flat.conj().T
    np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-10)
    assert (np.diff(np.diag(gram).real) <= 0).all()
