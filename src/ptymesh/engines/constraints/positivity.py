"""Phases that are not negative, above a baseline: the projected potential of a specimen in vacuum."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ptymesh.engines.constraints.base import CONSTRAINTS, OfValues, Prior
from ptymesh.engines.constraints.illumination import illuminated_mask
from ptymesh.estimate import Estimate
from ptymesh.physics.elementwise import phase as phase_of
from ptymesh.problem import Problem

#: Steps of the phase from -pi to pi in which its quantiles are counted.
STEPS = 4096


@CONSTRAINTS.register("positivity")
class Positivity(Prior):
    """Each slice's phase has its baseline at 0, and nothing below it.

    The phase of a whole slice is free: the data do not change with it.

    Attributes:
        baseline: fraction of a slice's illuminated pixels whose phases lie below the one that becomes 0; None leaves
            the phase where it is.
    """

    after: ClassVar[str | None] = "phase"
    of_potential: ClassVar[OfValues] = "values"

    baseline: float | None = Field(0.05, ge=0, lt=1)

    def goal(self, problem: Problem, estimate: Estimate) -> Tensor:
        """Return the object with phases between 0 and pi. Collective.

        Args:
            problem: the problem that is solved.
            estimate: the unknowns.
        """
        obj = estimate.object
        if estimate.object_values is not None:
            return torch.complex(self._potential(problem, estimate, obj.real), obj.imag)
        phase = phase_of(obj)
        if self.baseline is not None:
            zero = quantiles(problem, estimate, phase, self.baseline)
            phase = phase - zero[:, None, None].to(phase.dtype)
            phase = torch.where(phase > math.pi, phase - 2 * math.pi, phase)
        return torch.polar(obj.abs(), phase.clamp(min=0))

    def _potential(self, problem: Problem, estimate: Estimate, values: Tensor) -> Tensor:
        """Return a potential (L, H, W) of nothing below its baseline; it has no upper limit. Collective."""
        if self.baseline is not None:
            owned = problem.layout.owned(estimate)
            reach = float(problem.fields.max(torch.where(owned, values.abs(), 0.0))) or 1.0
            turned = values * (math.pi / reach)  # into the range in which quantiles are counted
            zero = quantiles(problem, estimate, turned, self.baseline) * (reach / math.pi)
            values = values - zero[:, None, None].to(values.dtype)
        return values.clamp(min=0)


def quantiles(problem: Problem, estimate: Estimate, phase: Tensor, fraction: float) -> Tensor:
    """Return the phase (L,) float64 of each slice below which a fraction of its illuminated pixels lie. Collective.

    Args:
        problem: the problem that is solved.
        estimate: the unknowns.
        phase: (L, H, W) in rad, from -pi to pi.
        fraction: from 0 to 1.
    """
    counting = (illuminated_mask(problem, estimate) & problem.layout.owned(estimate)).expand(phase.shape[1:])
    step = ((phase.to(torch.float64) + math.pi) * (STEPS / (2 * math.pi))).long().clamp(0, STEPS - 1)
    counts = torch.stack([torch.bincount(one[counting], minlength=STEPS) for one in step])
    totals = problem.layout.sum_owned(counts.to(torch.float64).flatten()).view(counts.shape).cumsum(1)
    first = (totals <= fraction * totals[:, -1:]).sum(1).clamp(max=STEPS - 1)
    return first.to(torch.float64) * (2 * math.pi / STEPS) - math.pi
