"""Loading of this rank's views and their patterns, chunk by chunk, while those of the next batch are being read.

B       views of a batch, over all ranks, or of a chunk
h, w    window pixels
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from itertools import repeat

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed.devices import sent
from ptymesh.distributed.exact import brightest
from ptymesh.distributed.layouts.layout import Migration, Replicated
from ptymesh.distributed.layouts.tiled import Tiled
from ptymesh.estimate import Estimate
from ptymesh.measurement import Measurement, evenly_spread
from ptymesh.physics.backend import BatchCache, Chunk
from ptymesh.physics.operators import Views, ViewValues, ViewWindows, values_for_views
from ptymesh.physics.resample import corner_crop
from ptymesh.problem.batch import Batch
from ptymesh.problem.chunk_sizes import ChunkSizes, WaveUse
from ptymesh.problem.local_views import LocalViewIndex
from ptymesh.problem.setup import Setup
from ptymesh.storage.memory_budget import MemoryBudget, stored
from ptymesh.storage.patterns import Patterns
from ptymesh.unknowns import Unknown

#: Largest number of views, and of bytes, that are read together if only sums over views are wanted.
SLAB, SLAB_BYTES = 64, 4 << 20
#: Number of views from which the magnitude of sums is estimated.
SAMPLE = 256


def own_patterns(measurement: Measurement, layout: Replicated | Tiled, memory: MemoryBudget) -> Patterns:
    """Return the patterns of this rank's views, read slab by slab and kept in their own dtype.

    Args:
        measurement: the scan.
        layout: which rank owns which views.
        memory: limits of memory and disk, which decide where the patterns are kept.
    """
    most = int(np.bincount(layout.owner, minlength=layout.world.size).max())
    return stored(measurement.patterns, layout.own, most, layout.world.device, memory)


class ViewLoader:
    """Loader of this rank's views and their patterns.

    Args:
        setup: what all parts of the problem share.
        measurement: the scan.
        patterns: of this rank's views (`own_patterns`).
    """

    def __init__(self, setup: Setup, measurement: Measurement, patterns: Patterns) -> None:
        self.setup, self.views, self.patterns = setup, measurement.views, patterns
        #: (N, 2) float64, positions as measured, in pixels of the running problem, for operators of the model.
        self.measured_positions = torch.as_tensor(measurement.positions, dtype=torch.float64).to(setup.device)
        index = measurement.scan_index
        #: (N,) int64, number of the scan that each view is of; None for a single scan.
        self.scan_index = None if index is None else torch.from_numpy(index).to(setup.device)
        self.scan_count = measurement.scans
        self.mask = torch.as_tensor(measurement.mask, device=setup.device)
        #: Views of the next batch, if known: their patterns are read while this batch is computed.
        self.next_views = np.empty(0, dtype=np.int64)
        self.chunk_sizes = ChunkSizes(setup, patterns)
        #: Finds this rank's views of a batch.
        self.local_views = LocalViewIndex(setup.layout, setup.real, setup.settings)
        #: Called after the last border view of a sweep has been processed, as other ranks wait for the sums.
        self.on_border_swept: Callable[[], None] | None = None
        #: Norm of the strongest exit wave and largest count of a pixel of some views, which set the steps of sums.
        self.brightest = brightest(self.sampled(), self.mask, setup.world)

    def coarse(self, setup: Setup, c: int) -> ViewLoader:
        """Return the loader of the inner 1/c of the detector."""
        loader = copy(self)
        loader.setup, loader.local_views = setup, LocalViewIndex(setup.layout, setup.real, setup.settings)
        loader.patterns, loader.mask = self.patterns.cropped(c), corner_crop(self.mask, c)
        loader.chunk_sizes = ChunkSizes(setup, loader.patterns)
        loader.chunk_sizes.limit = self.chunk_sizes.limit
        loader.measured_positions = self.measured_positions / c
        return loader

    def follow_settings(self) -> None:
        """Sweep views in the order of the setup's settings, which have changed."""
        self.local_views = LocalViewIndex(self.setup.layout, self.setup.real, self.setup.settings)

    def begin_epoch(self, estimate: Estimate) -> None:
        """Store the anchors of this epoch.

        Raises:
            BadInput: a window leaves the object.
        """
        self.local_views.begin_epoch(estimate, self.setup.model.reach)
        self.chunk_sizes.begin_epoch()

    def hand_over(self, move: Migration) -> None:
        """Send patterns to the ranks that now own their views. Collective."""
        self.local_views.announce_batches(())
        move.carry_patterns(self.patterns, self.setup.device)

    # --- patterns alone ---

    def sampled(self) -> Iterator[Tensor]:
        """Yield this rank's patterns among those of SAMPLE views from all over the scan, a few at a time.

        The magnitudes that are expected of sums are estimated from them, which saves reading all.
        """
        views = evenly_spread(self.views, SAMPLE)
        return self.counted(self.setup.layout.local(self.setup.layout.local_views(views)))

    def counted(self, rows: np.ndarray) -> Iterator[Tensor]:
        """Yield this rank's patterns of these rows, a few at a time."""
        h, w = self.setup.window
        for counts in self.patterns.sweep(rows, max(1, min(SLAB, SLAB_BYTES // (h * w * torch.float64.itemsize)))):
            self.setup.world.heartbeat.moves += 1
            yield counts

    # --- chunks ---

    def fill_halos(self, estimate: Estimate) -> dict[str, Tensor]:
        """Return the arrays that windows are cut from, of the object and of tiled unknowns, by name. Collective.

        They are stale once an unknown has been written to.
        """
        layout = self.setup.layout
        of_pieces = [(one.name, f"unknown {one.name}") for one in self.setup.model.tiled]
        filled = {name: layout.fill_field_halo(estimate.others[name], key) for name, key in of_pieces}
        return {"object": layout.fill_halo(estimate.object), **filled}

    def chunks(
        self,
        estimate: Estimate,
        views: np.ndarray,
        with_counts: bool = True,
        waves: WaveUse = "used",
        steps: bool = False,
        filled: Mapping[str, Tensor] | None = None,
    ) -> Iterator[Chunk]:
        """Yield those of these views that this rank owns, in chunks that fit the cache. Collective.

        First come the views whose sums other ranks wait for, then those that are swept while these sums are sent.

        Args:
            estimate: the unknowns.
            views: global indices.
            with_counts: False to leave patterns out.
            waves: "used" if waves of a chunk are used outside of the pass that adds them up; "kept" if that pass keeps
                them for a second sweep; "dropped" if not.
            steps: True if the pass also finds steps of the views' positions and weights.
            filled: what `fill_halos` returned; None to call it.
        """
        self.setup.follow_slices(estimate)
        filled = self.fill_halos(estimate) if filled is None else filled
        other = None if filled["object"] is estimate.object else filled["object"]
        local_views = self.local_views.of(estimate, views)
        integer_positions = self.integer_positions(estimate, views)
        size = self.chunk_sizes.most_views(estimate, waves, steps, integer_positions)
        border, sizes = local_views.border, self.chunk_sizes.cut(local_views.views, local_views.border, size)
        self.chunk_sizes.last_largest = max(sizes, default=1)
        cache, saturation = BatchCache(), self.setup.model.saturation
        background_of_scan = estimate.background if estimate.has_own_backgrounds else (estimate.background,)
        backgrounds = [self.setup.model.counts_without_light(one, estimate.others) for one in background_of_scan]
        pieces = (
            [local_views.values]
            if len(sizes) == 1
            else [*zip(*(v.split(sizes) for v in local_views.values), strict=True)]
        )
        swept: Iterable[tuple[Tensor, Tensor | None]]
        if not with_counts:
            swept = repeat((self.mask[None, :0], None))
        elif self.patterns.fetched:
            swept = self._fetched(local_views.views, sizes, size)
        else:
            swept = (self.patterns.lying(rows) for _, rows, *_ in pieces)
        views_done = 0
        for (chunk_views, *of_views), (counts, places) in zip(pieces, swept, strict=False):
            if views_done == border and self.on_border_swept:
                self.on_border_swept()
            row, anchors, fractions, weights = of_views
            setting = self._setting(local_views.views, views_done)
            background = backgrounds[setting if len(backgrounds) > 1 else 0]
            fixed = (counts, self.mask, background, integer_positions, cache, places, views_done < border)
            windows = ViewWindows(chunk_views, anchors, estimate.window)
            values = self._values(estimate, windows, fractions, filled)
            views_done += chunk_views.shape[0]
            self.setup.world.heartbeat.moves += 1
            yield Chunk(chunk_views, row, anchors, fractions, weights, *fixed, values, other, setting, saturation)

    def _setting(self, views: np.ndarray, first: int) -> int:
        """Return the setting of a chunk that begins with the view at this index of a rank's views."""
        settings = self.setup.settings
        return 0 if settings is None or first >= len(views) else int(settings[views[first]])

    def _values(
        self, estimate: Estimate, windows: ViewWindows, fractions: Tensor, filled: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the unknowns of the model's pieces, as `values_for_views` gives them, with the views.

        Args:
            estimate: the unknowns.
            windows: the views (B,), and where their windows lie.
            fractions: (B, 2), sub-pixel parts of their positions.
            filled: arrays that windows are cut from.
        """
        if not self.setup.model.pieces:
            return {}
        values = {
            one.name: values_for_views(one, filled.get(one.name, estimate[one.name]), windows, self.scan_index)
            for one in self.setup.model.unknowns
        }
        views = windows.views
        positions = estimate.positions.index_select(0, views)
        return ViewValues(values, Views(positions, fractions, self.measured_positions.index_select(0, views), views))

    def spread_over_scans(self, one: Unknown, terms: Tensor, views: Tensor) -> Tensor:
        """Return terms of a piece's unknown as they are summed over views.

        Args:
            one: the unknown.
            terms: (B, ...), as the piece's methods return them.
            views: (B,) int64, global indices.

        Returns:
            Of an unknown with a row per scan (B, S, ...), terms in the row of the view's scan and 0 elsewhere; of any
            other the terms themselves.
        """
        if not one.is_per_scan:
            return terms
        spread = terms.new_zeros((len(terms), self.scan_count, *terms.shape[1:]))
        rows = torch.arange(len(terms), device=terms.device)
        spread[rows, torch.zeros_like(views) if self.scan_index is None else self.scan_index[views]] = terms
        return spread

    def integer_positions(self, estimate: Estimate, views: np.ndarray) -> bool:
        """Return True if all views of the scan lie on whole pixels, so that nothing needs to be shifted.

        False while positions move: a rank whose own views have not moved yet must round as the others do.
        """
        return not estimate.moving and self.local_views.of(estimate, views).integer_positions

    def _fetched(self, mine: np.ndarray, sizes: list[int], size: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield the patterns of these views of this rank, a chunk at a time, while those of the next batch are read."""
        local, following = self.setup.layout.local, self.local_views.in_sweep_order(self.next_views)
        later = self.chunk_sizes.cut(following, self.local_views.bordering(following), size)
        return self.patterns.pieces(local(mine), sizes, local(following), later)

    # --- numbers of views ---

    def of_batch(self, batch: Batch, parts: list[Tensor], width: int) -> Tensor:
        """Add up what each rank has of its own views over all ranks. Collective.

        Args:
            batch: the views (B,).
            parts: tensors (b, width) of this rank's views, chunk by chunk.
            width: numbers of each view.

        Returns:
            (B, width) float64, in the order of the batch's views.
        """
        return self.setup.world.sum(self.rows(batch, parts, width))[0]

    def rows(self, batch: Batch, parts: list[Tensor], width: int) -> Tensor:
        """Put the values of this rank's views in the order of the batch's views, with 0 for all others.

        Args:
            batch: the views (B,).
            parts: tensors (b, width) of this rank's views, chunk by chunk.
            width: numbers of each view.

        Returns:
            (B, width) float64.
        """
        values = torch.zeros(len(batch.views), width, dtype=torch.float64, device=self.setup.device)
        if parts:
            mine = sent(self.local_views.places(batch.views), self.setup.device)
            # + 0.0 removes negative zeros, which a sum over ranks would make positive.
            values[mine] = torch.cat(parts).to(values.dtype) + 0.0
        return values
