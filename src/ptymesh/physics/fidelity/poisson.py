"""Poisson's likelihood: l = I - y log I."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ptymesh.physics.fidelity.base import Fidelity, LinearResponse
from ptymesh.physics.fidelity.data import DARK, Data, of_view

#: y / I is capped here in the step: dim pixels must not decide a view's step (Odstrcil et al. 2018).
BRIGHTEST_RATIO = 10.0
NEWTON_STEPS = 5


class Poisson(Fidelity):
    """l = I - y log I; its step is the best one along the slope, by Newton's method."""

    name: ClassVar[str] = "poisson"
    bend: ClassVar[float] = 2.0
    least_slope: ClassVar[float | None] = 1 - BRIGHTEST_RATIO

    def loss(self, I: Tensor, y: Tensor) -> Tensor:
        """Return I - y log I."""
        return I - y * torch.log(I.clamp(min=DARK))

    def slope(self, I: Tensor, y: Tensor) -> Tensor:
        """Return 1 - y / I."""
        return 1 - y / I.clamp(min=DARK)

    def curvature(self, I: Tensor, y: Tensor) -> Tensor:
        """Return y / I^2."""
        return y / I**2

    def norm(self, I: Tensor) -> Tensor:
        """Return 1 / I."""
        return 1 / I

    def largest_slope(self, spread: float, brightest: float) -> float:
        """Return 1 + spread, as no pixel has more counts than a view.

        Args:
            spread: by how much a pixel may have more counts than the least intensity that is divided by.
            brightest: largest count of a pixel.
        """
        return 1 + spread

    def revision(self, S: Tensor, data: Data) -> Tensor:
        """Return 1 - alpha xi, xi = 1 - y/I, with alpha of each view by Newton's method.

        Args:
            S: (B, h, w) real, coherent signal.
            data: counts and background of pixels with light.

        Source: Odstrcil et al., Opt. Express 26, 3108, 2018.
        """
        ratio = (data.y / data.intensity(S).clamp(min=DARK)).clamp(max=BRIGHTEST_RATIO)
        xi = torch.where(data.good, 1 - ratio, ratio.new_zeros(()))
        alpha = torch.full((len(S), 1, 1), 0.5, dtype=S.dtype, device=S.device)
        for _ in range(NEWTON_STEPS):
            scale = 1 - alpha * xi
            I = data.intensity(S * scale**2).clamp(min=DARK)
            dI, d2I = -2 * S * xi * scale, 2 * S * xi**2
            misfit = 1 - data.y / I
            first = of_view(misfit * dI)
            second = of_view(data.y * (dI / I) ** 2 + misfit * d2I)
            alpha = (alpha - first / second.clamp(min=DARK)).clamp(0, 1)
        return 1 - alpha * xi

    def revision_through(self, response: LinearResponse, S: Tensor, data: Data) -> Tensor:
        """Return 1 - alpha R^T xi, with alpha the least loss of R[S (1 - alpha eta)^2] + b, by Newton's method.

        Args:
            response: the pieces.
            S: (B, h, w) real, signal before them.
            data: counts and background of pixels with light.
        """
        I = data.intensity(response.signal(S))
        ratio = (data.y / I.clamp(min=DARK)).clamp(max=BRIGHTEST_RATIO)
        eta = response.adjoint(torch.where(data.good, 1 - ratio, 0.0))
        change, bend = response.apply(S * eta), response.apply(S * eta**2)
        alpha = torch.full((len(S), 1, 1), 0.5, dtype=S.dtype, device=S.device)
        for _ in range(NEWTON_STEPS):
            moved = (I - 2 * alpha * change + alpha**2 * bend).clamp(min=DARK)
            dI, d2I = 2 * (alpha * bend - change), 2 * bend
            misfit = 1 - data.y / moved
            first = of_view(torch.where(data.good, misfit * dI, 0.0))
            second = of_view(torch.where(data.good, data.y * (dI / moved) ** 2 + misfit * d2I, 0.0))
            alpha = (alpha - first / second.clamp(min=DARK)).clamp(0, 1)
        return 1 - alpha * eta
