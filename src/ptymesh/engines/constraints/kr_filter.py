"""Low-pass filter of the object in the plane with a flat top.

With G a Gaussian, 1 - (1 - G)^4 keeps low frequencies to eighth order, halves those at the cutoff, and has a finite
reach, so that nothing wraps and tiles need a margin alone.
"""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from ptymesh.engines.constraints.base import CONSTRAINTS, OfValues, Prior
from ptymesh.engines.constraints.neighbours import blurred, gaussian_reach, with_neighbours
from ptymesh.estimate import Estimate
from ptymesh.problem import Problem

#: How often the rest is filtered.
PASSES = 4


@CONSTRAINTS.register("kr_filter")
class KrFilter(Prior):
    """Frequencies in the plane beyond a cutoff are removed.

    Attributes:
        cutoff: where half is left, as a fraction of the largest frequency of the pixels.
    """

    after: ClassVar[str | None] = "smooth"
    of_potential: ClassVar[OfValues] = "values"

    cutoff: float = Field(0.5, ge=0.05, le=1)

    @property
    def sigma_px(self) -> float:
        """Standard deviation of the Gaussian, in pixels."""
        return math.sqrt(-math.log(1 - 0.5 ** (1 / PASSES)) / 2) / (math.pi * self.cutoff / 2)

    def goal(self, problem: Problem, estimate: Estimate) -> Tensor:
        """Return the filtered object. Collective.

        Args:
            problem: the problem that is solved.
            estimate: the unknowns.
        """

        def low(planes: Tensor, _: tuple[int, int]) -> Tensor:
            rest = planes
            for _pass in range(PASSES):
                rest = rest - blurred(rest, self.sigma_px)
            return planes - rest

        return with_neighbours(problem, estimate, PASSES * gaussian_reach(self.sigma_px), low)
