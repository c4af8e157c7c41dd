"""Pixels of the object that are illuminated."""

from __future__ import annotations

from torch import Tensor

from ptymesh.estimate import Estimate
from ptymesh.problem import Problem

#: Least illumination, as a fraction of the largest, of the pixels that decide gauges of the object.
LIT = 0.1


def illuminated_mask(problem: Problem, estimate: Estimate) -> Tensor:
    """Return the object pixels (H, W) bool that are illuminated well enough to decide a gauge. Collective."""
    illumination = problem.evaluator.illumination(estimate)
    return illumination > LIT * problem.fields.max(illumination)
