"""Arrays laid out in panels of eight columns (compiled/column_panels.py) for kernels to read, and back, by numpy.

h, w        pixels of a window;  w' is w rounded up to whole panels
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ptymesh.kernels.arrays import Array
from ptymesh.kernels.cpu.compiled.column_panels import WIDTH


def in_panels(plane: Array) -> Array:
    """Return a real plane (h, w) panel after panel, (h w',); what fills up the last panel is zero."""
    return _columns(plane).swapaxes(0, 1).flatten()


def waves_in_panels(waves: Array) -> Array:
    """Return waves (M, h, w), mode after mode and panel after panel, as (M h w' 2,) real."""
    columns = _columns(waves)
    pairs = columns.view(columns.real.dtype).reshape(*columns.shape, 2)
    return pairs.transpose(0, 2, 1, 4, 3).flatten()


def from_panels(planes: Array, h: int, w: int) -> Array:
    """Return planes as images.

    Args:
        planes: (n, h w'), panel after panel.
        h: rows of a window.
        w: columns of a window.

    Returns:
        (n, h, w).
    """
    padded = planes.reshape(len(planes), -1, h, WIDTH).swapaxes(1, 2)
    return padded.reshape(len(planes), h, -1)[:, :, :w]


@lru_cache(maxsize=4)
def angles(h: int, w: int) -> Array:
    """Return 2 pi k_y of the rows and 2 pi k_x of the columns of whole panels, (h + w',); the filling is zero."""
    rates = np.zeros(h + w + -w % WIDTH)
    rates[:h], rates[h : h + w] = 2 * np.pi * np.fft.fftfreq(h), 2 * np.pi * np.fft.fftfreq(w)
    return rates


def _columns(x: Array) -> Array:
    """Return eight columns at a time, (..., h, w' / 8, 8), contiguous."""
    lacking = -x.shape[-1] % WIDTH
    if lacking:
        x = np.concatenate((x, np.zeros((*x.shape[:-1], lacking), x.dtype)), axis=-1)
    return np.ascontiguousarray(x).reshape(*x.shape[:-1], -1, WIDTH)
