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


@dataclass(frozen=True)
class GapSource:
    """Frames of four chips that are stored side by side, with the pixels between these, which count nothing.

    Attributes:
        source: the patterns as stored.
        gap: pixels between two chips, in the middle of either axis.
    """

    source: SlabSource
    gap: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (N, H, W)."""
        count, height, width = self.source.shape
        return count, height + self.gap, width + self.gap

    @property
    def dtype(self) -> np.dtype:
        """Type of the stored values."""
        return self.source.dtype

    def read(self, views: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
        """Return patterns (len(views), rows, columns).

        Args:
            views: (n,) int64, in any order.
            rows: of the detector, with start and stop, and step 1.
            columns: of the detector, likewise.
        """
        out = np.zeros((len(views), rows.stop - rows.start, columns.stop - columns.start), self.dtype)
        y, x = (
            self._stored_pixels(cut, side) for cut, side in zip((rows, columns), self.source.shape[1:], strict=True)
        )
        if (y >= 0).any() and (x >= 0).any():
            spans = (slice(int(one[one >= 0].min()), int(one.max()) + 1) for one in (y, x))
            out[np.ix_(np.arange(len(views)), y >= 0, x >= 0)] = self.source.read(views, *spans)
        return out

    def _stored_pixels(self, cut: slice, side: int) -> np.ndarray:
        """Return the stored pixel of each pixel of a cut of an axis, -1 in the gap."""
        half = side // 2
        return np.concatenate([np.arange(half), np.full(self.gap, -1), np.arange(half, side)])[cut]


def squared(amplitudes: SlabSource) -> ChangedSource:
    """Return the intensities of amplitudes, float32, which are whole where those of counts were rounded."""
    return ChangedSource(amplitudes, square_amplitudes, np.dtype(np.float32))


def is_positive(weights: SlabSource) -> ChangedSource:
    """Return True where weights are above zero."""
    return ChangedSource(weights, _positive, np.dtype(bool))


def _positive(values: np.ndarray) -> np.ndarray:
    return np.asarray(values > 0)
