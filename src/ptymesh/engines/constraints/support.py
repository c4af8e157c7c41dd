"""Discs outside of which the probe, or its Fourier transform, is zero."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ptymesh.engines.constraints.base import Constraint, OfValues, RisingStrength
from ptymesh.engines.waves import EngineMemory
from ptymesh.estimate import Estimate
from ptymesh.physics.propagate import fft, ifft
from ptymesh.problem import Problem


class Support(RisingStrength, Constraint):
    """Disc outside of which the probe is zero, in real space or in Fourier space, as a fraction of the half window.

    Attributes:
        radius: of the disc.
        edge: width of the smooth (cosine) edge, as a fraction of the half window.
    """

    of_moving_probe: ClassVar[bool] = True
    of_potential: ClassVar[OfValues] = "alone"

    radius: float = Field(0.9, gt=0, le=1.5)
    edge: float = Field(0.05, ge=0, le=1)

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Multiply the probe by the disc.

        Args:
            problem: not used.
            estimate: the unknowns.
            engine: not used.
        """
        inside = disc(estimate.window, self, estimate.probe, centred=True)
        estimate.probe *= self.blend(torch.ones_like(inside), inside)


class FourierSupport(Support):
    """Disc in Fourier space outside of which the probe's transform is zero: the aperture."""

    def apply(self, problem: Problem, estimate: Estimate, engine: EngineMemory) -> None:
        """Multiply the probe's Fourier transform by the disc.

        Args:
            problem: not used.
            estimate: the unknowns.
            engine: not used.
        """
        aperture = disc(estimate.window, self, estimate.probe, centred=False)
        estimate.probe.copy_(ifft(fft(estimate.probe) * self.blend(torch.ones_like(aperture), aperture)))


def disc(window: tuple[int, int], support: Support, like: Tensor, *, centred: bool) -> Tensor:
    """Return the disc (h, w) of a support, with a cosine edge.

    Args:
        window: (h, w).
        support: radius and edge, as fractions of the half window.
        like: tensor that gives precision and device.
        centred: True for a disc about (h//2, w//2), False for FFT order.
    """
    axes = []
    for n in window:
        r = torch.fft.fftfreq(n, 1 / 2, dtype=torch.float64, device=like.device)  # -1 to 1 over the window
        axes.append(torch.fft.fftshift(r) if centred else r)
    distance = torch.sqrt(axes[0][:, None] ** 2 + axes[1][None, :] ** 2)
    if not support.edge:
        return (distance <= support.radius).to(like.real.dtype)
    inside = ((support.radius + support.edge / 2 - distance) / support.edge).clamp(0, 1)
    return (0.5 - 0.5 * torch.cos(math.pi * inside)).to(like.real.dtype)
