"""Arithmetic of tiles: rectangles of object pixels, and how a scan is cut into as many tiles as there are ranks.

N, R    views, ranks

A tile belongs to one rank; tiles cover the object without overlap. A rank's *part* is its tile with a halo: as far as
its views' windows reach, in whole blocks. Tiles and parts follow from anchors and owners, which every rank knows, so
that ranks need no message to agree on them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ptymesh.estimate import BLOCK, REACH

#: Object pixels by which a part exceeds what its views and its tile need at present: a margin for positions that move,
#: and for filters of a few pixels.
HALO = 8


class Rect(NamedTuple):
    """Rectangle of object pixels from (top, left) to just before (bottom, right)."""

    top: int
    left: int
    bottom: int
    right: int

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width."""
        return max(0, self.bottom - self.top), max(0, self.right - self.left)

    @property
    def corner(self) -> tuple[int, int]:
        """Top and left."""
        return self.top, self.left

    @property
    def empty(self) -> bool:
        """True if it contains no pixel."""
        return self.bottom <= self.top or self.right <= self.left

    def __and__(self, other: Rect) -> Rect:
        """Return the intersection."""
        return Rect(
            max(self.top, other.top),
            max(self.left, other.left),
            min(self.bottom, other.bottom),
            min(self.right, other.right),
        )

    def hull(self, other: Rect) -> Rect:
        """Return the smallest rectangle that contains both."""
        if self.empty or other.empty:
            return self if other.empty else other
        return Rect(
            min(self.top, other.top),
            min(self.left, other.left),
            max(self.bottom, other.bottom),
            max(self.right, other.right),
        )

    def holds(self, other: Rect) -> bool:
        """Return True if it contains all pixels of the other."""
        return other.empty or (self & other) == other

    def grown(self, pixels: int) -> Rect:
        """Return the rectangle larger by so many pixels on every side."""
        return Rect(self.top - pixels, self.left - pixels, self.bottom + pixels, self.right + pixels)

    def moved(self, y: int, x: int) -> Rect:
        """Return the rectangle moved down by y and right by x pixels."""
        return Rect(self.top + y, self.left + x, self.bottom + y, self.right + x)

    def blocks(self) -> Rect:
        """Return the smallest rectangle of whole blocks that contains it."""
        low = (self.top // BLOCK * BLOCK, self.left // BLOCK * BLOCK)
        return Rect(*low, -(-self.bottom // BLOCK) * BLOCK, -(-self.right // BLOCK) * BLOCK)

    def inside(self, corner: tuple[int, int]) -> tuple[slice, slice]:
        """Return its rows and columns in an array whose first pixel is `corner`."""
        y, x = corner
        return slice(self.top - y, self.bottom - y), slice(self.left - x, self.right - x)


def bisect(centres: np.ndarray, parts: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut points into cells of equal numbers of points, as far as these divide, by recursive bisection.

    Every cut is across the longer side of the points that it divides. A point on a cut may fall on either side of it.

    Args:
        centres: (N, 2), in any unit.
        parts: number of cells.

    Returns:
        Cell of each point (N,) int64, and the cells (parts, 4): top, left, bottom, right; outer edges are infinite.
    """
    owner, cells = np.zeros(len(centres), dtype=np.int64), np.empty((parts, 4))
    everything = np.array([-np.inf, -np.inf, np.inf, np.inf])
    todo = [(np.arange(len(centres)), 0, parts, everything)]
    while todo:
        points, first, count, cell = todo.pop()
        if count == 1:
            owner[points], cells[first] = first, cell
            continue
        half = count // 2
        sides = np.ptp(centres[points], axis=0) if len(points) else np.zeros(2)
        axis = int(sides[1] > sides[0])
        along = points[np.lexsort((centres[points, 1 - axis], centres[points, axis]))]
        k = round(len(points) * half / count)
        before, after = cell.copy(), cell.copy()
        before[axis + 2] = after[axis] = _cut(centres[along, axis], k, cell[axis], cell[axis + 2])
        todo += [(along[:k], first, half, before), (along[k:], first + half, count - half, after)]
    return owner, cells


def _cut(coordinates: np.ndarray, k: int, low: float, high: float) -> float:
    """Return a cut between the k-th and the next sorted coordinate; a pixel beyond them all if one side gets none."""
    if len(coordinates) == 0:
        return float(np.clip(0.0, low, high))
    if k == 0:
        return max(low, float(coordinates[0]) - 1)
    return min(high, float(coordinates[-1]) + 1) if k == len(coordinates) else float(coordinates[k - 1 : k + 1].mean())


def tiles_of(cells: np.ndarray, origin: tuple[float, float], extent: tuple[int, int]) -> list[Rect]:
    """Return the tile of each rank.

    Args:
        cells: (R, 4) in the scan's own coordinates, in pixels.
        origin: object pixel of the scan's zero.
        extent: sides of the object in pixels.
    """
    moved = cells + np.array([*origin, *origin])
    edges = np.clip(np.round(moved), 0, np.array([*extent, *extent])).astype(np.int64)
    return [Rect(*(int(edge) for edge in row)) for row in edges]


def parts_of(
    tiles: list[Rect], owner: np.ndarray, anchors: np.ndarray, window: tuple[int, int], extent: tuple[int, int]
) -> list[Rect]:
    """Return the part of each rank: its tile and the windows of its views, with a margin, in whole blocks.

    Each side is longer than the window's, so that no array of a part has the shape of a probe.

    Args:
        tiles: of each rank.
        owner: (N,) int64, rank of each view.
        anchors: (N, 2) int64, in object pixels.
        window: (h, w).
        extent: sides of the object in pixels.
    """
    low = np.full((len(tiles), 2), np.iinfo(np.int64).max)
    high = np.full((len(tiles), 2), np.iinfo(np.int64).min)
    np.minimum.at(low, owner, anchors)
    np.maximum.at(high, owner, anchors + np.array(window))
    full = Rect(0, 0, *extent)
    parts = []
    for rank, tile in enumerate(tiles):
        reached = Rect(*low[rank].tolist(), *high[rank].tolist()).grown(REACH) if high[rank, 0] > low[rank, 0] else tile
        needed = tile.hull(reached)
        middle = ((needed.top + needed.bottom) // 2, (needed.left + needed.right) // 2)
        least = [n // 2 + REACH for n in window]
        floor = Rect(middle[0] - least[0], middle[1] - least[1], middle[0] + least[0], middle[1] + least[1])
        parts.append(needed.hull(_inside(floor, full)).grown(HALO).blocks() & full)
    return parts


def _inside(rect: Rect, whole: Rect) -> Rect:
    """Return the rectangle moved by as little as brings it into `whole`."""
    y = max(0, -rect.top) - max(0, rect.bottom - whole.bottom)
    x = max(0, -rect.left) - max(0, rect.right - whole.right)
    return rect.moved(y, x)
