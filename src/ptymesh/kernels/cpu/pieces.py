"""Passes on a CPU to a far detector with pieces between intensities and counts, and back.

B, M, h, w   views of the chunk, modes, window pixels, which may be finer than the detector's

Kernels take waves to the detector; the pieces' own methods make signals of their powers; kernels compare these with
the counts; the pieces take back what comes of that, and kernels the waves.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ptymesh.kernels.arrays import ExitInputs, RealArray
from ptymesh.kernels.cpu.arguments import array_of, threads_for, transform_for
from ptymesh.kernels.cpu.compiled import column_panels
from ptymesh.kernels.cpu.compiled import signals as compiled_signals
from ptymesh.kernels.cpu.inputs import CpuInputs, kernel_arrays_of, waves_alone
from ptymesh.kernels.fused import FusedIntermediates, window_of
from ptymesh.physics import fidelity
from ptymesh.physics.backend import Chunk, Task
from ptymesh.physics.background import BackgroundSums
from ptymesh.physics.model import Intermediates, Model


class AroundPieces:
    """Kernels for models with pieces of the detector.

    Args:
        inputs: what kernels are given.
    """

    def __init__(self, inputs: CpuInputs) -> None:
        self.inputs = inputs

    def compare_far(
        self, model: Model, chunk: Chunk, waves: Tensor, task: Task, background_sums: BackgroundSums | None = None
    ) -> tuple[Tensor, Tensor]:
        """Propagate waves to the detector, apply a task there, and propagate the result back.

        Args:
            model: the forward model.
            chunk: the views.
            waves: (B, M, h, w) complex.
            task: see `Backend.at_detector`.
            background_sums: sums of the background for "loss_gradient".

        Returns:
            Waves (B, M, h, w), undefined for "evaluate"; and the columns of `at_detector`, (B, 6) float64.
        """
        return self._compare(model, chunk, *waves_alone(chunk, waves), task, background_sums)

    def compare_exit_waves(
        self,
        model: Model,
        chunk: Chunk,
        intermediates: Intermediates,
        task: Task,
        background_sums: BackgroundSums | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Apply `apply_at_detector` to exit waves, which are made on the way.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: windows and waves of the views.
            task: see `Backend.at_detector`.
            background_sums: sums of the background for "loss_gradient".

        Returns:
            Waves (B, M, h, w), undefined for "evaluate"; and the columns of `at_detector`, (B, 6) float64.
        """
        assert isinstance(intermediates, FusedIntermediates)
        return self._compare(model, chunk, kernel_arrays_of(intermediates), True, task, background_sums)

    def _compare(
        self,
        model: Model,
        chunk: Chunk,
        made_of: ExitInputs,
        product: bool,
        task: Task,
        background_sums: BackgroundSums | None,
    ) -> tuple[Tensor, Tensor]:
        """Return what comes back of waves, or of exit waves that are made on the way, and the sums of each view."""
        (modes, h, w), real = made_of[2].shape[1:], self.inputs.real
        count, size, pixels = len(made_of[3]), column_panels.panel_pixels(h, w), (h, w)
        tables, of_detector = transform_for(pixels, real).tables, transform_for(window_of(chunk.mask), real)
        work = self.inputs.work(threads_for(count), (modes, h, w))
        planes = self.inputs.workspace("planes", count, (modes, 2 * size), real)
        S = torch.empty((count, h, w), dtype=real)
        compiled_signals.to_detector(work, made_of, product, pixels, tables, planes, _flat(S))
        response = model.response(chunk.values)
        assert response is not None
        signal = response.signal(S)
        # steps along a line need the pieces at every place that they try
        searches = task == "exit_wave_update" and model.fidelity != "amplitude"
        data, how, found = self.inputs.comparison(model, chunk, "evaluate" if searches else task, product)
        changes = torch.empty_like(signal)
        of_views = _flat(signal.contiguous()), found.numpy(), _flat(changes)
        compiled_signals.compare_signals(work, window_of(chunk.mask), data, how, of_detector.constants, of_views)
        if background_sums is not None:
            background_sums.add(signal, chunk.data)
        if task == "evaluate":
            return S.new_empty(0), found
        if searches:
            factors = fidelity.revision_through(model.fidelity, response, S, chunk.data) - 1
        elif task == "exit_wave_update":
            factors = response.shared_change(changes)
        else:
            factors = response.adjoint(changes)
        out = torch.empty((count, modes, h, w), dtype=real.to_complex())
        compiled_signals.from_detector(work, planes, _flat(factors.contiguous()), tables, out.numpy())
        return out, found


def _flat(planes: Tensor) -> RealArray:
    """Return planes (B, h, w) row after row, (B, h w)."""
    return array_of(planes).reshape(len(planes), -1)
