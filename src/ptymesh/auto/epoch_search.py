"""Numbers of epochs of the stages, once it is known what a scan needs and which engine goes on best.

Large steps of Adam come first while the residual falls fast; the best engine goes on as long as the held-out residual
falls; small steps follow where they help. All of this runs with views held out. The recipe's own run, which sees all
views, comes on top, and sweeps are set aside for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, islice

from ptymesh.auto.candidates import Candidate, CandidateRunner, OverBudget, StageOptions, is_better, relative_gain

#: Epochs of rPIE at the start.
OPENING = 12
#: Epochs after which the residual is looked at.
STRIDE = 10
#: The residual falls no longer if it loses less than this share in STRIDE epochs.
STILL = 0.003
#: Largest number of epochs of one engine.
MOST_EPOCHS = 200
#: Factor of Adam's usual steps in the large ones at first; small ones at the end are smaller by the same factor.
BOLDER = 3
#: Large steps go on while the residual loses this share in STRIDE epochs.
FAST = 0.05
#: Engines whose residuals differ by less than this share are compared again after the large steps.
CLOSE = 0.01
#: Epochs of that comparison.
RACE = 40
#: The second engine is taken if its residual is then lower by this share.
AHEAD = 0.02
#: Decay rates of Adam's moments, as in torch.
BETAS = [0.9, 0.999]


def adam(lr: float) -> StageOptions:
    """Return Adam, as in a recipe's stage, with constant steps, because the number of epochs is not known yet.

    Steps of the probe are no larger than those of the object; otherwise further modes seem to help where none are.
    """
    return {"engine": "adam", "lr": lr, "betas": BETAS, "scheduler": None, "unknowns": {"probe": {"lr": lr}}}


#: Engines that are tried besides rPIE; of these only Adam knows a background.
ADAM = adam(0.01)
LSQML: StageOptions = {"engine": "lsqml"}


def sized(engine: StageOptions, opening: StageOptions) -> StageOptions:
    """Return the engine with batches that suit the number of views: larger than those of the opening."""
    return {**engine, "batch": min(64, 4 * opening["batch"])}


class EpochSearch:
    """The search for the numbers of epochs.

    Args:
        runner: runs the candidates.
        opening: the engine of the first epochs, as in a recipe's stage.
        note: is called with a key of the recipe and a sentence that says why.
    """

    def __init__(self, runner: CandidateRunner, opening: StageOptions, note: Callable[[str, str], None]) -> None:
        self.runner, self.opening, self.note = runner, opening, note
        #: The candidate at the end of the stages.
        self.end: Candidate | None = None

    def stages(self, candidates: dict[str, Candidate]) -> list[StageOptions]:
        """Return all stages, as long as the held-out residual falls and sweeps are left for a run of them.

        Args:
            candidates: by name, the candidate with the best engine, and perhaps one that comes close.
        """
        opening_candidate = self.runner.run(self.runner.start(self.opening), OPENING, until=math.inf)
        stages = [{**opening_candidate.stage, "epochs": OPENING}]
        least = max(self.runner.cost(one, STRIDE) for one in candidates.values())
        self.runner.budget.kept = self.runner.cost(opening_candidate, OPENING) + least
        opening_candidate, bold = self._bold(opening_candidate, next(iter(candidates.values())))
        if bold:
            stages.append({**opening_candidate.stage, "epochs": bold})
        candidate, course = self._course(opening_candidate, candidates)
        work_kept = self.runner.budget.kept - least
        best, epochs, epochs_done = opening_candidate, 0, 0
        try:
            for now in course:
                epochs_done += STRIDE
                if now.value >= best.value * (1 - STILL):
                    if now.value < best.value:
                        best, epochs = now, epochs_done
                    self.note(
                        "stages", f"After {epochs_done} epochs the residual, {now.formatted_residual}, falls no longer."
                    )
                    break
                best, epochs = now, epochs_done
                self.runner.budget.kept = work_kept + self.runner.cost(candidate, epochs_done + STRIDE)
            else:
                self.note(
                    "stages", f"After {epochs} epochs the residual is {best.formatted_residual}, and may fall further."
                )
        except OverBudget:
            self.note("stages", f"After {epochs} epochs ({best.formatted_residual}) no sweeps are left for more.")
        if epochs:
            stages.append({**candidate.stage, "epochs": epochs})
        self.runner.budget.kept = work_kept + (self.runner.cost(candidate, epochs) if epochs else 0)
        self.end = best
        return stages + self._careful(best)

    def _careful(self, best: Candidate) -> list[StageOptions]:
        """Return a stage of small steps if it helps, else none: larger steps wander about the minimum."""
        way = self._adam(best, 1 / BOLDER)
        try:
            self.runner.budget.kept += self.runner.cost(way, STRIDE)
            end = self.runner.run(way, STRIDE)
        except OverBudget:
            return []
        if not is_better(end, best, STILL):
            return []
        self.note(
            "stages", f"{STRIDE} epochs of Adam in small steps at the end: {end.formatted_residual}, which helps."
        )
        self.end = end
        return [{**end.stage, "epochs": STRIDE}]

    def _adam(self, candidate: Candidate, times: float) -> Candidate:
        """Return the candidate with Adam in so many times the usual steps; a background keeps moving."""
        engine = candidate.engine if candidate.engine["engine"] == ADAM["engine"] else sized(ADAM, self.opening)
        stepping = adam(float(f"{times * ADAM['lr']:.2g}"))
        return candidate.using({**engine, **stepping, "unknowns": {**engine["unknowns"], **stepping["unknowns"]}})

    def _bold(self, opening_candidate: Candidate, first: Candidate) -> tuple[Candidate, int]:
        """Return where large steps of Adam lead while the residual falls fast, and the number of their epochs.

        Args:
            opening_candidate: where they start.
            first: the candidate whose model and batches they take.
        """
        way = replace(
            self._adam(first, BOLDER),
            estimate=opening_candidate.estimate,
            history=opening_candidate.history,
            judged=opening_candidate.judged,
        )
        best, epochs_done, work_kept = opening_candidate, 0, self.runner.budget.kept
        try:
            for now in self.runner.follow(way, MOST_EPOCHS, STRIDE, 1.0):
                if relative_gain(now, best) < FAST:
                    break
                best, epochs_done = now, epochs_done + STRIDE
                self.runner.budget.kept = work_kept + self.runner.cost(now, epochs_done)
        except OverBudget:
            pass
        if epochs_done:
            outcome = f"by {100 * FAST:.0f} % in {STRIDE} epochs: {epochs_done} epochs, {best.formatted_residual}"
            self.note(
                "stages", f"Adam begins in {BOLDER} times its usual steps, as long as the residual falls {outcome}."
            )
        return best, epochs_done

    def _course(
        self, opening_candidate: Candidate, candidates: dict[str, Candidate]
    ) -> tuple[Candidate, Iterator[Candidate]]:
        """Return the candidate that comes clearly further after the large steps, or else the first, and its strides.

        The engine that goes on best from an estimate that several engines have made is not always the one that comes
        furthest from the start.

        Args:
            opening_candidate: the candidate after the large steps.
            candidates: candidates with the engines, by name.
        """
        ways = [
            replace(opening_candidate.using(one.engine).sharing(one.shared), own=one.own) for one in candidates.values()
        ]
        courses = [self.runner.follow(way, MOST_EPOCHS, STRIDE, 1.0) for way in ways]
        if len(ways) == 1 or not self.runner.budget.holds(2 * sum(self.runner.cost(way, RACE) for way in ways)):
            return ways[0], courses[0]
        run = [list(islice(course, RACE // STRIDE)) for course in courses]
        chosen_index = int(run[1][-1].value < (1 - AHEAD) * run[0][-1].value)
        outcome = ", ".join(
            f"{name} {candidate_course[-1].formatted_residual}"
            for name, candidate_course in zip(candidates, run, strict=True)
        )
        self.note("stages", f"{RACE} epochs on from there: {outcome}.")
        return ways[chosen_index], chain(run[chosen_index], courses[chosen_index])
