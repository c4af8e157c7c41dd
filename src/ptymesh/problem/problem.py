"""The model, this rank's measurement and the layout in one: what an engine may ask for.

B        views of a batch, over all ranks
L, M     slices, modes
chi_jm   change of view j's exit wave that its counts ask for
b        side of an object block

An engine gets *global* sums over the batch; which rank holds which view does not show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed.devices import KINDS, sent
from ptymesh.distributed.exact import Reduction, brightest
from ptymesh.distributed.layout import BlockSparseField, Migration, Replicated
from ptymesh.distributed.tiled import Tiled
from ptymesh.errors import PtymeshError, ran_out_of_memory
from ptymesh.estimate import Estimate
from ptymesh.kernels import kernel_backend
from ptymesh.measurement import Measurement
from ptymesh.physics.backend import MISFIT, ROOTS, Chunk, Task, terms
from ptymesh.physics.fidelity import Data
from ptymesh.physics.halves import Halves
from ptymesh.physics.kinds import SUMS
from ptymesh.physics.model import Intermediates, Model, inner, power
from ptymesh.physics.propagate import try_transforms
from ptymesh.physics.rounding import largest, narrowed, shifts_for
from ptymesh.problem.accumulator import Accumulator, loss_and_counts
from ptymesh.problem.batch import Batch, CachedChunk, Gradients
from ptymesh.problem.fields import Fields
from ptymesh.problem.kept_waves import KeptWaves
from ptymesh.problem.local_views import LocalViewIndex
from ptymesh.problem.view_metrics import COLUMNS, ViewMetrics
from ptymesh.storage.memory_budget import MemoryBudget, stored
from ptymesh.storage.patterns import Patterns

#: Bytes of one array of waves of a chunk; about ten such arrays are alive at a time, on a CPU with kernels fewer. What
#: torch does on a CPU is up to three times slower where a chunk does not fit the cache.
CHUNK_BYTES = {"cpu": 4 << 20, "cuda": 128 << 20}
#: Of such arrays, where memory is reckoned.
CHUNK_ARRAYS = 10
#: So many times as large may be what is read once in a sweep, or written and not read before the batch's second one.
KEPT_CHUNKS = 4
WaveUse = Literal["used", "kept", "dropped"]
#: What is gone through together where nothing but sums over views is wanted: so many views, or bytes, at most.
SLAB, SLAB_BYTES = 64, 4 << 20
#: Views that are looked at to know how large terms of sums are about to be.
SAMPLE = 256


class Problem:
    """What an engine may ask for.

    Args:
        model: the forward model.
        measurement: the scan; this rank's views are read from it slab by slab and kept in their own dtype.
        layout: who owns what; its world says where tensors live.
        dtype: complex64 or complex128.
        memory: what memory and disk the patterns may take.
        halves: whether waves that are kept between sweeps are halves.
    """

    def __init__(
        self,
        model: Model,
        measurement: Measurement,
        layout: Replicated | Tiled,
        dtype: torch.dtype,
        memory: MemoryBudget | None = None,
        halves: bool = False,
    ) -> None:
        self.model, self.layout, self.world = model, layout, layout.world
        self.dtype, self.real = dtype, torch.float32 if dtype == torch.complex64 else torch.float64
        self.views, self.window, self.geometry = measurement.views, measurement.window, measurement.geometry
        self.device, self.halves = self.world.device, halves
        #: (N, 2) positions as the file has them; batches are drawn from these, whatever moves later.
        self.scan = measurement.positions
        #: The same before a recipe turned them: what is chosen by these is chosen alike in every orientation.
        self.unturned = measurement.positions if measurement.stored_positions is None else measurement.stored_positions
        self.patterns = self._stored(measurement, memory or MemoryBudget())
        #: Views of the batch after this one, where that is known: their patterns are on the way while this is computed.
        self.coming = np.empty(0, dtype=np.int64)
        self.mask = torch.as_tensor(measurement.mask, device=self.device)
        #: What is done to a chunk of views: the kernels of this device, or torch's reference.
        self.backend = kernel_backend(self.device, dtype)
        if self.device.type != "cpu":
            try_transforms(self.device, dtype, measurement.window)
        #: Per own view: loss, and the four sums of the residual, as last seen.
        self.view_metrics = ViewMetrics(len(layout.own), self.device)
        #: What a rank says: that it was not asked to stop, or was.
        self.answers = torch.arange(2, dtype=torch.float64, device=self.device).unbind()
        #: Where a device finds shifts, limits and the largest terms of a batch's sums.
        zeros = partial(torch.zeros, dtype=torch.float64, device=self.device)
        self.steps = zeros(SUMS, 2), zeros(SUMS), zeros(SUMS)
        #: Views in a chunk at most, once memory has run out (0: as many as CHUNK_BYTES allows).
        self.chunk_limit, self._largest = 0, 1
        #: Whether waves of a batch are kept for a second sweep, and of how many views they have been in this one.
        self.keeps, self._kept_views = True, 0
        #: What can be done with fields of the object.
        self.fields = Fields(layout, self.backend, dtype, self.real)
        #: This rank's views of a batch.
        self.local_views = LocalViewIndex(layout, self.real)
        #: Views of a chunk at most, by what becomes of its waves, in this epoch.
        self._sizes_of: dict[tuple[WaveUse, torch.Size], int] = {}
        #: The sums that are being added up: told when the last border view of a sweep has been added.
        self._collecting: Accumulator | None = None
        #: Norm of the strongest exit wave and largest count of a pixel of some views, which set the steps of sums.
        self.brightest = brightest(self.sampled(), self.mask, self.world)

    def _stored(self, measurement: Measurement, memory: MemoryBudget) -> Patterns:
        most = int(np.bincount(self.layout.owner, minlength=self.world.size).max())
        return stored(measurement.patterns, self.layout.own, most, self.device, memory)

    def sent(self, values: np.ndarray) -> Tensor:
        """Numbers of the host where tensors live."""
        return sent(values, self.device)

    @property
    def fuses_updates(self) -> bool:
        """Whether torch's optimisers may go over an array once: on a CPU, where counters are on the host anyway. The
        last few numbers of an array, which they may round otherwise, are there for fields of whole blocks alone."""
        return self.device.type == "cpu"

    # --- what an engine asks for ---

    def begin_epoch(self, estimate: Estimate) -> None:
        """Notes the anchors of this epoch. Raises BadInput where a window would leave the object."""
        self.local_views.begin_epoch(estimate, self.model.reach)
        self._sizes_of, self._kept_views = {}, 0

    def gradients(self, estimate: Estimate, batch: Batch) -> Gradients:
        """Sums of the batch's adjoints of chi, in one sweep: exit wave, detector, revision, adjoint."""
        sums = self.accumulator(estimate, batch, task="exit_wave_update")
        for chunk in sums.chunks():
            sums.exit_wave_update(chunk, self.forward(estimate, chunk))
        return sums.total()

    def add(self, target: Tensor, change: BlockSparseField | Tensor) -> None:
        """target += change, in place (`Fields.add`)."""
        self.fields.add(target, change)

    def add_weighted(
        self,
        target: Tensor,
        change: BlockSparseField | Tensor,
        weight: BlockSparseField | Tensor,
        *,
        blend: float,
        times: float = 1.0,
    ) -> None:
        """target += times change / ((1 - blend) w + blend max w), in place (`Fields.add_weighted`)."""
        self.fields.add_weighted(target, change, weight, blend=blend, times=times)

    def residual(self, estimate: Estimate, views: np.ndarray | None = None) -> tuple[float, float]:
        """Frozen residual sum (sqrt I - sqrt y)^2 / sum y and R = sum |sqrt I - sqrt y| / sum sqrt y.

        Over all views, or over these: one pass in which nothing moves. Where memory runs out this rank goes on with
        smaller chunks; the others wait for its sum.
        """
        views, seen = np.arange(self.views) if views is None else views, self.layout.seen(estimate.object)
        while True:
            try:
                total = self._misfit(estimate, views, seen)
                break
            except (MemoryError, RuntimeError) as error:
                if not ran_out_of_memory(error):
                    raise
            # out here the frames of what failed, and what they held, are gone
            self.give_back()
            if not self.halve_chunks():
                raise PtymeshError(f"Rank {self.world.rank} ran out of memory with a single view at a time.")
        return _residuals(*self.totals(total))

    def _misfit(self, estimate: Estimate, views: np.ndarray, seen: Tensor) -> Reduction:
        """The sums of the residual over these views, of this rank."""
        total = self.reduction(4)
        for chunk in self.chunks(estimate, views, seen=seen):
            found = self.backend.detector(self.model, chunk, self.forward(estimate, chunk), "evaluate")[1]
            total.add(found[:, MISFIT : ROOTS + 1])
        return total

    def running(self) -> tuple[float, float, float]:
        """Loss, residual and R of the epoch, each view as it was seen in its batch; over all ranks."""
        seen = self.reduction(COLUMNS)
        seen.add(self.view_metrics.values)
        (total,) = self.totals(seen)
        return float(total[0]), *_residuals(total[1:])

    def mean_pattern(self) -> np.ndarray:
        """Mean pattern over all views, (h, w) float64, masked pixels 0."""
        total = self.reduction(*self.window)
        for counts in self._counted(np.arange(len(self.patterns))):
            total.add(Data.of(counts, self.mask, None, torch.float64).y)
        return (self.totals(total)[0] / self.views).cpu().numpy()

    def illumination(self, estimate: Estimate) -> Tensor:
        """sum_j w_j0^2 S_j^H sum_m |P_m|^2 over all views, at the integer anchors: (H, W) of the estimate's object."""
        light = power(estimate.probe[None])[0]
        bound = largest(light) * (2.0 * self.views) ** 2  # amplitudes have a mean of about 1
        shifts, _ = shifts_for(bound.expand(SUMS), self.views)
        one = estimate.object[:1]
        total = self.fields.buffer("illumination", one, torch.float64, 2, self.layout.shape(one)).zero_()
        for chunk in self.chunks(estimate, self.layout.own, with_counts=False):
            self.backend.illuminate(self.model, chunk, light, shifts, total)
        return narrowed(self.layout.sum_field(total), self.real, 1)[0]

    def hand_over(self, move: Migration) -> None:
        """Patterns and what was noted of views go to the ranks that own these now. Collective."""
        self.backend.forget()
        self.local_views.deal(())
        self.view_metrics.values = move.carry_rows(self.view_metrics.values)
        move.carry_patterns(self.patterns, self.device)

    def sampled(self) -> Iterator[Tensor]:
        """Own patterns among those of SAMPLE views from all over the scan, a few at a time: to know what to expect
        takes no reading of all."""
        views = np.unique(np.linspace(0, self.views - 1, min(SAMPLE, self.views)).round().astype(np.int64))
        return self._counted(self.layout.local(self.layout.mine(views)))

    def _counted(self, rows: np.ndarray) -> Iterator[Tensor]:
        """Own patterns of these rows, a few at a time."""
        for counts in self.patterns.sweep(rows, self._slab(torch.float64)):
            self.world.heartbeat.moves += 1
            yield counts

    def _slab(self, dtype: torch.dtype) -> int:
        """Windows of this dtype that are gone through together."""
        return max(1, min(SLAB, SLAB_BYTES // (self.window[0] * self.window[1] * dtype.itemsize)))

    # --- the words it is made of ---

    def chunks(
        self,
        estimate: Estimate,
        views: np.ndarray,
        with_counts: bool = True,
        waves: WaveUse = "used",
        seen: Tensor | None = None,
    ) -> Iterator[Chunk]:
        """Those of these views (global indices) that this rank owns, in chunks that fit the cache: first those whose
        sums other ranks wait for, then those that are swept while these sums travel. waves: whether waves of a chunk
        are used, or only a pass adds them up, and they are kept for a second sweep, or dropped. seen: what
        `Layout.seen` returned of the estimate's object, if that was asked already. Collective."""
        self._follow_slices(estimate)
        seen = self.layout.seen(estimate.object) if seen is None else seen
        other = None if seen is estimate.object else seen
        own = self.local_views.of(estimate, views)
        whole = self.whole(estimate, views)
        size = self._size(estimate, waves)
        border, sizes = own.border, self._sizes(len(own.views), own.border, size)
        self._largest = max(sizes, default=1)
        sweep: dict[str, tuple[Any, ...]] = {}
        pieces = [own.values] if len(sizes) == 1 else [*zip(*(v.split(sizes) for v in own.values), strict=True)]
        swept: Iterable[tuple[Tensor, Tensor | None]]
        if not with_counts:
            swept = repeat((self.mask[None, :0], None))
        elif self.patterns.fetched:
            swept = self._fetched(own.views, sizes, size)
        else:
            swept = (self.patterns.lying(rows) for _, rows, *_ in pieces)
        done = 0
        for (some, *of_views), (counts, places) in zip(pieces, swept, strict=False):
            if done == border and self._collecting:
                self._collecting.begin()
            row, anchors, fractions, weights = of_views
            fixed = (counts, self.mask, estimate.background, whole, sweep, places, done < border)
            values = self._values(estimate, some)
            done += some.shape[0]
            self.world.heartbeat.moves += 1
            yield Chunk(some, row, anchors, fractions, weights, *fixed, values, other)

    def _values(self, estimate: Estimate, views: Tensor) -> dict[str, Tensor]:
        """Of the unknowns of the model's operators, the rows of these views, or all of a shared one."""
        return {
            one.name: estimate[one.name].index_select(0, views) if one.scope == "view" else estimate[one.name]
            for one in self.model.unknowns
        }

    def whole(self, estimate: Estimate, views: np.ndarray) -> bool:
        """Whether no view of the scan has a fraction, so that nothing needs to be shifted. Not while positions move: a
        rank whose own views have not moved yet must round as the others do."""
        return not estimate.moving and self.local_views.of(estimate, views).whole

    def _view_bytes(self, estimate: Estimate, waves: WaveUse) -> int:
        """What counts of a view against CHUNK_BYTES."""
        used = estimate.probe.numel() * estimate.probe.element_size()
        if waves == "used":
            return used
        # patterns that are fetched come chunk by chunk, which are to be on their way in good time
        read = used // len(estimate.probe) if self.patterns.fetched else self.patterns.frame_bytes // KEPT_CHUNKS
        written = used // KEPT_CHUNKS if waves == "kept" else 0
        return max(self.backend.sweep_bytes(self.model, estimate.probe), read, written)

    def _size(self, estimate: Estimate, waves: WaveUse) -> int:
        """Views of a chunk, at most."""
        case = waves, estimate.probe.shape
        size = self._sizes_of.get(case)
        if size is None:
            memory = CHUNK_BYTES.get(self.device.type, CHUNK_BYTES["cuda"])
            size = self._sizes_of[case] = max(1, memory // self._view_bytes(estimate, waves))
        return min(size, self.chunk_limit or size)

    @staticmethod
    def _sizes(count: int, border: int, size: int) -> list[int]:
        """Of chunks of at most `size` views; none has border views, which are the first, and others."""
        return [min(size, n - at) for n in (border, count - border) for at in range(0, n, size)]

    def _fetched(self, mine: np.ndarray, sizes: list[int], size: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Patterns of these own views, a chunk at a time, and those of the next batch on their way."""
        rows, coming = self.layout.local(mine), self.local_views.mine(self.coming)
        later = self._sizes(len(coming), self.local_views.bordering(coming), size)
        return self.patterns.pieces(rows, sizes, self.layout.local(coming), later)

    def _follow_slices(self, estimate: Estimate) -> None:
        """The slices' kernel for the distance and the tilt that the estimate has."""
        model, spacing, tilt = self.model, estimate.slice_spacing_m, estimate.tilt_rad
        if model.slice_kernel is not None and (model.slice_spacing_m, model.tilt_rad) != (spacing, tilt):
            self.model = model.spaced(self.geometry, spacing, tilt, self.dtype, self.device)

    def give_back(self) -> None:
        """Lets go of memory that is held to be faster: there is too little."""
        self.backend.forget()
        if self.device.type in KINDS:
            torch.get_device_module(self.device).empty_cache()

    def make_room(self) -> str:
        """Takes less memory from here on, and says how: chunks are halved, or what a batch keeps of its waves is made
        again instead, if that is more; empty where nothing is left to do without."""
        if self._kept_views and (2 * self._kept_views > CHUNK_ARRAYS * self._largest or self._largest == 1):
            self.keeps, self._kept_views = False, 0
            return "it makes waves of a batch twice instead of keeping them"
        if not self.halve_chunks():
            return ""
        return f"it goes on with chunks of {self.chunk_limit} view{'s' * (self.chunk_limit != 1)}"

    def halve_chunks(self) -> bool:
        """Half as many views in a chunk from here on; False where the last one had a single view."""
        if self._largest == 1:
            return False
        self.chunk_limit = self._largest // 2
        return True

    def forward(self, estimate: Estimate, chunk: Chunk) -> Intermediates:
        """Windows, incoming and exit waves of a chunk."""
        return self.backend.forward(self.model, chunk, self.cut_from(estimate, chunk), estimate.probe, estimate.opr)

    @staticmethod
    def cut_from(estimate: Estimate, chunk: Chunk) -> Tensor:
        """The object from which the chunk's windows are cut."""
        return estimate.object if chunk.object is None else chunk.object

    def detect(self, chunk: Chunk, exit_waves: Tensor) -> Tensor:
        """Psi = D psi, (B, M, h, w)."""
        return self.model.detect(exit_waves, chunk.fractions)

    def exit_wave_update(self, chunk: Chunk, intermediates: Intermediates) -> Tensor:
        """chi = D^H (Psi' - Psi), (B, M, h, w), for the chunk's exit waves; notes their loss and residual."""
        waves, found = self.backend.detector(self.model, chunk, intermediates, "exit_wave_update")
        self.see(chunk, found)
        return waves

    def fit(self, chunk: Chunk, waves: Tensor) -> Tensor:
        """D^H (Psi' - Psi) of any waves (B, M, h, w) of the chunk's views; notes nothing."""
        return self.backend.there_and_back(self.model, chunk, waves, "exit_wave_update")[0]

    def loss_gradient(self, chunk: Chunk, intermediates: Intermediates, note: bool = True) -> tuple[Tensor, Tensor]:
        """-D^H (dL/dI Psi), (B, M, h, w), and of each view the loss of the model's fidelity, sum y, sum y^2, (B, 3).

        `note`: for the running loss of the epoch.
        """
        waves, seen = self.backend.detector(self.model, chunk, intermediates, "loss_gradient")
        if note:
            self.see(chunk, seen)
        return waves, loss_and_counts(seen)

    def evaluate(self, chunk: Chunk, waves: Tensor) -> None:
        """Notes loss and residual of these waves (B, M, h, w) of the chunk's views."""
        self.see(chunk, self.backend.there_and_back(self.model, chunk, waves, "evaluate")[1])

    def note(self, chunk: Chunk, S: Tensor) -> None:
        """Notes loss and residual of the chunk's views for the running values of the epoch; S is (B, h, w)."""
        self.see(chunk, terms(self.model, chunk, S))

    def see(self, chunk: Chunk, found: Tensor) -> None:
        """Notes what a pass over the detector has found of the chunk's views, (B, 6)."""
        self.view_metrics.note(chunk.rows, found)

    def accumulator(
        self,
        estimate: Estimate,
        batch: Batch,
        only: str | None = None,
        task: Task | None = None,
        keep: bool = False,
    ) -> Accumulator:
        """Collects adjoints of waves, chunk by chunk, into global sums over this batch; `only`: object or probe; task:
        "exit_wave_update" or "loss_gradient", where that is what makes all of the waves; keep: and waves are wanted."""
        self._kept_views = 0
        self._collecting = Accumulator(self, estimate, batch, only, task, keep)
        return self._collecting

    def collect(self, sums: Accumulator) -> None:
        """These sums are told when the last border view of a sweep has been added."""
        self._collecting = sums

    def collected(self) -> None:
        """Sums are complete: no sweep needs to tell anybody of its border."""
        self._collecting = None

    def follow(self, layout: Replicated | Tiled) -> None:
        """Another layout from here on, and buffers of its own, after a copy whose shapes differ."""
        self.layout, self.local_views = layout, LocalViewIndex(layout, self.real)
        self.fields, self._sizes_of = Fields(layout, self.backend, self.dtype, self.real), {}

    def of_batch(self, batch: Batch, parts: list[Tensor], width: int) -> Tensor:
        """(B, width) float64 in the order of the batch's views, from what each rank has of its own, chunk by chunk."""
        return self.world.sum(self.rows(batch, parts, width))[0]

    def rows(self, batch: Batch, parts: list[Tensor], width: int) -> Tensor:
        """(B, width) float64 in the order of the batch's views: this rank's own, chunk by chunk, 0 for all others."""
        values = torch.zeros(len(batch.views), width, dtype=torch.float64, device=self.device)
        if parts:
            mine = self.sent(self.local_views.places(batch.views))
            # no negative zeros, which a sum over ranks makes positive ones
            values[mine] = torch.cat(parts).to(values.dtype) + 0.0
        return values

    def at_once(self, name: str, work: Callable[..., Tensor], *few: Tensor) -> Tensor:
        """work(*few), of a few numbers, in which nothing but these changes within a stage: a GPU launches it as one."""
        found = self.backend.repeat((name,), work, brought=few)
        return found if self.device.type == "cpu" else found.clone()

    def reduction(self, *shape: int) -> Reduction:
        """A sum over views of numbers or arrays of this shape."""
        return Reduction(shape, self.device, self.backend.repeat)

    def totals(self, *reductions: Reduction) -> list[Tensor]:
        """Sums over all ranks, float64."""
        summed = self.world.sum(*(reduction.local for reduction in reductions))
        return [reduction.read(total) for reduction, total in zip(reductions, summed, strict=True)]

    def position_step(self, estimate: Estimate, chunk: Chunk, intermediates: Intermediates, chi: Tensor) -> Tensor:
        """<d psi/d p_a, chi> / ||d psi/d p_a||^2 of each view and axis, (B, 2)."""
        return self.backend.position_step(self.model, chunk, self.cut_from(estimate, chunk), intermediates, chi)

    def new_waves(self, memory: dict[str, Tensor], name: str, like: Tensor) -> KeptWaves:
        """Room in `memory` for waves of own views that are kept between sweeps, with modes and windows like these."""
        return KeptWaves.made(memory, name, like, len(self.layout.own), halves=self.halves)

    def keep(self, chunk: Chunk, intermediates: Intermediates, chi: Tensor) -> CachedChunk:
        """What a second sweep of the same chunk needs, without its patterns."""
        self._kept_views += chunk.views.shape[0]
        if self.keeps:
            return self._kept(replace(chunk, counts=chunk.counts[:0], places=None), intermediates, chi)
        # patterns that were fetched lie where others will
        counts = chunk.counts.clone() if chunk.places is None else chunk.counts
        return CachedChunk(replace(chunk, counts=counts), None, None)

    def _kept(self, chunk: Chunk, intermediates: Intermediates, chi: Tensor) -> CachedChunk:
        kept = self.backend.kept(intermediates, self.halves)
        return CachedChunk(chunk, kept, Halves.of(chi) if self.halves else chi)

    def systems(
        self, estimate: Estimate, swept: CachedChunk, d_object: Tensor, d_probe: Tensor, modes: int | None = None
    ) -> Tensor:
        """||P dO||^2, ||dP O||^2, <P dO, dP O>, <P dO, chi>, <dP O, chi> of each view, (B, 5) float64.

        d_object (L, H, W), d_probe (M, h, w), through all slices; sums go over the first `modes`, or all.
        """
        if swept.chi is None:  # nothing has moved: waves are what they were
            again = self.forward(estimate, swept.chunk)
            waves = self.backend.detector(self.model, swept.chunk, again, "exit_wave_update")[0]
            swept = self._kept(swept.chunk, again, waves)
        assert swept.chi is not None
        intermediates = self.forward(estimate, swept.chunk) if swept.intermediates is None else swept.intermediates()
        chi = swept.chi.waves if isinstance(swept.chi, Halves) else swept.chi
        return self.backend.systems(self.model, swept.chunk, intermediates, d_object, d_probe, chi[:, :modes])

    def weight_step(self, estimate: Estimate, chunk: Chunk, intermediates: Intermediates, chi: Tensor) -> Tensor:
        """<d psi/d w_jk, chi> / ||d psi/d w_jk||^2 of each view for the beam (k = 0) and its OPR modes, (B, 1 + K)."""
        ones = torch.ones_like(chunk.weights[:, :1])
        steps = []
        for modes in (estimate.probe, *estimate.opr[:, None]):
            moved = self.model.exit_change(intermediates, self.model.probes(modes, chunk.fractions, ones), None)
            along = inner(moved, chi[:, : len(modes)])
            steps.append((along / inner(moved, moved).clamp(min=torch.finfo(self.real).tiny)).to(self.real))
        return torch.stack(steps, dim=1)


def _residuals(terms: Tensor) -> tuple[float, float]:
    misfit, counts, absolute, roots = (float(t) for t in terms)
    return (misfit / counts if counts else float("nan"), absolute / roots if roots else float("nan"))
