"""Selection of the detector pixels that make up the window: flips, centre, crop, bin, pad, as a table per axis.

n       detector pixels along an axis, as stored
m, b    window pixels along it, detector pixels summed into each
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.options import DataOptions
from ptymesh.limits import check_room

#: Least number of pixels on a side of a window.
LEAST_SIDE = 4
#: Most pixels on a side of a padded window; YAML reads 190:20:30 as 685230, a number to the base of 60.
LARGEST_SIDE = 1 << 16
#: Most runs of neighbouring pixels along an axis that are copied as blocks.
MOST_RUNS = 4
#: Bytes that a window takes for each of its detector pixels, in a pattern, masks, waves and sums, at least.
PIXEL_BYTES = 50


@dataclass(frozen=True)
class Axis:
    """One axis of the window.

    Attributes:
        pixels: (m, b) int64, stored detector pixels of each window pixel in natural order (DC at m//2), -1 for none.
        offset: detector pixels by which the middle of the DC window pixel lies above DC itself (half ones for even b).
        at_corner: whether the window itself has DC at index 0.
    """

    pixels: np.ndarray
    offset: float
    at_corner: bool

    @property
    def ordered(self) -> np.ndarray:
        """The table (m, b) in the order of the window."""
        return np.fft.ifftshift(self.pixels, axes=0) if self.at_corner else self.pixels

    @property
    def span(self) -> slice:
        """Range of the stored pixels that are needed."""
        used = self.pixels[self.pixels >= 0]
        return slice(int(used.min()), int(used.max()) + 1)


class AxisCut(NamedTuple):
    """Cut of a window out of one axis of the detector.

    Attributes:
        centre: pixel of the direct beam, counted with DC in the middle whatever the file's order; None: n // 2.
        flip: whether the axis is reversed.
        crop: number of detector pixels that are kept; None: all.
        binning: number of detector pixels summed into a window pixel.
        pad: number of window pixels after padding; None: no padding.
    """

    centre: int | None = None
    flip: bool = False
    crop: int | None = None
    binning: int = 1
    pad: int | None = None


def axis(n: int, cut: AxisCut, *, far: bool, centred: bool) -> Axis:
    """Return the index table of one axis.

    Args:
        n: number of detector pixels.
        cut: what of them the window has.
        far: whether patterns are far-field ones.
        centred: whether the file has DC in the middle.

    Raises:
        BadInput: crop, bin, pad and centre leave no pixel or do not fit the detector.
    """
    centre, flip, crop, binning, pad = cut
    cropped = n if crop is None else crop
    if cropped > n:
        raise BadInput(f"data.crop asks for {cropped} pixels of a detector that has {n}; use data.pad to enlarge.")
    m = cropped // binning
    if m == 0:
        raise BadInput(f"data.bin is {binning} for {cropped} detector pixels; choose a smaller one.")
    total = m if pad is None else pad
    if total < m:
        raise BadInput(f"data.pad is {total}, smaller than the {m} pixels there are; use data.crop to make it smaller.")
    if total > max(LARGEST_SIDE, m):
        raise BadInput(f"data.pad is {total}, which is more than any detector has; choose a smaller data.pad.")
    if centre is not None and not 0 <= centre < n:
        raise BadInput(f"data.centre is at pixel {centre} of an axis of {n}; it must lie on the detector.")

    check_room(16 * binning * total, f"An axis of {total} pixels", "choose a smaller data.pad")
    order = np.arange(n) if centred or not far else np.fft.fftshift(np.arange(n))
    middle = n // 2 if centre is None else centre
    if flip:
        order = order[::-1]
        if far or centre is not None:
            middle = n - 1 - middle
    # DC comes to lie in the first, ..., last detector pixel of its bin, so that the window stays on the detector.
    first = middle - (m // 2) * binning
    inside = min(max((binning - 1) // 2, first + m * binning - n), first)
    within = min(max(inside, 0), binning - 1)
    index = first - within + np.arange(m * binning)
    if far and flip and centre is None and m * binning == n and n % 2 == 0:
        index %= n  # the frequency -n/2, reversed, is n/2, and these are the same
    pixels = np.where((index >= 0) & (index < n), order[np.clip(index, 0, n - 1)], -1).reshape(m, binning)
    if (pixels < 0).all():
        raise BadInput(f"data.crop and data.centre leave no pixel of an axis of {n}; check them.")
    padded = np.full((total, binning), -1)
    start = total // 2 - m // 2
    padded[start : start + m] = pixels
    return Axis(padded, (binning - 1) / 2 - within, far)


@dataclass(frozen=True)
class Window:
    """The detector pixels of a window.

    Attributes:
        y: first axis as stored.
        x: second axis as stored.
        transpose: whether the window's axes are these exchanged.
        binning: b, number of detector pixels summed along either axis.
    """

    y: Axis
    x: Axis
    transpose: bool
    binning: int

    @property
    def shape(self) -> tuple[int, int]:
        """Sides (h, w) after transposition."""
        shape = len(self.y.pixels), len(self.x.pixels)
        return shape[::-1] if self.transpose else shape

    def gather(self, slab: np.ndarray, *, spanned: bool = False) -> np.ndarray:
        """Return detector pixels (..., h b, w b) in the window's order; missing ones repeat the first pixel.

        Args:
            slab: (..., H, W) as stored.
            spanned: whether the slab holds only the rows and columns of `span`.
        """
        rows, columns = (
            np.where(index < 0, 0, index - one.span.start if spanned else index)
            for one, index in ((one, one.ordered.ravel()) for one in (self.y, self.x))
        )
        slab = take_pixels(slab, rows, columns)
        return np.ascontiguousarray(slab.swapaxes(-1, -2)) if self.transpose else slab

    def stored(self, y: int, x: int) -> list[tuple[int, int]]:
        """Return (row, column) of the stored detector pixels in a window pixel, counted with DC in the middle."""
        if self.transpose:
            y, x = x, y
        rows, columns = ([int(i) for i in one.pixels[k] if i >= 0] for one, k in ((self.y, y), (self.x, x)))
        return [(row, column) for row in rows for column in columns]

    def detector_pixel(self, y: int, x: int) -> tuple[int, int]:
        """Return the stored (row, column) of a pixel of what `gather` returns."""
        if self.transpose:
            y, x = x, y
        return int(self.y.ordered.ravel()[y]), int(self.x.ordered.ravel()[x])

    @property
    def exists(self) -> np.ndarray:
        """Mask (h b, w b) bool, True where there is a detector pixel."""
        y, x = self.y.ordered.ravel() >= 0, self.x.ordered.ravel() >= 0
        return np.outer(x, y) if self.transpose else np.outer(y, x)

    def binned(self, slab: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Return the sums (..., h, w) of b x b pixels of a slab (..., h b, w b)."""
        if self.binning == 1:
            return slab.astype(dtype, copy=False)
        return self._blocks(slab).sum(axis=(-3, -1), dtype=dtype)

    def all_of(self, slab: np.ndarray) -> np.ndarray:
        """Return True (..., h, w) where all of b x b pixels of a slab (..., h b, w b) are True."""
        return slab if self.binning == 1 else np.asarray(self._blocks(slab).all(axis=(-3, -1)))

    def _blocks(self, slab: np.ndarray) -> np.ndarray:
        b = self.binning
        h, w = slab.shape[-2] // b, slab.shape[-1] // b
        return slab.reshape(*slab.shape[:-2], h, b, w, b)


def take_pixels(slab: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return slab[..., rows, :][..., columns]; the slab itself where these are all of it, in order.

    An exchange of halves, which most patterns need, is one pass of four blocks in place of two passes by index.

    Args:
        slab: (..., H, W) pixels.
        rows: (h,) int64, indices of rows.
        columns: (w,) int64, indices of columns.
    """
    (height, width), sides = slab.shape[-2:], [_find_runs(rows), _find_runs(columns)]
    if np.array_equal(rows, np.arange(height)) and np.array_equal(columns, np.arange(width)):
        return slab
    if max(map(len, sides)) > MOST_RUNS:
        return slab.take(rows, axis=-2).take(columns, axis=-1)
    out = np.empty((*slab.shape[:-2], len(rows), len(columns)), slab.dtype)
    for row, from_row in sides[0]:
        for column, from_column in sides[1]:
            out[..., row, column] = slab[..., from_row, from_column]
    return out


def _find_runs(index: np.ndarray) -> list[tuple[slice, slice]]:
    """Return where runs of neighbours lie in an index, and which pixels they are."""
    ends = [0, *(np.flatnonzero(np.diff(index) != 1) + 1), len(index)]
    return [(slice(a, b), slice(index[a], index[a] + b - a)) for a, b in pairwise(ends)]


def geometry_of_window(
    shape: tuple[int, int], far: bool, centred: bool, centre: tuple[int, int] | None, options: DataOptions
) -> Window:
    """Return the window that the options cut out of a detector.

    Args:
        shape: sides (H, W) of the detector.
        far: whether patterns are far-field ones.
        centred: whether the file has DC in the middle.
        centre: (y, x) of the direct beam, counted with DC in the middle; None: the middle.
        options: key `data` of the recipe.

    Raises:
        BadInput: the options do not fit the detector.
    """
    cuts = [
        AxisCut(
            None if centre is None else centre[k],
            (options.flip_y, options.flip_x)[k],
            None if options.crop is None else options.crop[k],
            options.bin,
            None if options.pad is None else options.pad[k],
        )
        for k in (0, 1)
    ]
    y, x = (axis(n, cut, far=far, centred=centred) for n, cut in zip(shape, cuts, strict=True))
    window = Window(y, x, options.transpose, options.bin)
    h, w = window.shape
    if min(h, w) < LEAST_SIDE <= min(shape):
        raise BadInput(
            f"A window of {h} x {w} pixels holds no diffraction pattern; choose a larger data.crop, or a smaller "
            f"data.bin."
        )
    remedy = "choose a smaller data.pad" if options.pad else "crop the patterns (data.crop), or sum pixels (data.bin)"
    check_room(PIXEL_BYTES * h * w * options.bin**2, f"A window of {h} x {w} pixels", remedy)
    return window


def resampled_probe(probe: np.ndarray, window: Window, *, far: bool, centred: bool) -> np.ndarray:
    """Return the probe in the window (M, h, w).

    In the far field, the window's selection of detector pixels applies to the probe's spectrum: cropping it coarsens
    the object pixel, padding refines it, flips and shifts carry over; binning b detector pixels makes the window b
    times smaller at the same object pixel. In the near field, detector and object pixels coincide, so amplitudes are
    averaged. The power (sum of squares) is kept, but for what is cut off.

    Args:
        probe: (M, H, W) complex, on the stored detector.
        window: selects the pixels.
        far: whether patterns are far-field ones.
        centred: whether the file has DC in the middle.
    """
    y, x = (np.where(one.pixels < 0, 0, one.pixels).ravel() for one in (window.y, window.x))
    exists = np.outer(window.y.pixels.ravel() >= 0, window.x.pixels.ravel() >= 0)
    axes = (-2, -1)
    if not far:
        cut = np.where(exists, probe[:, y][:, :, x], 0)
        out = window.binned(cut, probe.dtype) / window.binning
        return np.ascontiguousarray(out.swapaxes(-1, -2)) if window.transpose else out
    spectrum = np.fft.fft2(np.fft.ifftshift(probe, axes=axes), norm="ortho")
    if centred:  # index tables point into patterns as stored, so the spectrum takes their order
        spectrum = np.fft.fftshift(spectrum, axes=axes)
    cut = np.where(exists, spectrum[:, y][:, :, x], 0)
    wave = np.fft.fftshift(np.fft.ifft2(np.fft.ifftshift(cut, axes=axes), norm="ortho"), axes=axes)
    for k, one in ((-2, window.y), (-1, window.x)):
        n, m = one.pixels.size, len(one.pixels)
        r = np.arange(n) - n // 2
        ramp = np.exp(-2j * np.pi * one.offset * r / n)
        wave = wave * (ramp[:, None] if k == -2 else ramp)
        wave = wave.take(np.arange(m) + n // 2 - m // 2, axis=k)
    out = wave.astype(probe.dtype)
    return np.ascontiguousarray(out.swapaxes(-1, -2)) if window.transpose else out
