"""Search for the stages of a scan: one question after the other, each decided by the held-out residual.

The order matters: wrong positions and a beam that flickers look like further modes, so each view's own unknowns come
first. A background and further modes look like each other, and start side by side. Each question continues the same
estimate with and without the change, for the same number of epochs.

A sweep is the unit of work that run/price.py declares. The search may spend all sweeps up to these shares: OPTICS for
the optics, READING for other ways to read the scan, ROUNDS for what to add to the model, QUESTIONS for what of it is
needed, and ENGINE for the engine. So each question is asked however much the ones before it took. The search for the
number of epochs goes on while sweeps are left for a run of so many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ptymesh.auto.hypotheses import BACKGROUND, GAINS, Hypotheses, Hypothesis
from ptymesh.auto.length import ADAM, BOLDER, CLOSE, LSQML, OPENING, STILL, Length, adam, sized
from ptymesh.auto.optics import settled
from ptymesh.auto.race import SURE, Arena, OverBudget, Terms, Track, better, gain, side_by_side
from ptymesh.auto.reading import ask_reading, ask_scan_geometry
from ptymesh.auto.restarts import QUESTIONS as READINGS
from ptymesh.auto.search import ENGINE, OPTICS, PART, QUESTIONS, ROUNDS, Say, Search, raise_if_some_are_missing
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.measurement import Measurement
from ptymesh.run.price import batch_for
from ptymesh.run.recipe import DEFAULT_STAGES, Recipe, engine_of

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
class Answer:
    """The outcome of a hypothesis beside the same epochs without it.

    Attributes:
        about: the hypothesis.
        tried: the candidate with it, after the epochs.
        base: the candidate without it, after as many epochs of the same engine.
    """

    about: Hypothesis
    tried: Track
    base: Track

    @property
    def gain(self) -> float:
        """Share of the base's residual that the hypothesis removes."""
        return gain(self.tried, self.base)

    def surely_above(self, other: Answer) -> bool:
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
class Found:
    """A recipe with stages, and why it is as it is.

    Attributes:
        recipe: what was found.
        reasons: sentences by key of the recipe; those about no other key are under "stages".
    """

    recipe: Recipe
    reasons: dict[str, list[str]] = field(default_factory=dict)


class Interview(Search):
    """The search for the stages of a scan, question by question.

    Args:
        recipe: leaves its stages open.
        scan: the data, as the recipe describes them.
        terms: ranks, stop and budget.
        reasons: sentences by key of the recipe; more are added.
        say: is called with each sentence.
    """

    def __init__(
        self,
        recipe: Recipe,
        scan: Measurement,
        terms: Terms,
        reasons: dict[str, list[str]],
        say: Say,
    ) -> None:
        super().__init__(recipe, scan, terms, reasons, say)
        #: Names of hypotheses in the order in which they were kept.
        self.kept: list[str] = []

    def hold(self) -> Found:
        """Return the recipe with the stages that suit the scan. Collective."""
        self._optics()
        arena = self.arena(self.part(self.recipe))
        track = self._opening(arena)
        for question in READINGS:
            arena, track = ask_reading(self, arena, track, question)
        arena, track = ask_scan_geometry(self, arena, track)
        if self.recipe.probe.modes is not None:
            self.note("probe.modes", f"{self.recipe.probe.modes}, as the recipe says.")
        for ask in (self._rounds, self._opr, self._again):
            track = ask(arena, track)
        tracks = self._engines(arena, track)
        track = next(iter(tracks.values()))
        arena.close()
        plain = self.recipe
        probe = self.recipe.probe.model_copy(update={"modes": track.modes, "opr_modes": len(track.estimate.opr)})
        self.recipe = self.recipe.model_copy(update={"probe": probe})
        arena = self.arena(self.recipe, self.scan)
        self.budget.runs = 2  # the default stages are held against what is found
        length = Length(arena, self.opening, self.note)
        stages = length.stages(tracks)
        held = arena.held
        arena.close()
        self.recipe, stages = self._beside_default(plain, held, length.end, stages)
        engines = [engine_of(f"stages.{index}", stage) for index, stage in enumerate(stages)]
        return Found(self.recipe.model_copy(update={"auto": None, "stages": engines}), self.reasons)

    def _beside_default(
        self, plain: Recipe, held: np.ndarray, end: Track | None, stages: list[dict[str, Any]]
    ) -> tuple[Recipe, list[dict[str, Any]]]:
        """Return recipe and stages: those found, or the default ones if they come clearly further at as much work.

        Args:
            plain: the recipe without what was added to its model.
            held: (n,) int64, views that no update has seen.
            end: the candidate at the end of the stages found.
            stages: the stages found.
        """
        work, self.budget.runs, self.budget.kept = self.budget.kept, 1, 0.0
        first, second = DEFAULT_STAGES
        with closing(Arena(plain, self.scan, self.terms, self.scan.views, held)) as arena:
            begin = arena.start({key: value for key, value in first.items() if key != "epochs"})
            rest = begin.using({key: value for key, value in second.items() if key != "epochs"})
            left = work - arena.cost(begin, first["epochs"])
            epochs = int(left / arena.cost(rest, 1000) * 1000)
            if epochs < 1 or end is None:
                return self.recipe, stages
            try:
                begun = arena.run(begin, first["epochs"])
                tried = arena.run(begun.using(rest.engine), epochs)
            except OverBudget:
                self.note_skipped("Whether the default stages come further")
                return self.recipe, stages
        further = better(tried, end)
        how = "come further and are taken" if further else "come no further"
        said = f"{first['epochs']} epochs of rPIE and {epochs} of Adam: {tried.said}, what was found {end.said}"
        self.note("stages", f"The default stages at as much work {how}: {said}.")
        if not further:
            return self.recipe, stages
        probe = plain.probe.model_copy(update={"modes": tried.modes})
        return plain.model_copy(update={"probe": probe}), [first, {**second, "epochs": epochs}]

    def _optics(self) -> None:
        """Find defocus or distance if they are not known."""

        def run_first_epochs(recipes: Sequence[Recipe], frozen: bool, times: float) -> list[Track | None]:
            """Return where the first epochs of each recipe lead (`optics.Begin`).

            Args:
                recipes: start new reconstructions.
                frozen: whether the probe stays as it is.
                times: factor of the usual number of epochs.
            """
            still = {"probe": {"frozen": OPENING}} if frozen else {}
            tracks: list[Track | None] = []
            for recipe in recipes:
                try:
                    tracks.append(self._begun(recipe, still, max(1, round(times * OPENING))))
                except OverBudget:
                    if not tracks:
                        raise
                    break
            return tracks

        def advance(recipe: Recipe, track: Track, epochs: int) -> Track | None:
            """Return where epochs of Adam with another recipe lead (`optics.Advance`).

            Args:
                recipe: whose geometry applies.
                track: the candidate that goes on.
                epochs: number of epochs.
            """
            with closing(self.arena(self.part(recipe))) as arena:
                if arena.recon.state.estimate.object.shape != track.estimate.object.shape:
                    return None  # a position on the border of two pixels
                engine = OPTICS_ADAM | {"batch": min(64, 2 * batch_for(arena.views))}
                return arena.run(track.using(engine), epochs, OPTICS)

        found = settled(self.recipe, self.scan, run_first_epochs, advance, self.note, frozenset(self.reasons))
        if found != self.recipe:
            self.recipe, self.scan = found, self.load(found)

    def _begun(self, recipe: Recipe, still: dict[str, Any], epochs: int) -> Track | None:
        """Return where the first epochs of a recipe lead; None if it cannot start. Raises OverBudget."""
        try:
            arena = self.arena(self.part(recipe))
        except BadInput:  # the window cannot hold such a beam
            return None
        with closing(arena):
            return arena.run(arena.start({**self._first(arena), **still}), epochs, OPTICS)

    @staticmethod
    def _first(arena: Arena) -> dict[str, Any]:
        """Return the engine of the first epochs, with batches that suit the number of views."""
        return {"engine": "rpie", "batch": batch_for(arena.views)}

    def _opening(self, arena: Arena) -> Track:
        """Return where the first epochs lead; with smaller steps of the probe if the residual stays above a half."""
        if arena.views < self.scan.views:
            self.note("stages", f"Questions were asked on the {PART} views in the middle, of {self.scan.views}.")
        first, plain = None, self._first(arena)
        for engine in (plain, {**plain, "gamma_probe": 0.2}):
            track = arena.run(arena.start(engine), OPENING, until=math.inf)  # however little there is
            if track.judged is not None and (first is None or better(track, first)):
                first = track
            if first is not None and first.value < 0.5:
                break
        if first is None:
            raise PtymeshError("Every way to begin diverged; check the data with `ptymesh inspect`.")
        self.opening = first.engine
        self.note(
            "stages",
            f"{OPENING} epochs of rPIE, batches of {plain['batch']} views, end at {first.said} on held-out views; "
            "every residual here is of views or pixels that no update has seen.",
        )
        return first

    # --- questions ---

    def _rounds(self, arena: Arena, track: Track) -> Track:
        """Try all hypotheses in rounds until none helps; those that did not help once are tried again after others."""
        all_ = self._hypotheses(arena)
        asked, refused = set(GAINS), set[str]()
        try:
            while asked:
                track, plain = self._settle(arena, track)
                kept, useless = self._round(arena, track, plain, all_, asked)
                track = kept or plain
                asked, refused = (set(GAINS) - refused - useless, refused | useless) if kept else (refused, set())
        except OverBudget:
            self.note_skipped("Whether anything else helps")
        return track

    def _round(
        self, arena: Arena, track: Track, plain: Track, all_: Hypotheses, asked: set[str]
    ) -> tuple[Track | None, set[str]]:
        """Try hypotheses from the same estimate and keep one: the cheapest of those whose gain is not clearly less.

        Positions and intensities are tried before the others, because further modes explain wrong positions, too. A
        background is tried however much further modes help, because these explain it in part, and never completely.

        Args:
            arena: runs the candidates.
            track: where all hypotheses start.
            plain: the same after TRIAL_EPOCHS without any of them.
            all_: makes the hypotheses.
            asked: names of those that are tried.

        Returns:
            The candidate that is kept (None: none), and the names of hypotheses that gained nothing.
        """
        bases, falls = {str(track.engine): plain}, gain(plain, track)
        found: list[Answer] = []
        useless, spent = set(), False
        for own_first in (True, False):
            now = [one for one in all_.of(track) if one.name in asked and (one.name in OWN_FIRST) == own_first]
            answers = self._answers(arena, now, all_, bases) if now else []
            for first in answers:
                answer, enough = self._seen(arena, first, falls, all_)
                if enough:
                    found.append(answer)
                elif answer.gain <= 0:
                    useless.add(answer.about.name)
            spent = len(answers) < len(now)
            if found or spent:
                break
        if not found:
            if spent:
                raise OverBudget
            return None, useless
        most = max(found, key=lambda each: each.gain)
        alike = [each for each in found if each is most or not most.surely_above(each)]
        apart = self._apart(arena, track, found, all_)
        kept = apart or min(alike, key=lambda each: arena.cost(each.tried, TRIAL_EPOCHS))
        self.kept.append(kept.about.name)
        if len(found) > 1:
            how = "gains as much as any, at the least cost," if kept is not most and not apart else "gains most"
            self.note(kept.about.key, f"{kept.about.what} {how} and is kept; the others are asked about again.")
        return kept.tried, useless

    def _apart(self, arena: Arena, track: Track, found: Sequence[Answer], all_: Hypotheses) -> Answer | None:
        """Return a background or further modes, whichever comes clearly further with the same engine; else None.

        Each explains a part of the other. A line that is scanned fast takes more modes than one step adds, so that
        the next number of modes is compared with a background, too.

        Args:
            arena: runs the candidates.
            track: where the hypotheses started.
            found: outcomes of hypotheses that help.
            all_: makes the hypotheses.
        """
        answers = {one.about.name: one for one in found}
        lit, modes = answers.get("background"), answers.get("modes")
        if lit is None:
            return None
        rivals = [lit] if modes is None else [lit, modes]
        start = track if modes is None else modes.tried
        if count := all_.more_modes(start):
            about = Hypothesis("modes", f"{count} probe modes", "probe.modes", start, lit.about.without)
            rivals.append(Answer(about, arena.with_modes(start, count), lit.base))
        if len(rivals) < 2:
            return None
        adam_ways = [lit.tried, *(one.tried.using(all_.adam) for one in rivals[1:])]
        ways = [(arena, one, PRUNE_EPOCHS) for one in adam_ways]
        try:
            ends = raise_if_some_are_missing(side_by_side(ways, ROUNDS), ways)
        except OverBudget:
            return None
        said = ", ".join(f"{end.modes} modes {end.said}" for end in ends[1:])
        self.note("stages", f"{PRUNE_EPOCHS} epochs later, with Adam: a background {ends[0].said}, {said}.")
        most = min(range(1, len(ends)), key=lambda place: ends[place].value)
        for place, other in ((0, most), (most, 0)):
            if better(ends[place], ends[other]):
                return replace(rivals[place], tried=ends[place].using(rivals[place].tried.engine))
        return None

    def _answers(
        self, arena: Arena, asked: Sequence[Hypothesis], all_: Hypotheses, bases: dict[str, Track]
    ) -> list[Answer]:
        """Return where each hypothesis leads; those for which the budget does not suffice are left out.

        Args:
            arena: runs the candidates.
            asked: the hypotheses.
            all_: makes a background with a smaller step where the usual one does harm.
            bases: candidates without any hypothesis, by engine; those of other engines are added.
        """
        ways: list[tuple[Hypothesis | None, str, Track]] = []
        for one in asked:
            engine = str(one.without.engine)
            if engine not in bases and all(engine != other for _, other, _ in ways):
                ways.append((None, engine, one.without))
            ways.append((one, engine, one.track))
        try:
            tracks = side_by_side([(arena, track, TRIAL_EPOCHS) for _, _, track in ways], ROUNDS)
        except OverBudget:
            return []
        came = list(zip(ways, tracks, strict=False))
        bases |= {engine: track for (one, engine, _), track in came if one is None}
        answers = []
        for (asking, engine, _), tried in came:
            if asking is None:
                continue
            one, base = asking, bases[engine]
            if one.name == "background" and gain(tried, base) < -HARM:
                try:
                    tried = arena.run(all_.lit(one.without, BACKGROUND[1]), TRIAL_EPOCHS, ROUNDS)
                except OverBudget:
                    break
            answers.append(Answer(one, tried, base))
        return answers

    def _seen(self, arena: Arena, answer: Answer, falls: float, all_: Hypotheses) -> tuple[Answer, bool]:
        """Return the outcome of a hypothesis, prolonged where that decides, and whether it helps.

        If it gains enough, but less than half of what the residual falls by anyway, both candidates go on: one that
        explains more comes ever further ahead, one that only converges faster does not.

        Args:
            arena: runs the candidates.
            answer: the outcome so far.
            falls: share by which the residual falls without the hypothesis.
            all_: is told the numbers of modes that do not help.
        """
        one, least = answer.about, GAINS[answer.about.name]
        for _ in range(MAX_TRIAL_PROLONGATIONS):
            if falls / 2 <= least or not better(answer.tried, answer.base, least) or answer.gain > falls / 2:
                break
            ways = [(arena, track, TRIAL_EPOCHS) for track in (answer.tried, answer.base)]
            try:
                tried, base = raise_if_some_are_missing(side_by_side(ways, ROUNDS), ways)
            except OverBudget:
                break
            answer, falls = Answer(one, tried, base), gain(base, answer.base)
        enough = better(answer.tried, answer.base, max(least, falls / 2))
        how = "helps" if enough else "is worse" if answer.gain < -HARM else "is no clear gain"
        self.note(one.key, f"{one.what}: {answer.tried.said}, without {answer.base.said}, which {how}.")
        if one.name == "modes" and not enough:
            all_.refused_modes.add(one.track.modes)
        return answer, enough

    def _settle(self, arena: Arena, track: Track) -> tuple[Track, Track]:
        """Run until the residual no longer falls fast, because until then any change seems to help.

        Returns:
            The candidate from which hypotheses start, and the same after TRIAL_EPOCHS without a change.

        Raises:
            OverBudget: the budget does not suffice.
        """
        base = arena.run(track, TRIAL_EPOCHS, ROUNDS)
        for _ in range(MAX_PROLONGATIONS):
            if gain(base, track) < SETTLED_DECREASE:
                break
            track, base = base, arena.run(base, TRIAL_EPOCHS, ROUNDS)
        return track, base

    def _hypotheses(self, arena: Arena) -> Hypotheses:
        """Return what makes hypotheses; a background takes as many steps an epoch as rPIE, because it needs many."""
        return Hypotheses(self.recipe, arena, {**ADAM, "batch": self.opening["batch"]})

    def _opr(self, arena: Arena, track: Track) -> Track:
        """Return the candidate with OPR modes if they help, else without: does the beam's shape differ by view?"""
        if self.recipe.probe.opr_modes:
            return track
        try:
            ways = [(arena, track, TRIAL_EPOCHS), (arena, arena.with_opr(track, 2), TRIAL_EPOCHS)]
            without, tried = raise_if_some_are_missing(side_by_side(ways, QUESTIONS), ways)
        except OverBudget:
            return self.note_skipped("Whether the beam changes its shape", track)
        enough = better(tried, without, OPR_GAIN)
        how = "helps" if enough else "is no clear gain"
        self.note("probe.opr_modes", f"2 OPR modes: {tried.said}, without {without.said}, which {how}.")
        return tried if enough else without

    def _again(self, arena: Arena, track: Track) -> Track:
        """Drop hypotheses that are not needed any more since others were kept after them."""
        all_ = self._hypotheses(arena)
        for name in list(dict.fromkeys(self.kept)):
            if len(set(self.kept)) < 2 or name == self.kept[-1]:
                break
            try:
                ways = [(arena, one, PRUNE_EPOCHS) for one in (track, all_.without(track, name, self.opening))]
                kept, without = raise_if_some_are_missing(side_by_side(ways, QUESTIONS), ways)
                without = self._settled(arena, without, kept)
            except OverBudget:
                return self.note_skipped("Whether all of that is needed", track)
            needed = better(kept, without, GAINS[name] / 2)
            how = "is needed" if needed else "is not needed, and left out"
            self.note("stages", f"Of what was kept, {NAMED[name]} {how}: {kept.said}, without {without.said}.")
            track = kept if needed else without
            if not needed:
                self.kept = [other for other in self.kept if other != name]
        return track

    def _settled(self, arena: Arena, track: Track, beside: Track) -> Track:
        """Prolong a candidate that has to converge without something, while it still approaches the other one."""
        for _ in range(MAX_PROLONGATIONS):
            before = track.value
            if before <= beside.value:
                break
            track = arena.run(track, PRUNE_EPOCHS, QUESTIONS)
            if track.value > FAST_DECREASE * before:
                break
        return track

    def _engines(self, arena: Arena, track: Track) -> dict[str, Track]:
        """Return the candidate with the engine that goes on best, and one that comes close, by name, the best first."""
        name = str(track.engine["engine"])
        ways = [(track, name)]
        if name != "adam":
            ways += [
                (track.using(sized(ADAM, self.opening)), "adam"),
                (track.using(sized(LSQML, self.opening)), "lsqml"),
            ]
        ways += [(track.sharing({"fidelity": "poisson"}), f"{name} with Poisson's likelihood")]
        while len(ways) > 1 and not self.budget.holds(sum(arena.cost(way, TRIAL_EPOCHS) for way, _ in ways), ENGINE):
            self.note_skipped(f"Whether {ways.pop()[1]} goes on better")
        if len(ways) == 1:
            return {name: track}
        names = [name for _, name in ways]
        run = list(zip(side_by_side([(arena, way, TRIAL_EPOCHS) for way, _ in ways], ENGINE), names, strict=True))
        best, _ = min(run, key=lambda one: one[0].value)
        alike = [one for one in run if not better(best, one[0], STILL)]
        # what is as good is not worth an epoch that costs more, nor a change
        kept, name = min(alike, key=lambda one: arena.cost(one[0], TRIAL_EPOCHS))
        how = "goes on best" if kept is best else "goes on as well as any, at the least cost"
        self.note("stages", f"{name} {how}: {', '.join(f'{n} {t.said}' for t, n in run)}.")
        others = sorted((one for one in run if one[0] is not kept), key=lambda one: one[0].value)
        close = {name: one for one, name in others[:1] if one.value <= best.value * (1 + CLOSE)}
        return {name: kept, **close}
