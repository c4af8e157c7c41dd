"""The search space: Optuna's distributions, which parameters exist together, and the recipe that values make."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from ptymesh.errors import BadInput
from ptymesh.recipe.schema import Recipe, put
from ptymesh.sentences import quote, unknown_word
from ptymesh.tune.options import SCALARS, HeldOut, Parameter, Tuning, label

#: Finite spaces of at most this many points are enumerated, so that no point is tried twice.
ENUMERATED = 20_000


class Space:
    """Parameters of a tune file in an order in which each comes after those that it depends on.

    `values` below are what Optuna knows: numbers, and for choices that are no plain values their YAML text.
    """

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self.parameters = {key: parameters[key] for key in _ordered(parameters)}
        self.distributions = {key: _distribution(parameter) for key, parameter in self.parameters.items()}

    def active(self, key: str, values: Mapping[str, object]) -> bool:
        """Return True if the parameter exists, given the values of those before it."""
        for other, accepted in self.parameters[key].when.items():
            if other not in values:
                return False
            meaning = label(self.meaning(other, values[other]))
            if meaning not in [label(choice) for choice in (accepted if isinstance(accepted, list) else [accepted])]:
                return False
        return True

    def is_complete(self, values: Mapping[str, object]) -> bool:
        """Return True if every parameter that exists, given the others, has a value."""
        return all(key in values for key in self.distributions if self.active(key, values))

    def meaning(self, key: str, value: object) -> object:
        """Return the recipe's value for a value of Optuna's."""
        choices = self.parameters[key].choices
        if choices is None or all(isinstance(choice, SCALARS) for choice in choices):
            return value
        return copy.deepcopy(next(choice for choice in choices if label(choice) == value))

    def count(self) -> int | None:
        """Return the number of different sets of values; None for (almost) endlessly many."""
        if not self._finite():
            return None
        number = sum(1 for _ in itertools.islice(self.points(), ENUMERATED + 1))
        return number if number <= ENUMERATED else None

    def points(self) -> Iterator[dict[str, object]]:
        """Yield every set of values of a finite space."""
        yield from self._points(list(self.parameters), {})

    def grid(self) -> dict[str, list[object]]:
        """Return the values of each parameter, for a grid.

        Raises:
            BadInput: a parameter has endlessly many values, or depends on another.
        """
        for key, parameter in self.parameters.items():
            if parameter.when:
                raise BadInput(f"space.{key} has a condition, which a grid cannot heed; use the sampler brute_force.")
            if _values(self.distributions[key]) is None:
                raise BadInput(f"space.{key} has endlessly many values; give a step, or use another sampler than grid.")
        return {key: list(_values(self.distributions[key]) or ()) for key in self.parameters}

    def _finite(self) -> bool:
        return all(_values(distribution) is not None for distribution in self.distributions.values())

    def _points(self, keys: list[str], values: dict[str, object]) -> Iterator[dict[str, object]]:
        if not keys:
            yield values
            return
        key, *rest = keys
        if not self.active(key, values):
            yield from self._points(rest, values)
            return
        for value in _values(self.distributions[key]) or ():
            yield from self._points(rest, {**values, key: value})


def composed(tuning: Tuning, space: Space, values: Mapping[str, object]) -> dict[str, Any]:
    """Return the recipe that values make, as plain dicts.

    Args:
        tuning: the tune file.
        space: its search space.
        values: Optuna's, by recipe key.

    Raises:
        BadInput: a key goes through what is no group.
    """
    raw = copy.deepcopy(tuning.recipe)
    for key in sorted(values, key=lambda key: key.count(".")):  # groups before what stands in them
        put(raw, key, space.meaning(key, values[key]), "space")
    if isinstance(tuning.objective, HeldOut) and not raw.get("hold_out"):
        raw["hold_out"] = tuning.objective.fraction
    return raw


def recipe_of(tuning: Tuning, space: Space, values: Mapping[str, object]) -> Recipe:
    """Return the recipe that values make, checked.

    Args:
        tuning: the tune file.
        space: its search space.
        values: Optuna's, by recipe key.

    Raises:
        BadInput: they make no sound recipe.
    """
    return Recipe.parse(composed(tuning, space, values))


def _ordered(parameters: Mapping[str, Parameter]) -> list[str]:
    """Return the keys, those that conditions name first.

    Raises:
        BadInput: a condition names what is no parameter, or conditions are circular.
    """
    for key, parameter in parameters.items():
        if not all(key.split(".")):
            raise BadInput(f"space.{key} is no key of a recipe; write for example stages.0.epochs.")
        for other, accepted in parameter.when.items():
            if other not in parameters:
                raise BadInput(unknown_word(f"space.{key}.when", other, [name for name in parameters if name != key]))
            _possible(key, other, parameters[other], accepted)
    order: list[str] = []
    while len(order) < len(parameters):
        ready = [key for key in parameters if key not in order and set(parameters[key].when) <= set(order)]
        if not ready:
            stuck = ", ".join(key for key in parameters if key not in order)
            raise BadInput(f"The conditions of {stuck} in space depend on each other; take one of them away.")
        order += ready
    return order


def _possible(key: str, other: str, parameter: Parameter, accepted: object) -> None:
    """Raise BadInput for a condition that never holds."""
    for value in accepted if isinstance(accepted, list) else [accepted]:
        if parameter.choices is not None:
            labels = [label(choice) for choice in parameter.choices]
            if label(value) not in labels:
                raise BadInput(unknown_word(f"space.{key}.when.{other}", label(value), labels))
        elif not isinstance(value, int | float) or not parameter.low <= value <= parameter.high:  # type: ignore[operator] # a range has both
            raise BadInput(
                f"space.{key}.when.{other} is {quote(value)}; it should be a number from {parameter.low:g} "
                f"to {parameter.high:g}."
            )


def _distribution(parameter: Parameter) -> BaseDistribution:
    if parameter.choices is not None:
        plain = all(isinstance(choice, SCALARS) for choice in parameter.choices)
        return CategoricalDistribution(parameter.choices if plain else [label(choice) for choice in parameter.choices])
    low, high, step = parameter.low, parameter.high, parameter.step
    assert low is not None and high is not None
    if parameter.type == "int":
        return IntDistribution(int(low), int(high), log=parameter.log, step=int(step or 1))
    return FloatDistribution(low, high, log=parameter.log, step=step)


def _values(distribution: Any) -> list[Any] | None:
    """Return all values of a distribution; None where there are endlessly many."""
    if distribution.single():
        return [distribution.choices[0] if hasattr(distribution, "choices") else distribution.low]
    if hasattr(distribution, "choices"):
        return list(distribution.choices)
    if isinstance(distribution.step, int):
        return list(range(distribution.low, distribution.high + 1, distribution.step))
    if distribution.step is None:
        return None
    steps = round((distribution.high - distribution.low) / distribution.step)
    return [distribution.low + k * distribution.step for k in range(steps + 1)]
