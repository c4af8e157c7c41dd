"""Blur of the object in real space."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ptymesh.engines.constraints.base import Constraint, OfValues
from ptymesh.engines.waves import EngineMemory
from ptymesh.estimate import Estimate
from ptymesh.problem import Problem


class Smooth(Constraint):
    """Object blended with its Gaussian-filtered self: O + weight (G O - O), standard deviation sigma_px.

    Attributes:
        sigma_px: standard deviation, in object pixels.
        weight: of the filtered object.
    """

    of_potential: ClassVar[OfValues] = "values"

    sigma_px: float = Field(1.0, gt=0, le=16)
    weight: float = Field(0.1, gt=0, le=1)

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Smooth the object, with pixels of other ranks around this one's part. Collective.

        Args:
            problem: the problem that is solved.
            estimate: the unknowns.
            engine: not used.
        """
        padded, place = problem.layout.with_margin(estimate.object, estimate, _reach(self))
        top, left = (c - w for c, w in zip(estimate.corner, place.corner, strict=True))
        height, width = estimate.object.shape[-2:]
        estimate.object.copy_(smoothed(padded, self)[:, top : top + height, left : left + width])


def _reach(smooth: Smooth) -> int:
    """Return by how many pixels the filter reaches to each side."""
    return max(1, math.ceil(4 * smooth.sigma_px))


def smoothed(obj: Tensor, smooth: Smooth) -> Tensor:
    """Return O + weight (G O - O), G a Gaussian of finite length (four standard deviations), edges repeated."""
    reach = _reach(smooth)
    r = torch.arange(-reach, reach + 1, dtype=obj.real.dtype, device=obj.device)
    kernel = torch.exp(-0.5 * (r / smooth.sigma_px) ** 2)
    kernel = kernel / kernel.sum()
    planes = torch.view_as_real(obj).permute(0, 3, 1, 2).reshape(-1, 1, *obj.shape[-2:])
    padded = torch.nn.functional.pad(planes, (reach,) * 4, mode="replicate")
    with torch.backends.cudnn.flags(allow_tf32=False, deterministic=True):  # TF32 would round to ten bits
        rows = torch.nn.functional.conv2d(padded, kernel.view(1, 1, -1, 1))
        blurred_rows = torch.nn.functional.conv2d(rows, kernel.view(1, 1, 1, -1))
    parts = blurred_rows.view(len(obj), 2, *obj.shape[-2:]).permute(0, 2, 3, 1).contiguous()
    return obj + smooth.weight * (torch.view_as_complex(parts) - obj)
