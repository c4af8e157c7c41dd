"""The passes on a GPU: Triton's loops (triton_kernels.py) around torch's FFT.

B, M, h, w   views of the chunk, modes, window pixels;  K  OPR modes

Fused are slices, one after the other, to near and far fields alike. From slice to slice waves go by torch, which also
interpolates bilinear positions. What remains (what single views ask of several slices, OPR modes) is left to torch
(`Backend`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ptymesh.estimate import BLOCK
from ptymesh.kernels import triton_blocks as blocks
from ptymesh.kernels import triton_detector as at_detector
from ptymesh.kernels import triton_kernels as kernels
from ptymesh.kernels.fused import Beams, FusedBackend, FusedIntermediates, corners, varies
from ptymesh.kernels.graphs import Graphs
from ptymesh.physics import views
from ptymesh.physics.backend import Adjoints, Chunk, Result, Task, Wanted
from ptymesh.physics.background import BackgroundSums
from ptymesh.physics.blocks import Expression, FieldView, Operation, RegularisedQuotient
from ptymesh.physics.fidelity import NEWTON_STEPS, UNLIT
from ptymesh.physics.kinds import OBJECT, PROBE
from ptymesh.physics.model import Intermediates, Model
from ptymesh.physics.propagate import fft, ifft

#: Pixels of a program; tiles of one that looks for step lengths, of which every view has some, however many.
TILE, SPAN = 512, 8
#: Sums over views are split until there are about so many programs: some waves of them on the largest GPU.
PROGRAMS = 4096
KINDS = {"amplitude": 0, "poisson": 1, "intensity": 2}
QUOTIENT, ROOT, SCALED = 0, 1, 2
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

    def supports(self, model: Model, chunk: Chunk, wanted: Wanted) -> bool:
        """Far detectors of any slices in one go, several slices one after the other; sweeps of single slices as graphs,
        where launches can be captured."""
        if wanted == "apply_at_detector":
            return model.kernel is None
        if wanted in ("forward", "adjoint"):
            return not model.operators
        known = super().supports(model, chunk, wanted)
        if wanted == "sweep":
            return known and not varies(chunk) and self.graphs is not None and self.graphs.captures(chunk.mask.device)
        return known

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
        """As `Backend.sweep`; launched as one where it has come before. Waves that are kept have memory of their own if
        the batch has other chunks."""
        found = None
        if into.background is None and self.supports(model, chunk, "sweep"):
            assert self.graphs is not None and isinstance(intermediates, FusedIntermediates)
            found = self.graphs.sweep(self, model, chunk, intermediates, task, into, keep)
        if found is None:
            return super().sweep(model, chunk, intermediates, task, into, keep)
        of_views, chi, probes = found
        assert of_views is not None
        if chi is None:
            return of_views.new_empty(0), of_views
        if into.views is None or chunk.views.shape[0] < into.views:
            chi, probes = chi.clone(), None if probes is None else probes.clone()
        if probes is not None:
            intermediates.__dict__["beams"] = Beams(probes, torch.ones_like(chunk.weights[:, 0]))
        return chi, of_views

    def repeat(
        self, name: tuple[Any, ...], work: Callable[..., Result], *given: Tensor, brought: tuple[Tensor, ...] = ()
    ) -> Result:
        """As `Backend.repeat`."""
        return work(*given, *brought) if self.graphs is None else self.graphs.repeat(name, work, given, brought)

    def clear_caches(self) -> None:
        """As `Backend.clear_caches`: graphs hold memory."""
        if self.graphs is not None:
            self.graphs.forget()

    # --- forward ---

    def exit_waves(self, intermediates: FusedIntermediates) -> Tensor:
        """See the base."""
        waves, amplitudes = intermediates.beams.waves, intermediates.beams.amplitudes
        out = waves.new_empty((len(amplitudes), *waves.shape[1:]))
        given = (intermediates.object, intermediates.corners, waves, amplitudes, out)
        _by_view(kernels.exit_waves, out, *given, *_sizes(out, intermediates.object), SHARED=intermediates.beams.shared)
        return out

    def interpolated(self, chunk: Chunk, obj: Tensor, window: tuple[int, int]) -> Tensor:
        """See the base."""
        return views.cut_bilinear(obj, chunk.anchors, chunk.fractions, window).reshape(-1, window[1])

    def ramped(self, spectrum: Tensor, fractions: Tensor, amplitudes: Tensor, axis: int) -> Tensor:
        """See the base."""
        out = spectrum.new_empty((len(amplitudes), *spectrum.shape))
        scale = (out.shape[-2] * out.shape[-1]) ** -0.5
        _by_view(kernels.ramped, out, spectrum, fractions, amplitudes * scale, out, *out.shape[1:], AXIS=axis)
        return ifft(out, "forward")

    # --- the detector ---

    def apply_at_detector(
        self, model: Model, chunk: Chunk, waves: Tensor, task: Task, background_sums: BackgroundSums | None = None
    ) -> tuple[Tensor, Tensor]:
        """As `Backend.apply_at_detector`; to a far detector what makes transforms orthonormal is done on the way."""
        if background_sums is not None or not self.supports(model, chunk, "apply_at_detector"):
            return super().apply_at_detector(model, chunk, waves, task, background_sums)
        detected = fft(waves, "backward")
        found = self.at_detector(model, chunk, detected, task, scaled=True)
        return (detected if task == "evaluate" else ifft(detected, "forward")), found

    def at_detector(
        self,
        model: Model,
        chunk: Chunk,
        detected: Tensor,
        task: Task,
        background_sums: BackgroundSums | None = None,
        scaled: bool = False,
    ) -> Tensor:
        """As `Backend.at_detector`, in one pass over the detector, or three where the step has a length. scaled: Psi is
        sqrt(h w) times what it should be, and becomes 1 / sqrt(h w) times that. What views ask of a background is left
        to torch."""
        if background_sums is not None:
            return super().at_detector(model, chunk, detected, task, background_sums)
        kind, (B, M, h, w) = KINDS[model.fidelity], detected.shape
        stepped = task == "exit_wave_update" and kind != KINDS["amplitude"]
        counts = chunk.patterns.contiguous()
        parts = _parts(detected, 6)
        least = parts if task == "evaluate" else _least(detected, counts, chunk)
        given = (counts, chunk.mask, chunk.background, least)
        S = chunk.background.new_empty((B, h, w) if stepped else 0)
        _by_view(
            at_detector.detector,
            detected,
            detected,
            *given,
            S,
            parts,
            M,
            h * w,
            KIND=kind,
            TASK=TASKS[task],
            SCALED=scaled,
        )
        if stepped:
            spans, alpha, slopes = self._slopes(S, given, kind)
            sizes = (alpha, slopes, M, h * w, spans)
            _by_view(at_detector.step, detected, detected, S, *given, *sizes, KIND=kind, SCALED=scaled)
        return _summed(parts)

    @staticmethod
    def _slopes(S: Tensor, given: tuple[Tensor, ...], kind: int) -> tuple[int, Tensor, Tensor]:
        """Spans of a window, alpha (B,) before the last step of Newton's method, and the slopes (B, spans, 2) there.

        A launch for each step: it begins where the one before has found all slopes.
        """
        (B, h, w), steps = S.shape, NEWTON_STEPS if kind == KINDS["poisson"] else 1
        spans = -(-h * w // (SPAN * TILE))
        alpha, slopes = S.new_empty((steps, B)), S.new_empty((steps, B, spans, 2), dtype=torch.float64)
        for step in range(steps):
            before = max(0, step - 1)
            found = (alpha[before], slopes[before], alpha[step], slopes[step], h * w, spans)
            _launch(at_detector.step_slopes, B * spans, S, *given, *found, FIRST=step == 0, KIND=kind, SPAN=SPAN)
        return spans, alpha[-1], slopes[-1]

    # --- blocks of the object ---

    def clear(self, field: Tensor, weight: Tensor, rows: Tensor, columns: Tensor) -> None:
        """As `Backend.clear`, in one go."""
        self._on_blocks(blocks.clear, len(field), rows, columns, field, weight)

    def narrow(self, sums: tuple[Tensor, Tensor], rows: Tensor, columns: Tensor, found: tuple[Tensor, Tensor]) -> None:
        """As `Backend.narrow`, in one go, in which the largest weight of each block is noted."""
        slices = len(found[0])
        tops = found[1].new_empty((slices, rows.shape[0]))
        given, parts, half = (*sums, *found, tops), len(sums[0]) // slices, found[0].numel()
        self._on_blocks(blocks.narrow, slices, rows, columns, *given, sizes=(half,), PARTS=parts)
        self._tops = found[1], rows, tops

    def largest(self, leaf: FieldView) -> Tensor:
        """As `Backend.largest`; of a batch's weight it is known by block."""
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
        """As `Backend.write`; in one go what most engines write."""
        found = _written(expression, target)
        if found is None or any(leaf.rows is not rows for leaf in found.leaves):
            return super().write(target, expression, rows, columns, add)
        field, weight = found.leaves[0].array, found.leaves[-1].array
        numbers = found.number.reshape(-1)
        flags: dict[str, Any] = {"TIMES": found.times, "BLEND": found.blend, "KIND": found.kind, "ADD": add}
        flags["EACH"] = numbers.numel() > 1
        self._on_blocks(blocks.write, len(target), rows, columns, target, field, weight, numbers, **flags)

    def add_quotient(self, target: Tensor, change: Tensor, weight: Tensor, blend: float, times: float) -> None:
        """As `Backend.add_quotient`, in one go once the largest weight is known."""
        whole = (target, change, weight)
        if change.dtype != target.dtype or not all(x.is_contiguous() and not x.is_conj() for x in whole):
            return super().add_quotient(target, change, weight, blend, times)
        area, flags = weight.numel(), {"TIMES": float(times), "BLEND": float(blend)}
        _launch(blocks.add_quotient, -(-area // TILE), *whole, weight.max(), len(target), area, **flags)

    @staticmethod
    def bring(chunk: Chunk, into: Chunk) -> None:
        """What a chunk's views have of their own is copied to one of as many views, or more, of which these have no
        light."""
        count, size = chunk.views.shape[0], into.views.shape[0]
        placed = chunk.pattern_index is not None and into.pattern_index is not None
        given = [
            (one.anchors, one.fractions, one.weights, one.pattern_index if placed else one.anchors)
            for one in (chunk, into)
        ]
        _launch(blocks.bring, -(-size // TILE), *given[0], *given[1], count, size, PLACES=placed)
        if not placed:
            into.counts[:count] = chunk.counts

    @staticmethod
    def _on_blocks(
        kernel: Any, slices: int, rows: Tensor, columns: Tensor, *given: Any, sizes: tuple[int, ...] = (), **flags: Any
    ) -> None:
        """A program for each of these blocks of each slice."""
        n, (height, width) = rows.shape[0], given[0].shape[-2:]
        if n:
            _launch(kernel, slices * n, *given, rows, columns, n, *sizes, height, width, **flags, SIDE=BLOCK)

    # --- adjoints ---

    def to_object(
        self, model: Model, chunk: Chunk, intermediates: FusedIntermediates, waves: Tensor, into: Adjoints
    ) -> None:
        """See the base."""
        assert into.object is not None and into.object_weight is not None
        half = into.object[0].numel() * len(into.object) // into.parts
        out, light = into.object[intermediates.index :], into.object_weight[intermediates.index :]
        bilinear = model.subpixel == "bilinear"
        corner, t = corners(chunk) if bilinear else (chunk.anchors, chunk.fractions)
        reached = _reached(waves, len(waves) * _tiles(waves))
        given = (
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
        _by_view(kernels.to_object, waves, *given, *_sizes(waves, out), **flags)
        _note(into, OBJECT, reached)

    def to_probe(self, intermediates: FusedIntermediates, waves: Tensor, amplitudes: Tensor, into: Adjoints) -> None:
        """See the base."""
        _to_probe(intermediates.chunk, intermediates, waves, amplitudes, into)

    def to_probes(self, intermediates: FusedIntermediates, waves: Tensor, scaled: bool = False) -> Tensor:
        """See the base; scaled: by 1 / sqrt(h w)."""
        out = torch.empty_like(waves)
        given = (waves, intermediates.object, intermediates.corners, out)
        _by_view(kernels.to_probes, out, *given, *_sizes(waves, intermediates.object), SCALED=scaled)
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
        """See the base."""
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
        """See the base."""
        parts = _parts(chi, 3)
        given = (
            chi.contiguous(),
            intermediates.object,
            intermediates.corners,
            intermediates.beams.waves,
            intermediates.beams.amplitudes,
            by_y,
            by_x,
        )
        sizes = _sizes(chi, intermediates.object)
        _by_view(kernels.along_positions, chi, *given, parts, *sizes, SHARED=intermediates.beams.shared)
        return _summed(parts)

    def step_systems(
        self, intermediates: FusedIntermediates, change: Tensor, beams: Tensor, d_beams: Beams, chi: Tensor
    ) -> Tensor:
        """See the base."""
        parts = _parts(chi, 5)
        given = (chi, intermediates.object, change, intermediates.corners, beams, intermediates.beams.amplitudes)
        flags = {"SHARED": intermediates.beams.shared, "D_SHARED": d_beams.shared}
        changes = (d_beams.waves, d_beams.amplitudes)
        _by_view(kernels.step_systems, chi, *given, *changes, parts, *_sizes(chi, intermediates.object), **flags)
        return _summed(parts)


@dataclass(frozen=True)
class Written:
    """What `triton_blocks.write` makes of fields (the weight last), and of numbers."""

    kind: int
    leaves: tuple[FieldView, ...]
    number: Tensor
    times: float = 1.0
    blend: float = 0.0


def _written(expression: Expression | RegularisedQuotient, target: Tensor) -> Written | None:
    """How the kernel writes this; None where it does not."""
    found = (
        _quotient(expression)
        if isinstance(expression, RegularisedQuotient)
        else _root(expression) or _scaled(expression)
    )
    if found is None or not target.is_contiguous() or target.is_conj():
        return None
    first, last, number = found.leaves[0].array, found.leaves[-1].array, found.number
    real = target.dtype.to_real()
    if first is None or last is None or first.dtype != target.dtype or not first.is_contiguous():
        return None
    if last is not first and (last.dtype != real or not last.is_contiguous()):
        return None
    sound = not number.is_complex() and number.numel() in (1, len(target)) and number.device == target.device
    return found if sound else None


def _quotient(quotient: RegularisedQuotient) -> Written | None:
    """times field / ((1 - blend) weight + blend top)."""
    change, weight, top = quotient.change, quotient.weight, quotient.top
    if not (isinstance(change, FieldView) and isinstance(weight, FieldView) and isinstance(top, Tensor)):
        return None
    return Written(QUOTIENT, (change, weight), top, float(quotient.times), float(quotient.blend))


def _root(expression: Expression) -> Written | None:
    """field / sqrt(weight weight + number)."""
    if (
        not isinstance(expression, Operation)
        or expression.name != "divide"
        or not isinstance(expression.first, FieldView)
    ):
        return None
    root = expression.second
    total = root.first if isinstance(root, Operation) and root.name == "sqrt" else None
    square = total.first if isinstance(total, Operation) and total.name == "add" else None
    if not isinstance(square, Operation) or square.name != "multiply" or square.first is not square.second:
        return None
    assert isinstance(total, Operation)
    if not isinstance(square.first, FieldView) or not isinstance(total.second, Tensor):
        return None
    return Written(ROOT, (expression.first, square.first), total.second)


def _scaled(expression: Expression) -> Written | None:
    """number field."""
    if (
        not isinstance(expression, Operation)
        or expression.name != "multiply"
        or not isinstance(expression.first, FieldView)
    ):
        return None
    number = expression.second
    return Written(SCALED, (expression.first,), number) if isinstance(number, Tensor) else None


def _to_probe(
    chunk: Chunk,
    intermediates: FusedIntermediates,
    waves: Tensor,
    amplitudes: Tensor,
    into: Adjoints,
    shifted: bool = False,
) -> None:
    """See the kernel: a program for each tile of each mode of each part of the views."""
    assert into.probe is not None
    B, M, h, w = waves.shape
    splits = max(1, min(B, PROGRAMS // (_tiles(waves) * M)))
    reached = _reached(waves, _tiles(waves) * M * splits)
    arrays = (waves, intermediates.object, intermediates.corners, amplitudes, chunk.fractions)
    sums, sizes = (
        (into.shifts, into.probe, into.probe_weight, reached),
        (B, splits, M, h, w, intermediates.object.shape[1]),
    )
    _launch(kernels.to_probe, len(reached), *arrays, *sums, *sizes, SHIFTED=shifted, PARTS=into.parts)
    _note(into, PROBE, reached)


def _reached(like: Tensor, programs: int) -> Tensor:
    """Of the terms of each program, (programs, 2)."""
    return torch.empty((programs, 2), dtype=torch.float64, device=like.device)


def _note(into: Adjoints, kind: int, reached: Tensor) -> None:
    """Terms of a kind of sum and of its weight, which is the next kind, were as large as programs have found."""
    known = into.reached[kind : kind + 2]
    torch.maximum(known, reached.amax(0), out=known)


def tried(device: torch.device) -> None:
    """Runs one small kernel. Raises whatever Triton or the device has against it."""
    window = torch.ones(1, 8, 8, dtype=torch.float32, device=device)
    sums = _parts(window[:, None], 1)
    _by_view(at_detector.brightness, window[:, None], window, window[0] > 0, sums, window, 64)
    if float(sums.sum()) != 64:
        raise RuntimeError(f"the sum of 64 ones was {float(sums.sum()):g}")


def _launch(kernel: Any, programs: int, *given: Any, **flags: Any) -> None:
    """Runs a kernel; complex arrays are handed over as pairs of reals."""
    tensors = [g for g in given if isinstance(g, Tensor)]
    given = tuple(torch.view_as_real(g) if isinstance(g, Tensor) and g.is_complex() else g for g in given)
    cuda = tensors[0].device.type == "cuda"  # Triton launches on the current device, ours may be another
    if "TILE" in kernel.arg_names:
        flags["TILE"] = TILE
    with torch.cuda.device(tensors[0].device) if cuda else contextlib.nullcontext():
        kernel[(programs,)](*given, **flags)


def _by_view(kernel: Any, like: Tensor, *given: Any, **flags: Any) -> None:
    """A program for each tile of each view of waves like these (B, M, h, w)."""
    _launch(kernel, len(like) * _tiles(like), *given, **flags)


def _tiles(like: Tensor) -> int:
    return -(-like.shape[-2] * like.shape[-1] // TILE)


def _least(waves: Tensor, counts: Tensor, chunk: Chunk) -> Tensor:
    """Power below which a pixel of each view has no light (fidelity.Data.lit), (B,) of the waves' precision."""
    sums, area = _parts(waves, 1), waves.shape[-2] * waves.shape[-1]
    _by_view(at_detector.brightness, waves, counts, chunk.mask, sums, chunk.background, area)
    return (_summed(sums)[:, 0] * (UNLIT / area)).to(chunk.background.dtype)


def _parts(waves: Tensor, columns: int) -> Tensor:
    """(B, tiles, columns) float64."""
    return torch.empty((len(waves), _tiles(waves), columns), dtype=torch.float64, device=waves.device)


def _summed(parts: Tensor) -> Tensor:
    """(B, columns) float64 of (B, tiles, columns)."""
    views, tiles, columns = parts.shape
    out = parts.new_empty((views, columns))
    _launch(kernels.summed, views * columns, parts, out, tiles, columns=columns)
    return out


def _sizes(waves: Tensor, obj: Tensor) -> tuple[int, int, int, int]:
    """M, area of the window, its width, that of the object."""
    _, M, h, w = waves.shape
    return M, h * w, w, obj.shape[-1]
