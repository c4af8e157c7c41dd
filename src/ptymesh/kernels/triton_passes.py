"""The passes on a GPU: Triton's loops (triton_kernels.py) around torch's FFT.

B, M, h, w   views of the chunk, modes, window pixels;  K  OPR modes

Fused are single slices, near and far field alike; bilinear positions are interpolated by torch. What remains (several
slices, arithmetic on blocks) is left to the torch twin.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ptymesh.kernels import triton_kernels as kernels
from ptymesh.physics import views
from ptymesh.physics.model import Model, Scene
from ptymesh.physics.passes import Adjoints, Chunk, Passes, step_along
from ptymesh.physics.propagate import fft, ifft

#: Pixels of a program.
TILE = 512
#: Sums over views are split until there are about so many programs: some waves of them on the largest GPU.
PROGRAMS = 4096
KINDS = {"amplitude": 0, "poisson": 1, "intensity": 2}
WATCH, REVISE, DESCEND = 0, 1, 2


@dataclass(frozen=True)
class Beams:
    """Probes (1 or B, M, h, w) and the amplitudes (B,) that multiply them."""

    waves: Tensor
    amplitudes: Tensor

    @property
    def shared(self) -> bool:
        """Whether all views have the same."""
        return len(self.waves) == 1


class GpuScene(Scene):
    """A scene of a single slice that computes what it is asked for.

    object (H', W') and corners (B, 2) say where each window is: in the object itself or, with bilinear positions, in a
    column of interpolated windows.
    """

    def __init__(self, model: Model, chunk: Chunk, obj: Tensor, probe: Tensor | None, beams: Beams) -> None:
        set_ = object.__setattr__  # the base class is frozen
        for name, value in (("probe", probe), ("beams", beams)):
            set_(self, name, value)
        field, corners = cut_from(model, chunk, obj, _window(beams.waves))
        set_(self, "object", field)
        set_(self, "corners", corners)

    probe: Tensor | None  # what beams are made of, if that is all
    beams: Beams
    object: Tensor
    corners: Tensor

    @cached_property
    def windows(self) -> Tensor:
        """(B, 1, h, w)."""
        return views.cut(self.object[None], self.corners, _window(self.beams.waves))

    @cached_property
    def incoming(self) -> tuple[Tensor, ...]:
        """One (B, M, h, w)."""
        return (self.beams.waves * self.beams.amplitudes[:, None, None, None],)

    @cached_property
    def exit(self) -> Tensor:
        """(B, M, h, w)."""
        waves, amplitudes = self.beams.waves, self.beams.amplitudes
        out = waves.new_empty((len(amplitudes), *waves.shape[1:]))
        given = (self.object, self.corners, waves, amplitudes, out)
        _by_view(kernels.exit_waves, out, *given, *_sizes(out, self.object), SHARED=self.beams.shared)
        return out


def cut_from(model: Model, chunk: Chunk, obj: Tensor, window: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Array (H', W') and pixels (B, 2) of it where the windows of the chunk start: obj (1, H, W) or interpolated."""
    if model.subpixel != "bilinear":
        return obj[0], chunk.anchors
    column = views.cut_bilinear(obj, chunk.anchors, chunk.fractions, window).reshape(-1, window[1])
    starts = torch.zeros_like(chunk.anchors)
    starts[:, 0] = torch.arange(len(starts), device=starts.device) * window[0]
    return column, starts


class GpuPasses(Passes):
    """Passes by Triton."""

    # --- forward ---

    def scene(self, model: Model, chunk: Chunk, obj: Tensor, probe: Tensor, opr: Tensor | None = None) -> Scene:
        """As the twin's; windows and waves are computed when they are asked for."""
        if model.slice_kernel is not None:
            return super().scene(model, chunk, obj, probe, opr)
        only = None if opr is not None and len(opr) else probe
        return GpuScene(model, chunk, obj.contiguous(), only, self.beams(model, chunk, probe, opr))

    def kept(self, scene: Scene) -> Scene | None:
        """A fused scene with its probes, which took a transform."""
        if not isinstance(scene, GpuScene):
            return None
        scene.__dict__.pop("exit", None)  # made again if it is asked for
        return scene

    def beams(self, model: Model, chunk: Chunk, probe: Tensor, opr: Tensor | None = None) -> Beams:
        """P_jm of the chunk's views."""
        if opr is not None and len(opr):
            waves = model.probes(probe, chunk.fractions, chunk.weights, opr).contiguous()
            return Beams(waves, torch.ones_like(chunk.weights[:, 0]))
        amplitudes = chunk.weights[:, 0].contiguous()
        if model.subpixel != "fourier" or chunk.whole:
            return Beams(probe[None].contiguous(), amplitudes)
        return Beams(ifft(self._ramped(chunk, probe, amplitudes)), torch.ones_like(amplitudes))

    def _ramped(self, chunk: Chunk, probe: Tensor, amplitudes: Tensor, axis: int = -1) -> Tensor:
        """w_j0 exp(-2 pi i k.f_j) F P_m, (B, M, h, w), and with an axis its derivative's."""
        name = f"spectrum {id(probe)}"  # of a tensor that is kept, so that no other takes its name
        kept = chunk.sweep.get(name)
        if kept is None:
            kept = chunk.sweep[name] = (probe, fft(probe))
        out = probe.new_empty((len(amplitudes), *probe.shape))
        _by_view(kernels.ramped, out, kept[1], chunk.fractions, amplitudes, out, *out.shape[1:], AXIS=axis)
        return out

    # --- the detector ---

    def revise(self, model: Model, chunk: Chunk, detected: Tensor) -> Tensor:
        """As the twin's, in one pass over the detector, or three where the step has a length."""
        return self._detector(model, chunk, detected, REVISE)

    def descend(self, model: Model, chunk: Chunk, detected: Tensor) -> Tensor:
        """As the twin's, in one pass over the detector."""
        return self._detector(model, chunk, detected, DESCEND)

    def watch(self, model: Model, chunk: Chunk, detected: Tensor) -> Tensor:
        """As the twin's, in one pass over the detector."""
        return self._detector(model, chunk, detected, WATCH)

    def _detector(self, model: Model, chunk: Chunk, detected: Tensor, task: int) -> Tensor:
        kind, (B, M, h, w) = KINDS[model.fidelity], detected.shape
        stepped = task == REVISE and kind != KINDS["amplitude"]
        given = (chunk.patterns.contiguous(), chunk.mask, chunk.background)
        S = chunk.background.new_empty((B, h, w) if stepped else 0)
        parts = _parts(detected, 6)
        _by_view(kernels.detector, detected, detected, *given, S, parts, M, h * w, KIND=kind, TASK=task)
        if stepped:
            alpha = torch.full_like(S[:, 0, 0], 0.5)
            _launch(kernels.step_lengths, B, S, *given, alpha, h * w, KIND=kind)
            _by_view(kernels.step, detected, detected, S, *given, alpha, M, h * w, KIND=kind)
        return parts.sum(1)

    # --- adjoints ---

    def adjoint(self, model: Model, chunk: Chunk, scene: Scene, waves: Tensor, into: Adjoints) -> None:
        """As the twin's; a probe that was shifted is summed in Fourier space until `finish`."""
        if not isinstance(scene, GpuScene):
            super().adjoint(model, chunk, scene, waves, into)
            return
        waves = waves.contiguous()
        if into.object is not None and into.object_weight is not None:
            self._to_object(model, chunk, scene, waves, into.object[0], into.object_weight[0])
        if into.probe is not None:
            self._to_probe(model, chunk, scene, waves, into)

    def _to_object(
        self, model: Model, chunk: Chunk, scene: GpuScene, waves: Tensor, out: Tensor, weight: Tensor
    ) -> None:
        bilinear, corner, t = model.subpixel == "bilinear", chunk.anchors, chunk.fractions
        if bilinear:
            below = torch.floor(t)
            corner, t = corner + below.to(corner.dtype), t - below
        given = (waves, corner, t, scene.beams.waves, scene.beams.amplitudes, out, weight)
        flags = {"SHARED": scene.beams.shared, "BILINEAR": bilinear}
        _by_view(kernels.to_object, waves, *given, *_sizes(waves, out), **flags)

    def _to_probe(self, model: Model, chunk: Chunk, scene: GpuScene, waves: Tensor, into: Adjoints) -> None:
        assert into.probe is not None
        B, M, h, w = waves.shape
        amplitudes = chunk.weights[:, 0].contiguous()
        obj, corners, W = scene.object, scene.corners, scene.object.shape[1]
        if len(into.opr):
            to_probes = self._to_probes(scene, waves, torch.ones_like(amplitudes))
            into.probe += model.probes_adjoint(to_probes, chunk.fractions, chunk.weights)
            into.opr += model.opr_adjoint(to_probes, chunk.fractions, chunk.weights)
            power = scene.windows[:, 0].real.square() + scene.windows[:, 0].imag.square()
            squares = chunk.weights**2
            into.probe_weight += torch.einsum("b,bhw->hw", squares[:, 0], power)
            into.opr_weight += torch.einsum("bk,bhw->khw", squares[:, 1:], power)
        elif model.subpixel == "fourier" and not chunk.whole:
            to_probes = fft(self._to_probes(scene, waves, amplitudes))
            if into.spectrum is None:
                into.spectrum = torch.zeros_like(into.probe)
            parts = waves.new_empty((_splits(waves, M), M, h, w))
            _over_views(kernels.unramped, parts, M, to_probes, chunk.fractions, parts, B, M, h, w)
            into.spectrum += parts.sum(0)
            light = amplitudes.new_empty((_splits(waves, 1), h, w))
            _over_views(kernels.probe_weight, light, 1, obj, corners, amplitudes, light, B, h * w, w, W)
            into.probe_weight += light.sum(0)
        else:
            parts = waves.new_empty((_splits(waves, M), M, h, w))
            light = amplitudes.new_empty((len(parts), h, w))
            given = (waves, obj, corners, amplitudes, parts, light, B, M, h * w, w, W)
            _over_views(kernels.to_probe, parts, M, *given)
            into.probe += parts.sum(0)
            into.probe_weight += light.sum(0)

    @staticmethod
    def _to_probes(scene: GpuScene, waves: Tensor, amplitudes: Tensor) -> Tensor:
        out = torch.empty_like(waves)
        given = (waves, scene.object, scene.corners, amplitudes, out)
        _by_view(kernels.to_probes, out, *given, *_sizes(waves, scene.object))
        return out

    def finish(self, into: Adjoints) -> None:
        """The one inverse transform of the probe's sum."""
        if into.spectrum is not None and into.probe is not None:
            into.probe += ifft(into.spectrum)
            into.spectrum = None

    # --- sums of single views ---

    def position_step(self, model: Model, chunk: Chunk, obj: Tensor, scene: Scene, chi: Tensor) -> Tensor:
        """As the twin's; fused for shifted probes in the far field."""
        fused = model.subpixel == "fourier" and model.kernel is None
        if not fused or not isinstance(scene, GpuScene) or scene.probe is None:
            return super().position_step(model, chunk, obj, scene, chi)
        amplitudes = chunk.weights[:, 0].contiguous()
        by_y, by_x = (ifft(self._ramped(chunk, scene.probe, amplitudes, axis)) for axis in (0, 1))
        parts = _parts(chi, 5)
        given = (chi.contiguous(), scene.object, scene.corners, scene.beams.waves, scene.beams.amplitudes, by_y, by_x)
        sizes = _sizes(chi, scene.object)
        _by_view(kernels.along_positions, chi, *given, parts, *sizes, SHARED=scene.beams.shared)
        along_y, norm_y, along_x, norm_x, exit_norm = parts.sum(1).unbind(1)
        steps = (step_along(along_y, norm_y, exit_norm, chi), step_along(along_x, norm_x, exit_norm, chi))
        return torch.stack(steps, dim=1)

    def systems(
        self, model: Model, chunk: Chunk, scene: Scene, d_object: Tensor, d_probe: Tensor, chi: Tensor
    ) -> Tensor:
        """As the twin's."""
        if not isinstance(scene, GpuScene):
            return super().systems(model, chunk, scene, d_object, d_probe, chi)
        modes, parts = chi.shape[1], _parts(chi, 5)
        change, _ = cut_from(model, chunk, d_object.contiguous(), _window(chi))
        d_beams = self.beams(model, chunk, d_probe if modes == len(d_probe) else d_probe[:modes])
        beams = scene.beams.waves[:, :modes].contiguous()
        given = (chi.contiguous(), scene.object, change, scene.corners, beams, scene.beams.amplitudes)
        change_of_beams = (d_beams.waves, d_beams.amplitudes)
        flags = {"SHARED": scene.beams.shared, "D_SHARED": d_beams.shared}
        _by_view(kernels.step_systems, chi, *given, *change_of_beams, parts, *_sizes(chi, scene.object), **flags)
        return parts.sum(1)


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


def _over_views(kernel: Any, parts: Tensor, modes: int, *given: Any) -> None:
    """A program for each tile of each mode of each of the parts (splits, ..., h, w) that sum over some views."""
    _launch(kernel, _tiles(parts) * modes * len(parts), *given, len(parts))


def _tiles(like: Tensor) -> int:
    return -(-like.shape[-2] * like.shape[-1] // TILE)


def _splits(waves: Tensor, modes: int) -> int:
    return max(1, min(len(waves), PROGRAMS // (_tiles(waves) * modes)))


def _parts(waves: Tensor, columns: int) -> Tensor:
    """(B, tiles, columns) float64."""
    return torch.empty((len(waves), _tiles(waves), columns), dtype=torch.float64, device=waves.device)


def _sizes(waves: Tensor, obj: Tensor) -> tuple[int, int, int, int]:
    """M, area of the window, its width, that of the object."""
    _, M, h, w = waves.shape
    return M, h * w, w, obj.shape[-1]


def _window(waves: Tensor) -> tuple[int, int]:
    return waves.shape[-2], waves.shape[-1]
