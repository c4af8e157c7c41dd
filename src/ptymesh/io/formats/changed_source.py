"""Patterns whose stored values are changed as they are read, such as amplitudes that become intensities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ptymesh.io.prepare.preprocess import square_amplitudes
from ptymesh.io.source import SlabSource


@dataclass(frozen=True)
class ChangedSource:
    """A source whose values a function changes, pixel by pixel.

    Attributes:
        source: the patterns as stored.
        change: function of an array, of a module, so that other processes can have it.
        dtype: of what it returns.
    """

    source: SlabSource
    change: Callable[[np.ndarray], np.ndarray]
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (N, H, W)."""
        return self.source.shape

    def read(self, views: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
        """Return changed patterns (len(views), rows, columns).

        Args:
            views: (n,) int64, in any order.
            rows: of the detector, with start and stop, and step 1.
            columns: of the detector, likewise.
        """
        return self.change(self.source.read(views, rows, columns)).astype(self.dtype, copy=False)


def squared(amplitudes: SlabSource) -> ChangedSource:
    """Return the intensities of amplitudes, float32, which are whole where those of counts were rounded."""
    return ChangedSource(amplitudes, square_amplitudes, np.dtype(np.float32))


def is_positive(weights: SlabSource) -> ChangedSource:
    """Return True where weights are above zero."""
    return ChangedSource(weights, _positive, np.dtype(bool))


def _positive(values: np.ndarray) -> np.ndarray:
    return np.asarray(values > 0)
