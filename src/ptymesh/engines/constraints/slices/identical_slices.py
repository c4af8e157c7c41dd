"""Slices that are all the same, as of a crystal along a zone axis."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from ptymesh.engines.constraints.base import CONSTRAINTS, OfValues, Prior
from ptymesh.engines.constraints.neighbours import check_several_slices
from ptymesh.engines.constraints.slices.depth_smoothness import mixed_slices
from ptymesh.estimate import Estimate
from ptymesh.problem import Problem


@CONSTRAINTS.register("identical_slices")
class IdenticalSlices(Prior):
    """Each slice is drawn to the mean of all."""

    after: ClassVar[str | None] = "phase"
    of_potential: ClassVar[OfValues] = "values"
    between_slices: ClassVar[bool] = True

    def check(self, problem: Problem) -> None:
        """Refuse a single slice. Raises BadInput."""
        check_several_slices("identical_slices", problem)

    def goal(self, problem: Problem, estimate: Estimate) -> Tensor:
        """Return the mean of the slices, as often as there are slices.

        Args:
            problem: not used.
            estimate: the unknowns.
        """
        slices = len(estimate.object)
        return mixed_slices(estimate.object, [[1 / slices] * slices] * slices)
