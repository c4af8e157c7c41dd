"""The model, this rank's measurement and the layout in one: what an engine may ask for.

B        views of a batch, over all ranks
L, M     slices, modes
chi_jm   change of view j's exit wave that its counts ask for
b        side of an object block

An engine gets *global* sums over the batch; which rank holds which view does not show.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.estimate import BLOCK, Estimate
from ptymesh.measurement import Measurement
from ptymesh.parallel.layout import Replicated, Touched, blocked
from ptymesh.physics import fidelity
from ptymesh.physics.fidelity import Data
from ptymesh.physics.model import Model, Scene, power

#: Bytes of one array of waves of a chunk; about ten such arrays are alive at a time. On a CPU a chunk must fit the
#: cache (measured: the FFTs of larger ones are up to three times slower).
CHUNK_BYTES = {"cpu": 2 << 20, "cuda": 128 << 20}
#: Views that are read from the source at a time.
SLAB = 64


@dataclass(frozen=True)
class Batch:
    """Views (B,) of one update, global indices; `refine`: whether their position steps are wanted too."""

    views: np.ndarray
    refine: bool = False


@dataclass(frozen=True)
class Sums:
    """Global sums over a batch.

    object: sum_j S_j^H sum_m conj(phi_jlm) chi_jlm, touched (L, n, b, b); object_weight: sum_j S_j^H sum_m |phi_jlm|^2;
    probe: sum_j w_j T_{-f_j}(conj(S_j O) chi_jm), (M, h, w); probe_weight: sum_j w_j^2 |S_j O|^2, (h, w).
    """

    object: Touched
    object_weight: Touched
    probe: Tensor
    probe_weight: Tensor


@dataclass(frozen=True)
class Chunk:
    """Views of this rank that are swept together; `views` are global indices, `rows` those of this rank's storage."""

    views: Tensor
    rows: Tensor
    anchors: Tensor
    fractions: Tensor
    weights: Tensor
    data: Data


class Problem:
    """What an engine may ask for.

    Args:
        model: the forward model.
        measurement: the scan; this rank's views are read from it slab by slab and kept in their own dtype.
        layout: who owns what; its world says where tensors live.
        dtype: complex64 or complex128.
    """

    def __init__(self, model: Model, measurement: Measurement, layout: Replicated, dtype: torch.dtype) -> None:
        self.model, self.layout, self.world = model, layout, layout.world
        self.dtype, self.real = dtype, torch.float32 if dtype == torch.complex64 else torch.float64
        self.views, self.window, self.geometry = measurement.views, measurement.window, measurement.geometry
        self.device = self.world.device
        #: (N, 2) positions as the file has them; batches are drawn from these, whatever moves later.
        self.scan = measurement.positions
        self.counts = self._read(measurement)
        self.mask = torch.as_tensor(measurement.mask, device=self.device)
        #: Per own view: loss, and the four sums of the residual, as last seen (n_own, 5).
        self.seen = torch.zeros(len(layout.own), 5, dtype=torch.float64, device=self.device)
        #: Steps (B, 2) that the last batch asked of its own views (B,), when it was to refine positions.
        self.position_steps: list[tuple[Tensor, Tensor]] = []
        #: While set, the probe's sums are zero, so that no engine moves it.
        self.probe_frozen = False
        #: Raised by this rank (a signal); every rank reads the sum over ranks in `stop_agreed` after each batch.
        self.stop_requested = False
        self.stop_agreed = torch.zeros((), dtype=self.real, device=self.device)
        self._object_sum = self._weight_sum = torch.zeros(0, device=self.device)
        self._anchors = torch.zeros(0, 2, dtype=torch.int64)

    def _read(self, measurement: Measurement) -> Tensor:
        source, own = measurement.patterns, self.layout.own
        counts = torch.empty((len(own), *measurement.window), dtype=_torch_dtype(source.dtype), device=self.device)
        for start in range(0, len(own), SLAB):
            slab = np.ascontiguousarray(source.read(own[start : start + SLAB]))
            counts[start : start + SLAB] = torch.from_numpy(slab).to(self.device)
        return counts

    # --- what an engine asks for ---

    def begin_epoch(self, estimate: Estimate) -> None:
        """Makes room for sums over the object as it is now, and notes the anchors of this epoch."""
        if self._object_sum.shape != estimate.object.shape:
            self._object_sum = torch.zeros_like(estimate.object)
            self._weight_sum = torch.zeros_like(estimate.object, dtype=self.real)
        self._anchors = estimate.anchors.cpu()
        check_room(estimate)

    def gradients(self, estimate: Estimate, batch: Batch) -> Sums:
        """Sums over the batch's views in one sweep: exit wave, detector, revision, adjoint. Notes what it has seen."""
        blocks = self.layout.touched_blocks(
            self._anchors[torch.as_tensor(batch.views)], self.window, estimate.object.shape
        )
        blocks = (blocks[0].to(self.device), blocks[1].to(self.device))
        for field in (self._object_sum, self._weight_sum):
            blocked(field)[:, blocks[0], blocks[1]] = 0
        probe_sum, probe_weight = torch.zeros_like(estimate.probe), torch.zeros_like(estimate.probe[0].real)
        self.position_steps.clear()
        for chunk in self.chunks(estimate, self.layout.mine(batch.views)):
            scene, chi = self._revised(estimate, chunk)
            to_windows, to_probes = self.model.scene_adjoint(scene, chi)
            self.model.windows_adjoint(self._object_sum, to_windows, chunk.anchors, chunk.fractions)
            illumination = torch.stack([power(wave) for wave in scene.incoming], dim=1)
            self.model.windows_adjoint(self._weight_sum, illumination, chunk.anchors, chunk.fractions)
            if not self.probe_frozen:
                probe_sum += self.model.probes_adjoint(to_probes, chunk.fractions, chunk.weights)
                probe_weight += (power(scene.windows[:, :1]) * chunk.weights[:, :, None] ** 2).sum(0)
            if batch.refine:
                self.position_steps.append((chunk.views, self._position_step(estimate, chunk, scene, chi)))
        stop = torch.full((), float(self.stop_requested), dtype=self.real, device=self.device)
        obj, weight, probe_sum, probe_weight, self.stop_agreed = self.layout.reduce(
            [self._object_sum, self._weight_sum], blocks, probe_sum, probe_weight, stop
        )
        return Sums(obj, weight, probe_sum, probe_weight)

    def add(self, target: Tensor, change: Touched | Tensor) -> None:
        """target += change, in place: the touched blocks of an object (L, H, W), or a whole tensor."""
        if isinstance(change, Touched):
            blocked(target)[:, change.rows, change.columns] += change.values.to(target.dtype)
        else:
            target += change

    def residual(self, estimate: Estimate) -> tuple[float, float]:
        """Frozen residual and R over all views (ALGORITHMS.md, Fidelity): one pass, nothing moves."""
        terms = torch.zeros(4, dtype=torch.float64, device=self.device)
        for chunk in self.chunks(estimate, self.layout.own):
            S = power(self.model.detect(self._scene(estimate, chunk).exit, chunk.fractions))
            terms += fidelity.residual_terms(S, chunk.data).sum(0)
        return _residuals(self.world.sum(terms)[0])

    def running(self) -> tuple[float, float, float]:
        """Loss, residual and R of the epoch, each view as it was seen in its batch; over all ranks."""
        total = self.world.sum(self.seen.sum(0))[0]
        return float(total[0]), *_residuals(total[1:])

    def mean_pattern(self) -> np.ndarray:
        """Mean pattern over all views, (h, w) float64, masked pixels 0."""
        total = torch.zeros(self.window, dtype=torch.float64, device=self.device)
        for rows in torch.arange(len(self.counts), device=self.device).split(SLAB):
            total += Data.of(self.counts.index_select(0, rows), self.mask, None, torch.float64).y.sum(0)
        return (self.world.sum(total)[0] / self.views).cpu().numpy()

    def illumination(self, estimate: Estimate) -> Tensor:
        """sum_j S_j^H sum_m |P_m|^2 over all views, (H, W), at the integer anchors."""
        total = torch.zeros_like(estimate.object[:1], dtype=self.real)
        intensity = power(estimate.probe[None])[:, None]
        for views in torch.as_tensor(self.layout.own, device=self.device).split(SLAB):
            weights = estimate.weights[views, :1, None, None] ** 2
            self.model.windows_adjoint(
                total, intensity * weights, estimate.anchors[views], torch.zeros_like(estimate.fractions(views))
            )
        return self.world.sum(total)[0][0]

    # --- the words it is made of ---

    def chunks(self, estimate: Estimate, views: np.ndarray) -> Iterator[Chunk]:
        """This rank's `views` (global indices that it owns) in chunks that fit the cache."""
        wave_bytes = estimate.probe.numel() * estimate.probe.element_size()
        size = max(1, CHUNK_BYTES.get(self.device.type, CHUNK_BYTES["cuda"]) // wave_bytes)
        every = torch.as_tensor(views, device=self.device)
        rows = torch.as_tensor(self.layout.local(views), device=self.device)
        for some, row in zip(every.split(size), rows.split(size), strict=True):
            if not len(some):
                continue
            data = Data.of(self.counts.index_select(0, row), self.mask, estimate.background, self.real)
            yield Chunk(some, row, estimate.anchors[some], estimate.fractions(some), estimate.weights[some], data)

    def _scene(self, estimate: Estimate, chunk: Chunk) -> Scene:
        windows = self.model.windows(estimate.object, chunk.anchors, chunk.fractions, self.window)
        return self.model.scene(windows, self.model.probes(estimate.probe, chunk.fractions, chunk.weights))

    def _revised(self, estimate: Estimate, chunk: Chunk) -> tuple[Scene, Tensor]:
        scene = self._scene(estimate, chunk)
        detected = self.model.detect(scene.exit, chunk.fractions)
        S = power(detected)
        terms = fidelity.residual_terms(S, chunk.data)
        kind = self.model.fidelity
        self.seen[chunk.rows, 0] = terms[:, 0] if kind == "amplitude" else fidelity.value(kind, S, chunk.data)
        self.seen[chunk.rows, 1:] = terms
        return scene, self.model.revise(detected, S, chunk.data, chunk.fractions)

    def _position_step(self, estimate: Estimate, chunk: Chunk, scene: Scene, chi: Tensor) -> Tensor:
        """<d psi/d p_a, chi> / ||d psi/d p_a||^2 of each view and axis, (B, 2)."""
        steps = []
        for axis in (0, 1):
            moved = self.model.position_derivative(
                estimate.object, estimate.probe, chunk.anchors, chunk.fractions, chunk.weights, scene, axis
            )
            along = (moved.conj() * chi).real.sum((1, 2, 3), dtype=torch.float64)
            norm = power(moved).sum((1, 2), dtype=torch.float64)
            steps.append(along / norm.clamp(min=torch.finfo(self.real).tiny))
        return torch.stack(steps, dim=1)


def check_room(estimate: Estimate) -> None:
    """Raises BadInput where a window, one interpolation pixel included, would reach beyond the object."""
    shape, window = estimate.object.shape[-2:], estimate.window
    assert all(n % BLOCK == 0 for n in shape), f"the object's sides {tuple(shape)} must be multiples of {BLOCK}"
    for axis, name in enumerate(("y", "x")):
        low, high = int(estimate.anchors[:, axis].min()), int(estimate.anchors[:, axis].max())
        if low < 1 or high + window[axis] + 1 > shape[axis]:
            raise BadInput(
                f"Windows span {name} = {low} to {high + window[axis]} px but the object has {shape[axis]}; "
                "check the positions, or start from an object that holds the whole scan."
            )


def _residuals(terms: Tensor) -> tuple[float, float]:
    misfit, counts, absolute, roots = (float(t) for t in terms)
    return (misfit / counts if counts else float("nan"), absolute / roots if roots else float("nan"))


def _torch_dtype(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype=dtype.newbyteorder("="))).dtype
