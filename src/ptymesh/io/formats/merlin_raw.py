"""Merlin frames in the chips' own order (R64): 64-bit words, turned around, and rows of four chips one after the other.

A word is big-endian, and its lowest bits are its first pixel: of 1, 8 (depth 6) or 16 (depth 12) bits. Frames of depth
24 are two of depth 12, the higher bits first. A row of four chips (2x2) holds rows of chips 4, 3, 2, 1; chips 1 and 2
are the upper half, 3 and 4 the lower one, turned by 180 degrees.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptymesh.io.source import SlabSource

#: Counter depths that are read, with the bytes of 64 pixels and the type of a decoded pixel.
DEPTHS: dict[int, tuple[int, np.dtype]] = {
    1: (8, np.dtype(np.uint8)),
    6: (64, np.dtype(np.uint8)),
    12: (128, np.dtype(np.uint16)),
}
DEEP = 24
WORD_BYTES, STRIPE = 8, 64


@dataclass(frozen=True)
class ChipOrderSource:
    """Frames stored in the chips' order, decoded as they are read.

    Attributes:
        source: (N, rows, bytes of a row) uint8, as stored.
        depth: of the counter, 1, 6, 12 or 24 bits.
        is_quad: whether there are four chips, 2 x 2.
    """

    source: SlabSource
    depth: int
    is_quad: bool

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (N, H, W)."""
        count, rows, row_bytes = self.source.shape
        if self.depth == DEEP:
            rows //= 2
        columns = row_bytes * STRIPE // DEPTHS[min(self.depth, 12)][0]
        return (count, 2 * rows, columns // 2) if self.is_quad else (count, rows, columns)

    @property
    def dtype(self) -> np.dtype:
        """Type of the decoded frames."""
        return np.dtype(np.uint32) if self.depth == DEEP else DEPTHS[self.depth][1]

    def read(self, views: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
        """Return patterns (len(views), rows, columns).

        Args:
            views: (n,) int64, in any order.
            rows: of the detector, with start and stop, and step 1.
            columns: of the detector, likewise.
        """
        _, stored_rows, row_bytes = self.source.shape
        raw = self.source.read(views, slice(0, stored_rows), slice(0, row_bytes))
        frames = _decoded(raw, min(self.depth, 12))
        if self.depth == DEEP:
            upper, lower = np.split(frames.astype(np.uint32), 2, axis=1)
            frames = (upper << 12) + lower
        if self.is_quad:
            frames = _quad(frames)
        return np.ascontiguousarray(frames[:, rows, columns])


def _decoded(raw: np.ndarray, depth: int) -> np.ndarray:
    """Return the pixels (n, rows, columns) of stored rows (n, rows, bytes), in the order of the chip's columns."""
    words = raw.reshape(*raw.shape[:2], -1, WORD_BYTES)
    turned = np.ascontiguousarray(words[..., ::-1])
    if depth == 1:
        return np.unpackbits(turned, axis=-1, bitorder="little").reshape(*raw.shape[:2], -1)
    flat: np.ndarray = turned.reshape(*raw.shape[:2], -1)
    return flat if depth == 6 else flat.view("<u2").astype(np.uint16, copy=False)


def _quad(rows: np.ndarray) -> np.ndarray:
    """Return frames (n, 2 H, 2 W) of rows (n, H, 4 W) of chips 4, 3, 2, 1."""
    fourth, third, second, first = np.split(rows, 4, axis=2)
    upper = np.concatenate([first, second], axis=2)
    lower = np.concatenate([third[:, ::-1, ::-1], fourth[:, ::-1, ::-1]], axis=2)
    return np.concatenate([upper, lower], axis=1)
