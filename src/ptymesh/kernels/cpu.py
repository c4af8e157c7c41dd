"""The passes on a CPU: numba's loops (compiled.py, compiled_*.py), with torch's FFT where these have none.

B, M, h, w   views of the chunk, modes, window pixels;  K  OPR modes

Fused are single slices, near and far field alike, with every kind of sub-pixel position; of what remains (several
slices), the detector's pass is, and the rest is left to the torch twin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import is_not
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ptymesh.estimate import BLOCK
from ptymesh.kernels import (
    blocks,
    compiled,
    compiled_blocks,
    compiled_detector,
    compiled_fixed,
    compiled_probes,
    strips,
)
from ptymesh.kernels.comparison import KINDS
from ptymesh.kernels.fused import Beams, FusedPasses, FusedScene, corners, window_of
from ptymesh.kernels.ready import make_ready, share_threads
from ptymesh.physics import fidelity, views
from ptymesh.physics.blocks import Expression, Leaf
from ptymesh.physics.model import Model, Scene
from ptymesh.physics.passes import Adjoints, Chunk, Task
from ptymesh.physics.propagate import fft, frequencies, ifft

#: Rows of an object or window are given to threads in so many bands each, so that these end at the same time.
BANDS = 4
#: Rows of blocks from which on an object counts as large.
LARGE = 32
#: Groups of views that are summed by themselves before they are summed up.
GROUPS = 16
TASKS = {"watch": compiled_detector.WATCH, "revise": compiled_detector.REVISE, "descend": compiled_detector.DESCEND}
#: Dtypes of patterns that are read as they are, by their number in the kernel.
NATIVE = [getattr(torch, name) for name in compiled_detector.NATIVE]


class CpuPasses(FusedPasses):
    """Passes by numba.

    Args:
        dtype: complex64 or complex128.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.real = torch.float32 if dtype == torch.complex64 else torch.float64
        make_ready(dtype)
        self._nothing, self._room = torch.zeros(0, 2, dtype=self.real), torch.zeros(0, dtype=self.real)
        self.constants = _constants(self.real, 1.0)
        nothing = torch.zeros(0, 1, 1, dtype=self.real)
        self._no_shift = _arrays(nothing.to(dtype), self._nothing)
        self._none_stale = torch.zeros(0, 0, dtype=torch.uint8)
        self._no_sums = _arrays(nothing.to(dtype), nothing, nothing, nothing, torch.zeros(0, dtype=torch.int64))
        #: Mask and background with their versions, and what `_planes` made of them.
        self._given: tuple[tuple[Tensor, Tensor], tuple[int, int]] | None = None
        self._made: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], bool]

    prepare = staticmethod(share_threads)

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
        transform = _transform(window_of(spectrum), self.real)
        if not transform.known:
            return _ramped(spectrum, fractions, amplitudes, axis)
        out = torch.empty((len(amplitudes), *spectrum.shape), dtype=spectrum.dtype)
        given = _arrays(spectrum, fractions, amplitudes)
        work = self._work(_threads_for(len(out)), out.shape[1:])
        compiled_probes.ramped(work, *given, axis, transform.tables, out.numpy())
        return out

    # --- the detector ---

    def revise(self, model: Model, chunk: Chunk, detected: Tensor) -> Tensor:
        """As the twin's, in one pass over the detector."""
        return self._at_detector(model, chunk, detected, "revise")

    def descend(self, model: Model, chunk: Chunk, detected: Tensor) -> Tensor:
        """As the twin's, in one pass over the detector."""
        return self._at_detector(model, chunk, detected, "descend")

    def watch(self, model: Model, chunk: Chunk, detected: Tensor) -> Tensor:
        """As the twin's, in one pass over the detector."""
        return self._at_detector(model, chunk, detected, "watch")

    def there_and_back(self, model: Model, chunk: Chunk, waves: Tensor, task: Task) -> tuple[Tensor, Tensor]:
        """As the twin's; in the far field, view by view in one go."""
        transform = self._far_field(model, window_of(waves))
        if transform is None:
            return super().there_and_back(model, chunk, waves, task)
        return self._detector(model, chunk, _waves_alone(chunk, waves), task, transform)

    def expose(self, model: Model, chunk: Chunk, scene: Scene, task: Task) -> tuple[Tensor, Tensor]:
        """As the twin's; in the far field the exit waves are made on the way."""
        transform = self._far_field(model, window_of(scene.beams.waves)) if isinstance(scene, FusedScene) else None
        if transform is None or not isinstance(scene, FusedScene):
            return super().expose(model, chunk, scene, task)
        return self._detector(model, chunk, (_parts(scene), True), task, transform)

    def sweep(
        self, model: Model, chunk: Chunk, scene: Scene, task: Task, into: Adjoints, keep: bool = False
    ) -> tuple[Tensor, Tensor]:
        """As the twin's; in the far field shifted probes, and what comes of them, stay in the cache view by view.

        Probes that all views share gain nothing by it: passes over a chunk sum faster what is summed over views.
        """
        complete = into.object is not None and into.probe is not None and not into.opr.shape[0]
        transform = self._gathering(model, window_of(into.probe_weight), chunk.whole) if complete else None
        if transform is None or not isinstance(scene, FusedScene):
            return super().sweep(model, chunk, scene, task, into, keep)
        return self._sweep(model, chunk, scene, task, into, keep, transform)

    def _sweep(
        self, model: Model, chunk: Chunk, scene: FusedScene, task: Task, into: Adjoints, keep: bool, far: Transform
    ) -> tuple[Tensor, Tensor]:
        probe, amplitudes, count = scene.probe, chunk.weights[:, 0].contiguous(), chunk.views.shape[0]
        assert probe is not None
        into.spectrum = torch.zeros_like(probe) if into.spectrum is None else into.spectrum
        self._begin_groups(into, probe)
        threads, window = min(_threads_for(count), GROUPS), scene.window
        beams, out = (probe.new_empty((count if keep else threads, *probe.shape)) for _ in range(2))
        windows, light = probe.new_empty((count, *window)), amplitudes.new_empty((count, *window))
        anchors, shift = chunk.anchors, _arrays(self.spectrum(chunk, probe), chunk.fractions)
        given = (_arrays(scene.whole_object[0], anchors, beams, amplitudes), True)
        gathered = _arrays(windows, light, *into.kept)
        found = self._detector(model, chunk, given, task, far, out, (shift, gathered, threads, keep))[1]
        compiled.add_windows(*_arrays(windows, light, anchors), _bands(), *self._object_sums(into))
        if keep:
            scene.__dict__["beams"] = Beams(beams, torch.ones_like(amplitudes))
        return out, found

    def sweep_bytes(self, model: Model, probe: Tensor, whole: bool) -> int:
        """As the twin's; a view's modes stay in the cache where `sweep` does."""
        modes = 1 if self._gathering(model, window_of(probe), whole) else len(probe)
        return probe[0].numel() * probe.element_size() * modes

    def _gathering(self, model: Model, window: tuple[int, int], whole: bool) -> Transform | None:
        """The transform with which `sweep` goes view by view, if it does."""
        shifts = model.subpixel == "fourier" and not whole and model.slice_kernel is None
        return self._far_field(model, window) if shifts else None

    def _far_field(self, model: Model, window: tuple[int, int]) -> Transform | None:
        """The transform to the detector, if the kernels know it."""
        transform = _transform(window, self.real)
        return transform if model.kernel is None and transform.known else None

    def _at_detector(self, model: Model, chunk: Chunk, detected: Tensor, task: Task) -> Tensor:
        assert detected.is_contiguous(), "waves on the detector come from a transform"
        given = _waves_alone(chunk, detected)
        return self._detector(model, chunk, given, task, _untransformed(self.real), detected)[1]

    def _detector(
        self,
        model: Model,
        chunk: Chunk,
        given: tuple[Any, bool],
        task: Task,
        transform: Transform,
        out: Tensor | None = None,
        gathering: tuple[Any, Any, int, bool] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """What the task makes of waves, in `out` if that is given, and of each view the sums.

        given: the kernel's scene, and whether exit waves are to be made of it; gathering: its shift, what it gathers
        into, on how many threads, and whether waves are kept.
        """
        kept = chunk.sweep.get("detector")
        if kept is None:
            kept = chunk.sweep["detector"] = self._planes(chunk.mask, chunk.background)
        counts, places = chunk.counts, chunk.places
        if counts.dtype not in NATIVE or not counts.is_contiguous():
            counts, places = chunk.patterns.to(self.real).contiguous(), None
        scene, product = given
        (_, *wave), count = scene[2].shape, len(scene[3])
        if places is None:
            places = torch.arange(count)
        if out is None:  # of a watch nothing comes back
            out = torch.empty((0 if task == "watch" else count, *wave), dtype=self.real.to_complex())
        found = torch.empty((count, 6), dtype=torch.float64)
        shift, into, threads, keep = gathering or (self._no_shift, self._no_sums, _threads_for(count), True)
        how = (NATIVE.index(counts.dtype), kept[2], product, KINDS[model.fidelity], TASKS[task])
        data = (*_arrays(counts.view(torch.uint8), places), *kept[:2])
        work = self._work(threads, wave)
        compiled_detector.detector(work, scene, shift, data, how, keep, transform.tables, *_arrays(out, found), into)
        return out, found

    def _planes(self, mask: Tensor, background: Tensor) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], bool]:
        """Mask and background as the kernel reads them, and whether there is any; made anew when they have changed."""
        tensors, versions = (mask, background), (mask._version, background._version)
        if self._given is None or any(map(is_not, self._given[0], tensors)) or self._given[1] != versions:
            good, light = (strips.in_strips(plane.numpy()) for plane in tensors)
            self._given, self._made = (tensors, versions), (good.astype(light.dtype), light, bool(light.any()))
        return self._made

    # --- adjoints ---

    def to_object(self, model: Model, chunk: Chunk, scene: FusedScene, waves: Tensor, into: Adjoints) -> None:
        """See the base."""
        if model.subpixel == "bilinear":
            corner, t = corners(chunk)
        else:
            corner, t = chunk.anchors, self._zeros(chunk.fractions)
        _, _, beams, amplitudes = _parts(scene)
        arrays = (*_arrays(waves, corner, t), beams, amplitudes)
        compiled.to_object(*arrays, _bands(), self.constants, *self._object_sums(into))

    def _object_sums(self, into: Adjoints) -> tuple[np.ndarray[Any, Any], ...]:
        """Stale blocks, sums and weight (H, W)."""
        assert into.object is not None and into.object_weight is not None
        stale = self._none_stale if into.stale is None else into.stale
        return _arrays(stale, into.object[0], into.object_weight[0])

    def _zeros(self, like: Tensor) -> Tensor:
        if self._nothing.shape[0] < like.shape[0]:
            self._nothing = torch.zeros_like(like)
        return self._nothing[: like.shape[0]]

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

    def to_spectrum(
        self, scene: FusedScene, chi: Tensor, fractions: Tensor, amplitudes: Tensor, into: Adjoints
    ) -> None:
        """See the base; sums stay in groups until `finish`."""
        assert into.spectrum is not None
        window = window_of(chi)
        transform = _transform(window, self.real)
        if not transform.known:
            waves = fft(self.to_probes(scene, chi, amplitudes, into.probe_weight))
            into.spectrum += (waves * views.ramps(-fractions, window)[:, None]).sum(0)
            return
        self._begin_groups(into, into.spectrum)
        obj, corner, _, _ = _parts(scene)
        work = self._work(min(_threads_for(len(chi)), GROUPS), chi.shape[1:])
        given = (_array(chi), obj, corner, *_arrays(amplitudes, fractions))
        compiled_probes.to_spectrum(work, *given, transform.tables, *_arrays(*into.kept))

    def _begin_groups(self, into: Adjoints, probe: Tensor) -> None:
        """Room for sums over groups of views of what a probe (M, h, w) gathers, if there is none yet."""
        if not into.kept:
            window = window_of(probe)
            sums = torch.empty((GROUPS, len(probe), strips.pixels(*window) * 2), dtype=self.real)
            light = torch.empty((GROUPS, *window), dtype=self.real)
            into.kept = (sums, light, torch.zeros(GROUPS, dtype=torch.int64))

    def finish(self, into: Adjoints) -> None:
        """As the base's, after groups of views have been summed up."""
        if into.kept and into.spectrum is not None:
            compiled_probes.gather_groups(self.constants, *_arrays(*into.kept, into.spectrum, into.probe_weight))
            into.kept = ()
        super().finish(into)

    def _work(self, bands: int, wave: Sequence[int]) -> np.ndarray[Any, Any]:
        """Room for so many bands of a kernel that goes through waves (M, h, w)."""
        each = strips.room(*wave)
        if self._room.shape[0] < bands * each:
            self._room = torch.empty(bands * each, dtype=self.real)
        return self._room[: bands * each].view(bands, each).numpy()

    # --- blocks of the object ---

    def begin(self, field: Tensor, weight: Tensor, rows: Tensor, columns: Tensor) -> Tensor | None:
        """Blocks of an object larger than the caches are cleared when they are first added to, and are there already.

        Bands of rows then must not share a block: of few blocks, there would be too few bands.
        """
        slices, height, width = field.shape
        if slices > 1 or height < LARGE * BLOCK:
            self.clear(field, weight, rows, columns)
            return None
        stale = torch.zeros(height // BLOCK, width // BLOCK, dtype=torch.uint8)
        stale.numpy()[rows.numpy(), columns.numpy()] = 1
        return stale

    def settle(self, into: Adjoints) -> None:
        """As the twin's."""
        if into.stale is not None:
            assert into.object is not None and into.object_weight is not None
            rows, columns = map(torch.from_numpy, into.stale.numpy().nonzero())
            self.clear(into.object, into.object_weight, rows, columns)
            into.stale = None

    def clear(self, field: Tensor, weight: Tensor, rows: Tensor, columns: Tensor) -> None:
        """As the twin's."""
        compiled_blocks.clear(_places(rows, columns), _bands(), *_arrays(field, weight))

    def largest(self, leaf: Leaf) -> Tensor:
        """As the twin's."""
        if leaf.whole is None or not leaf.rows.shape[0] or leaf.whole.dtype != self.real:
            return super().largest(leaf)
        bands = _bands()
        found = leaf.whole.new_empty((bands, leaf.whole.shape[0]))
        compiled_blocks.largest(_places(leaf.rows, leaf.columns), bands, *_arrays(leaf.whole, found))
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

    def systems(
        self, model: Model, chunk: Chunk, scene: Scene, d_object: Tensor, d_probe: Tensor, chi: Tensor
    ) -> Tensor:
        """As the twin's; in the far field shifted directions of the probe stay in the cache view by view."""
        far = self._gathering(model, window_of(chi), chunk.whole)
        if far is None or not isinstance(scene, FusedScene):
            return super().systems(model, chunk, scene, d_object, d_probe, chi)
        modes, threads = chi.shape[1], _threads_for(len(chi))
        spectrum = self.spectrum(chunk, d_probe if modes == len(d_probe) else d_probe[:modes])
        obj, corner, _, amplitudes = _parts(scene)
        beams, d_beams = scene.beams.waves[:, :modes], chi.new_empty((threads, *chi.shape[1:]))
        arrays = (_array(chi), obj, _array(d_object[0]), corner, _array(beams), amplitudes, _array(spectrum))
        shift, out = _arrays(chunk.fractions, chunk.weights[:, 0]), torch.empty((len(chi), 5), dtype=torch.float64)
        work = self._work(threads, chi.shape[1:])
        compiled_probes.shifted_systems(work, *arrays, shift, far.tables, *_arrays(d_beams, out))
        return out

    def step_systems(self, scene: FusedScene, change: Tensor, beams: Tensor, d_beams: Beams, chi: Tensor) -> Tensor:
        """See the base."""
        out = torch.empty((len(chi), 5), dtype=torch.float64)
        obj, corner, _, amplitudes = _parts(scene)
        arrays = (_array(chi), obj, _array(change), corner, _array(beams), amplitudes)
        compiled.step_systems(*arrays, *_arrays(d_beams.waves, d_beams.amplitudes), self.constants, out.numpy())
        return out


@dataclass(frozen=True)
class Transform:
    """How windows are transformed: constants of the kernels, plan and turns (see strips.py)."""

    constants: np.ndarray[Any, Any]
    plan: np.ndarray[Any, Any]
    turns: np.ndarray[Any, Any]

    @property
    def known(self) -> bool:
        """Whether there is such a transform; if not, the kernels leave waves as they are."""
        return bool(self.plan[0, 0])

    @property
    def tables(self) -> tuple[np.ndarray[Any, Any], ...]:
        """All of it, for a kernel."""
        return self.constants, self.plan, self.turns


@lru_cache
def _transform(window: tuple[int, int], real: torch.dtype) -> Transform:
    stages = [strips.stages(size) for size in window]
    if not all(stages):
        return _untransformed(real)
    plan = np.zeros((2, max(map(len, stages))), dtype=np.int64)
    turns = np.zeros((2, 2 * max(window)), dtype=_numpy_dtype(real))
    for axis, size in enumerate(window):
        angles = 2 * np.pi * np.arange(size) / size
        plan[axis, : len(stages[axis])] = stages[axis]
        turns[axis, : 2 * size] = np.stack((np.cos(angles), -np.sin(angles)), axis=1).ravel()
    return Transform(_constants(real, (window[0] * window[1]) ** -0.5), plan, turns)


@lru_cache
def _untransformed(real: torch.dtype) -> Transform:
    return Transform(_constants(real, 1.0), np.zeros((2, 1), np.int64), np.zeros((2, 1), _numpy_dtype(real)))


def _ramped(spectrum: Tensor, fractions: Tensor, amplitudes: Tensor, axis: int) -> Tensor:
    """The same where the kernels do not know the transform."""
    window = window_of(spectrum)
    ramps = views.ramps(fractions, window) * amplitudes[:, None, None]
    if axis >= 0:
        ramps = ramps * (2j * np.pi * frequencies(window, (1.0, 1.0))[axis]).to(ramps.dtype)
    return ifft(ramps[:, None] * spectrum)


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


def _waves_alone(chunk: Chunk, waves: Tensor) -> tuple[Any, bool]:
    """Waves in the place of what exit waves are made of, and that they are not; of the others nothing is used."""
    nothing = waves.new_empty((1, 1))
    return _arrays(nothing, chunk.anchors, waves, waves.new_empty(len(waves), dtype=waves.real.dtype)), False


def _threads_for(views: int) -> int:
    """Threads that can share so many views."""
    return max(1, min(torch.get_num_threads(), views))


def _bands() -> int:
    threads = torch.get_num_threads()
    return 1 if threads == 1 else BANDS * threads


def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype).numpy().dtype
