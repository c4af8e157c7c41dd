"""How long: the stages from the start, once it is known what a scan needs and which engine goes on best.

Steps of Adam are large at first, where they lead down fast; what suits goes on from there as long as the held-out
residual falls; small steps follow where they help. All is run with views held out, so that the recipe's own run, which
sees all of them, comes on top: sweeps are kept for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from ptymesh.auto.race import Arena, OverBudget, Track, better, gain

#: Epochs of rPIE before all else.
OPENING = 12
#: The number of epochs is looked at every so many; so little fall in as many is none; and there are never more.
STRIDE, STILL, MOST_EPOCHS = 10, 0.003, 200
#: Adam's steps at first, in its usual ones, as long as the residual falls by such a share in STRIDE epochs; and at last
#: those by as much smaller.
BOLDER, FAST = 3, 0.05
#: Engines that go on nearly as well, to this share, are held against each other behind the large steps, for so many
#: epochs; the second one is taken where it is ahead by so much then.
CLOSE, RACE, AHEAD = 0.01, 40, 0.02
#: Of Adam's moments: torch's.
BETAS = [0.9, 0.999]


def adam(lr: float) -> dict[str, Any]:
    """Adam whose steps stay as they are, as it is not known yet how many there will be; the probe's are no larger than
    the object's, or further modes of it seem to help where none are."""
    return {"engine": "adam", "lr": lr, "betas": BETAS, "scheduler": None, "unknowns": {"probe": {"lr": lr}}}


#: Engines that are tried besides rPIE; of these only Adam knows a background.
ADAM = adam(0.01)
LSQML: dict[str, Any] = {"engine": "lsqml"}


def sized(engine: dict[str, Any], opening: dict[str, Any]) -> dict[str, Any]:
    """With batches that suit the number of views: larger than those of the opening, whose steps are bold."""
    return {**engine, "batch": min(64, 4 * opening["batch"])}


class Length:
    """The search for the numbers of epochs.

    Args:
        opening: the engine that begins. note: told why, by key of the recipe.
    """

    def __init__(self, arena: Arena, opening: dict[str, Any], note: Callable[[str, str], None]) -> None:
        self.arena, self.opening, self.note = arena, opening, note
        #: Where the stages end.
        self.end: Track | None = None

    def stages(self, tracks: dict[str, Track]) -> list[dict[str, Any]]:
        """The stages from the start, as long as the held-out residual falls and sweeps are left for a run of them."""
        begun = self.arena.run(self.arena.start(self.opening), OPENING, until=math.inf)
        stages = [{**begun.stage, "epochs": OPENING}]
        least = max(self.arena.cost(one, STRIDE) for one in tracks.values())
        self.arena.budget.kept = self.arena.cost(begun, OPENING) + least
        begun, bold = self._bold(begun, next(iter(tracks.values())))
        if bold:
            stages.append({**begun.stage, "epochs": bold})
        track, course = self._course(begun, tracks)
        again = self.arena.budget.kept - least
        best, epochs, done = begun, 0, 0
        try:
            for now in course:
                done += STRIDE
                if now.value >= best.value * (1 - STILL):
                    if now.value < best.value:
                        best, epochs = now, done
                    self.note("stages", f"After {done} epochs the residual, {now.said}, falls no longer.")
                    break
                best, epochs = now, done
                self.arena.budget.kept = again + self.arena.cost(track, done + STRIDE)
            else:
                self.note("stages", f"After {epochs} epochs the residual is {best.said}, and may fall further.")
        except OverBudget:
            self.note("stages", f"After {epochs} epochs ({best.said}) no sweeps are left for more.")
        if epochs:
            stages.append({**track.stage, "epochs": epochs})
        self.arena.budget.kept = again + (self.arena.cost(track, epochs) if epochs else 0)
        self.end = best
        return stages + self._careful(best)

    def _careful(self, best: Track) -> list[dict[str, Any]]:
        """Small steps at the end, where they help: others wander about what they lead to."""
        way = self._adam(best, 1 / BOLDER)
        try:
            self.arena.budget.kept += self.arena.cost(way, STRIDE)
            end = self.arena.run(way, STRIDE)
        except OverBudget:
            return []
        if not better(end, best, STILL):
            return []
        self.note("stages", f"{STRIDE} epochs of Adam in small steps at the end: {end.said}, which helps.")
        self.end = end
        return [{**end.stage, "epochs": STRIDE}]

    def _adam(self, track: Track, times: float) -> Track:
        """The track with Adam in so many times the usual steps; a background goes on."""
        engine = track.engine if track.engine["engine"] == "adam" else sized(ADAM, self.opening)
        stepping = adam(float(f"{times * ADAM['lr']:.2g}"))
        return track.using({**engine, **stepping, "unknowns": {**engine["unknowns"], **stepping["unknowns"]}})

    def _bold(self, begun: Track, first: Track) -> tuple[Track, int]:
        """Where large steps of Adam lead, and in how many epochs: as long as they bring the residual down fast. first:
        what goes on then."""
        way = replace(self._adam(first, BOLDER), estimate=begun.estimate, history=begun.history, judged=begun.judged)
        best, done, kept = begun, 0, self.arena.budget.kept
        try:
            for now in self.arena.follow(way, MOST_EPOCHS, STRIDE, 1.0):
                if gain(now, best) < FAST:
                    break
                best, done = now, done + STRIDE
                self.arena.budget.kept = kept + self.arena.cost(now, done)
        except OverBudget:
            pass
        if done:
            said = f"by {100 * FAST:.0f} % in {STRIDE} epochs: {done} epochs, {best.said}"
            self.note("stages", f"Adam begins in {BOLDER} times its usual steps, as long as the residual falls {said}.")
        return best, done

    def _course(self, begun: Track, tracks: dict[str, Track]) -> tuple[Track, Iterator[Track]]:
        """Which track comes clearly further behind the large steps, or else the first; how it goes on by strides.

        What goes on best from an estimate that several engines have made is not always what comes there by itself.
        """
        ways = [replace(begun.using(one.engine).sharing(one.shared), own=one.own) for one in tracks.values()]
        courses = [self.arena.follow(way, MOST_EPOCHS, STRIDE, 1.0) for way in ways]
        if len(ways) == 1 or not self.arena.budget.holds(2 * sum(self.arena.cost(way, RACE) for way in ways)):
            return ways[0], courses[0]
        run = [list(islice(course, RACE // STRIDE)) for course in courses]
        taken = int(run[1][-1].value < (1 - AHEAD) * run[0][-1].value)
        said = ", ".join(f"{name} {some[-1].said}" for name, some in zip(tracks, run, strict=True))
        self.note("stages", f"{RACE} epochs on from there: {said}.")
        return ways[taken], chain(run[taken], courses[taken])
