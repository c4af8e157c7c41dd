"""Limits and smoothness of any unknown besides object and probe: positions, the background, unknowns of the optics.

x          an unknown; of positions, their displacements from those of the file, in pixels
G          a Gaussian over neighbours: of an unknown with a row per view, over views in the order in which they were
           taken, or over those around each, each scan by itself; of one with a value per detector pixel or object
           pixel, over these

    unknown_limits      x <- x + strength (min(max(x, low), high) - x)
    unknown_smoothness  x <- x + strength (G x - x)

Views that were held out and masked pixels have no values of their own: they count for no neighbour, and follow theirs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from ptymesh.engines.constraints.base import CONSTRAINTS, Constraint, OfValues, RisingStrength
from ptymesh.engines.constraints.neighbours import blurred, gaussian_reach, smoothed_over_views
from ptymesh.engines.waves import EngineMemory
from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.problem import Problem
from ptymesh.unknowns import DECLARED, Unknown

Bound = Annotated[float, Field(allow_inf_nan=False)]


@CONSTRAINTS.register("unknown_limits")
class UnknownLimits(RisingStrength, Constraint):
    """Values of unknowns below or above their limits are brought back to these, or a share of the way.

    Attributes:
        limits: lowest and highest value of each unknown, by name and in its unit, or none; of `positions` displacements
            from those of the file, in pixels.
    """

    after: ClassVar[str | None] = "phase"
    of_potential: ClassVar[OfValues] = "alone"

    limits: dict[str, tuple[Bound | None, Bound | None]] = Field(min_length=1)

    @field_validator("limits")
    @classmethod
    def _lowest_first(
        cls, limits: dict[str, tuple[float | None, float | None]]
    ) -> dict[str, tuple[float | None, float | None]]:
        for name, (low, high) in limits.items():
            if low is None and high is None:
                raise ValueError(f"{name} has no limit; give the lowest value, the highest one, or both")
            if low is not None and high is not None and low > high:
                raise ValueError(f"the lowest value of {name} ({low:g}) is above the highest one ({high:g})")
        return limits

    @property
    def named_unknowns(self) -> list[str]:
        """Names of the unknowns that have limits."""
        return [*self.limits]

    def check(self, problem: Problem) -> None:
        """Refuse unknowns that the problem does not have, or that are complex. Raises BadInput."""
        for one in _unknowns_of(problem, "unknown_limits", self.limits):
            if one.complex:
                raise BadInput(f"constraints.unknown_limits is of real unknowns, and {one.name} is complex; remove it.")

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Bring the unknowns into their limits.

        Args:
            problem: the problem that is solved.
            estimate: the unknowns.
            engine: not used.
        """
        for name, (low, high) in self.limits.items():
            values = _values_of(estimate, name)
            _set_values(estimate, name, self.blend(values, values.clamp(low, high)))


@CONSTRAINTS.register("unknown_smoothness")
class UnknownSmoothness(RisingStrength, Constraint):
    """Values of unknowns become the means over their neighbours, weighted by a Gaussian, or go a share of the way.

    Attributes:
        sigma: standard deviation of the Gaussian for each unknown, by name: views in the order in which they were taken
            (`positions`, and what each view has for itself), detector pixels (`background`) or object pixels.
        over: neighbours of a view: `time` for those before and after, `scan` for those around it, whose distances are
            in steps of the scan.
    """

    after: ClassVar[str | None] = "unknown_limits"
    of_potential: ClassVar[OfValues] = "alone"

    sigma: dict[str, Annotated[float, Field(gt=0, le=1000)]] = Field(min_length=1)
    over: Literal["time", "scan"] = "time"

    @property
    def named_unknowns(self) -> list[str]:
        """Names of the unknowns that are smoothed."""
        return [*self.sigma]

    def check(self, problem: Problem) -> None:
        """Refuse unknowns that the problem does not have, or whose values have no neighbours. Raises BadInput."""
        for one in _unknowns_of(problem, "unknown_smoothness", self.sigma):
            if one.scope == "shared" and one.axes != ("v", "u"):
                raise BadInput(
                    f"constraints.unknown_smoothness is of values that have neighbours, and {one.name} is shared by "
                    "all views and pixels; remove it."
                )

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Smooth the unknowns. Collective.

        Args:
            problem: the problem that is solved.
            estimate: the unknowns.
            engine: not used.
        """
        for one in _unknowns_of(problem, "unknown_smoothness", self.sigma):
            values, sigma = _values_of(estimate, one.name), self.sigma[one.name]
            if one.scope == "view":
                places = estimate.nominal if self.over == "scan" else None
                goal = smoothed_over_views(problem, values, sigma, places)
            elif one.scope == "tiled":
                goal = _smoothed_on_object(problem, estimate, values, sigma)
            else:
                goal = _smoothed_on_detector(problem, values, sigma)
            _set_values(estimate, one.name, self.blend(values, goal))


def _unknowns_of(problem: Problem, constraint: str, names: Iterable[str]) -> list[Unknown]:
    """Return the declarations of unknowns. Raises BadInput where one is none of this problem's that can be moved."""
    by_name = {name: DECLARED[name] for name in ("positions", "background")}
    by_name |= {one.name: one for one in problem.model.unknowns if not one.is_fixed}
    if odd := [name for name in names if name not in by_name]:
        raise BadInput(f"constraints.{constraint} names {odd[0]}; there are {', '.join(by_name)}.")
    return [by_name[name] for name in names]


def _values_of(estimate: Estimate, name: str) -> Tensor:
    return estimate.positions - estimate.nominal if name == "positions" else estimate[name]


def _set_values(estimate: Estimate, name: str, values: Tensor) -> None:
    estimate[name].copy_(estimate.nominal + values if name == "positions" else values)


def _smoothed_on_detector(problem: Problem, values: Tensor, sigma: float) -> Tensor:
    """Return values (..., v, u) as means over good pixels around each one, up to the detector's edges."""
    far, good = problem.geometry.propagation == "far_field", problem.loader.mask.to(values.dtype)
    planes = torch.stack((values * good, good.expand_as(values)))
    total, weight = blurred(torch.fft.fftshift(planes, dim=(-2, -1)) if far else planes, sigma)
    goal = torch.where(weight > 0, total / weight.clamp(min=torch.finfo(weight.dtype).tiny), 0.0)
    return torch.fft.ifftshift(goal, dim=(-2, -1)) if far else goal


def _smoothed_on_object(problem: Problem, estimate: Estimate, values: Tensor, sigma: float) -> Tensor:
    """Return this rank's part (C, H, W) of a field as means over the pixels around each one. Collective."""
    padded, place = problem.layout.with_margin(values, estimate, gaussian_reach(sigma))
    top, left = (c - w for c, w in zip(estimate.corner, place.corner, strict=True))
    parts = torch.view_as_real(padded).movedim(-1, 0) if padded.is_complex() else padded[None]
    height, width = values.shape[-2:]
    goal = blurred(parts, sigma)[..., top : top + height, left : left + width]
    return torch.complex(goal[0], goal[1]) if padded.is_complex() else goal[0]
