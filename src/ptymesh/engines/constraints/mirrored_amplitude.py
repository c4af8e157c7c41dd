"""An amplitude that mirrors the phase: the stronger the projected potential, the more a pixel absorbs.

    |O| -> exp(-scale max(phi, 0)^power),  phi = arg O

Absorption by thermal scattering goes with the square of the potential, and by atoms in a line with higher powers.

Source: PtyRAD's `mirrored_amp`, which takes 1 - scale max(phi, 0)^power, the first terms of this.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ptymesh.engines.constraints.base import CONSTRAINTS, OfValues, Prior
from ptymesh.engines.constraints.complex_ratio import object_phase
from ptymesh.estimate import Estimate
from ptymesh.physics.elementwise import raised
from ptymesh.problem import Problem


@CONSTRAINTS.register("mirrored_amplitude")
class MirroredAmplitude(Prior):
    """The amplitude is drawn to exp(-scale max(phase, 0)^power), the phase stays.

    Attributes:
        scale: -log|O| where the phase is 1 rad.
        power: of the phase.
    """

    after: ClassVar[str | None] = "phase"
    of_potential: ClassVar[OfValues] = "amplitudes"

    scale: float = Field(0.03, gt=0, le=10)
    power: float = Field(4.0, gt=0, le=8)

    def goal(self, problem: Problem, estimate: Estimate) -> Tensor:
        """Return the object whose amplitude follows from its phase.

        Args:
            problem: not used.
            estimate: the unknowns.
        """
        phase = object_phase(estimate)
        absorbed = self.scale * raised(phase.clamp(min=0), self.power)
        return torch.polar(torch.exp(-absorbed), phase)
