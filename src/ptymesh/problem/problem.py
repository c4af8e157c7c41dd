"""The problem that an engine works on: loader, evaluator, fields of the object, and sums over a batch.

B        views of a batch, over all ranks
h, w     window pixels

An engine gets *global* sums over the batch; which rank holds which view does not show.
"""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from dataclasses import replace

import numpy as np
import torch

from ptymesh.distributed.devices import sent
from ptymesh.distributed.layouts.layout import Migration, Replicated
from ptymesh.distributed.layouts.tiled import Tiled
from ptymesh.estimate import Estimate
from ptymesh.geometry import Geometry
from ptymesh.kernels import kernel_backend
from ptymesh.measurement import Measurement
from ptymesh.physics.backend import Backend, Task
from ptymesh.physics.model import Model
from ptymesh.physics.propagate import try_transforms
from ptymesh.problem.accumulator import Accumulator, expected_magnitudes
from ptymesh.problem.batch import Batch, Gradients
from ptymesh.problem.chunk_sizes import CHUNK_ARRAYS
from ptymesh.problem.evaluator import Evaluator
from ptymesh.problem.loader import ViewLoader, own_patterns
from ptymesh.problem.object_fields import Fields
from ptymesh.problem.setup import Setup
from ptymesh.problem.tiled_sums import TiledSums
from ptymesh.problem.view_metrics import ViewMetrics
from ptymesh.storage.memory_budget import MemoryBudget


class Problem:
    """The model, this rank's measurement and the layout in one.

    `loader` has the views and their patterns (loader.py), `evaluator` takes them through the model (evaluator.py),
    `fields` does arithmetic on fields of the object and sums over ranks (object_fields.py).

    Args:
        model: the forward model.
        measurement: the scan; this rank's views are read from it slab by slab and kept in their own dtype.
        layout: which rank owns which views and pixels; its world gives the device.
        dtype: complex64 or complex128.
        memory: limits of memory and disk for the patterns.
        halves: True if waves that are kept between sweeps are in half precision.
        own_probes: True if each scan of the measurement has a probe of its own.
    """

    def __init__(
        self,
        model: Model,
        measurement: Measurement,
        layout: Replicated | Tiled,
        dtype: torch.dtype,
        memory: MemoryBudget | None = None,
        halves: bool = False,
        own_probes: bool = False,
    ) -> None:
        device, window = layout.world.device, measurement.window
        # Read before kernels are requested, so that a thread may compile them meanwhile.
        patterns = own_patterns(measurement, layout, memory or MemoryBudget())
        # The kernels of this device, or torch's reference.
        backend = kernel_backend(device, dtype)
        setup = Setup(model, measurement.geometry, layout, backend, dtype, window, halves)
        #: Number of probes, that of the scans where each has its own.
        self.probe_count = measurement.scans if own_probes else 1
        own_backgrounds = measurement.background is not None and measurement.background.ndim == 3
        if own_probes or own_backgrounds:
            setup.settings = measurement.scan_index
        self.views = measurement.views
        #: (n,) int64, views that updates see; the others are held out.
        self.training = np.arange(measurement.views)
        #: (N, 2) positions as in the file; batches are drawn by these, even if positions move later.
        self.scan = measurement.positions
        #: (N, 2) positions before a recipe rotated them; choices made by these are the same in every orientation.
        self.unturned = measurement.positions if measurement.stored_positions is None else measurement.stored_positions
        #: (N,) int64, number of the scan that each view is of; None for a single scan.
        self.scan_index = measurement.scan_index
        #: Number of scans that the views are of.
        self.scans = measurement.scans
        if device.type != "cpu":
            try_transforms(device, dtype, window)
        self._join(setup, ViewLoader(setup, measurement, patterns), ViewMetrics(len(layout.own), device))

    def _join(self, setup: Setup, loader: ViewLoader, view_metrics: ViewMetrics) -> None:
        """Set the parts of the problem."""
        self.setup, self.loader, self.fields = setup, loader, Fields(setup)
        self.evaluator = Evaluator(setup, loader, self.fields, view_metrics)
        self.layout, self.world, self.device = setup.layout, setup.world, setup.device
        self.geometry, self.window = setup.geometry, setup.window
        self.dtype, self.real = setup.dtype, setup.real

    def coarse(self, c: int, model: Model, geometry: Geometry) -> Problem:
        """Return the problem of the inner 1/c of the detector.

        It shares owners, world and running values with this one.

        Args:
            c: coarsening, an integer.
            model: of the coarse grid.
            geometry: of the coarse grid.
        """
        window = (self.window[0] // c, self.window[1] // c)
        layout = self.layout.coarse(self.scan / c, window)
        setup, problem = replace(self.setup, model=model, geometry=geometry, layout=layout, window=window), copy(self)
        problem._join(setup, self.loader.coarse(setup, c), self.evaluator.view_metrics)
        return problem

    def split_by_scan(self) -> None:
        """Sweep views of one scan together from here on, as scans have something of their own."""
        self.setup.settings = self.scan_index
        self.loader.follow_settings()

    def give_own_backgrounds(self, estimate: Estimate) -> bool:
        """Give each of several scans a background of its own, at first that of all; return True if they shared it.

        Args:
            estimate: its background (h, w) is changed to (S, h, w).
        """
        if self.scan_index is None or estimate.has_own_backgrounds:
            return False
        estimate.background = estimate.background.expand(self.scans, -1, -1).clone()
        self.split_by_scan()
        return True

    def views_of_backgrounds(self, estimate: Estimate, views: np.ndarray) -> int | torch.Tensor:
        """Return the number of views of a batch; of each scan, (S, 1, 1), where scans have backgrounds of their own.

        Args:
            estimate: the unknowns.
            views: (B,) global indices.
        """
        if self.scan_index is None or not estimate.has_own_backgrounds:
            return len(views)
        counts = np.bincount(self.scan_index[views], minlength=self.scans).clip(min=1)
        return sent(torch.from_numpy(counts), self.device)[:, None, None]

    def with_views(self, measurement: Measurement, layout: Replicated) -> Problem:
        """Return the problem of other views of the same scan, on the same kernels and in the same memory for sums.

        This one is not used any more.

        Args:
            measurement: the other views.
            layout: which rank owns which of them.
        """
        setup, problem = replace(self.setup, layout=layout), copy(self)
        problem.views, problem.scan, problem.scan_index = (
            measurement.views,
            measurement.positions,
            measurement.scan_index,
        )
        problem.training = np.arange(measurement.views)
        problem.unturned = (
            measurement.positions if measurement.stored_positions is None else measurement.stored_positions
        )
        patterns = own_patterns(measurement, layout, MemoryBudget())
        problem._join(setup, ViewLoader(setup, measurement, patterns), ViewMetrics(len(layout.own), self.device))
        problem.fields.take_buffers(self.fields)
        return problem

    @property
    def model(self) -> Model:
        """The forward model; stages choose its fidelity, and slices may move."""
        return self.setup.model

    @model.setter
    def model(self, model: Model) -> None:
        self.setup.model = model

    @property
    def backend(self) -> Backend:
        """Passes over a chunk of views: the kernels of this device, or torch's reference."""
        return self.setup.backend

    @backend.setter
    def backend(self, backend: Backend) -> None:
        self.setup.backend = backend

    def begin_epoch(self, estimate: Estimate) -> None:
        """Store the anchors of this epoch.

        Raises:
            BadInput: a window leaves the object.
        """
        self.loader.begin_epoch(estimate)
        self.evaluator.kept_views = 0

    def accumulator(
        self,
        estimate: Estimate,
        batch: Batch,
        only: str | None = None,
        task: Task | None = None,
        keep: bool = False,
        background: bool = False,
    ) -> Accumulator:
        """Return empty sums over a batch, to which adjoints of waves are added chunk by chunk.

        Args:
            estimate: the unknowns.
            batch: the views.
            only: "object" or "probe" to sum one of them alone.
            task: "exit_wave_update" or "loss_gradient", if that makes all of the waves.
            keep: True if these waves are to be returned.
            background: True to sum the background's slope and darkness, too.
        """
        self.evaluator.kept_views = 0
        return Accumulator(self.evaluator, estimate, batch, only, task, keep, background)

    def tiled_sums(self, estimate: Estimate, batch: Batch, names: Collection[str]) -> TiledSums:
        """Return empty sums over a batch of the slopes by tiled unknowns, to which chunks are added.

        Args:
            estimate: the unknowns.
            batch: the views.
            names: of the unknowns; those that are not tiled are passed over.
        """
        blocks, views = self.loader.local_views.blocks(estimate, batch.views), len(batch.views)
        sums = TiledSums(self.setup, self.fields, estimate, names, blocks, views)
        if sums.sums:
            sums.reset(expected_magnitudes(estimate.probe, self.loader.brightest, self.model.fidelity, None))
        return sums

    def gradients(self, estimate: Estimate, batch: Batch) -> Gradients:
        """Return the sums of the batch's adjoints of chi, in one sweep: exit wave, detector, revision, adjoint.

        Collective.
        """
        sums = self.accumulator(estimate, batch, task="exit_wave_update")
        for chunk in sums.chunks():
            sums.exit_wave_update(chunk, self.evaluator.forward(estimate, chunk))
        return sums.total()

    def residual(
        self, estimate: Estimate, views: np.ndarray | None = None, each: torch.Tensor | None = None
    ) -> tuple[float, float]:
        """Return residual and R of all views, or of some. Collective.

        Args:
            estimate: the unknowns.
            views: global indices of the views; None for all.
            each: (N, 2) float64, filled with both sums of the residual for those of these views that this rank has.
        """
        return self.evaluator.residual(estimate, views, each)

    def hand_over(self, move: Migration) -> None:
        """Send patterns and metrics of views to the ranks that now own them. Collective."""
        self.backend.clear_caches()
        noted = self.evaluator.view_metrics
        noted.values = move.carry_rows(noted.values)
        self.loader.hand_over(move)

    def make_room(self) -> str:
        """Reduce the use of memory from here on, and return how in words.

        Chunks are halved, or waves of a batch are recomputed instead of kept, if they take more.

        Returns:
            Part of a sentence; empty if nothing more can be saved.
        """
        sizes, evaluator = self.loader.chunk_sizes, self.evaluator
        largest = sizes.last_largest
        if evaluator.kept_views and (2 * evaluator.kept_views > CHUNK_ARRAYS * largest or largest == 1):
            evaluator.keeps, evaluator.kept_views = False, 0
            return "it makes waves of a batch twice instead of keeping them"
        if not sizes.halve():
            return ""
        return f"it goes on with chunks of {sizes.limit} view{'s' * (sizes.limit != 1)}"
