"""The passes on a GPU: Triton's loops (windows.py) around torch's FFT.

B, M, h, w   views of the chunk, modes, window pixels;  K  OPR modes

Fused are slices, one after the other, to near and far fields alike. From slice to slice waves go by torch, which also
interpolates bilinear positions. What remains (what single views ask of several slices, OPR modes) is left to torch
(`Backend`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ptymesh.estimate import BLOCK
from ptymesh.kernels.block_forms import BlockForm, form_of
from ptymesh.kernels.capabilities import ALL_SLICES, FAR_FIELD, ONE_BEAM, ONE_SLICE, SHIFTED_BEAM, WAVES
from ptymesh.kernels.fused import Beams, FusedBackend, FusedIntermediates, corners
from ptymesh.kernels.gpu import blocks
from ptymesh.kernels.gpu import detector as at_detector
from ptymesh.kernels.gpu import windows as kernels
from ptymesh.kernels.gpu.graphs import Graphs
from ptymesh.physics import window_shifts
from ptymesh.physics.backend import Adjoints, Backend, Chunk, Result, Task, reference_of
from ptymesh.physics.background import BackgroundSums
from ptymesh.physics.blocks import Expression, FieldView, RegularisedQuotient
from ptymesh.physics.fidelity import NEWTON_STEPS, UNLIT
from ptymesh.physics.kinds import OBJECT, PROBE
from ptymesh.physics.model import Intermediates, Model
from ptymesh.physics.propagate import fft, ifft

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction

#: What kernels are given: arrays and numbers.
Argument = Tensor | float | None
#: Pixels of a program; tiles of a program that looks for step lengths.
TILE, SPAN = 512, 8
#: Sums over views are split among about so many programs, a few times what the largest GPU runs at once.
PROGRAMS = 4096
KINDS = {"amplitude": 0, "poisson": 1, "intensity": 2}
TASKS = {"evaluate": 0, "exit_wave_update": 1, "loss_gradient": 2}


class GpuBackend(FusedBackend):
    """The backend of GPUs, by Triton.

    Args:
        capture: whether sweeps that come again are launched as one.
    """

    def __init__(self, capture: bool = True) -> None:
        self.graphs = Graphs(self.bring) if capture else None
        #: A batch's weight, its rows of blocks, and the largest value of each of these in each slice.
        self._tops = (torch.empty(0),) * 3
        self.table = {
            ("forward", ALL_SLICES): self.forward_slices,
            ("at_detector", WAVES): self.compare,
            ("apply_at_detector", FAR_FIELD): self.compare_far,
            ("adjoint", ALL_SLICES): self.adjoint_of_slices,
            ("sweep", ONE_BEAM): self.sweep_captured,
            ("position_step", SHIFTED_BEAM): self.step_probe,
            ("systems", ONE_SLICE): self.systems_of_windows,
        }

    def sweep_captured(
        self,
        model: Model,
        chunk: Chunk,
        intermediates: Intermediates,
        task: Task,
        into: Adjoints,
        keep: bool = False,
        steps: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Compute `Backend.sweep`; launched as one if it has come before.

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: windows and waves of the views.
            task: see `Backend.at_detector`.
            into: the sums of the batch.
            keep: True if the caller uses the waves that are returned.
            steps: True if `position_step` and `weight_step` follow with these intermediates and waves.

        Returns:
            Waves (B, M, h, w), undefined without `keep`, with memory of their own if the batch has other chunks; and
            the columns of `at_detector`, (B, 6) float64.
        """
        captured = None
        captures = self.graphs is not None and self.graphs.captures(chunk.mask.device)
        if captures and into.background is None:
            assert self.graphs is not None and isinstance(intermediates, FusedIntermediates)
            captured = self.graphs.sweep(self, model, chunk, intermediates, task, into, keep)
        if captured is None:
            return reference_of(Backend.sweep)(self, model, chunk, intermediates, task, into, keep)
        of_views, chi, probes = captured
        assert of_views is not None
        if chi is None:
            return of_views.new_empty(0), of_views
        if into.views is None or chunk.views.shape[0] < into.views:
            chi, probes = chi.clone(), None if probes is None else probes.clone()
        if probes is not None:
            assert isinstance(intermediates, FusedIntermediates)
            intermediates.beams = Beams(probes, torch.ones_like(chunk.weights[:, 0]))
        return chi, of_views

    def repeat(
        self, name: tuple[object, ...], work: Callable[..., Result], *given: Tensor, brought: tuple[Tensor, ...] = ()
    ) -> Result:
        """Call a function of many small operations, or replay it as one launch; see `Backend.repeat`.

        Args:
            name: what the work depends on besides the tensors.
            work: the function.
            brought: tensors that may be others in each call; passed after `given`.
            *given: tensors that are the same objects in each call of this name.
        """
        return work(*given, *brought) if self.graphs is None else self.graphs.repeat(name, work, given, brought)

    def clear_caches(self) -> None:
        """Free the graphs, which hold memory."""
        if self.graphs is not None:
            self.graphs.free()

    # --- forward ---

    def exit_waves(self, intermediates: FusedIntermediates) -> Tensor:
        """Return a_j beams_jm S_j O, (B, M, h, w)."""
        waves, amplitudes = intermediates.beams.waves, intermediates.beams.amplitudes
        out = waves.new_empty((len(amplitudes), *waves.shape[1:]))
        kernel_inputs = (intermediates.object, intermediates.corners, waves, amplitudes, out)
        sizes = _sizes(out, intermediates.object)
        _launch_views(kernels.exit_waves, out, *kernel_inputs, *sizes, SHARED=intermediates.beams.shared)
        return out

    def interpolated(self, chunk: Chunk, obj: Tensor, window: tuple[int, int]) -> Tensor:
        """Return the object at bilinear positions, (B h, w): window after window.

        Args:
            chunk: the views.
            obj: (1, H, W) complex.
            window: pixels h, w.
        """
        return window_shifts.cut_bilinear(obj, chunk.anchors, chunk.fractions, window).reshape(-1, window[1])

    def ramped(self, spectrum: Tensor, fractions: Tensor, amplitudes: Tensor, axis: int) -> Tensor:
        """Return F^H of a_j exp(-2 pi i k.f_j) spectrum_m, (B, M, h, w).

        Args:
            spectrum: (M, h, w) complex, probes in Fourier space.
            fractions: (B, 2) real, sub-pixel parts of the positions in pixels.
            amplitudes: (B,) real, amplitude of each view's beam.
            axis: 0 or 1 for the derivative along y or x, which is times 2 pi i k_axis; -1 for none.
        """
        out = spectrum.new_empty((len(amplitudes), *spectrum.shape))
        scale = (out.shape[-2] * out.shape[-1]) ** -0.5
        _launch_views(kernels.ramped, out, spectrum, fractions, amplitudes * scale, out, *out.shape[1:], AXIS=axis)
        return ifft(out, "forward")

    # --- the detector ---

    def compare_far(
        self, model: Model, chunk: Chunk, waves: Tensor, task: Task, background_sums: BackgroundSums | None = None
    ) -> tuple[Tensor, Tensor]:
        """Propagate waves to the detector, apply a task there, and propagate the result back.

        To a far detector, the factor that makes transforms orthonormal is applied on the way.

        Args:
            model: the forward model.
            chunk: the views.
            waves: (B, M, h, w) complex.
            task: see `Backend.at_detector`.
            background_sums: sums of the background, to which the views' terms are added.

        Returns:
            Waves (B, M, h, w), undefined for "evaluate"; and the columns of `at_detector`, (B, 6) float64.
        """
        if background_sums is not None:
            return reference_of(Backend.apply_at_detector)(self, model, chunk, waves, task, background_sums)
        detected = fft(waves, "backward")
        columns = self.compare(model, chunk, detected, task, scaled=True)
        return (detected if task == "evaluate" else ifft(detected, "forward")), columns

    def compare(
        self,
        model: Model,
        chunk: Chunk,
        detected: Tensor,
        task: Task,
        background_sums: BackgroundSums | None = None,
        scaled: bool = False,
    ) -> Tensor:
        """Apply a task to waves on the detector, in place: in one pass, or in three if the step has a length.

        Terms of a background's sums are left to torch.

        Args:
            model: the forward model.
            chunk: the views.
            detected: (B, M, h, w) complex, waves on the detector, overwritten.
            task: see `Backend.at_detector`.
            background_sums: sums of the background, to which the views' terms are added.
            scaled: True if Psi is sqrt(h w) times what it should be, and is to become 1 / sqrt(h w) times that.

        Returns:
            (B, 6) float64, see `Backend.at_detector`.
        """
        if background_sums is not None:
            return reference_of(Backend.at_detector)(self, model, chunk, detected, task, background_sums)
        kind, (B, M, h, w) = KINDS[model.fidelity], detected.shape
        stepped = task == "exit_wave_update" and kind != KINDS["amplitude"]
        counts = chunk.patterns.contiguous()
        parts = _empty_sums(detected, 6)
        least = parts if task == "evaluate" else _least(detected, counts, chunk)
        data = (counts, chunk.mask, chunk.background, least)
        S = chunk.background.new_empty((B, h, w) if stepped else 0)
        _launch_views(
            at_detector.detector,
            detected,
            detected,
            *data,
            S,
            parts,
            M,
            h * w,
            KIND=kind,
            TASK=TASKS[task],
            SCALED=scaled,
        )
        if stepped:
            spans, alpha, slopes = self._slopes(S, data, kind)
            sizes = (alpha, slopes, M, h * w, spans)
            _launch_views(at_detector.step, detected, detected, S, *data, *sizes, KIND=kind, SCALED=scaled)
        return _summed(parts)

    @staticmethod
    def _slopes(S: Tensor, data: tuple[Tensor, ...], kind: int) -> tuple[int, Tensor, Tensor]:
        """Return spans of a window, alpha (B,) before the last step of Newton's method, and the slopes (B, spans, 2)
        there.

        Each step is a launch: it begins where the one before has found all slopes.
        """
        (B, h, w), steps = S.shape, NEWTON_STEPS if kind == KINDS["poisson"] else 1
        spans = -(-h * w // (SPAN * TILE))
        alpha, slopes = S.new_empty((steps, B)), S.new_empty((steps, B, spans, 2), dtype=torch.float64)
        for step in range(steps):
            before = max(0, step - 1)
            step_inputs = (alpha[before], slopes[before], alpha[step], slopes[step], h * w, spans)
            _launch(at_detector.step_slopes, B * spans, S, *data, *step_inputs, FIRST=step == 0, KIND=kind, SPAN=SPAN)
        return spans, alpha[-1], slopes[-1]

    # --- blocks of the object ---

    def clear(self, field: Tensor, weight: Tensor, rows: Tensor, columns: Tensor) -> None:
        """Set blocks of two fields to 0, in one go.

        Args:
            field: (L, H, W) complex, changed in place.
            weight: (L, H, W) real, changed in place.
            rows: (n,) int64, block coordinates along y.
            columns: (n,) int64, block coordinates along x.
        """
        self._launch_blocks(blocks.clear, len(field), rows, columns, field, weight)

    def narrow(self, sums: tuple[Tensor, Tensor], rows: Tensor, columns: Tensor, found: tuple[Tensor, Tensor]) -> None:
        """Write the object's sums and their weights to fields of the model's precision, on some blocks, in one go.

        The largest weight of each block is recorded.

        Args:
            sums: sums and weights, (parts L, H, W) each.
            rows: (n,) int64, block coordinates along y.
            columns: (n,) int64, block coordinates along x.
            found: (L, H, W) complex and (L, H, W) real, written.
        """
        slices = len(found[0])
        tops = found[1].new_empty((slices, rows.shape[0]))
        kernel_inputs, parts, half = (*sums, *found, tops), len(sums[0]) // slices, found[0].numel()
        self._launch_blocks(blocks.narrow, slices, rows, columns, *kernel_inputs, sizes=(half,), PARTS=parts)
        self._tops = found[1], rows, tops

    def largest(self, leaf: FieldView) -> Tensor:
        """Return the largest value of a real field on its blocks in each slice, (L, 1, 1, 1); of a batch's weight it is
        recorded."""
        weight, rows, tops = self._tops
        if leaf.array is not weight or leaf.rows is not rows or not tops.numel():
            return super().largest(leaf)
        return tops.amax(1).clamp_(min=0)[:, None, None, None]

    def write(
        self,
        target: Tensor,
        expression: Expression | RegularisedQuotient,
        rows: Tensor,
        columns: Tensor,
        add: bool = False,
    ) -> None:
        """Write an expression to blocks of a field, or add it; in one go if it is what most engines write.

        Args:
            target: (L, H, W) complex, changed in place.
            expression: values of the blocks.
            rows: (n,) int64, block coordinates along y.
            columns: (n,) int64, block coordinates along x.
            add: True to add.
        """
        compiled = _written(expression, target)
        if compiled is None or any(leaf.rows is not rows for leaf in compiled[0].leaves):
            return super().write(target, expression, rows, columns, add)
        form, numbers = compiled[0], compiled[1].reshape(-1)
        field, weight = form.leaves[0].array, form.leaves[-1].array
        flags: dict[str, Any] = {"TIMES": float(form.times), "BLEND": float(form.blend), "KIND": form.kind, "ADD": add}
        flags["EACH"] = numbers.numel() > 1
        self._launch_blocks(blocks.write, len(target), rows, columns, target, field, weight, numbers, **flags)

    def add_quotient(self, target: Tensor, change: Tensor, weight: Tensor, blend: float, times: float) -> None:
        """Add times change / ((1 - blend) weight + blend max weight) to a probe, in one go once the largest weight is
        known.

        Args:
            target: (M, h, w) complex, changed in place.
            change: (M, h, w) complex.
            weight: (h, w) real.
            blend: share of the largest weight in the divisor.
            times: factor.
        """
        planes = (target, change, weight)
        if change.dtype != target.dtype or not all(x.is_contiguous() and not x.is_conj() for x in planes):
            return super().add_quotient(target, change, weight, blend, times)
        area, flags = weight.numel(), {"TIMES": float(times), "BLEND": float(blend)}
        _launch(blocks.add_quotient, -(-area // TILE), *planes, weight.max(), len(target), area, **flags)

    @staticmethod
    def bring(chunk: Chunk, into: Chunk) -> None:
        """Copy a chunk's own tensors to a chunk of as many views, or more, of which the others have no light."""
        count, size = chunk.views.shape[0], into.views.shape[0]
        placed = chunk.pattern_index is not None and into.pattern_index is not None
        kernel_inputs = [
            (one.anchors, one.fractions, one.weights, one.pattern_index if placed else one.anchors)
            for one in (chunk, into)
        ]
        _launch(blocks.bring, -(-size // TILE), *kernel_inputs[0], *kernel_inputs[1], count, size, PLACES=placed)
        if not placed:
            into.counts[:count] = chunk.counts

    @staticmethod
    def _launch_blocks(
        kernel: JITFunction,
        slices: int,
        rows: Tensor,
        columns: Tensor,
        *given: Any,
        sizes: tuple[int, ...] = (),
        **flags: float,
    ) -> None:
        """Launch a program for each of these blocks of each slice."""
        n, (height, width) = rows.shape[0], given[0].shape[-2:]
        if n:
            _launch(kernel, slices * n, *given, rows, columns, n, *sizes, height, width, **flags, SIDE=BLOCK)

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
        assert into.object is not None and into.object_weight is not None
        half = into.object[0].numel() * len(into.object) // into.parts
        out, light = into.object[intermediates.index :], into.object_weight[intermediates.index :]
        bilinear = model.subpixel == "bilinear"
        corner, t = corners(chunk) if bilinear else (chunk.anchors, chunk.fractions)
        reached = _empty_largest(waves, len(waves) * _tiles(waves))
        kernel_inputs = (
            waves,
            corner,
            t,
            intermediates.beams.waves,
            intermediates.beams.amplitudes,
            into.shifts,
            out,
            light,
            reached,
            half,
        )
        flags = {"SHARED": intermediates.beams.shared, "BILINEAR": bilinear, "PARTS": into.parts}
        _launch_views(kernels.to_object, waves, *kernel_inputs, *_sizes(waves, out), **flags)
        _record_largest(into, OBJECT, reached)

    def to_probe(self, intermediates: FusedIntermediates, waves: Tensor, amplitudes: Tensor, into: Adjoints) -> None:
        """Add sum_j a_j conj(S_j O) waves_jm to the probe's sums, and sum_j a_j^2 |S_j O|^2 to its weight.

        Args:
            intermediates: windows and waves of the views.
            waves: (B, M, h, w) complex.
            amplitudes: (B,) real, amplitude of each view's beam.
            into: the sums of the batch.
        """
        _to_probe(intermediates.chunk, intermediates, waves, amplitudes, into)

    def to_probes(self, intermediates: FusedIntermediates, waves: Tensor, scaled: bool = False) -> Tensor:
        """Return conj(S_j O) waves_jm, (B, M, h, w).

        Args:
            intermediates: windows and waves of the views.
            waves: (B, M, h, w) complex.
            scaled: True to divide by sqrt(h w).
        """
        out = torch.empty_like(waves)
        kernel_inputs = (waves, intermediates.object, intermediates.corners, out)
        _launch_views(kernels.to_probes, out, *kernel_inputs, *_sizes(waves, intermediates.object), SCALED=scaled)
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

        Args:
            model: the forward model.
            chunk: the views.
            intermediates: windows and waves of the views.
            chi: (B, M, h, w) complex, changes of the exit waves.
            amplitudes: (B,) real, amplitude of each view's beam.
            into: the sums of the batch.
        """
        _to_probe(
            chunk,
            intermediates,
            fft(self.to_probes(intermediates, chi, scaled=True), "backward"),
            amplitudes,
            into,
            shifted=True,
        )

    # --- sums of single views ---

    def along_positions(self, intermediates: FusedIntermediates, chi: Tensor, by_y: Tensor, by_x: Tensor) -> Tensor:
        """Return <d_y, chi>, <d_x, chi>, ||psi||^2 of each view with d_a = -O by_a, (B, 3) float64.

        Args:
            intermediates: windows and waves of the views.
            chi: (B, M, h, w) complex, changes of the exit waves.
            by_y: (B, M, h, w) complex, derivative of the beams along y.
            by_x: (B, M, h, w) complex, derivative of the beams along x.
        """
        parts = _empty_sums(chi, 3)
        kernel_inputs = (
            chi.contiguous(),
            intermediates.object,
            intermediates.corners,
            intermediates.beams.waves,
            intermediates.beams.amplitudes,
            by_y,
            by_x,
        )
        sizes = _sizes(chi, intermediates.object)
        _launch_views(kernels.along_positions, chi, *kernel_inputs, parts, *sizes, SHARED=intermediates.beams.shared)
        return _summed(parts)

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
        parts = _empty_sums(chi, 5)
        kernel_inputs = (
            chi,
            intermediates.object,
            change,
            intermediates.corners,
            beams,
            intermediates.beams.amplitudes,
        )
        flags = {"SHARED": intermediates.beams.shared, "D_SHARED": d_beams.shared}
        changes = (d_beams.waves, d_beams.amplitudes)
        _launch_views(
            kernels.step_systems, chi, *kernel_inputs, *changes, parts, *_sizes(chi, intermediates.object), **flags
        )
        return _summed(parts)


def _written(expression: Expression | RegularisedQuotient, target: Tensor) -> tuple[BlockForm, Tensor] | None:
    """Return the form of an expression and its number for the kernel; None if the kernel does not evaluate it."""
    form = form_of(expression)
    if form is None or not isinstance(form.number, Tensor) or not target.is_contiguous() or target.is_conj():
        return None
    for leaf, dtype in zip(form.leaves, (target.dtype, target.dtype.to_real()), strict=False):
        if leaf.array is None or leaf.array.dtype != dtype or not leaf.array.is_contiguous():
            return None
    number = form.number
    sound = not number.is_complex() and number.numel() in (1, len(target)) and number.device == target.device
    return (form, number) if sound else None


def _to_probe(
    chunk: Chunk,
    intermediates: FusedIntermediates,
    waves: Tensor,
    amplitudes: Tensor,
    into: Adjoints,
    shifted: bool = False,
) -> None:
    """Launch the kernel: a program for each tile of each mode of each part of the views."""
    assert into.probe is not None
    B, M, h, w = waves.shape
    splits = max(1, min(B, PROGRAMS // (_tiles(waves) * M)))
    reached = _empty_largest(waves, _tiles(waves) * M * splits)
    arrays = (waves, intermediates.object, intermediates.corners, amplitudes, chunk.fractions)
    sums, sizes = (
        (into.shifts, into.probe, into.probe_weight, reached),
        (B, splits, M, h, w, intermediates.object.shape[1]),
    )
    _launch(kernels.to_probe, len(reached), *arrays, *sums, *sizes, SHIFTED=shifted, PARTS=into.parts)
    _record_largest(into, PROBE, reached)


def _empty_largest(like: Tensor, programs: int) -> Tensor:
    """Return an array (programs, 2) for the largest terms of each program."""
    return torch.empty((programs, 2), dtype=torch.float64, device=like.device)


def _record_largest(into: Adjoints, kind: int, reached: Tensor) -> None:
    """Record the largest terms of a kind of sum and of its weight, which is the next kind."""
    known = into.reached[kind : kind + 2]
    torch.maximum(known, reached.amax(0), out=known)


def tried(device: torch.device) -> None:
    """Run one small kernel. Raises whatever Triton or the device has against it."""
    window = torch.ones(1, 8, 8, dtype=torch.float32, device=device)
    sums = _empty_sums(window[:, None], 1)
    _launch_views(at_detector.brightness, window[:, None], window, window[0] > 0, sums, window, 64)
    if float(sums.sum()) != 64:
        raise RuntimeError(f"the sum of 64 ones was {float(sums.sum()):g}")


def _launch(kernel: JITFunction, programs: int, *given: Argument, **flags: float) -> None:
    """Run a kernel; complex arrays are passed as pairs of reals."""
    tensors = [g for g in given if isinstance(g, Tensor)]
    given = tuple(torch.view_as_real(g) if isinstance(g, Tensor) and g.is_complex() else g for g in given)
    cuda = tensors[0].device.type == "cuda"  # Triton launches on the current device, ours may be another
    if "TILE" in kernel.arg_names:
        flags["TILE"] = TILE
    with torch.cuda.device(tensors[0].device) if cuda else contextlib.nullcontext():
        kernel[(programs,)](*given, **flags)


def _launch_views(kernel: JITFunction, like: Tensor, *given: Argument, **flags: float) -> None:
    """Launch a program for each tile of each view of waves like these (B, M, h, w)."""
    _launch(kernel, len(like) * _tiles(like), *given, **flags)


def _tiles(like: Tensor) -> int:
    return -(-like.shape[-2] * like.shape[-1] // TILE)


def _least(waves: Tensor, counts: Tensor, chunk: Chunk) -> Tensor:
    """Return the power below which a pixel has no light (fidelity.Data.lit), (B,) of the waves' precision."""
    sums, area = _empty_sums(waves, 1), waves.shape[-2] * waves.shape[-1]
    _launch_views(at_detector.brightness, waves, counts, chunk.mask, sums, chunk.background, area)
    return (_summed(sums)[:, 0] * (UNLIT / area)).to(chunk.background.dtype)


def _empty_sums(waves: Tensor, columns: int) -> Tensor:
    """Return an array (B, tiles, columns) float64 for the sums of each tile."""
    return torch.empty((len(waves), _tiles(waves), columns), dtype=torch.float64, device=waves.device)


def _summed(parts: Tensor) -> Tensor:
    """Return the sums (B, columns) float64 over tiles, of (B, tiles, columns)."""
    views, tiles, columns = parts.shape
    out = parts.new_empty((views, columns))
    _launch(kernels.summed, views * columns, parts, out, tiles, columns=columns)
    return out


def _sizes(waves: Tensor, obj: Tensor) -> tuple[int, int, int, int]:
    """Return the number of modes, the area of the window, its width, and that of the object."""
    _, M, h, w = waves.shape
    return M, h * w, w, obj.shape[-1]
