"""Layout of the object in panels: each rank of one machine owns a panel of its rows, and all ranks read all of it.

N, R       views, ranks;  L, H, W  slices, object pixels;  b = BLOCK, side of a block
panel      whole rows of blocks that a rank owns: its part of the object, and of the engine's state for the object

Views are distributed as in `Replicated`, so that ranks have equal shares of each batch, and each view may reach into
any part of the object. Windows are cut from an array in shared memory, into which each rank writes its panel before a
sweep (`fill_halo`). The owner of a panel sums over ranks there and alone takes the engine's step: no rank repeats the
work or the memory of another (Rajbhandari et al., SC 2020, for networks).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed.devices import sent
from ptymesh.distributed.layouts.boxes import Blocks, Boxes, where
from ptymesh.distributed.layouts.layout import BlockSparseField, Layout, Replicated, Summed
from ptymesh.distributed.layouts.owners import owners
from ptymesh.distributed.layouts.tiled import Tiled, TiledMigration
from ptymesh.distributed.shared_sums import MOST_RANKS, SharedSums, SumAreas, rectangles
from ptymesh.distributed.tiles import Rect
from ptymesh.distributed.world import World
from ptymesh.estimate import BLOCK, Estimate
from ptymesh.physics.blocks import FieldView, cut_blocks

#: A panel is copied as a whole if more than this share of its blocks has changed.
MOST = 0.5


@dataclass
class SharedArray:
    """Array of the whole object in shared memory, and blocks of this rank's panel that are not in it yet.

    Attributes:
        whole: (L, H, W), shared by all ranks.
        source: the panel that was written into it last.
        version: torch's version counter of the panel, up to which `changed` is complete.
        changed: rows and columns of the blocks that have been written since.
        shared_barriers: number of the ranks' barriers when it was complete.
    """

    whole: Tensor
    source: Tensor | None = None
    version: int = -1
    changed: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    shared_barriers: int = -1


class Panels(Tiled):
    """Layout in which each rank owns a panel of the object, and views all over it.

    Args:
        world: the ranks.
        nominal: (N, 2) positions in pixels, from which the ownership of views follows.
        window: (h, w).
        compact: True if batches are clusters of neighbours (see `owners`).
        owner: (N,) int64, owner of each view instead.
    """

    name = "replicated"
    follows_draw = True

    def __init__(
        self,
        world: World,
        nominal: np.ndarray,
        window: tuple[int, int],
        compact: bool = False,
        owner: np.ndarray | None = None,
    ) -> None:
        Layout.__init__(self, world, owners(nominal, world.size, compact) if owner is None else owner)
        self.window, self.migrates, self.tiles = window, False, list[Rect]()
        self.in_memory = True
        self._shared_arrays: dict[str, SharedArray] = {}
        self._coarser: Panels | None = None
        #: For each name, the shared array that `fill_field_halo` returned, and this rank's panel of it.
        self._filled_fields: dict[str, tuple[Tensor, Tensor]] = {}

    @staticmethod
    def fit(world: World, extent: tuple[int, int]) -> bool:
        """Return True if these ranks can hold an object of `extent` pixels in panels."""
        return world.shares_memory and extent[0] // BLOCK >= world.size > 1 and world.size <= MOST_RANKS

    # --- ownership ---

    def place(self, extent: tuple[int, int], origin: tuple[float, float], anchors: np.ndarray) -> Rect:
        """Cut an object into panels, and return this rank's.

        Args:
            extent: sides of the object in pixels.
            origin: object pixel of the scan's zero; not used here.
            anchors: (N, 2) int64, of all views.
        """
        panels = cut(extent, anchors, self.window, self.world.size)
        self._extent, self._shared_arrays, self._filled_fields = extent, {}, {}
        self.set_parts(panels, panels)
        return panels[self.world.rank]

    def coarse(self, nominal: np.ndarray, window: tuple[int, int]) -> Panels | Replicated:  # type: ignore[override]
        """Return the layout of the same views on coarser pixels, with the same owners.

        Args:
            nominal: (N, 2) positions in coarse pixels.
            window: (h, w) in coarse pixels.

        Returns:
            Panels, or where the coarse object has fewer rows of blocks than ranks, a replicated layout.
        """
        c = self.window[0] // window[0]
        if -(-self._extent[0] // (c * BLOCK)) >= self.world.size:
            self._coarser = Panels(self.world, nominal, window, owner=self.owner)
            return self._coarser
        coarse_layout = Replicated(self.world, nominal)
        coarse_layout.assign(self.owner)
        return coarse_layout

    def adapt_parts(self, estimate: Estimate, before: tuple[int, int]) -> TiledMigration | None:
        """Cut new panels after the object has grown, and return the migration of arrays; None if it has not grown.

        Args:
            estimate: with its new extent and anchors.
            before: rows and columns that were added before the first.
        """
        if tuple(estimate.extent) == tuple(self._extent):
            return None
        move = TiledMigration(self, before)
        extent, self._extent = estimate.extent, estimate.extent
        panels = cut(extent, estimate.anchors.cpu().numpy(), self.window, self.world.size)
        self._shared_arrays, self._filled_fields = {}, {}
        move.to(panels, panels, self.owner)
        return move

    # --- arrays that windows are cut from ---

    def anchors_in_part(self, estimate: Estimate, anchors: Tensor) -> Tensor:
        """Return the anchors (B, 2) as they are: windows are cut from the whole object."""
        return anchors

    def shape(self, obj: Tensor) -> tuple[int, ...]:
        """Return the shape (L, H, W) of the array that windows of this object, or of some slices, are cut from."""
        return (len(obj), *self._extent)

    def fill_halo(self, panel: Tensor, name: str = "object") -> Tensor:
        """Return the array (L, H, W) of which each rank passes its panel. Collective.

        Only what this rank has changed of its panel since the last call is written. The array is valid until the next
        call with the same name.
        """
        return self.world.run_or_replay(lambda: self._write(panel, name))

    def _write(self, panel: Tensor, name: str) -> Tensor:
        """Update the shared array and return it; without shared memory, return an array gathered by messages."""
        stored = self._shared_arrays.get(name)
        if stored is None or stored.whole.dtype != panel.dtype or len(stored.whole) != len(panel):
            shared = self.world.allocate_shared_array((len(panel), *self._extent), panel.dtype)
            if shared is None:  # not enough shared memory
                everything = Rect(0, 0, *self._extent)
                out = panel.new_empty(self.shape(panel))
                return self._copied(panel, [everything] * self.world.size, everything, out)
            stored = self._shared_arrays[name] = SharedArray(shared)
        if (
            self.world.shared_barriers == stored.shared_barriers
        ):  # no barrier since: ranks may still cut windows of the old values
            self.world.shared_barrier()
        self.world.shared_barrier(self._refresh(stored, panel))
        stored.shared_barriers = self.world.shared_barriers
        return stored.whole

    def _refresh(self, stored: SharedArray, panel: Tensor) -> int:
        """Write what has changed of the panel into the shared array, and return the number of bytes written."""
        tile = self.tiles[self.world.rank]
        mine = stored.whole.numpy()[:, tile.top : tile.bottom]
        is_current = stored.source is panel and stored.version == panel._version
        count, blocks = sum(len(rows) for rows, _ in stored.changed), panel.shape[1] * panel.shape[2] // BLOCK**2
        if not is_current or count > MOST * blocks:
            np.copyto(mine, panel.numpy())
            count = blocks
        else:
            for rows, columns in stored.changed:
                for top, bottom, left, right in rectangles(rows.numpy(), columns.numpy()):
                    mine[:, top:bottom, left:right] = panel.numpy()[:, top:bottom, left:right]
        stored.source, stored.version, stored.changed = panel, panel._version, []
        return count * BLOCK**2 * len(panel) * panel.element_size()

    def mark_written(self, target: Tensor, version: int, rows: Tensor, columns: Tensor) -> None:
        """Record which blocks of an array have been written, so that not all of it needs to be copied to other ranks.

        Args:
            target: the array.
            version: torch's version counter of the array before the write.
            rows: (n,) int64, rows of the written blocks, counted in blocks.
            columns: (n,) int64, their columns.
        """
        for stored in self._shared_arrays.values():
            if stored.source is target and stored.version == version:
                stored.changed.append((rows, columns))
                stored.version = target._version

    def last_filled(self, obj: Tensor) -> Tensor:
        """Return the whole object (L, H, W) as `fill_halo` returned it last, also for an object on coarser pixels.

        Not collective.
        """
        layouts = [self] if self._coarser is None else [self, self._coarser]
        stored_objects = [layout._shared_arrays["object"] for layout in layouts if "object" in layout._shared_arrays]
        return next((stored.whole for stored in stored_objects if stored.source is obj), obj)

    def fill_field_halo(self, panel: Tensor, name: str) -> Tensor:
        """Return the array (L, H, W) of which each rank passes its panel. Collective.

        It is valid until the next call with the same name.
        """
        filled = self.fill_halo(panel, f"{name} {panel.dtype}")
        self._filled_fields[name] = filled, panel
        return filled

    def local_part(self, filled: Tensor) -> Tensor:
        """Return this rank's panel of an array that `fill_field_halo` returned; any other array as it is."""
        return next((panel for spread, panel in self._filled_fields.values() if spread is filled), filled)

    # --- sums over a batch ---

    def window_boxes(self, estimate: Estimate, anchors: Tensor, reach: int) -> Boxes:
        """Return the boxes of blocks of the whole object that windows reach into.

        Args:
            estimate: its window and slices are used.
            anchors: (N, 2) int64, of all views.
            reach: additional pixels around each window.
        """
        return Boxes.of(anchors, estimate.window, self.shape(estimate.object), reach)

    def _list_shared_blocks(self, reached: np.ndarray) -> Blocks:
        """Return the blocks of a batch in the panel and in the whole object, from the ranks that reach each block."""
        tile, device = self.tiles[self.world.rank], self.world.device
        panel = super()._list_shared_blocks(reached[tile.top // BLOCK : tile.bottom // BLOCK])

        def places(mask: np.ndarray) -> tuple[Tensor, Tensor]:
            rows, columns = where(mask)
            return sent(rows, device), sent(columns, device)

        all_places, own_places = places(reached > 0), places(reached >> self.world.rank & 1 > 0)
        return replace(panel, whole=all_places, own=own_places, counted=len(panel.rows))

    def border(self, boxes: Boxes) -> np.ndarray | None:
        """Return None: sums are exchanged after all views have been added."""
        return None

    def shared_sums(self, obj: Tensor, parts: int) -> SharedSums | None:
        """Return shared memory for `parts` sums of this object (L, H, W); None where there is none. Collective."""
        extent = Rect(0, 0, *self._extent)
        areas = SumAreas(len(obj), (extent,) * self.world.size, self.tiles[self.world.rank])
        return self.world.shared_sums(areas, parts, obj.dtype)

    def start_reduce(self, fields: list[Tensor], blocks: Blocks) -> Callable[..., list[Summed]]:
        """Return the function that does all of `reduce`; nothing is sent early."""
        return Layout.start_reduce(self, fields, blocks)

    def reduce(self, fields: list[Tensor], blocks: Blocks, *others: Tensor) -> list[Summed]:
        """Return sums over ranks, in one message: of accumulators on touched blocks, and of other tensors. Collective.

        Args:
            fields: accumulators (L, H, W) of the whole object.
            blocks: touched blocks of the batch.
            others: tensors of any shape.

        Returns:
            A BlockSparseField of the panel for each accumulator, then the other sums.
        """
        if blocks.whole is None:
            return list(self.world.sum(*others))
        gathered = [cut_blocks(f, *blocks.whole) for f in fields]
        summed = self.world.sum(*gathered, *others)
        first = int(torch.searchsorted(blocks.whole[0], self.tiles[self.world.rank].top // BLOCK))
        mine = [values[:, first : first + len(blocks.rows)] for values in summed[: len(fields)]]
        leaves = [FieldView(blocks.rows, blocks.columns, values=values) for values in mine]
        block_fields = [BlockSparseField(leaf, blocks.rows, blocks.columns, self.max) for leaf in leaves]
        return [*block_fields, *summed[len(fields) :]]

    def sum_field(self, partial: Tensor) -> Tensor:
        """Return this rank's panel of the sum over ranks of fields (..., H, W) of the whole object. Collective."""
        me = self.world.rank
        other_ranks = [rank for rank in range(self.world.size) if rank != me]
        sends = {r: partial[(..., *self.tiles[r].inside((0, 0)))].contiguous() for r in other_ranks}
        total = partial[(..., *self.tiles[me].inside((0, 0)))].clone()
        arrived = {r: torch.empty_like(total) for r in other_ranks}
        self.world.start_messages(sends, arrived)()
        for rank in other_ranks:
            total += arrived[rank]
        return total


def cut(extent: tuple[int, int], anchors: np.ndarray, window: tuple[int, int], ranks: int) -> list[Rect]:
    """Return the panels of an object, none of them empty.

    The rows of blocks that windows reach into are shared equally, as far as they divide.

    Args:
        extent: sides of the object in pixels.
        anchors: (N, 2) int64, of all views.
        window: (h, w).
        ranks: number of panels.
    """
    height, width = extent[0] // BLOCK, extent[1]
    first = int(np.clip(anchors[:, 0].min() // BLOCK, 0, height - 1))
    after = int(np.clip(-(-(anchors[:, 0].max() + window[0]) // BLOCK), first + 1, height))
    edges = [first + round((after - first) * r / ranks) for r in range(ranks + 1)]
    edges[0], edges[-1] = 0, height
    for r in range(1, ranks):  # leave at least one row of blocks for every panel before and after
        edges[r] = min(max(edges[r], edges[r - 1] + 1), height - (ranks - r))
    return [Rect(BLOCK * top, 0, BLOCK * bottom, width) for top, bottom in pairwise(edges)]
