"""Statistics of the counts alone: the mean pattern."""

from __future__ import annotations

import numpy as np
import torch

from ptymesh.physics.fidelity import Data
from ptymesh.problem.problem import Problem


def mean_pattern(problem: Problem) -> np.ndarray:
    """Return the mean pattern over all views, (h, w) float64, with masked pixels 0. Collective."""
    total, loader = problem.fields.reduction(*problem.window), problem.loader
    for counts in loader.counted(np.arange(len(loader.patterns))):
        total.add(Data.of(counts, loader.mask, None, torch.float64).y)
    return (problem.fields.totals(total)[0] / problem.views).cpu().numpy()
