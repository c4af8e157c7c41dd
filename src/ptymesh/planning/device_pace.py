"""Speed of this device: the time of rPIE for a batch of made-up views, with one mode and a far detector.

h, w   window pixels

The cost model (cost_model.py) says how many times as much other engines and models take.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import torch

from ptymesh.distributed.layouts.layout import Replicated
from ptymesh.distributed.world import Solo
from ptymesh.engines import RPIE
from ptymesh.estimate import BLOCK, REACH, Estimate
from ptymesh.geometry import far_field
from ptymesh.measurement import ArraySource, Measurement
from ptymesh.physics.model import Model
from ptymesh.planning.cost_model import EpochCost, EpochSize
from ptymesh.problem import Batch, Problem

#: Pixels of a thread's windows in the larger of the two batches; in the smaller one, a thread has one window.
PIXELS = 1 << 19
#: Bounds of the number of views of a thread in the larger batch.
FEWEST, MOST = 4, 64
#: Seconds for which both batches are tried in turns, and least number of turns.
TRY_S, TRIES = 0.1, 3
#: Pixels from view to view.
STEP_PX = 3


@dataclass(frozen=True)
class DevicePace:
    """Speed of a device.

    Attributes:
        rate: views per second that one of several threads sweeps, or a GPU.
        batch_s: seconds that a batch takes besides.
    """

    rate: float
    batch_s: float

    def epoch_seconds(self, cost: EpochCost, size: EpochSize, threads: int = 1) -> float:
        """Return the seconds of an epoch.

        Args:
            cost: of the engine with its model.
            size: of the epoch.
            threads: that share its views and steps.
        """
        pixels = self.rate * size.window
        return cost.epoch_work(size, threads, self.batch_s * pixels) / pixels


def measure_pace(
    window: tuple[int, int],
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.complex64,
    threads: int | None = None,
) -> DevicePace:
    """Measure the pace of windows of this size, in some 0.2 s.

    Args:
        window: (h, w).
        device: that computes.
        dtype: complex64 or complex128.
        threads: that compute at a time, as each is slower beside others; None: as many as torch has. More than these
            are never taken.
    """
    before = torch.get_num_threads()
    threads = min(threads or before, before) if torch.device(device).type == "cpu" else 1
    views, tries = min(MOST, max(FEWEST, PIXELS // (window[0] * window[1]))), 0
    best = {threads: math.inf, views * threads: math.inf}
    torch.set_num_threads(threads)
    try:
        problem, estimate = _synthetic_problem(window, views * threads, device, dtype)
        began = time.perf_counter()
        while tries < TRIES or time.perf_counter() - began < TRY_S:
            for count in best:
                best[count] = min(best[count], _seconds(problem, estimate, count))
            began, tries = began if tries else time.perf_counter(), tries + 1  # the first one compiles
    finally:
        torch.set_num_threads(before)
    few, many = best.values()
    a_view = max(many - few, 1e-9) / (views - 1)
    return DevicePace(1 / a_view, max(0.0, few - a_view))


def _synthetic_problem(
    window: tuple[int, int], views: int, device: torch.device | str, dtype: torch.dtype
) -> tuple[Problem, Estimate]:
    """Return a problem whose views lie between pixels along a diagonal, and its estimate: ones, and a disc as probe."""
    step = STEP_PX * np.arange(views)[:, None] % BLOCK
    positions = REACH + step + np.linspace(-0.3, 0.3, views)[:, None] * [1.0, -1.0]
    sides = tuple(-(-(n + 2 * REACH + BLOCK) // BLOCK) * BLOCK for n in window)
    geometry = far_field(window, 1e-10, 1.0, (1e-4, 1e-4))
    scan = Measurement(
        ArraySource(np.ones((views, *window), np.uint16)), positions, geometry, np.ones(window, dtype=bool)
    )
    model = Model.for_geometry(geometry, subpixel="fourier", dtype=dtype, device=device)
    y, x = (np.abs(np.arange(n) - n // 2) < n / 4 for n in window)
    placed = torch.from_numpy(positions).to(device)
    estimate = Estimate(
        torch.ones((1, *sides), dtype=dtype, device=device),
        torch.as_tensor(2.0 * (y[:, None] & x), dtype=dtype, device=device)[None],
        placed,
        torch.floor(placed + 0.5).long(),
        placed.clone(),
        torch.ones(views, 1, dtype=dtype.to_real(), device=device),
        torch.zeros(window, dtype=dtype.to_real(), device=device),
    )
    world = Solo(device)
    problem = Problem(model, scan, Replicated(world, positions), dtype)
    problem.begin_epoch(estimate)
    return problem, estimate


def _seconds(problem: Problem, estimate: Estimate, count: int) -> float:
    began = time.perf_counter()
    RPIE().step(problem, estimate, Batch(np.arange(count)))
    float(estimate.probe.real[0, 0, 0])  # waits for a GPU
    return time.perf_counter() - began
