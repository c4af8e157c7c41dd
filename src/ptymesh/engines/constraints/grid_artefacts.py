"""Removal of the scan's own grid from the object: a periodic pattern of known period and direction.

With k the pattern's frequency and G a Gaussian several periods wide, O loses for each harmonic n

    e^{i n k r} G [e^{-i n k r} O] + e^{-i n k r} G [e^{i n k r} O]
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ptymesh.engines.constraints.base import CONSTRAINTS, OfValues, Prior
from ptymesh.engines.constraints.neighbours import blurred, gaussian_reach, with_neighbours
from ptymesh.estimate import Estimate
from ptymesh.problem import Problem


@CONSTRAINTS.register("grid_artefacts")
class GridArtefacts(Prior):
    """A narrow band of frequencies around those of a grid is removed from the object.

    Attributes:
        period_px: of the grid, in object pixels, such as the scan's step.
        direction_deg: in which it repeats, from x (0) towards y (90).
        periods: standard deviation of the filter in periods; more make the band narrower.
        harmonics: number of multiples of the frequency that are removed, as far as pixels resolve them.
    """

    after: ClassVar[str | None] = "smooth"
    of_potential: ClassVar[OfValues] = "values"

    period_px: float = Field(gt=2, le=64)
    direction_deg: float = Field(0.0, ge=-360, le=360)
    periods: float = Field(1.5, ge=1, le=8)
    harmonics: int = Field(1, ge=1, le=8)

    def goal(self, problem: Problem, estimate: Estimate) -> Tensor:
        """Return the object without the grid. Collective.

        Args:
            problem: the problem that is solved.
            estimate: the unknowns.
        """
        sigma = self.periods * self.period_px

        def without(planes: Tensor, corner: tuple[int, int]) -> Tensor:
            out = planes
            for harmonic in range(1, self.harmonics + 1):
                if harmonic < self.period_px / 2:
                    out = out - self._band(planes, corner, harmonic, sigma)
            return out

        return with_neighbours(problem, estimate, gaussian_reach(sigma), without)

    def _band(self, planes: Tensor, corner: tuple[int, int], harmonic: int, sigma: float) -> Tensor:
        """Return the part of planes (L, 2, H, W) around a multiple of the frequency, in its both directions."""
        k, angle = 2 * math.pi * harmonic / self.period_px, math.radians(self.direction_deg)
        y, x = (
            torch.arange(n, dtype=torch.float64, device=planes.device) + first
            for n, first in zip(planes.shape[-2:], corner, strict=True)
        )
        phase = k * math.sin(angle) * y[:, None] + k * math.cos(angle) * x[None, :]
        wave = torch.view_as_real(torch.polar(torch.ones_like(phase), phase)).to(planes.dtype)
        cosine, sine = wave[..., 0].contiguous(), wave[..., 1].contiguous()
        even, odd = blurred(planes * cosine, sigma), blurred(planes * sine, sigma)
        return 2 * (even * cosine + odd * sine)
