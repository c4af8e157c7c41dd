"""The residual of views that no update has seen, and whether one estimate explains them better than another.

N, n     all views, held-out ones
y, I     counts, intensities

What is shared (object, probe, background) cannot have adapted to views that were left out. What each view has for
itself (positions, weights, and whatever an operator of the model declares with scope `view`) can only be known by
looking at it: it is fitted on one half of the view's detector, a checkerboard of squares, and judged on the other half;
then the other way round. Object and probe stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ptymesh.engines import Engine
from ptymesh.engines.gradients.sweep import real
from ptymesh.estimate import Estimate
from ptymesh.physics.backend import MISFIT, ROOTS
from ptymesh.problem import Problem, ViewLoader
from ptymesh.unknowns import Unknown

#: Side of a square of the checkerboard, in detector pixels: larger than a speckle.
SQUARE = 8
#: Steps of the fit of a view's own unknowns; of a fit that includes unknowns of operators, which start farther away.
STEPS, OPERATOR_STEPS = 8, 16
#: Times as many steps that views take at most whose misfit still falls by more than such a share in a step.
MOST_TIMES, STILL_FALLS = 4, 0.01
#: Words for what every model may have of a view; all others are names of operators' unknowns.
BUILT_IN = frozenset({"positions", "intensity", "opr"})
#: Largest distance in pixels by which a position moves in one step.
LIMIT_PX = 0.5
#: Factors of a step of positions: the first one, the least, the largest. They are large because half of the pixels ask
#: for half a step, a wave whose phase is free asks for half of that, and a view that moves changes its wave's phase far
#: more than its power.
POSITION_GAINS = (32.0, 4.0, 128.0)
#: Factors of a step of weights: the first one, the least, the largest.
WEIGHT_GAINS = (1.0, 0.5, 8.0)
#: Factors of a step of an operator's unknown: the first one, the least, the largest.
OPERATOR_GAINS = (4.0, 0.5, 128.0)
#: Share of the views whose gains are clipped at either end, to the next one's: a view without light, or one that is far
#: too bright, does not decide.
CLIPPED_SHARE = 0.1
#: An intensity is never fitted below this; least divisor of a step.
LEAST_WEIGHT, TINY = 1e-3, 1e-300


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


def own_unknowns(stages: Iterable[Engine], optics: Sequence[Unknown], opr_modes: int) -> frozenset[str]:
    """Return what stages refine of each view: "positions", "intensity", "opr", and names of operators' unknowns.

    Args:
        stages: engines with their options.
        optics: unknowns of the model's operators.
        opr_modes: number of variable-probe modes.
    """
    return frozenset[str]().union(*(stage.view_unknowns(optics, opr_modes) for stage in stages))


def fit_steps(unknowns: frozenset[str]) -> int:
    """Return the number of steps of a fit of what each view has for itself, 0 where that is nothing."""
    return 0 if not unknowns else STEPS if unknowns <= BUILT_IN else OPERATOR_STEPS


def judge_held_out(problem: Problem, estimate: Estimate, views: np.ndarray, unknowns: frozenset[str]) -> Judged:
    """Return how well an estimate explains views once their own unknowns have been fitted. Collective.

    Args:
        problem: the data and the model.
        estimate: object, probe and all else; it is not changed.
        views: (n,) int64, the held-out views.
        unknowns: what each view has for itself (`own_unknowns`).
    """
    sums = sum_held_out(problem, estimate, views, unknowns)
    return Judged(sums[:, 0], sums[:, 1])


def sum_held_out(problem: Problem, estimate: Estimate, views: np.ndarray, unknowns: frozenset[str]) -> np.ndarray:
    """Return the sums of the residual of each view once its own unknowns have been fitted. Collective.

    Args:
        problem: the data and the model.
        estimate: object, probe and all else; it is not changed.
        views: (n,) int64, the held-out views.
        unknowns: what each view has for itself (`own_unknowns`).

    Returns:
        (n, 4) float64: sum (sqrt I - sqrt y)^2, sum y, sum |sqrt I - sqrt y|, sum sqrt y; the same on every rank.
    """
    if not unknowns:
        return _residual_sums(problem, estimate, views, problem.loader.mask)
    v, u = problem.loader.mask.shape
    black = checkerboard((v, u), problem.device, _square(problem, estimate))
    halves = [problem.loader.mask & black, problem.loader.mask & ~black]
    rows = [
        _residual_sums(problem, _fit(problem, estimate, views, fitted, unknowns), views, judged)
        for fitted, judged in (halves, halves[::-1])
    ]
    return rows[0] + rows[1]


def _square(problem: Problem, estimate: Estimate) -> int:
    """Return the side of a square, in pixels: eight times the width over which the detector spreads light, or SQUARE.

    Light that leaks from one half of the pixels to the other would tell of those that are judged.
    """
    widths = (placed.operator.reach_px(estimate.others) for placed in problem.model.detector)
    return SQUARE * math.ceil(max((1.0, *widths)))


def checkerboard(window: tuple[int, int], device: torch.device, square: int = SQUARE) -> Tensor:
    """Return which pixels (h, w) bool belong to the first half of the detector.

    Squares are counted from the first pixel in both directions, where patterns in the far field have their centre:
    its four neighbouring squares belong to both halves, whatever the sides of the window.

    Args:
        window: (h, w).
        device: where the result is kept.
        square: side of its squares in pixels.
    """
    y, x = ((torch.arange(n, device=device) + n // 2) % n - n // 2 for n in window)
    return (y[:, None] // square + x // square) % 2 == 0


def _seeing(problem: Problem, mask: Tensor) -> ViewLoader:
    """Return the problem's views with another mask (h, w) of usable pixels."""
    loader = copy(problem.loader)
    loader.mask = mask
    return loader


def _residual_sums(problem: Problem, estimate: Estimate, views: np.ndarray, mask: Tensor) -> np.ndarray:
    """Return the sums (n, 4) of views on the pixels of a mask. Collective."""
    model, filled = problem.model, problem.loader.fill_halos(estimate)

    def sweep() -> Tensor:
        table = torch.zeros(problem.views, ROOTS + 1 - MISFIT, dtype=torch.float64, device=problem.device)
        for chunk in _seeing(problem, mask).chunks(estimate, views, filled=filled):
            columns = problem.backend.detector(model, chunk, problem.evaluator.forward(estimate, chunk), "evaluate")[1]
            table[chunk.views] = columns[:, MISFIT : ROOTS + 1]
        return table

    table = problem.layout.merge(problem.evaluator.in_memory(sweep))
    rows: np.ndarray = table[torch.as_tensor(views, device=problem.device)].cpu().numpy()
    return rows


def _fit(problem: Problem, estimate: Estimate, views: np.ndarray, mask: Tensor, unknowns: frozenset[str]) -> Estimate:
    """Return the estimate with the views' own unknowns fitted on the pixels of a mask; each rank fits its own views.

    Each view takes the best of all steps, because steps of such lengths do not always lower the misfit. Those far from
    where they belong, by several pixels, take more steps than others.
    """
    names = _fitted_unknowns(problem, unknowns)
    fitted = replace(_copy_unknowns(estimate, names), moving=True)
    best = _copy_unknowns(fitted, names)
    least = torch.full((problem.views,), math.inf, dtype=torch.float64, device=problem.device)
    first_gains = {"positions": POSITION_GAINS, "weights": WEIGHT_GAINS}
    gains = {name: Gains(*first_gains.get(name, OPERATOR_GAINS)) for name in names}
    filled = problem.loader.fill_halos(estimate)
    steps = fit_steps(unknowns)
    for number in range(MOST_TIMES * steps):
        misfit, view_steps = problem.evaluator.in_memory(
            partial(_view_steps, problem, _seeing(problem, mask), fitted, views, unknowns, filled)
        )
        falls = (misfit < (1 - STILL_FALLS) * least).cpu().numpy()
        better, least = misfit < least, torch.minimum(misfit, least)
        for name in names:
            rows = better.view(-1, *[1] * (best[name].ndim - 1))
            best[name].copy_(torch.where(rows, fitted[name], best[name]))
        for name in names:
            _move(problem, fitted, name, gains[name], view_steps[name])
        if number + 1 >= steps:
            views = views[falls[views]]
            if not len(views):
                break
    return best


def _fitted_unknowns(problem: Problem, unknowns: frozenset[str]) -> list[str]:
    """Return the names of the declared unknowns that are fitted, in the same order on all ranks."""
    built_in = {"positions": {"positions"}, "weights": {"intensity", "opr"}}
    names = [name for name, parts in built_in.items() if unknowns & parts]
    return names + [one.name for one in problem.model.unknowns if one.name in unknowns and one.scope == "view"]


def _copy_unknowns(estimate: Estimate, names: Sequence[str]) -> Estimate:
    """Return the estimate with tensors of its own for these unknowns."""
    copies = {name: rows.clone() if name in names else rows for name, rows in estimate.others.items()}
    positions, weights = estimate.positions.clone(), estimate.weights.clone()
    return replace(estimate, positions=positions, weights=weights, others=copies)


def _move(problem: Problem, fitted: Estimate, name: str, gains: Gains, view_steps: Tensor) -> None:
    """Move an unknown of all views by the steps (N, n) that they ask for, within what a step may be.

    Args:
        problem: the data and the model.
        fitted: the unknowns, changed in place.
        name: of the unknown.
        gains: its step lengths.
        view_steps: (N, n) float64.
    """
    x = _flatten_views(fitted[name])
    step = gains(x, view_steps)
    if name == "weights":
        x += step.to(x.dtype)
        x[:, 0].clamp_(min=LEAST_WEIGHT)
        return
    limit = LIMIT_PX if name == "positions" else problem.model.sizes[name]
    step *= limit / step.norm(dim=1, keepdim=True).clamp(min=limit)
    if name != "positions":
        x += step.to(x.dtype)
        least = next(one.least for one in problem.model.unknowns if one.name == name)
        if least is not None:
            x.clamp_(min=least)
        return
    reach = 1.0 if problem.model.subpixel == "bilinear" else math.inf
    low, high = fitted.anchors - reach, fitted.anchors + reach
    x.copy_(torch.minimum(torch.maximum(x + step, low), high))


def _view_steps(
    problem: Problem,
    seeing: ViewLoader,
    fitted: Estimate,
    views: np.ndarray,
    unknowns: frozenset[str],
    filled: Mapping[str, Tensor],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the misfit (N,) of these views, infinite for all others, and the steps (N, n) by name of the unknown.

    A step is 0 where a view does not ask for one.

    Args:
        problem: the data and the model.
        seeing: loads the views, with the pixels that are fitted.
        fitted: the unknowns.
        views: (n,) int64, the held-out views.
        unknowns: what each view has for itself.
        filled: what `ViewLoader.fill_halos` returned.
    """
    evaluator, names = problem.evaluator, _fitted_unknowns(problem, unknowns)
    steps = {name: torch.zeros_like(_flatten_views(fitted[name]), dtype=torch.float64) for name in names}
    misfit = torch.full((problem.views,), math.inf, dtype=torch.float64, device=problem.device)
    for chunk in seeing.chunks(fitted, views, filled=filled):
        intermediates = evaluator.forward(fitted, chunk)
        chi, columns = problem.backend.detector(problem.model, chunk, intermediates, "exit_wave_update")
        misfit[chunk.views] = columns[:, MISFIT]
        if "positions" in names:
            steps["positions"][chunk.views] = evaluator.position_step(fitted, chunk, intermediates, chi)
        if "weights" in names:
            weighs = evaluator.weight_step(fitted, chunk, intermediates, chi).to(torch.float64)
            steps["weights"][chunk.views, 0] = weighs[:, 0] * ("intensity" in unknowns)
            steps["weights"][chunk.views, 1:] = weighs[:, 1:] * ("opr" in unknowns)
        if steps.keys() - {"positions", "weights"}:
            for name, (slope, norm) in problem.model.operator_slopes(intermediates, chi).items():
                if name in steps:
                    steps[name][chunk.views] = _flatten_views(slope / norm.clamp(min=TINY)).to(torch.float64)
    return misfit, steps


def _flatten_views(x: Tensor) -> Tensor:
    """Return an array with a row per view as (N, n) real; a view of the same memory."""
    return real(x).view(len(x), -1)


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
