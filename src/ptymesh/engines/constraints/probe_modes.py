"""Incoherent modes beside each other: all have one middle, or the first has most light.

P_m      modes (M, h, w), the strongest first;  c_m  centre of mass of |P_m|^2;  p_m  power, sum |P_m|^2
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from ptymesh.engines.constraints.base import CONSTRAINTS, OfValues, Prior
from ptymesh.engines.constraints.gauges.centring import offset_to_middle
from ptymesh.estimate import Estimate
from ptymesh.physics.elementwise import over_window
from ptymesh.physics.model import power
from ptymesh.physics.window_shifts import shift
from ptymesh.problem import Problem


@CONSTRAINTS.register("mode_centring")
class ModeCentring(Prior):
    """Every mode is shifted so that its centre of mass is that of the first one: P_m <- T_(c_0 - c_m) P_m.

    The shift of all modes together, which object and positions can undo, is `probe.centre`.
    """

    of: ClassVar[Literal["object", "probe"]] = "probe"
    after: ClassVar[str | None] = "orthogonalise"
    of_moving_probe: ClassVar[bool] = True
    of_potential: ClassVar[OfValues] = "alone"

    def goal(self, problem: Problem, estimate: Estimate) -> Tensor:
        """Return the modes with a common centre of mass.

        Args:
            problem: not used.
            estimate: the unknowns.
        """
        probe = estimate.probe
        away = [offset_to_middle(mode[None]) for mode in probe]
        moved = [
            shift(mode[None], (d - away[0])[None].to(probe.real.dtype))[0] for mode, d in zip(probe, away, strict=True)
        ]
        return torch.cat((probe[:1], *moved[1:]))


@CONSTRAINTS.register("primary_mode")
class PrimaryMode(Prior):
    """The first mode has at least a share of the probe's power, which stays as it is.

    Where it has less, it is scaled up, and all others down by a factor in common.

    Attributes:
        share: of the power, that the first mode has at least.
    """

    of: ClassVar[Literal["object", "probe"]] = "probe"
    after: ClassVar[str | None] = "orthogonalise"
    of_moving_probe: ClassVar[bool] = True
    of_potential: ClassVar[OfValues] = "alone"

    share: float = Field(0.5, gt=0, lt=1)

    def goal(self, problem: Problem, estimate: Estimate) -> Tensor:
        """Return the modes of which the first has its share.

        Args:
            problem: not used.
            estimate: the unknowns.
        """
        powers = over_window(power(estimate.probe[:, None]))
        first, other_power = float(powers[0]), float(powers[1:].sum())
        total = first + other_power
        if first >= self.share * total or first == 0:
            return estimate.probe.clone()
        factors = powers.new_full((len(powers), 1, 1), ((1 - self.share) * total / other_power) ** 0.5)
        factors[0] = (self.share * total / first) ** 0.5
        return estimate.probe * factors.to(estimate.probe.real.dtype)
