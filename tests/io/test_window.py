"""Flips, centre, crop, bin and pad, against the plain operations, and what they do to the probe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptymesh.errors import BadInput
from ptymesh.io.options import DataOptions
from ptymesh.io.prepare.window import AxisCut, Window, axis, geometry_of_window, resampled_probe, take_pixels


def table(n: int, **changes: Any) -> list[list[int]]:
    order = {"far": True, "centred": True} | {name: changes.pop(name) for name in ("far", "centred") if name in changes}
    return axis(n, AxisCut(**changes), **order).pixels.tolist()


def test_one_axis() -> None:
    assert table(4) == [[0], [1], [2], [3]]
    assert table(4, centred=False) == [[2], [3], [0], [1]]
    assert table(4, flip=True) == [[0], [3], [2], [1]]  # about the zero frequency, pixel 2
    assert table(4, flip=True, far=False) == [[3], [2], [1], [0]]
    assert table(5, flip=True) == [[4], [3], [2], [1], [0]]
    assert table(8, crop=4) == [[2], [3], [4], [5]]
    assert table(8, crop=4, centre=3) == [[1], [2], [3], [4]]
    assert table(8, crop=4, centre=1) == [[-1], [0], [1], [2]]
    assert table(8, crop=4, centre=3, flip=True) == [[5], [4], [3], [2]]
    assert table(8, binning=2) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert table(9, binning=3) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert table(7, binning=2) == [[1, 2], [3, 4], [5, 6]]
    assert table(4, pad=6) == [[-1], [0], [1], [2], [3], [-1]]
    assert table(6, binning=3, pad=4) == [[-1] * 3, [0, 1, 2], [3, 4, 5], [-1] * 3]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"crop": 9}, "data.crop asks for 9"),
        ({"binning": 9}, "data.bin is 9"),
        ({"pad": 7}, "data.pad is 7"),
        ({"centre": 8}, "data.centre is at pixel 8"),
        ({"centre": -1}, "data.centre"),
    ],
)
def test_what_does_not_fit(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(BadInput, match=word):
        table(8, **changes)


@settings(max_examples=200, deadline=None)
@given(
    n=st.integers(2, 24),
    far=st.booleans(),
    centred=st.booleans(),
    flip=st.booleans(),
    data=st.data(),
)
def test_any_axis(n: int, far: bool, centred: bool, flip: bool, data: st.DataObject) -> None:
    """DC lies in the middle window pixel, its neighbours follow in order, and no detector pixel is used twice."""
    crop = data.draw(st.integers(1, n))
    binning = data.draw(st.integers(1, crop))
    centre = data.draw(st.none() | st.integers(0, n - 1))
    pad = data.draw(st.none() | st.integers(crop // binning, n + 5))
    found = axis(n, AxisCut(centre, flip, crop, binning, pad), far=far, centred=centred)
    m = len(found.pixels)
    assert found.pixels.shape == (pad or crop // binning, binning)
    used = found.pixels[found.pixels >= 0]
    assert len(set(used.tolist())) == len(used)
    order = np.arange(n) if centred or not far else np.fft.fftshift(np.arange(n))
    if far or centre is not None:
        dc = order[n // 2 if centre is None else centre]
    else:
        dc = order[::-1][n // 2] if flip else order[n // 2]
    assert dc in found.pixels[m // 2]
    place = {int(pixel): i for i, pixel in enumerate(order)}
    along = [place[int(pixel)] for pixel in used]
    steps = set(np.diff(along) % n)
    assert steps <= ({n - 1} if flip else {1})


OPTIONS: list[dict[str, Any]] = [
    {},
    {"crop": [12, 14]},
    {"pad": [24, 26]},
    {"flip_y": True},
    {"flip_x": True},
    {"transpose": True},
    {"centre": [9, 8], "crop": [10, 12]},
    {"flip_x": True, "transpose": True, "crop": [12, 18], "pad": 22},
]


def window(options: dict[str, Any], far: bool, centred: bool, shape: tuple[int, int] = (18, 20)) -> Window:
    data = DataOptions(path="unused", **options)
    centre = None if data.centre is None else (int(data.centre[0]), int(data.centre[1]))
    return geometry_of_window(shape, far, centred, centre, data)


def smooth_probe(shape: tuple[int, int], width: float = 1.8) -> np.ndarray:
    y, x = (np.arange(n) - n // 2 for n in shape)
    first = np.exp(-((y[:, None] - 0.6) ** 2 + (x + 1) ** 2) / (2 * width**2)) * np.exp(
        0.3j * x + 0.1j * y[:, None] ** 2
    )
    return np.stack([first, first * (y[:, None] + 0.5 * x)])


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("centred", [True, False])
def test_probe_follows_the_detector_far_field(options: dict[str, Any], centred: bool) -> None:
    """The pattern of the resampled probe is the window cut out of the probe's pattern, exactly."""
    cut = window(options, True, centred)
    probe = smooth_probe((18, 20))
    pattern = np.abs(np.fft.fft2(np.fft.ifftshift(probe, axes=(1, 2)), norm="ortho")) ** 2
    stored = np.fft.fftshift(pattern, axes=(1, 2)) if centred else pattern
    wanted = cut.gather(stored) * cut.exists
    resampled = resampled_probe(probe, cut, far=True, centred=centred)
    assert resampled.shape == (2, *cut.shape)
    found = np.abs(np.fft.fft2(np.fft.ifftshift(resampled, axes=(1, 2)), norm="ortho")) ** 2
    np.testing.assert_allclose(found, wanted, atol=1e-12)


@pytest.mark.parametrize("binning", [2, 3, 4])
def test_binned_probe_far_field(binning: int) -> None:
    """Binning sums the pattern: b^2 times its value at the middle of each bin, where it is smooth on that scale."""
    shape = (96, 96)
    cut = window({"bin": binning}, True, True, shape)
    probe = smooth_probe(shape, 2.0)[:1]
    pattern = np.abs(np.fft.fft2(np.fft.ifftshift(probe, axes=(1, 2)), norm="ortho")) ** 2
    wanted = cut.binned(cut.gather(np.fft.fftshift(pattern, axes=(1, 2))), np.dtype(float))
    resampled = resampled_probe(probe, cut, far=True, centred=True)
    found = np.abs(np.fft.fft2(np.fft.ifftshift(resampled, axes=(1, 2)), norm="ortho")) ** 2
    # What is left is the curvature of the pattern within a bin; without the shift to the bin's middle it is 0.1 to 0.3.
    assert np.linalg.norm(found - wanted) < 0.03 * np.linalg.norm(wanted)
    assert (np.abs(resampled) ** 2).sum() == pytest.approx((np.abs(probe) ** 2).sum(), rel=1e-3)


@pytest.mark.parametrize("options", OPTIONS)
def test_probe_follows_the_detector_near_field(options: dict[str, Any]) -> None:
    cut = window(options, False, True)
    probe = smooth_probe((18, 20))
    np.testing.assert_allclose(resampled_probe(probe, cut, far=False, centred=True), cut.gather(probe) * cut.exists)


def test_binned_probe_near_field() -> None:
    """A flat wave keeps its power: b^2 pixels become one, b times the amplitude."""
    cut = window({"bin": 2}, False, True)
    np.testing.assert_allclose(resampled_probe(np.ones((1, 18, 20), complex), cut, far=False, centred=True), 2.0)


@pytest.mark.parametrize("seed", range(4))
def test_pixels_by_blocks_are_pixels_by_index(seed: int) -> None:
    """Exchanged halves, reversed and repeated pixels, and all of them in order."""
    rng = np.random.default_rng(seed)
    slab = rng.integers(0, 99, (3, 8, 9))
    for rows in (np.arange(8), np.roll(np.arange(8), 4), np.arange(8)[::-1], rng.integers(0, 8, 11), np.arange(2, 6)):
        for columns in (np.arange(9), np.roll(np.arange(9), 5), rng.integers(0, 9, 7)):
            np.testing.assert_array_equal(take_pixels(slab, rows, columns), slab[:, rows][:, :, columns])
    assert take_pixels(slab, np.arange(8), np.arange(9)) is slab
