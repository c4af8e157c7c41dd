"""Blocks of the object that the windows of a batch reach into.

N   views;  H, W  object pixels;  b = BLOCK, side of a block
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import starmap

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed.devices import sent
from ptymesh.estimate import BLOCK

#: Bytes (one for each block and batch) of the masks of several batches that are made at once.
COVERED = 1 << 20


@dataclass(frozen=True)
class Blocks:
    """Blocks (n,) of this rank's part of the object that a batch covers, and which of them travel.

    "Places" are indices (k,) int64 into the n blocks.

    Attributes:
        rows, columns: (n,) int64, block coordinates in the part.
        sums_sent: by rank, places of the blocks whose sums this rank sends there.
        sums_received: by rank, places of the blocks whose sums arrive from there, to be added.
        totals_sent: by rank, places of the blocks whose complete sums this rank sends there, as their block owner.
        totals_received: by rank, places of the blocks whose complete sums arrive from there and replace this rank's.
        shared: places at which anything arrives or is summed for others, ascending (distributed/layouts/tiled.py).
        whole: rows and columns of the covered blocks of the whole object, where windows are cut from that.
        own: rows and columns of the blocks that this rank's views reach, in this rank's accumulators.
        reached: (n,) int64, the ranks whose views reach each block, as bits.
        counted: number of blocks that count as traffic in shared memory; None for n.
    """

    rows: Tensor
    columns: Tensor
    sums_sent: dict[int, Tensor] = field(default_factory=dict)
    sums_received: dict[int, Tensor] = field(default_factory=dict)
    totals_sent: dict[int, Tensor] = field(default_factory=dict)
    totals_received: dict[int, Tensor] = field(default_factory=dict)
    shared: Tensor | None = None
    whole: tuple[Tensor, Tensor] | None = None
    own: tuple[Tensor, Tensor] | None = None
    reached: Tensor | None = None
    counted: int | None = None

    @property
    def covered(self) -> tuple[Tensor, Tensor]:
        """Rows and columns of the covered blocks, in the array that windows are cut from."""
        return (self.rows, self.columns) if self.whole is None else self.whole

    @property
    def added(self) -> tuple[Tensor, Tensor]:
        """Rows and columns of the blocks to which this rank adds, at most."""
        return self.covered if self.own is None else self.own

    def none(self) -> Blocks:
        """Return an empty set of blocks."""
        return Blocks(self.rows[:0], self.columns[:0])


@dataclass(frozen=True)
class Boxes:
    """Boxes of blocks that windows reach into, in an array of blocks (H/b, W/b).

    Attributes:
        sides: H/b, W/b.
        edges: (N, 4) int64, first row, first column, row and column after the last; empty for a window outside.
    """

    sides: tuple[int, int]
    edges: np.ndarray

    @classmethod
    def of(cls, anchors: Tensor, window: tuple[int, int], shape: Sequence[int], reach: int) -> Boxes:
        """Return the boxes of windows.

        Args:
            anchors: (N, 2) int64, top-left pixels of the windows in the array.
            window: (h, w) pixels.
            shape: (..., H, W), of the array.
            reach: additional pixels on each side of a window.
        """
        at, sides = anchors.cpu().numpy(), (shape[-2] // BLOCK, shape[-1] // BLOCK)
        first = np.maximum((at - reach) // BLOCK, 0)
        after = np.maximum(np.minimum((at + np.array(window) + (reach - 1)) // BLOCK + 1, sides), 0)
        return cls(sides, np.concatenate((np.minimum(first, after), after), axis=1))

    def cover(self, views: np.ndarray) -> np.ndarray:
        """Return the mask (H/b, W/b) bool of the blocks that the windows of these views reach into."""
        hit = np.zeros(self.sides, dtype=bool)
        for top, left, bottom, right in self.edges[views].tolist():
            hit[top:bottom, left:right] = True  # for few boxes this is faster than vectorised arithmetic
        return hit

    def covers(self, batches: Sequence[np.ndarray]) -> np.ndarray:
        """Return the masks (n, H/b, W/b) bool of n batches (see `cover`)."""
        hit = np.zeros((len(batches), *self.sides), dtype=bool)
        of, edges = np.repeat(np.arange(len(batches)), [len(b) for b in batches]), self.edges[np.concatenate(batches)]
        reach = ((edges[:, 0] < edges[:, 2]) & (edges[:, 1] < edges[:, 3])).nonzero()[0]
        first, after = edges[reach, :2, None], edges[reach, 2:, None]
        # in boxes smaller than the largest, the last block is set several times
        sides = np.arange((after - first).max(initial=0))
        places = np.minimum(first + sides, after - 1)
        hit[of[reach, None, None], places[:, 0, :, None], places[:, 1, None, :]] = True
        return hit


def where(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns of the True elements of a mask (H/b, W/b).

    numpy is several times faster at finding them along one axis.
    """
    places = mask.ravel().nonzero()[0]
    rows = places // mask.shape[1]
    return rows, places - rows * mask.shape[1]


def blocks_reached_by_rank(
    boxes: Boxes, batches: Sequence[np.ndarray], owner: np.ndarray, ranks: int
) -> Iterator[np.ndarray]:
    """Yield for each batch the ranks whose views' windows reach each block, as bits, (H/b, W/b) int64.

    Args:
        boxes: of all views.
        batches: view indices of each batch.
        owner: (N,) int64, rank of each view.
        ranks: number of ranks.
    """
    step = max(1, COVERED // max(1, boxes.sides[0] * boxes.sides[1]))
    for group in (batches[start : start + step] for start in range(0, len(batches), step)):
        reached = np.zeros((len(group), *boxes.sides), dtype=np.int64)
        for rank in range(ranks):
            reached |= boxes.covers([views[owner[views] == rank] for views in group]).astype(np.int64) << rank
        yield from reached


def blocks_together(boxes: Boxes, batches: Sequence[np.ndarray], device: torch.device) -> list[Blocks]:
    """Return for each batch the blocks that its windows reach into.

    Args:
        boxes: of all views.
        batches: view indices of each batch.
        device: of the returned coordinates.
    """
    blocks, (height, width) = list[Blocks](), boxes.sides
    step = max(1, COVERED // max(1, height * width))
    for group in (batches[start : start + step] for start in range(0, len(batches), step)):
        hit = boxes.covers(group)
        rows, columns = where(hit.reshape(-1, width))
        counts = np.count_nonzero(hit, axis=(1, 2)).tolist()
        split = (sent(places, device).split(counts) for places in (rows % height, columns))
        blocks.extend(starmap(Blocks, zip(*split, strict=True)))
    return blocks
