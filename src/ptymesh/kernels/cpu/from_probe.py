"""Passes on a CPU that take each view from the probe to the detector and back to the sums in one go.

B, M, h, w   views of the chunk, modes, window pixels;  L, H, W  slices, object pixels

One thread has a view, and what it makes of it stays in its core's cache: waves between all slices, too.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ptymesh.kernels.arrays import Array, ComplexArray, ExitInputs, IntArray, PathInputs, RealArray, ShiftInputs
from ptymesh.kernels.capabilities import varies
from ptymesh.kernels.cpu import panels
from ptymesh.kernels.cpu.arguments import array_of, arrays_of, numpy_dtype, strips_of, threads_for, views_of_strip
from ptymesh.kernels.cpu.caches import Kernels
from ptymesh.kernels.cpu.compiled import column_panels
from ptymesh.kernels.cpu.compiled import detector as compiled_detector
from ptymesh.kernels.cpu.compiled import moves as compiled_moves
from ptymesh.kernels.cpu.compiled import slices as compiled_slices
from ptymesh.kernels.cpu.compiled.detector import EVALUATE
from ptymesh.kernels.cpu.compiled.row_panels import systems_work_size
from ptymesh.kernels.cpu.inputs import CpuInputs
from ptymesh.kernels.cpu.pieces import DetectorCall, pass_detector
from ptymesh.kernels.cpu.sums import record_largest
from ptymesh.kernels.fused import (
    Beams,
    FusedBackend,
    FusedIntermediates,
    SweepProducts,
    corners,
    shifts_probe,
    steps_of,
)
from ptymesh.physics.backend import Adjoints, Backend, Chunk, Task, reference_of, transmitted_fraction
from ptymesh.physics.background import BackgroundSums
from ptymesh.physics.kinds import SUMS
from ptymesh.physics.model import Intermediates, Model
from ptymesh.physics.propagate import fft


class PassesFromProbe:
    """Kernels that make all waves of a view from the probe, in one go; those over waves that exist are `CpuBackend`'s.

    Args:
        backend: whose kernels they are.
        inputs: the same backend, with what kernels are given.
    """

    def __init__(self, backend: FusedBackend, inputs: CpuInputs) -> None:
        self.backend, self.inputs, self._kernels = backend, inputs, Kernels()

    # --- from the probe ---

    def sweep(
        self,
        model: Model,
        chunk: Chunk,
        intermediates: Intermediates,
        task: Task,
        into: Adjoints,
        keep: bool = False,
        steps: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Compute `sweep` from the probe, which views shift or do not, through all slices and back, strip by strip.

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
        keep = keep or (steps and not _knows_moves(model, chunk))
        probe, count, slices = intermediates.probe, chunk.views.shape[0], len(intermediates.whole_object)
        assert into.object is not None
        size = min(count, max(1, views_of_strip(probe[0]) // slices))
        windows = self.inputs.workspace("windows", slices * size, intermediates.window, self.inputs.dtype)
        light = self.inputs.workspace("light", slices * size, intermediates.window, self.inputs.real)
        by_beams = keep and slices == 1 and into.shifted
        waves, beams = [probe.new_empty((count if is_kept else 0, *probe.shape)) for is_kept in (keep, by_beams)]
        inputs, shift, path = self._inputs(model, chunk, intermediates, beams, into.shifted)
        placed = self._placed(model, chunk, slices, into.object.shape[1])
        work, tables = self.inputs.work(threads_for(count), probe.shape, slices), self.inputs.transform(probe).tables
        bands, reached, shifts = self.inputs.bands_of(into), np.zeros((count, SUMS)), into.shifts.numpy()
        products = torch.zeros((count if steps else 0, 3 * (1 + len(intermediates.opr)) + 2), dtype=torch.float64)
        probes = self._arrange_in_panels(chunk, probe, shift[0]) if steps else self.inputs.no_sums[-2]
        out = waves.numpy()

        def call(one: DetectorCall) -> None:
            (counts, at, *planes), how, terms, background, held = one
            for views in strips_of(count, size):
                slices_of_views = slice(slices * views.start, slices * views.stop)
                of_some = shift[0], *(values[views] for values in shift[1:])
                kernel_inputs = _inputs_of_views(inputs, views), of_some, path, (counts, at[views], *planes), how
                corners_here, *amounts = (values[slices_of_views] for values in placed)
                lines = len(corners_here)
                position_sums = probes, products.numpy()[views]
                gathered = (windows[:lines], light[:lines], *bands, shifts, reached[views], *position_sums)
                to = out[views] if keep else out, terms[views], gathered, background, (held[0][views], held[1][views])
                compiled_detector.detector(work, *kernel_inputs, keep, tables, *to)
                if how[3] != EVALUATE:
                    self.inputs.add_windows(into, windows[:lines], light[:lines], corners_here, *amounts)

        of_waves = tuple(probe.shape), slices, True
        columns = pass_detector(self.inputs, model, chunk, task, of_waves, call, into.background)
        record_largest(into, reached)
        if by_beams:
            intermediates.beams = Beams(beams, torch.ones_like(chunk.weights[:, 0]))
        if steps:
            intermediates.sweep_products = SweepProducts(waves, products)
        return waves, columns

    def recompute_waves(self, model: Model, chunk: Chunk, intermediates: Intermediates, task: Task) -> Tensor:
        """Return the waves that `sweep` keeps, (B, M, h, w), by the same kernel, whose sums are dropped.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: windows and waves of the views.
            task: see `Backend.at_detector`.
        """
        assert isinstance(intermediates, FusedIntermediates)
        shifted = shifts_probe(model, chunk)
        probe, count, slices = intermediates.probe, chunk.views.shape[0], len(intermediates.whole_object)
        by_beams, (modes, h, w), threads = shifted and slices == 1, probe.shape, threads_for(count)
        waves, beams = [probe.new_empty((count if made else 0, *probe.shape)) for made in (True, by_beams)]
        windows = probe.new_empty((slices * count, h, w))
        none, more = self.inputs.no_sums[-1], len(intermediates.opr)
        bands = [np.zeros((threads, each * column_panels.panel_pixels(h, w) * 2)) for each in (modes, more)]
        lights = [np.zeros((threads, each * h * w)) for each in (1, more)]
        gathered = (*arrays_of(windows, windows.real.contiguous()), bands[0], lights[0], bands[1], lights[1])
        dropped_sums = (*gathered, np.zeros((SUMS, 2)), np.zeros((count, SUMS)), self.inputs.no_sums[-2], none)
        kernel_inputs = self._inputs(model, chunk, intermediates, beams, shifted)
        work, tables = self.inputs.work(threads, probe.shape, slices), self.inputs.transform(probe).tables

        def call(one: DetectorCall) -> None:
            to = waves.numpy(), one[2], dropped_sums, *one[3:]
            compiled_detector.detector(work, *kernel_inputs, *one[:2], True, tables, *to)

        pass_detector(self.inputs, model, chunk, task, (tuple(probe.shape), slices, True), call)
        if by_beams:
            intermediates.beams = Beams(beams, torch.ones_like(chunk.weights[:, 0]))
        return waves

    def _arrange_in_panels(self, chunk: Chunk, probe: Tensor, start: ComplexArray) -> RealArray:
        """Return probes, or their spectra, as `compiled_moves.add_products` reads them; computed once in a batch."""

        def compute() -> RealArray:
            parts = panels.waves_in_panels(start), panels.angles(start.shape[1], start.shape[2])
            return np.concatenate(parts, dtype=start.real.dtype)

        return chunk.cache.get("probes in panels", probe, compute)

    # --- what views ask for ---

    def position_step(
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

        Of waves that a sweep brought back, products are those that it has found on the way.

        Args:
            model: the forward model.
            chunk: the views.
            obj: (L, H, W) complex.
            probe: (M, h, w) complex.
            opr: (K, h, w) complex, variable-probe modes.
            intermediates: windows and waves of the views.
            chi: (B, M, h, w) complex, changes of the exit waves.
        """
        view_products = sweep_products_of(intermediates, chi)
        if view_products is None:
            arguments = model, chunk, obj, probe, opr, intermediates, chi
            if _has_one_beam(model, chunk):
                return self.backend.step_probe(*arguments)
            return reference_of(Backend.position_step)(self.backend, *arguments)
        parts, (first_power, last_power) = _products_of_parts(view_products), view_products[:, -2:].unbind(1)
        of_beam = (parts * chunk.weights[:, :, None]).sum(1) if varies(chunk) else parts[:, 0]
        norms = (
            self.backend.position_derivative_norms(model, chunk, intermediates, probe, opr)
            * transmitted_fraction(first_power, last_power)[:, None]
        )
        return steps_of(of_beam[:, :2], norms, last_power, chi)

    def illumination(self, model: Model, chunk: Chunk, intermediates: Intermediates, maps: Tensor) -> Tensor:
        """Return sum |O_1|^2 map over each view's window, (B, n) float64, view by view in the cache.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: windows and waves of the views.
            maps: (n, h, w) real.
        """
        assert isinstance(intermediates, FusedIntermediates)
        slices, n = self._tall(model, chunk, intermediates.whole_object, intermediates.window)
        sums = torch.empty((len(n), len(maps)), dtype=torch.float64)
        light = np.empty((threads_for(len(n)), *maps.shape[1:]), numpy_dtype(self.inputs.real))
        compiled_moves.sum_illumination(light, slices, n, *arrays_of(maps, sums))
        return sums

    def weight_step(
        self, model: Model, chunk: Chunk, probe: Tensor, opr: Tensor, intermediates: Intermediates, chi: Tensor
    ) -> Tensor:
        """Return <d psi/d w_jk, chi> / ||d psi/d w_jk||^2 of each view for the probe and its OPR modes, (B, 1 + K).

        Of waves that a sweep brought back, products are those that it has found on the way.

        Args:
            model: the forward model.
            chunk: the views.
            probe: (M, h, w) complex.
            opr: (K, h, w) complex, variable-probe modes.
            intermediates: windows and waves of the views.
            chi: (B, M, h, w) complex, changes of the exit waves.
        """
        view_products = sweep_products_of(intermediates, chi)
        if view_products is None:
            arguments = model, chunk, probe, opr, intermediates, chi
            if _has_one_beam(model, chunk):
                return self.backend.step_weights(*arguments)
            return reference_of(Backend.weight_step)(self.backend, *arguments)
        tiny = torch.finfo(self.inputs.real).tiny
        if not varies(chunk):
            power = view_products[:, 4].clamp(min=tiny)  # ||w d psi/dw||^2
            return (chunk.weights[:, 0] * view_products[:, 2] / power)[:, None].to(self.inputs.real)
        powers = self.backend.mode_norms(model, chunk, intermediates, probe, opr)
        if model.slice_kernel is not None:
            powers *= transmitted_fraction(*view_products[:, -2:].unbind(1))[:, None]
        return (_products_of_parts(view_products)[:, :, 2] / powers.clamp(min=tiny)).to(self.inputs.real)

    def _inputs(
        self, model: Model, chunk: Chunk, intermediates: FusedIntermediates, beams: Tensor, shifted: bool
    ) -> tuple[ExitInputs, ShiftInputs, PathInputs]:
        """Return what the kernel begins with.

        These are objects, corners, space for beams, amplitudes; spectrum or probe, fractions and shares; and the path.
        """
        obj, slices = intermediates.whole_object, len(intermediates.whole_object)
        whole, n = self._tall(model, chunk, obj, intermediates.window)
        start, shares = self._arrange_beam(chunk, intermediates, shifted)
        between = self._kernels("between slices", model.slice_kernel, self.inputs.real)
        path = slices, between, self._kernels("near field", model.kernel, self.inputs.real), shifted
        shift = start, array_of(chunk.fractions), shares
        return (whole, n, beams.numpy(), self._amplitudes(chunk)), shift, path

    def _arrange_beam(
        self, chunk: Chunk, intermediates: FusedIntermediates, shifted: bool, modes: int | None = None
    ) -> tuple[ComplexArray, RealArray]:
        """Return the probe and what each view adds to it, as the compiled kernels read them.

        Args:
            chunk: the views.
            intermediates: with the probe (M, h, w) and its OPR modes (K, h, w).
            shifted: True to return Fourier transforms, which a view shifts by the fraction of its position.
            modes: number of modes of the probe that are taken; None for all.

        Returns:
            (M, h, w) complex, or (M + K, h, w) where beams vary; and the shares (B, K) that views have of OPR modes.
        """
        probe = intermediates.probe
        if not varies(chunk):
            start = array_of(self.backend.spectrum(chunk, probe)) if shifted else self.inputs.arrays("probe", probe)
            return start[:modes], np.empty((len(chunk.views), 0), start.real.dtype)

        def compute() -> ComplexArray:
            all_probes = torch.cat((probe[:modes], intermediates.opr))
            return array_of(fft(all_probes) if shifted else all_probes)

        # the cache holds the tensor, so that no other has its id
        return chunk.cache.get(("beam", id(probe), shifted, modes), probe, compute), array_of(chunk.weights)

    def _amplitudes(self, chunk: Chunk) -> RealArray:
        """Return the amplitudes of the views' beams, (B,); 1 where beams vary, which have them among their shares."""
        if varies(chunk):
            return np.ones(len(chunk.views), numpy_dtype(self.inputs.real))
        return amplitudes_of(chunk)

    def _tall(self, model: Model, chunk: Chunk, obj: Tensor, window: tuple[int, int]) -> tuple[ComplexArray, IntArray]:
        """Return slices one below the other (L H', W'), and the pixels (B, 2) of the first where windows start."""
        if model.subpixel != "bilinear":
            return array_of(obj).reshape(-1, obj.shape[2]), array_of(chunk.anchors)
        cuts = [self.backend.cut_from(model, chunk, one[None], window) for one in obj]
        return array_of(torch.cat([cut for cut, _ in cuts])), array_of(cuts[0][1])

    def _placed(self, model: Model, chunk: Chunk, slices: int, height: int) -> tuple[Array, ...]:
        """Return corners, amplitudes and weights of the next pixels of every view and slice, slices lying one below the
        other."""
        if slices == 1 and model.subpixel != "bilinear":
            return array_of(chunk.anchors), np.ones(len(chunk.anchors), numpy_dtype(self.inputs.real))
        corner, share = corners(chunk) if model.subpixel == "bilinear" else (chunk.anchors, 0 * chunk.fractions)
        below = torch.zeros((slices, 2), dtype=corner.dtype)
        below[:, 0] = torch.arange(slices) * height
        placed = (corner[:, None] + below).flatten(0, 1), torch.ones(slices * len(corner), dtype=self.inputs.real)
        return arrays_of(*placed, share.repeat_interleave(slices, dim=0))

    def detector(
        self,
        model: Model,
        chunk: Chunk,
        intermediates: Intermediates,
        task: Task,
        background_sums: BackgroundSums | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Compute `detector`, from the probe.

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
        probe, count = intermediates.probe, chunk.views.shape[0]
        shifted = shifts_probe(model, chunk)
        out, nothing = (probe.new_empty((n, *probe.shape)) for n in (0 if task == "evaluate" else count, 0))
        kernel_inputs = self._inputs(model, chunk, intermediates, nothing, shifted)
        slices, tables = len(intermediates.whole_object), self.inputs.transform(probe).tables
        work, waves = self.inputs.work(threads_for(count), probe.shape, slices), out.numpy()

        def call(one: DetectorCall) -> None:
            to = waves, one[2], self.inputs.no_sums, *one[3:]
            compiled_detector.detector(work, *kernel_inputs, *one[:2], False, tables, *to)

        of_waves = tuple(probe.shape), slices, True
        return out, pass_detector(self.inputs, model, chunk, task, of_waves, call, background_sums)

    def systems(
        self, model: Model, chunk: Chunk, intermediates: Intermediates, d_object: Tensor, d_probe: Tensor, chi: Tensor
    ) -> Tensor:
        """Compute `systems` of waves that are made anew from the probe, (B, 5) float64.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: windows and waves of the views.
            d_object: (L, H, W) complex, direction of the object.
            d_probe: (M, h, w) complex, direction of the probe.
            chi: (B, M, h, w) complex, changes of the exit waves.
        """
        assert isinstance(intermediates, FusedIntermediates)
        shifted, modes = shifts_probe(model, chunk), chi.shape[1]
        step = array_of(self.backend.spectrum(chunk, d_probe) if shifted else d_probe)[:modes]
        change, _ = self._tall(model, chunk, d_object, intermediates.window)
        return self._sliced_products(model, chunk, intermediates, chi, (change, step), 5)

    def gap_products(
        self, model: Model, chunk: Chunk, intermediates: Intermediates, rates: Tensor, chi: Tensor
    ) -> Tensor:
        """Compute `gap_products` of waves that are made anew from the probe, (B, K, 2) float64.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: windows and waves of the views.
            rates: (K, h, w) real, derivative of the phase of the transfer function between slices by each unknown.
            chi: (B, M, h, w) complex, changes of the exit waves.
        """
        assert isinstance(intermediates, FusedIntermediates)
        return self._sliced_products(model, chunk, intermediates, chi, rates, 2 * len(rates)).unflatten(1, (-1, 2))

    def _sliced_products(
        self,
        model: Model,
        chunk: Chunk,
        intermediates: FusedIntermediates,
        chi: Tensor,
        by: tuple[ComplexArray, ComplexArray] | Tensor,
        columns: int,
    ) -> Tensor:
        """Return `compiled_slices.sliced_products` by steps of object and probe, or by rates (K, h, w) of gaps."""
        count, (modes, h, w), slices = len(chi), chi.shape[1:], len(intermediates.whole_object)
        shifted = shifts_probe(model, chunk)
        (obj, n, _, a), (_, fractions, _), path = self._inputs(model, chunk, intermediates, chi[:0], shifted)
        start, shares = self._arrange_beam(chunk, intermediates, shifted, modes)
        if isinstance(by, Tensor):
            rates = np.concatenate([panels.in_panels(rate.numpy()) for rate in by]).astype(a.dtype, copy=False)
            direction, waves, windows = (obj, start, rates), 1 + len(by), slices
        else:
            direction, waves, windows = (*by, np.empty(0, a.dtype)), 3, 2 * slices
        numbers = systems_work_size(waves, windows, h, w)
        work = self.inputs.workspace(f"{columns} products", threads_for(count), (numbers,), self.inputs.real)
        out = torch.empty((count, columns), dtype=torch.float64)
        back, shift = (array_of(chi), obj, n), (start, fractions, a, shares)
        tables = self.inputs.transform(chi).tables
        compiled_slices.sliced_products(work, back, direction, shift, path, tables, out.numpy())
        return out


def _knows_moves(model: Model, chunk: Chunk) -> bool:
    """Return True if a sweep finds all that `position_step` needs of the waves that come back."""
    return model.kernel is None and shifts_probe(model, chunk)


def _has_one_beam(model: Model, chunk: Chunk) -> bool:
    """Return True for a single slice and probes without OPR modes."""
    return model.slice_kernel is None and not varies(chunk)


def _products_of_parts(view_products: Tensor) -> Tensor:
    """Return the products of each part of the views' beams, (B, parts, 3): see `compiled_moves.add_products`."""
    return view_products[:, :-2].unflatten(1, (-1, 3))


def sweep_products_of(intermediates: Intermediates, chi: Tensor) -> Tensor | None:
    """Return the products that a sweep has found of these very waves, (B, 5), or None; see
    `compiled_detector.detector`."""
    sweep_products = intermediates.sweep_products if isinstance(intermediates, FusedIntermediates) else None
    return sweep_products.products if sweep_products is not None and sweep_products.waves is chi else None


def _inputs_of_views(inputs: ExitInputs, views: slice) -> ExitInputs:
    """Return the kernel's inputs of some of the views; beams may be none."""
    obj, n, beams, a = inputs
    return obj, n[views], beams[views], a[views]


def amplitudes_of(chunk: Chunk) -> RealArray:
    """Return w_j0 of the views, (B,)."""
    return np.ascontiguousarray(array_of(chunk.weights)[:, 0])
