"""Candidates that continue one estimate in different ways, compared by views that no update has seen.

Every number on which something is decided is a sum over all ranks, and nothing looks at a clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from ptymesh.distributed.layouts.layout import Replicated
from ptymesh.distributed.world import World
from ptymesh.engines import Engine
from ptymesh.errors import Diverged, Interrupted
from ptymesh.estimate import Estimate
from ptymesh.measurement import Measurement
from ptymesh.physics.beam import probes
from ptymesh.planning.batches import hold_out
from ptymesh.planning.cost_model import EpochSize, cost_of_judging, cost_of_stage, sweep_work
from ptymesh.recipe.initial import opr_modes
from ptymesh.recipe.schema import Recipe, engine_of
from ptymesh.run.loop import Loop
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.run.state import HISTORY, RunState
from ptymesh.verdict.held_out import Judged, judge_held_out

#: Number of held-out views: enough to tell a difference.
HELD_VIEWS = 40
#: Largest share of a scan's views that is held out.
MOST_HELD = 0.2
#: What ranks do in a search, for messages.
SEARCHING = "finding the stages"
#: Standard errors by which a change has to lower the held-out residual, besides a share of it.
SURE = 2.0

Stop = Callable[[], bool]
#: An engine with its options, as in a stage of a recipe.
StageOptions = dict[str, Any]


class Undecided(Interrupted):
    """A stop before the stages were found: a run can only start anew."""


class OverBudget(Exception):
    """A request that costs more sweeps than the budget has left."""


@dataclass
class Budget:
    """Sweeps (units of work, see planning/cost_model.py) that the search may spend.

    Attributes:
        sweeps: all of them.
        spent: those that are gone.
        kept: those that one run of the stages will need.
        runs: number of runs for which `kept` is set aside; with 2, other stages can be compared at as much work.
    """

    sweeps: float
    spent: float = 0.0
    kept: float = 0.0
    runs: int = 1

    def holds(self, cost: float, until: float = 1.0) -> bool:
        """Return True if `cost` sweeps can be spent before the share `until` of all sweeps is gone or set aside."""
        return self.spent + self.runs * self.kept + cost <= until * self.sweeps

    def pay(self, cost: float, until: float = 1.0) -> None:
        """Spend `cost` sweeps; raise OverBudget if the share `until` of all sweeps does not suffice."""
        if not self.holds(cost, until):
            raise OverBudget
        self.spent += cost


@dataclass
class SearchContext:
    """Ranks, stop and budget, which every part of the search needs.

    Attributes:
        world: the ranks that run the candidates.
        stop: returns True once the search should stop.
        budget: sweeps that the search may spend.
    """

    world: World
    stop: Stop
    budget: Budget


@dataclass
class Candidate:
    """An estimate, the options that made it and will continue it, and how well it explains the held-out views.

    Attributes:
        estimate: all unknowns.
        engine: the engine that continues it, with its own options, as in a recipe's stage.
        shared: options of the stage that every engine takes.
        own: which of "positions", "intensity" and "opr" each view has for itself.
        history: columns of the run's history so far, by name.
        judged: misfit of the held-out views; None before it is computed, and where the run diverged.
    """

    estimate: Estimate
    engine: StageOptions
    shared: StageOptions = field(default_factory=dict)
    own: frozenset[str] = frozenset()
    history: dict[str, list[float]] = field(default_factory=dict)
    judged: Judged | None = None

    @property
    def stage(self) -> StageOptions:
        """The stage as a recipe says it: options of the engine and those that every engine takes."""
        return {**self.engine, **self.shared}

    @property
    def modes(self) -> int:
        """Number of probe modes."""
        return len(self.estimate.probe)

    @property
    def value(self) -> float:
        """Residual of the held-out views; infinite if there is none."""
        return math.inf if self.judged is None else self.judged.residual

    @property
    def formatted_residual(self) -> str:
        """The residual to four digits, or "diverged"."""
        if self.judged is None:
            return "diverged"
        digits = 3 - math.floor(math.log10(self.value)) if 0 < self.value < 1 else 3
        return f"{self.value:.{digits}f}"

    def using(self, engine: StageOptions) -> Candidate:
        """Return the same with another engine."""
        return replace(self, engine=engine)

    def sharing(self, change: StageOptions, own: str = "") -> Candidate:
        """Return the same with further options of every engine, and with `own` as one more thing each view has."""
        return replace(self, shared={**self.shared, **change}, own=self.own | ({own} if own else set()))


class CandidateRunner:
    """A scan, or a part of it, on which candidates run.

    Args:
        recipe: says how data are read and where the estimate starts.
        scan: the data.
        context: ranks, stop and budget.
        full_scan: number of views of the whole scan, of which `scan` may be a part.
        held: (n,) int64, views that no update sees; None: chosen here.
    """

    def __init__(
        self, recipe: Recipe, scan: Measurement, context: SearchContext, full_scan: int, held: np.ndarray | None = None
    ) -> None:
        self.recipe, self.scan, self.context = recipe, scan, context
        self.budget, self.share = context.budget, scan.views / full_scan
        # in memory of its own, so that an estimate can be copied and replaced
        self.recon = Reconstruction(
            scan, **recipe.reconstruction_options, device=context.world, layout=Replicated, scratch=recipe.scratch
        )
        share = min(MOST_HELD, HELD_VIEWS / scan.views)
        #: Views that no update sees.
        self.held = hold_out(self.recon.problem.unturned, share, recipe.seed) if held is None else held

    @property
    def views(self) -> int:
        """Number of views of the scan, or of the part."""
        return self.scan.views

    @property
    def noise_floor(self) -> float | None:
        """Residual of the true intensities; None if patterns are no counts. Collective when first asked for."""
        noise = self.recon.noise
        return None if noise is None else noise.truth

    def start(self, engine: StageOptions) -> Candidate:
        """Return a candidate at the recipe's start, which is not judged yet."""
        return Candidate(_copy(self.recon.state.estimate), engine, history={name: [] for name in HISTORY})

    def cost(self, candidate: Candidate, epochs: int) -> float:
        """Return the sweeps that `epochs` and one evaluation of the held-out views cost."""
        engine, estimate, (h, w) = self._engine(candidate, epochs), candidate.estimate, self.scan.window
        near, slices = self.scan.geometry.propagation != "far_field", estimate.slices
        price = cost_of_stage(engine, near, slices, candidate.modes, len(estimate.opr))
        batches, pixels = math.ceil(self.views / (engine.batch or self.views)), math.prod(estimate.extent)
        epoch = price.epoch_work(EpochSize(self.views, h * w, batches, pixels, pixels))
        judged = cost_of_judging(price, candidate.own, len(self.held) * h * w)
        return self.share * (epochs * epoch + judged) / sweep_work(self.scan)

    @staticmethod
    def _engine(candidate: Candidate, epochs: int) -> Engine:
        return engine_of("stages.0", {**candidate.stage, "epochs": epochs})

    def run(self, candidate: Candidate, epochs: int, until: float = 1.0) -> Candidate:
        """Return where a candidate, which stays as it is, comes in so many epochs. Collective.

        Args:
            candidate: where to start.
            epochs: number of epochs.
            until: share of the budget that may be gone or set aside afterwards.

        Raises:
            OverBudget: the budget does not suffice.
            Undecided: the search should stop.
        """
        return side_by_side([(self, candidate, epochs)], until)[0]

    def follow(self, candidate: Candidate, epochs: int, every: int, until: float) -> Iterator[Candidate]:
        """Yield the candidate after every stride of epochs, with one engine whose state goes on. Collective.

        Each stride is paid for when it is asked for. The iterator ends after a divergence.

        Args:
            candidate: where to start.
            epochs: number of epochs, at most.
            every: epochs of a stride.
            until: share of the budget that may be gone or set aside after each stride.

        Raises:
            OverBudget: the budget does not suffice for the next stride.
            Undecided: the search should stop.
        """
        steps = self.steps(candidate, epochs, every)
        for _ in range(epochs // every):
            self.budget.pay(self.cost(candidate, every), until)
            reached = next(steps)
            yield reached
            if reached.judged is None:
                return

    def steps(self, candidate: Candidate, epochs: int, every: int) -> Iterator[Candidate]:
        """Yield the candidate after every stride of epochs, without paying for it. Collective.

        The iterator ends after a divergence.

        Args:
            candidate: where to start.
            epochs: number of epochs, at most.
            every: epochs of a stride.

        Raises:
            Undecided: the search should stop.
        """
        engine = self._engine(candidate, epochs)
        state = RunState(
            _copy(candidate.estimate), history={name: list(row) for name, row in candidate.history.items()}
        )
        problem = self.recon.problem
        loop = Loop(problem, state, [engine], seed=self.recipe.seed, stop=self.context.stop)
        loop.training = np.setdiff1d(loop.training, self.held)
        try:
            for report in loop.epochs():
                if report.epoch % every == 0:
                    judged = judge_held_out(problem, state.estimate, self.held, candidate.own)
                    history = {name: list(row) for name, row in state.history.items()}
                    yield replace(candidate, estimate=_copy(state.estimate), history=history, judged=judged)
        except Diverged:
            yield replace(candidate, judged=None)
        except Interrupted as error:
            raise Undecided("Stopped before the stages were found; `ptymesh resume` starts anew.") from error

    def with_modes(self, candidate: Candidate, modes: int) -> Candidate:
        """Return the same with so many incoherent modes; new ones are made as at a recipe's start."""
        probe = candidate.estimate.probe
        modes_made = probes.extra_modes(probe.to("cpu", torch.complex128), modes, None, self.recipe.seed)
        estimate = replace(_copy(candidate.estimate), probe=modes_made.to(probe.device, probe.dtype))
        return replace(candidate, estimate=estimate)

    def with_opr(self, candidate: Candidate, count: int) -> Candidate:
        """Return the same with so many variable-probe (OPR) modes, whose weights are zero in all views."""
        estimate = _copy(candidate.estimate)
        shares = estimate.weights.new_zeros(len(estimate.weights), count)
        weights = torch.cat((estimate.weights[:, :1], shares), dim=1)
        opr = opr_modes(estimate.probe.cpu(), count, self.recipe.seed).to(estimate.probe.device)
        return replace(candidate, estimate=replace(estimate, opr=opr, weights=weights), own=candidate.own | {"opr"})

    def close(self) -> None:
        """Release patterns that were staged."""
        self.recon.close()


def side_by_side(ways: Sequence[tuple[CandidateRunner, Candidate, int]], until: float = 1.0) -> list[Candidate]:
    """Return where each candidate comes in so many epochs. Collective.

    The first one for which the budget does not suffice is left out, and all that follow.

    Args:
        ways: what runs each candidate, the candidate, and its number of epochs.
        until: share of the budget that may be gone or set aside afterwards.

    Raises:
        OverBudget: the budget does not suffice for any.
        Undecided: the search should stop.
    """
    paid = 0
    for runner, candidate, epochs in ways:
        try:
            runner.budget.pay(runner.cost(candidate, epochs), until)
        except OverBudget:
            if not paid:
                raise
            break
        paid += 1
    return [next(runner.steps(candidate, epochs, epochs)) for runner, candidate, epochs in ways[:paid]]


def relative_gain(new: Candidate, old: Candidate) -> float:
    """Return the share of the old candidate's residual that the new one has removed; infinite if one diverged."""
    if new.judged is None or old.judged is None:
        return -math.inf if new.judged is None else math.inf
    return new.judged.gain_over(old.judged)[0]


def is_better(new: Candidate, old: Candidate, least: float = 0.0, errors: float = SURE) -> bool:
    """Return True if the new candidate explains the held-out views clearly better than the old one.

    Args:
        new: the candidate that has to be better.
        old: the one that it is compared with.
        least: share of the old residual by which the new one has to be lower.
        errors: standard errors by which it has to be lower.
    """
    if new.judged is None or old.judged is None:
        return new.judged is not None
    share, sure = new.judged.gain_over(old.judged)
    return share > least and sure > errors


def _copy(estimate: Estimate) -> Estimate:
    """Return an estimate with tensors of its own."""
    copied: dict[str, Any] = {
        name: value.clone() for name, value in vars(estimate).items() if isinstance(value, torch.Tensor)
    }
    parameters = {name: dict(numbers) for name, numbers in estimate.parameters.items()}
    return replace(estimate, **copied, parameters=parameters)
