"""Search for the stages of a scan: one question after the other, each decided by the held-out residual.

The order matters: wrong positions and a beam that flickers look like further modes, so each view's own unknowns come
first. A background and further modes look like each other, and start side by side. Each question continues the same
estimate with and without the change, for the same number of epochs.

A sweep is the unit of work that planning/cost_model.py declares. The search may spend all sweeps up to these shares:
OPTICS for the optics, READING for other ways to read the scan, ROUNDS for what to add to the model, QUESTIONS for what
of it is needed, and ENGINE for the engine. So each question is asked however much the ones before it took. The search
for the number of epochs goes on while sweeps are left for a run of so many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np

from ptymesh.auto.candidates import (
    SURE,
    Candidate,
    CandidateRunner,
    OverBudget,
    StageOptions,
    is_better,
    relative_gain,
    side_by_side,
)
from ptymesh.auto.epoch_search import ADAM, BOLDER, CLOSE, LSQML, OPENING, STILL, EpochSearch, adam, sized
from ptymesh.auto.hypotheses import BACKGROUND, GAINS, Hypotheses, Hypothesis
from ptymesh.auto.optics import find_optics
from ptymesh.auto.reading import ask_reading, ask_scan_geometry
from ptymesh.auto.readings import QUESTIONS as READINGS
from ptymesh.auto.search import ENGINE, OPTICS, PART, QUESTIONS, ROUNDS, Search, raise_if_some_are_missing
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.planning.cost_model import batch_for
from ptymesh.recipe.schema import DEFAULT_STAGES, Recipe, default_stages, engine_of

#: The engine that continues estimates in the search for the optics.
OPTICS_ADAM = adam(BOLDER * ADAM["lr"])
#: Epochs with and without a change before the two are compared.
TRIAL_EPOCHS = 8
#: Questions wait while the residual falls by more than this share in TRIAL_EPOCHS.
SETTLED_DECREASE = 0.15
#: A change is worse, not just useless, if it raises the residual by more than this share.
HARM = 0.005
#: Hypotheses that are tried before all others.
OWN_FIRST = ("positions", "intensity")
#: Share by which OPR modes have to lower the residual: more than others, because they take in, view by view, whatever
#: else has not converged.
OPR_GAIN = 0.2
#: Epochs without a change before it is judged unnecessary.
PRUNE_EPOCHS = 12
#: How often epochs are prolonged, at most, while the residual still falls fast.
MAX_PROLONGATIONS = 4
#: The residual falls fast while it is below this share of what it was.
FAST_DECREASE = 0.95
#: How often a trial is prolonged, at most, to tell whether its gain exceeds what the residual falls by anyway.
MAX_TRIAL_PROLONGATIONS = 2
#: What the report calls a kept hypothesis.
NAMED = {
    "positions": "the position of each view",
    "intensity": "the intensity of each view",
    "background": "the background",
    "modes": "further probe modes",
}


@dataclass(frozen=True)
class StageTrial:
    """The outcome of a hypothesis beside the same epochs without it.

    Attributes:
        about: the hypothesis.
        tried: the candidate with it, after the epochs.
        base: the candidate without it, after as many epochs of the same engine.
    """

    about: Hypothesis
    tried: Candidate
    base: Candidate

    @property
    def gain(self) -> float:
        """Share of the base's residual that the hypothesis removes."""
        return relative_gain(self.tried, self.base)

    def surely_above(self, other: StageTrial) -> bool:
        """Return True if it gains more over its base than `other` over its own, by two standard errors."""
        if (
            self.tried.judged is None
            or other.tried.judged is None
            or self.base.judged is None
            or other.base.judged is None
        ):
            return self.gain > other.gain
        return self.tried.judged.gains_more(self.base.judged, other.tried.judged, other.base.judged) > SURE


@dataclass
class Decision:
    """A recipe with stages, and why it is as it is.

    Attributes:
        recipe: what was found.
        reasons: sentences by key of the recipe; those about no other key are under "stages".
    """

    recipe: Recipe
    reasons: dict[str, list[str]] = field(default_factory=dict)


class StageSearch(Search):
    """The search for the stages of a scan, question by question."""

    def run(self) -> Decision:
        """Return the recipe with the stages that suit the scan. Collective."""
        self._optics()
        runner = self.make_runner(self.select_part(self.recipe))
        candidate = self._opening(runner)
        for question in READINGS:
            runner, candidate = ask_reading(self, runner, candidate, question)
        runner, candidate = ask_scan_geometry(self, runner, candidate)
        if self.recipe.probe.modes is not None:
            self.add_reason("probe.modes", f"{self.recipe.probe.modes}, as the recipe says.")
        for ask in (self._rounds, self._opr, self._prune):
            candidate = ask(runner, candidate)
        candidates = self._engines(runner, candidate)
        candidate = next(iter(candidates.values()))
        runner.close()
        plain = self.recipe
        probe = self.recipe.probe.model_copy(
            update={"modes": candidate.modes, "opr_modes": len(candidate.estimate.opr)}
        )
        self.recipe = self.recipe.model_copy(update={"probe": probe})
        runner = self.make_runner(self.recipe, self.scan)
        self.budget.runs = 2  # the default stages are held against what is found
        epoch_search = EpochSearch(runner, self.opening, self.add_reason)
        stages = epoch_search.stages(candidates)
        held_out = runner.held
        runner.close()
        self.recipe, stages = self._choose_over_default(plain, held_out, epoch_search.end, stages)
        engines = [engine_of(f"stages.{index}", stage) for index, stage in enumerate(stages)]
        return Decision(self.recipe.model_copy(update={"auto": None, "stages": engines}), self.reasons)

    def _choose_over_default(
        self, plain: Recipe, held_out: np.ndarray, end: Candidate | None, stages: list[StageOptions]
    ) -> tuple[Recipe, list[StageOptions]]:
        """Return recipe and stages: those found, or the default ones.

        These are taken as they are, which is less work, unless what was found comes clearly further; and at as much
        work if they come clearly further than both.

        Args:
            plain: the recipe without what was added to its model.
            held_out: (n,) int64, views that no update has seen.
            end: the candidate at the end of the stages found.
            stages: the stages found.
        """
        work, self.budget.runs, self.budget.kept = self.budget.kept, 1, 0.0
        if end is None:
            return self.recipe, stages
        default_engines = default_stages(plain.object, plain.probe)
        best, chosen = end, stages
        with closing(CandidateRunner(plain, self.scan, self.context, self.scan.views, held_out)) as runner:
            *before, last = ((runner.start(_without_epochs(one)), one["epochs"]) for one in default_engines)
            work_left = work - sum(runner.cost(*one) for one in before)
            most = int(work_left / runner.cost(last[0], 1000) * 1000)
            longer = [*default_engines[:-1], {**default_engines[-1], "epochs": most}]
            tries: list[tuple[list[StageOptions], str, Callable[[Candidate, Candidate], bool]]] = []
            if last[1] < most:
                tries.append((default_engines, "as they are", _is_no_worse))
            if most >= 1:
                tries.append((longer, "at as much work", is_better))
            for make_candidate, how, wins in tries:
                tried = self._run_default(runner, make_candidate, how)
                if tried is None:
                    break
                beside = "what was found" if best is end else "as they are"
                is_taken = wins(tried, best)
                verdict = "are taken" if is_taken else "come no further"
                default = " and ".join(f"{one['epochs']} epochs of {one['engine']}" for one in make_candidate)
                outcome = f"{default}: {tried.formatted_residual}, {beside} {best.formatted_residual}"
                self.add_reason("stages", f"The default stages {how} {verdict}: {outcome}.")
                best, chosen = (tried, make_candidate) if is_taken else (best, chosen)
        if best is end:
            return self.recipe, stages
        probe = plain.probe.model_copy(update={"modes": best.modes})
        return plain.model_copy(update={"probe": probe}), chosen

    def _run_default(self, runner: CandidateRunner, stages: list[StageOptions], how: str) -> Candidate | None:
        """Return where default stages lead; None, which is noted, if the budget does not suffice."""
        tried = runner.start(_without_epochs(stages[0]))
        try:
            for one in stages:
                tried = runner.run(tried.using(_without_epochs(one)), one["epochs"])
        except OverBudget:
            self.note_skipped(f"Whether the default stages {how} come further")
            return None
        return tried

    def _optics(self) -> None:
        """Find defocus or distance if they are not known."""

        def run_first_epochs(recipes: Sequence[Recipe], frozen: bool, times: float) -> list[Candidate | None]:
            """Return where the first epochs of each recipe lead (`near_field.Begin`).

            Args:
                recipes: start new reconstructions.
                frozen: whether the probe stays as it is.
                times: factor of the usual number of epochs.
            """
            still: StageOptions = {"probe": {"frozen": OPENING}} if frozen else {}
            candidates: list[Candidate | None] = []
            for recipe in recipes:
                try:
                    candidates.append(self._run_first_epochs(recipe, still, max(1, round(times * OPENING))))
                except OverBudget:
                    if not candidates:
                        raise
                    break
            return candidates

        def advance(recipe: Recipe, candidate: Candidate, epochs: int) -> Candidate | None:
            """Return where epochs of Adam with another recipe lead (`near_field.Advance`).

            Args:
                recipe: whose geometry applies.
                candidate: the candidate that goes on.
                epochs: number of epochs.
            """
            with closing(self.make_runner(self.select_part(recipe))) as runner:
                if runner.recon.state.estimate.object.shape != candidate.estimate.object.shape:
                    return None  # a position on the border of two pixels
                engine = OPTICS_ADAM | {"batch": min(64, 2 * batch_for(runner.views))}
                return runner.run(candidate.using(engine), epochs, OPTICS)

        optics = find_optics(
            self.recipe, self.scan, run_first_epochs, advance, self.add_reason, frozenset(self.reasons)
        )
        if optics != self.recipe:
            self.recipe, self.scan = optics, self.load(optics)

    def _run_first_epochs(self, recipe: Recipe, still: StageOptions, epochs: int) -> Candidate | None:
        """Return where the first epochs of a recipe lead; None if it cannot start. Raises OverBudget."""
        try:
            runner = self.make_runner(self.select_part(recipe))
        except BadInput:  # the window cannot hold such a beam
            return None
        with closing(runner):
            return runner.run(runner.start({**self._first(runner), **still}), epochs, OPTICS)

    @staticmethod
    def _first(runner: CandidateRunner) -> StageOptions:
        """Return the engine of the first epochs, with batches that suit the number of views."""
        return {"engine": DEFAULT_STAGES[0]["engine"], "batch": batch_for(runner.views)}

    def _opening(self, runner: CandidateRunner) -> Candidate:
        """Return where the first epochs lead; with smaller steps of the probe if the residual stays above a half."""
        if runner.views < self.scan.views:
            self.add_reason("stages", f"Questions were asked on the {PART} views in the middle, of {self.scan.views}.")
        first, plain = None, self._first(runner)
        for engine in (plain, {**plain, "gamma_probe": 0.2}):
            candidate = runner.run(runner.start(engine), OPENING, until=math.inf)  # however little there is
            if candidate.judged is not None and (first is None or is_better(candidate, first)):
                first = candidate
            if first is not None and first.value < 0.5:
                break
        if first is None:
            raise PtymeshError("Every way to begin diverged; check the data with `ptymesh inspect`.")
        self.opening = first.engine
        self.add_reason(
            "stages",
            f"{OPENING} epochs of rPIE, batches of {plain['batch']} views, end at {first.formatted_residual} on "
            "held-out views; every residual here is of views or pixels that no update has seen.",
        )
        return first

    # --- questions ---

    def _rounds(self, runner: CandidateRunner, candidate: Candidate) -> Candidate:
        """Try all hypotheses in rounds until none helps; those that did not help once are tried again after others."""
        all_ = self._hypotheses(runner)
        questions, refused = set(GAINS), set[str]()
        try:
            while questions:
                candidate, plain = self._run_until_slow(runner, candidate)
                chosen, useless = self._round(runner, candidate, plain, all_, questions)
                candidate = chosen or plain
                questions, refused = (set(GAINS) - refused - useless, refused | useless) if chosen else (refused, set())
        except OverBudget:
            self.note_skipped("Whether anything else helps")
        return candidate

    def _round(
        self, runner: CandidateRunner, candidate: Candidate, plain: Candidate, all_: Hypotheses, questions: set[str]
    ) -> tuple[Candidate | None, set[str]]:
        """Try hypotheses from the same estimate and keep one: the cheapest of those whose gain is not clearly less.

        Positions and intensities are tried before the others, because further modes explain wrong positions, too. A
        background is tried however much further modes help, because these explain it in part, and never completely.

        Args:
            runner: runs the candidates.
            candidate: where all hypotheses start.
            plain: the same after TRIAL_EPOCHS without any of them.
            all_: makes the hypotheses.
            questions: names of those that are tried.

        Returns:
            The candidate that is kept (None: none), and the names of hypotheses that gained nothing.
        """
        bases, falls = {str(candidate.engine): plain}, relative_gain(plain, candidate)
        trials: list[StageTrial] = []
        useless, spent = set(), False
        for own_first in (True, False):
            now = [one for one in all_.of(candidate) if one.name in questions and (one.name in OWN_FIRST) == own_first]
            answers = self._answers(runner, now, all_, bases) if now else []
            for first in answers:
                answer, enough = self._decide(runner, first, falls, all_)
                if enough:
                    trials.append(answer)
                elif answer.gain <= 0:
                    useless.add(answer.about.name)
            spent = len(answers) < len(now)
            if trials or spent:
                break
        if not trials:
            if spent:
                raise OverBudget
            return None, useless
        most = max(trials, key=lambda each: each.gain)
        not_worse = [trial for trial in trials if trial is most or not most.surely_above(trial)]
        apart = self._apart(runner, candidate, trials, all_)
        chosen = apart or min(not_worse, key=lambda each: runner.cost(each.tried, TRIAL_EPOCHS))
        self.kept.append(chosen.about.name)
        if len(trials) > 1:
            how = "gains as much as any, at the least cost," if chosen is not most and not apart else "gains most"
            self.add_reason(
                chosen.about.key, f"{chosen.about.what} {how} and is kept; the others are asked about again."
            )
        return chosen.tried, useless

    def _apart(
        self, runner: CandidateRunner, candidate: Candidate, trials: Sequence[StageTrial], all_: Hypotheses
    ) -> StageTrial | None:
        """Return a background or further modes, whichever comes clearly further with the same engine; else None.

        Each explains a part of the other. A line that is scanned fast takes more modes than one step adds, so that
        the next number of modes is compared with a background, too.

        Args:
            runner: runs the candidates.
            candidate: where the hypotheses started.
            trials: outcomes of hypotheses that help.
            all_: makes the hypotheses.
        """
        answers = {one.about.name: one for one in trials}
        background, modes = answers.get("background"), answers.get("modes")
        if background is None:
            return None
        rivals = [background] if modes is None else [background, modes]
        start = candidate if modes is None else modes.tried
        if count := all_.more_modes(start):
            about = Hypothesis("modes", f"{count} probe modes", "probe.modes", start, background.about.without)
            rivals.append(StageTrial(about, runner.with_modes(start, count), background.base))
        if len(rivals) < 2:
            return None
        adam_ways = [background.tried, *(one.tried.using(all_.adam) for one in rivals[1:])]
        ways = [(runner, one, PRUNE_EPOCHS) for one in adam_ways]
        try:
            ends = raise_if_some_are_missing(side_by_side(ways, ROUNDS), ways)
        except OverBudget:
            return None
        outcome = ", ".join(f"{end.modes} modes {end.formatted_residual}" for end in ends[1:])
        self.add_reason(
            "stages", f"{PRUNE_EPOCHS} epochs later, with Adam: a background {ends[0].formatted_residual}, {outcome}."
        )
        most = min(range(1, len(ends)), key=lambda place: ends[place].value)
        for place, other in ((0, most), (most, 0)):
            if is_better(ends[place], ends[other]):
                return replace(rivals[place], tried=ends[place].using(rivals[place].tried.engine))
        return None

    def _answers(
        self, runner: CandidateRunner, questions: Sequence[Hypothesis], all_: Hypotheses, bases: dict[str, Candidate]
    ) -> list[StageTrial]:
        """Return where each hypothesis leads; those for which the budget does not suffice are left out.

        Args:
            runner: runs the candidates.
            questions: the hypotheses.
            all_: makes a background with a smaller step where the usual one does harm.
            bases: candidates without any hypothesis, by engine; those of other engines are added.
        """
        ways: list[tuple[Hypothesis | None, str, Candidate]] = []
        for one in questions:
            engine = str(one.without.engine)
            if engine not in bases and all(engine != other for _, other, _ in ways):
                ways.append((None, engine, one.without))
            ways.append((one, engine, one.candidate))
        try:
            candidates = side_by_side([(runner, candidate, TRIAL_EPOCHS) for _, _, candidate in ways], ROUNDS)
        except OverBudget:
            return []
        came = list(zip(ways, candidates, strict=False))
        bases |= {engine: candidate for (one, engine, _), candidate in came if one is None}
        answers = []
        for (asking, engine, _), tried in came:
            if asking is None:
                continue
            one, base = asking, bases[engine]
            if one.name == "background" and relative_gain(tried, base) < -HARM:
                try:
                    tried = runner.run(all_.with_background(one.without, BACKGROUND[1]), TRIAL_EPOCHS, ROUNDS)
                except OverBudget:
                    break
            answers.append(StageTrial(one, tried, base))
        return answers

    def _decide(
        self, runner: CandidateRunner, answer: StageTrial, falls: float, all_: Hypotheses
    ) -> tuple[StageTrial, bool]:
        """Return the outcome of a hypothesis, prolonged where that decides, and whether it helps.

        If it gains enough, but less than half of what the residual falls by anyway, both candidates go on: one that
        explains more comes ever further ahead, one that only converges faster does not.

        Args:
            runner: runs the candidates.
            answer: the outcome so far.
            falls: share by which the residual falls without the hypothesis.
            all_: is told the numbers of modes that do not help.
        """
        one, least = answer.about, GAINS[answer.about.name]
        for _ in range(MAX_TRIAL_PROLONGATIONS):
            if falls / 2 <= least or not is_better(answer.tried, answer.base, least) or answer.gain > falls / 2:
                break
            ways = [(runner, candidate, TRIAL_EPOCHS) for candidate in (answer.tried, answer.base)]
            try:
                tried, base = raise_if_some_are_missing(side_by_side(ways, ROUNDS), ways)
            except OverBudget:
                break
            answer, falls = StageTrial(one, tried, base), relative_gain(base, answer.base)
        enough = is_better(answer.tried, answer.base, max(least, falls / 2))
        how = "helps" if enough else "is worse" if answer.gain < -HARM else "is no clear gain"
        self.add_reason(
            one.key,
            f"{one.what}: {answer.tried.formatted_residual}, without {answer.base.formatted_residual}, which {how}.",
        )
        if one.name == "modes" and not enough:
            all_.refused_modes.add(one.candidate.modes)
        return answer, enough

    def _run_until_slow(self, runner: CandidateRunner, candidate: Candidate) -> tuple[Candidate, Candidate]:
        """Run until the residual no longer falls fast, because until then any change seems to help.

        Returns:
            The candidate from which hypotheses start, and the same after TRIAL_EPOCHS without a change.

        Raises:
            OverBudget: the budget does not suffice.
        """
        base = runner.run(candidate, TRIAL_EPOCHS, ROUNDS)
        for _ in range(MAX_PROLONGATIONS):
            if relative_gain(base, candidate) < SETTLED_DECREASE:
                break
            candidate, base = base, runner.run(base, TRIAL_EPOCHS, ROUNDS)
        return candidate, base

    def _hypotheses(self, runner: CandidateRunner) -> Hypotheses:
        """Return what makes hypotheses; a background takes as many steps an epoch as rPIE, because it needs many."""
        return Hypotheses(self.recipe, runner, {**ADAM, "batch": self.opening["batch"]})

    def _opr(self, runner: CandidateRunner, candidate: Candidate) -> Candidate:
        """Return the candidate with OPR modes if they help, else without: does the beam's shape differ by view?"""
        if self.recipe.probe.opr_modes:
            return candidate
        try:
            ways = [(runner, candidate, TRIAL_EPOCHS), (runner, runner.with_opr(candidate, 2), TRIAL_EPOCHS)]
            without, tried = raise_if_some_are_missing(side_by_side(ways, QUESTIONS), ways)
        except OverBudget:
            self.note_skipped("Whether the beam changes its shape")
            return candidate
        enough = is_better(tried, without, OPR_GAIN)
        how = "helps" if enough else "is no clear gain"
        self.add_reason(
            "probe.opr_modes",
            f"2 OPR modes: {tried.formatted_residual}, without {without.formatted_residual}, which {how}.",
        )
        return tried if enough else without

    def _prune(self, runner: CandidateRunner, candidate: Candidate) -> Candidate:
        """Drop hypotheses that are not needed any more since others were kept after them."""
        all_ = self._hypotheses(runner)
        for name in list(dict.fromkeys(self.kept)):
            if len(set(self.kept)) < 2 or name == self.kept[-1]:
                break
            try:
                ways = [(runner, one, PRUNE_EPOCHS) for one in (candidate, all_.without(candidate, name, self.opening))]
                with_it, without = raise_if_some_are_missing(side_by_side(ways, QUESTIONS), ways)
                without = self._converge(runner, without, with_it)
            except OverBudget:
                self.note_skipped("Whether all of that is needed")
                return candidate
            needed = is_better(with_it, without, GAINS[name] / 2)
            how = "is needed" if needed else "is not needed, and left out"
            self.add_reason(
                "stages",
                f"Of what was kept, {NAMED[name]} {how}: {with_it.formatted_residual}, "
                f"without {without.formatted_residual}.",
            )
            candidate = with_it if needed else without
            if not needed:
                self.kept = [other for other in self.kept if other != name]
        return candidate

    def _converge(self, runner: CandidateRunner, candidate: Candidate, beside: Candidate) -> Candidate:
        """Prolong a candidate that has to converge without something, while it still approaches the other one."""
        for _ in range(MAX_PROLONGATIONS):
            before = candidate.value
            if before <= beside.value:
                break
            candidate = runner.run(candidate, PRUNE_EPOCHS, QUESTIONS)
            if candidate.value > FAST_DECREASE * before:
                break
        return candidate

    def _engines(self, runner: CandidateRunner, candidate: Candidate) -> dict[str, Candidate]:
        """Return the candidate with the engine that goes on best, and one that comes close, by name, the best first."""
        name = str(candidate.engine["engine"])
        ways = [(candidate, name)]
        if name != ADAM["engine"]:
            ways += [(candidate.using(sized(one, self.opening)), str(one["engine"])) for one in (ADAM, LSQML)]
        ways += [(candidate.sharing({"fidelity": "poisson"}), f"{name} with Poisson's likelihood")]
        while len(ways) > 1 and not self.budget.holds(sum(runner.cost(way, TRIAL_EPOCHS) for way, _ in ways), ENGINE):
            self.note_skipped(f"Whether {ways.pop()[1]} goes on better")
        if len(ways) == 1:
            return {name: candidate}
        names = [name for _, name in ways]
        run = list(zip(side_by_side([(runner, way, TRIAL_EPOCHS) for way, _ in ways], ENGINE), names, strict=True))
        best, _ = min(run, key=lambda one: one[0].value)
        not_worse = [one for one in run if not is_better(best, one[0], STILL)]
        # what is as good is not worth an epoch that costs more, nor a change
        chosen, name = min(not_worse, key=lambda one: runner.cost(one[0], TRIAL_EPOCHS))
        how = "goes on best" if chosen is best else "goes on as well as any, at the least cost"
        self.add_reason("stages", f"{name} {how}: {', '.join(f'{n} {t.formatted_residual}' for t, n in run)}.")
        other_runs = sorted((one for one in run if one[0] is not chosen), key=lambda one: one[0].value)
        close = {name: one for one, name in other_runs[:1] if one.value <= best.value * (1 + CLOSE)}
        return {name: chosen, **close}


def _without_epochs(stage: StageOptions) -> StageOptions:
    """Return an engine with its options, without the number of its epochs."""
    return {key: value for key, value in stage.items() if key != "epochs"}


def _is_no_worse(new: Candidate, old: Candidate) -> bool:
    """Return True if the old candidate explains the held-out views not clearly better than the new one."""
    return not is_better(old, new)
