"""Final residual of a run over all views, and the verdict on whether its picture can be believed.

N, n    all views, held-out ones
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import torch

from ptymesh.engines import Engine
from ptymesh.errors import PtymeshError
from ptymesh.measurement import Measurement
from ptymesh.problem import Problem
from ptymesh.run.state import RunState
from ptymesh.verdict.features import find_feature_map
from ptymesh.verdict.floor import NoiseFloor
from ptymesh.verdict.held_out import Judged, own_unknowns, sum_held_out
from ptymesh.verdict.judging import Verdict, judge
from ptymesh.verdict.misfits import Misfits, collect_misfits
from ptymesh.verdict.signs import Sign, signs_of_features, signs_of_misfits, signs_of_order, signs_of_overlap
from ptymesh.verdict.turn_trial import refutes_turn

#: Times of what counting leaves from which on a trial looks for what the model does not explain.
TRIED_TIMES = 1.15


class EstimateJudge:
    """Residuals and verdict of an estimate as it is.

    Args:
        problem: that it solves.
        state: of the run.
        scan: the data.
        stages: that were run.
        held_out: (n,) int64, views that no update of the last loop has seen.
        judge_part: tries a part of the scan by a short run, on this rank alone; None where neighbouring views are of no
            neighbouring places, or not in the order of one scan.
    """

    def __init__(
        self,
        problem: Problem,
        state: RunState,
        scan: Measurement,
        stages: Sequence[Engine],
        held_out: np.ndarray,
        judge_part: Callable[[Measurement], Judged] | None,
    ) -> None:
        self.problem, self.state, self.scan, self.stages = problem, state, scan, stages
        self.held_out, self.judge_part, self.world = held_out, judge_part, problem.world

    @property
    def training(self) -> np.ndarray:
        """Views (N - n,) int64 that updates of the last loop have seen."""
        return np.setdiff1d(np.arange(self.scan.views), self.held_out)

    @property
    def fitted_of_held_out(self) -> frozenset[str]:
        """Names of what each held-out view has for itself, fitted on half of its pixels before it is judged."""
        if not len(self.held_out):
            return frozenset()
        unknowns = own_unknowns(self.stages, self.problem.model.unknowns, len(self.state.estimate.opr))
        return unknowns - {"positions"} if self.state.refused_positions else unknowns

    def final_residuals(self) -> tuple[float, float, np.ndarray]:
        """Return residual and R of all views, and misfit and counts of each, (N, 2): one pass in which nothing moves.

        What held-out views have for themselves is fitted on half of their pixels, and judged on the others. Collective.
        """
        problem, estimate, unknowns = self.problem, self.state.estimate, self.fitted_of_held_out
        if not unknowns:
            by_view = torch.zeros(self.scan.views, 2, dtype=torch.float64, device=self.world.device)
            residual, r = problem.residual(estimate, each=by_view)
            return residual, r, self.world.sum(by_view)[0].cpu().numpy()
        sums = np.empty((self.scan.views, 4))
        for views, fitted in ((self.training, frozenset[str]()), (self.held_out, unknowns)):
            sums[views] = sum_held_out(problem, estimate, views, fitted)
        misfit, counts, absolute, roots = sums.sum(axis=0).tolist()
        return misfit / counts if counts else math.nan, absolute / roots if roots else math.nan, sums[:, :2]

    def name_residual_views(self) -> str:
        """Return of which views the final residual is, in words."""
        held_out_count, unknowns = len(self.held_out), self.fitted_of_held_out
        if not held_out_count:
            return f"all {self.scan.views} views"
        phrase = f"all {self.scan.views} views, {held_out_count} of which no update has seen"
        if not unknowns:
            return phrase
        names = ", ".join(sorted(unknowns))
        return f"{phrase}: their {names} fitted on half of their pixels, and judged on the other half"

    def verdict(
        self,
        residual: float,
        by_view: np.ndarray,
        noise: NoiseFloor | None,
        fitted: int,
        history: Mapping[str, np.ndarray],
        trial: Callable[[], Sign | None] | None = None,
    ) -> Verdict:
        """Return the verdict. Collective.

        Args:
            residual: of all views.
            by_view: (N, 2) misfit and counts of each.
            noise: residual that counting leaves; None where patterns are no counts.
            fitted: how many real numbers were fitted.
            history: columns of the run, by name.
            trial: takes longer to look for a sign, where the estimate would be good but leaves more than counting does.
        """
        training = self.training if self.fitted_of_held_out else None
        misfits = collect_misfits(self.problem, self.state.estimate, by_view, training)
        signs = self._find_signs_on_first_rank(lambda: self._signs(misfits, are_counts=noise is not None))
        verdict = judge(residual, noise, fitted, misfits, history, signs)
        if trial is not None and verdict.state == "good" and (verdict.times or 0.0) > TRIED_TIMES:
            signs = self._find_signs_on_first_rank(lambda: [sign for sign in [trial()] if sign is not None])
            verdict = judge(residual, noise, fitted, misfits, history, signs)
        if self.judge_part is not None and verdict.state in ("good", "unknown"):
            # asked last: a beam that a wrong model left may be far smaller than the true one
            signs = self._find_signs_on_first_rank(self._signs_of_overlap)
            verdict = judge(residual, noise, fitted, misfits, history, signs)
        check = self.state.position_check
        if check is None or not check.is_refused:
            return verdict
        return replace(verdict, sentence=f"{verdict.sentence}; {check.sentence()}")

    def _signs(self, misfits: Misfits, *, are_counts: bool) -> list[Sign]:
        """Return signs of a wrong model that need no high residual."""
        positions = self.state.estimate.positions.cpu().numpy().astype(np.float64)
        signs = signs_of_misfits(
            misfits,
            are_counts=are_counts,
            are_refined=any(stage.positions for stage in self.stages) and not self.state.refused_positions,
            near_field=self.scan.geometry.propagation != "far_field",
        )
        if self.judge_part is not None:
            with suppress(PtymeshError, OSError):  # the file may be gone by now, and must not fail the result
                # these come first, as they do not depend on the fit
                signs = [*self._signs_of_scan(positions, self.judge_part), *signs]
        return signs

    def _signs_of_overlap(self) -> list[Sign]:
        """Return a sign that neighbouring views have too little of the object in common."""
        estimate = self.state.estimate
        power = estimate.probe.abs().square().sum(0).cpu().numpy().astype(np.float64)
        with suppress(PtymeshError, OSError):  # the file may be gone by now, and must not fail the result
            return signs_of_overlap(self.scan, estimate.positions.cpu().numpy().astype(np.float64), power)
        return []

    def _signs_of_scan(self, positions: np.ndarray, judge_part: Callable[[Measurement], Judged]) -> list[Sign]:
        """Return what patterns and positions (N, 2) alone tell, but for turns that short runs refute."""
        signs = signs_of_order(self.scan, positions)
        if signs:  # features of views in a wrong order move nowhere
            return signs
        features = find_feature_map(self.scan, positions)
        signs = signs_of_features(features)
        return [] if signs and features is not None and refutes_turn(self.scan, features, judge_part) else signs

    def _find_signs_on_first_rank(self, find: Callable[[], list[Sign]]) -> list[Sign]:
        """Return the signs that the first rank finds. Collective."""
        signs = self.world.decide_on_first_rank(find, "looking for signs of a wrong model")
        return [Sign(**one) for one in signs]
