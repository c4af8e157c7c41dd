"""Two results beside each other: aligned objects, their difference, and how far they agree.

L, H, W  slices, object pixels;  M, h, w  modes, window pixels
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from matplotlib import colormaps

from ptymesh.compare import Comparison, compare_results
from ptymesh.errors import BadInput
from ptymesh.plot.style import bounds
from ptymesh.printable import finite
from ptymesh.watch.growing import Row
from ptymesh.watch.pictures import png
from ptymesh.watch.runs import ObjectFile, OpenedArrays

Side = Literal["a", "b", "difference"]
#: Pictures of a comparison.
SIDES: tuple[Side, ...] = ("a", "b", "difference")
#: Largest side at which objects are compared, in pixels, so that it takes seconds; larger ones are binned.
COMPARED_SIDE = 512
#: Most views whose light says which pixels count.
MOST_VIEWS = 5000
#: Comparisons that are kept.
KEPT = 4

_one_at_a_time = threading.Lock()


@dataclass
class BinnedResult:
    """The part of a result that is compared, in blocks of pixels.

    Attributes:
        object: (L, H, W) complex.
        probe: (M, h, w) complex.
        positions_px: (N, 2) y x, of all views.
        pixel_size_m: (y, x) of a block; None: pixel units.
        weights: None, as the light of all views counts alike here.
    """

    object: np.ndarray
    probe: np.ndarray
    positions_px: np.ndarray
    pixel_size_m: tuple[float, float] | None
    weights: np.ndarray | None = None


def comparison_numbers(first: ObjectFile, second: ObjectFile) -> Row:
    """Return what a comparison says in numbers, and the curve of its Fourier ring correlation.

    Args:
        first: file of A, which is aligned with B.
        second: file of B.

    Raises:
        BadInput: one of them is no result, or they cannot be compared.
    """
    binning, comparison = compared(first, second)
    rings = comparison.rings
    return {
        **{name: finite(value) for name, value in comparison.summary().items()},
        "binning": binning,
        "shape": list(comparison.alignment.aligned.shape),
        "frequency": rings.frequency.tolist(),
        "curves": {
            "correlation": rings.correlation.tolist(),
            "half_bit": np.minimum(rings.threshold, 1).tolist(),
            "one_bit": np.minimum(rings.one_bit, 1).tolist(),
        },
    }


def comparison_picture(first: ObjectFile, second: ObjectFile, side: Side, what: str) -> bytes:
    """Return a picture of a comparison as PNG; A and B have one scale, that of B.

    Args:
        first: file of A.
        second: file of B.
        side: A, B, or A minus B.
        what: phase or amplitude; of the difference: the size of the complex difference for both.
    """
    alignment = compared(first, second)[1].alignment
    a, b, region = alignment.aligned, alignment.reference, alignment.region
    if side == "difference":
        size = np.abs(a - b)
        top = float(np.percentile(size[region], 99.5))
        return png(colormaps["magma"](np.clip(size / max(top, 1e-12), 0, 1)))
    mean = complex(b[region].mean())
    turn = np.conj(mean) / abs(mean) if abs(mean) > 0 else 1.0
    values_of = np.abs if what == "amplitude" else lambda image: np.angle(image * turn)
    low, high = bounds(values_of(b[region]))
    scaled = (values_of(a if side == "a" else b) - low) / max(high - low, 1e-12)
    return png(colormaps["gray" if what == "amplitude" else "viridis"](np.clip(scaled, 0, 1)))


def compared(first: ObjectFile, second: ObjectFile) -> tuple[int, Comparison]:
    """Return the side of the blocks in which two results were compared, in pixels, and the comparison.

    Raises:
        BadInput: one of them is no result, or they cannot be compared.
    """
    with _one_at_a_time:  # numbers and pictures are asked for together
        return _compared(first, second)


@lru_cache(KEPT)
def _compared(first: ObjectFile, second: ObjectFile) -> tuple[int, Comparison]:
    for file in (first, second):
        if not file.is_result:
            raise BadInput("Two results can be compared; a run that goes on, or has a checkpoint alone, has none yet.")
    with OpenedArrays(first) as a, OpenedArrays(second) as b:
        largest = max(*a.object_shape[1:], *b.object_shape[1:])
        binning = 1 << max(0, math.ceil(math.log2(largest / COMPARED_SIDE)))
        sides = _binned_result(a, binning), _binned_result(b, binning)
    return binning, compare_results(*sides)


def _binned_result(arrays: OpenedArrays, binning: int) -> BinnedResult:
    """Return a result in square blocks of pixels."""
    slices, height, width = arrays.object_shape
    everything = slice(0, height), slice(0, width)
    image = np.stack([arrays.binned_region(index, *everything, binning) for index in range(slices)])
    probe = np.stack([arrays.probe_mode(index) for index in range(arrays.probe_shape[0])])
    rows, columns = (max(1, n // binning) for n in probe.shape[1:])
    cut = probe[:, : rows * binning, : columns * binning]
    if binning > 1:
        cut = cut.reshape(len(probe), rows, binning, columns, binning).mean(axis=(2, 4))
    pixel = arrays.pixel_m
    return BinnedResult(
        image.astype(np.complex128),
        cut.astype(np.complex128),
        arrays.positions()[:: max(1, -(-arrays.views // MOST_VIEWS))] / binning,
        None if pixel is None else (pixel[0] * binning, pixel[1] * binning),
    )
