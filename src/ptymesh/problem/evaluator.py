"""Who evaluates: waves of a chunk of views forward and back, what single views ask for, the residual of the scan.

B        views of a chunk
L, M     slices, modes
chi_jm   change of view j's exit wave that its counts ask for
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed.exact import Reduction
from ptymesh.errors import PtymeshError, ran_out_of_memory
from ptymesh.estimate import Estimate
from ptymesh.physics.backend import COUNTS, LOSS, MISFIT, ROOTS, SQUARES, Chunk, terms
from ptymesh.physics.background import BackgroundSums
from ptymesh.physics.halves import Halves
from ptymesh.physics.kinds import SUMS
from ptymesh.physics.model import Intermediates, power
from ptymesh.physics.rounding import largest, narrowed, shifts_for
from ptymesh.problem.batch import CachedChunk
from ptymesh.problem.fields import Fields
from ptymesh.problem.kept_waves import KeptWaves
from ptymesh.problem.loader import ViewLoader
from ptymesh.problem.setup import Setup
from ptymesh.problem.view_metrics import COLUMNS, ViewMetrics

T = TypeVar("T")


class Evaluator:
    """The model, on chunks of views and on all of them.

    Args:
        setup: what all parts of the problem share.
        loader: whose views these are.
        fields: of the object.
        view_metrics: per own view loss, and the four sums of the residual, as last seen.
    """

    def __init__(self, setup: Setup, loader: ViewLoader, fields: Fields, view_metrics: ViewMetrics) -> None:
        self.setup, self.loader, self.fields, self.view_metrics = setup, loader, fields, view_metrics
        #: Whether waves of a batch are kept for a second sweep, and of how many views they have been in this one.
        self.keeps, self.kept_views = True, 0

    # --- a chunk ---

    def forward(self, estimate: Estimate, chunk: Chunk) -> Intermediates:
        """Windows, incoming and exit waves of a chunk."""
        obj = self.cut_from(estimate, chunk)
        return self.setup.backend.forward(self.setup.model, chunk, obj, estimate.probe, estimate.opr)

    @staticmethod
    def cut_from(estimate: Estimate, chunk: Chunk) -> Tensor:
        """The object from which the chunk's windows are cut."""
        return estimate.object if chunk.object is None else chunk.object

    def detect(self, chunk: Chunk, exit_waves: Tensor) -> Tensor:
        """Psi = D psi, (B, M, h, w)."""
        return self.setup.model.detect(exit_waves, chunk.fractions)

    def exit_wave_update(self, chunk: Chunk, intermediates: Intermediates) -> Tensor:
        """chi = D^H (Psi' - Psi), (B, M, h, w), for the chunk's exit waves; notes their loss and residual."""
        waves, found = self.setup.backend.detector(self.setup.model, chunk, intermediates, "exit_wave_update")
        self.see(chunk, found)
        return waves

    def fit(self, chunk: Chunk, waves: Tensor) -> Tensor:
        """D^H (Psi' - Psi) of any waves (B, M, h, w) of the chunk's views; notes nothing."""
        return self.setup.backend.there_and_back(self.setup.model, chunk, waves, "exit_wave_update")[0]

    def loss_gradient(
        self, chunk: Chunk, intermediates: Intermediates, note: bool = True, lit: BackgroundSums | None = None
    ) -> tuple[Tensor, Tensor]:
        """-D^H (dL/dI Psi), (B, M, h, w), and of each view the loss of the model's fidelity, sum y, sum y^2, (B, 3).

        `note`: for the running loss of the epoch. lit: to which is added what views ask of the background.
        """
        waves, seen = self.setup.backend.detector(self.setup.model, chunk, intermediates, "loss_gradient", lit)
        if note:
            self.see(chunk, seen)
        return waves, loss_and_counts(seen)

    def evaluate(self, chunk: Chunk, waves: Tensor) -> None:
        """Notes loss and residual of these waves (B, M, h, w) of the chunk's views."""
        self.see(chunk, self.setup.backend.there_and_back(self.setup.model, chunk, waves, "evaluate")[1])

    def note(self, chunk: Chunk, S: Tensor) -> None:
        """Notes loss and residual of the chunk's views for the running values of the epoch; S is (B, h, w)."""
        self.see(chunk, terms(self.setup.model, chunk, S))

    def see(self, chunk: Chunk, found: Tensor) -> None:
        """Notes what a pass over the detector has found of the chunk's views, (B, 6)."""
        self.view_metrics.note(chunk.rows, found)

    def position_step(self, estimate: Estimate, chunk: Chunk, intermediates: Intermediates, chi: Tensor) -> Tensor:
        """<d psi/d p_a, chi> / ||d psi/d p_a||^2 of each view and axis, (B, 2)."""
        given = self.cut_from(estimate, chunk), estimate.probe, estimate.opr, intermediates, chi
        return self.setup.backend.position_step(self.setup.model, chunk, *given)

    def weight_step(self, estimate: Estimate, chunk: Chunk, intermediates: Intermediates, chi: Tensor) -> Tensor:
        """<d psi/d w_jk, chi> / ||d psi/d w_jk||^2 of each view for the beam (k = 0) and its OPR modes, (B, 1 + K)."""
        given = estimate.probe, estimate.opr, intermediates, chi
        return self.setup.backend.weight_step(self.setup.model, chunk, *given)

    def at_once(self, name: str, work: Callable[..., Tensor], *few: Tensor) -> Tensor:
        """work(*few), of a few numbers, in which nothing but these changes within a stage: a GPU launches it as one."""
        found = self.setup.backend.repeat((name,), work, brought=few)
        return found if self.setup.device.type == "cpu" else found.clone()

    # --- a second sweep ---

    def keep(self, chunk: Chunk, intermediates: Intermediates, chi: Tensor) -> CachedChunk:
        """What a second sweep of the same chunk needs, without its patterns."""
        self.kept_views += chunk.views.shape[0]
        if self.keeps:
            return self._kept(replace(chunk, counts=chunk.counts[:0], places=None), intermediates, chi)
        # patterns that were fetched lie where others will
        counts = chunk.counts.clone() if chunk.places is None else chunk.counts
        return CachedChunk(replace(chunk, counts=counts), None, None)

    def _kept(self, chunk: Chunk, intermediates: Intermediates, chi: Tensor) -> CachedChunk:
        halves = self.setup.halves
        return CachedChunk(chunk, self.setup.backend.kept(intermediates, halves), Halves.of(chi) if halves else chi)

    def systems(
        self, estimate: Estimate, swept: CachedChunk, d_object: Tensor, d_probe: Tensor, modes: int | None = None
    ) -> Tensor:
        """||P dO||^2, ||dP O||^2, <P dO, dP O>, <P dO, chi>, <dP O, chi> of each view, (B, 5) float64.

        d_object (L, H, W), d_probe (M, h, w), through all slices; sums go over the first `modes`, or all.
        """
        model, backend = self.setup.model, self.setup.backend
        if swept.chi is None:  # nothing has moved: waves are what they were
            again = self.forward(estimate, swept.chunk)
            swept = self._kept(swept.chunk, again, self._made_again(swept.chunk, again))
        assert swept.chi is not None
        intermediates = self.forward(estimate, swept.chunk) if swept.intermediates is None else swept.intermediates()
        chi = swept.chi.waves if isinstance(swept.chi, Halves) else swept.chi
        return backend.systems(model, swept.chunk, intermediates, d_object, d_probe, chi[:, :modes])

    def _made_again(self, chunk: Chunk, intermediates: Intermediates) -> Tensor:
        """chi (B, M, h, w), in the way in which it was made first."""
        backend, given = self.setup.backend, (self.setup.model, chunk, intermediates)
        if chunk.sweep.get("by sweep"):
            return backend.made_again(*given, "exit_wave_update")
        return backend.detector(*given, "exit_wave_update")[0]

    def new_waves(self, memory: dict[str, Tensor], name: str, like: Tensor) -> KeptWaves:
        """Room in `memory` for waves of own views that are kept between sweeps, with modes and windows like these."""
        return KeptWaves.made(memory, name, like, len(self.setup.layout.own), halves=self.setup.halves)

    # --- all views ---

    def residual(
        self, estimate: Estimate, views: np.ndarray | None = None, each: Tensor | None = None
    ) -> tuple[float, float]:
        """Frozen residual sum (sqrt I - sqrt y)^2 / sum y and R = sum |sqrt I - sqrt y| / sum sqrt y.

        Over all views, or over these: one pass in which nothing moves. Where memory runs out this rank goes on with
        smaller chunks; the others wait for its sum. each: (N, 2) float64, in which both sums of the residual are noted
        of each of these views that this rank has.
        """
        views, seen = np.arange(self.loader.views) if views is None else views, self.setup.layout.seen(estimate.object)
        return _residuals(*self.fields.totals(self.in_memory(lambda: self._misfit(estimate, views, seen, each))))

    def in_memory(self, sweep: Callable[[], T]) -> T:
        """Return what `sweep` does, a pass over chunks without collectives; where memory runs out, once more with
        smaller chunks. Raises PtymeshError where a single view is too much."""
        while True:
            try:
                return sweep()
            except (MemoryError, RuntimeError) as error:
                if not ran_out_of_memory(error):
                    raise
            # out here the frames of what failed, and what they held, are gone
            self.setup.give_back()
            if not self.loader.halve_chunks():
                raise PtymeshError(f"Rank {self.setup.world.rank} ran out of memory with a single view at a time.")

    def _misfit(self, estimate: Estimate, views: np.ndarray, seen: Tensor, each: Tensor | None) -> Reduction:
        """The sums of the residual over these views, of this rank."""
        total = self.fields.reduction(4)
        for chunk in self.loader.chunks(estimate, views, seen=seen):
            waves = self.forward(estimate, chunk)
            found = self.setup.backend.detector(self.setup.model, chunk, waves, "evaluate")[1]
            total.add(found[:, MISFIT : ROOTS + 1])
            if each is not None:
                each[chunk.views] = found[:, MISFIT : COUNTS + 1]
        return total

    def running(self) -> tuple[float, float, float]:
        """Loss, residual and R of the epoch, each view as it was seen in its batch; over all ranks."""
        seen = self.fields.reduction(COLUMNS)
        seen.add(self.view_metrics.values)
        (total,) = self.fields.totals(seen)
        return float(total[0]), *_residuals(total[1:])

    def illumination(self, estimate: Estimate) -> Tensor:
        """sum_j w_j0^2 S_j^H sum_m |P_m|^2 over all views, at the integer anchors: (H, W) of the estimate's object."""
        views, layout, light = self.loader.views, self.setup.layout, power(estimate.probe[None])[0]
        bound = largest(light) * (2.0 * views) ** 2  # amplitudes have a mean of about 1
        shifts, _ = shifts_for(bound.expand(SUMS), views)
        one = estimate.object[:1]
        total = self.fields.buffer("illumination", one, torch.float64, 2, layout.shape(one)).zero_()
        for chunk in self.loader.chunks(estimate, layout.own, with_counts=False):
            self.setup.backend.illuminate(self.setup.model, chunk, light, shifts, total)
        return narrowed(layout.sum_field(total), self.setup.real, 1)[0]


def loss_and_counts(found: Tensor) -> Tensor:
    """Of what a pass over the detector returns, loss, sum y and sum y^2 of each view, (B, 3) float64."""
    # by their numbers: a list of them would have to be sent to the device
    return torch.stack((found[:, LOSS], found[:, COUNTS], found[:, SQUARES]), dim=1)


def _residuals(terms: Tensor) -> tuple[float, float]:
    misfit, counts, absolute, roots = (float(t) for t in terms)
    return (misfit / counts if counts else float("nan"), absolute / roots if roots else float("nan"))
