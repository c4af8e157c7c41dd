"""Losses of the gradient engines: a derivative, and the few sums that make it a number without units.

S, I, y    coherent signal, modelled intensity S + b, counts; (B, h, w), sums over good pixels of the batch
D          divisor of the sum of derivatives, so that one learning rate means the same on every data set
c          typical second derivative of the summed loss along |Psi|, over 2

    amplitude, poisson    L = sum loss / sum y                  D = sum y                  c = 1, 2 (`bend`)
    intensity             L = sum (I - y)^2 / sum y^2           D = sum y^2                c = 4 sum y^2 / sum y
    nrmse                 L = sqrt(Q / n) / mean y^p            D = 2 sqrt(Q n) mean y^p   c = 4 p^2 sum y^2p / sum y
                          Q = sum (I^p - y^p)^2
    a function f(I, y)    L = sum f / sum y                     D = sum y                  c = 1
    averaged              adds weight x sum n (sqrt <I> - sqrt <y>)^2 / sum y to those with D = sum y;
                          <> over the n good views of the batch at a pixel

A user's own loss is a plain torch function of I and y that returns one value per pixel; its derivative is autograd's:

    @losses.register("huber")
    def huber(intensity, counts):
        return torch.nn.functional.huber_loss(intensity.sqrt(), counts.sqrt(), reduction="none")

or, in an installed package, an entry point of the group `ptymesh.losses`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ptymesh.physics import fidelity
from ptymesh.physics.elementwise import over_window, raised
from ptymesh.physics.fidelity import DARK, Data, fidelity_of
from ptymesh.registry import Registry

PixelLoss = Callable[[Tensor, Tensor], Tensor]

#: Users' own losses by name.
LOSSES: Registry[PixelLoss] = Registry("loss", "ptymesh.losses", also=("fidelity", "nrmse"))
register = LOSSES.register


class LossSummary(NamedTuple):
    """Loss of a batch with its normalisation; global, as the sums that it comes from.

    Attributes:
        value: L, 0-d.
        divisor: D, 0-d.
        curvature: c, 0-d.
        counts: sum y, 0-d.
    """

    value: Tensor
    divisor: Tensor
    curvature: Tensor
    counts: Tensor


class Loss(Protocol):
    """A loss over pixels: slopes and sums of a chunk, and the summary of the sums over the whole batch.

    Attributes:
        terms: number of sums.
    """

    terms: int

    def slope(self, S: Tensor, data: Data) -> Tensor:
        """Return the derivative of the summed loss with respect to I, (B, h, w); 0 where there are no data."""

    def sums(self, S: Tensor, data: Data) -> Tensor:
        """Return the sums of each view that `summary` needs, (B, n) float64."""

    def summary(self, sums: Tensor) -> LossSummary:
        """Return value, divisor, curvature and counts from the sums over all views, (n,)."""


class OfFidelity:
    """Loss that is a fidelity."""

    terms = 3

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def slope(self, S: Tensor, data: Data) -> Tensor:
        """Return the slope of the fidelity, dL/dI."""
        return fidelity.slope(self.kind, S, data)

    def sums(self, S: Tensor, data: Data) -> Tensor:
        """Return loss, sum y, sum y^2 of each view."""
        terms = (fidelity.value(self.kind, S, data), over_window(data.y), over_window(data.y.square()))
        return torch.stack(terms, dim=1)

    def summary(self, sums: Tensor) -> LossSummary:
        """Return L, D, c of the module's table."""
        loss, counts, squares = _above_zero(sums)
        kind = fidelity_of(self.kind)
        if kind.in_squares:
            return LossSummary(loss / squares, squares, 4 * squares / counts, counts)
        return LossSummary(loss / counts, counts, torch.full_like(counts, kind.bend), counts)

    def summed_up(self, sums: Tensor) -> Tensor:
        """Return `summary` as a tensor (4,)."""
        return torch.stack(self.summary(sums))


class NRMSE:
    """Normalised root-mean-square error of powers I^p and y^p, p in (0, 1]."""

    terms = 5

    def __init__(self, power: float) -> None:
        self.power = power

    def slope(self, S: Tensor, data: Data) -> Tensor:
        """Return 2 (I^p - y^p) p I^(p - 1)."""
        data = data.illuminated(S)
        I, p = data.intensity(S).clamp(min=DARK), self.power
        slopes = 2 * p * (raised(I, p) - raised(data.y, p)) * raised(I, p - 1)
        return torch.where(data.good, slopes, slopes.new_zeros(()))

    def sums(self, S: Tensor, data: Data) -> Tensor:
        """Return Q, n, sum y, sum y^p, sum y^2p of each view."""
        powers = raised(data.y, self.power)
        misfit = torch.where(data.good, raised(data.intensity(S), self.power) - powers, powers.new_zeros(()))
        terms = (misfit.square(), data.good.to(S.dtype), data.y, powers, powers.square())
        return torch.stack([over_window(t) for t in terms], dim=1)

    def summary(self, sums: Tensor) -> LossSummary:
        """Return L, D, c of the module's table."""
        Q, n, counts, powers, squares = sums.clamp(min=torch.finfo(sums.dtype).tiny)
        mean = powers / n
        curvature = 4 * self.power**2 * squares / counts
        return LossSummary((Q / n).sqrt() / mean, 2 * (Q * n).sqrt() * mean, curvature, counts)


class OfFunction:
    """Loss that is a user's function of I and y, one value per pixel."""

    terms = 2

    def __init__(self, function: PixelLoss) -> None:
        self.function = function

    def slope(self, S: Tensor, data: Data) -> Tensor:
        """Return the function's derivative by I, from autograd."""
        data = data.illuminated(S)
        I = data.intensity(S).clamp(min=DARK).requires_grad_()
        with torch.enable_grad():
            total = self._function_values(I, data).sum()
        return torch.autograd.grad(total, I)[0]

    def sums(self, S: Tensor, data: Data) -> Tensor:
        """Return loss, sum y of each view."""
        with torch.no_grad():
            terms = self._function_values(data.intensity(S).clamp(min=DARK), data)
        return torch.stack((over_window(terms), over_window(data.y)), dim=1)

    def summary(self, sums: Tensor) -> LossSummary:
        """Return L, D, c of the module's table."""
        loss, counts = _above_zero(sums)
        return LossSummary(loss / counts, counts, torch.ones_like(counts), counts)

    def _function_values(self, I: Tensor, data: Data) -> Tensor:
        # Pixels without data get I = y = 1, so that no function divides by their 0.
        """Return the function's values, 0 where there are no data."""
        one = I.new_ones(())
        terms = self.function(torch.where(data.good, I, one), torch.where(data.good, data.y, one))
        return torch.where(data.good, terms, terms.new_zeros(()))


class WithAverage:
    """A loss, and the misfit of the pattern averaged over the batch.

    Args:
        loss: a loss with divisor sum y.
        weight: of the misfit against the loss.
        I: (h, w) sum of intensities over the batch's good views, global.
        y: (h, w) sum of counts over these.
        n: (h, w) number of these.
    """

    def __init__(self, loss: Loss, weight: float, I: Tensor, y: Tensor, n: Tensor) -> None:
        self.loss, self.terms = loss, loss.terms
        I = I.clamp(min=DARK)
        self.average_slope = torch.where(n > 0, weight * (1 - torch.sqrt(y / I)), 0.0)
        self.misfit = weight * over_window((I.sqrt() - y.sqrt()).square())

    def slope(self, S: Tensor, data: Data) -> Tensor:
        """Return the loss's slope plus d misfit / d I_j = weight (1 - sqrt(<y> / <I>)), the same in all views."""
        return self.loss.slope(S, data) + torch.where(data.below_ceiling(S), self.average_slope, 0.0)

    def sums(self, S: Tensor, data: Data) -> Tensor:
        """Return the loss's sums."""
        return self.loss.sums(S, data)

    def summary(self, sums: Tensor) -> LossSummary:
        """Return the loss's summary, with the misfit in its value."""
        summary = self.loss.summary(sums)
        return summary._replace(value=summary.value + self.misfit / summary.divisor)


def _above_zero(sums: Tensor) -> Tensor:
    """Return the sums with all but the first, the loss, kept above zero."""
    return torch.cat((sums[:1], sums[1:].clamp(min=torch.finfo(sums.dtype).tiny)))
