"""What a scan needs, asked one question after the other; what the held-out residual rewards is kept.

The order matters: wrong positions and a beam that flickers look like further modes, so what each view has for itself
comes first. A background and further modes look like each other, and start side by side. Each question goes on from the
same estimate with and without the change, for as many epochs.

A sweep is a pass of one probe mode over all views. Of the sweeps that there are, questions may take QUESTIONS, the
search for the number of epochs goes up to LENGTH, and the rest is for the run itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ptymesh.auto.race import Arena, Budget, OverBudget, Stop, Track, better
from ptymesh.auto.written import NAME, written
from ptymesh.distributed.world import World
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.files import replacing
from ptymesh.io import load_measurement
from ptymesh.io.options import DataOptions, PositionOptions
from ptymesh.measurement import Measurement
from ptymesh.run.recipe import Recipe, engine_of

#: Sweeps where nobody says; shares of them that may be spent when the questions end, and when the epochs are known.
SWEEPS, QUESTIONS, LENGTH = 2000, 0.5, 0.75
#: Scans with more views are asked on a part with so many, in the middle.
LARGE, PART = 480, 320
#: Epochs before the first question, and until the answer to one.
OPENING, ANSWER = 12, 8
#: The number of epochs is looked at every so many; so little fall in as many is none; and there are never more.
STRIDE, STILL, MOST_EPOCHS = 10, 0.003, 200
#: What ends above so many times the residual without it has done harm, and is tried more slowly, if there is a way.
HARM = 1.005
#: By this share what is kept lowers the residual. OPR modes take in, view by view, whatever is not settled yet, and
#: have to show more.
GAINS = {"positions": 0.02, "intensity": 0.02, "background": 0.02, "modes": 0.03, "opr": 0.2}
#: Probe modes that are tried, one after the other as long as it pays.
MODES = {1: 2, 2: 4, 4: 8}

#: Engines that are tried besides rPIE; of these only Adam knows a background.
ADAM: dict[str, Any] = {"engine": "adam", "lr": 0.01}
LSQML: dict[str, Any] = {"engine": "lsqml"}
#: Rates of a background: the usual one, and a careful one.
BACKGROUND = (0.1, 0.01)

Say = Callable[[str], None]


@dataclass
class Found:
    """What was decided, and why: sentences by key of the recipe; `stages` holds those about no other key."""

    recipe: Recipe
    reasons: dict[str, list[str]] = field(default_factory=dict)


def decide(
    recipe: Recipe,
    world: World,
    stop: Stop = lambda: False,
    *,
    time_s: float | None = None,
    reasons: dict[str, list[str]] | None = None,
    say: Say | None = None,
    write: bool = True,
) -> Found:
    """The recipe with stages, for one that says `stages: auto`; what it says of other keys stays. Collective.

    Args:
        stop: whether to stop.
        time_s: seconds that questions and run should take together; made into sweeps before anything is asked.
        reasons: of what has been chosen before.
        say: told what is found, on rank 0.
        write: the recipe with all reasons, into the output folder.

    Raises BadInput, Undecided where it was asked to stop, and PtymeshError where every way to begin diverges.
    """
    said = {key: list(sentences) for key, sentences in (reasons or {}).items()}
    speak: Say = (say or (lambda _: None)) if world.rank == 0 else (lambda _: None)
    scan = _together(world, lambda: load_measurement(recipe.data, recipe.positions))
    assert recipe.auto is not None
    sweeps = recipe.auto.sweeps
    if time_s is not None:
        sweeps = _sweeps_in(time_s, scan, world)
        said.setdefault("stages", []).append(f"{time_s:g} seconds were taken for {sweeps} sweeps.")
    interview = _Interview(recipe, scan, world, stop, Budget(sweeps or SWEEPS), said, speak)
    found = interview.hold()
    if write:
        _together(world, lambda: _write(found) if world.rank == 0 else None)
    return found


def _together(world: World, make: Callable[[], Any]) -> Any:
    """What `make` returns; where it fails on any rank, every rank raises."""
    made, failure = None, None
    try:
        made = make()
    except Exception as error:
        failure = error
    world.all_well(failure, "finding the stages")
    return made


def _sweeps_in(time_s: float, scan: Measurement, world: World) -> int:
    """Rank 0's Fourier transforms tell how many sweeps all ranks do in that time; everybody takes its word."""
    import torch

    from ptymesh.run.plan import measured_rate

    rate = measured_rate(scan.window, world.device) * world.size if world.rank == 0 else 0.0
    (agreed,) = world.broadcast(torch.tensor([time_s * rate / scan.views], dtype=torch.float64, device=world.device))
    return max(1, int(agreed))


def _write(found: Found) -> None:
    path = Path(found.recipe.output.dir) / NAME
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{path.parent} cannot be made ({error.strerror}); choose another folder with --out.") from error
    with replacing(path) as temporary:
        temporary.write_text(written(found.recipe, found.reasons), encoding="utf-8")


class _Interview:
    """The questions, in their order."""

    def __init__(
        self,
        recipe: Recipe,
        scan: Measurement,
        world: World,
        stop: Stop,
        budget: Budget,
        reasons: dict[str, list[str]],
        say: Say,
    ) -> None:
        self.recipe, self.scan, self.world, self.stop, self.budget = recipe, scan, world, stop, budget
        self.reasons, self.say = reasons, say
        #: The engine that begins best.
        self.opening: dict[str, Any] = {}

    def note(self, key: str, sentence: str) -> None:
        """Why something is as it is."""
        self.reasons.setdefault(key, []).append(sentence)
        self.say(sentence)

    def hold(self) -> Found:
        """Asks all questions, one after the other, and returns what was found."""
        part = self._part()
        arena = self._arena(part)
        track = self._opening(arena)
        for question in (self._positions, self._intensity, self._light, self._rest, self._opr, self._engine):
            try:
                track = question(arena, track)
            except OverBudget:
                self.note(
                    "stages", f"{question.__doc__} That was not asked: {self.budget.spent:.0f} sweeps were spent."
                )
        arena.close()
        probe = self.recipe.probe.model_copy(update={"modes": track.modes, "opr_modes": len(track.estimate.opr)})
        self.recipe = self.recipe.model_copy(update={"probe": probe})
        arena = self._arena(self.scan)
        stages = self._length(arena, track)
        arena.close()
        engines = [engine_of(f"stages.{index}", stage) for index, stage in enumerate(stages)]
        return Found(self.recipe.model_copy(update={"auto": None, "stages": engines}), self.reasons)

    def _arena(self, scan: Measurement) -> Arena:
        return Arena(self.recipe, scan, self.world, self.stop, self.budget, self.scan.views)

    def _part(self) -> Measurement:
        """Views in the middle of a large scan."""
        views = self.recipe.data.views
        if self.scan.views <= LARGE:
            return self.scan
        some = views.model_copy(update={"central": PART})
        self.note("stages", f"Questions were asked on the {PART} views in the middle, of {self.scan.views}.")
        data: DataOptions = self.recipe.data.model_copy(update={"views": some})
        where: PositionOptions = self.recipe.positions
        made: Measurement = _together(self.world, lambda: load_measurement(data, where))
        return made

    def _opening(self, arena: Arena) -> Track:
        """The first track: rPIE with one of two step sizes, whichever begins better."""
        size = 8
        while size < 64 and 16 * size < arena.views:
            size *= 2
        first = None
        for engine in ({"engine": "rpie", "batch": size}, {"engine": "rpie", "batch": size, "gamma_probe": 0.2}):
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
            f"{OPENING} epochs of rPIE, batches of {size} views, end at {_number(first)} on held-out views; so does "
            "every residual here mean views or pixels that no update has seen.",
        )
        return first

    # --- questions ---

    def _positions(self, arena: Arena, track: Track) -> Track:
        """Are views where the file says?"""
        if self.recipe.positions.subpixel == "none":
            return track
        new = track.sharing({"positions": True}, "positions")
        return self._compare(arena, track, [(new, "A position of each view")], "stages", "positions")

    def _intensity(self, arena: Arena, track: Track) -> Track:
        """Is the beam equally bright in all views?"""
        new = track.sharing({"probe": {"intensity": True}}, "intensity")
        return self._compare(arena, track, [(new, "An intensity of each view")], "stages", "intensity")

    def _light(self, arena: Arena, track: Track) -> Track:
        """Is there light that one coherent beam does not explain?"""
        more = MODES.get(track.modes, 0)
        if self.recipe.probe.modes is not None or not more:
            return track
        adam = track.using(self._sized(ADAM))
        lit = adam.using({**adam.engine, "unknowns": {"background": {"lr": BACKGROUND[0]}}})
        without, background, modes = (
            arena.run(way, ANSWER, QUESTIONS) for way in (adam, lit, arena.with_modes(adam, more))
        )
        self.note(
            "probe.modes",
            f"First a background, {_number(background)}, or {more} probe modes, {_number(modes)}, or neither, "
            f"{_number(without)}.",
        )
        if modes.value < background.value and better(modes, without, GAINS["modes"]):
            return modes.using(track.engine)
        return background if better(background, without, GAINS["background"]) else without.using(track.engine)

    def _rest(self, arena: Arena, track: Track) -> Track:
        """Is the beam coherent, and is there other light?"""
        return self._background(arena, self._modes(arena, track))

    def _modes(self, arena: Arena, track: Track) -> Track:
        """Whether the beam is coherent: tries more probe modes."""
        if self.recipe.probe.modes is not None:
            self.note("probe.modes", f"{self.recipe.probe.modes}, as the recipe says.")
            return track
        while (more := MODES.get(track.modes, 0)) and (fits := track):
            ways = [(arena.with_modes(track, more), f"{more} probe modes")]
            track = self._compare(arena, track, ways, "probe.modes", "modes")
            if track.modes != more:
                if more == 4:
                    three = arena.with_modes(fits, 3)
                    track = self._compare(arena, track, [(three, "3 probe modes")], "probe.modes", "modes")
                break
        return track

    def _background(self, arena: Arena, track: Track) -> Track:
        """Is there light that is not the beam's?"""
        if "unknowns" in track.engine:
            return track
        adam, tried = self._sized(ADAM), []
        for lr, what in zip(BACKGROUND, ("A background", "A background at a tenth of the rate"), strict=True):
            tried.append((track.using({**adam, "unknowns": {"background": {"lr": lr}}}), what))
        found = self._compare(arena, track.using(adam), tried, "stages", "background")
        return found if "unknowns" in found.engine else found.using(track.engine)

    def _opr(self, arena: Arena, track: Track) -> Track:
        """Does the beam change its shape from view to view?"""
        if self.recipe.probe.opr_modes:
            return track
        return self._compare(arena, track, [(arena.with_opr(track, 2), "2 OPR modes")], "probe.opr_modes", "opr")

    def _engine(self, arena: Arena, track: Track) -> Track:
        """Which engine goes on best?"""
        name = str(track.engine["engine"])
        ways = [(track, name), (track.sharing({"fidelity": "poisson"}), f"{name} with Poisson's likelihood")]
        if name == "adam":
            ways += [(track.using({**track.engine, "lr": track.engine["lr"] / 3}), "adam at a third of the rate")]
        else:
            ways += [(track.using(self._sized(ADAM)), "adam"), (track.using(self._sized(LSQML)), "lsqml")]
        run = [(arena.run(way, ANSWER, QUESTIONS), name) for way, name in ways]
        best, name = min(run, key=lambda one: one[0].value)
        self.note("stages", f"{name} goes on best: {', '.join(f'{n} {_number(t)}' for t, n in run)}.")
        return best

    def _sized(self, engine: dict[str, Any]) -> dict[str, Any]:
        """With batches that suit the number of views: larger than those of the opening, whose steps are bold."""
        return {**engine, "batch": min(64, 4 * self.opening["batch"])}

    def _compare(
        self,
        arena: Arena,
        track: Track,
        ways: list[tuple[Track, str]],
        key: str,
        what_for: str,
    ) -> Track:
        """Goes on without a change, and with it; where it does harm, with the next one, which is more cautious. What is
        better stays."""
        without = arena.run(track, ANSWER, QUESTIONS)
        for new, what in ways:
            tried = arena.run(new, ANSWER, QUESTIONS)
            rated = _number(without), _number(tried)
            if better(tried, without, GAINS[what_for]):
                self.note(key, f"{what}: {rated[1]}, without {rated[0]}; kept.")
                return tried
            worse = "which is worse" if tried.value > HARM * without.value else "which is no clear gain"
            self.note(key, f"{what}: {rated[1]}, without {rated[0]}, {worse}; left out.")
            if tried.value <= HARM * without.value:
                break
        return without

    # --- how long ---

    def _length(self, arena: Arena, track: Track) -> list[dict[str, Any]]:
        """The stages from the start, as long as the held-out residual falls."""
        begun = arena.start(self.opening)
        begun = arena.run(begun, OPENING, until=math.inf)
        stages = [{**begun.stage, "epochs": OPENING}]
        best, epochs = begun, 0
        going = begun.using(track.engine).sharing(track.shared)
        going.own = track.own
        try:
            done = 0
            for now in arena.follow(going, MOST_EPOCHS, STRIDE, LENGTH):
                done += STRIDE
                if now.value >= best.value * (1 - STILL):
                    if now.value < best.value:
                        best, epochs = now, done
                    self.note("stages", f"After {done} epochs the residual, {_number(now)}, falls no longer.")
                    break
                best, epochs = now, done
            else:
                self.note("stages", f"After {epochs} epochs the residual is {_number(best)}, and may fall further.")
        except OverBudget:
            self.note("stages", f"After {epochs} epochs ({_number(best)}) no sweeps are left for more.")
        if epochs:
            stages.append({**track.stage, "epochs": epochs})
        return stages


def _number(track: Track) -> str:
    return "diverged" if track.judged is None else f"{track.value:.5f}"
