"""Arguments that all passes over views give to the kernels of a CPU: patterns, transforms, memory to work in.

B, M, h, w   views of the chunk, modes, window pixels
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ptymesh.kernels.arrays import (
    CopyInputs,
    DetectorInputs,
    DetectorOptions,
    ExitInputs,
    HeldArrays,
    RealArray,
    SumArrays,
)
from ptymesh.kernels.cpu.arguments import Transform, array_of, numpy_dtype, threads_for, transform_for
from ptymesh.kernels.cpu.caches import Planes
from ptymesh.kernels.cpu.compiled import column_panels
from ptymesh.kernels.cpu.compiled import detector as compiled_detector
from ptymesh.kernels.cpu.compiled import probes as compiled_probes
from ptymesh.kernels.cpu.compiled.comparison import KINDS
from ptymesh.kernels.cpu.compiled.comparison import NATIVE as NATIVE_DTYPES
from ptymesh.kernels.cpu.sums import CpuSums
from ptymesh.kernels.fused import FusedIntermediates, window_of
from ptymesh.physics.backend import Chunk, Task
from ptymesh.physics.model import Model

TASKS = {
    "evaluate": compiled_detector.EVALUATE,
    "exit_wave_update": compiled_detector.EXIT_WAVE_UPDATE,
    "loss_gradient": compiled_detector.LOSS_GRADIENT,
}
#: Dtypes of patterns that the kernel reads without conversion, by their number there.
NATIVE = [getattr(torch, name) for name in NATIVE_DTYPES]


class CpuInputs(CpuSums):
    """Arguments that the kernels of all passes over views take.

    Args:
        dtype: complex64 or complex128.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(dtype)
        self._planes = Planes()
        nothing, none = torch.zeros(0, 1, 1, dtype=self.real), np.zeros((0, 1))
        self.no_windows = nothing.to(dtype).numpy(), nothing.numpy()
        no_numbers = np.zeros(0, numpy_dtype(self.real))
        #: Sums of a pass that adds up nothing.
        self.no_sums: SumArrays = (*self.no_windows, none, none, none, none, none, none, no_numbers, none)
        #: What views hold that are taken to the detector and back at once; and no turns of their probes.
        self.nothing_held: HeldArrays = no_numbers.reshape(0, 1), no_numbers.reshape(0, 1)
        self.no_turns = no_numbers.reshape(1, 0)

    def knows_transform(self, window: tuple[int, int]) -> bool:
        """Return True if the kernels know the Fourier transform of a window."""
        return transform_for(window, self.real).known

    def comparison(
        self, model: Model, chunk: Chunk, task: Task, product: bool
    ) -> tuple[DetectorInputs, DetectorOptions, Tensor]:
        """Return `data` and `how` for the detector's kernel, and an array (B, 6) float64 for the sums of each view.

        Args:
            model: the forward model, with its fidelity.
            chunk: the views, with counts and background.
            task: see `Backend.at_detector`.
            product: True if exit waves are to be made of object and beams.
        """
        planes = chunk.cache.get("planes", chunk.background, lambda: self._planes(chunk.mask, chunk.background))
        counts, places = chunk.counts, chunk.pattern_index
        if counts.dtype not in NATIVE or not counts.is_contiguous():
            counts, places = chunk.patterns.to(self.real).contiguous(), None
        stays = places is not None  # True for an array of all patterns
        if places is None:
            places = torch.arange(counts.shape[0])
        how = (NATIVE.index(counts.dtype), product, KINDS[model.fidelity], TASKS[task])
        array = self.arrays("counts", counts) if stays else array_of(counts)
        data = (array.view(np.uint8), places.numpy(), *planes)
        return data, how, torch.empty((places.shape[0], 6), dtype=torch.float64)

    def copies_of_probes(self, spectrum: Tensor, copies: CopyInputs, axis: int = -1) -> Tensor:
        """Return copies of probes, (B, M, h, w) complex.

        Args:
            spectrum: (M, h, w) complex, probes in Fourier space.
            copies: see `compiled_probes.ramped`.
            axis: 0 or 1 for the derivative along y or x; -1 for none.
        """
        out = torch.empty((len(copies[0]), *spectrum.shape), dtype=spectrum.dtype)
        work = self.work(threads_for(len(out)), tuple(spectrum.shape))
        compiled_probes.ramped(work, array_of(spectrum), copies, axis, self.transform(spectrum).tables, out.numpy())
        return out

    def transform(self, like: Tensor) -> Transform:
        """Return the transform of waves like these (..., h, w)."""
        return transform_for(window_of(like), self.real)

    def work(self, bands: int, wave: tuple[int, ...], slices: int = 1) -> RealArray:
        """Return the workspace of a kernel that takes waves to the detector, (bands, numbers) real.

        Args:
            bands: number of threads that share the views.
            wave: modes and pixels of a view's wave, M, h, w.
            slices: number of slices.
        """
        modes, h, w = wave
        return self.workspace("work", bands, (column_panels.work_size(modes, h, w, slices),), self.real)


def kernel_arrays_of(intermediates: FusedIntermediates) -> ExitInputs:
    """Return object, corners, beams and their amplitudes, for all kernels of a chunk."""
    if intermediates.kernel_arrays is None:
        obj, corner, beams = intermediates.object, intermediates.corners, intermediates.beams
        arrays = array_of(obj), array_of(corner), array_of(beams.waves), array_of(beams.amplitudes)
        intermediates.kernel_arrays = arrays
    return intermediates.kernel_arrays


def waves_alone(chunk: Chunk, waves: Tensor) -> tuple[ExitInputs, bool]:
    """Return waves in the place of what exit waves are made of, and False: they are not; nothing else is read."""
    nothing, amplitudes = waves.new_empty((1, 1)), waves.new_empty(len(waves), dtype=waves.real.dtype)
    return (array_of(nothing), array_of(chunk.anchors), array_of(waves), array_of(amplitudes)), False
