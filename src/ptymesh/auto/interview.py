"""What a scan needs, asked one question after the other; what the held-out residual rewards is kept.

The order matters: wrong positions and a beam that flickers look like further modes, so what each view has for itself
comes first. A background and further modes look like each other, and start side by side. Each question goes on from the
same estimate with and without the change, for as many epochs.

What a sweep is, and what else costs as many, stands in price.py. Of the sweeps that there are, the search for the
optics may take OPTICS, questions about what to add then go on until ROUNDS, those whether all of that is needed until
QUESTIONS and the one about the engine until ENGINE, so that these are asked however long the others took; the search
for the number of epochs goes on while there are sweeps for a run of so many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from ptymesh.auto.hypotheses import BACKGROUND, GAINS, Hypotheses, Hypothesis
from ptymesh.auto.length import ADAM, CLOSE, LSQML, OPENING, STILL, Length, sized
from ptymesh.auto.optics import settled
from ptymesh.auto.race import SURE, Arena, OverBudget, Terms, Track, better, gain, side_by_side, together
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.io import load_measurement
from ptymesh.io.options import DataOptions
from ptymesh.measurement import Measurement
from ptymesh.run.price import batch_for
from ptymesh.run.recipe import Recipe, engine_of

#: Shares of the sweeps.
OPTICS, ROUNDS, QUESTIONS, ENGINE = 0.2, 0.4, 0.44, 0.5
#: Scans with more views are asked on a part with so many, in the middle.
LARGE, PART = 480, 320
#: Epochs until the answer to a question.
ANSWER = 8
#: What falls by more than this share until an answer is not asked anything yet.
SETTLED = 0.15
#: What raises the residual by more than this share has done harm.
HARM = 0.005
#: What is asked before all else.
OWN_FIRST = ("positions", "intensity")
#: OPR modes take in, view by view, whatever is not settled yet, and have to show more than others.
OPR_GAIN = 0.2
#: Epochs until it is seen whether something can be left out again, and so often again where the residual falls below so
#: much of what it was.
AGAIN, PATIENCE, QUICKLY = 12, 4, 0.95
#: So often it goes on until it is seen whether what gains something gains more than what falls anyway.
LONGER = 2
NAMED = {
    "positions": "the position of each view",
    "intensity": "the intensity of each view",
    "background": "the background",
    "modes": "further probe modes",
}

Say = Callable[[str], None]


@dataclass(frozen=True)
class Answer:
    """Where a hypothesis has led, and where the same engine comes without it: some fall faster by themselves."""

    about: Hypothesis
    tried: Track
    base: Track

    @property
    def gain(self) -> float:
        """Share of the residual that is gone with it."""
        return gain(self.tried, self.base)

    def surely_above(self, other: Answer) -> bool:
        """Whether it gains more than another one does over its own base, by two standard errors."""
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
    """What was decided, and why: sentences by key of the recipe; `stages` holds those about no other key."""

    recipe: Recipe
    reasons: dict[str, list[str]] = field(default_factory=dict)


class Interview:
    """The questions, in their order."""

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
        #: The engine that begins best, and names of hypotheses in the order in which they were kept.
        self.opening: dict[str, Any] = {}
        self.kept: list[str] = []

    def note(self, key: str, sentence: str) -> None:
        """Why something is as it is."""
        self.reasons.setdefault(key, []).append(sentence)
        self.say(sentence)

    def hold(self) -> Found:
        """Asks all questions, and returns what was found."""
        self._optics()
        arena = self._arena(self._part(self.recipe))
        track = self._opening(arena)
        if self.recipe.probe.modes is not None:
            self.note("probe.modes", f"{self.recipe.probe.modes}, as the recipe says.")
        for question in (self._rounds, self._opr, self._again):
            track = question(arena, track)
        tracks = self._engines(arena, track)
        track = next(iter(tracks.values()))
        arena.close()
        probe = self.recipe.probe.model_copy(update={"modes": track.modes, "opr_modes": len(track.estimate.opr)})
        self.recipe = self.recipe.model_copy(update={"probe": probe})
        arena = self._arena(self.recipe, self.scan)
        stages = Length(arena, self.opening, self.note).stages(tracks)
        arena.close()
        engines = [engine_of(f"stages.{index}", stage) for index, stage in enumerate(stages)]
        return Found(self.recipe.model_copy(update={"auto": None, "stages": engines}), self.reasons)

    def _arena(self, recipe: Recipe, scan: Measurement | None = None) -> Arena:
        """For the scan that a recipe describes."""
        return Arena(recipe, self._loaded(recipe) if scan is None else scan, self.terms, self.scan.views)

    def _optics(self) -> None:
        """Defocus or distance, where they are not known."""

        def begin(recipes: Sequence[Recipe], frozen: bool, times: int) -> list[Track | None]:
            still = {"probe": {"frozen": OPENING}} if frozen else {}
            tracks: list[Track | None] = []
            for recipe in recipes:
                try:
                    tracks.append(self._begun(recipe, still, times * OPENING))
                except OverBudget:
                    if not tracks:
                        raise
                    break
            return tracks

        found = settled(self.recipe, self.scan, begin, self.note)
        if found != self.recipe:
            self.recipe, self.scan = found, self._loaded(found)

    def _begun(self, recipe: Recipe, still: dict[str, Any], epochs: int) -> Track | None:
        """Return the first epochs of a recipe; None where it cannot be begun. Raises OverBudget."""
        try:
            arena = self._arena(self._part(recipe))
        except BadInput:  # the window cannot hold such a beam
            return None
        with closing(arena):
            return arena.run(arena.start({**self._first(arena), **still}), epochs, OPTICS)

    def _loaded(self, recipe: Recipe) -> Measurement:
        made: Measurement = together(self.terms.world, lambda: load_measurement(recipe.data, recipe.positions))
        return made

    def _part(self, recipe: Recipe) -> Recipe:
        """Of a large scan, the views in the middle."""
        if self.scan.views <= LARGE:
            return recipe
        data: DataOptions = recipe.data
        data = data.model_copy(update={"views": data.views.model_copy(update={"central": PART})})
        return recipe.model_copy(update={"data": data})

    @staticmethod
    def _first(arena: Arena) -> dict[str, Any]:
        """The engine that begins, with batches that suit the number of views."""
        return {"engine": "rpie", "batch": batch_for(arena.views)}

    def _opening(self, arena: Arena) -> Track:
        """The first epochs, more carefully where they lead nowhere."""
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
        """What is asked until nothing helps any more. What did not help is asked once more after others were kept."""
        all_ = self._hypotheses(arena)
        asked, refused = set(GAINS), set[str]()
        try:
            while asked:
                track, plain = self._settle(arena, track)
                kept, useless = self._round(arena, track, plain, all_, asked)
                track = kept or plain
                asked, refused = (set(GAINS) - refused - useless, refused | useless) if kept else (refused, set())
        except OverBudget:
            self._unasked("Whether anything else helps")
        return track

    def _round(
        self, arena: Arena, track: Track, plain: Track, all_: Hypotheses, asked: set[str]
    ) -> tuple[Track | None, set[str]]:
        """All hypotheses from the same estimate; of those that gain most beside the same without them, as far as can be
        told, the one that costs least is kept. `plain`: without any of them.

        Further modes make sense of positions that are wrong, too, and are asked about when these are not. A background
        is asked about however much further modes help: these make sense of it as well, but never quite.
        Returns the track that is kept, and the names of those that gained nothing.
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
        apart = self._apart(arena, found, all_.adam)
        kept = apart or min(alike, key=lambda each: arena.cost(each.tried, ANSWER))
        self.kept.append(kept.about.name)
        if len(found) > 1:
            how = "gains as much as any, at the least cost," if kept is not most and not apart else "gains most"
            self.note(kept.about.key, f"{kept.about.what} {how} and is kept; the others are asked about again.")
        return kept.tried, useless

    def _apart(self, arena: Arena, found: Sequence[Answer], adam: dict[str, Any]) -> Answer | None:
        """Of further modes and a background, the one that comes clearly further with the same engine: each explains
        some of what the other one is. None where neither does, or where they cannot be held apart."""
        lit, modes = ([one for one in found if one.about.name == name] for name in ("background", "modes"))
        if not (lit and modes):
            return None
        tracks = [lit[0].tried, modes[0].tried.using(adam)]
        try:
            ways = [(arena, track, AGAIN) for track in tracks]
            ends = _all(side_by_side(ways, ROUNDS), ways)
        except OverBudget:
            return None
        self.note("stages", f"{AGAIN} epochs later, with Adam: a background {ends[0].said}, the modes {ends[1].said}.")
        further = better(ends[0], ends[1]), better(ends[1], ends[0])
        if not any(further):
            return None
        one, end = (lit[0], ends[0]) if further[0] else (modes[0], ends[1])
        return replace(one, tried=end.using(one.tried.engine))

    def _answers(
        self, arena: Arena, asked: Sequence[Hypothesis], all_: Hypotheses, bases: dict[str, Track]
    ) -> list[Answer]:
        """Where each hypothesis leads, side by side; those that cannot be afforded are left out. bases: where the track
        comes without, by engine, to which others are added."""
        ways: list[tuple[Hypothesis | None, str, Track]] = []
        for one in asked:
            engine = str(one.without.engine)
            if engine not in bases and all(engine != other for _, other, _ in ways):
                ways.append((None, engine, one.without))
            ways.append((one, engine, one.track))
        try:
            tracks = side_by_side([(arena, track, ANSWER) for _, _, track in ways], ROUNDS)
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
                    tried = arena.run(all_.lit(one.without, BACKGROUND[1]), ANSWER, ROUNDS)
                except OverBudget:
                    break
            answers.append(Answer(one, tried, base))
        return answers

    def _seen(self, arena: Arena, answer: Answer, falls: float, all_: Hypotheses) -> tuple[Answer, bool]:
        """Whether a hypothesis is to be kept, and where it has led then. falls: the share by which the residual falls
        without it.

        Where it gains enough, but not beside that, both go on: what explains more comes ever further ahead, and what
        only falls faster does not.
        """
        one, least = answer.about, GAINS[answer.about.name]
        for _ in range(LONGER):
            if falls / 2 <= least or not better(answer.tried, answer.base, least) or answer.gain > falls / 2:
                break
            ways = [(arena, track, ANSWER) for track in (answer.tried, answer.base)]
            try:
                tried, base = _all(side_by_side(ways, ROUNDS), ways)
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
        """The track from which questions are asked, and the same without a change: while the residual falls fast,
        anything seems to help. Raises OverBudget."""
        base = arena.run(track, ANSWER, ROUNDS)
        for _ in range(PATIENCE):
            if gain(base, track) < SETTLED:
                break
            track, base = base, arena.run(base, ANSWER, ROUNDS)
        return track, base

    def _hypotheses(self, arena: Arena) -> Hypotheses:
        """With a background in as many steps an epoch as rPIE makes: it has a long way to go."""
        return Hypotheses(self.recipe, arena, {**ADAM, "batch": self.opening["batch"]})

    def _opr(self, arena: Arena, track: Track) -> Track:
        """Does the beam change its shape from view to view?"""
        if self.recipe.probe.opr_modes:
            return track
        try:
            ways = [(arena, track, ANSWER), (arena, arena.with_opr(track, 2), ANSWER)]
            without, tried = _all(side_by_side(ways, QUESTIONS), ways)
        except OverBudget:
            return self._unasked("Whether the beam changes its shape", track)
        enough = better(tried, without, OPR_GAIN)
        how = "helps" if enough else "is no clear gain"
        self.note("probe.opr_modes", f"2 OPR modes: {tried.said}, without {without.said}, which {how}.")
        return tried if enough else without

    def _again(self, arena: Arena, track: Track) -> Track:
        """What was kept first may not be needed any more, now that others are there."""
        all_ = self._hypotheses(arena)
        for name in list(dict.fromkeys(self.kept)):
            if len(set(self.kept)) < 2 or name == self.kept[-1]:
                break
            try:
                ways = [(arena, one, AGAIN) for one in (track, all_.without(track, name, self.opening))]
                kept, without = _all(side_by_side(ways, QUESTIONS), ways)
                without = self._settled(arena, without, kept)
            except OverBudget:
                return self._unasked("Whether all of that is needed", track)
            needed = better(kept, without, GAINS[name] / 2)
            how = "is needed" if needed else "is not needed, and left out"
            self.note("stages", f"Of what was kept, {NAMED[name]} {how}: {kept.said}, without {without.said}.")
            track = kept if needed else without
            if not needed:
                self.kept = [other for other in self.kept if other != name]
        return track

    def _settled(self, arena: Arena, track: Track, beside: Track) -> Track:
        """The track, which has to find its way without something, as long as it comes closer to the other one."""
        for _ in range(PATIENCE):
            before = track.value
            if before <= beside.value:
                break
            track = arena.run(track, AGAIN, QUESTIONS)
            if track.value > QUICKLY * before:
                break
        return track

    def _engines(self, arena: Arena, track: Track) -> dict[str, Track]:
        """Which engine goes on best, and what comes close to it? By their names, the best first."""
        name = str(track.engine["engine"])
        ways = [(track, name)]
        if name != "adam":
            ways += [
                (track.using(sized(ADAM, self.opening)), "adam"),
                (track.using(sized(LSQML, self.opening)), "lsqml"),
            ]
        ways += [(track.sharing({"fidelity": "poisson"}), f"{name} with Poisson's likelihood")]
        while len(ways) > 1 and not self.budget.holds(sum(arena.cost(way, ANSWER) for way, _ in ways), ENGINE):
            self._unasked(f"Whether {ways.pop()[1]} goes on better")
        if len(ways) == 1:
            return {name: track}
        names = [name for _, name in ways]
        run = list(zip(side_by_side([(arena, way, ANSWER) for way, _ in ways], ENGINE), names, strict=True))
        best, _ = min(run, key=lambda one: one[0].value)
        alike = [one for one in run if not better(best, one[0], STILL)]
        # what is as good is not worth an epoch that costs more, nor a change
        kept, name = min(alike, key=lambda one: arena.cost(one[0], ANSWER))
        how = "goes on best" if kept is best else "goes on as well as any, at the least cost"
        self.note("stages", f"{name} {how}: {', '.join(f'{n} {t.said}' for t, n in run)}.")
        others = sorted((one for one in run if one[0] is not kept), key=lambda one: one[0].value)
        close = {name: one for one, name in others[:1] if one.value <= best.value * (1 + CLOSE)}
        return {name: kept, **close}

    def _unasked(self, what: str, track: Any = None) -> Any:
        self.note("stages", f"{what} was not asked: {self.budget.spent:.0f} sweeps were spent.")
        return track


def _all(tracks: list[Track], asked: Sequence[Any]) -> list[Track]:
    """The tracks. Raises OverBudget where some could not be afforded."""
    if len(tracks) < len(asked):
        raise OverBudget
    return tracks
