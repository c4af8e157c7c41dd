"""Who has what of the object, and how object updates of one batch reach everybody.

N        views
L, H, W  slices, object pixels;  b = BLOCK, side of a block

A *touched field* holds values on the blocks that a batch covers. Which blocks those are follows from the anchors of
the whole batch, which every rank knows: no message is needed to agree on them.

Every layout answers the same questions. `Replicated`: the whole object on every rank; `Tiled` (tiled.py): a part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed.boxes import Blocks, Boxes, blocks_together, where
from ptymesh.distributed.common import Areas, Combine, Common
from ptymesh.distributed.devices import sent
from ptymesh.distributed.owners import owners
from ptymesh.distributed.tiles import Rect
from ptymesh.distributed.world import World
from ptymesh.estimate import Estimate
from ptymesh.physics.blocks import Expression, Leaf, Name, Operation, cut_blocks, evaluate, top_of
from ptymesh.physics.rounding import elements, largest, shifts_for


def _alone(values: Tensor) -> Tensor:
    return values


class BlockSparseField:
    """Values (L, n, b, b) on n blocks of the object, with the arithmetic an engine needs; maxima are global.

    What an engine writes is an expression (physics/blocks.py), worked out where its values go.

    `rows`, `columns` (n,): block coordinates in this rank's part of the object; `over_ranks`: maximum over ranks.
    """

    def __init__(
        self,
        values: Tensor | Expression,
        rows: Tensor,
        columns: Tensor,
        over_ranks: Callable[[Tensor], Tensor] = _alone,
    ) -> None:
        self.expression = Leaf(rows, columns, values=values) if isinstance(values, Tensor) else values
        self.rows, self.columns, self.over_ranks = rows, columns, over_ranks

    @property
    def values(self) -> Tensor:
        """(L, n, b, b); worked out once."""
        if not isinstance(self.expression, Leaf):
            self.expression = Leaf(self.rows, self.columns, values=evaluate(self.expression))
        return self.expression.values

    def of(self, values: Tensor | Expression) -> BlockSparseField:
        """Other values (L, n, b, b) on the same blocks."""
        return BlockSparseField(values, self.rows, self.columns, self.over_ranks)

    def _with(self, name: Name, other: BlockSparseField | float | Tensor) -> BlockSparseField:
        operand = other.expression if isinstance(other, BlockSparseField) else other
        return self.of(Operation(name, self.expression, operand))

    def __mul__(self, other: BlockSparseField | float | Tensor) -> BlockSparseField:
        return self._with("multiply", other)

    __rmul__ = __mul__

    def __add__(self, other: BlockSparseField | float | Tensor) -> BlockSparseField:
        return self._with("add", other)

    __radd__ = __add__

    def __truediv__(self, other: BlockSparseField | float | Tensor) -> BlockSparseField:
        return self._with("divide", other)

    def sqrt(self) -> BlockSparseField:
        """Elementwise square root."""
        return self.of(Operation("sqrt", self.expression))

    def max(self) -> Tensor:
        """Largest value of each slice, (L, 1, 1, 1); not below zero."""
        expression = self.expression
        return self.over_ranks(expression.largest(expression) if isinstance(expression, Leaf) else top_of(self.values))


class Layout:
    """What all layouts share: who owns which view.

    Args:
        world: the ranks.
        owner: (N,) rank of each view.
    """

    name: str
    #: Whether views go to ranks that have equal shares of each batch of a stage (handover.py).
    follows_draw = False

    def __init__(self, world: World, owner: np.ndarray) -> None:
        self.world = world
        #: What each rank holds, where that is not all of the object.
        self.parts: list[Rect] = []
        self.assign(owner)

    def assign(self, owner: np.ndarray) -> None:
        """Views belong to these ranks (N,) from here on."""
        self.owner = owner
        #: Global indices of this rank's views, ascending.
        self.own = np.flatnonzero(owner == self.world.rank)
        self._local = np.full(len(owner), -1, dtype=np.int64)
        self._local[self.own] = np.arange(len(self.own))

    def mine(self, views: np.ndarray) -> np.ndarray:
        """Those of these global view indices that this rank owns."""
        return views[self.owner[views] == self.world.rank]

    def local(self, views: np.ndarray) -> np.ndarray:
        """Rows in this rank's storage of views that it owns."""
        return self._local[views]

    def merge(self, rows: Tensor) -> Tensor:
        """Per-view values (N, ...) in which every row is its owner's."""
        mine = torch.zeros_like(rows)
        own = torch.as_tensor(self.own, device=rows.device)
        mine[own] = rows[own] + 0  # no negative zeros, which a sum over ranks makes positive ones
        return self.world.sum(mine)[0]

    def here(self, estimate: Estimate, anchors: Tensor) -> Tensor:
        """Anchors (B, 2) counted from the first pixel of what windows are cut from."""
        return estimate.here(anchors)

    def shape(self, obj: Tensor) -> tuple[int, ...]:
        """Of what windows of this object, or of some of its slices, are cut from: (L, H, W)."""
        return tuple(obj.shape)

    def seen(self, obj: Tensor) -> Tensor:
        """What windows of an object, of which this is the part that this rank has, are cut from. Collective."""
        return obj

    def wrote(self, target: Tensor, version: int, rows: Tensor, columns: Tensor) -> None:
        """Blocks (n,) of this array have been written, whose version, as torch counts, was this before."""

    def shown(self, obj: Tensor) -> Tensor:
        """Of an object of which this is the part that this rank has, what it could see last."""
        return obj

    def spread(self, part: Tensor, name: str) -> Tensor:
        """What windows of a field, of which this is this rank's part, are cut from; until the next of this name.
        Collective."""
        return part

    def part(self, field: Tensor) -> Tensor:
        """This rank's part of what was spread; of other arrays, these themselves."""
        return field

    def boxes(self, estimate: Estimate, anchors: Tensor, reach: int) -> Boxes:
        """Blocks of this rank's part of the object that windows at all anchors (N, 2) reach into, and that many pixels
        around them."""
        return Boxes.of(estimate.here(anchors), estimate.window, estimate.object.shape, reach)

    def blocks(self, boxes: Boxes, views: np.ndarray) -> Blocks:
        """Blocks of this rank's part of the object that the windows of these views reach into."""
        raise NotImplementedError

    def blocks_of(self, boxes: Boxes, batches: Sequence[np.ndarray]) -> list[Blocks]:
        """The same of several batches."""
        return [self.blocks(boxes, views) for views in batches]

    def border(self, boxes: Boxes) -> np.ndarray | None:
        """Views (N,) bool, of these boxes, after which sums of this rank can travel; None: after all."""
        return None

    def begin(self, fields: list[Tensor], blocks: Blocks) -> Callable[..., list[Any]]:
        """Called once this rank's border views have been added: what travels early does. Returns the rest of `reduce`,
        to be called with the other tensors once all views have been added."""
        return partial(self.reduce, fields, blocks)

    def common(self, obj: Tensor, parts: int) -> Common | None:
        """Memory that all ranks see for sums of this object (L, H, W) in so many parts, where it serves. Collective."""
        return None

    def add_up(
        self, common: Common, blocks: Blocks, found: tuple[Tensor, Tensor], combine: Combine
    ) -> Callable[..., list[Any]]:
        """What sums up that memory on these blocks, to be called with other tensors once all views have been added. It
        returns what is `found`, and sums of the others."""
        count = len(blocks.rows) if blocks.counted is None else blocks.counted
        return partial(common.sum, blocks.rows, blocks.columns, blocks.reached, count, found, combine)

    def reduce(self, fields: list[Tensor], blocks: Blocks, *others: Tensor) -> list[Any]:
        """Global sums: of the touched blocks of accumulators (L, H, W), and of other tensors."""
        raise NotImplementedError

    def sum_owned(self, values: Tensor) -> Tensor:
        """Sum over ranks of values that each has summed over the pixels that it owns."""
        raise NotImplementedError

    def max(self, values: Tensor) -> Tensor:
        """Elementwise maximum over the ranks that hold other pixels."""
        raise NotImplementedError

    def totals(self, estimate: Estimate, *terms: Tensor) -> Tensor:
        """Sums (n,) float64 of all elements of n real tensors of the object's shape, or part of it, which hold what
        each rank has of its own pixels."""
        return self.totals_of(estimate, [partial(_alone, t) for t in terms])

    def totals_of(self, estimate: Estimate, terms: Sequence[Callable[[], Tensor]]) -> Tensor:
        """The same of tensors that are made twice, one at a time: first it is agreed on how large they are."""
        tops = self.max(torch.stack([largest(make()) for make in terms]))
        shifts, _ = shifts_for(tops, 2 * len(estimate.object) * math.prod(estimate.extent))
        parts = torch.stack([elements(make(), shift) for make, shift in zip(terms, shifts, strict=True)])
        return self.sum_owned(parts).sum(1)

    def dot(self, a: Tensor | BlockSparseField, b: Tensor | BlockSparseField, estimate: Estimate) -> Tensor:
        """Re sum conj(a) b over the object's pixels, each once, 0-d float64."""
        return self.dots([(a, b)], estimate)[0]

    def dots(
        self, pairs: Iterable[tuple[Tensor | BlockSparseField, Tensor | BlockSparseField]], estimate: Estimate
    ) -> Tensor:
        """The same of several pairs (n,), together."""
        raise NotImplementedError


class Replicated(Layout):
    """Every rank holds the whole object and the views that it owns, so that ranks have equal shares of each batch.

    Args:
        world: the ranks.
        nominal: (N, 2) positions that decide ownership.
        compact: whether batches are clusters of neighbours (see `owners`).
    """

    name = "replicated"
    follows_draw = True

    def __init__(self, world: World, nominal: np.ndarray, compact: bool = False) -> None:
        super().__init__(world, owners(nominal, world.size, compact))

    def place(self, extent: tuple[int, int], origin: tuple[float, float], anchors: np.ndarray) -> Rect:
        """The part of an object of `extent` pixels that this rank holds: all of it."""
        return Rect(0, 0, *extent)

    def hold(self, parts: list[Rect]) -> Rect:
        """The part that this rank holds, where those of all ranks are given."""
        return parts[self.world.rank]

    def coarse(self, nominal: np.ndarray, window: tuple[int, int]) -> Replicated:
        """The layout of the same views on coarser pixels."""
        return self

    def tile(self, estimate: Estimate) -> Rect:
        """The pixels that this rank writes into a file: all are the first rank's."""
        return Rect(0, 0, *estimate.extent) if self.world.rank == 0 else Rect(0, 0, 0, 0)

    def blocks(self, boxes: Boxes, views: np.ndarray) -> Blocks:
        """Blocks that the windows of these views reach into."""
        rows, columns = where(boxes.cover(views))
        return Blocks(sent(rows, self.world.device), sent(columns, self.world.device))

    def blocks_of(self, boxes: Boxes, batches: Sequence[np.ndarray]) -> list[Blocks]:
        """The same of several batches, worked out together."""
        return blocks_together(boxes, batches, self.world.device)

    def common(self, obj: Tensor, parts: int) -> Common | None:
        """See `Layout.common`."""
        whole = Rect(0, 0, *obj.shape[1:])
        return self.world.common(Areas(len(obj), (whole,) * self.world.size), parts, obj.dtype)

    def reduce(self, fields: list[Tensor], blocks: Blocks, *others: Tensor) -> list[Any]:
        """Global sums in one message: of the touched blocks of accumulators (L, H, W), and of other tensors."""
        if self.world.size == 1:  # the accumulators themselves hold the sums
            own: list[Any] = [
                BlockSparseField(Leaf(blocks.rows, blocks.columns, whole=f), blocks.rows, blocks.columns)
                for f in fields
            ]
            return own + self.world.sum(*others)
        gathered = [cut_blocks(f, blocks.rows, blocks.columns) for f in fields]
        summed = self.world.sum(*gathered, *others)
        return [BlockSparseField(values, blocks.rows, blocks.columns) for values in summed[: len(fields)]] + summed[
            len(fields) :
        ]

    def sum_field(self, partial: Tensor) -> Tensor:
        """Sum over ranks of what each has added up over its part of the object (..., H, W)."""
        return self.world.sum(partial)[0]

    def sum_owned(self, values: Tensor) -> Tensor:
        """Sum over ranks of values that each has summed over `owned` pixels; every rank has done all."""
        return values

    def owned(self, estimate: Estimate) -> Tensor:
        """Pixels (H, W) bool, broadcastable, that this rank counts: all."""
        return torch.ones(1, 1, dtype=torch.bool, device=estimate.object.device)

    def max(self, values: Tensor) -> Tensor:
        """Elementwise maximum over the ranks that hold other pixels: this one holds all."""
        return values

    def dots(
        self, pairs: Iterable[tuple[Tensor | BlockSparseField, Tensor | BlockSparseField]], estimate: Estimate
    ) -> Tensor:
        """Re sum conj(a) b over the object's pixels, (n,) float64."""
        return self.totals_of(estimate, [partial(product, a, b) for a, b in pairs])

    def around(self, field: Tensor, estimate: Estimate, reach: int) -> tuple[Tensor, Rect]:
        """The object's field (L, H, W) with `reach` more pixels on each side where the object has them, and where this
        is: no more than all of it."""
        return field, Rect(0, 0, *estimate.extent)

    def whole(self, field: Tensor, estimate: Estimate) -> Tensor:
        """The field (L, H, W) of the whole object, on every rank."""
        return field

    def stream(self, field: Tensor, estimate: Estimate) -> Iterator[tuple[Rect, Tensor]]:
        """On the first rank, the field (L, H, W) of the whole object piece by piece; nothing on the others, who must
        exhaust it too."""
        if self.world.rank == 0:
            yield Rect(0, 0, *estimate.extent), field

    def settle(
        self, estimate: Estimate, before: tuple[int, int], rows: Callable[[], Any] | None = None
    ) -> Migration | None:
        """How arrays of the object follow after it has grown by `before` rows and columns (and others at the end)."""
        old = estimate.object.shape[-2:]
        if tuple(old) == tuple(estimate.extent):
            return None
        return Migration(Rect(0, 0, *old).moved(*before), Rect(0, 0, *estimate.extent))


class CarriedPatterns(Protocol):
    """Patterns of own views that some can leave and others join (storage/patterns.py)."""

    @property
    def frame_bytes(self) -> int:
        """Bytes of one pattern."""

    def reserve(self, rows: int) -> None:
        """So many will have to be held."""

    def take(self, rows: Tensor) -> Tensor:
        """Those of these rows (k,)."""

    def replace(self, source: Tensor, arrived: list[Tensor]) -> None:
        """New rows: where each was, or -1, and those that have come."""


class Migration:
    """From one part of the object to another, both in pixels of the object as it is now."""

    def __init__(self, old: Rect, new: Rect) -> None:
        self.old, self.new = old, new

    def carry(self, field: Tensor, outside: float) -> Tensor:
        """An array (L, h, w) of the old part on the new one, `outside` where nothing was known."""
        out = field.new_full((*field.shape[:-2], *self.new.shape), outside)
        common = self.old & self.new
        if not common.empty:
            y, x = common.inside(self.new.corner)
            v, u = common.inside(self.old.corner)
            out[..., y, x] = field[..., v, u]
        return out

    def carry_rows(self, rows: Tensor) -> Tensor:
        """What is kept of own views (n, ...), in the new order of own views."""
        exchanged = self.exchange_rows(lambda places: rows[places])
        if exchanged is None:
            return rows
        source, arrived = exchanged
        out = rows.new_empty(len(source), *rows.shape[1:])
        out[source >= 0] = rows[source[source >= 0]]
        out[source < 0] = arrived
        return out

    def exchange_rows(self, take: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor] | None:
        """Own views' new rows: where each was among the old ones, or -1, and those that have arrived, in order; None
        where all stay. take: old rows (k,) as a tensor (k, ...) on the device."""
        return None

    def carry_patterns(self, patterns: CarriedPatterns, device: torch.device) -> None:
        """Patterns go where their views have gone, through tensors of this device."""


def product(a: Tensor | BlockSparseField, b: Tensor | BlockSparseField) -> Tensor:
    """Re conj(a) b, pairs of reals kept apart."""
    a, b = (x.values if isinstance(x, BlockSparseField) else x for x in (a, b))
    return torch.view_as_real(a) * torch.view_as_real(b) if a.is_complex() else a * b
