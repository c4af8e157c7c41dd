"""Amplitudes: l = (sqrt I - sqrt y)^2, least squares of what has the same noise at any number of counts."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ptymesh.physics.fidelity.base import Fidelity, LinearResponse
from ptymesh.physics.fidelity.data import DARK, Data


class AmplitudeFidelity(Fidelity):
    """l = (sqrt I - sqrt y)^2; its step is the modulus projection, or with a background one of the same slope."""

    name: ClassVar[str] = "amplitude"

    def loss(self, I: Tensor, y: Tensor) -> Tensor:
        """Return (sqrt I - sqrt y)^2."""
        return (I.sqrt() - y.sqrt()) ** 2

    def slope(self, I: Tensor, y: Tensor) -> Tensor:
        """Return 1 - sqrt(y / I)."""
        return 1 - torch.sqrt(y / I.clamp(min=DARK))

    def curvature(self, I: Tensor, y: Tensor) -> Tensor:
        """Return sqrt y / 2 I^(3/2)."""
        return 0.5 * y.sqrt() / (I * I.sqrt())

    def norm(self, I: Tensor) -> Tensor:
        """Return 1 / 2I."""
        return 0.5 / I

    def largest_slope(self, spread: float, brightest: float) -> float:
        """Return 1 + sqrt(spread), as no pixel has more counts than a view.

        Args:
            spread: by how much a pixel may have more counts than the least intensity that is divided by.
            brightest: largest count of a pixel.
        """
        return 1 + spread**0.5

    def revision(self, S: Tensor, data: Data) -> Tensor:
        """Return sqrt(y / I), the modulus projection where there is no background.

        It never raises the loss, as -sum sqrt(y (S + b)) is convex in the shares that S and b have in a pixel's counts
        (the majorisation of expectation maximisation). sqrt(max(y - b, 0) / S), which fits each pixel at once, darkens
        all that by chance have fewer counts than the background, and biases what stays.

        Args:
            S: (B, h, w) real, coherent signal.
            data: counts and background of pixels with light.
        """
        return torch.sqrt(data.y / data.intensity(S).clamp(min=DARK))

    def revision_through(self, response: LinearResponse, S: Tensor, data: Data) -> Tensor:
        """Return R^T r / R^T 1 with the factors r of the signals behind the pieces, which never raises the loss.

        Args:
            response: the pieces.
            S: (B, h, w) real, signal before them.
            data: counts and background of pixels with light.
        """
        ratio = self.revision(response.signal(S), data)
        ratio = torch.where(data.good, ratio, ratio.new_ones(()))
        return 1 + response.shared_change(ratio - 1)
