"""Smoothness of the object along the beam.

The goal X of an object O of L slices minimises, for each pixel,

    sum_l |X_l - O_l|^2 + SHARE weight sum_l |X_{l+1} - X_l|^2

No slice follows the last one, and none comes before the first: their sum stays as it is, and nothing wraps.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ptymesh.engines.constraints.base import CONSTRAINTS, OfValues, Prior
from ptymesh.engines.constraints.neighbours import check_several_slices
from ptymesh.estimate import Estimate
from ptymesh.problem import Problem

#: Cost of weight 1. It acts anew in every epoch, so that a cost of 1 blurs slices (docs/reference/constraints.md).
SHARE = 0.1


@CONSTRAINTS.register("depth_smoothness")
class DepthSmoothness(Prior):
    """Neighbouring slices are drawn towards each other, by the exact minimum of a quadratic cost.

    Attributes:
        weight: ten times what a difference between neighbours costs beside a departure from the object as it is: what
            changes sign from slice to slice is divided by 1 + 0.4 weight in each epoch.
    """

    after: ClassVar[str | None] = "smooth"
    of_potential: ClassVar[OfValues] = "values"
    between_slices: ClassVar[bool] = True

    weight: float = Field(1.0, gt=0, le=1000)

    def check(self, problem: Problem) -> None:
        """Refuse a single slice. Raises BadInput."""
        check_several_slices("depth_smoothness", problem)

    def goal(self, problem: Problem, estimate: Estimate) -> Tensor:
        """Return the object smoothed along the beam.

        Args:
            problem: not used.
            estimate: the unknowns.
        """
        return mixed_slices(estimate.object, smoothing(len(estimate.object), SHARE * self.weight))


def smoothing(slices: int, cost: float) -> list[list[float]]:
    """Return (1 + cost D^T D)^-1, (L, L), D the differences between neighbouring slices."""
    differences = np.diff(np.eye(slices), axis=0)
    rows: list[list[float]] = np.linalg.inv(np.eye(slices) + cost * differences.T @ differences).tolist()
    return rows


def mixed_slices(obj: Tensor, matrix: list[list[float]]) -> Tensor:
    """Return sum_m A_lm O_m of slices (L, H, W) complex, summed in the order of m for the same bits everywhere."""
    parts = torch.view_as_real(obj)
    rows = []
    for row in matrix:
        total = parts[0] * row[0]
        for value, part in zip(row[1:], parts[1:], strict=True):
            total = total + part * value
        rows.append(total)
    return torch.view_as_complex(torch.stack(rows))
