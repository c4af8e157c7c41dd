"""What all questions about a scan share: its recipe, the budget, what is noted, and where candidates run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ptymesh.auto.length import OPENING
from ptymesh.auto.race import Arena, OverBudget, Terms, Track, together
from ptymesh.io import load_measurement
from ptymesh.io.options import DataOptions
from ptymesh.measurement import Measurement
from ptymesh.run.recipe import Recipe

#: Shares of the sweeps.
OPTICS, READING, ROUNDS, QUESTIONS, ENGINE = 0.22, 0.32, 0.42, 0.46, 0.52
#: Scans with more views are asked on a part with so many, in the middle.
LARGE, PART = 480, 320

Say = Callable[[str], None]


class Search:
    """A scan whose recipe is being found.

    Attributes:
        recipe, scan: as far as they are known.
        opening: options of the engine that begins best.
        reasons: why the recipe is as it is, sentences by its keys.
    """

    def __init__(
        self,
        recipe: Recipe,
        scan: Measurement,
        terms: Terms,
        reasons: dict[str, list[str]],
        say: Say,
    ) -> None:
        self.recipe, self.scan, self.terms, self.budget = recipe, scan, terms, terms.budget
        self.reasons, self.say = reasons, say
        self.opening: dict[str, Any] = {}

    def note(self, key: str, sentence: str) -> None:
        """Why something is as it is."""
        self.reasons.setdefault(key, []).append(sentence)
        self.say(sentence)

    def note_skipped(self, what: str, track: Any = None) -> Any:
        self.note("stages", f"{what} was not asked: {self.budget.spent:.0f} sweeps were spent.")
        return track

    def arena(self, recipe: Recipe, scan: Measurement | None = None) -> Arena:
        """For the scan that a recipe describes."""
        return Arena(recipe, self.load(recipe) if scan is None else scan, self.terms, self.scan.views)

    def load(self, recipe: Recipe) -> Measurement:
        made: Measurement = together(self.terms.world, lambda: load_measurement(recipe.data, recipe.positions))
        return made

    def part(self, recipe: Recipe, consecutive: bool = False) -> Recipe:
        """Return the recipe with a part of a large scan: the views in the middle, or the first ones."""
        if self.scan.views <= LARGE:
            return recipe
        data: DataOptions = recipe.data
        first = data.views.start or 0
        update = {"stop": first + PART * data.views.step} if consecutive else {"central": PART}
        data = data.model_copy(update={"views": data.views.model_copy(update=update)})
        return recipe.model_copy(update={"data": data})

    def replace_recipe(self, arena: Arena, recipe: Recipe) -> Arena:
        """Close the arena, and return one for another recipe, which takes the place of this one."""
        arena.close()
        self.recipe, self.scan = recipe, self.load(recipe)
        return self.arena(self.part(recipe))

    def open(self, arena: Arena, until: float = math.inf) -> Track:
        """Return where the first epochs lead, with the engine that begins. Raises OverBudget."""
        return arena.run(arena.start(self.opening), OPENING, until)


def raise_if_some_are_missing(tracks: list[Track], asked: Sequence[Any]) -> list[Track]:
    """The tracks. Raises OverBudget where some could not be afforded."""
    if len(tracks) < len(asked):
        raise OverBudget
    return tracks
