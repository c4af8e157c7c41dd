"""Draws of Optuna's samplers for a study: seeds by trial, conditions, and no set of values twice."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

from optuna import Study, Trial
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from ptymesh.tune import offered
from ptymesh.tune.offered import quiet
from ptymesh.tune.options import Named
from ptymesh.tune.places import UNUSED
from ptymesh.tune.space import Space

#: Draws before a set of values that is new is looked for among all.
DRAWS = 20
#: Samplers that go through one sequence together: their seed is the study's, not the trial's.
ONE_SEQUENCE = ("GridSampler", "QMCSampler")
#: Samplers that after a trial only ask the study to stop, which ours does by itself.
STOPPERS = ("GridSampler", "BruteForceSampler")


def seed_of(*parts: int) -> int:
    """Return a seed of 32 bits that follows from these numbers."""
    digest = hashlib.blake2b(" ".join(map(str, parts)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


class TrialSampler(BaseSampler):
    """Optuna's `chosen` sampler with a seed of its own for each trial, by the trial's number.

    Optuna asks for a relative sample once, before all else, and gets all values that exist together. Sets of values
    that the study has already are drawn again; in a finite space, an unused one is taken at last. So a study that goes
    on after an interruption does not repeat itself.

    Attributes:
        repeats: True where the last draw found no set of values that is new.
    """

    def __init__(self, space: Space, chosen: Named, seed: int) -> None:
        self.space, self.chosen, self.seed = space, chosen, seed
        self.inner = self._make(0, 0)
        self.repeats = False

    def _make(self, number: int, attempt: int) -> BaseSampler:
        name = offered.SAMPLERS.find("sampler", self.chosen.name).__name__
        parts = (self.seed,) if name in ONE_SEQUENCE else (self.seed, number, attempt)
        ours: dict[str, object] = {"seed": seed_of(*parts)}
        if name == "GridSampler":
            ours["search_space"] = self.space.grid()
        return offered.sampler(self.chosen.name, self.chosen.options, **ours)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        """Return all parameters, as they are drawn together."""
        return dict(self.space.distributions)

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, Any]) -> dict[str, Any]:
        """Return values of all parameters that no earlier trial has had.

        Args:
            study: the study.
            trial: the trial that they are for.
            search_space: not used; the study's own is.
        """
        space, number = self.space, trial.number
        used = used_values(study.get_trials(deepcopy=False), number)
        self.repeats = False
        for attempt in range(DRAWS):
            values = _draw(space, self.inner if attempt == 0 else self._make(number, attempt), study, number)
            if signature(values) not in used:
                return values
        free = [] if space.count() is None else [point for point in space.points() if signature(point) not in used]
        self.repeats = not free
        return random.Random(seed_of(self.seed, number)).choice(free) if free else values

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution) -> object:
        """Raise AssertionError: never called, as all parameters are drawn together.

        Args:
            study: the study.
            trial: the trial.
            name: of the parameter.
            distribution: of the parameter.
        """
        raise AssertionError(f"{name} was not drawn with the others")

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Make the trial's own sampler and let it prepare."""
        with quiet():
            self.inner = self._make(trial.number, 0)
            self.inner.before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Let Optuna's sampler learn of a trial that has ended.

        Args:
            study: the study.
            trial: the trial.
            state: how it ended.
            values: of the objective, None where it has none.
        """
        if type(self.inner).__name__ not in STOPPERS:
            self.inner.after_trial(study, trial, state, values)


def _draw(space: Space, inner: BaseSampler, study: Study, number: int) -> dict[str, Any]:
    """Return one set of values; the trial's record is a copy, so that nothing is stored yet."""
    (frozen,) = (trial for trial in study.get_trials(deepcopy=True) if trial.number == number)
    values: dict[str, Any] = {}
    with quiet():
        together = inner.infer_relative_search_space(study, frozen)
        related = inner.sample_relative(study, frozen, together)
        for name, distribution in space.distributions.items():
            if not space.active(name, values):
                continue
            if distribution.single():
                single: Any = distribution
                values[name] = single.choices[0] if hasattr(single, "choices") else single.low
            elif name in related:
                values[name] = related[name]
            else:
                values[name] = inner.sample_independent(study, frozen, name, distribution)
            frozen.params = {**frozen.params, name: values[name]}
            frozen.distributions = {**frozen.distributions, name: distribution}
    return values


def used_values(trials: list[FrozenTrial], but: int) -> set[str]:
    """Return signatures of all values that the study's trials have tried, are trying or will try again.

    Args:
        trials: of the study.
        but: number of a trial whose own values are left out.
    """
    return {
        signature(trial.params)
        for trial in trials
        if trial.params and trial.number != but and UNUSED not in trial.user_attrs
    }


def is_drawn_twice(trials: list[FrozenTrial], number: int) -> bool:
    """Return True if another trial has the values of trial `number` too."""
    return next(signature(trial.params) for trial in trials if trial.number == number) in used_values(trials, number)


def signature(values: Mapping[str, object]) -> str:
    """Return a text that is equal for equal sets of values."""
    return repr(sorted((key, repr(value)) for key, value in values.items()))


def suggest(trial: Trial, space: Space) -> dict[str, object]:
    """Return the values of a running trial, drawn now or, of a retry, taken over; they are stored with the trial."""
    values: dict[str, object] = {}
    for name, distribution in space.distributions.items():
        if not space.active(name, values):
            continue
        match distribution:
            case CategoricalDistribution(choices=choices):
                values[name] = trial.suggest_categorical(name, choices)
            case IntDistribution(low=low, high=high, step=step, log=log):
                values[name] = trial.suggest_int(name, low, high, step=step, log=log)
            case FloatDistribution(low=lowest, high=highest, step=width, log=log):
                values[name] = trial.suggest_float(name, lowest, highest, step=width, log=log)
    return values
