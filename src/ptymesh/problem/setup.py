"""Settings that all parts of a problem share: model, layout, backend and precision."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from ptymesh.distributed.devices import KINDS, sent
from ptymesh.distributed.layouts.layout import Replicated
from ptymesh.distributed.layouts.tiled import Tiled
from ptymesh.estimate import Estimate
from ptymesh.geometry import Geometry
from ptymesh.physics.backend import Backend
from ptymesh.physics.kinds import SUMS
from ptymesh.physics.model import Model


@dataclass
class Setup:
    """The shared settings of a problem; all its parts hold the same object, so that each uses a new model at once.

    Attributes:
        model: the forward model.
        geometry: from which it was made.
        layout: which rank owns which views and pixels; its world gives the device.
        backend: passes over a chunk of views.
        dtype: complex64 or complex128.
        window: (h, w).
        halves: True if waves that are kept between sweeps are in half precision.
        settings: (N,) int64, number of the scan that each view is of, where scans have probes or backgrounds of their
            own; else None.
    """

    model: Model
    geometry: Geometry
    layout: Replicated | Tiled
    backend: Backend
    dtype: torch.dtype
    window: tuple[int, int]
    halves: bool = False
    settings: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.world, self.device, self.real = self.layout.world, self.layout.world.device, self.dtype.to_real()
        zeros = partial(torch.zeros, dtype=torch.float64, device=self.device)
        #: Shifts, limits and the largest terms of a batch's sums, on the device.
        self.steps = zeros(SUMS, 2), zeros(SUMS), zeros(SUMS)
        #: 0 and 1: the rank was not asked to stop, or was.
        self.answers = torch.arange(2, dtype=torch.float64, device=self.device).unbind()

    def follow_slices(self, estimate: Estimate) -> None:
        """Recompute the kernel between slices if the estimate has another distance or tilt."""
        model, spacing, tilt = self.model, estimate.slice_spacing_m, estimate.tilt_rad
        if model.slice_kernel is not None and (model.slice_spacing_m, model.tilt_rad) != (spacing, tilt):
            spaced = model.spaced(self.geometry, spacing, tilt, self.dtype, "cpu")
            assert spaced.slice_kernel is not None and spaced.slice_rate is not None and spaced.tilt_rates is not None
            y, x = (sent(rates, self.device) for rates in spaced.tilt_rates)
            kernel, rate = sent(spaced.slice_kernel, self.device), sent(spaced.slice_rate, self.device)
            self.model = replace(spaced, slice_kernel=kernel, slice_rate=rate, tilt_rates=(y, x))

    def give_back(self) -> None:
        """Free memory that caches hold: there is too little."""
        self.backend.clear_caches()
        if self.device.type in KINDS:
            torch.get_device_module(self.device).empty_cache()
