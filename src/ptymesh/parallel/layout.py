"""Who owns which view, and how object updates of one batch reach everybody.

N        views
L, H, W  slices, object pixels;  b = BLOCK, side of a block

A *touched field* holds values on the blocks that a batch covers. Which blocks those are follows from the anchors of
the whole batch, which every rank knows: no message is needed to agree on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ptymesh.estimate import BLOCK, REACH
from ptymesh.parallel.exact import exact_sum
from ptymesh.parallel.world import World


@dataclass(frozen=True)
class Touched:
    """Values (L, n, b, b) on n blocks of the object, with the arithmetic an engine needs; maxima are global.

    `rows`, `columns` (n,): block coordinates.
    """

    values: Tensor
    rows: Tensor
    columns: Tensor

    def _with(self, values: Tensor) -> Touched:
        return Touched(values, self.rows, self.columns)

    def __mul__(self, other: Touched | float | Tensor) -> Touched:
        return self._with(self.values * (other.values if isinstance(other, Touched) else other))

    __rmul__ = __mul__

    def __add__(self, other: Touched | float | Tensor) -> Touched:
        return self._with(self.values + (other.values if isinstance(other, Touched) else other))

    __radd__ = __add__

    def __truediv__(self, other: Touched | float | Tensor) -> Touched:
        return self._with(self.values / (other.values if isinstance(other, Touched) else other))

    def sqrt(self) -> Touched:
        """Elementwise square root."""
        return self._with(self.values.sqrt())

    def max(self) -> Tensor:
        """Largest value of each slice, (L, 1, 1, 1)."""
        return self.values.amax((1, 2, 3), keepdim=True)


class Replicated:
    """Every rank holds the whole object and the views that it owns, interleaved along a space-filling curve.

    Args:
        world: the ranks.
        nominal: (N, 2) positions that decide ownership.
    """

    name = "replicated"
    #: Whether inner products are exact, as they must be where several layouts are to give the same bits.
    exact = False

    def __init__(self, world: World, nominal: np.ndarray) -> None:
        self.world = world
        self.owner = np.empty(len(nominal), dtype=np.int64)
        self.owner[along_curve(nominal)] = np.arange(len(nominal)) % world.size
        #: Global indices of this rank's views, ascending.
        self.own = np.flatnonzero(self.owner == world.rank)
        self._local = np.full(len(nominal), -1, dtype=np.int64)
        self._local[self.own] = np.arange(len(self.own))

    def mine(self, views: np.ndarray) -> np.ndarray:
        """Those of these global view indices that this rank owns."""
        return views[self.owner[views] == self.world.rank]

    def local(self, views: np.ndarray) -> np.ndarray:
        """Rows in this rank's storage of views that it owns."""
        return self._local[views]

    def touched_blocks(self, anchors: Tensor, window: tuple[int, int], shape: Any) -> tuple[Tensor, Tensor]:
        """Rows and columns (n,) of the blocks that windows at these anchors (B, 2) reach into."""
        hit = torch.zeros(shape[-2] // BLOCK + 1, shape[-1] // BLOCK + 1, dtype=torch.int32)
        first = ((anchors - REACH).clamp(min=0) // BLOCK).cpu()
        last = ((anchors + torch.tensor(window, device=anchors.device) + (REACH - 1)) // BLOCK).cpu()
        # second differences of a box: +1 at the corners where it starts and ends, -1 at the two others
        for rows, columns, sign in (
            (first[:, 0], first[:, 1], 1),
            (last[:, 0] + 1, last[:, 1] + 1, 1),
            (first[:, 0], last[:, 1] + 1, -1),
            (last[:, 0] + 1, first[:, 1], -1),
        ):
            inside = (rows < hit.shape[0]) & (columns < hit.shape[1])
            ones = torch.full((int(inside.sum()),), sign, dtype=torch.int32)
            hit.index_put_((rows[inside], columns[inside]), ones, accumulate=True)
        covered = hit.cumsum(0).cumsum(1)[:-1, :-1] > 0
        rows, columns = covered.nonzero(as_tuple=True)
        return rows.to(anchors.device), columns.to(anchors.device)

    def reduce(self, fields: list[Tensor], blocks: tuple[Tensor, Tensor], *others: Tensor) -> list[Any]:
        """Global sums in one message: of the touched blocks of accumulators (L, H, W), and of other tensors."""
        gathered = [blocked(f)[:, blocks[0], blocks[1]] for f in fields]
        summed = self.world.sum(*gathered, *others)
        return [Touched(values, *blocks) for values in summed[: len(fields)]] + summed[len(fields) :]

    def dot(self, a: Tensor | Touched, b: Tensor | Touched) -> Tensor:
        """Re sum conj(a) b over pixels, 0-d float64: every rank holds them all."""
        a, b = (x.values if isinstance(x, Touched) else x for x in (a, b))
        products = torch.view_as_real(a) * torch.view_as_real(b) if a.is_complex() else a * b
        return exact_sum(products) if self.exact else products.sum(dtype=torch.float64)

    def merge(self, rows: Tensor) -> Tensor:
        """Per-view values (N, ...) in which every row is its owner's."""
        mine = torch.zeros_like(rows)
        own = torch.as_tensor(self.own, device=rows.device)
        mine[own] = rows[own] + 0.0  # no negative zeros, which a sum over ranks turns into positive ones
        return self.world.sum(mine)[0]


def blocked(field: Tensor) -> Tensor:
    """View (L, H/b, W/b, b, b) of a field (L, H, W)."""
    slices, height, width = field.shape
    return field.view(slices, height // BLOCK, BLOCK, width // BLOCK, BLOCK).permute(0, 1, 3, 2, 4)


def along_curve(positions: np.ndarray, order: int = 10) -> np.ndarray:
    """Views in the order of a Hilbert curve over their bounding square of 2^order cells a side (Skilling 2004).

    (N, 2) -> (N,) indices; equal cells keep the order of the file.
    """
    low = positions.min(axis=0)
    extent = max(float((positions.max(axis=0) - low).max()), 1e-12)
    cells = np.minimum(((positions - low) / extent * 2**order).astype(np.int64), 2**order - 1)
    y, x = cells[:, 0].copy(), cells[:, 1].copy()
    distance = np.zeros(len(positions), dtype=np.int64)
    side = 2 ** (order - 1)
    while side:
        upper_y, upper_x = (y & side) > 0, (x & side) > 0
        distance += side * side * ((3 * upper_x.astype(np.int64)) ^ upper_y)
        flip = ~upper_y & upper_x
        x = np.where(flip, side - 1 - (x & (side - 1)), x & (side - 1))
        y = np.where(flip, side - 1 - (y & (side - 1)), y & (side - 1))
        x, y = np.where(~upper_y, y, x), np.where(~upper_y, x, y)
        side //= 2
    return np.argsort(distance, kind="stable")
