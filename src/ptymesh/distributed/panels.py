"""The object in panels: ranks of one machine own a panel of its rows each, and all see the whole.

N, R       views, ranks;  L, H, W  slices, object pixels;  b = BLOCK, side of a block
panel      whole rows of blocks that a rank owns: what it has of the object, and what engines remember of that

Views are dealt as in `Replicated`, so that ranks have equal shares of each batch, and each of them may reach into any
part of the object. Their windows are cut from an array that all ranks see; into it each rank writes its panel before a
sweep (`seen`). Sums over a batch end with the owner of the panel, who alone takes the engine's step there: nobody
repeats what another rank does, and nobody keeps what another rank keeps (Rajbhandari et al., SC 2020, of networks).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed.boxes import Blocks, Boxes, where
from ptymesh.distributed.common import MOST_RANKS, Areas, Common, rectangles
from ptymesh.distributed.devices import sent
from ptymesh.distributed.layout import BlockSparseField, Layout, Replicated
from ptymesh.distributed.owners import owners
from ptymesh.distributed.tiled import Tiled, TiledMigration
from ptymesh.distributed.tiles import Rect
from ptymesh.distributed.world import World
from ptymesh.estimate import BLOCK, Estimate
from ptymesh.physics.blocks import Leaf, cut_blocks

#: A panel is written as a whole where more than this share of its blocks has changed.
MOST = 0.5


@dataclass
class Seen:
    """An array that all ranks see, and what of this rank's panel is not in it yet.

    whole: (L, H, W); source: the panel that was written into it last, and its version then, as torch counts; changed:
    blocks that kernels have written since, which torch does not count; meetings: of the ranks until it was there.
    """

    whole: Tensor
    source: Tensor | None = None
    version: int = -1
    changed: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    meetings: int = -1


class Panels(Tiled):
    """Each rank owns a panel of the object, and views all over it.

    Args:
        world: the ranks.
        nominal: (N, 2) positions that decide who owns which view.
        window: (h, w).
        compact: whether batches are clusters of neighbours (see `owners`).
        owner: (N,) who owns which view instead.
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
        self._seen: dict[str, Seen] = {}
        self._coarser: Panels | None = None
        #: By name, what all ranks see of a panel that was spread, and the panel.
        self._spread: dict[str, tuple[Tensor, Tensor]] = {}

    @staticmethod
    def fit(world: World, extent: tuple[int, int]) -> bool:
        """Whether these ranks may have an object of `extent` pixels in panels."""
        return world.shares_memory and extent[0] // BLOCK >= world.size > 1 and world.size <= MOST_RANKS

    # --- who owns what ---

    def place(self, extent: tuple[int, int], origin: tuple[float, float], anchors: np.ndarray) -> Rect:
        """The panel of an object of `extent` pixels that this rank owns; anchors (N, 2)."""
        panels = cut(extent, anchors, self.window, self.world.size)
        self._extent, self._seen, self._spread = extent, {}, {}
        self.settled(panels, panels)
        return panels[self.world.rank]

    def coarse(self, nominal: np.ndarray, window: tuple[int, int]) -> Panels | Replicated:  # type: ignore[override]
        """The layout of the same views on coarser pixels."""
        c = self.window[0] // window[0]
        if -(-self._extent[0] // (c * BLOCK)) >= self.world.size:
            self._coarser = Panels(self.world, nominal, window, owner=self.owner)
            return self._coarser
        made = Replicated(self.world, nominal)
        made.assign(self.owner)
        return made

    def settle(self, estimate: Estimate, before: tuple[int, int], rows: Any = None) -> TiledMigration | None:
        """How arrays follow after the object has grown by `before` rows and columns; None where it has not."""
        if tuple(estimate.extent) == tuple(self._extent):
            return None
        move = TiledMigration(self, before)
        extent, self._extent = estimate.extent, estimate.extent
        panels = cut(extent, estimate.anchors.cpu().numpy(), self.window, self.world.size)
        self._seen, self._spread = {}, {}
        move.to(panels, panels, self.owner)
        return move

    # --- what views are cut from ---

    def here(self, estimate: Estimate, anchors: Tensor) -> Tensor:
        """Anchors (B, 2) counted from the first pixel of what windows are cut from: the whole object."""
        return anchors

    def shape(self, obj: Tensor) -> tuple[int, ...]:
        """Of what windows of this object, or of some of its slices, are cut from: (L, H, W)."""
        return (len(obj), *self._extent)

    def seen(self, panel: Tensor, name: str = "object") -> Tensor:
        """The array (L, H, W) of which this is every rank's panel. Collective.

        It lasts until the next of its name. What this rank has changed of its panel since the last time is written.
        """
        return self.world.opening(lambda: self._write(panel, name))

    def _write(self, panel: Tensor, name: str) -> Tensor:
        kept = self._seen.get(name)
        if kept is None or kept.whole.dtype != panel.dtype or len(kept.whole) != len(panel):
            whole = self.world.one_for_all((len(panel), *self._extent), panel.dtype)
            if whole is None:  # there is no room for it
                everything = Rect(0, 0, *self._extent)
                out = panel.new_empty(self.shape(panel))
                return self._copied(panel, [everything] * self.world.size, everything, out)
            kept = self._seen[name] = Seen(whole)
        if self.world.meetings == kept.meetings:  # ranks may still cut windows of what was there before
            self.world.meet()
        self.world.meet(self._refresh(kept, panel))
        kept.meetings = self.world.meetings
        return kept.whole

    def _refresh(self, kept: Seen, panel: Tensor) -> int:
        """What has changed of the panel is written; how many bytes that was."""
        tile = self.tiles[self.world.rank]
        mine = kept.whole.numpy()[:, tile.top : tile.bottom]
        known = kept.source is panel and kept.version == panel._version
        count, blocks = sum(len(rows) for rows, _ in kept.changed), panel.shape[1] * panel.shape[2] // BLOCK**2
        if not known or count > MOST * blocks:
            np.copyto(mine, panel.numpy())
            count = blocks
        else:
            for rows, columns in kept.changed:
                for top, bottom, left, right in rectangles(rows.numpy(), columns.numpy()):
                    mine[:, top:bottom, left:right] = panel.numpy()[:, top:bottom, left:right]
        kept.source, kept.version, kept.changed = panel, panel._version, []
        return count * BLOCK**2 * len(panel) * panel.element_size()

    def wrote(self, target: Tensor, version: int, rows: Tensor, columns: Tensor) -> None:
        """Blocks (n,) of this array have been written, whose version was this before."""
        for kept in self._seen.values():
            if kept.source is target and kept.version == version:
                kept.changed.append((rows, columns))
                kept.version = target._version

    def shown(self, obj: Tensor) -> Tensor:
        """The whole object (L, H, W), as it was last seen; of one on coarser pixels, too."""
        layouts = [self] if self._coarser is None else [self, self._coarser]
        kept = [layout._seen["object"] for layout in layouts if "object" in layout._seen]
        return next((seen.whole for seen in kept if seen.source is obj), obj)

    def spread(self, panel: Tensor, name: str) -> Tensor:
        """The array (L, H, W) of which this is every rank's panel, where the blocks that matter are written by now."""
        whole = self.seen(panel, f"{name} {panel.dtype}")
        self._spread[name] = whole, panel
        return whole

    def part(self, whole: Tensor) -> Tensor:
        """This rank's panel of what was spread; of other arrays, these themselves."""
        return next((panel for spread, panel in self._spread.values() if spread is whole), whole)

    # --- sums over a batch ---

    def boxes(self, estimate: Estimate, anchors: Tensor, reach: int) -> Boxes:
        """Blocks of the whole object that windows at all anchors (N, 2) reach into, and that many pixels around."""
        return Boxes.of(anchors, estimate.window, self.shape(estimate.object), reach)

    def _found(self, reached: np.ndarray) -> Blocks:
        """See the base; of the panel's blocks and of the whole object."""
        tile, device = self.tiles[self.world.rank], self.world.device
        panel = super()._found(reached[tile.top // BLOCK : tile.bottom // BLOCK])

        def places(mask: np.ndarray) -> tuple[Tensor, Tensor]:
            rows, columns = where(mask)
            return sent(rows, device), sent(columns, device)

        whole, own = places(reached > 0), places(reached >> self.world.rank & 1 > 0)
        return replace(panel, whole=whole, own=own, counted=len(panel.rows))

    def border(self, boxes: Boxes) -> np.ndarray | None:
        """None: all views are swept before sums travel."""
        return None

    def common(self, obj: Tensor, parts: int) -> Common | None:
        """Memory that all ranks see for sums of this object (L, H, W) in so many parts."""
        whole = Rect(0, 0, *self._extent)
        areas = Areas(len(obj), (whole,) * self.world.size, self.tiles[self.world.rank])
        return self.world.common(areas, parts, obj.dtype)

    def begin(self, fields: list[Tensor], blocks: Blocks) -> Callable[..., list[Any]]:
        """Nothing travels early."""
        return Layout.begin(self, fields, blocks)

    def reduce(self, fields: list[Tensor], blocks: Blocks, *others: Tensor) -> list[Any]:
        """Global sums, in one message: of the panel's touched blocks of accumulators (L, H, W) of the whole object, and
        of other tensors."""
        if blocks.whole is None:
            return list(self.world.sum(*others))
        gathered = [cut_blocks(f, *blocks.whole) for f in fields]
        summed = self.world.sum(*gathered, *others)
        first = int(torch.searchsorted(blocks.whole[0], self.tiles[self.world.rank].top // BLOCK))
        mine = [values[:, first : first + len(blocks.rows)] for values in summed[: len(fields)]]
        leaves = [Leaf(blocks.rows, blocks.columns, values=values) for values in mine]
        own = [BlockSparseField(leaf, blocks.rows, blocks.columns, self.max) for leaf in leaves]
        return [*own, *summed[len(fields) :]]

    def sum_field(self, partial: Tensor) -> Tensor:
        """The panel of the sum over ranks of what each has added up over the whole object (..., H, W)."""
        me = self.world.rank
        others = [rank for rank in range(self.world.size) if rank != me]
        sends = {r: partial[(..., *self.tiles[r].inside((0, 0)))].contiguous() for r in others}
        total = partial[(..., *self.tiles[me].inside((0, 0)))].clone()
        arrived = {r: torch.empty_like(total) for r in others}
        self.world.post(sends, arrived)()
        for rank in others:
            total += arrived[rank]
        return total


def cut(extent: tuple[int, int], anchors: np.ndarray, window: tuple[int, int], ranks: int) -> list[Rect]:
    """Panels of an object of `extent` pixels, none empty: equal shares of the rows that windows at anchors (N, 2) reach
    into, as far as rows of blocks divide."""
    height, width = extent[0] // BLOCK, extent[1]
    first = int(np.clip(anchors[:, 0].min() // BLOCK, 0, height - 1))
    after = int(np.clip(-(-(anchors[:, 0].max() + window[0]) // BLOCK), first + 1, height))
    edges = [first + round((after - first) * r / ranks) for r in range(ranks + 1)]
    edges[0], edges[-1] = 0, height
    for r in range(1, ranks):  # rows for each of those before and after
        edges[r] = min(max(edges[r], edges[r - 1] + 1), height - (ranks - r))
    return [Rect(BLOCK * top, 0, BLOCK * bottom, width) for top, bottom in pairwise(edges)]
