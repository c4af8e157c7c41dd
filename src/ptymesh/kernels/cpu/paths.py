"""Passes on a CPU that take each view from the probe to the detector and back to the sums in one go.

B, M, h, w   views of the chunk, modes, window pixels;  L, H, W  slices, object pixels

One thread has a view, and what it makes of it stays in its core's cache: waves between all slices, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ptymesh.kernels.arrays import (
    Array,
    BackgroundArrays,
    ComplexArray,
    DetectorInputs,
    DetectorOptions,
    ExitInputs,
    IntArray,
    PathInputs,
    RealArray,
    ShiftInputs,
)
from ptymesh.kernels.cpu import panels
from ptymesh.kernels.cpu.arguments import (
    Transform,
    array_of,
    arrays_of,
    numpy_dtype,
    strips_of,
    threads_for,
    transform_for,
    views_of_strip,
)
from ptymesh.kernels.cpu.compiled import column_panels
from ptymesh.kernels.cpu.compiled import detector as compiled_detector
from ptymesh.kernels.cpu.compiled import gaps as compiled_gaps
from ptymesh.kernels.cpu.compiled import moves as compiled_moves
from ptymesh.kernels.cpu.compiled import probes as compiled_probes
from ptymesh.kernels.cpu.compiled import slices as compiled_slices
from ptymesh.kernels.cpu.compiled.comparison import KINDS
from ptymesh.kernels.cpu.compiled.row_panels import systems_work_size
from ptymesh.kernels.cpu.kept import Kernels, Planes
from ptymesh.kernels.cpu.sums import CpuSums
from ptymesh.kernels.fused import (
    Beams,
    FusedIntermediates,
    SweepProducts,
    corners,
    shifts_probe,
    steps_of,
    varies,
    window_of,
)
from ptymesh.physics.backend import Adjoints, Backend, Chunk, Task, transmitted_fraction
from ptymesh.physics.background import PARTS, QUANTITIES, BackgroundSums
from ptymesh.physics.kinds import SUMS
from ptymesh.physics.model import Intermediates, Model
from ptymesh.physics.propagate import fft

TASKS = {
    "evaluate": compiled_detector.EVALUATE,
    "exit_wave_update": compiled_detector.EXIT_WAVE_UPDATE,
    "loss_gradient": compiled_detector.LOSS_GRADIENT,
}
#: Dtypes of patterns that the kernel reads without conversion, by their number there.
NATIVE = [getattr(torch, name) for name in compiled_detector.NATIVE]


class SlicedIntermediates(FusedIntermediates):
    """Intermediates of several slices, made by torch if anybody asks for waves: passes in one go keep their own."""

    @cached_property
    def _computed(self) -> Intermediates:
        """Intermediates that torch has computed."""
        return Backend.forward(self.backend, self.model, self.chunk, self.whole_object, self.probe, self.opr)

    @property
    def windows(self) -> Tensor:
        """Windows of the object, (B, L, h, w)."""
        return self._computed.windows

    @property
    def incoming(self) -> tuple[Tensor, ...]:
        """Waves that enter each slice, (B, M, h, w)."""
        return self._computed.incoming

    @property
    def exit(self) -> Tensor:
        """Exit waves, (B, M, h, w)."""
        return self._computed.exit


class CpuPaths(CpuSums):
    """Passes in one go; those over waves that are there already are `CpuBackend`'s.

    Args:
        dtype: complex64 or complex128.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(dtype)
        self.dtype = dtype
        self._planes, self._kernels = Planes(), Kernels()
        nothing, none = torch.zeros(0, 1, 1, dtype=self.real), np.zeros((0, 1))
        self._no_windows = nothing.to(dtype).numpy(), nothing.numpy()
        no_numbers = np.zeros(0, numpy_dtype(self.real))
        self._no_sums = (*self._no_windows, none, none, none, none, none, none, no_numbers, none)
        #: Arrays of a background that stays as it is.
        self._no_background = none, none, no_numbers

    # --- which there are ---

    def at_once(self, model: Model, window: tuple[int, int]) -> bool:
        """Return True if `sweep` takes views of such a model from the probe to the sums, strip by strip."""
        if model.operators or not transform_for(window, self.real).known:
            return False
        return model.subpixel != "bilinear" or deep(model)

    def forward(
        self, model: Model, chunk: Chunk, obj: Tensor, probe: Tensor, opr: Tensor | None = None
    ) -> Intermediates:
        """Return intermediates of one slice or several, in which nothing is computed before it is asked for.

        Args:
            model: the forward model.
            chunk: the views.
            obj: (L, H, W) complex.
            probe: (M, h, w) complex.
            opr: (K, h, w) complex, variable-probe modes.
        """
        if model.slice_kernel is None or not self.at_once(model, window_of(probe)):
            return super().forward(model, chunk, obj, probe, opr)
        if self.prepare:
            self.prepare()
        return SlicedIntermediates(self, model, chunk, obj.contiguous(), probe, opr)

    def keep_intermediates(
        self, intermediates: Intermediates, halves: bool = False
    ) -> Callable[[], Intermediates] | None:
        """Return a function that gives the intermediates back; None for those of several slices, which are rather made
        anew."""
        if isinstance(intermediates, FusedIntermediates):  # the arrays have the probes in full, whatever is stored
            intermediates.sweep_products = intermediates.kernel_arrays = None
        return (
            None
            if isinstance(intermediates, SlicedIntermediates)
            else super().keep_intermediates(intermediates, halves)
        )

    # --- from the probe ---

    def sweep_fused(
        self,
        model: Model,
        chunk: Chunk,
        intermediates: FusedIntermediates,
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
        keep = keep or (steps and not self._knows_moves(model, chunk))
        probe, count, slices = intermediates.probe, chunk.views.shape[0], len(intermediates.whole_object)
        assert into.object is not None
        size = min(count, max(1, views_of_strip(probe[0]) // slices))
        windows = self.workspace("windows", slices * size, intermediates.window, self.dtype)
        light = self.workspace("light", slices * size, intermediates.window, self.real)
        by_beams = keep and slices == 1 and into.shifted
        waves, beams = [probe.new_empty((count if kept else 0, *probe.shape)) for kept in (keep, by_beams)]
        inputs, shift, path = self._inputs(model, chunk, intermediates, beams, into.shifted)
        placed = self._placed(model, chunk, slices, into.object.shape[1])
        work, tables = self._work(threads_for(count), probe.shape, slices), self.transform(probe).tables
        bands, reached, shifts = self._bands_of(into), np.zeros((count, SUMS)), into.shifts.numpy()
        products = torch.zeros((count if steps else 0, 3 * (1 + len(intermediates.opr)) + 2), dtype=torch.float64)
        probes = self._in_panels(chunk, shift[0]) if steps else self._no_sums[-2]
        (counts, at, *planes), how, found = self._comparison(model, chunk, task, True)
        terms, out, background_sums = found.numpy(), waves.numpy(), self._background_arrays(into.background)
        for some in strips_of(count, size):
            each = slice(slices * some.start, slices * some.stop)
            of_some = shift[0], *(values[some] for values in shift[1:])
            given = _inputs_of_views(inputs, some), of_some, path, (counts, at[some], *planes), how
            corners_here, *amounts = (values[each] for values in placed)
            lines = len(corners_here)
            gathered = (
                windows[:lines],
                light[:lines],
                *bands,
                shifts,
                reached[some],
                probes,
                products.numpy()[some],
            )
            found_here = out[some] if keep else out, terms[some]
            compiled_detector.detector(work, *given, keep, tables, *found_here, gathered, background_sums)
            self.add_windows(into, windows[:lines], light[:lines], corners_here, *amounts)
        record_largest(into, reached)
        if by_beams:
            intermediates.beams = Beams(beams, torch.ones_like(chunk.weights[:, 0]))
        if steps:
            intermediates.sweep_products = SweepProducts(waves, products)
        return waves, found

    def recompute_fused(
        self, model: Model, chunk: Chunk, intermediates: FusedIntermediates, task: Task, shifted: bool
    ) -> Tensor:
        """Return the waves that `sweep_fused` keeps, (B, M, h, w), by the same kernel, whose sums are dropped.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: windows and waves of the views.
            task: see `Backend.at_detector`.
            shifted: True if views shift the probe.
        """
        probe, count, slices = intermediates.probe, chunk.views.shape[0], len(intermediates.whole_object)
        by_beams, (modes, h, w), threads = shifted and slices == 1, probe.shape, threads_for(count)
        waves, beams = [probe.new_empty((count if made else 0, *probe.shape)) for made in (True, by_beams)]
        windows = probe.new_empty((slices * count, h, w))
        data, how, found = self._comparison(model, chunk, task, True)
        none, more = self._no_sums[-1], len(intermediates.opr)
        bands = [np.zeros((threads, each * column_panels.panel_pixels(h, w) * 2)) for each in (modes, more)]
        lights = [np.zeros((threads, each * h * w)) for each in (1, more)]
        gathered = (*arrays_of(windows, windows.real.contiguous()), bands[0], lights[0], bands[1], lights[1])
        nowhere = (*gathered, np.zeros((SUMS, 2)), np.zeros((count, SUMS)), self._no_sums[-2], none)
        given = self._inputs(model, chunk, intermediates, beams, shifted)
        work, tables = self._work(threads, probe.shape, slices), self.transform(probe).tables
        compiled_detector.detector(
            work, *given, data, how, True, tables, *arrays_of(waves, found), nowhere, self._no_background
        )
        if by_beams:
            intermediates.beams = Beams(beams, torch.ones_like(chunk.weights[:, 0]))
        return waves

    def _knows_moves(self, model: Model, chunk: Chunk) -> bool:
        """Return True if a sweep finds all that `position_step` needs of the waves that come back."""
        return model.kernel is None and shifts_probe(model, chunk)

    def _in_panels(self, chunk: Chunk, start: ComplexArray) -> RealArray:
        """Return probes, or their spectra, as `compiled_moves.add_products` reads them; computed once in a sweep."""
        kept = chunk.sweep.get("probes in panels")
        if kept is None:
            parts = panels.waves_in_panels(start), panels.angles(start.shape[1], start.shape[2])
            kept = chunk.sweep["probes in panels"] = (np.concatenate(parts, dtype=start.real.dtype),)
        found: RealArray = kept[0]
        return found

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
        asked = sweep_products_of(intermediates, chi)
        if asked is None or not self._knows_moves(model, chunk):
            return super().position_step(model, chunk, obj, probe, opr, intermediates, chi)
        parts, (behind, left) = _products_of_parts(asked), asked[:, -2:].unbind(1)
        of_beam = (parts * chunk.weights[:, :, None]).sum(1) if varies(chunk) else parts[:, 0]
        norms = (
            self.position_derivative_norms(chunk, intermediates, probe, opr)
            * transmitted_fraction(behind, left)[:, None]
        )
        return steps_of(of_beam[:, :2], norms, left, chi)

    def illumination(self, chunk: Chunk, intermediates: Intermediates, maps: Tensor) -> Tensor:
        """Return sum |O_1|^2 map over each view's window, (B, n) float64, view by view in the cache.

        Args:
            chunk: the views.
            intermediates: windows and waves of the views.
            maps: (n, h, w) real.
        """
        if not isinstance(intermediates, FusedIntermediates):
            return super().illumination(chunk, intermediates, maps)
        whole, n = self._tall(intermediates.model, chunk, intermediates.whole_object, intermediates.window)
        found = torch.empty((len(n), len(maps)), dtype=torch.float64)
        light = np.empty((threads_for(len(n)), *maps.shape[1:]), numpy_dtype(self.real))
        compiled_moves.sum_illumination(light, whole, n, *arrays_of(maps, found))
        return found

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
        asked = sweep_products_of(intermediates, chi)
        if asked is None:
            return super().weight_step(model, chunk, probe, opr, intermediates, chi)
        tiny = torch.finfo(self.real).tiny
        if not varies(chunk):
            power = asked[:, 4].clamp(min=tiny)  # ||w d psi/dw||^2
            return (chunk.weights[:, 0] * asked[:, 2] / power)[:, None].to(self.real)
        powers = self.mode_norms(chunk, intermediates, probe, opr)
        if model.slice_kernel is not None:
            powers *= transmitted_fraction(*asked[:, -2:].unbind(1))[:, None]
        return (_products_of_parts(asked)[:, :, 2] / powers.clamp(min=tiny)).to(self.real)

    def _inputs(
        self, model: Model, chunk: Chunk, intermediates: FusedIntermediates, beams: Tensor, shifted: bool
    ) -> tuple[ExitInputs, ShiftInputs, PathInputs]:
        """Return what the kernel begins with.

        These are objects, corners, space for beams, amplitudes; spectrum or probe, fractions and shares; and the path.
        """
        obj, slices = intermediates.whole_object, len(intermediates.whole_object)
        whole, n = self._tall(model, chunk, obj, intermediates.window)
        start, shares = self._beam(chunk, intermediates, shifted)
        between = self._kernels("between slices", model.slice_kernel, self.real)
        path = slices, between, self._kernels("near field", model.kernel, self.real), shifted
        shift = start, array_of(chunk.fractions), shares
        return (whole, n, beams.numpy(), self._amplitudes(chunk)), shift, path

    def _beam(
        self, chunk: Chunk, intermediates: FusedIntermediates, shifted: bool, modes: int | None = None
    ) -> tuple[ComplexArray, RealArray]:
        """Return the spectrum of the probe, or the probe, with OPR modes behind it where beams vary; and the views'
        shares.

        With `modes`, so many modes of the probe are taken.
        """
        probe = intermediates.probe
        if not varies(chunk):
            start = array_of(self.spectrum(chunk, probe)) if shifted else self.arrays("probe", probe)
            return start[:modes], np.empty((len(chunk.views), 0), start.real.dtype)
        name = f"beam {id(probe)} {shifted} {modes}"  # the cache holds the tensor, so that no other has its id
        kept = chunk.sweep.get(name)
        if kept is None:
            both = torch.cat((probe[:modes], intermediates.opr))
            kept = chunk.sweep[name] = (probe, array_of(fft(both) if shifted else both))
        return kept[1], array_of(chunk.weights)

    def _amplitudes(self, chunk: Chunk) -> RealArray:
        """Return the amplitudes of the views' beams, (B,); 1 where beams vary, which have them among their shares."""
        if varies(chunk):
            return np.ones(len(chunk.views), numpy_dtype(self.real))
        return amplitudes_of(chunk)

    def _tall(self, model: Model, chunk: Chunk, obj: Tensor, window: tuple[int, int]) -> tuple[ComplexArray, IntArray]:
        """Return slices one below the other (L H', W'), and the pixels (B, 2) of the first where windows start."""
        if model.subpixel != "bilinear":
            return array_of(obj).reshape(-1, obj.shape[2]), array_of(chunk.anchors)
        cuts = [self.cut_from(model, chunk, one[None], window) for one in obj]
        return array_of(torch.cat([cut for cut, _ in cuts])), array_of(cuts[0][1])

    def _placed(self, model: Model, chunk: Chunk, slices: int, height: int) -> tuple[Array, ...]:
        """Return corners, amplitudes and weights of the next pixels of every view and slice, slices lying one below the
        other."""
        if slices == 1 and model.subpixel != "bilinear":
            return array_of(chunk.anchors), np.ones(len(chunk.anchors), numpy_dtype(self.real))
        corner, share = corners(chunk) if model.subpixel == "bilinear" else (chunk.anchors, 0 * chunk.fractions)
        below = torch.zeros((slices, 2), dtype=corner.dtype)
        below[:, 0] = torch.arange(slices) * height
        placed = (corner[:, None] + below).flatten(0, 1), torch.ones(slices * len(corner), dtype=self.real)
        return arrays_of(*placed, share.repeat_interleave(slices, dim=0))

    def detect_fused(
        self,
        model: Model,
        chunk: Chunk,
        intermediates: FusedIntermediates,
        task: Task,
        background_sums: BackgroundSums | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Compute `detector`, from the probe.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: windows and waves of the views.
            task: see `Backend.at_detector`.
            background_sums: sums of the background for "loss_gradient".

        Returns:
            Waves (B, M, h, w), undefined for "evaluate"; and the columns of `at_detector`, (B, 6) float64.
        """
        probe, count = intermediates.probe, chunk.views.shape[0]
        shifted = shifts_probe(model, chunk)
        out, nothing = (probe.new_empty((n, *probe.shape)) for n in (0 if task == "evaluate" else count, 0))
        given = self._inputs(model, chunk, intermediates, nothing, shifted)
        data, how, found = self._comparison(model, chunk, task, True)
        work = self._work(threads_for(count), probe.shape, len(intermediates.whole_object))
        tables, arrays = self.transform(probe).tables, arrays_of(out, found)
        into = self._no_sums, self._background_arrays(background_sums)
        compiled_detector.detector(work, *given, data, how, False, tables, *arrays, *into)
        return out, found

    def through_slices(
        self,
        model: Model,
        chunk: Chunk,
        intermediates: FusedIntermediates,
        d_object: Tensor,
        d_probe: Tensor,
        chi: Tensor,
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
        count, modes, window = len(chi), chi.shape[1], intermediates.window
        shifted = shifts_probe(model, chunk)
        given = self._inputs(model, chunk, intermediates, chi[:0], shifted)
        (obj, n, _, a), (_, fractions, _), path = given
        start, shares = self._beam(chunk, intermediates, shifted, modes)
        direction = array_of(self.spectrum(chunk, d_probe) if shifted else d_probe)
        change, _ = self._tall(model, chunk, d_object, window)
        numbers = systems_work_size(3, 2 * len(d_object), *window)
        work = self.workspace("systems", threads_for(count), (numbers,), self.real)
        out = torch.empty((count, 5), dtype=torch.float64)
        shift = start, direction[:modes], fractions, a, shares
        compiled_slices.sliced_systems(
            work, array_of(chi), obj, change, n, shift, path, self.transform(chi).tables, out.numpy()
        )
        return out

    def over_gaps(
        self, model: Model, chunk: Chunk, intermediates: FusedIntermediates, rates: Tensor, chi: Tensor
    ) -> Tensor:
        """Compute `gap_products` of waves that are made anew from the probe, (B, K, 2) float64.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: windows and waves of the views.
            rates: (K, h, w) real, derivative of the phase of the transfer function between slices by each unknown.
            chi: (B, M, h, w) complex, changes of the exit waves.
        """
        window = intermediates.window
        given = self._inputs(model, chunk, intermediates, chi[:0], shifts_probe(model, chunk))
        (obj, n, _, a), (start, fractions, shares), path = given
        by_panel = np.concatenate([panels.in_panels(rate.numpy()) for rate in rates]).astype(a.dtype, copy=False)
        numbers = systems_work_size(1 + len(rates), len(intermediates.whole_object), *window)
        work = self.workspace("gaps", threads_for(len(chi)), (numbers,), self.real)
        out = torch.empty((len(chi), len(rates), 2), dtype=torch.float64)
        shift, tables = (start, fractions, a, shares), self.transform(chi).tables
        compiled_gaps.gap_products(work, array_of(chi), obj, n, shift, path, by_panel, tables, out.numpy())
        return out

    # --- what kernels are given ---

    def transform(self, like: Tensor) -> Transform:
        """Return the transform of waves like these (..., h, w)."""
        return transform_for(window_of(like), self.real)

    def _comparison(
        self, model: Model, chunk: Chunk, task: Task, product: bool
    ) -> tuple[DetectorInputs, DetectorOptions, Tensor]:
        """Return `data` and `how` for the detector's kernel, and an array (B, 6) for the sums of each view."""
        kept = chunk.sweep.get("detector")
        if kept is None:
            kept = chunk.sweep["detector"] = self._planes(chunk.mask, chunk.background)
        counts, places = chunk.counts, chunk.pattern_index
        if counts.dtype not in NATIVE or not counts.is_contiguous():
            counts, places = chunk.patterns.to(self.real).contiguous(), None
        stays = places is not None  # True for an array of all patterns
        if places is None:
            places = torch.arange(counts.shape[0])
        how = (NATIVE.index(counts.dtype), kept[2], product, KINDS[model.fidelity], TASKS[task])
        array = self.arrays("counts", counts) if stays else array_of(counts)
        data = (array.view(np.uint8), places.numpy(), *kept[:2])
        return data, how, torch.empty((places.shape[0], 6), dtype=torch.float64)

    def _background_arrays(self, background_sums: BackgroundSums | None) -> BackgroundArrays:
        """Return the background's sums of each thread's views, panel after panel, 0 at first; rounding shifts; and
        limits."""
        if background_sums is None:
            return self._no_background
        if not background_sums.kept:
            shape = (
                torch.get_num_threads(),
                PARTS * QUANTITIES * column_panels.panel_pixels(*window_of(background_sums.sums)),
            )
            background_sums.kept = self.workspace.take("background", (shape,), torch.float64)
            background_sums.kept[0].fill(0)
        return *background_sums.kept, background_sums.shifts.numpy(), background_sums.limits.to(self.real).numpy()

    def _bands_of(self, into: Adjoints) -> tuple[RealArray, ...]:
        """Return the probe's sums of each thread's views, panel after panel, and their lights; the same of OPR modes; 0
        at first."""
        if not into.kept:
            assert into.probe is not None
            bands = torch.get_num_threads()
            shapes = [
                shape
                for (modes, h, w), lights in ((into.probe.shape, into.parts), (into.opr.shape, len(into.opr)))
                for shape in ((bands, modes * column_panels.panel_pixels(h, w) * 2), (bands, lights * h * w))
            ]
            into.kept = self.workspace.take("bands", tuple(shapes), torch.float64)
            for array in into.kept:
                array.fill(0)
        return into.kept

    def finish(self, into: Adjoints) -> None:
        """Add up the bands of views, and complete the sums."""
        if into.background is not None and into.background.kept:
            background_sums, sums = into.background, into.background.sums
            bands = background_sums.kept[0].sum(axis=0).reshape(len(sums), -1)
            sums += torch.from_numpy(panels.from_panels(bands, *window_of(sums)))
            self.workspace.give_back("background", background_sums.kept)
            background_sums.kept = ()
        if into.kept and into.probe is not None:
            of_probe, of_opr = into.kept[:2], into.kept[2:]
            gathered = [(of_probe, into.probe, into.probe_weight)]
            if len(into.opr):
                gathered.append((of_opr, into.opr, into.opr_weight))
            for of_bands, out, weight in gathered:
                given = array_of(out), array_of(weight).reshape(-1)
                compiled_probes.gather(torch.get_num_threads(), *of_bands, *given)
            self.workspace.give_back("bands", into.kept)
            into.kept = ()
        super().finish(into)

    def _work(self, bands: int, wave: tuple[int, ...], slices: int = 1) -> RealArray:
        """Return the workspace of so many bands of a kernel that goes through waves (M, h, w)."""
        modes, h, w = wave
        return self.workspace("work", bands, (column_panels.work_size(modes, h, w, slices),), self.real)


def deep(model: Model) -> bool:
    """Return True if waves are carried on between object and detector: through several slices, or a near field."""
    return model.slice_kernel is not None or model.kernel is not None


def _products_of_parts(asked: Tensor) -> Tensor:
    """Return the products of each part of the views' beams, (B, parts, 3): see `compiled_moves.add_products`."""
    return asked[:, :-2].unflatten(1, (-1, 3))


def sweep_products_of(intermediates: Intermediates, chi: Tensor) -> Tensor | None:
    """Return the products that a sweep has found of these very waves, (B, 5), or None; see
    `compiled_detector.detector`."""
    found = intermediates.sweep_products if isinstance(intermediates, FusedIntermediates) else None
    return found.products if found is not None and found.waves is chi else None


def _inputs_of_views(inputs: ExitInputs, some: slice) -> ExitInputs:
    """Return the kernel's inputs of some of the views; beams may be none."""
    obj, n, beams, a = inputs
    return obj, n[some], beams[some], a[some]


def record_largest(into: Adjoints, reached: RealArray) -> None:
    """Record the largest terms of views or bands (n, 6) by kind of sum."""
    if len(reached):
        torch.maximum(into.reached, torch.from_numpy(reached.max(axis=0)), out=into.reached)


def amplitudes_of(chunk: Chunk) -> RealArray:
    """Return w_j0 of the views, (B,)."""
    return np.ascontiguousarray(array_of(chunk.weights)[:, 0])
