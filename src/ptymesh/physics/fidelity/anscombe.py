"""Anscombe's amplitudes: l = (sqrt(I + c) - sqrt(y + c))^2, c = 3/8, whose noise is even down to about one count.

2 sqrt(y + 3/8) of Poisson's counts has a variance close to 1 (Anscombe, Biometrika 35, 246, 1948). The loss is a
quarter of its squared difference, so that it equals that of amplitudes at many counts, and is that of amplitudes with c
more in counts and background.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ptymesh.physics.fidelity.amplitude import AmplitudeFidelity
from ptymesh.physics.fidelity.data import Data

#: c, counts added under the roots.
OFFSET = 3 / 8


class Anscombe(AmplitudeFidelity):
    """l = (sqrt(I + c) - sqrt(y + c))^2; its step is that of amplitudes with c added to counts and background."""

    name: ClassVar[str] = "anscombe"
    needs_counts: ClassVar[bool] = True

    def loss(self, I: Tensor, y: Tensor) -> Tensor:
        """Return (sqrt(I + c) - sqrt(y + c))^2."""
        return super().loss(I + OFFSET, y + OFFSET)

    def slope(self, I: Tensor, y: Tensor) -> Tensor:
        """Return 1 - sqrt((y + c) / (I + c))."""
        return super().slope(I + OFFSET, y + OFFSET)

    def curvature(self, I: Tensor, y: Tensor) -> Tensor:
        """Return sqrt(y + c) / 2 (I + c)^(3/2)."""
        return super().curvature(I + OFFSET, y + OFFSET)

    def norm(self, I: Tensor) -> Tensor:
        """Return 1 / 2 (I + c)."""
        return super().norm(I + OFFSET)

    def largest_slope(self, spread: float, brightest: float) -> float:
        """Return 1 + sqrt((brightest + c) / c), which no slope exceeds.

        Args:
            spread: not used, as c is the least intensity that is divided by.
            brightest: largest count of a pixel.
        """
        return 1 + ((brightest + OFFSET) / OFFSET) ** 0.5

    def revision(self, S: Tensor, data: Data) -> Tensor:
        """Return sqrt((y + c) / (I + c)), which never raises the loss, as for amplitudes on a background.

        Args:
            S: (B, h, w) real, coherent signal.
            data: counts and background of pixels with light.
        """
        return torch.sqrt((data.y + OFFSET) / (data.intensity(S) + OFFSET))
