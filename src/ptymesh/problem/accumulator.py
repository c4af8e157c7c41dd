"""Adjoints of waves, collected chunk by chunk into global sums over a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ptymesh.errors import PtymeshError
from ptymesh.estimate import Estimate
from ptymesh.parallel.exact import ExactAdjoints, Tally
from ptymesh.physics.blocks import Leaf, blocked
from ptymesh.physics.model import Scene
from ptymesh.physics.passes import COUNTS, LOSS, SQUARES, Adjoints, Chunk, Task
from ptymesh.problem.batch import Batch, Sums

if TYPE_CHECKING:
    from ptymesh.parallel.layout import Touched
    from ptymesh.problem.problem import Problem, Waves


class Accumulator:
    """Global sums over a batch of the adjoints of waves (chi, exit waves ...), added chunk by chunk.

    With only="object" the probe's sums stay zero, with only="probe" the object's have no blocks.
    """

    def __init__(self, problem: Problem, estimate: Estimate, batch: Batch, only: str | None = None) -> None:
        self.problem, self.estimate, self.batch = problem, estimate, batch
        with_object, with_probe = only != "probe", only != "object" and not problem.probe_frozen
        blocks = problem.own.blocks(estimate, batch.views)
        self.blocks = blocks if with_object else blocks.none()
        problem.reclaim()
        #: No other rank waits for the sums.
        self.alone = problem.world.size == 1
        self.exact = None
        if problem.exact:
            obj = problem.buffer("exact object sum", estimate.object, torch.int64, 4)
            object_weight = problem.buffer("exact object weight", estimate.object, torch.int64, 2)
            for field in (obj, object_weight):
                blocked(field)[:, self.blocks.rows, self.blocks.columns] = 0
            scale = (problem.largest_wave, len(batch.views))
            unknowns = (estimate.probe, estimate.opr)
            which = (with_object, with_probe)
            self.exact = ExactAdjoints(*scale, (obj, object_weight), *unknowns, *which, problem.passes)
        else:
            obj = problem.buffer("object sum", estimate.object, problem.dtype)
            object_weight = problem.buffer("object weight", estimate.object, problem.real)
            opr, none = estimate.opr, not estimate.opr.shape[0]  # no OPR modes: there are no numbers to add to
            self.sums = Adjoints(
                obj if with_object else None,
                object_weight if with_object else None,
                torch.empty_like(estimate.probe) if with_probe else None,
                torch.empty(problem.window, dtype=problem.real, device=problem.device),
                opr if none else torch.zeros_like(opr),
                problem.buffer("no opr", opr, problem.real) if none else torch.zeros_like(opr, dtype=problem.real),
                views=len(batch.views) if self.alone else None,
            )
            problem.passes.begin(self.sums, self.blocks.rows, self.blocks.columns)
        self.fields = [obj, object_weight]
        #: Border views that the sums wait for, and views that have been added.
        self._border, self._added = problem.own.border(estimate, batch.views), 0
        self._finish: Callable[..., list[Any]] | None = None
        problem.position_steps.clear()
        problem.weight_steps.clear()

    def chunks(self, keep: bool = False) -> Iterator[Chunk]:
        """The batch's views for one sweep, whose waves `revise` (with `keep`) or `descend` adds."""
        waves: Waves = "used" if self._waves_wanted else "kept" if keep else "dropped"
        return self.problem.chunks(self.estimate, self.batch.views, waves=waves)

    @property
    def _waves_wanted(self) -> bool:
        """Whether waves go further than into sums of object and probe, or these are made of them in other ways."""
        batch, problem = self.batch, self.problem
        return problem.exact or batch.refine or batch.vary or problem.probe_frozen or len(self.estimate.opr) > 0

    def add(self, chunk: Chunk, scene: Scene, waves: Tensor) -> None:
        """Adds S_j^H conj(phi) waves, T_{-f} conj(S O) waves and their weights; waves (B, M, h, w) at the exit."""
        problem = self.problem
        self._admit(chunk)
        if self.exact:
            self.exact.add(problem.model, scene, waves, chunk.anchors, chunk.fractions, chunk.weights)
        else:
            problem.passes.adjoint(problem.model, chunk, scene, waves, self.sums)
        if self.batch.refine:
            problem.position_steps.append((chunk.views, problem.position_step(self.estimate, chunk, scene, waves)))
        if self.batch.vary:
            problem.weight_steps.append((chunk.views, problem.weight_step(self.estimate, chunk, scene, waves)))

    def revise(self, chunk: Chunk, scene: Scene, keep: bool = False) -> Tensor:
        """Adds chi of exit waves, (B, M, h, w), and notes their loss and residual; with `keep` it is returned."""
        chi, found = self._sweep(chunk, scene, "revise", keep)
        self.problem.see(chunk, found)
        return chi

    def descend(self, chunk: Chunk, scene: Scene, note: bool = True) -> Tensor:
        """Adds -D^H (dL/dI Psi) of the chunk; returns what `Problem.descend` does of each view, (B, 3)."""
        found = self._sweep(chunk, scene, "descend", keep=False)[1]
        if note:
            self.problem.see(chunk, found)
        return loss_and_counts(found)

    def _sweep(self, chunk: Chunk, scene: Scene, task: Task, keep: bool) -> tuple[Tensor, Tensor]:
        problem, passes = self.problem, self.problem.passes
        if self._waves_wanted:
            waves, found = passes.expose(problem.model, chunk, scene, task)
            self.add(chunk, scene, waves)
            return waves, found
        self._admit(chunk)
        return passes.sweep(problem.model, chunk, scene, task, self.sums, keep)

    def _admit(self, chunk: Chunk) -> None:
        if chunk.border and self._finish:
            raise PtymeshError("These views' sums have been sent already; add all views of a batch in one sweep.")
        self._added += chunk.views.shape[0]

    def begin(self) -> None:
        """All border views have been swept: where they have been added, too, their sums start to travel."""
        if self._finish is None and self._added >= self._border:
            self._begin()

    def _begin(self) -> None:
        if self.exact is None and not self.alone:
            self.problem.passes.settle(self.sums)
        self._finish = self.problem.layout.begin(self.fields, self.blocks)

    def total(self, *others: Tally | Tensor) -> Sums:
        """Sums over all ranks, of `others` too, in one message: tallies, and rows of which one rank has each."""
        problem = self.problem
        problem.collected()
        if self._finish is None:
            self._begin()
        stop = problem.answers[int(problem.stop_requested)]
        parts = [*(other.local if isinstance(other, Tally) else other for other in others)]
        parts.append(stop.to(torch.int64) if self.exact else stop)
        found, rest = self._exactly(parts) if self.exact else self._plainly(parts)
        obj, object_weight, probe, probe_weight, opr, opr_weight = found
        values = [other.read(t) if isinstance(other, Tally) else t for other, t in zip(others, rest, strict=False)]
        problem.stop_agreed = rest[-1]
        problem.lend(obj, object_weight)
        self._leave_late(obj, object_weight)
        in_real = tuple(value.to(problem.real) for value in values)
        problem.last = Sums(obj, object_weight, probe, probe_weight, opr, opr_weight, in_real)
        return problem.last

    def _leave_late(self, *fields: Touched) -> None:
        """The object's sums are completed when somebody reads them, where no other rank waits for them."""
        if self.exact is None and self.alone:
            for field in fields:
                if isinstance(field.expression, Leaf):
                    field.expression.late = self.sums.late

    def _plainly(self, parts: list[Tensor]) -> tuple[list[Any], list[Tensor]]:
        """Sums over ranks of the six adjoints and of the parts, in floats."""
        problem, sums = self.problem, self.sums
        problem.passes.finish(sums)
        by_probe = torch.zeros_like(self.estimate.probe) if sums.probe is None else sums.probe
        adjoints = (by_probe, sums.probe_weight, sums.opr, sums.opr_weight)
        assert self._finish is not None
        found = self._finish(*adjoints, *(p.to(problem.real) for p in parts))
        return found[:6], found[6:]

    def _exactly(self, parts: list[Tensor]) -> tuple[list[Any], list[Tensor]]:
        """The same in integers. Rows travel as the bits of their numbers: other ranks' zeros leave them alone."""
        assert self.exact is not None and self._finish is not None
        own = self.exact.message()
        bits = [part if part.dtype == torch.int64 else part.to(torch.float64).view(torch.int64) for part in parts]
        obj, object_weight, *found = self._finish(*own, *bits)
        summed = self.exact.decoded(self.problem.model, [obj.values, object_weight.values, *found[: len(own)]])
        rest = [
            total if part.dtype == torch.int64 else total.view(torch.float64)
            for total, part in zip(found[len(own) :], parts, strict=True)
        ]
        return [obj.of(summed[0]), object_weight.of(summed[1]), *summed[2:]], rest


def loss_and_counts(found: Tensor) -> Tensor:
    """Of what a pass over the detector returns, loss, sum y and sum y^2 of each view, (B, 3) float64."""
    # by their numbers: a list of them would have to be sent to the device
    return torch.stack((found[:, LOSS], found[:, COUNTS], found[:, SQUARES]), dim=1)
