"""What an engine may ask for: who loads views, who evaluates them, what can be done with fields, and sums over a batch.

B        views of a batch, over all ranks
h, w     window pixels

An engine gets *global* sums over the batch; which rank holds which view does not show.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np
import torch

from ptymesh.distributed.layout import Migration, Replicated
from ptymesh.distributed.tiled import Tiled
from ptymesh.estimate import Estimate
from ptymesh.geometry import Geometry
from ptymesh.kernels import kernel_backend
from ptymesh.measurement import Measurement
from ptymesh.physics.backend import Backend, Task
from ptymesh.physics.model import Model
from ptymesh.physics.propagate import try_transforms
from ptymesh.problem.accumulator import Accumulator
from ptymesh.problem.batch import Batch, Gradients
from ptymesh.problem.evaluator import Evaluator
from ptymesh.problem.fields import Fields
from ptymesh.problem.loader import CHUNK_ARRAYS, ViewLoader, own_patterns
from ptymesh.problem.setup import Setup
from ptymesh.problem.view_metrics import ViewMetrics
from ptymesh.storage.memory_budget import MemoryBudget


class Problem:
    """The model, this rank's measurement and the layout in one.

    `loader` has the views and their patterns (loader.py), `evaluator` takes them through the model (evaluator.py),
    `fields` does arithmetic on fields of the object and sums over ranks (fields.py).

    Args:
        model: the forward model.
        measurement: the scan; this rank's views are read from it slab by slab and kept in their own dtype.
        layout: who owns what; its world says where tensors live.
        dtype: complex64 or complex128.
        memory: what memory and disk the patterns may take.
        halves: whether waves that are kept between sweeps are halves.
    """

    def __init__(
        self,
        model: Model,
        measurement: Measurement,
        layout: Replicated | Tiled,
        dtype: torch.dtype,
        memory: MemoryBudget | None = None,
        halves: bool = False,
    ) -> None:
        device, window = layout.world.device, measurement.window
        # before kernels are asked for: they may be compiled while this is read, by a thread of their own
        patterns = own_patterns(measurement, layout, memory or MemoryBudget())
        # the kernels of this device, or torch's reference
        backend = kernel_backend(device, dtype)
        setup = Setup(model, measurement.geometry, layout, backend, dtype, window, halves)
        self.views = measurement.views
        #: (N, 2) positions as the file has them; batches are drawn from these, whatever moves later.
        self.scan = measurement.positions
        #: The same before a recipe turned them: what is chosen by these is chosen alike in every orientation.
        self.unturned = measurement.positions if measurement.stored_positions is None else measurement.stored_positions
        if device.type != "cpu":
            try_transforms(device, dtype, window)
        self._join(setup, ViewLoader(setup, measurement, patterns), ViewMetrics(len(layout.own), device))

    def _join(self, setup: Setup, loader: ViewLoader, view_metrics: ViewMetrics) -> None:
        """The parts of the problem from here on."""
        self.setup, self.loader, self.fields = setup, loader, Fields(setup)
        self.evaluator = Evaluator(setup, loader, self.fields, view_metrics)
        self.layout, self.world, self.device = setup.layout, setup.world, setup.device
        self.geometry, self.window = setup.geometry, setup.window
        self.dtype, self.real = setup.dtype, setup.real

    def coarse(self, c: int, model: Model, geometry: Geometry) -> Problem:
        """The problem of the inner 1/c of the detector; it shares owners, world and running values with this one."""
        window = (self.window[0] // c, self.window[1] // c)
        layout = self.layout.coarse(self.scan / c, window)
        setup, made = replace(self.setup, model=model, geometry=geometry, layout=layout, window=window), copy(self)
        made._join(setup, self.loader.coarse(setup, c), self.evaluator.view_metrics)
        return made

    @property
    def model(self) -> Model:
        """The forward model; stages choose its fidelity, and slices may move."""
        return self.setup.model

    @model.setter
    def model(self, model: Model) -> None:
        self.setup.model = model

    @property
    def backend(self) -> Backend:
        """What is done to a chunk of views: the kernels of this device, or torch's reference."""
        return self.setup.backend

    @backend.setter
    def backend(self, backend: Backend) -> None:
        self.setup.backend = backend

    def begin_epoch(self, estimate: Estimate) -> None:
        """Notes the anchors of this epoch. Raises BadInput where a window would leave the object."""
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
        """Collects adjoints of waves, chunk by chunk, into global sums over this batch; `only`: object or probe; task:
        "exit_wave_update" or "loss_gradient", where that is what makes all of the waves; keep: and waves are wanted;
        background: and what views ask of it."""
        self.evaluator.kept_views = 0
        return Accumulator(self.evaluator, estimate, batch, only, task, keep, background)

    def gradients(self, estimate: Estimate, batch: Batch) -> Gradients:
        """Sums of the batch's adjoints of chi, in one sweep: exit wave, detector, revision, adjoint."""
        sums = self.accumulator(estimate, batch, task="exit_wave_update")
        for chunk in sums.chunks():
            sums.exit_wave_update(chunk, self.evaluator.forward(estimate, chunk))
        return sums.total()

    def residual(
        self, estimate: Estimate, views: np.ndarray | None = None, each: torch.Tensor | None = None
    ) -> tuple[float, float]:
        """Residual and R of all views, or of these (`Evaluator.residual`)."""
        return self.evaluator.residual(estimate, views, each)

    def hand_over(self, move: Migration) -> None:
        """Patterns and what was noted of views go to the ranks that own these now. Collective."""
        self.backend.forget()
        noted = self.evaluator.view_metrics
        noted.values = move.carry_rows(noted.values)
        self.loader.hand_over(move)

    def make_room(self) -> str:
        """Takes less memory from here on, and says how: chunks are halved, or what a batch keeps of its waves is made
        again instead, if that is more; empty where nothing is left to do without."""
        loader, evaluator = self.loader, self.evaluator
        if evaluator.kept_views and (2 * evaluator.kept_views > CHUNK_ARRAYS * loader.largest or loader.largest == 1):
            evaluator.keeps, evaluator.kept_views = False, 0
            return "it makes waves of a batch twice instead of keeping them"
        if not loader.halve_chunks():
            return ""
        return f"it goes on with chunks of {loader.chunk_limit} view{'s' * (loader.chunk_limit != 1)}"
