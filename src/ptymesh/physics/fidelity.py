"""Fidelities: how well intensities explain counts, with value, derivative, curvature and revised wave.

S       sum_m |Psi_m|^2, coherent signal (B, h, w)
b       background (h, w) or None
I       S + b, modelled intensity
y       counts (B, h, w); a value below zero marks a pixel without data in that view
good    (h, w) bool detector mask

Every fidelity revises the wave by a real factor, Psi' = factor . Psi; masked pixels have factor 1 and derivative 0.
So have pixels where the model has no light: S is rounding there, and so is its phase, which a factor sqrt(y / S) would
blow up to the size of the data. They join as soon as object or probe send light to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ptymesh.physics.elementwise import over_window

Fidelity = Literal["amplitude", "poisson", "intensity"]

#: Least intensity (counts) that is divided by, so that I = 0 with y > 0 stays finite.
DARK = 1e-20
#: Power S, as a fraction of the view's mean count, below which there is no light: transforms in single precision leave
#: up to 1e-12 of the mean, so that the phase at this limit is known to a tenth.
UNLIT = 2.0**-34
#: y / I is capped here in the Poisson step: dim pixels must not decide a view's step (Odstrcil et al. 2018).
BRIGHTEST_RATIO = 10.0
NEWTON_STEPS = 5


@dataclass(frozen=True)
class Saturation:
    """Counts from which on a detector counts no further.

    Attributes:
        level: these counts.
        everywhere: True if all intensities are held against the counts as min(I, level); False for those of pixels
            that have reached the level alone, which hold as min(I, y).
    """

    level: float
    everywhere: bool = False

    def ceiling(self, y: Tensor) -> Tensor:
        """Return the largest intensity (B, h, w) that is told from others by counts y, infinite where all are."""
        if self.everywhere:
            return torch.full_like(y, self.level)
        return torch.where(y >= self.level, y, torch.full_like(y, torch.inf))


@dataclass(frozen=True)
class Data:
    """Counts of a chunk of views as floats, with the pixels that hold data.

    Attributes:
        y: (B, h, w) counts, zero where `good` is False.
        good: (B, h, w) bool, True where the pixel holds data.
        background: (h, w) intensity, counts; None for zero.
        ceiling: (B, h, w), largest intensity that a pixel tells from others; None for a detector without saturation.
    """

    y: Tensor
    good: Tensor
    background: Tensor | None = None
    ceiling: Tensor | None = None

    @classmethod
    def of(
        cls,
        counts: Tensor,
        mask: Tensor,
        background: Tensor | None,
        dtype: torch.dtype,
        saturation: Saturation | None = None,
    ) -> Data:
        """Convert counts to floats, and leave masked pixels and pixels below zero out.

        Args:
            counts: (B, h, w) in the detector's dtype.
            mask: (h, w) bool, True for pixels that are used.
            background: (h, w) intensity, or None.
            dtype: real dtype of the result.
            saturation: of the detector, or None.
        """
        y = counts.to(dtype)
        good = mask & (y >= 0)
        y = torch.where(good, y, y.new_zeros(()))
        return cls(y, good, background, None if saturation is None else saturation.ceiling(y))

    def intensity(self, S: Tensor) -> Tensor:
        """Return I = S + b, no more than a saturated pixel tells."""
        I = S if self.background is None else S + self.background
        return I if self.ceiling is None else torch.minimum(I, self.ceiling)

    def below_ceiling(self, S: Tensor) -> Tensor:
        """Return the pixels (B, h, w) bool that hold data, and whose loss changes with S."""
        if self.ceiling is None:
            return self.good
        return self.good & ((S if self.background is None else S + self.background) <= self.ceiling)

    def illuminated(self, S: Tensor) -> Data:
        """Return the data of those pixels alone that S (B, h, w) changes the loss of.

        There S is at least UNLIT of the view's mean count, and I is not beyond what a saturated pixel tells.
        """
        least = (UNLIT / self.y[0].numel()) * _of_view(self.y) if len(self.y) else S[:, :1, :1]
        good = self.below_ceiling(S) & (least <= S)
        return Data(torch.where(good, self.y, self.y.new_zeros(())), good, self.background, self.ceiling)


def value(kind: Fidelity, S: Tensor, data: Data) -> Tensor:
    """Return the loss of each view, (B,) float64; constants that depend on the data alone are left out (Poisson).

    Args:
        kind: the fidelity.
        S: (B, h, w) real, coherent signal.
        data: counts and background.
    """
    I = data.intensity(S)
    if kind == "amplitude":
        terms = (I.sqrt() - data.y.sqrt()) ** 2
    elif kind == "poisson":
        terms = I - data.y * torch.log(I.clamp(min=DARK))
    else:
        terms = (I - data.y) ** 2
    return _per_view(terms, data.good)


def slope(kind: Fidelity, S: Tensor, data: Data) -> Tensor:
    """Return dL/dI, (B, h, w).

    The derivative with respect to conj(Psi_m) is slope . Psi_m; that with respect to b is the sum of slope.

    Args:
        kind: the fidelity.
        S: (B, h, w) real, coherent signal.
        data: counts and background.
    """
    data = data.illuminated(S)
    I = data.intensity(S)
    if kind == "amplitude":
        slopes = 1 - torch.sqrt(data.y / I.clamp(min=DARK))
    elif kind == "poisson":
        slopes = 1 - data.y / I.clamp(min=DARK)
    else:
        slopes = 2 * (I - data.y)
    return torch.where(data.good, slopes, slopes.new_zeros(()))


def curvature(kind: Fidelity, S: Tensor, data: Data) -> Tensor:
    """Return d^2L/dI^2, (B, h, w).

    Args:
        kind: the fidelity.
        S: (B, h, w) real, coherent signal.
        data: counts and background.
    """
    data = data.illuminated(S)
    I = data.intensity(S).clamp(min=DARK)
    if kind == "amplitude":
        curvatures = 0.5 * data.y.sqrt() / (I * I.sqrt())
    elif kind == "poisson":
        curvatures = data.y / I**2
    else:
        curvatures = torch.full_like(I, 2.0)
    return torch.where(data.good, curvatures, curvatures.new_zeros(()))


def revision(kind: Fidelity, S: Tensor, data: Data) -> Tensor:
    """Return the real factor (B, h, w) of the revised wave Psi' = factor . Psi after one step of this fidelity.

    Args:
        kind: the fidelity.
        S: (B, h, w) real, coherent signal.
        data: counts and background.
    """
    data = data.illuminated(S)
    if kind == "amplitude":
        factor = _modulus_projection(S, data)
    elif kind == "poisson":
        factor = _poisson_step(S, data)
    else:
        factor = _intensity_step(S, data)
    return torch.where(data.good, factor, factor.new_ones(()))


def _modulus_projection(S: Tensor, data: Data) -> Tensor:
    """Return sqrt(max(y - b, 0) / S)."""
    signal = data.y if data.background is None else (data.y - data.background).clamp(min=0)
    return torch.sqrt(signal / S.clamp(min=DARK))


def _poisson_step(S: Tensor, data: Data) -> Tensor:
    """Return 1 - alpha xi, xi = 1 - y/I, with alpha of each view by Newton's method.

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
        first = _of_view(misfit * dI)
        second = _of_view(data.y * (dI / I) ** 2 + misfit * d2I)
        alpha = (alpha - first / second.clamp(min=DARK)).clamp(0, 1)
    return 1 - alpha * xi


def _intensity_step(S: Tensor, data: Data) -> Tensor:
    """Return 1 - alpha eta, eta = 2 (I - y), with alpha the Newton step of the view's loss at 0."""
    difference = torch.where(data.good, data.intensity(S) - data.y, S.new_zeros(()))
    eta = 2 * difference
    first = _of_view(2 * S * eta**2)
    second = _of_view(8 * S**2 * eta**2 + 4 * S * eta**2 * difference)
    alpha = torch.where(second > 0, first / second.clamp(min=DARK), first.new_zeros(()))
    return 1 - alpha * eta


def residual_terms(S: Tensor, data: Data) -> Tensor:
    """Return sum (sqrt I - sqrt y)^2, sum y, sum |sqrt I - sqrt y|, sum sqrt y of each view, (B, 4) float64."""
    root = data.y.sqrt()
    difference = data.intensity(S).sqrt() - root
    terms = (difference**2, data.y, difference.abs(), root)
    return torch.stack([_per_view(t, data.good) for t in terms], dim=1)


def _per_view(terms: Tensor, good: Tensor) -> Tensor:
    """Return the sum over each window's good pixels, (B,) float64."""
    return over_window(torch.where(good, terms, terms.new_zeros(())))


def _of_view(terms: Tensor) -> Tensor:
    """Return the sum over each window, (B, 1, 1) in the terms' precision."""
    return over_window(terms).to(terms.dtype)[:, None, None]
