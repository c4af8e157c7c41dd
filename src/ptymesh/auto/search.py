"""Base of the search for stages: the recipe so far, the budget, the reasons, and runners in which candidates run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ptymesh.auto.candidates import (
    SEARCHING,
    Candidate,
    CandidateRunner,
    OverBudget,
    SearchContext,
    StageOptions,
)
from ptymesh.auto.epoch_search import ADAM, OPENING
from ptymesh.io import load_measurement
from ptymesh.io.options import DataOptions
from ptymesh.measurement import Measurement
from ptymesh.recipe.schema import Recipe

#: Share of the sweeps that may be gone after the search for the optics.
OPTICS = 0.22
#: Share that may be gone after other ways to read the scan.
READING = 0.32
#: Share that may be gone after hypotheses about the model.
ROUNDS = 0.42
#: Share that may be gone after it was asked which of these are needed.
QUESTIONS = 0.46
#: Share that may be gone after engines were compared.
ENGINE = 0.52
#: Epochs before those of Adam, where readings are told apart by these.
BEGINNING = 4
#: Scans with more views than this are searched on a part of them.
LARGE = 480
#: Number of views of that part, in the middle of the scan.
PART = 320

Say = Callable[[str], None]


class Search:
    """A scan whose recipe is being found.

    Attributes:
        recipe: what is known of it so far.
        scan: the data as that recipe describes them.
        context: ranks, stop and budget.
        budget: the budget of `context`.
        reasons: why the recipe is as it is, sentences by key.
        say: is called with each sentence.
        opening: options of the engine of the first epochs.
        kept: names of hypotheses in the order in which they were kept.
    """

    def __init__(
        self,
        recipe: Recipe,
        scan: Measurement,
        context: SearchContext,
        reasons: dict[str, list[str]],
        say: Say,
    ) -> None:
        self.recipe, self.scan, self.context, self.budget = recipe, scan, context, context.budget
        self.reasons, self.say = reasons, say
        self.opening: StageOptions = {}
        self.kept: list[str] = []

    def add_reason(self, key: str, sentence: str) -> None:
        """Add a sentence that says why a key of the recipe is as it is."""
        self.reasons.setdefault(key, []).append(sentence)
        self.say(sentence)

    def note_skipped(self, question: str) -> None:
        """Note that a question was not asked for lack of sweeps."""
        self.add_reason("stages", f"{question} was not asked: {self.budget.spent:.0f} sweeps were spent.")

    def make_runner(self, recipe: Recipe, scan: Measurement | None = None) -> CandidateRunner:
        """Return what runs candidates on the scan that a recipe describes, loaded here if it is not given."""
        return CandidateRunner(recipe, self.load(recipe) if scan is None else scan, self.context, self.scan.views)

    def load(self, recipe: Recipe) -> Measurement:
        """Return the scan that a recipe describes. Collective."""
        return self.context.world.on_all_ranks(lambda: load_measurement(recipe.data, recipe.positions), SEARCHING)

    def select_part(self, recipe: Recipe, consecutive: bool = False) -> Recipe:
        """Return the recipe with a part of a large scan: the views in the middle, or the first ones."""
        if self.scan.views <= LARGE:
            return recipe
        data: DataOptions = recipe.data
        first = data.views.start or 0
        update = {"stop": first + PART * data.views.step} if consecutive else {"central": PART}
        data = data.model_copy(update={"views": data.views.model_copy(update=update)})
        return recipe.model_copy(update={"data": data})

    def replace_recipe(self, runner: CandidateRunner, recipe: Recipe) -> CandidateRunner:
        """Close the runner, and return one for another recipe, which takes the place of this one."""
        runner.close()
        self.recipe, self.scan = recipe, self.load(recipe)
        return self.make_runner(self.select_part(recipe))

    def run_opening(self, runner: CandidateRunner, until: float = math.inf) -> Candidate:
        """Return where the first epochs lead, with the engine found for them. Raises OverBudget."""
        return runner.run(runner.start(self.opening), OPENING, until)

    def run_settled(self, runner: CandidateRunner, until: float = math.inf) -> Candidate:
        """Return where as many epochs lead of which all but the first ones are of Adam. Raises OverBudget."""
        opened = runner.run(runner.start(self.opening), BEGINNING, until)
        settled = opened.using({"engine": ADAM["engine"], "batch": self.opening["batch"]})
        return runner.run(settled, OPENING - BEGINNING, until)


def raise_if_some_are_missing(candidates: list[Candidate], ways: Sequence[object]) -> list[Candidate]:
    """Return the candidates; raise OverBudget if there are fewer than were asked for."""
    if len(candidates) < len(ways):
        raise OverBudget
    return candidates
