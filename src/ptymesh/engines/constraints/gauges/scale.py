"""Gauges of the scale between object and probe."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import Field

from ptymesh.engines.constraints.base import Constraint, OfValues, RisingStrength
from ptymesh.engines.constraints.illumination import illuminated_mask
from ptymesh.engines.waves import EngineMemory
from ptymesh.estimate import Estimate
from ptymesh.physics.rounding import total_of
from ptymesh.problem import Problem


class Scale(Constraint):
    """Gauge with mean amplitude 1 of the object where it is illuminated; the probe takes the inverse."""

    of_potential: ClassVar[OfValues] = "amplitudes"

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Set the mean amplitude over illuminated pixels to 1. Collective.

        Args:
            problem: the problem that is solved.
            estimate: the unknowns.
            engine: not used.
        """
        mean = problem.fields.mean(estimate.object.abs(), illuminated_mask(problem, estimate), estimate)
        rescale(estimate, float(mean) ** -estimate.slices)


class Power(RisingStrength, Constraint):
    """Gauge that holds sum |P|^2 at `counts` (default: its value when first applied); the object takes the inverse.

    A share of the way is one of the logarithm.
    """

    for_own_probes: ClassVar[bool] = False
    of_potential: ClassVar[OfValues] = "amplitudes"

    counts: float | None = Field(None, gt=0)

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Set the probe's power.

        Args:
            problem: not used.
            estimate: the unknowns.
            engine: memory that holds the power from when this was first applied.
        """
        current = total_of(torch.view_as_real(estimate.probe).square())
        if self.counts is None:
            engine.state.setdefault("probe_power", current.clone())
        target = float(engine.state["probe_power"]) if self.counts is None else self.counts
        rescale(estimate, math.sqrt(float(current) / target) ** self.strength)


def rescale(estimate: Estimate, factor: float) -> None:
    """Multiply the product of the slices by `factor`, shared evenly between them; divide the probe by it."""
    estimate.object *= factor ** (1 / estimate.slices)
    estimate.probe /= factor
