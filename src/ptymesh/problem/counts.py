"""What the counts say alone: the mean pattern, and the residual that noise leaves."""

from __future__ import annotations

import numpy as np
import torch

from ptymesh.physics.counting import expected_misfit
from ptymesh.physics.elementwise import over_window
from ptymesh.physics.fidelity import Data
from ptymesh.problem.problem import Problem


def mean_pattern(problem: Problem) -> np.ndarray:
    """Mean pattern over all views, (h, w) float64, masked pixels 0. Collective."""
    total, loader = problem.fields.reduction(*problem.window), problem.loader
    for counts in loader.counted(np.arange(len(loader.patterns))):
        total.add(Data.of(counts, loader.mask, None, torch.float64).y)
    return (problem.fields.totals(total)[0] / problem.views).cpu().numpy()


def noise_floor(problem: Problem) -> float | None:
    """Residual of the true intensities, were the counts Poisson numbers of them; from some 256 views. Collective.

    None where the patterns hold other than whole numbers, as those are no counts, or nothing at all.
    """
    whole, total = True, problem.fields.reduction(2)
    for counts in problem.loader.sampled():
        y = Data.of(counts, problem.loader.mask, None, torch.float64).y
        whole = whole and bool((y == y.round()).all())
        total.add(torch.stack((over_window(expected_misfit(y)), over_window(y)), dim=1))
    if problem.world.agree(not whole):
        return None
    misfit, counted = (float(number) for number in problem.fields.totals(total)[0])
    return misfit / counted if counted > 0 else None
