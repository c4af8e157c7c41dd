"""The object in tiles: each rank holds a part of it, and only borders travel.

N, R       views, ranks;  L, H, W  slices, object pixels;  b = BLOCK, side of a block
tile       pixels that a rank owns;  part: its tile and the windows of its views, with a margin (tiles.py)
halo       pixels of a part that are another rank's

    share      E:    the halo is filled from its owners                       (`fill`)
    its adjoint E^H: the halo is added into its owners, then forgotten        (`add`)

Sums over a batch need E E^H of what each rank has added up: the owner's total, on all parts that hold the pixel. Every
rank whose part holds a pixel gets the others' shares of it directly, and adds them in the order of ranks, so that all
have the same bits: one round of messages instead of two. Where windows are much larger than tiles, so that a pixel is
held by many ranks, sums are relayed instead: every block has an owner, who adds them and gives back the whole, with
the same bits. Elementwise arithmetic on such sums keeps the halo what its owners have, so that nothing has to be filled
before windows are cut.

Views that reach blocks which others hold too are border views. Their sums start to travel (`begin`) before the interior
ones are added, which touch none of these blocks.

Ranks of one machine that share memory send no sums: each reads from the others' arrays what it adds (common.py).
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

from ptymesh.distributed.borders import block_owners, in_common, reach_into, relayed_is_less
from ptymesh.distributed.boxes import Blocks, Boxes, reached_by, where
from ptymesh.distributed.common import MOST_RANKS, Areas, Common
from ptymesh.distributed.devices import sent
from ptymesh.distributed.handover import Handover
from ptymesh.distributed.layout import BlockSparseField, Layout, product
from ptymesh.distributed.tiles import Rect, bisect, parts_of, tiles_of
from ptymesh.distributed.world import World
from ptymesh.estimate import BLOCK, Estimate
from ptymesh.physics.blocks import Leaf, blocked, cut_blocks, put_blocks

#: What arrives from each rank, one array per field, and what waits for it.
Posted = tuple[dict[int, list[Tensor]], Callable[[], None]]
#: Pixels by which the middle of a view's window must have left its rank's tile before another rank gets the view.
STRAY = 2


class Tiled(Layout):
    """Each rank holds the part of the object that its views see: views whose window has its middle in the rank's tile.

    Args:
        world: the ranks.
        nominal: (N, 2) positions that decide ownership at first.
        window: (h, w).
        owner: (N,) who owns which view instead, for good: on the coarse pixels of a problem that has owners.
    """

    name = "tiled"

    def __init__(
        self, world: World, nominal: np.ndarray, window: tuple[int, int], owner: np.ndarray | None = None
    ) -> None:
        self.window, self.migrates = window, owner is None
        #: Whether ranks read each other's sums in memory that they share.
        self.in_memory = world.shares_memory and world.size <= MOST_RANKS
        cut, self.cells = bisect(nominal + np.array(window) / 2, world.size)
        super().__init__(world, cut if owner is None else owner)
        #: Of every rank, as its part is, in pixels of the object as it is now; known once the object has been placed.
        self.tiles: list[Rect] = []

    def place(self, extent: tuple[int, int], origin: tuple[float, float], anchors: np.ndarray) -> Rect:
        """The part of an object of `extent` pixels that this rank is to hold; anchors (N, 2)."""
        tiles = tiles_of(self.cells, origin, extent)
        self.settled(tiles, parts_of(tiles, self.owner, anchors, self.window, extent))
        return self.parts[self.world.rank]

    def hold(self, parts: list[Rect]) -> Rect:
        """The part that this rank holds where those of all ranks are given, as they were in a run that goes on."""
        self.settled(self.tiles, parts)
        return parts[self.world.rank]

    def settled(self, tiles: list[Rect], parts: list[Rect]) -> None:
        """These are the tiles and the parts from here on."""
        me = self.world.rank
        self.tiles, self.parts = tiles, parts
        neighbours = [r for r in range(self.world.size) if r != me and not (parts[r] & parts[me]).empty]
        #: By rank, blocks (H/b, W/b) bool of the part that this rank holds too.
        self._common = {rank: in_common(parts[me], parts[rank]) for rank in neighbours}
        self.relayed = relayed_is_less(tiles, parts)
        self._block_owners = block_owners(tiles, parts[me])

    def coarse(self, nominal: np.ndarray, window: tuple[int, int]) -> Tiled:
        """The layout of the same views on coarser pixels; they keep their owners."""
        return Tiled(self.world, nominal, window, self.owner)

    def tile(self, estimate: Estimate) -> Rect:
        """The pixels that this rank writes into a file."""
        return self.tiles[self.world.rank]

    # --- sums over a batch ---

    def blocks(self, boxes: Boxes, views: np.ndarray) -> Blocks:
        """Blocks of the part that the windows of these views reach into, and whose sums are needed there."""
        return self.blocks_of(boxes, [views])[0]

    def blocks_of(self, boxes: Boxes, batches: Sequence[np.ndarray]) -> list[Blocks]:
        """The same of several batches, worked out together."""
        if self.in_memory:
            return [self._found(reached) for reached in reached_by(boxes, batches, self.owner, self.world.size)]
        return [
            self._travelling(lambda rank, v=views: boxes.cover(v[self.owner[v] == rank]), boxes.cover(views))  # type: ignore[misc]
            for views in batches
        ]

    def _found(self, reached: np.ndarray) -> Blocks:
        """Of one batch, where the ranks whose views reach into a block are bits of its number (H/b, W/b)."""
        me, device = self.world.rank, self.world.device
        rows, columns = where(reached > 0)
        bits = reached[rows, columns]
        others = sum(int((bits >> rank & 1).sum()) for rank in range(self.world.size) if rank != me)
        own = bits >> me & 1 > 0
        return Blocks(
            sent(rows, device),
            sent(columns, device),
            own=(sent(rows[own], device), sent(columns[own], device)),
            reached=sent(bits, device),
            counted=others,
        )

    def _travelling(self, covered: Callable[[int], np.ndarray], whole: np.ndarray) -> Blocks:
        """Blocks of a batch, and what travels of their sums; covered: those that a rank's views reach, (H/b, W/b) bool;
        whole: those that any view does."""
        me, device = self.world.rank, self.world.device
        rows, columns = where(whole)

        def places(mask: np.ndarray) -> Tensor:
            return sent(mask[rows, columns].nonzero()[0], device)

        found, arriving = Blocks(sent(rows, device), sent(columns, device)), np.zeros_like(whole)
        own = covered(me)
        block_owner = self._block_owners if self.relayed else None
        for rank, common in self._common.items():
            found.mine[rank] = places(own & (common if block_owner is None else block_owner == rank))
            theirs = covered(rank) & (common if block_owner is None else common & (block_owner == me))
            found.theirs[rank] = places(theirs)
            arriving |= theirs
            if block_owner is not None:
                given, taken = whole & common & (block_owner == me), whole & (block_owner == rank)
                found.given[rank], found.taken[rank] = places(given), places(taken)
                arriving |= given | taken
        for travels in (found.mine, found.theirs, found.given, found.taken):
            for rank in [rank for rank, some in travels.items() if not len(some)]:
                del travels[rank]
        return replace(found, shared=places(arriving))

    def common(self, obj: Tensor, parts: int) -> Common | None:
        """Memory in which all ranks see each other's sums of this object (L, H, W) in so many parts."""
        if not self.in_memory:
            return None
        return self.world.common(Areas(len(obj), tuple(self.parts), self.parts[self.world.rank]), parts, obj.dtype)

    def border(self, boxes: Boxes) -> np.ndarray | None:
        """Views (N,) bool, of these boxes, that reach blocks of this rank's part which others hold too.

        Own views besides these touch no block that travels; of others' views nothing is said (True).
        """
        if not self._common or self.in_memory:
            return None
        shared = np.logical_or.reduce(list(self._common.values()))
        border = np.ones(len(self.owner), dtype=bool)
        border[self.own] = reach_into(shared, boxes.edges[self.own])
        return border

    def begin(self, fields: list[Tensor], blocks: Blocks) -> Callable[..., list[Any]]:
        """This rank's sums on the blocks that others hold too start to travel; the other blocks may still change."""
        if blocks.reached is not None:  # there was no room for memory that is shared
            reached = np.zeros([n // BLOCK for n in fields[0].shape[1:]], dtype=np.int64)
            reached[blocks.rows.numpy(), blocks.columns.numpy()] = blocks.reached.numpy()
            blocks = self._travelling(lambda rank: reached >> rank & 1 > 0, reached > 0)
        sends = {
            rank: [cut_blocks(f, blocks.rows[places], blocks.columns[places]) for f in fields]
            for rank, places in blocks.mine.items()
        }
        return partial(self._finish, fields, blocks, self._post_blocks(sends, fields, blocks.theirs))

    def reduce(self, fields: list[Tensor], blocks: Blocks, *others: Tensor) -> list[Any]:
        """Global sums: of touched blocks of accumulators (L, H, W), whose borders travel, and of other tensors."""
        return self.begin(fields, blocks)(*others)

    def _finish(self, fields: list[Tensor], blocks: Blocks, begun: Posted, *others: Tensor) -> list[Any]:
        """What has come is added where it belongs: the accumulators themselves hold the sums, as of a rank alone."""
        arrived, wait = begun
        summed = self.world.sum(*others) if others else []
        wait()
        if len(blocks.theirs) == 1 and not (blocks.given or blocks.taken):  # of two terms the order does not matter
            ((rank, places),) = blocks.theirs.items()
            for field, values in zip(fields, arrived[rank], strict=True):
                put_blocks(field, blocks.rows[places], blocks.columns[places], values, add=True)
        else:
            self._add_in_order(fields, blocks, arrived)
        leaves = [Leaf(blocks.rows, blocks.columns, whole=field) for field in fields]
        return [BlockSparseField(leaf, blocks.rows, blocks.columns, self.max) for leaf in leaves] + summed

    def _add_in_order(self, fields: list[Tensor], blocks: Blocks, arrived: dict[int, list[Tensor]]) -> None:
        """Sums on the shared blocks, of all that have parts of them, and then what others have summed."""
        at = blocks.rows[:0] if blocks.shared is None else blocks.shared
        rows, columns = blocks.rows[at], blocks.columns[at]
        gathered = [cut_blocks(f, rows, columns) for f in fields]
        totals = [torch.zeros_like(own) for own in gathered]
        for rank in sorted({self.world.rank, *blocks.theirs}):  # every holder adds in this order
            if rank == self.world.rank:
                for total, own in zip(totals, gathered, strict=True):
                    total += own
            else:
                places = torch.searchsorted(at, blocks.theirs[rank])
                for total, values in zip(totals, arrived[rank], strict=True):
                    total[:, places] += values
        given = {rank: [t[:, torch.searchsorted(at, p)] for t in totals] for rank, p in blocks.given.items()}
        arrived, wait = self._post_blocks(given, fields, blocks.taken)
        wait()
        for rank, taken in blocks.taken.items():
            for total, values in zip(totals, arrived[rank], strict=True):
                total[:, torch.searchsorted(at, taken)] = values
        for field, total in zip(fields, totals, strict=True):
            put_blocks(field, rows, columns, total)

    def _post_blocks(self, given: dict[int, list[Tensor]], fields: list[Tensor], theirs: dict[int, Tensor]) -> Posted:
        """Starts an exchange of values (L, n, b, b), one array per field (L, H, W), by rank: what arrives is there when
        it is over."""
        sends = {rank: torch.cat([_real(v).reshape(-1) for v in values]) for rank, values in given.items()}
        receives, arrived = {}, {}
        for rank, places in theirs.items():
            shapes = [(len(f), len(places), BLOCK, BLOCK, *_real(f).shape[3:]) for f in fields]
            flat = receives[rank] = _real(fields[0]).new_empty(sum(math.prod(shape) for shape in shapes))
            parts = flat.split([math.prod(shape) for shape in shapes])
            arrived[rank] = [
                _complex_like(part.view(shape), field) for part, shape, field in zip(parts, shapes, fields, strict=True)
            ]
        return arrived, self.world.post(sends, receives)

    # --- whole fields ---

    def fill(self, field: Tensor) -> Tensor:
        """E: the field (..., H, W) of the part, the halo as its owners have it."""
        return self._copied(field, self.parts, self.parts[self.world.rank], torch.zeros_like(field))

    def add(self, partial: Tensor) -> Tensor:
        """E^H: sums over ranks (..., H, W) on the tile, the halo 0."""
        return self._summed(partial, self.tiles)

    def sum_field(self, partial: Tensor) -> Tensor:
        """E E^H: sum over ranks of what each has added up over its part of the object (..., H, W)."""
        return self.fill(self.add(partial)) if self.relayed else self._summed(partial, self.parts)

    def _summed(self, partial: Tensor, into: list[Rect]) -> Tensor:
        """Each rank's shares of the pixels of all parts, added on those of `into` in the order of ranks."""
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
        """`out` of the rectangle `mine`, filled from the owners of its pixels, who hold `field` on their parts."""
        me = self.world.rank
        corner = self.parts[me].moved(*shift).corner
        tiles = [tile.moved(*shift) for tile in self.tiles]
        sends = {r: tiles[me] & wanted[r] for r in range(self.world.size) if r != me}
        receives = {r: tiles[r] & mine for r in range(self.world.size) if r != me}
        arrived = self._exchange(field, corner, sends, receives)
        own = tiles[me] & mine
        if not own.empty:
            arrived[me], receives[me] = field[(..., *own.inside(corner))], own
        for rank, values in arrived.items():
            out[(..., *receives[rank].inside(mine.corner))] = values
        return out

    def _exchange(
        self, field: Tensor, corner: tuple[int, int], sends: dict[int, Rect], receives: dict[int, Rect]
    ) -> dict[int, Tensor]:
        """What other ranks have sent of their fields, by rank: (..., h, w) of the rectangles in `receives`."""
        out = {r: field[(..., *rect.inside(corner))].contiguous() for r, rect in sends.items() if not rect.empty}
        arrived = {
            r: field.new_empty((*field.shape[:-2], *rect.shape)) for r, rect in receives.items() if not rect.empty
        }
        self.world.post(out, arrived)()
        return arrived

    def around(self, field: Tensor, estimate: Estimate, reach: int) -> tuple[Tensor, Rect]:
        """The object's field (L, H, W) with `reach` more pixels on each side where the object has them, and where this
        is."""
        whole = Rect(0, 0, *estimate.extent)
        wanted = [part.grown(reach) & whole for part in self.parts]
        mine = wanted[self.world.rank]
        return self._copied(field, wanted, mine, field.new_empty((*field.shape[:-2], *mine.shape))), mine

    def whole(self, field: Tensor, estimate: Estimate) -> Tensor:
        """The field (L, H, W) of the whole object, on every rank."""
        whole = Rect(0, 0, *estimate.extent)
        out = field.new_empty((*field.shape[:-2], *whole.shape))
        return self._copied(field, [whole] * self.world.size, whole, out)

    def stream(self, field: Tensor, estimate: Estimate) -> Iterator[tuple[Rect, Tensor]]:
        """On the first rank, the field (L, H, W) of the whole object tile by tile, of which it holds one at a time;
        nothing on the others, who must exhaust it too."""
        me = self.world.rank
        own = field[(..., *self.tiles[me].inside(self.parts[me].corner))].contiguous()
        if me:
            self.world.post({0: own} if own.numel() else {}, {})()
            return
        yield self.tiles[0], own
        for rank in range(1, self.world.size):
            if not self.tiles[rank].empty:
                tile = own.new_empty((*own.shape[:-2], *self.tiles[rank].shape))
                self.world.post({}, {rank: tile})()
                yield self.tiles[rank], tile

    # --- scalars ---

    def owned(self, estimate: Estimate) -> Tensor:
        """Pixels (H, W) bool that this rank counts: those of its tile."""
        mask = torch.zeros(estimate.object.shape[-2:], dtype=torch.bool, device=estimate.object.device)
        mask[self.tiles[self.world.rank].inside(estimate.corner)] = True
        return mask

    def sum_owned(self, values: Tensor) -> Tensor:
        """Sum over ranks of values that each has summed over `owned` pixels."""
        return self.world.sum(values)[0]

    def max(self, values: Tensor) -> Tensor:
        """Elementwise maximum over ranks."""
        return self.world.max(values)[0]

    def dots(
        self, pairs: Iterable[tuple[Tensor | BlockSparseField, Tensor | BlockSparseField]], estimate: Estimate
    ) -> Tensor:
        """Re sum conj(a) b over the object's pixels, each counted by its owner, (n,) float64; in two messages."""
        mask = self.owned(estimate)[None]

        def counted(a: Tensor | BlockSparseField, b: Tensor | BlockSparseField) -> Tensor:
            values = product(a, b)
            owned = blocked(mask)[:, a.rows, a.columns] if isinstance(a, BlockSparseField) else mask
            owned = owned.reshape(*owned.shape, *(1,) * (values.dim() - owned.dim()))
            return torch.where(owned, values, values.new_zeros(()))

        return self.totals_of(estimate, [partial(counted, a, b) for a, b in pairs])

    # --- between epochs ---

    def settle(
        self, estimate: Estimate, before: tuple[int, int], rows: Callable[[], Any] | None = None
    ) -> TiledMigration | None:
        """How arrays follow after views have moved and the object has grown by `before` rows and columns.

        Views that have left their tile go to the tile that they are in. None where all stays as it is.
        """
        anchors = estimate.anchors.cpu().numpy()
        old = TiledMigration(self, before)
        tiles = tiles_of(self.cells, estimate.origin, estimate.extent)
        owner = self._strayed(anchors, tiles) if self.migrates else self.owner
        needed = parts_of(tiles, owner, anchors, self.window, estimate.extent)
        kept = [part.moved(*before) for part in self.parts]
        enough = [rect if rect.holds(need) else need for rect, need in zip(kept, needed, strict=True)]
        same = enough == self.parts and tiles == self.tiles and not any(before)
        if same and np.array_equal(owner, self.owner):
            return None
        old.to(tiles, enough, owner)
        return old

    def _strayed(self, anchors: np.ndarray, tiles: list[Rect]) -> np.ndarray:
        middle = anchors + np.array(self.window) // 2
        edges = np.array(tiles)
        own = edges[self.owner]
        away = ((middle < own[:, :2] - STRAY) | (middle >= own[:, 2:] + STRAY)).any(1)
        owner = self.owner.copy()
        for view in np.flatnonzero(away):
            at = ((middle[view] >= edges[:, :2]) & (middle[view] < edges[:, 2:])).all(1)
            owner[view] = int(np.flatnonzero(at)[0])
        return owner


class TiledMigration(Handover):
    """From the parts and owners that were to those that are now; every rank takes part."""

    def __init__(self, layout: Tiled, before: tuple[int, int]) -> None:
        self.layout, self.before = layout, before

    def to(self, tiles: list[Rect], parts: list[Rect], owner: np.ndarray) -> None:
        """Where all goes; from here on the layout is the new one."""
        layout = self.layout
        self._old = Tiled.__new__(Tiled)
        self._old.world, self._old.tiles, self._old.parts = layout.world, layout.tiles, layout.parts
        super().__init__(layout.world, layout.owner, owner)
        self.new, self._parts = parts[layout.world.rank], parts
        layout.settled(tiles, parts)
        if not np.array_equal(owner, layout.owner):
            layout.assign(owner)

    def carry(self, field: Tensor, outside: float) -> Tensor:
        """An array (L, h, w) of the old part on the new one, `outside` where the object has grown."""
        out = field.new_full((*field.shape[:-2], *self.new.shape), outside)
        return self._old._copied(field, self._parts, self.new, out, self.before)


def _real(values: Tensor) -> Tensor:
    return torch.view_as_real(values) if values.is_complex() else values


def _complex_like(values: Tensor, like: Tensor) -> Tensor:
    return torch.view_as_complex(values) if like.is_complex() else values
