"""Ways to go on from the same estimate, held against each other by views that none of them has seen.

Every number on which something is decided is a sum over all ranks, and nothing looks at a clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from ptymesh.auto.judging import Judged, judge, judging
from ptymesh.distributed.layout import Replicated
from ptymesh.distributed.world import World
from ptymesh.engines import Engine
from ptymesh.errors import Diverged, Interrupted
from ptymesh.estimate import Estimate
from ptymesh.io.checkpoint import Checkpoint
from ptymesh.measurement import Measurement
from ptymesh.physics import probes
from ptymesh.run.batches import hold_out
from ptymesh.run.initial import opr_modes
from ptymesh.run.loop import Loop
from ptymesh.run.price import Size, price_of, work
from ptymesh.run.recipe import Recipe, engine_of
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.run.state import HISTORY, RunState

#: So many views are held out: enough to tell a difference, and never too large a share of the scan.
HELD_VIEWS, MOST_HELD = 40, 0.2
#: What is kept has to lower the held-out residual by a share, and by so many standard errors.
SURE = 2.0

Stop = Callable[[], bool]


class Undecided(Interrupted):
    """Stopped before the stages were found: there is nothing to go on from but the start."""


class OverBudget(Exception):
    """What was asked for would cost more sweeps than there are."""


@dataclass
class Budget:
    """Sweeps (see price.py). `spent` of `sweeps` are gone, and `kept` are for the run itself, `runs` times.

    With two runs, others can be held against it with as much work.
    """

    sweeps: float
    spent: float = 0.0
    kept: float = 0.0
    runs: int = 1

    def holds(self, cost: float, until: float = 1.0) -> bool:
        """Whether so much can be spent before the share `until` of all sweeps is gone or kept."""
        return self.spent + self.runs * self.kept + cost <= until * self.sweeps

    def pay(self, cost: float, until: float = 1.0) -> None:
        """Raises OverBudget where the share `until` of all sweeps does not hold that."""
        if not self.holds(cost, until):
            raise OverBudget
        self.spent += cost


@dataclass
class Terms:
    """Who runs what is tried, and within what: ranks, whether to stop, the budget, in sweeps."""

    world: World
    stop: Stop
    budget: Budget


@dataclass
class Track:
    """An estimate, how it was come by, and how well it explains the held-out views.

    engine: that goes on, with its own options; shared: those that any engine takes; own: of positions, intensity and
    opr, what each view has for itself.
    """

    estimate: Estimate
    engine: dict[str, Any]
    shared: dict[str, Any] = field(default_factory=dict)
    own: frozenset[str] = frozenset()
    history: dict[str, list[float]] = field(default_factory=dict)
    judged: Judged | None = None

    @property
    def stage(self) -> dict[str, Any]:
        """As a recipe has it."""
        return {**self.engine, **self.shared}

    @property
    def modes(self) -> int:
        """Number of probe modes."""
        return len(self.estimate.probe)

    @property
    def value(self) -> float:
        """Residual of the held-out views; infinite where it diverged."""
        return math.inf if self.judged is None else self.judged.residual

    @property
    def said(self) -> str:
        """The residual in words, to four digits."""
        if self.judged is None:
            return "diverged"
        digits = 3 - math.floor(math.log10(self.value)) if 0 < self.value < 1 else 3
        return f"{self.value:.{digits}f}"

    def using(self, engine: dict[str, Any]) -> Track:
        """The same track with another engine."""
        return replace(self, engine=engine)

    def sharing(self, change: dict[str, Any], own: str = "") -> Track:
        """The same track with other options, and something more that views have for themselves."""
        return replace(self, shared={**self.shared, **change}, own=self.own | ({own} if own else set()))


class _Whole(Reconstruction):
    """With the whole object on every rank, so that estimates can be put aside and taken up again."""

    def _layout(self, name: str, saved: Checkpoint | None, planned: Engine | None) -> Replicated:
        return Replicated(self.world, self.scan.positions)


class Arena:
    """A scan, or a part of it, on which tracks run.

    Args:
        recipe: whose data these are. whole: number of views of the whole scan.
        held: views that no update sees, where another arena has chosen them.
    """

    def __init__(
        self, recipe: Recipe, scan: Measurement, terms: Terms, whole: int, held: np.ndarray | None = None
    ) -> None:
        self.recipe, self.scan, self.terms = recipe, scan, terms
        self.budget, self.share = terms.budget, scan.views / whole
        self.recon = _Whole(
            scan,
            object=recipe.object,
            probe=recipe.probe,
            subpixel=recipe.positions.subpixel,
            precision=recipe.precision,
            seed=recipe.seed,
            device=terms.world,
            layout="replicated",
            memory_budget=recipe.memory_budget,
            scratch=recipe.scratch,
        )
        share = min(MOST_HELD, HELD_VIEWS / scan.views)
        #: Views that no update sees.
        self.held = hold_out(self.recon.problem.unturned, share, recipe.seed) if held is None else held

    @property
    def views(self) -> int:
        """Of the scan, or the part."""
        return self.scan.views

    @property
    def noise_floor(self) -> float | None:
        """Residual of the true intensities; None where patterns are no counts. Collective at first."""
        noise = self.recon.noise
        return None if noise is None else noise.truth

    def start(self, engine: dict[str, Any]) -> Track:
        """Where the recipe starts; at first this is judged by nothing."""
        return Track(_copy(self.recon.state.estimate), engine, history={name: [] for name in HISTORY})

    def cost(self, track: Track, epochs: int) -> float:
        """Of so many epochs and a judgement, in sweeps."""
        engine, estimate, (h, w) = self._engine(track, epochs), track.estimate, self.scan.window
        near, slices = self.scan.geometry.propagation != "far_field", len(estimate.object)
        price = price_of(engine, near, slices, track.modes, len(estimate.opr))
        batches, pixels = math.ceil(self.views / (engine.batch or self.views)), math.prod(estimate.extent)
        epoch = price.pixels(Size(self.views, h * w, batches, pixels, pixels))
        judged = judging(price, track.own, len(self.held) * h * w)
        return self.share * (epochs * epoch + judged) / work(self.scan)

    @staticmethod
    def _engine(track: Track, epochs: int) -> Engine:
        return engine_of("stages.0", {**track.stage, "epochs": epochs})

    def run(self, track: Track, epochs: int, until: float = 1.0) -> Track:
        """Goes on from a track, which stays as it is. Raises OverBudget, Undecided.

        until: share of the budget that may be spent by then.
        """
        return side_by_side([(self, track, epochs)], until)[0]

    def follow(self, track: Track, epochs: int, every: int, until: float) -> Iterator[Track]:
        """Yield the track after every so many epochs, with one engine, whose memory goes on.

        Each stride is paid for when it is asked for. Ends where the track diverges. Raises OverBudget, Undecided.
        """
        steps = self.steps(track, epochs, every)
        for _ in range(epochs // every):
            self.budget.pay(self.cost(track, every), until)
            reached = next(steps)
            yield reached
            if reached.judged is None:
                return

    def steps(self, track: Track, epochs: int, every: int) -> Iterator[Track]:
        """The track after every so many epochs; ends where it diverges. Raises Undecided."""
        engine = self._engine(track, epochs)
        state = RunState(_copy(track.estimate), history={name: list(row) for name, row in track.history.items()})
        problem = self.recon.problem
        loop = Loop(problem, state, [engine], seed=self.recipe.seed, stop=self.terms.stop)
        loop.training = np.setdiff1d(loop.training, self.held)
        try:
            for report in loop.epochs():
                if report.epoch % every == 0:
                    judged = judge(problem, state.estimate, self.held, track.own)
                    history = {name: list(row) for name, row in state.history.items()}
                    yield replace(track, estimate=_copy(state.estimate), history=history, judged=judged)
        except Diverged:
            yield replace(track, judged=None)
        except Interrupted as error:
            raise Undecided("Stopped before the stages were found; `ptymesh resume` starts anew.") from error

    def with_modes(self, track: Track, modes: int) -> Track:
        """The same with so many incoherent modes, of which the new ones are made as at a start."""
        probe = track.estimate.probe
        made = probes.extra_modes(probe.to("cpu", torch.complex128), modes, None, self.recipe.seed)
        estimate = replace(_copy(track.estimate), probe=made.to(probe.device, probe.dtype))
        return replace(track, estimate=estimate)

    def with_opr(self, track: Track, count: int) -> Track:
        """The same with so many variable-probe modes, which no view has a share of yet."""
        estimate = _copy(track.estimate)
        shares = estimate.weights.new_zeros(len(estimate.weights), count)
        weights = torch.cat((estimate.weights[:, :1], shares), dim=1)
        opr = opr_modes(estimate.probe.cpu(), count, self.recipe.seed).to(estimate.probe.device)
        return replace(track, estimate=replace(estimate, opr=opr, weights=weights), own=track.own | {"opr"})

    def close(self) -> None:
        """Lets go of patterns that were staged."""
        self.recon.close()


def side_by_side(ways: Sequence[tuple[Arena, Track, int]], until: float = 1.0) -> list[Track]:
    """Return where each track comes in so many epochs, in an arena.

    Those for which the budget does not suffice are left out, and all that follow. Raises OverBudget where that leaves
    none, Undecided.
    """
    paid = 0
    for arena, track, epochs in ways:
        try:
            arena.budget.pay(arena.cost(track, epochs), until)
        except OverBudget:
            if not paid:
                raise
            break
        paid += 1
    return [next(arena.steps(track, epochs, epochs)) for arena, track, epochs in ways[:paid]]


def together(world: World, make: Callable[[], Any]) -> Any:
    """What `make` returns; where it fails on any rank, every rank raises."""
    made, failure = None, None
    try:
        made = make()
    except Exception as error:
        failure = error
    world.raise_if_any_failed(failure, "finding the stages")
    return made


def gain(new: Track, old: Track) -> float:
    """Share of the old one's residual that is gone."""
    if new.judged is None or old.judged is None:
        return -math.inf if new.judged is None else math.inf
    return new.judged.gain_over(old.judged)[0]


def better(new: Track, old: Track, least: float = 0.0, errors: float = SURE) -> bool:
    """Whether the new track explains better what neither has seen: by this share, and by so many standard errors."""
    if new.judged is None or old.judged is None:
        return new.judged is not None
    share, sure = new.judged.gain_over(old.judged)
    return share > least and sure > errors


def _copy(estimate: Estimate) -> Estimate:
    copied: dict[str, Any] = {
        name: value.clone() for name, value in vars(estimate).items() if isinstance(value, torch.Tensor)
    }
    parameters = {name: dict(numbers) for name, numbers in estimate.parameters.items()}
    return replace(estimate, **copied, parameters=parameters)
