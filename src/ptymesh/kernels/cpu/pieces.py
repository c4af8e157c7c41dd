"""Passes on a CPU to a detector and back: at once, or with pieces between intensities and counts.

B, M, h, w   views of the chunk, modes, window pixels, which may be finer than the detector's

With pieces a kernel takes waves to the detector and keeps them; the pieces' own methods make signals of their powers;
another kernel compares these with the counts; the pieces take back what comes of that, and the first kernel the waves.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ptymesh.kernels.arrays import BackgroundArrays, DetectorInputs, DetectorOptions, HeldArrays, RealArray
from ptymesh.kernels.cpu.arguments import array_of, threads_for, transform_for
from ptymesh.kernels.cpu.compiled import column_panels
from ptymesh.kernels.cpu.compiled import signals as compiled_signals
from ptymesh.kernels.cpu.inputs import TASKS, CpuInputs
from ptymesh.kernels.cpu.products import filtering
from ptymesh.kernels.fused import window_of
from ptymesh.physics import fidelity
from ptymesh.physics.backend import Chunk, Task
from ptymesh.physics.background import BackgroundSums
from ptymesh.physics.model import Model

#: Arguments of the detector's kernel: data, options, sums of the views, the background's, what views hold.
DetectorCall = tuple[DetectorInputs, DetectorOptions, RealArray, BackgroundArrays, HeldArrays]


@filtering()
def pass_detector(
    inputs: CpuInputs,
    model: Model,
    chunk: Chunk,
    task: Task,
    waves: tuple[tuple[int, ...], int, bool],
    call: Callable[[DetectorCall], None],
    background_sums: BackgroundSums | None = None,
) -> Tensor:
    """Have the kernel take views to the detector, apply a task there, and bring back what comes of it.

    Args:
        inputs: what kernels are given.
        model: the forward model.
        chunk: the views.
        task: see `Backend.at_detector`.
        waves: shape (M, h, w) of a view's waves, slices, and True if exit waves are made of object and beams.
        call: calls the kernel with these arguments among its own.
        background_sums: sums of the background to which the views' terms are added.

    Returns:
        The columns of `at_detector`, (B, 6) float64.
    """
    ((modes, h, w), slices, product), response = waves, model.response(chunk.values)
    if response is None:
        data, how, columns = inputs.comparison(model, chunk, task, product)
        call((data, how, columns.numpy(), inputs.background_arrays(background_sums), inputs.nothing_held))
        return columns
    # steps along a line need the pieces at every place that they try
    searches = task == "exit_wave_update" and model.fidelity != "amplitude"
    data, how, columns = inputs.comparison(model, chunk, "evaluate" if searches else task, product)
    count, real, detector = len(columns), inputs.real, window_of(chunk.mask)
    held_waves = inputs.workspace("kept", count, (column_panels.kept_size(modes, h, w, slices),), real)

    def pass_on(planes: Tensor, task: Task) -> None:
        options = (how[0], product, how[2], TASKS[task])
        call((data, options, columns.numpy(), inputs.no_background, (held_waves, _flat(planes))))

    S = torch.empty((count, h, w), dtype=real)
    pass_on(S, "evaluate")
    signal = response.signal(S)
    changes, work = torch.empty_like(signal), inputs.work(threads_for(count), (modes, h, w))
    of_views = _flat(signal), columns.numpy(), _flat(changes)
    compiled_signals.compare_signals(work, detector, data, how, transform_for(detector, real).constants, of_views)
    if background_sums is not None:
        background_sums.add(signal, chunk.data)
    if task == "evaluate":
        return columns
    if searches:
        factors = fidelity.revision_through(model.fidelity, response, S, chunk.data) - 1
    else:
        factors = response.shared_change(changes) if task == "exit_wave_update" else response.adjoint(changes)
    pass_on(factors, "exit_wave_update")
    return columns


def _flat(planes: Tensor) -> RealArray:
    """Return planes (B, h, w) row after row, (B, h w)."""
    return array_of(planes).reshape(len(planes), -1)
