"""The passes on a CPU: numba's loops (compiled.py) around torch's FFT.

B, M, h, w   views of the chunk, modes, window pixels;  K  OPR modes

Fused are single slices, near and far field alike, with every kind of sub-pixel position; of what remains (several
slices), the detector's pass is, and the rest is left to the torch twin.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from operator import is_not
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ptymesh.kernels import blocks, compiled, compiled_blocks, compiled_fixed, compiled_fourier
from ptymesh.kernels.fused import Beams, FusedPasses, FusedScene, corners, window_of
from ptymesh.kernels.ready import make_ready, share_threads
from ptymesh.physics import fidelity
from ptymesh.physics.blocks import Expression, Leaf
from ptymesh.physics.model import Model
from ptymesh.physics.passes import Chunk, Task
from ptymesh.physics.propagate import fft, ifft

#: Rows of an object or window are given to threads in so many bands each, so that these end at the same time.
BANDS = 4
TASKS = {"watch": compiled_fourier.WATCH, "revise": compiled_fourier.REVISE, "descend": compiled_fourier.DESCEND}
#: Dtypes of patterns that are read as they are, by their number in the kernel.
NATIVE = [getattr(torch, name) for name in compiled_fourier.NATIVE]


class CpuPasses(FusedPasses):
    """Passes by numba.

    Args:
        dtype: complex64 or complex128.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.real = torch.float32 if dtype == torch.complex64 else torch.float64
        make_ready(dtype)
        self._nothing = torch.zeros(0, 2, dtype=self.real)
        self.constants = _constants(self.real, 1.0)
        #: Mask and background with their versions, and what `_planes` made of them.
        self._given: tuple[tuple[Tensor, Tensor], tuple[int, int]] | None = None
        self._made: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], bool]

    begin = staticmethod(share_threads)

    # --- forward ---

    def exit_waves(self, scene: FusedScene) -> Tensor:
        """See the base."""
        obj, corner, beams, amplitudes = _parts(scene)
        out = torch.empty((len(corner), *beams.shape[1:]), dtype=scene.beams.waves.dtype)
        compiled.exit_waves(obj, corner, beams, amplitudes, out.numpy())
        return out

    def interpolated(self, chunk: Chunk, obj: Tensor, window: tuple[int, int]) -> Tensor:
        """See the base."""
        corner, t = corners(chunk)
        out = torch.empty((len(t), *window), dtype=obj.dtype)
        numbers = torch.tensor([0, 1], dtype=t.dtype)
        compiled.interpolated(*_arrays(obj[0], corner, t, numbers, out))
        return out.view(-1, window[1])

    def ramped(self, spectrum: Tensor, fractions: Tensor, amplitudes: Tensor, axis: int) -> Tensor:
        """See the base."""
        columns = _columns(window_of(spectrum), self.real)
        out = torch.empty((len(amplitudes), *spectrum.shape), dtype=spectrum.dtype)
        given = _arrays(spectrum, fractions, amplitudes)
        compiled_fourier.ramped(*given, axis, columns.constants, columns.stages, columns.turns, out.numpy())
        return torch.fft.ifft(out, norm="forward") if columns.known else ifft(out)

    # --- the detector ---

    def revise(self, model: Model, chunk: Chunk, detected: Tensor) -> Tensor:
        """As the twin's, in one pass over the detector."""
        return self._detector(model, chunk, detected, compiled_fourier.REVISE)

    def descend(self, model: Model, chunk: Chunk, detected: Tensor) -> Tensor:
        """As the twin's, in one pass over the detector."""
        return self._detector(model, chunk, detected, compiled_fourier.DESCEND)

    def watch(self, model: Model, chunk: Chunk, detected: Tensor) -> Tensor:
        """As the twin's, in one pass over the detector."""
        return self._detector(model, chunk, detected, compiled_fourier.WATCH)

    def there_and_back(self, model: Model, chunk: Chunk, waves: Tensor, task: Task) -> tuple[Tensor, Tensor]:
        """As the twin's; in the far field, columns are transformed in the pass over the detector."""
        columns = _columns(window_of(waves), self.real)
        if model.kernel is not None or not columns.known:
            return super().there_and_back(model, chunk, waves, task)
        rows = torch.fft.fft(waves)
        found = self._detector(model, chunk, rows, TASKS[task], columns)
        return (rows if task == "watch" else torch.fft.ifft(rows, norm="forward")), found

    def _detector(
        self, model: Model, chunk: Chunk, detected: Tensor, task: int, columns: Columns | None = None
    ) -> Tensor:
        assert detected.is_contiguous(), "waves on the detector come from a transform"
        kept = chunk.sweep.get("detector")
        if kept is None:
            kept = chunk.sweep["detector"] = self._planes(chunk.mask, chunk.background)
        counts, places = chunk.counts, chunk.places
        if counts.dtype not in NATIVE or not counts.is_contiguous():
            counts, places = chunk.patterns.to(self.real).contiguous(), None
        if places is None:
            places = torch.arange(len(counts))
        found = torch.empty((len(detected), 6), dtype=torch.float64)
        transform = columns or _untransformed(self.real)
        compiled_fourier.detector(
            *_arrays(detected, counts.view(torch.uint8), places),
            NATIVE.index(counts.dtype),
            *kept[:2],
            transform.constants,
            kept[2],
            compiled_fourier.KINDS[model.fidelity],
            task,
            transform.stages,
            transform.turns,
            found.numpy(),
        )
        return found

    def _planes(self, mask: Tensor, background: Tensor) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], bool]:
        """Mask and background as the kernel reads them, and whether there is any; made anew when they have changed."""
        tensors, versions = (mask, background), (mask._version, background._version)
        if self._given is None or any(map(is_not, self._given[0], tensors)) or self._given[1] != versions:
            good, light = (compiled_fourier.in_strips(plane.numpy()) for plane in tensors)
            self._given, self._made = (tensors, versions), (good.astype(light.dtype), light, bool(light.any()))
        return self._made

    # --- adjoints ---

    def to_object(
        self, model: Model, chunk: Chunk, scene: FusedScene, waves: Tensor, out: Tensor, light: Tensor
    ) -> None:
        """See the base."""
        if model.subpixel == "bilinear":
            corner, t = corners(chunk)
        else:
            corner, t = chunk.anchors, self._zeros(chunk.fractions)
        _, _, beams, amplitudes = _parts(scene)
        arrays = (*_arrays(waves, corner, t), beams, amplitudes)
        compiled.to_object(*arrays, _bands(), self.constants, *_arrays(out, light))

    def _zeros(self, like: Tensor) -> Tensor:
        if len(self._nothing) < len(like):
            self._nothing = torch.zeros_like(like)
        return self._nothing[: len(like)]

    def illuminate(self, model: Model, chunk: Chunk, light: Tensor, out: Tensor) -> None:
        """As the twin's."""
        compiled.add_light(*_arrays(light, chunk.anchors, chunk.weights[:, 0]), _bands(), *_arrays(out))

    def to_probe(self, scene: FusedScene, waves: Tensor, amplitudes: Tensor, out: Tensor, light: Tensor) -> None:
        """See the base."""
        arrays = (_array(waves), *_parts(scene)[:2], _array(amplitudes))
        compiled.to_probe(*arrays, _bands(), *_arrays(out, light))

    def to_probes(self, scene: FusedScene, waves: Tensor, amplitudes: Tensor, light: Tensor | None) -> Tensor:
        """See the base."""
        out = torch.empty_like(waves)
        light = waves.new_zeros(waves.shape[-2:], dtype=self.real) if light is None else light
        arrays = (_array(waves), *_parts(scene)[:2], _array(amplitudes))
        compiled.to_probes(*arrays, _bands(), *_arrays(out, light))
        return out

    def unramped(self, waves: Tensor, fractions: Tensor, out: Tensor) -> None:
        """See the base."""
        columns = _columns(window_of(waves), self.real)
        rows = torch.fft.fft(waves) if columns.known else fft(waves)
        given = _arrays(rows, fractions)
        compiled_fourier.unramped(*given, columns.constants, columns.stages, columns.turns, out.numpy())

    # --- blocks of the object ---

    def clear(self, field: Tensor, weight: Tensor, rows: Tensor, columns: Tensor) -> None:
        """As the twin's."""
        compiled_blocks.clear(_places(rows, columns), _bands(), *_arrays(field, weight))

    def largest(self, leaf: Leaf) -> Tensor:
        """As the twin's."""
        if leaf.whole is None or len(leaf.rows) == 0 or leaf.whole.dtype != self.real:
            return super().largest(leaf)
        found = leaf.whole.new_empty((_bands(), len(leaf.whole)))
        compiled_blocks.largest(_places(leaf.rows, leaf.columns), len(found), *_arrays(leaf.whole, found))
        return found.amax(0)[:, None, None, None]

    def write(self, target: Tensor, expression: Expression, rows: Tensor, columns: Tensor, add: bool = False) -> None:
        """As the twin's, block by block while they are in the cache, for expressions of up to four fields."""
        if not blocks.write(target, expression, rows, columns, add, _bands()):
            super().write(target, expression, rows, columns, add)

    def add_fixed(self, values: Tensor, corners: Tensor, exponent: int, bits: int, out: Tensor) -> bool:
        """As the twin's, in one pass."""
        share_threads()
        numbers = np.array([2.0**exponent, 2.0**bits, 2.0**bits], dtype=_numpy_dtype(values.dtype))
        beyond = np.empty(values.shape[1] * values.shape[4], dtype=np.int64)
        compiled_fixed.add_fixed(*_arrays(values, corners), numbers, out.numpy(), beyond)
        return not beyond.any()

    # --- sums of single views ---

    def along_positions(self, scene: FusedScene, chi: Tensor, by_y: Tensor, by_x: Tensor) -> Tensor:
        """See the base."""
        found = torch.empty((len(chi), 5), dtype=torch.float64)
        arrays = (_array(chi), *_parts(scene), *_arrays(by_y, by_x))
        compiled.along_positions(*arrays, self.constants, found.numpy())
        return found

    def step_systems(self, scene: FusedScene, change: Tensor, beams: Tensor, d_beams: Beams, chi: Tensor) -> Tensor:
        """See the base."""
        out = torch.empty((len(chi), 5), dtype=torch.float64)
        obj, corner, _, amplitudes = _parts(scene)
        arrays = (_array(chi), obj, _array(change), corner, _array(beams), amplitudes)
        compiled.step_systems(*arrays, *_arrays(d_beams.waves, d_beams.amplitudes), self.constants, out.numpy())
        return out


@dataclass(frozen=True)
class Columns:
    """How columns of windows are transformed: constants of the kernels, stages and turns (see compiled_fourier)."""

    constants: np.ndarray[Any, Any]
    stages: np.ndarray[Any, Any]
    turns: np.ndarray[Any, Any]

    @property
    def known(self) -> bool:
        """Whether there is such a transform; if not, the kernels leave columns alone."""
        return len(self.stages) > 0


@lru_cache
def _columns(window: tuple[int, int], real: torch.dtype) -> Columns:
    height, width = window
    stages = compiled_fourier.stages(height)
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
    if t.is_contiguous():
        try:
            return t.numpy()
        except RuntimeError:  # it has a gradient, or is to be conjugated
            pass
    return t.detach().resolve_conj().contiguous().numpy()


def _parts(scene: FusedScene) -> tuple[np.ndarray[Any, Any], ...]:
    """Object, corners, beams and their amplitudes, for all kernels of a chunk."""
    kept: tuple[np.ndarray[Any, Any], ...] | None = scene.__dict__.get("arrays")
    if kept is None:
        kept = _arrays(scene.object, scene.corners, scene.beams.waves, scene.beams.amplitudes)
        scene.__dict__["arrays"] = kept
    return kept


def _places(rows: Tensor, columns: Tensor) -> np.ndarray[Any, Any]:
    """(1, 2, n)."""
    return np.array((rows.numpy(), columns.numpy()))[None]


def _bands() -> int:
    threads = torch.get_num_threads()
    return 1 if threads == 1 else BANDS * threads


def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype).numpy().dtype
