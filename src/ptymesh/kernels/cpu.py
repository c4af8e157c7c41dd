"""The passes on a CPU: numba's loops (compiled.py) around torch's FFT.

B, M, h, w   views of the chunk, modes, window pixels;  K  OPR modes

Fused are single slices, near and far field alike, with every kind of sub-pixel position; of what remains (several
slices), the detector's pass is, and the rest is left to the torch twin.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ptymesh.kernels import blocks, compiled, compiled_blocks, compiled_detector, compiled_fixed
from ptymesh.kernels.ready import make_ready, share_threads
from ptymesh.physics import fidelity, views
from ptymesh.physics.blocks import Expression, Leaf
from ptymesh.physics.model import Model, Scene
from ptymesh.physics.passes import Adjoints, Chunk, Passes, Task, step_along
from ptymesh.physics.propagate import fft, ifft

#: Rows of an object or window are given to threads in so many bands each, so that these end at the same time.
BANDS = 4
TASKS = {"watch": compiled_detector.WATCH, "revise": compiled_detector.REVISE, "descend": compiled_detector.DESCEND}
#: Dtypes of patterns that are read as they are, by their number in the kernel.
NATIVE = [getattr(torch, name) for name in compiled_detector.NATIVE]


@dataclass(frozen=True)
class Beams:
    """Probes (1 or B, M, h, w) and the amplitudes (B,) that multiply them."""

    waves: Tensor
    amplitudes: Tensor


class FusedScene(Scene):
    """A scene of a single slice that computes what it is asked for.

    `object` (H', W') and `corners` (B, 2) say where each window is: in the object itself or, with bilinear positions,
    in a column of interpolated windows.
    """

    def __init__(self, model: Model, chunk: Chunk, obj: Tensor, probe: Tensor | None, beams: Beams) -> None:
        set_ = object.__setattr__  # the base class is frozen
        set_(self, "model", model)
        set_(self, "chunk", chunk)
        set_(self, "whole_object", obj)
        set_(self, "probe", probe)
        set_(self, "beams", beams)

    model: Model
    chunk: Chunk
    whole_object: Tensor
    probe: Tensor | None  # what beams are made of, if that is all
    beams: Beams

    @cached_property
    def windows(self) -> Tensor:
        """(B, 1, h, w)."""
        if self.model.subpixel == "bilinear":
            return self.object.view(len(self.corners), 1, -1, self.object.shape[1])
        return views.cut(self.whole_object, self.chunk.anchors, _window(self.beams.waves))

    @cached_property
    def incoming(self) -> tuple[Tensor, ...]:
        """One (B, M, h, w)."""
        return (self.beams.waves * self.beams.amplitudes[:, None, None, None],)

    @cached_property
    def exit(self) -> Tensor:
        """(B, M, h, w)."""
        waves, amplitudes = self.beams.waves, self.beams.amplitudes
        out = torch.empty((len(amplitudes), *waves.shape[1:]), dtype=waves.dtype)
        compiled.exit_waves(*_arrays(self.object, self.corners, waves, amplitudes, out))
        return out

    @cached_property
    def _cut(self) -> tuple[Tensor, Tensor]:
        return cut_from(self.model, self.chunk, self.whole_object, _window(self.beams.waves))

    @property
    def object(self) -> Tensor:
        """(H', W')."""
        return self._cut[0]

    @property
    def corners(self) -> Tensor:
        """(B, 2)."""
        return self._cut[1]


def cut_from(model: Model, chunk: Chunk, obj: Tensor, window: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Array (H', W') and pixels (B, 2) of it where the windows of the chunk start: obj (1, H, W) or interpolated."""
    if model.subpixel != "bilinear":
        return obj[0], chunk.anchors
    corner, t = corners(chunk)
    out = torch.empty((len(t), *window), dtype=obj.dtype)
    numbers = torch.tensor([0, 1], dtype=t.dtype)
    compiled.interpolated(*_arrays(obj[0], corner, t, numbers, out))
    starts = torch.zeros_like(corner)
    starts[:, 0] = torch.arange(len(t)) * window[0]
    return out.view(-1, window[1]), starts


def corners(chunk: Chunk) -> tuple[Tensor, Tensor]:
    """Top-left pixel of the interpolation (B, 2) and weights of the next ones (B, 2) in [0, 1)."""
    below = torch.floor(chunk.fractions)
    return chunk.anchors + below.to(chunk.anchors.dtype), chunk.fractions - below


class CpuPasses(Passes):
    """Passes by numba.

    Args:
        dtype: complex64 or complex128.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.real = torch.float32 if dtype == torch.complex64 else torch.float64
        make_ready(dtype)
        self._nothing = torch.zeros(0, 2, dtype=self.real)
        self.constants = _constants(self.real, 1.0)

    # --- forward ---

    def scene(self, model: Model, chunk: Chunk, obj: Tensor, probe: Tensor, opr: Tensor | None = None) -> Scene:
        """As the twin's; windows and waves are computed when they are asked for."""
        if model.slice_kernel is not None:
            return super().scene(model, chunk, obj, probe, opr)
        share_threads()
        only = None if opr is not None and len(opr) else probe
        return FusedScene(model, chunk, obj.contiguous(), only, self.beams(model, chunk, probe, opr))

    def kept(self, scene: Scene) -> Scene | None:
        """A fused scene with its probes, which took a transform."""
        if not isinstance(scene, FusedScene):
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
        out = torch.empty((len(amplitudes), *probe.shape), dtype=probe.dtype)
        arrays = _arrays(kept[1], chunk.fractions, amplitudes)
        compiled.ramped(*arrays, axis, out.numpy())
        return out

    # --- the detector ---

    def revise(self, model: Model, chunk: Chunk, detected: Tensor) -> Tensor:
        """As the twin's, in one pass over the detector."""
        return self._detector(model, chunk, detected, compiled_detector.REVISE)

    def descend(self, model: Model, chunk: Chunk, detected: Tensor) -> Tensor:
        """As the twin's, in one pass over the detector."""
        return self._detector(model, chunk, detected, compiled_detector.DESCEND)

    def watch(self, model: Model, chunk: Chunk, detected: Tensor) -> Tensor:
        """As the twin's, in one pass over the detector."""
        return self._detector(model, chunk, detected, compiled_detector.WATCH)

    def there_and_back(self, model: Model, chunk: Chunk, waves: Tensor, task: Task) -> tuple[Tensor, Tensor]:
        """As the twin's; in the far field, columns are transformed in the pass over the detector."""
        columns = _columns(_window(waves), self.real)
        if model.kernel is not None or not columns.known:
            return super().there_and_back(model, chunk, waves, task)
        rows = torch.fft.fft(waves)
        found = self._detector(model, chunk, rows, TASKS[task], columns)
        return (rows if task == "watch" else columns.rows_back(rows)), found

    def _detector(
        self, model: Model, chunk: Chunk, detected: Tensor, task: int, columns: Columns | None = None
    ) -> Tensor:
        assert detected.is_contiguous(), "waves on the detector come from a transform"
        kept = chunk.sweep.get("detector")
        if kept is None:
            planes = [torch.from_numpy(compiled_detector.in_strips(p.numpy())) for p in (chunk.mask, chunk.background)]
            kept = chunk.sweep["detector"] = (planes[0].to(self.real), planes[1], chunk.background.any())
        counts, places = chunk.counts, chunk.places
        if counts.dtype not in NATIVE or not counts.is_contiguous():
            counts, places = chunk.patterns.to(self.real).contiguous(), None
        if places is None:
            places = torch.arange(len(counts))
        found = torch.empty((len(detected), 6), dtype=torch.float64)
        transform = columns or _untransformed(self.real)
        compiled_detector.detector(
            *_arrays(detected, counts.view(torch.uint8), places),
            NATIVE.index(counts.dtype),
            *_arrays(*kept[:2]),
            transform.constants,
            bool(kept[2]),
            compiled_detector.KINDS[model.fidelity],
            task,
            transform.stages,
            transform.turns,
            found.numpy(),
        )
        return found

    # --- adjoints ---

    def adjoint(self, model: Model, chunk: Chunk, scene: Scene, waves: Tensor, into: Adjoints) -> None:
        """As the twin's; a probe that was shifted is summed in Fourier space until `finish`."""
        if not isinstance(scene, FusedScene):
            super().adjoint(model, chunk, scene, waves, into)
            return
        waves = waves.contiguous()
        if into.object is not None and into.object_weight is not None:
            self._to_object(model, chunk, scene, waves, into.object[0], into.object_weight[0])
        if into.probe is not None:
            self._to_probe(model, chunk, scene, waves, into)

    def _to_object(
        self, model: Model, chunk: Chunk, scene: FusedScene, waves: Tensor, out: Tensor, weight: Tensor
    ) -> None:
        if model.subpixel == "bilinear":
            corner, t = corners(chunk)
        else:
            corner, t = chunk.anchors, self._zeros(chunk.fractions)
        arrays = _arrays(waves, corner, t, scene.beams.waves, scene.beams.amplitudes)
        compiled.to_object(*arrays, _bands(), self.constants, *_arrays(out, weight))

    def _zeros(self, like: Tensor) -> Tensor:
        if len(self._nothing) < len(like):
            self._nothing = torch.zeros_like(like)
        return self._nothing[: len(like)]

    def illuminate(self, model: Model, chunk: Chunk, light: Tensor, out: Tensor) -> None:
        """As the twin's."""
        compiled.add_light(*_arrays(light, chunk.anchors, chunk.weights[:, 0]), _bands(), *_arrays(out))

    def _to_probe(self, model: Model, chunk: Chunk, scene: FusedScene, waves: Tensor, into: Adjoints) -> None:
        assert into.probe is not None
        shifted = model.subpixel == "fourier" and not chunk.whole
        amplitudes = chunk.weights[:, 0].contiguous()
        given = _arrays(waves, scene.object, scene.corners, amplitudes)
        if len(into.opr):
            ones = torch.ones_like(amplitudes)
            to_probes = torch.empty_like(waves)
            unweighted = torch.zeros_like(into.probe_weight)
            compiled.to_probes(*given[:3], ones.numpy(), _bands(), *_arrays(to_probes, unweighted))
            into.probe += model.probes_adjoint(to_probes, chunk.fractions, chunk.weights)
            into.opr += model.opr_adjoint(to_probes, chunk.fractions, chunk.weights)
            power = scene.windows[:, 0].real.square() + scene.windows[:, 0].imag.square()
            squares = chunk.weights**2
            into.probe_weight += torch.einsum("b,bhw->hw", squares[:, 0], power)
            into.opr_weight += torch.einsum("bk,bhw->khw", squares[:, 1:], power)
        elif shifted:
            to_probes = torch.empty_like(waves)
            compiled.to_probes(*given, _bands(), *_arrays(to_probes, into.probe_weight))
            if into.spectrum is None:
                into.spectrum = torch.zeros_like(into.probe)
            compiled.unramped(*_arrays(fft(to_probes), chunk.fractions), _bands(), into.spectrum.numpy())
        else:
            compiled.to_probe(*given, _bands(), *_arrays(into.probe, into.probe_weight))

    def finish(self, into: Adjoints) -> None:
        """The one inverse transform of the probe's sum."""
        if into.spectrum is not None and into.probe is not None:
            into.probe += ifft(into.spectrum)
            into.spectrum = None

    # --- blocks of the object ---

    def clear(self, field: Tensor, weight: Tensor, rows: Tensor, columns: Tensor) -> None:
        """As the twin's."""
        compiled_blocks.clear(*_arrays(rows, columns, field, weight))

    def largest(self, leaf: Leaf) -> Tensor:
        """As the twin's."""
        if leaf.whole is None or len(leaf.rows) == 0 or leaf.whole.dtype != self.real:
            return super().largest(leaf)
        found = leaf.whole.new_empty((len(leaf.whole), len(leaf.rows)))
        compiled_blocks.largest(*_arrays(leaf.rows, leaf.columns, leaf.whole, found))
        return found.amax(1).clamp(min=0)[:, None, None, None]

    def write(self, target: Tensor, expression: Expression, rows: Tensor, columns: Tensor, add: bool = False) -> None:
        """As the twin's, block by block while they are in the cache, for expressions of up to four fields."""
        if not blocks.write(target, expression, rows, columns, add):
            super().write(target, expression, rows, columns, add)

    def add_fixed(self, values: Tensor, corners: Tensor, exponent: int, bits: int, out: Tensor) -> bool:
        """As the twin's, in one pass."""
        share_threads()
        numbers = np.array([2.0**exponent, 2.0**bits, 2.0**bits], dtype=_numpy_dtype(values.dtype))
        beyond = np.empty(values.shape[1] * values.shape[4], dtype=np.int64)
        compiled_fixed.add_fixed(*_arrays(values, corners), numbers, out.numpy(), beyond)
        return not beyond.any()

    # --- sums of single views ---

    def position_step(self, model: Model, chunk: Chunk, obj: Tensor, scene: Scene, chi: Tensor) -> Tensor:
        """As the twin's; fused for shifted probes in the far field."""
        fused = model.subpixel == "fourier" and model.kernel is None
        if not fused or not isinstance(scene, FusedScene) or scene.probe is None:
            return super().position_step(model, chunk, obj, scene, chi)
        amplitudes = chunk.weights[:, 0].contiguous()
        by_y, by_x = (ifft(self._ramped(chunk, scene.probe, amplitudes, axis)) for axis in (0, 1))
        found = torch.empty((len(chi), 5), dtype=torch.float64)
        arrays = _arrays(chi, scene.object, scene.corners, scene.beams.waves, scene.beams.amplitudes, by_y, by_x)
        compiled.along_positions(*arrays, self.constants, found.numpy())
        along_y, norm_y, along_x, norm_x, exit_norm = found.unbind(1)
        steps = (step_along(along_y, norm_y, exit_norm, chi), step_along(along_x, norm_x, exit_norm, chi))
        return torch.stack(steps, dim=1)

    def systems(
        self, model: Model, chunk: Chunk, scene: Scene, d_object: Tensor, d_probe: Tensor, chi: Tensor
    ) -> Tensor:
        """As the twin's."""
        if not isinstance(scene, FusedScene):
            return super().systems(model, chunk, scene, d_object, d_probe, chi)
        modes = chi.shape[1]
        change, _ = cut_from(model, chunk, d_object, _window(chi))
        d_beams = self.beams(model, chunk, d_probe if modes == len(d_probe) else d_probe[:modes])
        beams = scene.beams.waves[:, :modes].contiguous()
        out = torch.empty((len(chi), 5), dtype=torch.float64)
        arrays = _arrays(chi.contiguous(), scene.object, change, scene.corners, beams, scene.beams.amplitudes)
        compiled.step_systems(*arrays, *_arrays(d_beams.waves, d_beams.amplitudes), self.constants, out.numpy())
        return out


@dataclass(frozen=True)
class Columns:
    """How columns of windows are transformed: constants of the kernels, stages and turns (see compiled_detector)."""

    constants: np.ndarray[Any, Any]
    stages: np.ndarray[Any, Any]
    turns: np.ndarray[Any, Any]

    @property
    def arrays(self) -> tuple[np.ndarray[Any, Any], ...]:
        """As the kernels take them."""
        return self.constants, self.stages, self.turns

    @property
    def known(self) -> bool:
        """Whether there is such a transform; if not, the kernels leave columns alone."""
        return len(self.stages) > 0

    def rows_back(self, waves: Tensor) -> Tensor:
        """F^H of waves whose columns have been transformed, or that are still in Fourier space altogether."""
        return torch.fft.ifft(waves, norm="forward") if self.known else ifft(waves)


@lru_cache
def _columns(window: tuple[int, int], real: torch.dtype) -> Columns:
    height, width = window
    stages = compiled_detector.stages(height)
    if not stages:
        return _untransformed(real)
    angles = 2 * np.pi * np.arange(height) / height
    turns = np.stack((np.cos(angles), -np.sin(angles))).astype(_numpy_dtype(real))
    return Columns(_constants(real, (height * width) ** -0.5), np.array(stages), turns)


@lru_cache
def _untransformed(real: torch.dtype) -> Columns:
    return Columns(_constants(real, 1.0), np.zeros(0, dtype=np.int64), np.zeros((2, 0), dtype=_numpy_dtype(real)))


def _constants(real: torch.dtype, scale: float) -> np.ndarray[Any, Any]:
    numbers = [0, 1, fidelity.DARK, fidelity.DARK**0.5, fidelity.BRIGHTEST_RATIO, fidelity.NEWTON_STEPS, scale]
    return np.array(numbers, dtype=_numpy_dtype(real))


def _arrays(*tensors: Tensor) -> tuple[np.ndarray[Any, Any], ...]:
    """The same memory for numba, which wants it contiguous."""
    return tuple([_array(t) for t in tensors])


def _array(t: Tensor) -> np.ndarray[Any, Any]:
    if t.requires_grad or t.is_conj() or not t.is_contiguous():
        t = t.detach().resolve_conj().contiguous()
    return t.numpy()


def _bands() -> int:
    threads = torch.get_num_threads()
    return 1 if threads == 1 else BANDS * threads


def _window(waves: Tensor) -> tuple[int, int]:
    return waves.shape[-2], waves.shape[-1]


def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype).numpy().dtype
