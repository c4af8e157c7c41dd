"""Pixels that the beam does not reach are vacuum."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ptymesh.engines.constraints.base import CONSTRAINTS, OfValues, Prior
from ptymesh.estimate import Estimate
from ptymesh.problem import Problem


@CONSTRAINTS.register("field_of_view")
class FieldOfView(Prior):
    """Outside of the illuminated region the object is drawn to 1.

    Attributes:
        threshold: least illumination of the region, as a fraction of the largest.
    """

    after: ClassVar[str | None] = "phase"
    of_potential: ClassVar[OfValues] = "values"

    threshold: float = Field(0.01, gt=0, lt=1)

    def goal(self, problem: Problem, estimate: Estimate) -> Tensor:
        """Return the object with vacuum around the illuminated region. Collective.

        Args:
            problem: the problem that is solved.
            estimate: the unknowns.
        """
        illumination = problem.evaluator.illumination(estimate)
        inside = illumination > self.threshold * problem.fields.max(illumination)
        return torch.where(inside, estimate.object, torch.full_like(estimate.object, estimate.vacuum))
