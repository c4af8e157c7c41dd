"""Limits of the amplitude and of the phase of the object."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import model_validator
from torch import Tensor

from ptymesh.engines.constraints.base import Constraint, OfValues, RisingStrength
from ptymesh.engines.waves import EngineMemory
from ptymesh.estimate import Estimate
from ptymesh.physics.elementwise import phase as phase_of
from ptymesh.problem import Problem


class Limits(RisingStrength, Constraint):
    """Values below `low` and above `high` are brought back to the limit, or a share of the way."""

    low: float | None = None
    high: float | None = None

    @model_validator(mode="after")
    def _ordered_limits(self) -> Limits:
        if self.low is None and self.high is None:
            raise ValueError("give low, high or both")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")
        return self


class Amplitude(Limits):
    """Limits of |O|."""

    of_potential: ClassVar[OfValues] = "amplitudes"

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Limit the object's amplitude.

        Args:
            problem: not used.
            estimate: the unknowns.
            engine: not used.
        """
        limit_amplitude(estimate.object, self)


class Phase(Limits):
    """Limits of arg O, in rad."""

    of_potential: ClassVar[OfValues] = "values"

    @model_validator(mode="after")
    def _refuse_degrees(self) -> Phase:
        for name, limit in (("low", self.low), ("high", self.high)):
            if limit is not None and abs(limit) > 2 * math.pi:
                raise ValueError(
                    f"{name} is {limit:g} rad, more than a whole turn; give radians ({limit:g} degrees are "
                    f"{math.radians(limit):.4g})"
                )
        return self

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Limit the object's phase.

        Args:
            problem: not used.
            estimate: the unknowns.
            engine: not used.
        """
        if estimate.object_values is None:
            limit_phase(estimate.object, self)
        else:  # here `estimate.object` holds the values (see `of_potential`), whose real part is the phase
            phase = estimate.object.real
            bounded = self.blend(phase, phase.clamp(self.low, self.high))
            estimate.object.copy_(torch.complex(bounded, estimate.object.imag))


def limit_amplitude(obj: Tensor, limits: Limits) -> None:
    """Bring |O| into the limits in place, with its phase; a zero has no phase and becomes real."""
    amplitude = obj.abs()
    bounded = limits.blend(amplitude, amplitude.clamp(limits.low, limits.high))
    unit = torch.where(amplitude > 0, obj / amplitude.clamp(min=torch.finfo(amplitude.dtype).tiny), 1)
    obj.copy_(torch.where(bounded == amplitude, obj, bounded * unit))


def limit_phase(obj: Tensor, limits: Limits) -> None:
    """Bring arg O (rad, in -pi to pi) into the limits in place, with its amplitude."""
    phase = phase_of(obj)
    bounded = limits.blend(phase, phase.clamp(limits.low, limits.high))
    obj.copy_(torch.where(bounded == phase, obj, torch.polar(obj.abs(), bounded)))
