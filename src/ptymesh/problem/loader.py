"""Who loads views: this rank's own, their patterns, chunk by chunk, those of the next batch on their way.

B       views of a batch, over all ranks, or of a chunk
h, w    window pixels
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from itertools import repeat
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed.devices import sent
from ptymesh.distributed.exact import brightest
from ptymesh.distributed.layout import Migration, Replicated
from ptymesh.distributed.tiled import Tiled
from ptymesh.estimate import Estimate
from ptymesh.measurement import Measurement
from ptymesh.physics.backend import Chunk
from ptymesh.physics.resample import corner_crop
from ptymesh.problem.batch import Batch
from ptymesh.problem.local_views import LocalViewIndex
from ptymesh.problem.setup import Setup
from ptymesh.storage.memory_budget import MemoryBudget, stored
from ptymesh.storage.patterns import Patterns

#: Bytes of one array of waves of a chunk; about ten such arrays are alive at a time, on a CPU with kernels fewer. What
#: torch does on a CPU is up to three times slower where a chunk does not fit the cache.
CHUNK_BYTES = {"cpu": 4 << 20, "cuda": 128 << 20}
#: Of such arrays, where memory is reckoned.
CHUNK_ARRAYS = 10
#: So many times as large may be what is read once in a sweep, or written and not read before the batch's second one.
KEPT_CHUNKS = 4
WaveUse = Literal["used", "kept", "dropped"]
#: What is gone through together where nothing but sums over views is wanted: so many views, or bytes, at most.
SLAB, SLAB_BYTES = 64, 4 << 20
#: Views that are looked at to know how large terms of sums are about to be.
SAMPLE = 256


def own_patterns(measurement: Measurement, layout: Replicated | Tiled, memory: MemoryBudget) -> Patterns:
    """Those of this rank's views, read slab by slab and kept in their own dtype, where this much memory and disk lets
    them be."""
    most = int(np.bincount(layout.owner, minlength=layout.world.size).max())
    return stored(measurement.patterns, layout.own, most, layout.world.device, memory)


class ViewLoader:
    """This rank's views and their patterns.

    Args:
        setup: what all parts of the problem share.
        measurement: the scan; patterns: of this rank's views (`own_patterns`).
    """

    def __init__(self, setup: Setup, measurement: Measurement, patterns: Patterns) -> None:
        self.setup, self.views, self.patterns = setup, measurement.views, patterns
        self.mask = torch.as_tensor(measurement.mask, device=setup.device)
        #: Views of the batch after this one, where that is known: their patterns are on the way while this is computed.
        self.coming = np.empty(0, dtype=np.int64)
        #: Views in a chunk at most, once memory has run out (0: as many as CHUNK_BYTES allows), and of the last sweep.
        self.chunk_limit, self.largest = 0, 1
        #: This rank's views of a batch.
        self.local_views = LocalViewIndex(setup.layout, setup.real)
        #: Views of a chunk at most, by what becomes of its waves, in this epoch.
        self._sizes_of: dict[tuple[WaveUse, bool, bool, torch.Size], int] = {}
        #: Called when the last border view of a sweep has been handed out, as other ranks wait for their sums.
        self.border_swept: Callable[[], None] | None = None
        #: Norm of the strongest exit wave and largest count of a pixel of some views, which set the steps of sums.
        self.brightest = brightest(self.sampled(), self.mask, setup.world)

    def coarse(self, setup: Setup, c: int) -> ViewLoader:
        """The loader of the inner 1/c of the detector."""
        made = copy(self)
        made.setup, made.local_views, made._sizes_of = setup, LocalViewIndex(setup.layout, setup.real), {}
        made.patterns, made.mask = self.patterns.cropped(c), corner_crop(self.mask, c)
        return made

    def begin_epoch(self, estimate: Estimate) -> None:
        """Notes the anchors of this epoch. Raises BadInput where a window would leave the object."""
        self.local_views.begin_epoch(estimate, self.setup.model.reach)
        self._sizes_of = {}

    def hand_over(self, move: Migration) -> None:
        """Patterns go to the ranks that own their views now. Collective."""
        self.local_views.deal(())
        move.carry_patterns(self.patterns, self.setup.device)

    # --- patterns alone ---

    def sampled(self) -> Iterator[Tensor]:
        """Own patterns among those of SAMPLE views from all over the scan, a few at a time: to know what to expect
        takes no reading of all."""
        views = np.unique(np.linspace(0, self.views - 1, min(SAMPLE, self.views)).round().astype(np.int64))
        return self.counted(self.setup.layout.local(self.setup.layout.mine(views)))

    def counted(self, rows: np.ndarray) -> Iterator[Tensor]:
        """Own patterns of these rows, a few at a time."""
        h, w = self.setup.window
        for counts in self.patterns.sweep(rows, max(1, min(SLAB, SLAB_BYTES // (h * w * torch.float64.itemsize)))):
            self.setup.world.heartbeat.moves += 1
            yield counts

    # --- chunks ---

    def chunks(
        self,
        estimate: Estimate,
        views: np.ndarray,
        with_counts: bool = True,
        waves: WaveUse = "used",
        steps: bool = False,
        seen: Tensor | None = None,
    ) -> Iterator[Chunk]:
        """Those of these views (global indices) that this rank owns, in chunks that fit the cache: first those whose
        sums other ranks wait for, then those that are swept while these sums travel. waves: whether waves of a chunk
        are used, or only a pass adds them up, and they are kept for a second sweep, or dropped; steps: and finds what
        views ask of their positions and weights. seen: what `Layout.seen` returned of the estimate's object, if that
        was asked already. Collective."""
        self.setup.follow_slices(estimate)
        seen = self.setup.layout.seen(estimate.object) if seen is None else seen
        other = None if seen is estimate.object else seen
        own = self.local_views.of(estimate, views)
        whole = self.whole(estimate, views)
        size = self._size(estimate, waves, steps, whole)
        border, sizes = own.border, self._sizes(len(own.views), own.border, size)
        self.largest = max(sizes, default=1)
        sweep: dict[str, tuple[Any, ...]] = {}
        pieces = [own.values] if len(sizes) == 1 else [*zip(*(v.split(sizes) for v in own.values), strict=True)]
        swept: Iterable[tuple[Tensor, Tensor | None]]
        if not with_counts:
            swept = repeat((self.mask[None, :0], None))
        elif self.patterns.fetched:
            swept = self._fetched(own.views, sizes, size)
        else:
            swept = (self.patterns.lying(rows) for _, rows, *_ in pieces)
        done = 0
        for (some, *of_views), (counts, places) in zip(pieces, swept, strict=False):
            if done == border and self.border_swept:
                self.border_swept()
            row, anchors, fractions, weights = of_views
            fixed = (counts, self.mask, estimate.background, whole, sweep, places, done < border)
            values = self._values(estimate, some)
            done += some.shape[0]
            self.setup.world.heartbeat.moves += 1
            yield Chunk(some, row, anchors, fractions, weights, *fixed, values, other)

    def _values(self, estimate: Estimate, views: Tensor) -> dict[str, Tensor]:
        """Of the unknowns of the model's operators, the rows of these views, or all of a shared one."""
        return {
            one.name: estimate[one.name].index_select(0, views) if one.scope == "view" else estimate[one.name]
            for one in self.setup.model.unknowns
        }

    def whole(self, estimate: Estimate, views: np.ndarray) -> bool:
        """Whether no view of the scan has a fraction, so that nothing needs to be shifted. Not while positions move: a
        rank whose own views have not moved yet must round as the others do."""
        return not estimate.moving and self.local_views.of(estimate, views).whole

    def _view_bytes(self, estimate: Estimate, waves: WaveUse, steps: bool, whole: bool) -> int:
        """What counts of a view against CHUNK_BYTES."""
        used = estimate.probe.numel() * estimate.probe.element_size()
        if waves == "used":
            return used
        # patterns that are fetched come chunk by chunk, which are to be on their way in good time
        read = used // len(estimate.probe) if self.patterns.fetched else self.patterns.frame_bytes // KEPT_CHUNKS
        written = used // KEPT_CHUNKS if waves == "kept" else 0
        swept = self.setup.backend.sweep_bytes(self.setup.model, estimate.probe, steps, whole)
        return max(swept, read, written)

    def _size(self, estimate: Estimate, waves: WaveUse, steps: bool, whole: bool) -> int:
        """Views of a chunk, at most."""
        case = waves, steps, whole, estimate.probe.shape
        size = self._sizes_of.get(case)
        if size is None:
            memory = CHUNK_BYTES.get(self.setup.device.type, CHUNK_BYTES["cuda"])
            size = self._sizes_of[case] = max(1, memory // self._view_bytes(estimate, waves, steps, whole))
        return min(size, self.chunk_limit or size)

    @staticmethod
    def _sizes(count: int, border: int, size: int) -> list[int]:
        """Of chunks of at most `size` views; none has border views, which are the first, and others."""
        return [min(size, n - at) for n in (border, count - border) for at in range(0, n, size)]

    def _fetched(self, mine: np.ndarray, sizes: list[int], size: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Patterns of these own views, a chunk at a time, and those of the next batch on their way."""
        local, coming = self.setup.layout.local, self.local_views.mine(self.coming)
        later = self._sizes(len(coming), self.local_views.bordering(coming), size)
        return self.patterns.pieces(local(mine), sizes, local(coming), later)

    def halve_chunks(self) -> bool:
        """Half as many views in a chunk from here on; False where the last one had a single view."""
        if self.largest == 1:
            return False
        self.chunk_limit = self.largest // 2
        return True

    # --- numbers of views ---

    def of_batch(self, batch: Batch, parts: list[Tensor], width: int) -> Tensor:
        """(B, width) float64 in the order of the batch's views, from what each rank has of its own, chunk by chunk."""
        return self.setup.world.sum(self.rows(batch, parts, width))[0]

    def rows(self, batch: Batch, parts: list[Tensor], width: int) -> Tensor:
        """(B, width) float64 in the order of the batch's views: this rank's own, chunk by chunk, 0 for all others."""
        values = torch.zeros(len(batch.views), width, dtype=torch.float64, device=self.setup.device)
        if parts:
            mine = sent(self.local_views.places(batch.views), self.setup.device)
            # no negative zeros, which a sum over ranks makes positive ones
            values[mine] = torch.cat(parts).to(values.dtype) + 0.0
        return values
