"""A fidelity: how well intensities explain counts, pixel by pixel, and the step by which waves follow.

S, b       coherent signal (B, h, w), background (h, w);  I = S + b
y          counts (B, h, w)
l(I, y)    loss of a pixel; L = sum l over the good pixels of a view
xi, nu     dl/dI, and the norm d^2l/dI^2 at y = I
R          pieces of the detector (detector/pieces.py), linear in S; I = R S + b

A fidelity that says l, its two derivatives and nu is moved by every engine. Those that revise waves take

    Psi' = (1 - alpha eta) Psi,  eta = R^T xi,  alpha = 2 sum S eta^2 / sum nu (2 R[S eta])^2

the Gauss-Newton step of a view along its slope, halved until it lowers the view's loss. For amplitudes it is the
modulus projection, as nu = 1 / 2I makes alpha 1.
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ptymesh.physics.fidelity.data import DARK, Data, of_view, per_view
from ptymesh.registry import Registry, subclass_of

#: Powers of two by which a model may be brighter than the brightest count.
BEYOND = 30
#: Times that a step is halved at most until it lowers the loss.
HALVINGS = 6


class LinearResponse(Protocol):
    """A map from the signal that reaches the detector to the one that it counts: R, linear."""

    def signal(self, S: Tensor) -> Tensor:
        """Return R S (B, h, w), nowhere negative."""

    def apply(self, S: Tensor) -> Tensor:
        """Return R S of changes of intensities, (B, h, w)."""

    def adjoint(self, x: Tensor) -> Tensor:
        """Return R^T x, (B, h, w)."""

    def shared_change(self, change: Tensor) -> Tensor:
        """Return R^T change / R^T 1, (B, h, w), 0 where no pixel counts the light."""


class Fidelity:
    """A loss between intensities and counts, which defines `loss`, `slope` and `curvature` of a pixel.

    Pixels without data or light are left out of it. It has no options, and is registered by its `name`.
    """

    name: ClassVar[str]
    #: True if losses are in squares of counts, which the gradient engines divide by sum y^2 instead of sum y.
    in_squares: ClassVar[bool] = False
    #: True if it means something else where patterns are in other units than counts.
    needs_counts: ClassVar[bool] = False
    #: Second derivative of the loss by |Psi| where counts are as modelled, over 2, if that is a number.
    bend: ClassVar[float] = 1.0
    #: Least slope that decides the direction of a line search, so that dim pixels do not; None for any.
    least_slope: ClassVar[float | None] = None

    def loss(self, I: Tensor, y: Tensor) -> Tensor:
        """Return l of each pixel; terms of the counts alone may be left out.

        Args:
            I: (B, h, w) real, modelled intensity, at least 0.
            y: (B, h, w) real, counts.
        """
        raise NotImplementedError

    def slope(self, I: Tensor, y: Tensor) -> Tensor:
        """Return dl/dI of each pixel.

        Args:
            I: (B, h, w) real, modelled intensity, at least 0; `DARK` is the least to divide by.
            y: (B, h, w) real, counts.
        """
        raise NotImplementedError

    def curvature(self, I: Tensor, y: Tensor) -> Tensor:
        """Return d^2l/dI^2 of each pixel.

        Args:
            I: (B, h, w) real, modelled intensity, above 0.
            y: (B, h, w) real, counts.
        """
        raise NotImplementedError

    def norm(self, I: Tensor) -> Tensor:
        """Return d^2l/dI^2 of each pixel where its counts are as modelled, which is above 0; I is (B, h, w)."""
        return self.curvature(I, I)

    def typical_slope(self, brightest: float) -> float:
        """Return the size of slopes that is expected while a model is far from the counts.

        Args:
            brightest: largest count of a pixel.
        """
        return 2 * brightest if self.in_squares else 1.0

    def largest_slope(self, spread: float, brightest: float) -> float:
        """Return the bound beyond which slopes by the background are cut off.

        Args:
            spread: by how much a pixel may have more counts than the least intensity that is divided by.
            brightest: largest count of a pixel.
        """
        return 2.0**BEYOND * self.typical_slope(brightest)

    def revision(self, S: Tensor, data: Data) -> Tensor:
        """Return the factor of the revised wave (B, h, w); pixels without data are the caller's.

        Args:
            S: (B, h, w) real, coherent signal.
            data: counts and background of pixels with light.
        """
        return self.revision_through(_Nothing(), S, data)

    def revision_through(self, response: LinearResponse, S: Tensor, data: Data) -> Tensor:
        """Return the factor of the revised wave (B, h, w), where pieces of the detector stand behind it.

        Args:
            response: the pieces.
            S: (B, h, w) real, signal before them.
            data: counts and background of pixels with light.
        """
        I = data.intensity(response.signal(S))
        eta = response.adjoint(torch.where(data.good, self.slope(I, data.y), 0.0))
        change = torch.where(data.good, 2 * response.apply(S * eta), 0.0)
        first = of_view(2 * S * eta**2)
        second = of_view(torch.where(data.good, self.norm(I.clamp(min=DARK)), 0.0) * change**2)
        alpha = torch.where(second > 0, first / second.clamp(min=DARK), 0.0)
        before = self._view_loss(I, data)
        for _ in range(HALVINGS):
            after = self._view_loss(data.intensity(response.signal(S * (1 - alpha * eta) ** 2)), data)
            alpha = torch.where((after <= before)[:, None, None], alpha, alpha / 2)
        return 1 - alpha * eta

    def _view_loss(self, I: Tensor, data: Data) -> Tensor:
        return per_view(self.loss(I, data.y), data.good)


class _Nothing:
    """No pieces of the detector: R = 1."""

    def signal(self, S: Tensor) -> Tensor:
        return S

    def apply(self, S: Tensor) -> Tensor:
        return S

    def adjoint(self, x: Tensor) -> Tensor:
        return x

    def shared_change(self, change: Tensor) -> Tensor:
        return change


FIDELITIES: Registry[type[Fidelity]] = Registry(
    "fidelity", "ptymesh.fidelities", subclass_of(Fidelity), "make it a subclass of ptymesh.physics.fidelity.Fidelity"
)


def fidelity_of(name: str) -> Fidelity:
    """Return the fidelity of this name.

    Raises:
        ValueError: there is none.
        BadInput: that of a package cannot be used.
    """
    return FIDELITIES[name]() if name in FIDELITIES else _load_from_package(name)


@lru_cache
def _load_from_package(name: str) -> Fidelity:
    """Return the fidelity that an installed package offers; looked for once, as every chunk asks."""
    return FIDELITIES[name]()
