"""Misfit that the final estimate leaves, by view and by detector pixel, of views from all over the scan.

B        views that are looked at
h, w     window pixels
I, y     modelled intensities, counts
f, w     mean and variance of the misfit (sqrt y - sqrt I)^2 that counting makes of I (physics/detector/counting.py)
m        sqrt y - sqrt I
s        how sqrt I changes with a view's position, along y and x
b        how it changes with a blur over the detector's pixels, the Laplacian of I over 2 sqrt I
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed.exact import Reduction
from ptymesh.estimate import Estimate
from ptymesh.measurement import evenly_spread
from ptymesh.physics.backend import Chunk
from ptymesh.physics.detector.counting import misfit_of
from ptymesh.physics.elementwise import over_window, overlap
from ptymesh.physics.model import Intermediates, power
from ptymesh.problem import Problem

#: Views that are looked at, at most.
SAMPLE = 256
#: Share of a view's largest intensity below which no slope is taken.
DIM = 1e-9
#: Columns of the sums.
MISFIT, EXPECTED, VARIANCE, COUNTS, ROOTS, GOOD = range(6)
#: Further columns by view, of what views ask for: sums of s_y s_y, s_y s_x, s_x s_x, s_y m, s_x m, b b and b m.
YY, YX, XX, Y, X, BB, B = range(7)


@dataclass(frozen=True)
class Misfits:
    """Sums of misfits over the good pixels of single views, and over the views of single pixels.

    Attributes:
        views: (B,) indices of the views that were looked at.
        by_view: (B, 6) float64: misfit, sum f, sum w, sum y, sum sqrt y, number of good pixels.
        by_pixel: (6, h, w) float64: the same, summed over these views.
        by_all: (N, 2) float64: misfit and sum y of every view of the scan.
        slopes: (B, 7) float64: s_y s_y, s_y s_x, s_x s_x, s_y m, s_x m, b b and b m; s is zero where intensities do
            not depend on fractions of pixels.
        positions: (B, 2) float64, object pixels.
    """

    views: np.ndarray
    by_view: np.ndarray
    by_pixel: np.ndarray
    by_all: np.ndarray
    slopes: np.ndarray
    positions: np.ndarray

    @property
    def static(self) -> float:
        """Residual of the best model in which all views are alike: what is to be explained at all."""
        roots, views = self.by_pixel[ROOTS], np.maximum(self.by_pixel[GOOD], 1)
        return 1 - float((roots**2 / views).sum()) / max(float(self.by_pixel[COUNTS].sum()), 1e-300)

    @property
    def residual(self) -> float:
        """Residual of the views that were looked at."""
        return float(self.by_view[:, MISFIT].sum() / max(self.by_view[:, COUNTS].sum(), 1e-300))


def collect_misfits(
    problem: Problem, estimate: Estimate, by_all: np.ndarray, training: np.ndarray | None = None
) -> Misfits:
    """Compare some 256 patterns with their model. Collective: every rank gets the same.

    Args:
        problem: the data and the model.
        estimate: the unknowns.
        by_all: (N, 2) float64, misfit and sum y of every view.
        training: (n,) int64, views out of which these are; None for all. Views that were held out have no values of
            the unknowns that each view has for itself.
    """
    views = evenly_spread(problem.views if training is None else len(training), SAMPLE)
    views = views if training is None else training[views]
    filled = problem.loader.fill_halos(estimate)
    total, rows = problem.evaluator.in_memory(lambda: _sums(problem, estimate, views, filled))
    (by_pixel,), (by_view,) = problem.fields.totals(total), problem.world.sum(rows)
    sums = by_view.cpu().numpy()[views]
    positions = estimate.positions.cpu().numpy().astype(np.float64)[views]
    return Misfits(views, sums[:, : GOOD + 1], by_pixel.cpu().numpy(), by_all, sums[:, GOOD + 1 :], positions)


def _sums(
    problem: Problem, estimate: Estimate, views: np.ndarray, filled: Mapping[str, Tensor]
) -> tuple[Reduction, Tensor]:
    """Return this rank's part of the sums by pixel, and those of its views in the rows of (N, 13)."""
    total = problem.fields.reduction(GOOD + 1, *problem.loader.mask.shape)
    rows = torch.zeros(problem.views, GOOD + 1 + B + 1, dtype=torch.float64, device=problem.device)
    evaluator = problem.evaluator
    for chunk in problem.loader.chunks(estimate, views, filled=filled):
        intermediates = evaluator.forward(estimate, chunk)
        waves = evaluator.detect(chunk, intermediates.exit)
        data = chunk.data
        I = data.intensity(problem.model.signal(power(waves), chunk.values)).to(torch.float64)
        y = data.y.to(torch.float64)
        expected, variance = misfit_of(I)
        roots, m = y.sqrt(), y.sqrt() - I.sqrt()
        terms = torch.stack((m.square(), expected, variance, y, roots, torch.ones_like(y)), dim=1)
        terms = torch.where(data.good[:, None], terms, 0)
        total.add(terms)
        rows[chunk.views, : GOOD + 1] = over_window(terms)
        s_y, s_x, b = _slopes(problem, estimate, chunk, intermediates, waves, torch.where(data.good, I, 0))
        products = torch.stack((s_y * s_y, s_y * s_x, s_x * s_x, s_y * m, s_x * m, b * b, b * m), dim=1)
        rows[chunk.views, GOOD + 1 :] = over_window(torch.where(data.good[:, None], products, 0))
    return total, rows


def _slopes(
    problem: Problem, estimate: Estimate, chunk: Chunk, intermediates: Intermediates, waves: Tensor, I: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return how sqrt I (B, h, w) changes with the position along y and x, and with a blur, float64.

    Args:
        problem: evaluator and model.
        estimate: the unknowns.
        chunk: the views.
        intermediates: windows and waves of the chunk.
        waves: (B, M, h, w) at the detector.
        I: (B, h, w) float64, modelled intensities with their background.
    """
    evaluator, obj = problem.evaluator, problem.evaluator.cut_from(estimate, chunk)
    roots = I.sqrt()
    bright = I.amax(dim=(-2, -1), keepdim=True) * DIM < I
    neighbours = sum(I.roll(shift, axis) for axis in (-2, -1) for shift in (-1, 1))
    blur = (neighbours - 4 * I) / (2 * torch.maximum(roots, 0.1 * over_window(roots)[:, None, None] / roots[0].numel()))
    blur = torch.where(bright, blur, 0)
    if problem.model.subpixel == "none":
        return torch.zeros_like(I), torch.zeros_like(I), blur
    slopes = []
    for axis in (0, 1):
        moved = problem.model.position_derivative(obj, chunk.anchors, chunk.fractions, intermediates, axis)
        change = overlap(waves, evaluator.detect(chunk, moved)).sum(dim=1)
        response = problem.model.response(chunk.values)
        change = (change if response is None else response.apply(change)).to(torch.float64)
        slopes.append(torch.where(bright, change / roots, 0))
    return slopes[0], slopes[1], blur
