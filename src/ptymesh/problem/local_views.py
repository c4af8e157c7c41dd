"""This rank's views of a batch: which they are, in what order they are swept, and where their windows lie.

N, B    views, views of a batch over all ranks;  n  those of this rank
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed.devices import sent
from ptymesh.distributed.layouts.boxes import Blocks, Boxes
from ptymesh.distributed.layouts.layout import Replicated
from ptymesh.distributed.layouts.tiled import Tiled
from ptymesh.estimate import Estimate, refuse_windows_outside
from ptymesh.problem.anchor_cache import AnchorCache

#: Total number of views of batches that are prepared together. Preparing a small batch alone takes three times as long,
#: as the passes between batches evict the caches.
TOGETHER = 1024


@dataclass(frozen=True)
class LocalViews:
    """A rank's own views of a batch.

    Attributes:
        views: (n,) global indices, in the order in which they are swept.
        border: number of views that are swept first, as other ranks wait for their sums.
        integer_positions: True if all positions, of any view, are whole pixels; see `AnchorCache`.
        values: indices, rows, anchors, fractions and weights, (n, ...) tensors.
    """

    views: np.ndarray
    border: int
    integer_positions: bool
    values: tuple[Tensor, ...]


class LocalViewIndex:
    """Index of this rank's views in any batch.

    Args:
        layout: which rank owns which views and pixels.
        real: dtype of fractions.
        settings: (N,) int64, views of one setting are swept together; None if all are of one.
    """

    def __init__(self, layout: Replicated | Tiled, real: torch.dtype, settings: np.ndarray | None = None) -> None:
        self.layout, self.real, self.settings = layout, real, settings
        #: Positions of windows at the start of the epoch, and the weights then.
        self._anchors: AnchorCache | None = None
        self._weights: tuple[Tensor, int] | None = None
        self._boxes = Boxes((0, 0), np.zeros((0, 4), dtype=np.int64))
        #: Views (N,) bool that are swept before others, so that sums can be sent early; None if the order is free.
        self._border: np.ndarray | None = None
        #: Batches of this epoch, the index of each, and those that have been prepared.
        self._batches: Sequence[np.ndarray] = ()
        self._place: dict[int, int] = {}
        self._ahead: dict[int, tuple[LocalViews, Blocks]] = {}

    def begin_epoch(self, estimate: Estimate, reach: int) -> None:
        """Store where windows lie, with `reach` more pixels around them.

        Raises:
            BadInput: a window leaves the object.
        """
        self._anchors = AnchorCache(estimate, self.real, self.layout)
        self._weights = estimate.weights, estimate.weights._version
        refuse_windows_outside(estimate)
        self._boxes = self.layout.window_boxes(estimate, estimate.anchors.cpu(), reach)
        self._border = self.layout.border(self._boxes)
        self.announce_batches(())

    def announce_batches(self, batches: Sequence[np.ndarray]) -> None:
        """Announce the next batches, in their order, so that several of them are prepared together."""
        self._batches, self._ahead = batches, {}
        self._place = {id(views): place for place, views in enumerate(batches)}

    def of(self, estimate: Estimate, views: np.ndarray) -> LocalViews:
        """Return those of these views that this rank owns."""
        entry = self._known(estimate, views)
        return entry[0] if entry else self._prepare(estimate, [views])[0]

    def border(self, estimate: Estimate, views: np.ndarray) -> int:
        """Return how many of these views this rank must sweep before sums can be sent."""
        entry = self._known(estimate, views)
        return entry[0].border if entry else self.bordering(self.in_sweep_order(views))

    def blocks(self, estimate: Estimate, views: np.ndarray) -> Blocks:
        """Return the blocks of this rank's part of the object that the windows of these views reach into."""
        entry = self._known(estimate, views)
        return entry[1] if entry else self.layout.touched_blocks(self._boxes, views)

    def in_sweep_order(self, views: np.ndarray) -> np.ndarray:
        """Return those of these views that this rank owns, in the order in which they are swept."""
        in_order = self._border is None and self.settings is None
        return self.layout.local_views(views) if in_order else views[self.places(views)]

    def places(self, views: np.ndarray) -> np.ndarray:
        """Return the indices of this rank's own among these views, in the order in which they are swept.

        Border views come first, and among each kind those of one setting after those of another.
        """
        local = np.flatnonzero(self.layout.owner[views] == self.layout.world.rank)
        if self.settings is not None:
            local = local[np.argsort(self.settings[views[local]], kind="stable")]
        return local if self._border is None else local[np.argsort(~self._border[views[local]], kind="stable")]

    def bordering(self, mine: np.ndarray) -> int:
        """Return how many of this rank's views `mine` must be swept before sums can be sent."""
        return len(mine) if self._border is None else int(self._border[mine].sum())

    def _cache(self, estimate: Estimate) -> AnchorCache:
        """Return the cache of windows at the start of the epoch; a new one if the estimate has other tensors."""
        if self._anchors is None or not self._anchors.known(estimate):
            self._anchors = AnchorCache(estimate, self.real, self.layout)
        return self._anchors

    def _known(self, estimate: Estimate, views: np.ndarray) -> tuple[LocalViews, Blocks] | None:
        """Return what was prepared for a batch; None for one that was not announced, or after something has moved."""
        place = self._place.get(id(views))
        if place is None or not self._holds(estimate):
            return None
        if place not in self._ahead:
            coming = self._batches[place : place + TOGETHER]
            ends = accumulate(map(len, coming))
            next_batches = coming[: max(1, sum(1 for _ in takewhile(lambda end: end <= TOGETHER, ends)))]
            blocks = self.layout.touched_blocks_of(self._boxes, next_batches)
            self._ahead = dict(enumerate(zip(self._prepare(estimate, next_batches), blocks, strict=True), place))
        return self._ahead[place]

    def _holds(self, estimate: Estimate) -> bool:
        """Return True if neither positions nor weights have changed since the epoch began."""
        if self._anchors is None or not self._anchors.holds(estimate) or self._weights is None:
            return False
        return self._weights[0] is estimate.weights and self._weights[1] == estimate.weights._version

    def _prepare(self, estimate: Estimate, batches: Sequence[np.ndarray]) -> list[LocalViews]:
        """Return this rank's views of each of several batches.

        Windows and weights of all batches are looked up in one go and split afterwards, as few large operations take
        less time than many small ones.
        """
        mine = [self.in_sweep_order(views) for views in batches]
        together = mine[0] if len(mine) == 1 else np.concatenate(mine)
        every = sent(together, self.layout.world.device)
        rows = sent(self.layout.local(together), self.layout.world.device)
        cached = self._cache(estimate)
        places, integer_positions = cached.places(estimate, every), cached.integer_positions(estimate)
        values = (every, rows, *places, estimate.weights.index_select(0, every))
        shared = [values] if len(mine) == 1 else zip(*(v.split([len(m) for m in mine]) for v in values), strict=True)
        return [LocalViews(m, self.bordering(m), integer_positions, of) for m, of in zip(mine, shared, strict=True)]
