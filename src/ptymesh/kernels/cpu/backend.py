"""The passes on a CPU: numba's loops (compiled/), with torch's FFT where these have none.

B, M, h, w   views of the chunk, modes, window pixels;  K  OPR modes

Which kernels there are for which models and chunks, `CpuBackend.table` says; the rest is left to torch (`Backend`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ptymesh.kernels.arrays import ExitInputs
from ptymesh.kernels.capabilities import (
    ALL_SLICES,
    CARRIED_ON,
    FAR_WITH_OPERATORS,
    FROM_PROBE,
    KNOWN_FAR_FIELD,
    ONE_BEAM,
    ONE_SLICE,
    PRODUCTS_WITH_OPERATORS,
    SHARED_PROBE,
    SHIFTED_BEAM,
    SHIFTED_IMAGES,
    SHIFTED_PROBES,
    SHIFTED_TO_FAR_FIELD,
    SLICES,
    WAVES,
    WITH_OPERATORS,
    Request,
)
from ptymesh.kernels.cpu import products
from ptymesh.kernels.cpu.arguments import (
    Transform,
    array_of,
    arrays_of,
    bands_of_rows,
    constants_of,
    numpy_dtype,
    strips_of,
    threads_for,
    transform_for,
    untransformed,
    views_of_strip,
)
from ptymesh.kernels.cpu.compiled import detector as compiled_detector
from ptymesh.kernels.cpu.compiled import moves as compiled_moves
from ptymesh.kernels.cpu.compiled import object as compiled_object
from ptymesh.kernels.cpu.compiled import probes as compiled_probes
from ptymesh.kernels.cpu.compiled import windows as compiled
from ptymesh.kernels.cpu.from_probe import PassesFromProbe, amplitudes_of
from ptymesh.kernels.cpu.inputs import CpuInputs, kernel_arrays_of, waves_alone
from ptymesh.kernels.cpu.operators import AroundOperators
from ptymesh.kernels.cpu.pieces import DetectorCall, pass_detector
from ptymesh.kernels.cpu.ready import make_ready, share_threads
from ptymesh.kernels.cpu.sums import record_largest
from ptymesh.kernels.fused import Beams, FusedBackend, FusedIntermediates, corners, steps_of, window_of
from ptymesh.physics import window_shifts
from ptymesh.physics.backend import Adjoints, Chunk, Task
from ptymesh.physics.background import BackgroundSums
from ptymesh.physics.elementwise import times
from ptymesh.physics.kinds import OBJECT_WEIGHT, SUMS
from ptymesh.physics.model import Intermediates, Model
from ptymesh.physics.propagate import derivatives, ifft


class CpuBackend(CpuInputs, FusedBackend):
    """The backend of CPUs, by numba.

    Args:
        dtype: complex64 or complex128.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(dtype)
        make_ready(dtype)
        products.offer(dtype)
        self.constants = constants_of(self.real, 1.0)
        no_numbers = np.zeros(0, numpy_dtype(self.real))
        no_shares = np.zeros((0, 0), no_numbers.dtype)
        #: Inputs of passes over waves that exist already.
        self._no_path = (
            (self.no_windows[0], np.zeros((0, 2), no_numbers.dtype), no_shares),
            (1, no_numbers, no_numbers, False),
        )
        from_probe, around = PassesFromProbe(self, self), AroundOperators(self, self)
        self.table = {
            ("forward", ALL_SLICES): self.forward_slices,
            ("forward", WITH_OPERATORS): around.forward,
            ("at_detector", WAVES): self.compare,
            ("apply_at_detector", KNOWN_FAR_FIELD): self.compare_far,
            ("detector", CARRIED_ON): from_probe.detector,
            ("detector", FAR_WITH_OPERATORS): self.compare_exit_waves,
            ("adjoint", ALL_SLICES): self.adjoint_of_slices,
            ("adjoint", WITH_OPERATORS): around.adjoint,
            ("sweep", FROM_PROBE): from_probe.sweep,
            ("sweep", SHARED_PROBE): self.sweep_strips,
            ("steps", FROM_PROBE): from_probe.sweep,
            ("steps", SHARED_PROBE): self.sweep_strips,
            ("recompute_waves", FROM_PROBE): from_probe.recompute_waves,
            ("illuminate", WAVES): self.illuminate_object,
            ("illumination", WITH_OPERATORS + SLICES): from_probe.illumination,
            ("position_step", SHIFTED_TO_FAR_FIELD): from_probe.position_step,
            ("position_step", SHIFTED_IMAGES): self.step_images,
            ("position_step", SHIFTED_BEAM): self.step_probe,
            ("weight_step", FROM_PROBE): from_probe.weight_step,
            ("weight_step", ONE_BEAM): self.step_weights,
            ("systems", SLICES): from_probe.systems,
            ("systems", SHIFTED_PROBES): self.systems_of_shifted_probes,
            ("systems", ONE_SLICE): self.systems_of_windows,
            ("systems", PRODUCTS_WITH_OPERATORS): around.systems,
            ("gap_products", SLICES): from_probe.gap_products,
        }

    prepare = staticmethod(share_threads)

    def keep_intermediates(
        self, intermediates: Intermediates, halves: bool = False
    ) -> Callable[[], Intermediates] | None:
        """Return what `FusedBackend` does, without arrays that hold the probes in full."""
        if isinstance(intermediates, FusedIntermediates):  # the arrays have the probes in full, whatever is stored
            intermediates.sweep_products = intermediates.kernel_arrays = None
        return super().keep_intermediates(intermediates, halves)

    # --- forward ---

    def exit_waves(self, intermediates: FusedIntermediates) -> Tensor:
        """Return a_j beams_jm S_j O, (B, M, h, w)."""
        obj, corner, beams, amplitudes = kernel_arrays_of(intermediates)
        out = torch.empty((len(corner), *beams.shape[1:]), dtype=intermediates.beams.waves.dtype)
        compiled.exit_waves(obj, corner, beams, amplitudes, out.numpy())
        return out

    def interpolated(self, chunk: Chunk, obj: Tensor, window: tuple[int, int]) -> Tensor:
        """Return the object at bilinear positions, (B h, w): window after window.

        Args:
            chunk: the views.
            obj: (1, H, W) complex.
            window: pixels h, w.
        """
        corner, t = corners(chunk)
        out = torch.empty((len(t), *window), dtype=obj.dtype)
        numbers = torch.tensor([0, 1], dtype=t.dtype)
        compiled.interpolated(*arrays_of(obj[0], corner, t, numbers, out))
        return out.view(-1, window[1])

    def ramped(self, spectrum: Tensor, fractions: Tensor, amplitudes: Tensor, axis: int) -> Tensor:
        """Return F^H of a_j exp(-2 pi i k.f_j) spectrum_m, (B, M, h, w).

        Args:
            spectrum: (M, h, w) complex, probes in Fourier space.
            fractions: (B, 2) real, sub-pixel parts of the positions in pixels.
            amplitudes: (B,) real, amplitude of each view's beam.
            axis: 0 or 1 for the derivative along y or x, which is times 2 pi i k_axis; -1 for none.
        """
        if not self.knows_transform(window_of(spectrum)):
            return _ramped(spectrum, fractions, amplitudes, axis)
        return self.copies_of_probes(spectrum, (array_of(fractions), array_of(amplitudes), self.no_turns), axis)

    # --- the detector ---

    def compare(
        self, model: Model, chunk: Chunk, detected: Tensor, task: Task, background_sums: BackgroundSums | None = None
    ) -> Tensor:
        """Apply a task to waves on the detector, in place and in one pass.

        Args:
            model: the forward model.
            chunk: the views.
            detected: (B, M, h, w) complex, waves on the detector, overwritten.
            task: see `Backend.at_detector`.
            background_sums: sums of the background, to which the views' terms are added.

        Returns:
            (B, 6) float64, see `Backend.at_detector`.
        """
        assert detected.is_contiguous(), "waves on the detector come from a transform"
        exits = waves_alone(chunk, detected)
        far = untransformed(window_of(detected), self.real)
        return self._detector(model, chunk, exits, task, far, background_sums, detected)[1]

    def compare_far(
        self, model: Model, chunk: Chunk, waves: Tensor, task: Task, background_sums: BackgroundSums | None = None
    ) -> tuple[Tensor, Tensor]:
        """Propagate waves to the detector, apply a task there, and propagate the result back; in the far field view by
        view.

        Args:
            model: the forward model.
            chunk: the views.
            waves: (B, M, h, w) complex.
            task: see `Backend.at_detector`.
            background_sums: sums of the background, to which the views' terms are added.

        Returns:
            Waves (B, M, h, w), undefined for "evaluate"; and the columns of `at_detector`, (B, 6) float64.
        """
        return self._detector(model, chunk, waves_alone(chunk, waves), task, self.transform(waves), background_sums)

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
            background_sums: sums of the background, to which the views' terms are added.

        Returns:
            Waves (B, M, h, w), undefined for "evaluate"; and the columns of `at_detector`, (B, 6) float64.
        """
        assert isinstance(intermediates, FusedIntermediates)
        far = self.transform(intermediates.beams.waves)
        return self._detector(model, chunk, (kernel_arrays_of(intermediates), True), task, far, background_sums)

    def sweep_strips(
        self,
        model: Model,
        chunk: Chunk,
        intermediates: Intermediates,
        task: Task,
        into: Adjoints,
        keep: bool = False,
        steps: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Compute `sweep` of views that share the probe of a single slice in the far field, strip by strip, so that
        each pass finds in a cache what the last one wrote.

        They gain nothing by going from the probe to the sums one by one: passes over a strip sum faster what is summed
        over views.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: windows and waves of the views.
            task: see `Backend.at_detector`.
            into: the sums of the batch.
            keep: True if the caller uses the waves that are returned.
            steps: True if `position_step` and `weight_step` follow with these intermediates and waves.

        Returns:
            Waves (B, M, h, w), undefined without `keep`; and the columns of `at_detector`, (B, 6) float64.
        """
        assert isinstance(intermediates, FusedIntermediates)
        assert into.probe is not None and not into.shifted
        keep, far = keep or steps, self.transform(into.probe_weight)
        obj, beams = (
            self.arrays("object", intermediates.whole_object)[0],
            self.arrays("probe", intermediates.probe)[None],
        )
        n, a = array_of(chunk.anchors), amplitudes_of(chunk)
        count, shape = len(n), beams.shape[1:]
        size = min(count, views_of_strip(intermediates.probe))
        waves = intermediates.probe.new_empty((count, *shape)) if keep else intermediates.probe
        (counts, places, *planes), how, columns = self.comparison(model, chunk, task, True)
        terms, work = columns.numpy(), self.work(threads_for(count), shape)
        windows_of_strip = self.workspace("windows", size, intermediates.window, self.dtype)
        light = self.workspace("light", 1, intermediates.window, self.real)
        in_place = not keep and shape[0] == 1  # windows take the place of chi
        room = 0 if keep or in_place else size
        out = waves.numpy() if keep else self.workspace("waves", room, shape, waves.dtype)
        reached = np.zeros((bands_of_rows(), SUMS))
        by_probe = arrays_of(into.shifts, into.probe, into.probe_weight)
        squares, background_sums = 1.0, self.background_arrays(into.background)
        for views in strips_of(count, size):
            at, f = n[views], a[views]
            windows = windows_of_strip[: len(at)]
            chi = out[views] if keep else windows[:, None] if in_place else out[: len(at)]
            data = (counts, places[views], *planes)
            exits, into_sums = (obj, at, beams, f), (self.no_sums, background_sums, self.nothing_held)
            compiled_detector.detector(
                work, exits, *self._no_path, data, how, True, far.tables, chi, terms[views], *into_sums
            )
            compiled.to_probe(chi, exits, by_probe, (windows, light), reached)
            squares = max(squares, float(np.square(f).max()))
            self.add_windows(into, windows, light, at, f)
        reached[:, OBJECT_WEIGHT] *= squares
        record_largest(into, reached)
        return waves, columns

    def sweep_bytes(self, model: Model, probe: Tensor, steps: bool, whole: bool) -> int:
        """Return the bytes per view of the largest array that `sweep` without `keep` writes and reads again.

        It is 0 where a chunk of any size is swept panel by panel and no waves are kept for steps of positions
        (`sweep_strips`). With pieces of the detector what views hold is read once, and few chunks count for more.

        Args:
            model: the forward model.
            probe: (M, h, w) complex.
            steps: True if `position_step` and `weight_step` follow with these intermediates and waves.
            whole: True if all views lie on whole pixels.
        """
        finds_steps = not steps or (model.kernel is None and model.subpixel == "fourier" and not whole)
        request = Request.of(model, False, whole, self.knows_transform(window_of(probe)))
        waves = super().sweep_bytes(model, probe, steps, whole)
        if not finds_steps or self.kernel_of("sweep", request) is None:
            return waves
        return waves // 2 if model.on_light else 0

    def _detector(
        self,
        model: Model,
        chunk: Chunk,
        exit_inputs: tuple[ExitInputs, bool],
        task: Task,
        transform: Transform,
        background_sums: BackgroundSums | None = None,
        out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Apply the task to waves, in `out` if that is given, and return them and the sums of each view.

        exit_inputs: the kernel's intermediates, and True if exit waves are to be made of them.
        """
        intermediates, product = exit_inputs
        (_, *wave), count = intermediates[2].shape, len(intermediates[3])
        if out is None:  # an evaluation returns no waves
            out = torch.empty((0 if task == "evaluate" else count, *wave), dtype=self.real.to_complex())
        work, waves = self.work(threads_for(count), tuple(wave)), array_of(out)

        def call(one: DetectorCall) -> None:
            to = waves, one[2], self.no_sums, *one[3:]
            compiled_detector.detector(work, intermediates, *self._no_path, *one[:2], True, transform.tables, *to)

        return out, pass_detector(self, model, chunk, task, (tuple(wave), 1, product), call, background_sums)

    # --- adjoints ---

    def to_object(
        self, model: Model, chunk: Chunk, intermediates: FusedIntermediates, waves: Tensor, into: Adjoints
    ) -> None:
        """Add sum_j S_j^H sum_m conj(a_j beams_jm) waves_jm to the object's sums, and the same of |a_j beams_jm|^2 to
        its weight.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: windows and waves of the views.
            waves: (B, M, h, w) complex.
            into: the sums of the batch.
        """
        bilinear = model.subpixel == "bilinear"
        corner, t = arrays_of(*corners(chunk)) if bilinear else (array_of(chunk.anchors), None)
        if intermediates.index:  # slices lie one below the other
            assert into.object is not None
            corner = corner + np.array([intermediates.index * into.object.shape[1], 0], corner.dtype)
        _, _, beams, amplitudes = kernel_arrays_of(intermediates)
        count, reached, window = len(corner), np.zeros((len(corner), SUMS)), window_of(waves)
        windows = self.workspace("windows", count, window, self.dtype)
        light = self.workspace("light", min(count, len(beams)), window, self.real)
        compiled.to_windows(array_of(waves), beams, amplitudes, windows, light, reached)
        self.add_windows(into, windows, light, corner, amplitudes, t)
        reached[:, OBJECT_WEIGHT] *= max(1.0, float(np.square(amplitudes).max()))
        record_largest(into, reached)

    def illuminate_object(self, model: Model, chunk: Chunk, light: Tensor, shifts: Tensor, out: Tensor) -> None:
        """Add the illumination of the views, w_j0^2 S_j^H light at the integer anchors, to a sum.

        Args:
            model: the forward model.
            chunk: the views.
            light: (h, w) real.
            shifts: (6, 2) float64, rounding shifts.
            out: (parts, H, W) float64, changed in place.
        """
        kernel_inputs = arrays_of(light, chunk.anchors, chunk.weights[:, 0], shifts)
        compiled_object.add_light(*kernel_inputs, bands_of_rows(), array_of(out))

    def to_probe(self, intermediates: FusedIntermediates, waves: Tensor, amplitudes: Tensor, into: Adjoints) -> None:
        """Add sum_j a_j conj(S_j O) waves_jm to the probe's sums, and sum_j a_j^2 |S_j O|^2 to its weight.

        Args:
            intermediates: windows and waves of the views.
            waves: (B, M, h, w) complex.
            amplitudes: (B,) real, amplitude of each view's beam.
            into: the sums of the batch.
        """
        assert into.probe is not None
        made_of = *kernel_arrays_of(intermediates)[:3], array_of(amplitudes)
        sums, reached = arrays_of(into.shifts, into.probe, into.probe_weight), np.zeros((bands_of_rows(), SUMS))
        compiled.to_probe(array_of(waves), made_of, sums, self.no_windows, reached)
        record_largest(into, reached)

    def to_probes(self, intermediates: FusedIntermediates, waves: Tensor) -> Tensor:
        """Return conj(S_j O) waves_jm, (B, M, h, w)."""
        out = torch.empty_like(waves)
        compiled.to_probes(array_of(waves), *kernel_arrays_of(intermediates)[:2], bands_of_rows(), array_of(out))
        return out

    def to_spectrum(
        self,
        model: Model,
        chunk: Chunk,
        intermediates: FusedIntermediates,
        chi: Tensor,
        amplitudes: Tensor,
        into: Adjoints,
    ) -> None:
        """Add sum_j exp(+2 pi i k.f_j) F a_j conj(S_j O) chi_jm to the probe's sums, and sum_j a_j^2 |S_j O|^2 to its
        weight.

        Sums stay in bands until `finish`.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: windows and waves of the views.
            chi: (B, M, h, w) complex, changes of the exit waves.
            amplitudes: (B,) real, amplitude of each view's beam.
            into: the sums of the batch.
        """
        assert into.probe is not None
        transform = transform_for(window_of(chi), self.real)
        if not transform.known:
            window = intermediates.windows[:, 0]
            illumination = window.real.square() + window.imag.square()
            self.gather(model, chunk, self.to_probes(intermediates, chi), illumination, into)
            return
        obj, corner, _, _ = kernel_arrays_of(intermediates)
        work, reached = self.work(threads_for(len(chi)), chi.shape[1:]), np.zeros((len(chi), SUMS))
        copies = array_of(chunk.fractions), array_of(amplitudes), self.no_turns
        into_bands = (into.shifts.numpy(), *self.bands_of(into)[:2], reached)
        compiled_probes.to_spectrum(work, (array_of(chi), obj, corner), copies, transform.tables, into_bands)
        record_largest(into, reached)

    # --- sums of single views ---

    def step_images(
        self,
        model: Model,
        chunk: Chunk,
        obj: Tensor,
        probe: Tensor,
        opr: Tensor,
        intermediates: Intermediates,
        chi: Tensor,
    ) -> Tensor:
        """Return <d_a psi, chi> / ||d_a psi||^2 of each view along y and x, (B, 2) real, in pixels.

        In the near field derivatives are taken by transforms of eight lines of pixels at a time.

        Args:
            model: the forward model.
            chunk: the views.
            obj: (L, H, W) complex.
            probe: (M, h, w) complex.
            opr: (K, h, w) complex, variable-probe modes.
            intermediates: windows and waves of the views.
            chi: (B, M, h, w) complex, changes of the exit waves.
        """
        window = window_of(chi)
        assert isinstance(intermediates, FusedIntermediates)
        sums = torch.empty((len(chi), 5), dtype=torch.float64)
        work = self.workspace("images", threads_for(len(chi)), (compiled_moves.image_work_size(*window),), self.real)
        kernel_inputs = array_of(chi), kernel_arrays_of(intermediates), self.transform(chi).tables
        compiled_moves.moves_of_images(work, *kernel_inputs, sums.numpy())
        return steps_of(sums[:, 0:4:2], sums[:, 1:4:2], sums[:, 4], chi)

    def along_positions(self, intermediates: FusedIntermediates, chi: Tensor, by_y: Tensor, by_x: Tensor) -> Tensor:
        """Return <d_y, chi>, <d_x, chi>, ||psi||^2 of each view with d_a = -O by_a, (B, 3) float64.

        Args:
            intermediates: windows and waves of the views.
            chi: (B, M, h, w) complex, changes of the exit waves.
            by_y: (B, M, h, w) complex, derivative of the beams along y.
            by_x: (B, M, h, w) complex, derivative of the beams along x.
        """
        sums = torch.empty((len(chi), 3), dtype=torch.float64)
        arrays = array_of(chi), kernel_arrays_of(intermediates), *arrays_of(by_y, by_x)
        compiled.along_positions(*arrays, self.constants, sums.numpy())
        return sums

    def systems_of_shifted_probes(
        self, model: Model, chunk: Chunk, intermediates: Intermediates, d_object: Tensor, d_probe: Tensor, chi: Tensor
    ) -> Tensor:
        """Return ||P dO||^2, ||dP O||^2, <P dO, dP O>, <P dO, chi>, <dP O, chi> of each view, (B, 5) float64.

        Shifted directions of the probe stay in the cache view by view.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: windows and waves of the views.
            d_object: (L, H, W) complex, direction of the object.
            d_probe: (M, h, w) complex, direction of the probe.
            chi: (B, M, h, w) complex, changes of the exit waves.
        """
        assert isinstance(intermediates, FusedIntermediates)
        far = self.transform(chi)
        modes, threads = chi.shape[1], threads_for(len(chi))
        spectrum = self.spectrum(chunk, d_probe if modes == len(d_probe) else d_probe[:modes])
        obj, corner, _, amplitudes = kernel_arrays_of(intermediates)
        beams, d_beams = intermediates.beams.waves[:, :modes], chi.new_empty((threads, *chi.shape[1:]))
        made_of, work = (obj, corner, array_of(beams), amplitudes), self.work(threads, chi.shape[1:])
        direction = *arrays_of(d_object[0], spectrum, chunk.fractions), amplitudes_of(chunk)
        out = torch.empty((len(chi), 5), dtype=torch.float64)
        compiled_probes.shifted_systems(work, array_of(chi), made_of, direction, far.tables, *arrays_of(d_beams, out))
        return out

    def step_systems(
        self, intermediates: FusedIntermediates, change: Tensor, beams: Tensor, d_beams: Beams, chi: Tensor
    ) -> Tensor:
        """Return `systems` for the modes of beams and chi, (B, 5) float64.

        Args:
            intermediates: windows and waves of the views.
            change: (H', W') complex, direction of the object, at the pixels of the intermediates' object.
            beams: (1 or B, M, h, w) complex.
            d_beams: direction of the beams.
            chi: (B, M, h, w) complex, changes of the exit waves.
        """
        out = torch.empty((len(chi), 5), dtype=torch.float64)
        obj, corner, _, amplitudes = kernel_arrays_of(intermediates)
        made_of = obj, corner, array_of(beams), amplitudes
        direction = arrays_of(change, d_beams.waves, d_beams.amplitudes)
        compiled.step_systems(array_of(chi), made_of, direction, self.constants, out.numpy())
        return out


def _ramped(spectrum: Tensor, fractions: Tensor, amplitudes: Tensor, axis: int) -> Tensor:
    """Return what `CpuBackend.ramped` does, where the kernels do not know the transform."""
    window = window_of(spectrum)
    ramps = window_shifts.ramps(fractions, window) * amplitudes[:, None, None]
    if axis >= 0:
        ramps = times(ramps, derivatives(window, ramps.dtype, ramps.device)[axis])
    return ifft(times(ramps[:, None], spectrum))
