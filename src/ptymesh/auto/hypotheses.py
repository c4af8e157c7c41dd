"""Hypotheses about a scan beyond the simplest model, each as a candidate with it and one without it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from ptymesh.auto.candidates import Candidate, CandidateRunner, StageOptions
from ptymesh.recipe.schema import Recipe

#: Share by which each hypothesis has to lower the residual.
GAINS = {"positions": 0.02, "intensity": 0.02, "background": 0.02, "modes": 0.03}
#: The number of probe modes that is tried after each number.
MODES = {1: 2, 2: 4, 4: 8}
#: The number that is tried in place of one that did not help.
FEWER = {4: 3, 8: 6}
#: Learning rates of a background: the usual one, and a smaller one for where that does harm.
BACKGROUND = (0.1, 0.01)


@dataclass(frozen=True)
class Hypothesis:
    """A change of the model that may explain a scan better.

    Attributes:
        name: as in GAINS.
        what: words for it, at the start of a sentence.
        key: key of the recipe under which the outcome is noted.
        candidate: the candidate with the change.
        without: the candidate without it, with the same engine.
    """

    name: str
    what: str
    key: str
    candidate: Candidate
    without: Candidate


class Hypotheses:
    """The hypotheses that a candidate has not taken up yet.

    Args:
        recipe: what it fixes is not tried.
        runner: makes candidates with more modes.
        adam: the engine that knows a background, as in a recipe's stage.

    Attributes:
        refused_modes: numbers of probe modes that did not help.
    """

    def __init__(self, recipe: Recipe, runner: CandidateRunner, adam: StageOptions) -> None:
        self.recipe, self.runner, self.adam = recipe, runner, adam
        self.refused_modes: set[int] = set()

    def of(self, candidate: Candidate) -> Iterator[Hypothesis]:
        """Yield the hypotheses that a candidate has not taken up yet."""
        if "positions" not in candidate.own and self.recipe.positions.subpixel != "none":
            new = candidate.sharing({"positions": True}, "positions")
            yield Hypothesis("positions", "A position of each view", "stages", new, candidate)
        if "intensity" not in candidate.own:
            new = candidate.sharing({"probe": {"intensity": True}}, "intensity")
            yield Hypothesis("intensity", "An intensity of each view", "stages", new, candidate)
        more = self.more_modes(candidate)
        if more:
            yield Hypothesis(
                "modes", f"{more} probe modes", "probe.modes", self.runner.with_modes(candidate, more), candidate
            )
        if "background" not in candidate.engine.get("unknowns", {}):
            adam = candidate.using(self.adam)
            yield Hypothesis(
                "background", "A background", "stages", self.with_background(candidate, BACKGROUND[0]), adam
            )

    def more_modes(self, candidate: Candidate) -> int:
        """Return the next number of modes to be tried; 0: none."""
        more = MODES.get(candidate.modes, 0)
        if more in self.refused_modes:
            more = FEWER.get(more, 0)
        return 0 if self.recipe.probe.modes is not None or more in self.refused_modes else more

    def with_background(self, candidate: Candidate, lr: float) -> Candidate:
        """Return the candidate with a background that moves at this learning rate."""
        unknowns = {**self.adam["unknowns"], "background": {"lr": lr}}
        return candidate.using({**self.adam, "unknowns": unknowns})

    def without(self, candidate: Candidate, name: str, engine: StageOptions) -> Candidate:
        """Return the candidate without a hypothesis: what it moved is again as the recipe starts.

        Args:
            candidate: the candidate with it.
            name: of the hypothesis, as in GAINS.
            engine: takes the place of Adam if the background is left out.
        """
        start, estimate = self.runner.recon.state.estimate, candidate.estimate
        own_unknowns, shared = (
            candidate.own - {name},
            {key: value for key, value in candidate.shared.items() if key != name},
        )
        if name == "modes":
            return self.runner.with_modes(candidate, len(start.probe))
        if name == "background":
            return replace(candidate, estimate=replace(estimate, background=start.background.clone())).using(engine)
        if name == "positions":
            nominal = estimate.nominal.clone()
            anchors = torch.floor(nominal + 0.5).to(estimate.anchors.dtype)
            estimate = replace(estimate, positions=nominal, anchors=anchors)
        if name == "intensity":
            weights = estimate.weights.clone()
            weights[:, 0] = start.weights[:, 0]
            estimate = replace(estimate, weights=weights)
            shared.pop("probe", None)
        return replace(candidate, estimate=estimate, own=own_unknowns, shared=shared)
