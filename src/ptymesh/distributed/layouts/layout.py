"""Layouts of the object over ranks, and how the object updates of a batch reach every rank that needs them.

N        views
L, H, W  slices, object pixels;  b = BLOCK, side of a block

A *touched field* holds values on the blocks that a batch covers. They follow from the anchors of the whole batch, which
every rank knows, so that ranks need no message to agree on them.

All layouts have the same methods. `Replicated`: the whole object on every rank; `Tiled` (tiled.py): a part on each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed.devices import sent
from ptymesh.distributed.layouts.boxes import Blocks, Boxes, blocks_together, where
from ptymesh.distributed.layouts.owners import owners
from ptymesh.distributed.shared_sums import Combine, SharedSums, SumAreas
from ptymesh.distributed.tiles import Rect
from ptymesh.distributed.world import World
from ptymesh.estimate import Estimate
from ptymesh.physics.blocks import Expression, FieldView, Name, Operation, cut_blocks, evaluate, top_of
from ptymesh.physics.rounding import elements, largest, shifts_for


def _unchanged(values: Tensor) -> Tensor:
    """Return the values as they are."""
    return values


class BlockSparseField:
    """Values (L, n, b, b) on n blocks of the object, with the arithmetic that engines need; maxima are over all ranks.

    Arithmetic builds an expression (physics/blocks.py), which is evaluated where its values are used.

    Args:
        values: (L, n, b, b), or an expression.
        rows, columns: (n,) int64, block coordinates in this rank's part of the object.
        over_ranks: maximum over ranks.
    """

    def __init__(
        self,
        values: Tensor | Expression,
        rows: Tensor,
        columns: Tensor,
        over_ranks: Callable[[Tensor], Tensor] = _unchanged,
    ) -> None:
        self.expression = FieldView(rows, columns, values=values) if isinstance(values, Tensor) else values
        self.rows, self.columns, self.over_ranks = rows, columns, over_ranks

    @property
    def values(self) -> Tensor:
        """Values (L, n, b, b), evaluated once."""
        if not isinstance(self.expression, FieldView):
            self.expression = FieldView(self.rows, self.columns, values=evaluate(self.expression))
        return self.expression.values

    def of(self, values: Tensor | Expression) -> BlockSparseField:
        """Return a field of other values (L, n, b, b) on the same blocks."""
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
        """Return the elementwise square root."""
        return self.of(Operation("sqrt", self.expression))

    def max(self) -> Tensor:
        """Return the largest value of each slice over all ranks, (L, 1, 1, 1); not below zero. Collective."""
        expression = self.expression
        return self.over_ranks(
            expression.largest(expression) if isinstance(expression, FieldView) else top_of(self.values)
        )


#: Sum over ranks: of an accumulator on the touched blocks, or of another tensor.
Summed = BlockSparseField | Tensor


class Layout:
    """Base class of layouts: which rank owns which view, and which part of the object each rank holds.

    Args:
        world: the ranks.
        owner: (N,) int64, rank of each view.
    """

    name: str
    #: True if views move between stages so that ranks have equal shares of each batch (handover.py).
    follows_draw = False

    def __init__(self, world: World, owner: np.ndarray) -> None:
        self.world = world
        #: Rectangle of the object that each rank holds; empty where each holds all of it.
        self.parts: list[Rect] = []
        self.assign(owner)

    def assign(self, owner: np.ndarray) -> None:
        """Set the owner (N,) int64 of each view; nothing is sent."""
        self.owner = owner
        #: Global indices of this rank's views, ascending.
        self.own = np.flatnonzero(owner == self.world.rank)
        self._local = np.full(len(owner), -1, dtype=np.int64)
        self._local[self.own] = np.arange(len(self.own))

    def local_views(self, views: np.ndarray) -> np.ndarray:
        """Return those of the global view indices that this rank owns."""
        return views[self.owner[views] == self.world.rank]

    def local(self, views: np.ndarray) -> np.ndarray:
        """Return the rows, in this rank's storage, of views that it owns."""
        return self._local[views]

    def merge(self, rows: Tensor) -> Tensor:
        """Return per-view values (N, ...) with each row taken from the view's owner. Collective."""
        mine = torch.zeros_like(rows)
        local_views = torch.as_tensor(self.own, device=rows.device)
        # 0 is added as it turns -0 into 0, as the sum over several ranks does, for the same bits on one
        mine[local_views] = rows[local_views] + 0
        return self.world.sum(mine)[0]

    def anchors_in_part(self, estimate: Estimate, anchors: Tensor) -> Tensor:
        """Return anchors (B, 2) relative to the first pixel of the array that windows are cut from."""
        return estimate.relative_anchors(anchors)

    def shape(self, obj: Tensor) -> tuple[int, ...]:
        """Return the shape (L, H, W) of the array that windows of this object, or of some slices, are cut from."""
        return tuple(obj.shape)

    def fill_halo(self, obj: Tensor) -> Tensor:
        """Return this rank's part of an object with its halo filled, from which windows are cut. Collective.

        The array is stale once the object has been written to (`mark_written`).

        Args:
            obj: (L, H, W) complex, this rank's part.

        Returns:
            (L, H', W') complex, on this rank's device; `obj` itself where it has all that this rank's windows need.
        """
        return obj

    def mark_written(self, target: Tensor, version: int, rows: Tensor, columns: Tensor) -> None:
        """Record which blocks of an array have been written, so that not all of it needs to be copied to other ranks.

        Args:
            target: the array.
            version: torch's version counter of the array before the write.
            rows: (n,) int64, rows of the written blocks, counted in blocks.
            columns: (n,) int64, their columns.
        """

    def last_filled(self, obj: Tensor) -> Tensor:
        """Return the array that `fill_halo` returned last for this rank's part of an object; not collective."""
        return obj

    def fill_field_halo(self, part: Tensor, name: str) -> Tensor:
        """Return this rank's part of a field (L, H, W) with its halo filled, from which windows are cut. Collective.

        It is valid until the next call with the same name.
        """
        return part

    def local_part(self, field: Tensor) -> Tensor:
        """Return this rank's part of an array that `fill_field_halo` returned; any other array as it is."""
        return field

    def window_boxes(self, estimate: Estimate, anchors: Tensor, reach: int) -> Boxes:
        """Return the boxes of blocks of this rank's part of the object that windows reach into.

        Args:
            estimate: its corner, window and object's shape are used.
            anchors: (N, 2) int64, of all views, in pixels of the whole object.
            reach: additional pixels around each window.
        """
        return Boxes.of(estimate.relative_anchors(anchors), estimate.window, estimate.object.shape, reach)

    def touched_blocks(self, boxes: Boxes, views: np.ndarray) -> Blocks:
        """Return the blocks of this rank's part of the object that the windows of these views reach into."""
        raise NotImplementedError

    def touched_blocks_of(self, boxes: Boxes, batches: Sequence[np.ndarray]) -> list[Blocks]:
        """Return for each of several batches the blocks that its windows reach into."""
        return [self.touched_blocks(boxes, views) for views in batches]

    def border(self, boxes: Boxes) -> np.ndarray | None:
        """Return the views (N,) bool that must be added before sums of this rank can be sent; None for all views."""
        return None

    def start_reduce(self, fields: list[Tensor], blocks: Blocks) -> Callable[..., list[Summed]]:
        """Start sending what can be sent once this rank's border views have been added.

        Args:
            fields: accumulators (L, H, W).
            blocks: touched blocks of the batch.

        Returns:
            Function that does the rest of `reduce`, to be called with the other tensors once all views have been added.
            Collective.
        """
        return partial(self.reduce, fields, blocks)

    def shared_sums(self, obj: Tensor, parts: int) -> SharedSums | None:
        """Return shared memory for `parts` sums of this object (L, H, W); None where it is not used. Collective."""
        return None

    def add_up(
        self, common: SharedSums, blocks: Blocks, found: tuple[Tensor, Tensor], combine: Combine
    ) -> Callable[..., list[Tensor]]:
        """Return a function that sums the accumulators in shared memory over ranks.

        Args:
            common: the accumulators.
            blocks: touched blocks of the batch.
            found: sums and weight (L, H, W) in the estimate's precision, to be filled on the touched blocks.
            combine: function that adds the accumulators.

        Returns:
            Collective function, to be called with other tensors once all views have been added; it returns `found` and
            the sums of the other tensors.
        """
        count = len(blocks.rows) if blocks.counted is None else blocks.counted
        return partial(common.sum, blocks.rows, blocks.columns, blocks.reached, count, found, combine)

    def reduce(self, fields: list[Tensor], blocks: Blocks, *others: Tensor) -> list[Summed]:
        """Return sums over ranks: of accumulators on the touched blocks, and of other tensors. Collective.

        Args:
            fields: accumulators (L, H, W) of this rank.
            blocks: touched blocks of the batch.
            others: tensors of any shape.

        Returns:
            A BlockSparseField for each accumulator, then the other sums.
        """
        raise NotImplementedError

    def sum_owned(self, values: Tensor) -> Tensor:
        """Return the sum over ranks of values that each rank has summed over the pixels that it owns. Collective."""
        raise NotImplementedError

    def max(self, values: Tensor) -> Tensor:
        """Return the elementwise maximum over the ranks that hold other pixels. Collective."""
        raise NotImplementedError

    def totals(self, estimate: Estimate, *terms: Tensor) -> Tensor:
        """Return the sums (n,) float64 over all ranks of all elements of n real tensors. Collective.

        Args:
            estimate: its object's shape bounds the number of terms.
            terms: of the object's shape or of a part of it; each rank's hold its own pixels.
        """
        return self.totals_of(estimate, [partial(_unchanged, t) for t in terms])

    def totals_of(self, estimate: Estimate, terms: Sequence[Callable[[], Tensor]]) -> Tensor:
        """Return the same sums as `totals`, of tensors that are made when needed, one at a time. Collective.

        Each is made twice: first for the largest element, from which the rounding follows, then for the sum.
        """
        tops = self.max(torch.stack([largest(make()) for make in terms]))
        shifts, _ = shifts_for(tops, 2 * len(estimate.object) * math.prod(estimate.extent))
        parts = torch.stack([elements(make(), shift) for make, shift in zip(terms, shifts, strict=True)])
        return self.sum_owned(parts).sum(1)

    def dot(self, a: Tensor | BlockSparseField, b: Tensor | BlockSparseField, estimate: Estimate) -> Tensor:
        """Return Re sum conj(a) b over the object's pixels, each counted once, 0-d float64. Collective.

        Args:
            a: this rank's part (L, H, W), or a field on some blocks.
            b: the same kind, on the same blocks.
            estimate: the estimate of which the object is part.
        """
        return self.dots([(a, b)], estimate)[0]

    def dots(
        self, pairs: Iterable[tuple[Tensor | BlockSparseField, Tensor | BlockSparseField]], estimate: Estimate
    ) -> Tensor:
        """Return Re sum conj(a) b over the object's pixels for several pairs, (n,) float64. Collective."""
        raise NotImplementedError


class Replicated(Layout):
    """Layout in which every rank holds the whole object, and ranks have equal shares of each batch.

    Args:
        world: the ranks.
        nominal: (N, 2) positions in pixels, from which ownership follows.
        compact: True if batches are clusters of neighbours (see `owners`).
    """

    name = "replicated"
    follows_draw = True

    def __init__(self, world: World, nominal: np.ndarray, compact: bool = False) -> None:
        super().__init__(world, owners(nominal, world.size, compact))

    def place(self, extent: tuple[int, int], origin: tuple[float, float], anchors: np.ndarray) -> Rect:
        """Return the rectangle of an object that this rank holds: all of it.

        Args:
            extent: sides of the object in pixels.
            origin: object pixel of the scan's zero; not used here.
            anchors: (N, 2); not used here.
        """
        return Rect(0, 0, *extent)

    def hold(self, parts: list[Rect]) -> Rect:
        """Return this rank's rectangle from those of all ranks."""
        return parts[self.world.rank]

    def coarse(self, nominal: np.ndarray, window: tuple[int, int]) -> Replicated:
        """Return the layout of the same views on coarser pixels: this one."""
        return self

    def tile(self, estimate: Estimate) -> Rect:
        """Return the pixels that this rank writes into a file: all on rank 0, none on the others."""
        return Rect(0, 0, *estimate.extent) if self.world.rank == 0 else Rect(0, 0, 0, 0)

    def touched_blocks(self, boxes: Boxes, views: np.ndarray) -> Blocks:
        """Return the blocks that the windows of these views reach into."""
        rows, columns = where(boxes.cover(views))
        return Blocks(sent(rows, self.world.device), sent(columns, self.world.device))

    def touched_blocks_of(self, boxes: Boxes, batches: Sequence[np.ndarray]) -> list[Blocks]:
        """Return for each of several batches the blocks that its windows reach into."""
        return blocks_together(boxes, batches, self.world.device)

    def shared_sums(self, obj: Tensor, parts: int) -> SharedSums | None:
        """Return shared memory for `parts` sums of this object (L, H, W); None where there is none. Collective."""
        extent = Rect(0, 0, *obj.shape[1:])
        return self.world.shared_sums(SumAreas(len(obj), (extent,) * self.world.size), parts, obj.dtype)

    def reduce(self, fields: list[Tensor], blocks: Blocks, *others: Tensor) -> list[Summed]:
        """Return sums over ranks, in one message: of accumulators on touched blocks, and of other tensors. Collective.

        Args:
            fields: accumulators (L, H, W) of this rank.
            blocks: touched blocks of the batch.
            others: tensors of any shape.

        Returns:
            A BlockSparseField for each accumulator, then the other sums.
        """
        if self.world.size == 1:  # the accumulators already hold the sums
            local_sums: list[Summed] = [
                BlockSparseField(FieldView(blocks.rows, blocks.columns, array=f), blocks.rows, blocks.columns)
                for f in fields
            ]
            return local_sums + self.world.sum(*others)
        gathered = [cut_blocks(f, blocks.rows, blocks.columns) for f in fields]
        summed = self.world.sum(*gathered, *others)
        return [BlockSparseField(values, blocks.rows, blocks.columns) for values in summed[: len(fields)]] + summed[
            len(fields) :
        ]

    def sum_field(self, partial: Tensor) -> Tensor:
        """Return the sum over ranks of what each has added up over the object (..., H, W). Collective."""
        return self.world.sum(partial)[0]

    def sum_owned(self, values: Tensor) -> Tensor:
        """Return the values themselves: every rank has summed over all pixels."""
        return values

    def owned(self, estimate: Estimate) -> Tensor:
        """Return the pixels (H, W) bool, broadcastable, that this rank counts in sums: all."""
        return torch.ones(1, 1, dtype=torch.bool, device=estimate.object.device)

    def max(self, values: Tensor) -> Tensor:
        """Return the values themselves: every rank holds all pixels."""
        return values

    def dots(
        self, pairs: Iterable[tuple[Tensor | BlockSparseField, Tensor | BlockSparseField]], estimate: Estimate
    ) -> Tensor:
        """Return Re sum conj(a) b over the object's pixels for several pairs, (n,) float64."""
        return self.totals_of(estimate, [partial(product, a, b) for a, b in pairs])

    def with_margin(self, field: Tensor, estimate: Estimate, reach: int) -> tuple[Tensor, Rect]:
        """Return a field with `reach` more pixels on each side, as far as the object has them, and its rectangle.

        Args:
            field: (L, H, W) of the whole object.
            estimate: its object's extent is used.
            reach: pixels; there are none beyond the whole object.
        """
        return field, Rect(0, 0, *estimate.extent)

    def gather_whole(self, field: Tensor, estimate: Estimate) -> Tensor:
        """Return the field (L, H, W) of the whole object, on every rank."""
        return field

    def stream(self, field: Tensor, estimate: Estimate) -> Iterator[tuple[Rect, Tensor]]:
        """Yield on rank 0 the field (L, H, W) of the whole object piece by piece, nothing on the others.

        Collective: the others must exhaust it too.
        """
        if self.world.rank == 0:
            yield Rect(0, 0, *estimate.extent), field

    def adapt_parts(self, estimate: Estimate, before: tuple[int, int]) -> Migration | None:
        """Return the migration of arrays after the object has grown; None if it has not.

        Args:
            estimate: with its new extent, and the object not grown yet.
            before: rows and columns that were added before the first.
        """
        old = estimate.object.shape[-2:]
        if tuple(old) == tuple(estimate.extent):
            return None
        return Migration(Rect(0, 0, *old).moved(*before), Rect(0, 0, *estimate.extent))


class CarriedPatterns(Protocol):
    """Patterns of this rank's views, of which some can leave and to which others can be added (storage/patterns.py)."""

    @property
    def frame_bytes(self) -> int:
        """Bytes of one pattern."""

    def reserve(self, rows: int) -> None:
        """Reserve memory for so many arriving patterns."""

    def take(self, rows: Tensor) -> Tensor:
        """Return the patterns of these rows (k,) int64."""

    def replace(self, source: Tensor, arrived: list[Tensor]) -> None:
        """Rearrange the patterns: from the old row of each new one, or -1, and from the arrived patterns in order."""


class Migration:
    """Transfer of arrays from a former part of the object to a new one.

    Args:
        old, new: rectangles in pixels of the object as it is now.
    """

    def __init__(self, old: Rect, new: Rect) -> None:
        self.old, self.new = old, new

    def carry(self, field: Tensor, outside: float) -> Tensor:
        """Return an array of the old part on the new one. Collective in layouts of several parts.

        Args:
            field: (L, h, w) on the old part.
            outside: value of pixels that the old part does not have.
        """
        out = field.new_full((*field.shape[:-2], *self.new.shape), outside)
        common = self.old & self.new
        if not common.empty:
            y, x = common.inside(self.new.corner)
            v, u = common.inside(self.old.corner)
            out[..., y, x] = field[..., v, u]
        return out

    def carry_rows(self, rows: Tensor) -> Tensor:
        """Return per-view values (n, ...) of this rank's former views for its new views. Collective."""
        exchanged = self.exchange_rows(lambda places: rows[places])
        if exchanged is None:
            return rows
        source, arrived = exchanged
        out = rows.new_empty(len(source), *rows.shape[1:])
        out[source >= 0] = rows[source[source >= 0]]
        out[source < 0] = arrived
        return out

    def exchange_rows(self, take: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor] | None:
        """Exchange one row per moving view; here no view moves, and None is returned.

        Args:
            take: function from old row numbers (k,) int64 to their values (k, ...), on the device.

        Returns:
            For each of this rank's new views the old row number, or -1 where the row has arrived, and the arrived rows
            in the order of the views; None where no view moves.
        """
        return None

    def carry_patterns(self, patterns: CarriedPatterns, device: torch.device) -> None:
        """Send patterns to the new owners of their views, through tensors of this device; here no view moves."""


def product(a: Tensor | BlockSparseField, b: Tensor | BlockSparseField) -> Tensor:
    """Return the terms of Re conj(a) b: the product, or for complex values the two products of reals, (..., 2)."""
    a, b = (x.values if isinstance(x, BlockSparseField) else x for x in (a, b))
    return torch.view_as_real(a) * torch.view_as_real(b) if a.is_complex() else a * b
