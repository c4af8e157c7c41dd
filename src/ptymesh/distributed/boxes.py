"""Which blocks of the object the windows of a batch reach into.

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

#: What several batches cover is noted for so many blocks at once, a byte for each.
COVERED = 1 << 20


@dataclass(frozen=True)
class Blocks:
    """Blocks (n,) of this rank's part of the object that a batch covers.

    mine, theirs: by rank, places among them of the blocks whose sums this rank sends there, and gets from there to add;
    given, taken: the same of whole sums that then replace what a rank has; shared: places at which anything of these
    arrives or is summed for others, ascending (distributed/tiled.py). whole: rows and columns of the blocks of the
    whole object that the batch covers, where windows are cut from that, and own, of those that this rank's views reach,
    both as they lie in this rank's sums; reached: (n,) the ranks whose views reach a block, as bits; counted: so many
    blocks count as handed over in memory that ranks share.
    """

    rows: Tensor
    columns: Tensor
    mine: dict[int, Tensor] = field(default_factory=dict)
    theirs: dict[int, Tensor] = field(default_factory=dict)
    given: dict[int, Tensor] = field(default_factory=dict)
    taken: dict[int, Tensor] = field(default_factory=dict)
    shared: Tensor | None = None
    whole: tuple[Tensor, Tensor] | None = None
    own: tuple[Tensor, Tensor] | None = None
    reached: Tensor | None = None
    counted: int | None = None

    @property
    def covered(self) -> tuple[Tensor, Tensor]:
        """Rows and columns of all blocks of what windows are cut from that the batch covers."""
        return (self.rows, self.columns) if self.whole is None else self.whole

    @property
    def added(self) -> tuple[Tensor, Tensor]:
        """Those to which this rank adds, at most."""
        return self.covered if self.own is None else self.own

    def none(self) -> Blocks:
        """A set without any block."""
        return Blocks(self.rows[:0], self.columns[:0])


@dataclass(frozen=True)
class Boxes:
    """Of an array of blocks (H/b, W/b), those that windows reach into.

    sides: H/b, W/b; edges: (N, 4) first row, first column, row and column after the last; of a window outside, one of
    the sides is empty.
    """

    sides: tuple[int, int]
    edges: np.ndarray

    @classmethod
    def of(cls, anchors: Tensor, window: tuple[int, int], shape: Sequence[int], reach: int) -> Boxes:
        """Of windows at anchors (N, 2) in an array (..., H, W), and `reach` more pixels on each side."""
        at, sides = anchors.cpu().numpy(), (shape[-2] // BLOCK, shape[-1] // BLOCK)
        first = np.maximum((at - reach) // BLOCK, 0)
        after = np.maximum(np.minimum((at + np.array(window) + (reach - 1)) // BLOCK + 1, sides), 0)
        return cls(sides, np.concatenate((np.minimum(first, after), after), axis=1))

    def cover(self, views: np.ndarray) -> np.ndarray:
        """Blocks (H/b, W/b) bool that the windows of these views reach into."""
        hit = np.zeros(self.sides, dtype=bool)
        for top, left, bottom, right in self.edges[views].tolist():
            hit[top:bottom, left:right] = True  # boxes are few, and this takes less than any arithmetic on all of them
        return hit

    def covers(self, batches: Sequence[np.ndarray]) -> np.ndarray:
        """The same of n batches, (n, H/b, W/b)."""
        hit = np.zeros((len(batches), *self.sides), dtype=bool)
        of, edges = np.repeat(np.arange(len(batches)), [len(b) for b in batches]), self.edges[np.concatenate(batches)]
        reach = ((edges[:, 0] < edges[:, 2]) & (edges[:, 1] < edges[:, 3])).nonzero()[0]
        first, after = edges[reach, :2, None], edges[reach, 2:, None]
        # of boxes that are smaller than others, the last block is hit several times
        sides = np.arange((after - first).max(initial=0))
        places = np.minimum(first + sides, after - 1)
        hit[of[reach, None, None], places[:, 0, :, None], places[:, 1, None, :]] = True
        return hit


def where(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of what is True in a mask (H/b, W/b); numpy is several times faster at it along one axis."""
    places = mask.ravel().nonzero()[0]
    rows = places // mask.shape[1]
    return rows, places - rows * mask.shape[1]


def reached_by(boxes: Boxes, batches: Sequence[np.ndarray], owner: np.ndarray, ranks: int) -> Iterator[np.ndarray]:
    """Of each of these batches the ranks whose views' windows reach a block, as bits of its number, (H/b, W/b) int64;
    owner: (N,) of views."""
    step = max(1, COVERED // max(1, boxes.sides[0] * boxes.sides[1]))
    for some in (batches[start : start + step] for start in range(0, len(batches), step)):
        reached = np.zeros((len(some), *boxes.sides), dtype=np.int64)
        for rank in range(ranks):
            reached |= boxes.covers([views[owner[views] == rank] for views in some]).astype(np.int64) << rank
        yield from reached


def blocks_together(boxes: Boxes, batches: Sequence[np.ndarray], device: torch.device) -> list[Blocks]:
    """Blocks that the windows of each of these batches reach into."""
    found, (height, width) = list[Blocks](), boxes.sides
    step = max(1, COVERED // max(1, height * width))
    for some in (batches[start : start + step] for start in range(0, len(batches), step)):
        hit = boxes.covers(some)
        rows, columns = where(hit.reshape(-1, width))
        counts = np.count_nonzero(hit, axis=(1, 2)).tolist()
        split = (sent(places, device).split(counts) for places in (rows % height, columns))
        found.extend(starmap(Blocks, zip(*split, strict=True)))
    return found
