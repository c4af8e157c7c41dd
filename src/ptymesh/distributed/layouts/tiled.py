"""Layout of the object in tiles: each rank holds a part of it, and only sums on the borders are exchanged.

N, R       views, ranks;  L, H, W  slices, object pixels;  b = BLOCK, side of a block
tile       pixels that a rank owns;  part: its tile and the windows of its views, with a margin (tiles.py)
halo       pixels of a part that are in another rank's tile

    share      E:    the halo is filled from its owners                              (`fill`)
    its adjoint E^H: the halo is added into its owners' tiles, then set to zero      (`add`)

Sums over a batch need E E^H of what each rank has added up: the total over ranks, on all parts that hold the pixel.
Every rank whose part holds a pixel receives the others' sums of it directly, and adds them in the order of ranks, so
that all have the same bits: one round of messages instead of two. Where windows are much larger than tiles, so that
many ranks hold a pixel, sums are relayed instead: every block has an owner, which adds them and sends the result back,
with the same bits. Elementwise arithmetic on such sums keeps the halo equal to its owners' values, so that it need not
be filled before windows are cut.

Views that reach blocks which other ranks hold too are border views. Their sums are sent (`start_reduce`) before the
interior views are added, which touch none of these blocks: communication overlaps computation.

Ranks of one machine that share memory send no sums: each reads the others' accumulators (shared_sums.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed.devices import sent
from ptymesh.distributed.layouts.boxes import Blocks, Boxes, blocks_reached_by_rank, where
from ptymesh.distributed.layouts.common_blocks import block_owners, in_common, reach_into, relayed_is_less
from ptymesh.distributed.layouts.handover import Handover
from ptymesh.distributed.layouts.layout import BlockSparseField, Layout, Summed, product
from ptymesh.distributed.shared_sums import MOST_RANKS, SharedSums, SumAreas
from ptymesh.distributed.tiles import Rect, bisect, parts_of, tiles_of
from ptymesh.distributed.world import World
from ptymesh.estimate import BLOCK, Estimate
from ptymesh.physics.blocks import FieldView, blocked, cut_blocks, put_blocks

#: Arrays received from each rank, one per field, and the function that waits for them.
Posted = tuple[dict[int, list[Tensor]], Callable[[], None]]
#: A view moves to another rank once the middle of its window is so many pixels outside of its owner's tile.
STRAY = 2


class Tiled(Layout):
    """Layout in which each rank holds a part of the object and owns the views whose windows are centred in its tile.

    Args:
        world: the ranks.
        nominal: (N, 2) positions in pixels, from which the tiles and the first owners follow.
        window: (h, w).
        owner: (N,) int64, fixed owner of each view, for the coarse pixels of a problem that has owners.
    """

    name = "tiled"

    def __init__(
        self, world: World, nominal: np.ndarray, window: tuple[int, int], owner: np.ndarray | None = None
    ) -> None:
        self.window, self.migrates = window, owner is None
        #: True if ranks read each other's sums in shared memory.
        self.in_memory = world.shares_memory and world.size <= MOST_RANKS
        cut, self.cells = bisect(nominal + np.array(window) / 2, world.size)
        super().__init__(world, cut if owner is None else owner)
        #: Tile of every rank, in pixels of the present object; known once the object has been placed.
        self.tiles: list[Rect] = []

    def place(self, extent: tuple[int, int], origin: tuple[float, float], anchors: np.ndarray) -> Rect:
        """Cut an object into tiles and parts, and return the part that this rank holds.

        Args:
            extent: sides of the object in pixels.
            origin: object pixel of the scan's zero.
            anchors: (N, 2) int64, of all views.
        """
        tiles = tiles_of(self.cells, origin, extent)
        self.set_parts(tiles, parts_of(tiles, self.owner, anchors, self.window, extent))
        return self.parts[self.world.rank]

    def hold(self, parts: list[Rect]) -> Rect:
        """Set the parts of all ranks, as they were in a run that is resumed, and return this rank's."""
        self.set_parts(self.tiles, parts)
        return parts[self.world.rank]

    def set_parts(self, tiles: list[Rect], parts: list[Rect]) -> None:
        """Set the tiles and parts of all ranks, and derive which blocks are shared with whom."""
        me = self.world.rank
        self.tiles, self.parts = tiles, parts
        neighbours = [r for r in range(self.world.size) if r != me and not (parts[r] & parts[me]).empty]
        #: For each neighbour, the blocks (H/b, W/b) bool of this rank's part that it holds too.
        self._common = {rank: in_common(parts[me], parts[rank]) for rank in neighbours}
        self.relayed = relayed_is_less(tiles, parts)
        self._block_owners = block_owners(tiles, parts[me])

    def coarse(self, nominal: np.ndarray, window: tuple[int, int]) -> Tiled:
        """Return the layout of the same views on coarser pixels, with the same owners."""
        return Tiled(self.world, nominal, window, self.owner)

    def tile(self, estimate: Estimate) -> Rect:
        """Return the pixels that this rank writes into a file."""
        return self.tiles[self.world.rank]

    # --- sums over a batch ---

    def touched_blocks(self, boxes: Boxes, views: np.ndarray) -> Blocks:
        """Return the blocks of the part that these views' windows reach into, and which of their sums are exchanged."""
        return self.touched_blocks_of(boxes, [views])[0]

    def touched_blocks_of(self, boxes: Boxes, batches: Sequence[np.ndarray]) -> list[Blocks]:
        """Return for each of several batches the blocks of the part, and which of their sums are exchanged."""
        if self.in_memory:
            return [
                self._list_shared_blocks(reached)
                for reached in blocks_reached_by_rank(boxes, batches, self.owner, self.world.size)
            ]
        return [
            self._exchanged_blocks(lambda rank, v=views: boxes.cover(v[self.owner[v] == rank]), boxes.cover(views))  # type: ignore[misc]
            for views in batches
        ]

    def _list_shared_blocks(self, reached: np.ndarray) -> Blocks:
        """Return the blocks that a batch touches, for ranks that read each other's sums in shared memory.

        Args:
            reached: (H/b, W/b) int64 for the blocks of b pixels of this rank's part; bit r is set where views of rank r
                reach into the block.
        """
        me, device = self.world.rank, self.world.device
        rows, columns = where(reached > 0)
        bits = reached[rows, columns]
        sent_count = sum(int((bits >> rank & 1).sum()) for rank in range(self.world.size) if rank != me)
        is_own = bits >> me & 1 > 0
        return Blocks(
            sent(rows, device),
            sent(columns, device),
            own=(sent(rows[is_own], device), sent(columns[is_own], device)),
            reached=sent(bits, device),
            counted=sent_count,
        )

    def _exchanged_blocks(self, covered: Callable[[int], np.ndarray], touched: np.ndarray) -> Blocks:
        """Return the blocks of a batch, and which of their sums are sent to and received from each rank.

        Args:
            covered: mask (H/b, W/b) bool of the blocks that a rank's views reach.
            touched: (H/b, W/b) bool, blocks that any view reaches.
        """
        me, device = self.world.rank, self.world.device
        rows, columns = where(touched)

        def places(mask: np.ndarray) -> Tensor:
            return sent(mask[rows, columns].nonzero()[0], device)

        blocks, arriving = Blocks(sent(rows, device), sent(columns, device)), np.zeros_like(touched)
        covered_here = covered(me)
        block_owner = self._block_owners if self.relayed else None
        for rank, common in self._common.items():
            blocks.sums_sent[rank] = places(covered_here & (common if block_owner is None else block_owner == rank))
            theirs = covered(rank) & (common if block_owner is None else common & (block_owner == me))
            blocks.sums_received[rank] = places(theirs)
            arriving |= theirs
            if block_owner is not None:
                sent_away, received = touched & common & (block_owner == me), touched & (block_owner == rank)
                blocks.totals_sent[rank], blocks.totals_received[rank] = places(sent_away), places(received)
                arriving |= sent_away | received
        for travels in (blocks.sums_sent, blocks.sums_received, blocks.totals_sent, blocks.totals_received):
            for rank in [rank for rank, travelling in travels.items() if not len(travelling)]:
                del travels[rank]
        return replace(blocks, shared=places(arriving))

    def shared_sums(self, obj: Tensor, parts: int) -> SharedSums | None:
        """Return shared memory for `parts` sums of this object (L, H, W); None where it is not used. Collective."""
        if not self.in_memory:
            return None
        return self.world.shared_sums(
            SumAreas(len(obj), tuple(self.parts), self.parts[self.world.rank]), parts, obj.dtype
        )

    def border(self, boxes: Boxes) -> np.ndarray | None:
        """Return the views (N,) bool that reach blocks of this rank's part which other ranks hold too.

        False only for own views that touch no block whose sums are sent; True for all views of other ranks. None where
        sums are read in shared memory, or no rank shares blocks with this one.
        """
        if not self._common or self.in_memory:
            return None
        shared = np.logical_or.reduce(list(self._common.values()))
        border = np.ones(len(self.owner), dtype=bool)
        border[self.own] = reach_into(shared, boxes.edges[self.own])
        return border

    def start_reduce(self, fields: list[Tensor], blocks: Blocks) -> Callable[..., list[Summed]]:
        """Start sending this rank's sums on the blocks that other ranks hold too; the other blocks may still change.

        Args:
            fields: accumulators (L, H, W) of this rank's part.
            blocks: touched blocks of the batch.

        Returns:
            Function that does the rest of `reduce`, to be called with the other tensors once all views have been added.
            Collective.
        """
        if blocks.reached is not None:  # shared memory could not be allocated: send messages instead
            reached = np.zeros([n // BLOCK for n in fields[0].shape[1:]], dtype=np.int64)
            reached[blocks.rows.numpy(), blocks.columns.numpy()] = blocks.reached.numpy()
            blocks = self._exchanged_blocks(lambda rank: reached >> rank & 1 > 0, reached > 0)
        sends = {
            rank: [cut_blocks(f, blocks.rows[places], blocks.columns[places]) for f in fields]
            for rank, places in blocks.sums_sent.items()
        }
        return partial(self._finish, fields, blocks, self._post_blocks(sends, fields, blocks.sums_received))

    def reduce(self, fields: list[Tensor], blocks: Blocks, *others: Tensor) -> list[Summed]:
        """Return sums over ranks: of accumulators on touched blocks, and of other tensors. Collective.

        Args:
            fields: accumulators (L, H, W) of this rank's part.
            blocks: touched blocks of the batch.
            others: tensors of any shape.

        Returns:
            A BlockSparseField for each accumulator, then the other sums.
        """
        return self.start_reduce(fields, blocks)(*others)

    def _finish(self, fields: list[Tensor], blocks: Blocks, messages: Posted, *others: Tensor) -> list[Summed]:
        """Receive the others' sums and add them to the accumulators, which then hold the sums over ranks."""
        arrived, wait = messages
        summed = self.world.sum(*others) if others else []
        wait()
        if len(blocks.sums_received) == 1 and not (
            blocks.totals_sent or blocks.totals_received
        ):  # two terms: a + b = b + a, in any order
            ((rank, places),) = blocks.sums_received.items()
            for field, values in zip(fields, arrived[rank], strict=True):
                put_blocks(field, blocks.rows[places], blocks.columns[places], values, add=True)
        else:
            self._add_in_order(fields, blocks, arrived)
        leaves = [FieldView(blocks.rows, blocks.columns, array=field) for field in fields]
        return [BlockSparseField(leaf, blocks.rows, blocks.columns, self.max) for leaf in leaves] + summed

    def _add_in_order(self, fields: list[Tensor], blocks: Blocks, arrived: dict[int, list[Tensor]]) -> None:
        """Add the sums on shared blocks in the order of ranks; then send totals from block owners to holders."""
        at = blocks.rows[:0] if blocks.shared is None else blocks.shared
        rows, columns = blocks.rows[at], blocks.columns[at]
        gathered = [cut_blocks(f, rows, columns) for f in fields]
        totals = [torch.zeros_like(local) for local in gathered]
        for rank in sorted({self.world.rank, *blocks.sums_received}):  # every holder adds in this order
            if rank == self.world.rank:
                for total, local in zip(totals, gathered, strict=True):
                    total += local
            else:
                places = torch.searchsorted(at, blocks.sums_received[rank])
                for total, values in zip(totals, arrived[rank], strict=True):
                    total[:, places] += values
        by_rank = {rank: [t[:, torch.searchsorted(at, p)] for t in totals] for rank, p in blocks.totals_sent.items()}
        arrived, wait = self._post_blocks(by_rank, fields, blocks.totals_received)
        wait()
        for rank, received in blocks.totals_received.items():
            for total, values in zip(totals, arrived[rank], strict=True):
                total[:, torch.searchsorted(at, received)] = values
        for field, total in zip(fields, totals, strict=True):
            put_blocks(field, rows, columns, total)

    def _post_blocks(self, given: dict[int, list[Tensor]], fields: list[Tensor], theirs: dict[int, Tensor]) -> Posted:
        """Start an exchange of blocks.

        Args:
            given: for each rank, values (L, n, b, b) to send, one array per field.
            fields: accumulators (L, H, W), for shapes and dtypes.
            theirs: for each rank, places (n,) of the blocks that arrive.

        Returns:
            Arrays that are filled with what arrives, and the function that waits for it.
        """
        sends = {rank: torch.cat([_real(v).reshape(-1) for v in values]) for rank, values in given.items()}
        receives, arrived = {}, {}
        for rank, places in theirs.items():
            shapes = [(len(f), len(places), BLOCK, BLOCK, *_real(f).shape[3:]) for f in fields]
            flat = receives[rank] = _real(fields[0]).new_empty(sum(math.prod(shape) for shape in shapes))
            parts = flat.split([math.prod(shape) for shape in shapes])
            arrived[rank] = [
                _complex_like(part.view(shape), field) for part, shape, field in zip(parts, shapes, fields, strict=True)
            ]
        return arrived, self.world.start_messages(sends, receives)

    # --- whole fields ---

    def fill(self, field: Tensor) -> Tensor:
        """Return E field: the field (..., H, W) of the part with its halo filled from the owners. Collective."""
        return self._copied(field, self.parts, self.parts[self.world.rank], torch.zeros_like(field))

    def add(self, partial: Tensor) -> Tensor:
        """Return E^H partial: sums over ranks (..., H, W) on the tile, 0 in the halo. Collective."""
        return self._summed(partial, self.tiles)

    def sum_field(self, partial: Tensor) -> Tensor:
        """Return E E^H partial: the sum over ranks of what each has added up over its part (..., H, W). Collective."""
        return self.fill(self.add(partial)) if self.relayed else self._summed(partial, self.parts)

    def _summed(self, partial: Tensor, into: list[Rect]) -> Tensor:
        """Return the sum over ranks on this rank's rectangle of `into`, added in the order of ranks. Collective."""
        me = self.world.rank
        corner = self.parts[me].corner
        sends = {r: self.parts[me] & into[r] for r in range(self.world.size) if r != me}
        receives = {r: self.parts[r] & into[me] for r in range(self.world.size) if r != me}
        arrived = self._exchange(partial, corner, sends, receives)
        total = torch.zeros_like(partial)
        for rank in range(self.world.size):
            if rank == me:
                y, x = into[me].inside(corner)
                total[..., y, x] += partial[..., y, x]
            elif rank in arrived:
                y, x = receives[rank].inside(corner)
                total[..., y, x] += arrived[rank]
        return total

    def _copied(self, field: Tensor, wanted: list[Rect], mine: Rect, out: Tensor, shift: Any = (0, 0)) -> Tensor:
        """Fill `out`, which covers the rectangle `mine`, from the owners of its pixels, and return it. Collective.

        Args:
            field: (..., H, W) of this rank's part.
            wanted: rectangle that each rank needs.
            mine: rectangle that this rank needs.
            out: (..., H, W) of `mine`, filled in place.
            shift: rows and columns by which present coordinates exceed those of the parts.
        """
        me = self.world.rank
        corner = self.parts[me].moved(*shift).corner
        tiles = [tile.moved(*shift) for tile in self.tiles]
        sends = {r: tiles[me] & wanted[r] for r in range(self.world.size) if r != me}
        receives = {r: tiles[r] & mine for r in range(self.world.size) if r != me}
        arrived = self._exchange(field, corner, sends, receives)
        own_rect = tiles[me] & mine
        if not own_rect.empty:
            arrived[me], receives[me] = field[(..., *own_rect.inside(corner))], own_rect
        for rank, values in arrived.items():
            out[(..., *receives[rank].inside(mine.corner))] = values
        return out

    def _exchange(
        self, field: Tensor, corner: tuple[int, int], sends: dict[int, Rect], receives: dict[int, Rect]
    ) -> dict[int, Tensor]:
        """Exchange rectangles of a field; return those that arrive, (..., h, w) for each rank. Collective.

        Args:
            field: (..., H, W) of this rank's part.
            corner: first pixel of the part.
            sends: rectangle that each rank is sent; empty ones are left out.
            receives: rectangle that each rank sends to this one; empty ones are left out.
        """
        out = {r: field[(..., *rect.inside(corner))].contiguous() for r, rect in sends.items() if not rect.empty}
        arrived = {
            r: field.new_empty((*field.shape[:-2], *rect.shape)) for r, rect in receives.items() if not rect.empty
        }
        self.world.start_messages(out, arrived)()
        return arrived

    def with_margin(self, field: Tensor, estimate: Estimate, reach: int) -> tuple[Tensor, Rect]:
        """Return a field with `reach` more pixels on each side, as far as the object has them, and its rectangle.

        Collective.

        Args:
            field: (L, H, W) of this rank's part.
            estimate: its object's extent is used.
            reach: pixels.
        """
        full = Rect(0, 0, *estimate.extent)
        grown_parts = [part.grown(reach) & full for part in self.parts]
        mine = grown_parts[self.world.rank]
        return self._copied(field, grown_parts, mine, field.new_empty((*field.shape[:-2], *mine.shape))), mine

    def gather_whole(self, field: Tensor, estimate: Estimate) -> Tensor:
        """Return the field (L, H, W) of the whole object, on every rank. Collective."""
        full = Rect(0, 0, *estimate.extent)
        out = field.new_empty((*field.shape[:-2], *full.shape))
        return self._copied(field, [full] * self.world.size, full, out)

    def stream(self, field: Tensor, estimate: Estimate) -> Iterator[tuple[Rect, Tensor]]:
        """Yield on rank 0 the field (L, H, W) of the whole object tile by tile, nothing on the others.

        Collective: the others must exhaust it too. Rank 0 holds one foreign tile at a time.
        """
        me = self.world.rank
        own_tile = field[(..., *self.tiles[me].inside(self.parts[me].corner))].contiguous()
        if me:
            self.world.start_messages({0: own_tile} if own_tile.numel() else {}, {})()
            return
        yield self.tiles[0], own_tile
        for rank in range(1, self.world.size):
            if not self.tiles[rank].empty:
                tile = own_tile.new_empty((*own_tile.shape[:-2], *self.tiles[rank].shape))
                self.world.start_messages({}, {rank: tile})()
                yield self.tiles[rank], tile

    # --- scalars ---

    def owned(self, estimate: Estimate) -> Tensor:
        """Return the pixels (H, W) bool of the part that this rank counts in sums: those of its tile."""
        mask = torch.zeros(estimate.object.shape[-2:], dtype=torch.bool, device=estimate.object.device)
        mask[self.tiles[self.world.rank].inside(estimate.corner)] = True
        return mask

    def sum_owned(self, values: Tensor) -> Tensor:
        """Return the sum over ranks of values that each rank has summed over the pixels that it owns. Collective."""
        return self.world.sum(values)[0]

    def max(self, values: Tensor) -> Tensor:
        """Return the elementwise maximum over ranks. Collective."""
        return self.world.max(values)[0]

    def dots(
        self, pairs: Iterable[tuple[Tensor | BlockSparseField, Tensor | BlockSparseField]], estimate: Estimate
    ) -> Tensor:
        """Return Re sum conj(a) b for several pairs, (n,) float64, each pixel counted by its owner. Collective."""
        mask = self.owned(estimate)[None]

        def counted(a: Tensor | BlockSparseField, b: Tensor | BlockSparseField) -> Tensor:
            values = product(a, b)
            owned = blocked(mask)[:, a.rows, a.columns] if isinstance(a, BlockSparseField) else mask
            owned = owned.reshape(*owned.shape, *(1,) * (values.dim() - owned.dim()))
            return torch.where(owned, values, values.new_zeros(()))

        return self.totals_of(estimate, [partial(counted, a, b) for a, b in pairs])

    # --- between epochs ---

    def adapt_parts(self, estimate: Estimate, before: tuple[int, int]) -> TiledMigration | None:
        """Adapt tiles, parts and owners after views have moved or the object has grown. Every rank must call it.

        Views that have left their rank's tile move to the rank in whose tile they are.

        Args:
            estimate: with its new extent, origin and anchors.
            before: rows and columns that were added before the first.

        Returns:
            The migration of arrays; None where nothing changes.
        """
        anchors = estimate.anchors.cpu().numpy()
        old = TiledMigration(self, before)
        tiles = tiles_of(self.cells, estimate.origin, estimate.extent)
        owner = self._owners_after_moves(anchors, tiles) if self.migrates else self.owner
        needed = parts_of(tiles, owner, anchors, self.window, estimate.extent)
        moved_parts = [part.moved(*before) for part in self.parts]
        enough = [rect if rect.holds(need) else need for rect, need in zip(moved_parts, needed, strict=True)]
        same = enough == self.parts and tiles == self.tiles and not any(before)
        if same and np.array_equal(owner, self.owner):
            return None
        old.to(tiles, enough, owner)
        return old

    def _owners_after_moves(self, anchors: np.ndarray, tiles: list[Rect]) -> np.ndarray:
        """Return the owner (N,) of each view, changed where its window's middle is outside of its owner's tile."""
        middle = anchors + np.array(self.window) // 2
        edges = np.array(tiles)
        by_owner = edges[self.owner]
        away = ((middle < by_owner[:, :2] - STRAY) | (middle >= by_owner[:, 2:] + STRAY)).any(1)
        owner = self.owner.copy()
        for view in np.flatnonzero(away):
            at = ((middle[view] >= edges[:, :2]) & (middle[view] < edges[:, 2:])).all(1)
            owner[view] = int(np.flatnonzero(at)[0])
        return owner


class TiledMigration(Handover):
    """Transfer of arrays from the former parts and owners to the new ones. Every rank must take part.

    Args:
        layout: with the former parts and owners.
        before: rows and columns that were added before the object's first.
    """

    def __init__(self, layout: Tiled, before: tuple[int, int]) -> None:
        self.layout, self.before = layout, before

    def to(self, tiles: list[Rect], parts: list[Rect], owner: np.ndarray) -> None:
        """Set the new tiles, parts and owners of the layout.

        Args:
            tiles: of each rank, in order of rank.
            parts: of each rank, in order of rank.
            owner: (N,) int64, rank of each view.
        """
        layout = self.layout
        self._old = Tiled.__new__(Tiled)
        self._old.world, self._old.tiles, self._old.parts = layout.world, layout.tiles, layout.parts
        super().__init__(layout.world, layout.owner, owner)
        self.new, self._parts = parts[layout.world.rank], parts
        layout.set_parts(tiles, parts)
        if not np.array_equal(owner, layout.owner):
            layout.assign(owner)

    def carry(self, field: Tensor, outside: float) -> Tensor:
        """Return an array of the old part on the new one. Collective.

        Args:
            field: (L, h, w) on the old part.
            outside: value where the object has grown.
        """
        out = field.new_full((*field.shape[:-2], *self.new.shape), outside)
        return self._old._copied(field, self._parts, self.new, out, self.before)


def _real(values: Tensor) -> Tensor:
    return torch.view_as_real(values) if values.is_complex() else values


def _complex_like(values: Tensor, like: Tensor) -> Tensor:
    return torch.view_as_complex(values) if like.is_complex() else values
