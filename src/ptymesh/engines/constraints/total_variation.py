"""Total variation of the object in the plane and along the beam, by its proximal operator.

X minimises  1/2 |X - O|^2 + lambda sum_r |grad X|  + lambda_z sum_r |d_z X|,  both of complex X

(Rudin, Osher & Fatemi, Physica D 60, 259, 1992), found by gradient projection of the dual problem (Chambolle, J. Math.
Imaging Vis. 20, 89, 2004): with A the differences, Y <- P(Y + A (O - A^T Y) / 12), X = O - A^T Y, P the projection of
each pixel's differences onto a ball of radius lambda.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from ptymesh.engines.constraints.base import CONSTRAINTS, OfValues, Prior
from ptymesh.engines.constraints.illumination import illuminated_mask
from ptymesh.engines.constraints.neighbours import check_several_slices, with_neighbours
from ptymesh.estimate import Estimate
from ptymesh.problem import Problem

#: Iterations of the dual problem, each of which reaches one pixel further.
ITERATIONS = 30


@CONSTRAINTS.register("total_variation")
class TotalVariation(Prior):
    """Object of least variation near the one there is: flat regions with sharp edges.

    Attributes:
        weight: lambda, as a multiple of the mean |grad O| over illuminated pixels; 1 removes noise of as much.
        depth_weight: lambda_z, as a multiple of the mean |d_z O|; 0 for none along the beam.
    """

    after: ClassVar[str | None] = "smooth"
    of_potential: ClassVar[OfValues] = "values"
    between_slices: ClassVar[bool] = True

    weight: float = Field(0.3, ge=0, le=100)
    depth_weight: float = Field(0.0, ge=0, le=100)

    @model_validator(mode="after")
    def _some_weight(self) -> TotalVariation:
        if not self.weight and not self.depth_weight:
            raise ValueError("weight and depth_weight are both 0; give at least one, or leave total_variation out")
        return self

    def check(self, problem: Problem) -> None:
        """Refuse a variation along the beam of a single slice. Raises BadInput."""
        if self.depth_weight:
            check_several_slices("total_variation.depth_weight", problem)

    def goal(self, problem: Problem, estimate: Estimate) -> Tensor:
        """Return the object of least variation. Collective.

        Args:
            problem: the problem that is solved.
            estimate: the unknowns.
        """
        illuminated = illuminated_mask(problem, estimate)

        def slopes(planes: Tensor, _: tuple[int, int]) -> Tensor:
            down, right = differences(planes, -2), differences(planes, -1)
            plane = torch.sqrt((down.square() + right.square()).sum(1))
            depth = torch.sqrt(differences(planes, 0).square().sum(1))
            return torch.stack((plane, depth), dim=1)

        lengths = with_neighbours(problem, estimate, 1, slopes)
        radius = self.weight * float(problem.fields.mean(lengths.real.contiguous(), illuminated, estimate))
        depth = self.depth_weight * float(problem.fields.mean(lengths.imag.contiguous(), illuminated, estimate))
        return with_neighbours(
            problem, estimate, ITERATIONS + 1, lambda planes, _: least_variation(planes, radius, depth)
        )


def differences(planes: Tensor, axis: int) -> Tensor:
    """Return forward differences along an axis, 0 at its end, of the same shape."""
    out = torch.zeros_like(planes)
    n = planes.shape[axis] - 1
    out.narrow(axis, 0, n).copy_(planes.narrow(axis, 1, n) - planes.narrow(axis, 0, n))
    return out


def differences_adjoint(slopes: Tensor, axis: int) -> Tensor:
    """Return the adjoint of `differences`."""
    out = torch.zeros_like(slopes)
    n = slopes.shape[axis] - 1
    out.narrow(axis, 0, n).sub_(slopes.narrow(axis, 0, n))
    out.narrow(axis, 1, n).add_(slopes.narrow(axis, 0, n))
    return out


def least_variation(planes: Tensor, radius: float, depth: float) -> Tensor:
    """Return the minimiser X of the module's cost.

    Args:
        planes: O, (L, 2, H, W) real.
        radius: lambda.
        depth: lambda_z.

    Returns:
        X, (L, 2, H, W) real.
    """
    down, right, along = (torch.zeros_like(planes) for _ in range(3))
    tiny = torch.finfo(planes.dtype).tiny
    change = torch.zeros_like(planes)
    for _ in range(ITERATIONS):
        x = planes - change
        down, right = down + differences(x, -2) / 12, right + differences(x, -1) / 12
        length = torch.sqrt((down.square() + right.square()).sum(1, keepdim=True))
        share = (radius / (length + tiny)).clamp(max=1)
        down, right = down * share, right * share
        change = differences_adjoint(down, -2) + differences_adjoint(right, -1)
        if depth:
            along = along + differences(x, 0) / 12
            length = torch.sqrt(along.square().sum(1, keepdim=True))
            along = along * (depth / (length + tiny)).clamp(max=1)
            change = change + differences_adjoint(along, 0)
    return planes - change
