"""What the final estimate leaves unexplained, by view and by detector pixel, of views from all over the scan.

B        views that are looked at
h, w     window pixels
I, y     modelled intensities, counts
f, w     mean and variance of the misfit (sqrt y - sqrt I)^2 that counting makes of I (physics/counting.py)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed.exact import Reduction
from ptymesh.estimate import Estimate
from ptymesh.physics.counting import misfit_of
from ptymesh.physics.elementwise import over_window
from ptymesh.physics.model import power
from ptymesh.problem import Problem

#: Views that are looked at, at most.
SAMPLE = 256
#: Columns of the sums.
MISFIT, EXPECTED, VARIANCE, COUNTS, ROOTS, GOOD = range(6)


@dataclass(frozen=True)
class Misfits:
    """Sums of misfits over the good pixels of single views, and over the views of single pixels.

    Attributes:
        views: (B,) indices of the views that were looked at.
        by_view: (B, 6) float64: misfit, sum f, sum w, sum y, sum sqrt y, number of good pixels.
        by_pixel: (6, h, w) float64: the same, summed over these views.
        by_all: (N, 2) float64: misfit and sum y of every view of the scan.
    """

    views: np.ndarray
    by_view: np.ndarray
    by_pixel: np.ndarray
    by_all: np.ndarray

    @property
    def static(self) -> float:
        """Residual of the best model in which all views are alike: what is to be explained at all."""
        roots, views = self.by_pixel[ROOTS], np.maximum(self.by_pixel[GOOD], 1)
        return 1 - float((roots**2 / views).sum()) / max(float(self.by_pixel[COUNTS].sum()), 1e-300)

    @property
    def residual(self) -> float:
        """Residual of the views that were looked at."""
        return float(self.by_view[:, MISFIT].sum() / max(self.by_view[:, COUNTS].sum(), 1e-300))


def collect_misfits(problem: Problem, estimate: Estimate, by_all: np.ndarray) -> Misfits:
    """Compare some 256 patterns with their model. Collective: every rank gets the same.

    Args:
        by_all: (N, 2) float64, misfit and sum y of every view.
    """
    views = np.unique(np.linspace(0, problem.views - 1, min(SAMPLE, problem.views)).round().astype(np.int64))
    seen = problem.layout.seen(estimate.object)
    total, rows = problem.evaluator.in_memory(lambda: _sums(problem, estimate, views, seen))
    (by_pixel,), (by_view,) = problem.fields.totals(total), problem.world.sum(rows)
    return Misfits(views, by_view.cpu().numpy()[views], by_pixel.cpu().numpy(), by_all)


def _sums(problem: Problem, estimate: Estimate, views: np.ndarray, seen: Tensor) -> tuple[Reduction, Tensor]:
    """Return this rank's part of the sums by pixel, and those of its views in the rows of (N, 6)."""
    total = problem.fields.reduction(6, *problem.window)
    rows = torch.zeros(problem.views, 6, dtype=torch.float64, device=problem.device)
    evaluator = problem.evaluator
    for chunk in problem.loader.chunks(estimate, views, seen=seen):
        waves = evaluator.detect(chunk, evaluator.forward(estimate, chunk).exit)
        data = chunk.data
        I = data.intensity(power(waves)).to(torch.float64)
        y = data.y.to(torch.float64)
        expected, variance = misfit_of(I)
        roots = y.sqrt()
        terms = torch.stack(((I.sqrt() - roots).square(), expected, variance, y, roots, torch.ones_like(y)), dim=1)
        terms = torch.where(data.good[:, None], terms, 0)
        total.add(terms)
        rows[chunk.views] = over_window(terms)
    return total, rows
