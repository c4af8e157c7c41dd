"""The residual that noise alone leaves, from the counts."""

from __future__ import annotations

import torch

from ptymesh.physics.counting import expected_misfit
from ptymesh.physics.elementwise import over_window
from ptymesh.physics.fidelity import Data
from ptymesh.problem.problem import Problem


def noise_floor(problem: Problem) -> float | None:
    """Residual of the true intensities, were the counts Poisson numbers of them; from some 256 views. Collective.

    None where the patterns hold other than whole numbers, as those are no counts, or nothing at all.
    """
    whole, total = True, problem.reduction(2)
    for counts in problem.sampled():
        y = Data.of(counts, problem.mask, None, torch.float64).y
        whole = whole and bool((y == y.round()).all())
        total.add(torch.stack((over_window(expected_misfit(y)), over_window(y)), dim=1))
    if problem.world.agree(not whole):
        return None
    misfit, counted = (float(number) for number in problem.totals(total)[0])
    return misfit / counted if counted > 0 else None
