"""Statistics of the counts alone: the mean pattern."""

from __future__ import annotations

import numpy as np
import torch

from ptymesh.physics.fidelity import Data
from ptymesh.problem.problem import Problem


def mean_pattern(problem: Problem) -> np.ndarray:
    """Return the mean pattern over all views, (h, w) float64, with masked pixels 0. Collective."""
    total, loader = problem.fields.reduction(*problem.loader.mask.shape), problem.loader
    for counts in loader.counted(np.arange(len(loader.patterns))):
        total.add(Data.of(counts, loader.mask, None, torch.float64).y)
    return (problem.fields.totals(total)[0] / problem.views).cpu().numpy()


def mean_patterns(problem: Problem) -> np.ndarray:
    """Return the mean pattern for each probe, over the views that have it, (S, h, w) float64. Collective.

    Of a single probe there is one of all views (`mean_pattern`).
    """
    settings = problem.setup.settings
    if settings is None or problem.probe_count == 1:
        return mean_pattern(problem)[None]
    loader, local_settings = problem.loader, settings[problem.layout.own]
    totals = [problem.fields.reduction(*loader.mask.shape) for _ in range(problem.probe_count)]
    for setting, total in enumerate(totals):
        for counts in loader.counted(np.flatnonzero(local_settings == setting)):
            total.add(Data.of(counts, loader.mask, None, torch.float64).y)
    views = np.bincount(settings, minlength=len(totals))
    sums = [summed.cpu().numpy() for summed in problem.fields.totals(*totals)]
    return np.stack([summed / max(1, count) for summed, count in zip(sums, views.tolist(), strict=True)])
