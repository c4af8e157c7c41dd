"""The residual of views that no update has seen, and whether one estimate explains them better than another.

N, n     all views, held-out ones
y, I     counts, intensities

What is shared (object, probe, background) cannot have adapted to views that were left out. What each view has for
itself can only be known by looking at it: it is fitted on one half of the view's detector, a checkerboard of squares,
and judged on the other half; then the other way round. Object and probe stay as they are.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ptymesh.estimate import Estimate
from ptymesh.physics.backend import MISFIT
from ptymesh.planning.cost_model import FIT_STEP, EpochCost
from ptymesh.problem import Problem, ViewLoader
from ptymesh.recipe.schema import Recipe

#: Side of a square of the checkerboard, in detector pixels: larger than a speckle.
SQUARE = 8
#: Steps of the fit of a view's own unknowns.
STEPS = 8
#: Largest distance in pixels by which a position moves in one step.
LIMIT_PX = 0.5
#: Factors of a step of positions: the first one, the least, the largest. They are large because half of the pixels ask
#: for half a step, a wave whose phase is free asks for half of that, and a view that moves changes its wave's phase far
#: more than its power.
POSITION_GAINS = (32.0, 4.0, 128.0)
#: Factors of a step of weights: the first one, the least, the largest.
WEIGHT_GAINS = (1.0, 0.5, 8.0)
#: Share of the views whose gains are clipped at either end, to the next one's: a view without light, or one that is far
#: too bright, does not decide.
CLIPPED_SHARE = 0.1
#: An intensity is never fitted below this.
LEAST_WEIGHT = 1e-3


@dataclass(frozen=True)
class Judged:
    """Misfit and counts of each held-out view; the same on every rank.

    Attributes:
        misfit: (n,) float64, sum (sqrt I - sqrt y)^2 of each view.
        counts: (n,) float64, sum y of each view.
    """

    misfit: np.ndarray
    counts: np.ndarray

    @property
    def residual(self) -> float:
        """Misfit of all of these views over their counts; NaN without counts."""
        total = float(self.counts.sum())
        return float(self.misfit.sum()) / total if total else math.nan

    def gain_over(self, other: Judged, clipped: bool = True) -> tuple[float, float]:
        """Return by which share of the other's residual this one is lower, and how many standard errors that is.

        Views are compared one by one; extreme gains are clipped (`clip_extremes`) unless told otherwise.
        """
        difference = other.misfit - self.misfit
        if not math.isfinite(float(difference.sum())) or float(other.misfit.sum()) <= 0:
            return (-math.inf, -math.inf) if not math.isfinite(float(self.misfit.sum())) else (0.0, 0.0)
        share = CLIPPED_SHARE if clipped else 0.0
        mean, errors = _sum_and_errors(difference, share)
        return mean / float(clip_extremes(other.misfit, share).sum()), errors

    def gains_more(self, base: Judged, other: Judged, its_base: Judged) -> float:
        """Return how much more this one gains over its base than another one does over its own, in standard errors.

        Gains are compared view by view, as shares of the bases' misfits.

        Args:
            base: what this one is compared with.
            other: the other one.
            its_base: what the other one is compared with.
        """
        shares = [
            (old.misfit - new.misfit) / float(clip_extremes(old.misfit).sum())
            for new, old in ((self, base), (other, its_base))
        ]
        return _sum_and_errors(shares[0] - shares[1])[1]


def clip_extremes(values: np.ndarray, share: float = CLIPPED_SHARE) -> np.ndarray:
    """Return values (n,) whose largest and smallest ones, this share of them each, are as the next one (Winsor)."""
    count = int(share * len(values))
    if not count:
        return values
    ordered = np.sort(values)
    return np.clip(values, ordered[count], ordered[-count - 1])


def _sum_and_errors(values: np.ndarray, share: float = CLIPPED_SHARE) -> tuple[float, float]:
    """Return the sum of clipped values (n,), and how many standard errors it is above zero.

    Source: the standard error of a winsorised mean, Tukey and McLaughlin, Sankhya A 25, 331 (1963).
    """
    clipped = clip_extremes(values, share)
    total, count = float(clipped.sum()), len(values)
    free = count - 2 * int(share * count)
    error = float(clipped.std(ddof=1)) * math.sqrt(count) * count / free if count > 1 else 0.0
    return total, total / error if error else math.copysign(math.inf, total) if total else 0.0


def own_unknowns(recipe: Recipe) -> frozenset[str]:
    """Return which of "positions", "intensity" and "opr" a recipe refines for each view."""
    found = {"positions" for stage in recipe.stages if stage.positions}
    found |= {"intensity" for stage in recipe.stages if stage.probe.intensity}
    found |= {"opr" for stage in recipe.stages if stage.probe.opr and recipe.probe.opr_modes}
    return frozenset(found)


def judging(price: EpochCost, own: frozenset[str], pixels: float) -> float:
    """Return the cost of judging views, in pixels of planning/cost_model.py.

    This is one pass, or the fits of the views' own unknowns on either half of their pixels.

    Args:
        price: what the model's parts cost.
        own: which of "positions", "intensity" and "opr" each view has for itself.
        pixels: detector pixels of all judged views together.
    """
    return pixels * price.judging_work(own, 2 * STEPS) + (2 * STEPS * FIT_STEP if own else 0)


def judge(problem: Problem, estimate: Estimate, views: np.ndarray, own: frozenset[str]) -> Judged:
    """Return how well an estimate explains views once their own unknowns have been fitted. Collective.

    Args:
        problem: the data and the model.
        estimate: object, probe and all else; it is not changed.
        views: (n,) int64, the held-out views.
        own: which of "positions", "intensity" and "opr" each view has for itself.
    """
    if not own:
        return _misfits(problem, estimate, views, problem.loader.mask)
    y, x = (torch.arange(side, device=problem.device) // SQUARE for side in problem.window)
    black = (y[:, None] + x) % 2 == 0
    halves = [problem.loader.mask & black, problem.loader.mask & ~black]
    found = []
    for fitted, judged in (halves, halves[::-1]):
        found.append(_misfits(problem, _fit(problem, estimate, views, fitted, own), views, judged))
    first, second = found
    return Judged(first.misfit + second.misfit, first.counts + second.counts)


def _seeing(problem: Problem, mask: Tensor) -> ViewLoader:
    """Return the problem's views with another mask (h, w) of usable pixels."""
    made = copy(problem.loader)
    made.mask = mask
    return made


def _misfits(problem: Problem, estimate: Estimate, views: np.ndarray, mask: Tensor) -> Judged:
    """Return misfit and counts of views on the pixels of a mask. Collective."""
    seeing, model = _seeing(problem, mask), problem.model
    table = torch.zeros(problem.views, 2, dtype=torch.float64, device=problem.device)
    for chunk in seeing.chunks(estimate, views):
        found = problem.backend.detector(model, chunk, problem.evaluator.forward(estimate, chunk), "evaluate")[1]
        table[chunk.views] = found[:, MISFIT : MISFIT + 2]
    rows = problem.layout.merge(table)[torch.as_tensor(views, device=problem.device)].cpu().numpy()
    return Judged(rows[:, 0], rows[:, 1])


def _fit(problem: Problem, estimate: Estimate, views: np.ndarray, mask: Tensor, own: frozenset[str]) -> Estimate:
    """Return the estimate with the views' own unknowns fitted on the pixels of a mask; each rank fits its own views.

    Each view takes the best of all steps, because steps of such lengths do not always lower the misfit.
    """
    seeing = _seeing(problem, mask)
    fitted = replace(estimate, positions=estimate.positions.clone(), weights=estimate.weights.clone(), moving=True)
    best = replace(fitted, positions=fitted.positions.clone(), weights=fitted.weights.clone())
    least = torch.full((problem.views,), math.inf, dtype=torch.float64, device=problem.device)
    reach = 1.0 if problem.model.subpixel == "bilinear" else math.inf
    gains = {"positions": Gains(*POSITION_GAINS), "weights": Gains(*WEIGHT_GAINS)}
    for _ in range(STEPS):
        misfit, moves, weighs = _view_steps(problem, seeing, fitted, views, own)
        better, least = (misfit < least)[:, None], torch.minimum(misfit, least)
        best.positions.copy_(torch.where(better, fitted.positions, best.positions))
        best.weights.copy_(torch.where(better, fitted.weights, best.weights))
        if "positions" in own:
            step = gains["positions"](fitted.positions, moves)
            step *= LIMIT_PX / step.norm(dim=1, keepdim=True).clamp(min=LIMIT_PX)
            low, high = fitted.anchors - reach, fitted.anchors + reach
            fitted.positions.copy_(torch.minimum(torch.maximum(fitted.positions + step, low), high))
        if own & {"intensity", "opr"}:
            fitted.weights += gains["weights"](fitted.weights, weighs).to(fitted.weights.dtype)
            fitted.weights[:, 0].clamp_(min=LEAST_WEIGHT)
    return best


def _view_steps(
    problem: Problem, seeing: ViewLoader, fitted: Estimate, views: np.ndarray, own: frozenset[str]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the misfit (N,) of these views, infinite for all others, and the steps that they ask for.

    Steps are of positions (N, 2) and of weights (N, 1 + K), and 0 where a view does not ask for one.
    """
    evaluator = problem.evaluator
    moves, weighs = torch.zeros_like(fitted.positions), torch.zeros_like(fitted.weights, dtype=torch.float64)
    misfit = torch.full((problem.views,), math.inf, dtype=torch.float64, device=problem.device)
    for chunk in seeing.chunks(fitted, views):
        intermediates = evaluator.forward(fitted, chunk)
        chi, found = problem.backend.detector(problem.model, chunk, intermediates, "exit_wave_update")
        misfit[chunk.views] = found[:, MISFIT]
        if "positions" in own:
            moves[chunk.views] = evaluator.position_step(fitted, chunk, intermediates, chi)
        if own & {"intensity", "opr"}:
            steps = evaluator.weight_step(fitted, chunk, intermediates, chi).to(torch.float64)
            weighs[chunk.views, 0] = steps[:, 0] * ("intensity" in own)
            weighs[chunk.views, 1:] = steps[:, 1:] * ("opr" in own)
    return misfit, moves, weighs


class Gains:
    """Step lengths of each view, from the curvature that its last two steps show, between bounds.

    Where the curvature is not positive, the upper bound is taken. A view that asks for no step stays.

    Source: Barzilai and Borwein, IMA J. Numer. Anal. 8, 141 (1988), the longer of their two lengths.
    """

    def __init__(self, first: float, low: float, high: float) -> None:
        self.first, self.low, self.high = first, low, high
        self._last: tuple[Tensor, Tensor] | None = None

    def __call__(self, x: Tensor, step: Tensor) -> Tensor:
        """Return the moves (N, n) of x (N, n) for the steps (N, n) asked for there; the next call takes the moved x."""
        gain: Tensor | float = self.first
        if self._last is not None:
            moved, less = x.to(step.dtype) - self._last[0], self._last[1] - step
            curvature = (moved * less).sum(1, keepdim=True)
            length = (moved * moved).sum(1, keepdim=True) / curvature
            gain = torch.where(curvature > 0, length.clamp(self.low, self.high), self.high)
        self._last = x.to(step.dtype, copy=True), step
        return gain * step
