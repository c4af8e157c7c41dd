"""Supports of the probe in real space of other shapes than a disc: an ellipse, and one that follows the probe."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from ptymesh.engines.constraints.base import CONSTRAINTS, OfValues, Prior
from ptymesh.engines.constraints.neighbours import blurred
from ptymesh.estimate import Estimate
from ptymesh.problem import Problem


@CONSTRAINTS.register("ellipse_support")
class EllipseSupport(Prior):
    """Ellipse about the middle of the window, outside of which the probe is zero.

    Attributes:
        radii: (first, second), as fractions of half the window.
        angle_deg: of the first radius, from x (0) towards y (90).
    """

    of: ClassVar[Literal["object", "probe"]] = "probe"
    after: ClassVar[str | None] = "support"
    of_moving_probe: ClassVar[bool] = True
    of_potential: ClassVar[OfValues] = "alone"

    radii: tuple[Annotated[float, Field(gt=0, le=1.5)], Annotated[float, Field(gt=0, le=1.5)]] = (0.9, 0.6)
    angle_deg: float = Field(0.0, ge=-360, le=360)

    def goal(self, problem: Problem, estimate: Estimate) -> Tensor:
        """Return the probe inside of the ellipse.

        Args:
            problem: not used.
            estimate: the unknowns.
        """
        probe, (h, w) = estimate.probe, estimate.window
        y, x = (torch.arange(n, dtype=torch.float64, device=probe.device) - n // 2 for n in (h, w))
        y, x = (y / (h / 2))[:, None], (x / (w / 2))[None, :]
        c, s = math.cos(math.radians(self.angle_deg)), math.sin(math.radians(self.angle_deg))
        inside = ((x * c + y * s) / self.radii[0]).square() + ((y * c - x * s) / self.radii[1]).square() <= 1
        return torch.where(inside, probe, torch.zeros_like(probe))


@CONSTRAINTS.register("shrink_wrap")
class ShrinkWrap(Prior):
    """The probe is zero where its blurred intensity is low.

    Source: Marchesini et al., Phys. Rev. B 68, 140101 (2003), where it is the object's support.

    Attributes:
        threshold: least blurred sum |P|^2 inside, as a fraction of the largest.
        sigma_px: standard deviation of the blur, in pixels.
    """

    of: ClassVar[Literal["object", "probe"]] = "probe"
    after: ClassVar[str | None] = "support"
    of_moving_probe: ClassVar[bool] = True
    of_potential: ClassVar[OfValues] = "alone"

    threshold: float = Field(0.01, gt=0, lt=1)
    sigma_px: float = Field(2.0, gt=0, le=32)

    def goal(self, problem: Problem, estimate: Estimate) -> Tensor:
        """Return the probe inside of its support.

        Args:
            problem: not used.
            estimate: the unknowns.
        """
        intensity = torch.view_as_real(estimate.probe).square().sum(-1).sum(0)
        smooth = blurred(intensity, self.sigma_px)
        inside = smooth >= self.threshold * smooth.max()
        return torch.where(inside, estimate.probe, torch.zeros_like(estimate.probe))
