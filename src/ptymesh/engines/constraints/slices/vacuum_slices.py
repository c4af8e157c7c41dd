"""Slices before and behind the specimen that are vacuum."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator
from torch import Tensor

from ptymesh.engines.constraints.base import CONSTRAINTS, OfValues, Prior
from ptymesh.engines.constraints.neighbours import check_several_slices
from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.problem import Problem


@CONSTRAINTS.register("vacuum_slices")
class VacuumSlices(Prior):
    """Slices at the surfaces are drawn to 1, which neither absorbs nor shifts the phase.

    Attributes:
        first: number of slices that the beam meets first.
        last: number of slices that it meets last.
    """

    after: ClassVar[str | None] = "phase"
    of_potential: ClassVar[OfValues] = "values"
    between_slices: ClassVar[bool] = True

    first: int = Field(1, ge=0)
    last: int = Field(1, ge=0)

    @model_validator(mode="after")
    def _some_slices(self) -> VacuumSlices:
        if not self.first and not self.last:
            raise ValueError("first and last are both 0; give at least one, or leave vacuum_slices out")
        return self

    def check(self, problem: Problem) -> None:
        """Refuse a single slice. Raises BadInput."""
        check_several_slices("vacuum_slices", problem)

    def goal(self, problem: Problem, estimate: Estimate) -> Tensor:
        """Return the object with vacuum at its surfaces.

        Args:
            problem: not used.
            estimate: the unknowns.

        Raises:
            BadInput: no slice would be left.
        """
        goal, slices = estimate.object.clone(), len(estimate.object)
        if self.first + self.last >= slices:
            raise BadInput(
                f"constraints.vacuum_slices leaves none of {slices} slices to the specimen; lower first ({self.first}) "
                f"or last ({self.last})."
            )
        goal[: self.first] = estimate.vacuum
        goal[slices - self.last :] = estimate.vacuum
        return goal
