"""The passes on a GPU: Triton's loops (triton_kernels.py) around torch's FFT.

B, M, h, w   views of the chunk, modes, window pixels;  K  OPR modes

Fused are single slices, near and far field alike; bilinear positions are interpolated by torch. What remains (several
slices, arithmetic on blocks) is left to torch (`Backend`).
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from ptymesh.kernels import triton_kernels as kernels
from ptymesh.kernels.fused import Beams, FusedBackend, FusedIntermediates, corners
from ptymesh.kernels.graphs import Graphs
from ptymesh.physics import views
from ptymesh.physics.backend import Adjoints, Chunk, Task
from ptymesh.physics.fidelity import UNLIT
from ptymesh.physics.kinds import OBJECT, PROBE
from ptymesh.physics.model import Intermediates, Model
from ptymesh.physics.propagate import fft, ifft

#: Pixels of a program.
TILE = 512
#: Sums over views are split until there are about so many programs: some waves of them on the largest GPU.
PROGRAMS = 4096
KINDS = {"amplitude": 0, "poisson": 1, "intensity": 2}
EVALUATE, EXIT_WAVE_UPDATE, LOSS_GRADIENT = 0, 1, 2
TASKS = {"evaluate": EVALUATE, "exit_wave_update": EXIT_WAVE_UPDATE, "loss_gradient": LOSS_GRADIENT}


class GpuBackend(FusedBackend):
    """The backend of GPUs, by Triton.

    Args:
        capture: whether sweeps that come again are launched as one.
    """

    def __init__(self, capture: bool = True) -> None:
        self.graphs = Graphs() if capture else None

    def sweep(
        self, model: Model, chunk: Chunk, intermediates: Intermediates, task: Task, into: Adjoints, keep: bool = False
    ) -> tuple[Tensor, Tensor]:
        """As `Backend.sweep`; launched as one where it has come before and nobody wants the waves."""
        found = (
            None if keep or self.graphs is None else self.graphs.sweep(self, model, chunk, intermediates, task, into)
        )
        if found is None:
            return super().sweep(model, chunk, intermediates, task, into, keep)
        return found.new_empty(0), found

    def forget(self) -> None:
        """As `Backend.forget`: graphs hold memory."""
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

    def there_and_back(self, model: Model, chunk: Chunk, waves: Tensor, task: Task) -> tuple[Tensor, Tensor]:
        """As `Backend.there_and_back`; to a far detector what makes transforms orthonormal is done on the way."""
        if model.kernel is not None:
            return super().there_and_back(model, chunk, waves, task)
        detected = fft(waves, "backward")
        found = self._detector(model, chunk, detected, TASKS[task], scaled=True)
        return (detected if task == "evaluate" else ifft(detected, "forward")), found

    def exit_wave_update(self, model: Model, chunk: Chunk, detected: Tensor) -> Tensor:
        """As `Backend.exit_wave_update`, in one pass over the detector, or three where the step has a length."""
        return self._detector(model, chunk, detected, EXIT_WAVE_UPDATE)

    def loss_gradient(self, model: Model, chunk: Chunk, detected: Tensor) -> Tensor:
        """As `Backend.loss_gradient`, in one pass over the detector."""
        return self._detector(model, chunk, detected, LOSS_GRADIENT)

    def evaluate(self, model: Model, chunk: Chunk, detected: Tensor) -> Tensor:
        """As `Backend.evaluate`, in one pass over the detector."""
        return self._detector(model, chunk, detected, EVALUATE)

    def _detector(self, model: Model, chunk: Chunk, detected: Tensor, task: int, scaled: bool = False) -> Tensor:
        """scaled: Psi is sqrt(h w) times what it should be, and becomes 1 / sqrt(h w) times that."""
        kind, (B, M, h, w) = KINDS[model.fidelity], detected.shape
        stepped = task == EXIT_WAVE_UPDATE and kind != KINDS["amplitude"]
        counts = chunk.patterns.contiguous()
        parts = _parts(detected, 6)
        least = parts if task == EVALUATE else _least(detected, counts, chunk)
        given = (counts, chunk.mask, chunk.background, least)
        S = chunk.background.new_empty((B, h, w) if stepped else 0)
        _by_view(kernels.detector, detected, detected, *given, S, parts, M, h * w, KIND=kind, TASK=task, SCALED=scaled)
        if stepped:
            alpha = torch.full_like(S[:, 0, 0], 0.5)
            _launch(kernels.step_lengths, B, S, *given, alpha, h * w, KIND=kind)
            _by_view(kernels.step, detected, detected, S, *given, alpha, M, h * w, KIND=kind, SCALED=scaled)
        return _summed(parts)

    # --- adjoints ---

    def to_object(
        self, model: Model, chunk: Chunk, intermediates: FusedIntermediates, waves: Tensor, into: Adjoints
    ) -> None:
        """See the base."""
        assert into.object is not None and into.object_weight is not None
        out, light = into.object, into.object_weight
        bilinear, (H, W) = model.subpixel == "bilinear", out.shape[1:]
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
            H * W,
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
        parts = _parts(chi, 5)
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
    _by_view(kernels.brightness, window[:, None], window, window[0] > 0, sums, window, 64)
    if float(sums.sum()) != 64:
        raise RuntimeError(f"the sum of 64 ones was {float(sums.sum()):g}")


def _launch(kernel: Any, programs: int, *given: Any, **flags: Any) -> None:
    """Runs a kernel; complex arrays are handed over as pairs of reals."""
    tensors = [g for g in given if isinstance(g, Tensor)]
    given = tuple(torch.view_as_real(g) if isinstance(g, Tensor) and g.is_complex() else g for g in given)
    cuda = tensors[0].device.type == "cuda"  # Triton launches on the current device, ours may be another
    with torch.cuda.device(tensors[0].device) if cuda else contextlib.nullcontext():
        kernel[(programs,)](*given, **flags, TILE=TILE)


def _by_view(kernel: Any, like: Tensor, *given: Any, **flags: Any) -> None:
    """A program for each tile of each view of waves like these (B, M, h, w)."""
    _launch(kernel, len(like) * _tiles(like), *given, **flags)


def _tiles(like: Tensor) -> int:
    return -(-like.shape[-2] * like.shape[-1] // TILE)


def _least(waves: Tensor, counts: Tensor, chunk: Chunk) -> Tensor:
    """Power below which a pixel of each view has no light (fidelity.Data.lit), (B,) of the waves' precision."""
    sums, area = _parts(waves, 1), waves.shape[-2] * waves.shape[-1]
    _by_view(kernels.brightness, waves, counts, chunk.mask, sums, chunk.background, area)
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
