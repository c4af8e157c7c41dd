"""Intensities: l = (I - y)^2, Gaussian noise that is the same at any number of counts."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ptymesh.physics.fidelity.base import Fidelity, LinearResponse
from ptymesh.physics.fidelity.data import DARK, Data, of_view


class Intensity(Fidelity):
    """l = (I - y)^2; its step is Newton's along the slope."""

    name: ClassVar[str] = "intensity"
    in_squares: ClassVar[bool] = True

    def loss(self, I: Tensor, y: Tensor) -> Tensor:
        """Return (I - y)^2."""
        return (I - y) ** 2

    def slope(self, I: Tensor, y: Tensor) -> Tensor:
        """Return 2 (I - y)."""
        return 2 * (I - y)

    def curvature(self, I: Tensor, y: Tensor) -> Tensor:
        """Return 2."""
        return torch.full_like(I, 2.0)

    def revision(self, S: Tensor, data: Data) -> Tensor:
        """Return 1 - alpha eta, eta = 2 (I - y), with alpha the Newton step of the view's loss at 0.

        Args:
            S: (B, h, w) real, coherent signal.
            data: counts and background of pixels with light.
        """
        difference = torch.where(data.good, data.intensity(S) - data.y, S.new_zeros(()))
        eta = 2 * difference
        first = of_view(2 * S * eta**2)
        second = of_view(8 * S**2 * eta**2 + 4 * S * eta**2 * difference)
        alpha = torch.where(second > 0, first / second.clamp(min=DARK), first.new_zeros(()))
        return 1 - alpha * eta

    def revision_through(self, response: LinearResponse, S: Tensor, data: Data) -> Tensor:
        """Return 1 - alpha R^T 2 (I - y), with alpha the Newton step of the view's loss along it.

        Args:
            response: the pieces.
            S: (B, h, w) real, signal before them.
            data: counts and background of pixels with light.
        """
        difference = torch.where(data.good, data.intensity(response.signal(S)) - data.y, 0.0)
        eta = response.adjoint(2 * difference)
        change, bend = response.apply(S * eta), response.apply(S * eta**2)
        first = of_view(2 * S * eta**2)
        second = of_view(torch.where(data.good, 8 * change**2 + 4 * difference * bend, 0.0))
        alpha = torch.where(second > 0, first / second.clamp(min=DARK), first.new_zeros(()))
        return 1 - alpha * eta
