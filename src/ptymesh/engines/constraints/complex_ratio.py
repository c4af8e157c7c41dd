"""A fixed ratio between absorption and phase, as one material has (delta and beta) or inelastic scattering gives."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ptymesh.engines.constraints.base import CONSTRAINTS, OfValues, Prior
from ptymesh.engines.constraints.illumination import illuminated_mask
from ptymesh.estimate import Estimate
from ptymesh.physics.elementwise import phase as phase_of
from ptymesh.physics.object_models import object_model_of
from ptymesh.problem import Problem

#: Least amplitude of which a logarithm is taken.
DARKEST = 1e-6


@CONSTRAINTS.register("complex_ratio")
class ComplexRatio(Prior):
    """The logarithm of the amplitude is drawn to -ratio times the phase, which stays.

    Attributes:
        ratio: -log|O| / arg O; None for sum |log|O|| / sum |arg O| over illuminated pixels (Clark et al., Opt. Express
            18, 1981, 2010).
    """

    after: ClassVar[str | None] = "phase"
    of_potential: ClassVar[OfValues] = "amplitudes"

    ratio: float | None = Field(None, ge=-10, le=10)

    def goal(self, problem: Problem, estimate: Estimate) -> Tensor:
        """Return the object whose amplitude follows from its phase. Collective.

        Args:
            problem: the problem that is solved.
            estimate: the unknowns.
        """
        phase, ratio = object_phase(estimate), self.ratio
        if ratio is None:
            illuminated = illuminated_mask(problem, estimate)
            absorbed = torch.log(estimate.object.abs().clamp(min=DARKEST)).abs()
            shifted = float(problem.fields.mean(phase.abs(), illuminated, estimate))
            ratio = float(problem.fields.mean(absorbed, illuminated, estimate)) / shifted if shifted else 0.0
        return torch.polar(torch.exp(-ratio * phase), phase)


def object_phase(estimate: Estimate) -> Tensor:
    """Return the object's phase in rad, (L, H, W) real; beyond half a turn where it follows from values."""
    values = estimate.object_values
    if values is None or not object_model_of(estimate.object_kind).is_phase:
        return phase_of(estimate.object)
    return values.real
