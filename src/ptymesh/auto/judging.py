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

from ptymesh.estimate import Estimate
from ptymesh.physics.backend import MISFIT
from ptymesh.problem import Problem, ViewLoader
from ptymesh.run.price import Price
from ptymesh.run.recipe import Recipe

#: Side of a square of the checkerboard, in detector pixels: larger than a speckle.
SQUARE = 8
#: Fits of a view's own unknowns: so many steps. Half of the pixels ask for half a step, and a wave whose phase is free
#: for half of that; an intensity has no phase. A position moves so many pixels at most in a step.
STEPS, GAIN, LIMIT_PX = 12, 4.0, 0.5
#: An intensity is never fitted below this.
LEAST_WEIGHT = 1e-3


@dataclass(frozen=True)
class Judged:
    """Misfit sum (sqrt I - sqrt y)^2 and counts sum y of each held-out view, (n,) each, on every rank."""

    misfit: np.ndarray
    counts: np.ndarray

    @property
    def residual(self) -> float:
        """Misfit of all of these views over their counts."""
        total = float(self.counts.sum())
        return float(self.misfit.sum()) / total if total else math.nan

    def gain_over(self, other: Judged) -> tuple[float, float]:
        """By which share of the other's residual this one is lower, and how many standard errors that is."""
        difference = other.misfit - self.misfit
        total = float(other.misfit.sum())
        if not math.isfinite(float(difference.sum())) or total <= 0:
            return (-math.inf, -math.inf) if not math.isfinite(float(self.misfit.sum())) else (0.0, 0.0)
        spread = float(difference.std(ddof=1)) * math.sqrt(len(difference)) if len(difference) > 1 else 0.0
        mean = float(difference.sum())
        return mean / total, mean / spread if spread else math.copysign(math.inf, mean) if mean else 0.0

    def gains_more(self, base: Judged, other: Judged, its_base: Judged) -> float:
        """By which share of its base's residual this one gains more over its base than another one over its own, in
        standard errors."""
        shares = [(old.misfit - new.misfit) / float(old.misfit.sum()) for new, old in ((self, base), (other, its_base))]
        more = shares[0] - shares[1]
        spread = float(more.std(ddof=1)) * math.sqrt(len(more)) if len(more) > 1 else 0.0
        mean = float(more.sum())
        return mean / spread if spread else math.copysign(math.inf, mean) if mean else 0.0


def own_unknowns(recipe: Recipe) -> frozenset[str]:
    """Of positions, intensity and opr, what a recipe refines for each view."""
    found = {"positions" for stage in recipe.stages if stage.positions}
    found |= {"intensity" for stage in recipe.stages if stage.probe.intensity}
    found |= {"opr" for stage in recipe.stages if stage.probe.opr and recipe.probe.opr_modes}
    return frozenset(found)


def judging(price: Price, own: frozenset[str], pixels: float) -> float:
    """What it costs to judge views with so many pixels in all, in pixels of price.py: a pass, or fits of what a view
    has for itself on either half of them."""
    return pixels * price.judged(own, 2 * STEPS)


def judge(problem: Problem, estimate: Estimate, views: np.ndarray, own: frozenset[str]) -> Judged:
    """How well an estimate explains these views, after what they have for themselves was fitted. Collective.

    own: of positions, intensity and opr, what each view has for itself.
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


def _seeing(problem: Problem, mask: torch.Tensor) -> ViewLoader:
    """The problem's views with other pixels masked."""
    made = copy(problem.loader)
    made.mask = mask
    return made


def _misfits(problem: Problem, estimate: Estimate, views: np.ndarray, mask: torch.Tensor) -> Judged:
    seeing, model = _seeing(problem, mask), problem.model
    table = torch.zeros(problem.views, 2, dtype=torch.float64, device=problem.device)
    for chunk in seeing.chunks(estimate, views):
        found = problem.backend.detector(model, chunk, problem.evaluator.forward(estimate, chunk), "evaluate")[1]
        table[chunk.views] = found[:, MISFIT : MISFIT + 2]
    rows = problem.layout.merge(table)[torch.as_tensor(views, device=problem.device)].cpu().numpy()
    return Judged(rows[:, 0], rows[:, 1])


def _fit(problem: Problem, estimate: Estimate, views: np.ndarray, mask: torch.Tensor, own: frozenset[str]) -> Estimate:
    """The estimate with the views' own unknowns fitted on these pixels, from where they are; each rank fits its own."""
    seeing, evaluator = _seeing(problem, mask), problem.evaluator
    fitted = replace(estimate, positions=estimate.positions.clone(), weights=estimate.weights.clone(), moving=True)
    reach = 1.0 if problem.model.subpixel == "bilinear" else math.inf
    for _ in range(STEPS):
        asked = []
        for chunk in seeing.chunks(fitted, views):
            intermediates = evaluator.forward(fitted, chunk)
            chi = problem.backend.detector(problem.model, chunk, intermediates, "exit_wave_update")[0]
            move = evaluator.position_step(fitted, chunk, intermediates, chi) if "positions" in own else None
            weigh = evaluator.weight_step(fitted, chunk, intermediates, chi) if own & {"intensity", "opr"} else None
            asked.append((chunk.views, move, weigh))
        for some, move, weigh in asked:
            if move is not None:
                moved = fitted.positions[some] + (GAIN * move).clamp(-LIMIT_PX, LIMIT_PX)
                anchors = fitted.anchors[some]
                fitted.positions[some] = torch.minimum(torch.maximum(moved, anchors - reach), anchors + reach)
            if weigh is not None and "intensity" in own:
                weight = fitted.weights[some, 0] + 0.25 * GAIN * weigh[:, 0]
                fitted.weights[some, 0] = weight.clamp(min=LEAST_WEIGHT)
            if weigh is not None and "opr" in own:
                fitted.weights[some, 1:] += 0.25 * GAIN * weigh[:, 1:]
    return fitted
