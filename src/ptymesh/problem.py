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
from ptymesh.estimate import BLOCK, REACH, Estimate
from ptymesh.measurement import Measurement
from ptymesh.parallel.layout import Replicated, Touched, blocked
from ptymesh.physics import fidelity
from ptymesh.physics.fidelity import Data
from ptymesh.physics.model import Model, Scene, inner, power

#: Bytes of one array of waves of a chunk; about ten such arrays are alive at a time. On a CPU a chunk must fit the
#: cache (measured: the FFTs of larger ones are up to three times slower).
CHUNK_BYTES = {"cpu": 2 << 20, "cuda": 128 << 20}
#: Change of an exit wave per pixel, relative to the wave, below which a view says nothing of its position: a near-field
#: image of a constant object stays where it is when the beam moves.
INSENSITIVE = 1e-3
#: Views that are read from the source at a time.
SLAB = 64


@dataclass(frozen=True)
class Batch:
    """Views (B,) of one update, global indices.

    refine, vary: whether steps of their positions, of their beam weights are wanted too; epoch: of the stage, from 1.
    """

    views: np.ndarray
    refine: bool = False
    epoch: int = 1
    vary: bool = False


@dataclass(frozen=True)
class Sums:
    """Global sums over a batch.

    object: sum_j S_j^H sum_m conj(phi_jlm) chi_jlm, touched (L, n, b, b); object_weight: sum_j S_j^H sum_m |phi_jlm|^2;
    probe: sum_j w_j0 T_{-f_j}(conj(S_j O) chi_jm), (M, h, w); probe_weight: sum_j w_j0^2 |S_j O|^2, (h, w);
    For variable probes (OPR) the same with w_jk and the first mode: opr and opr_weight, (K, h, w).
    others: what else was handed to `total`.
    """

    object: Touched
    object_weight: Touched
    probe: Tensor
    probe_weight: Tensor
    opr: Tensor
    opr_weight: Tensor
    others: tuple[Tensor, ...] = ()


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
        #: Steps (B, 1 + K) of the beam weights of own views (B,), when the last batch was to vary them.
        self.weight_steps: list[tuple[Tensor, Tensor]] = []
        #: Sums of the last batch, for the upkeep of variable probes.
        self.last: Sums | None = None
        #: While set, the probe's sums are zero, so that no engine moves it.
        self.probe_frozen = False
        #: Raised by this rank (a signal); every rank reads the sum over ranks in `stop_agreed` after each batch.
        self.stop_requested = False
        self.stop_agreed = torch.zeros((), dtype=self.real, device=self.device)
        #: Views in a chunk at most, once memory has run out (0: as many as CHUNK_BYTES allows).
        self.chunk_limit, self._largest = 0, 1
        self._buffers: dict[str, Tensor] = {}
        self._anchors = torch.zeros(0, 2, dtype=torch.int64)

    def _read(self, measurement: Measurement) -> Tensor:
        source, own = measurement.patterns, self.layout.own
        counts = torch.empty((len(own), *measurement.window), dtype=_torch_dtype(source.dtype), device=self.device)
        for start in range(0, len(own), SLAB):
            slab = np.ascontiguousarray(source.read(own[start : start + SLAB]))
            counts[start : start + SLAB] = torch.from_numpy(slab).to(self.device)
            self.world.pulse.moves += 1
        return counts

    # --- what an engine asks for ---

    def begin_epoch(self, estimate: Estimate) -> None:
        """Notes the anchors of this epoch. Raises BadInput where a window would leave the object."""
        self._anchors = estimate.anchors.cpu()
        check_room(estimate)

    def gradients(self, estimate: Estimate, batch: Batch) -> Sums:
        """Sums of the batch's adjoints of chi, in one sweep: exit wave, detector, revision, adjoint."""
        sums = self.accumulator(estimate, batch)
        for chunk in self.chunks(estimate, batch.views):
            scene = self.scene(estimate, chunk)
            sums.add(chunk, scene, self.revise(chunk, scene))
        return sums.total()

    def add(self, target: Tensor, change: Touched | Tensor) -> None:
        """target += change, in place: the touched blocks of an object (L, H, W), or a whole tensor."""
        if isinstance(change, Touched):
            blocked(target)[:, change.rows, change.columns] += change.values.to(target.dtype)
        else:
            target += change

    def residual(self, estimate: Estimate, views: np.ndarray | None = None) -> tuple[float, float]:
        """Frozen residual sum (sqrt I - sqrt y)^2 / sum y and R = sum |sqrt I - sqrt y| / sum sqrt y.

        Over all views, or over these: one pass in which nothing moves.
        """
        terms = torch.zeros(4, dtype=torch.float64, device=self.device)
        for chunk in self.chunks(estimate, np.arange(self.views) if views is None else views):
            S = power(self.detect(chunk, self.scene(estimate, chunk).exit))
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
        """sum_j w_j0^2 S_j^H sum_m |P_m|^2 over all views, (H, W), at the integer anchors."""
        total = torch.zeros_like(estimate.object[:1], dtype=self.real)
        intensity = power(estimate.probe[None])[:, None]
        for views in torch.as_tensor(self.layout.own, device=self.device).split(SLAB):
            self.world.pulse.moves += 1
            weights = estimate.weights[views, :1, None, None] ** 2
            self.model.windows_adjoint(
                total, intensity * weights, estimate.anchors[views], torch.zeros_like(estimate.fractions(views))
            )
        return self.world.sum(total)[0][0]

    # --- the words it is made of ---

    def chunks(self, estimate: Estimate, views: np.ndarray) -> Iterator[Chunk]:
        """Those of these views (global indices) that this rank owns, in chunks that fit the cache."""
        self._follow_spacing(estimate)
        mine = self.layout.mine(views)
        wave_bytes = estimate.probe.numel() * estimate.probe.element_size()
        size = max(1, CHUNK_BYTES.get(self.device.type, CHUNK_BYTES["cuda"]) // wave_bytes)
        size = min(size, self.chunk_limit or size)
        self._largest = max(1, min(size, len(mine)))
        every = torch.as_tensor(mine, device=self.device)
        rows = torch.as_tensor(self.layout.local(mine), device=self.device)
        for some, row in zip(every.split(size), rows.split(size), strict=True):
            if not len(some):
                continue
            self.world.pulse.moves += 1
            data = Data.of(self.counts.index_select(0, row), self.mask, estimate.background, self.real)
            yield Chunk(some, row, estimate.anchors[some], estimate.fractions(some), estimate.weights[some], data)

    def halve_chunks(self) -> bool:
        """Half as many views in a chunk from here on; False where the last one had a single view."""
        if self._largest == 1:
            return False
        self.chunk_limit = self._largest // 2
        return True

    def _follow_spacing(self, estimate: Estimate) -> None:
        """The slices' kernel for the distance that the estimate has."""
        model, spacing = self.model, estimate.slice_spacing_m
        if model.slice_kernel is not None and model.slice_spacing_m != spacing:
            self.model = model.spaced(self.geometry, spacing, self.dtype, self.device)

    def scene(self, estimate: Estimate, chunk: Chunk) -> Scene:
        """Windows, incoming and exit waves of a chunk."""
        windows = self.model.windows(estimate.object, chunk.anchors, chunk.fractions, self.window)
        probes = self.model.probes(estimate.probe, chunk.fractions, chunk.weights, estimate.opr)
        return self.model.scene(windows, probes)

    def detect(self, chunk: Chunk, exit_waves: Tensor) -> Tensor:
        """Psi = D psi, (B, M, h, w)."""
        return self.model.detect(exit_waves, chunk.fractions)

    def revise(self, chunk: Chunk, scene: Scene) -> Tensor:
        """chi = D^H (Psi' - Psi), (B, M, h, w), for the chunk's exit waves; notes their loss and residual."""
        detected = self.detect(chunk, scene.exit)
        S = power(detected)
        self.note(chunk, S)
        return self.model.revise(detected, S, chunk.data, chunk.fractions)

    def note(self, chunk: Chunk, S: Tensor) -> None:
        """Notes loss and residual of the chunk's views for the running values of the epoch; S is (B, h, w)."""
        terms = fidelity.residual_terms(S, chunk.data)
        kind = self.model.fidelity
        self.seen[chunk.rows, 0] = terms[:, 0] if kind == "amplitude" else fidelity.value(kind, S, chunk.data)
        self.seen[chunk.rows, 1:] = terms

    def accumulator(self, estimate: Estimate, batch: Batch, only: str | None = None) -> Accumulator:
        """Collects adjoints of waves, chunk by chunk, into global sums over this batch; `only`: object or probe."""
        return Accumulator(self, estimate, batch, only)

    def blocks(self, estimate: Estimate, batch: Batch) -> tuple[Tensor, Tensor]:
        """Rows and columns of the object's blocks that the batch covers, over all ranks."""
        anchors = self._anchors[torch.as_tensor(batch.views)]
        rows, columns = self.layout.touched_blocks(anchors, self.window, estimate.object.shape)
        return rows.to(self.device), columns.to(self.device)

    def buffer(self, name: str, like: Tensor, dtype: torch.dtype) -> Tensor:
        """A tensor of `like`'s shape that is allocated once; what it holds is left from its last use."""
        kept = self._buffers.get(name)
        if kept is None or kept.shape != like.shape or kept.dtype != dtype:
            kept = self._buffers[name] = torch.zeros_like(like, dtype=dtype)
        return kept

    def forget_buffers(self) -> None:
        """Own buffers from here on, after a copy whose shapes differ."""
        self._buffers = {}

    def spread(self, field: Touched, estimate: Estimate, name: str = "spread") -> Tensor:
        """The touched field as an array (L, H, W) from which the batch's windows can be cut; stale elsewhere.

        It lasts until the next of the same name.
        """
        whole = self.buffer(name, estimate.object, field.values.dtype)
        blocked(whole)[:, field.rows, field.columns] = field.values
        return whole

    def dot(self, a: Tensor | Touched, b: Tensor | Touched) -> Tensor:
        """Re sum conj(a) b of two fields of the object's or the probe's shape, each pixel once; 0-d float64."""
        return self.layout.dot(a, b)

    def put(self, target: Tensor, field: Touched) -> None:
        """The touched blocks of an array (L, H, W) become those of `field`, in place."""
        blocked(target)[:, field.rows, field.columns] = field.values.to(target.dtype)

    def touched(self, whole: Tensor, like: Touched) -> Touched:
        """The blocks of `like` out of an array (L, H, W)."""
        return Touched(blocked(whole)[:, like.rows, like.columns], like.rows, like.columns)

    def of_batch(self, batch: Batch, parts: list[Tensor], width: int) -> Tensor:
        """(B, width) float64 in the order of the batch's views, from what each rank has of its own, chunk by chunk."""
        return self.world.sum(self.rows(batch, parts, width))[0]

    def rows(self, batch: Batch, parts: list[Tensor], width: int) -> Tensor:
        """(B, width) float64 in the order of the batch's views: this rank's own, chunk by chunk, 0 for all others."""
        values = torch.zeros(len(batch.views), width, dtype=torch.float64, device=self.device)
        mine = torch.as_tensor(self.layout.owner[batch.views] == self.world.rank, device=self.device)
        if parts:
            values[mine] = torch.cat(parts).to(values.dtype)
        return values

    def position_step(self, estimate: Estimate, chunk: Chunk, scene: Scene, chi: Tensor) -> Tensor:
        """<d psi/d p_a, chi> / ||d psi/d p_a||^2 of each view and axis, (B, 2)."""
        steps = []
        for axis in (0, 1):
            moved = self.model.position_derivative(estimate.object, chunk.anchors, chunk.fractions, scene, axis)
            floor = INSENSITIVE**2 * inner(scene.exit, scene.exit) + torch.finfo(self.real).tiny
            steps.append(inner(moved, chi) / torch.maximum(inner(moved, moved), floor))
        return torch.stack(steps, dim=1)

    def weight_step(self, estimate: Estimate, chunk: Chunk, scene: Scene, chi: Tensor) -> Tensor:
        """<d psi/d w_jk, chi> / ||d psi/d w_jk||^2 of each view for the beam (k = 0) and its OPR modes, (B, 1 + K)."""
        ones = torch.ones_like(chunk.weights[:, :1])
        steps = []
        for modes in (estimate.probe, *estimate.opr[:, None]):
            moved = self.model.exit_change(scene, self.model.probes(modes, chunk.fractions, ones), None)
            along = inner(moved, chi[:, : len(modes)])
            steps.append((along / inner(moved, moved).clamp(min=torch.finfo(self.real).tiny)).to(self.real))
        return torch.stack(steps, dim=1)


class Accumulator:
    """Global sums over a batch of the adjoints of waves (chi, exit waves ...), added chunk by chunk.

    With only="object" the probe's sums stay zero, with only="probe" the object's have no blocks.
    """

    def __init__(self, problem: Problem, estimate: Estimate, batch: Batch, only: str | None = None) -> None:
        self.problem, self.estimate, self.batch = problem, estimate, batch
        self.with_object, self.with_probe = only != "probe", only != "object" and not problem.probe_frozen
        rows, columns = problem.blocks(estimate, batch)
        self.blocks = (rows, columns) if self.with_object else (rows[:0], columns[:0])
        self.object = problem.buffer("object sum", estimate.object, problem.dtype)
        self.object_weight = problem.buffer("object weight", estimate.object, problem.real)
        for field in (self.object, self.object_weight):
            blocked(field)[:, self.blocks[0], self.blocks[1]] = 0
        self.probe = torch.zeros_like(estimate.probe)
        self.probe_weight = torch.zeros_like(estimate.probe[0].real)
        self.opr = torch.zeros_like(estimate.opr)
        self.opr_weight = torch.zeros_like(estimate.opr.real)
        problem.position_steps.clear()
        problem.weight_steps.clear()

    def add(self, chunk: Chunk, scene: Scene, waves: Tensor) -> None:
        """Adds S_j^H conj(phi) waves, T_{-f} conj(S O) waves and their weights; waves (B, M, h, w) at the exit."""
        problem, model = self.problem, self.problem.model
        to_windows, to_probes = model.scene_adjoint(scene, waves)
        if self.with_object:
            model.windows_adjoint(self.object, to_windows, chunk.anchors, chunk.fractions)
            illumination = torch.stack([power(wave) for wave in scene.incoming], dim=1)
            model.windows_adjoint(self.object_weight, illumination, chunk.anchors, chunk.fractions)
        if self.with_probe:
            self.probe += model.probes_adjoint(to_probes, chunk.fractions, chunk.weights)
            self.probe_weight += (power(scene.windows[:, :1]) * chunk.weights[:, :1, None] ** 2).sum(0)
            if len(self.opr):
                self.opr += model.opr_adjoint(to_probes, chunk.fractions, chunk.weights)
                squares = chunk.weights[:, 1:].T ** 2
                self.opr_weight += torch.einsum("kb,bhw->khw", squares, power(scene.windows[:, :1]))
        if self.batch.refine:
            problem.position_steps.append((chunk.views, problem.position_step(self.estimate, chunk, scene, waves)))
        if self.batch.vary:
            problem.weight_steps.append((chunk.views, problem.weight_step(self.estimate, chunk, scene, waves)))

    def total(self, *others: Tensor) -> Sums:
        """Sums over all ranks, of `others` too; in one message if these are of the problem's precision."""
        problem = self.problem
        stop = torch.full((), float(problem.stop_requested), dtype=problem.real, device=problem.device)
        *sums, problem.stop_agreed = problem.layout.reduce(
            [self.object, self.object_weight],
            self.blocks,
            *(self.probe, self.probe_weight, self.opr, self.opr_weight),
            *others,
            stop,
        )
        obj, object_weight, probe, probe_weight, opr, opr_weight, *rest = sums
        problem.last = Sums(obj, object_weight, probe, probe_weight, opr, opr_weight, tuple(rest))
        return problem.last


def check_room(estimate: Estimate) -> None:
    """Raises BadInput where a window, interpolation pixels included, would reach beyond the object."""
    shape, window = estimate.object.shape[-2:], estimate.window
    assert all(n % BLOCK == 0 for n in shape), f"the object's sides {tuple(shape)} must be multiples of {BLOCK}"
    for axis, name in enumerate(("y", "x")):
        low, high = int(estimate.anchors[:, axis].min()), int(estimate.anchors[:, axis].max())
        if low < REACH or high + window[axis] + REACH > shape[axis]:
            raise BadInput(
                f"Windows span {name} = {low} to {high + window[axis]} px but the object has {shape[axis]}; "
                "check the positions, or start from an object that holds the whole scan."
            )


def _residuals(terms: Tensor) -> tuple[float, float]:
    misfit, counts, absolute, roots = (float(t) for t in terms)
    return (misfit / counts if counts else float("nan"), absolute / roots if roots else float("nan"))


def _torch_dtype(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype=dtype.newbyteorder("="))).dtype
