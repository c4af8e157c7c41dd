"""Evaluation of views: waves of a chunk forward and back, steps of single views, and the residual of the scan.

B        views of a chunk
L, M     slices, modes
chi_jm   change of view j's exit wave towards its counts
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed.exact import Reduction
from ptymesh.errors import PtymeshError, ran_out_of_memory
from ptymesh.estimate import Estimate
from ptymesh.physics import fidelity
from ptymesh.physics.backend import COUNTS, LOSS, MISFIT, ROOTS, SQUARES, Chunk, fidelity_columns
from ptymesh.physics.background import BackgroundSums
from ptymesh.physics.elementwise import over_window
from ptymesh.physics.half_precision import Halves
from ptymesh.physics.kinds import SUMS
from ptymesh.physics.model import Intermediates, power
from ptymesh.physics.operators import with_value
from ptymesh.physics.rounding import largest, narrowed, shifts_for
from ptymesh.problem.batch import CachedChunk
from ptymesh.problem.kept_waves import KeptWaves
from ptymesh.problem.loader import ViewLoader
from ptymesh.problem.object_fields import Fields
from ptymesh.problem.setup import Setup
from ptymesh.problem.view_metrics import COLUMNS, ViewMetrics

T = TypeVar("T")
#: Numbers of an unknown, at most, for each of which the model is evaluated once more.
FEW = 2


class Evaluator:
    """The model, applied to chunks of views and to all views.

    Args:
        setup: what all parts of the problem share.
        loader: loads the views.
        fields: operations on fields of the object.
        view_metrics: table of loss and residual sums of this rank's views.
    """

    def __init__(self, setup: Setup, loader: ViewLoader, fields: Fields, view_metrics: ViewMetrics) -> None:
        self.setup, self.loader, self.fields, self.view_metrics = setup, loader, fields, view_metrics
        #: True if waves of a batch are kept for a second sweep; and of how many views they have been in this batch.
        self.keeps, self.kept_views = True, 0

    # --- a chunk ---

    def forward(self, estimate: Estimate, chunk: Chunk) -> Intermediates:
        """Return windows, incoming and exit waves of a chunk."""
        obj = self.cut_from(estimate, chunk)
        return self.setup.backend.forward(self.setup.model, chunk, obj, estimate.probe_of(chunk.setting), estimate.opr)

    @staticmethod
    def cut_from(estimate: Estimate, chunk: Chunk) -> Tensor:
        """Return the object from which the chunk's windows are cut."""
        return estimate.object if chunk.object is None else chunk.object

    def detect(self, chunk: Chunk, exit_waves: Tensor) -> Tensor:
        """Propagate exit waves to the detector: Psi = D psi, (B, M, h, w)."""
        return self.setup.model.detect(exit_waves, chunk.fractions)

    def exit_wave_update(self, chunk: Chunk, intermediates: Intermediates) -> Tensor:
        """Return chi = D^H (Psi' - Psi), (B, M, h, w), of the chunk's exit waves; record their loss and residual."""
        waves, columns = self.setup.backend.detector(self.setup.model, chunk, intermediates, "exit_wave_update")
        self.record_columns(chunk, columns)
        return waves

    def fit(self, chunk: Chunk, waves: Tensor) -> Tensor:
        """Return D^H (Psi' - Psi) of any waves (B, M, h, w) of the chunk's views; record nothing."""
        return self.setup.backend.apply_at_detector(self.setup.model, chunk, waves, "exit_wave_update")[0]

    def loss_gradient(
        self,
        chunk: Chunk,
        intermediates: Intermediates,
        record: bool = True,
        background_sums: BackgroundSums | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return -D^H (dL/dI Psi) of the chunk's exit waves.

        Args:
            chunk: the views.
            intermediates: windows and waves of the chunk.
            record: True to record loss and residual for the running values of the epoch.
            background_sums: background sums to which the terms of these views are added.

        Returns:
            The waves (B, M, h, w); and the loss of the model's fidelity, sum y, sum y^2 of each view, (B, 3) float64.
        """
        waves, columns = self.setup.backend.detector(
            self.setup.model, chunk, intermediates, "loss_gradient", background_sums
        )
        if record:
            self.record_columns(chunk, columns)
        return waves, loss_and_counts(columns)

    def evaluate(self, chunk: Chunk, waves: Tensor) -> None:
        """Record loss and residual of these waves (B, M, h, w) of the chunk's views."""
        self.record_columns(chunk, self.setup.backend.apply_at_detector(self.setup.model, chunk, waves, "evaluate")[1])

    def record_signal(self, chunk: Chunk, S: Tensor) -> None:
        """Record loss and residual of the chunk's views for the running values of the epoch.

        S is (B, h, w), behind the pieces of the detector.
        """
        self.record_columns(chunk, fidelity_columns(self.setup.model, chunk, S))

    def record_columns(self, chunk: Chunk, columns: Tensor) -> None:
        """Record the columns (B, 6) that a pass over the detector returned for the chunk's views."""
        self.view_metrics.record(chunk.rows, columns)

    def position_step(self, estimate: Estimate, chunk: Chunk, intermediates: Intermediates, chi: Tensor) -> Tensor:
        """Return <d psi/d p_a, chi> / ||d psi/d p_a||^2 of each view and axis, (B, 2) float64, in pixels.

        Args:
            estimate: the unknowns.
            chunk: the views.
            intermediates: windows and waves of the chunk.
            chi: (B, M, h, w) complex, wanted change of the exit waves.
        """
        arguments = self.cut_from(estimate, chunk), estimate.probe_of(chunk.setting), estimate.opr, intermediates, chi
        return self.setup.backend.position_step(self.setup.model, chunk, *arguments)

    def weight_step(self, estimate: Estimate, chunk: Chunk, intermediates: Intermediates, chi: Tensor) -> Tensor:
        """Return <d psi/d w_jk, chi> / ||d psi/d w_jk||^2 of each view, (B, 1 + K).

        The first column is the probe's (k = 0), the others are its OPR modes'.

        Args:
            estimate: the unknowns.
            chunk: the views.
            intermediates: windows and waves of the chunk.
            chi: (B, M, h, w) complex, wanted change of the exit waves.
        """
        arguments = estimate.probe_of(chunk.setting), estimate.opr, intermediates, chi
        return self.setup.backend.weight_step(self.setup.model, chunk, *arguments)

    def detector_slopes(self, chunk: Chunk, intermediates: Intermediates) -> dict[str, Tensor]:
        """Return slope and norm of each view, (B, 2, ...) float64, by name of the unknowns of the detector's pieces.

        Their quotient is the Gauss-Newton step (physics/detector/pieces.py).

        Args:
            chunk: the views.
            intermediates: windows and waves of the chunk.
        """
        model, data = self.setup.model, chunk.data

        def loss_derivatives(signal: Tensor) -> tuple[Tensor, Tensor]:
            return fidelity.slope(model.fidelity, signal, data), fidelity.norm(model.fidelity, signal, data) / 2

        S = power(self.detect(chunk, intermediates.exit))
        return self.stack_pairs(chunk, model.detector_slopes(S, data, chunk.values, loss_derivatives))

    def stack_pairs(self, chunk: Chunk, pairs: dict[str, tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """Return slopes and norms (B, ...) of the pieces' unknowns as (B, 2, ...) float64, as they are summed.

        Of complex unknowns, both are pairs of reals.

        Args:
            chunk: the views.
            pairs: slopes and norms of each view, by name.
        """
        declared, stacked = {one.name: one for one in self.setup.model.unknowns}, {}
        for name, pair in pairs.items():
            along, norm = (self.loader.spread_over_scans(declared[name], terms, chunk.views) for terms in pair)
            if along.is_complex():
                along, norm = torch.view_as_real(along), norm[..., None]
            stacked[name] = torch.stack((along, norm.expand_as(along)), dim=1).to(torch.float64)
        return stacked

    def operator_pairs(
        self, chunk: Chunk, intermediates: Intermediates, chi: Tensor, names: frozenset[str]
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Return slope and norm of each view, (B, ...), by name of these unknowns of the operators.

        Where an operator makes several waves of each, what some gain others lose, so that the norm of their changes may
        be hundreds of times that of the change of the counts: of one or two numbers, the norm is that of the counts
        instead.

        Args:
            chunk: the views.
            intermediates: windows and waves of the chunk.
            chi: (B, M, h, w) complex, wanted change of the exit waves.
            names: unknowns that are wanted.
        """
        pairs = {
            name: pair for name, pair in self.setup.model.operator_slopes(intermediates, chi).items() if name in names
        }
        for name in sorted(names & self.setup.model.unknowns_of_copies):
            slope, _ = pairs[name]
            if not slope.is_complex() and slope[0].numel() <= FEW:
                pairs[name] = slope, self._norm_at_counts(chunk, intermediates, name, slope)
        return pairs

    def _norm_at_counts(self, chunk: Chunk, intermediates: Intermediates, name: str, like: Tensor) -> Tensor:
        """Return sum w (dI / dx)^2 of each view for the numbers x of an unknown, from changes of x that matter.

        w is half of the loss's second derivative where counts are as modelled, at the mean amplitude of both ends:
        for amplitudes the terms are exactly those of the change of sqrt(I), also where I is 0 at one end.

        Args:
            chunk: the views.
            intermediates: windows and waves of the chunk.
            name: of an unknown of an operator.
            like: (B, ...), of the shape that is returned: the dots are the axes of x without N.
        """
        model, values = replace(self.setup.model, energies=None), intermediates.values
        assert intermediates.probes is not None, "made by a model with operators"
        start, size = model.signal(power(self.detect(chunk, intermediates.exit)), values), model.sizes[name]
        norms = []
        for step in torch.eye(like[0].numel(), dtype=values[name].dtype, device=values[name].device):
            moved = with_value(values, name, values[name] + size * step.view(like.shape[1:]))
            waves = model.forward(intermediates.windows, intermediates.probes, moved).exit
            end = model.signal(power(self.detect(chunk, waves)), moved)
            weight = fidelity.norm(model.fidelity, ((start.sqrt() + end.sqrt()) / 2).square(), chunk.data) / 2
            norms.append(over_window(weight * ((end - start) / size).square()))
        return torch.stack(norms, dim=1).view(like.shape)

    def at_once(self, name: str, work: Callable[..., Tensor], *few: Tensor) -> Tensor:
        """Return work(*few), which a GPU may launch as one operation.

        Args:
            name: key of the recorded operation.
            work: function of small tensors, in which nothing but these may change within a stage.
            few: the tensors.
        """
        results = self.setup.backend.repeat((name,), work, brought=few)
        return results if self.setup.device.type == "cpu" else results.clone()

    # --- a second sweep ---

    def keep(self, chunk: Chunk, intermediates: Intermediates, chi: Tensor) -> CachedChunk:
        """Return what a second sweep of the same chunk needs.

        Patterns are left out if waves are kept.

        Args:
            chunk: the views.
            intermediates: windows and waves of the chunk.
            chi: (B, M, h, w) complex, from the first sweep.
        """
        self.kept_views += chunk.views.shape[0]
        if self.keeps:
            return self._add_waves(replace(chunk, counts=chunk.counts[:0], pattern_index=None), intermediates, chi)
        # Fetched patterns lie in a buffer that will be used again.
        counts = chunk.counts.clone() if chunk.pattern_index is None else chunk.counts
        return CachedChunk(replace(chunk, counts=counts), None, None)

    def _add_waves(self, chunk: Chunk, intermediates: Intermediates, chi: Tensor) -> CachedChunk:
        """Return a chunk with its intermediates and chi, in half precision if the setup says so."""
        halves = self.setup.halves
        return CachedChunk(
            chunk, self.setup.backend.keep_intermediates(intermediates, halves), Halves.of(chi) if halves else chi
        )

    def systems(
        self, estimate: Estimate, swept: CachedChunk, d_object: Tensor, d_probe: Tensor, modes: int | None = None
    ) -> Tensor:
        """Return ||P dO||^2, ||dP O||^2, <P dO, dP O>, <P dO, chi>, <dP O, chi> of each view, (B, 5) float64.

        Args:
            estimate: the unknowns.
            swept: the chunk, from `keep`.
            d_object: (L, H, W) complex, dO; changes are carried through all slices.
            d_probe: (M, h, w) complex, dP.
            modes: number of modes over which sums go; None for all.
        """
        model, backend = self.setup.model, self.setup.backend
        if swept.chi is None:  # nothing has moved, so the waves are the same as in the first sweep
            recomputed = self.forward(estimate, swept.chunk)
            swept = self._add_waves(swept.chunk, recomputed, self._recompute_waves(swept.chunk, recomputed))
        assert swept.chi is not None
        intermediates = self.forward(estimate, swept.chunk) if swept.intermediates is None else swept.intermediates()
        chi = swept.chi.waves if isinstance(swept.chi, Halves) else swept.chi
        waves = None if modes is None else modes * model.fan_out
        return backend.systems(model, swept.chunk, intermediates, d_object, d_probe, chi[:, :waves])

    def _recompute_waves(self, chunk: Chunk, intermediates: Intermediates) -> Tensor:
        """Recompute chi (B, M, h, w) of a chunk by the same pass as the first time."""
        backend, arguments = self.setup.backend, (self.setup.model, chunk, intermediates)
        if chunk.cache.is_swept:
            return backend.recompute_waves(*arguments, "exit_wave_update")
        return backend.detector(*arguments, "exit_wave_update")[0]

    def new_waves(self, memory: dict[str, Tensor], name: str, like: Tensor) -> KeptWaves:
        """Allocate waves of this rank's views, kept between sweeps.

        Args:
            memory: the engine's memory of views, in which they are allocated.
            name: their name there.
            like: (M, h, w) complex, the probe, with modes, window and dtype; the model makes M K waves of them.
        """
        like = like.new_empty((len(like) * self.setup.model.fan_out, *like.shape[1:]))
        return KeptWaves.allocate(memory, name, like, len(self.setup.layout.own), halves=self.setup.halves)

    # --- all views ---

    def residual(
        self, estimate: Estimate, views: np.ndarray | None = None, each: Tensor | None = None
    ) -> tuple[float, float]:
        """Return the frozen residual sum (sqrt I - sqrt y)^2 / sum y and R = sum |sqrt I - sqrt y| / sum sqrt y.

        One pass in which nothing moves. If memory runs out, this rank continues with smaller chunks while the others
        wait for its sum. Collective.

        Args:
            estimate: the unknowns.
            views: global indices of the views; None for all.
            each: (N, 2) float64, filled with both sums of the residual for those of these views that this rank has.

        Raises:
            PtymeshError: there is not enough memory for a single view.
        """
        views, filled = np.arange(self.loader.views) if views is None else views, self.loader.fill_halos(estimate)
        return _residuals(*self.fields.totals(self.in_memory(lambda: self._misfit(estimate, views, filled, each))))

    def in_memory(self, sweep: Callable[[], T]) -> T:
        """Call `sweep`, a pass over chunks without collectives, and repeat it with smaller chunks if memory runs out.

        Raises:
            PtymeshError: there is not enough memory for a single view.
        """
        while True:
            try:
                return sweep()
            except (MemoryError, RuntimeError) as error:
                if not ran_out_of_memory(error):
                    raise
            # Outside of the except clause, the frames of the failed call and their tensors are freed.
            self.setup.give_back()
            if not self.loader.chunk_sizes.halve():
                raise PtymeshError(f"Rank {self.setup.world.rank} ran out of memory with a single view at a time.")

    def _misfit(
        self, estimate: Estimate, views: np.ndarray, filled: Mapping[str, Tensor], each: Tensor | None
    ) -> Reduction:
        """Return the sums of the residual over those of these views that this rank has."""
        total = self.fields.reduction(4)
        for chunk in self.loader.chunks(estimate, views, filled=filled):
            waves = self.forward(estimate, chunk)
            columns = self.setup.backend.detector(self.setup.model, chunk, waves, "evaluate")[1]
            total.add(columns[:, MISFIT : ROOTS + 1])
            if each is not None:
                each[chunk.views] = columns[:, MISFIT : COUNTS + 1]
        return total

    def running(self) -> tuple[float, float, float]:
        """Return loss, residual and R of the epoch over all ranks, each view as it was in its batch. Collective."""
        sums = self.fields.reduction(COLUMNS)
        sums.add(self.view_metrics.values)
        (total,) = self.fields.totals(sums)
        return float(total[0]), *_residuals(total[1:])

    def illumination(self, estimate: Estimate) -> Tensor:
        """Return sum_j w_j0^2 S_j^H sum_m |P_m|^2 over all views, at the integer anchors, (H, W) real. Collective."""
        views, layout = self.loader.views, self.setup.layout
        lights = [power(probe[None])[0] for probe in estimate.probes]
        bound = largest(torch.stack(lights)) * (2.0 * views) ** 2  # amplitudes have a mean of about 1
        shifts, _ = shifts_for(bound.expand(SUMS), views)
        one = estimate.object[:1]
        total = self.fields.buffer("illumination", one, torch.float64, 2, layout.shape(one)).zero_()
        for chunk in self.loader.chunks(estimate, layout.own, with_counts=False):
            light = lights[chunk.setting if len(lights) > 1 else 0]
            self.setup.backend.illuminate(self.setup.model, chunk, light, shifts, total)
        return narrowed(layout.sum_field(total), self.setup.real, 1)[0]


def loss_and_counts(columns: Tensor) -> Tensor:
    """Return loss, sum y and sum y^2 of each view, (B, 3) float64.

    They are among the columns (B, 6) of a pass over the detector.
    """
    # One by one: a list of indices would have to be sent to the device.
    return torch.stack((columns[:, LOSS], columns[:, COUNTS], columns[:, SQUARES]), dim=1)


def _residuals(terms: Tensor) -> tuple[float, float]:
    """Return residual and R from their four sums; NaN without counts."""
    misfit, counts, absolute, roots = (float(t) for t in terms)
    return (misfit / counts if counts else float("nan"), absolute / roots if roots else float("nan"))
