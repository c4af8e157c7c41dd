"""Counts of a chunk of views as fidelities see them, and the terms of the residual.

S       sum_m |Psi_m|^2, coherent signal (B, h, w)
b       background (h, w) or None
I       S + b, modelled intensity
y       counts (B, h, w); a value below zero marks a pixel without data in that view
good    (h, w) bool detector mask
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ptymesh.physics.elementwise import over_window

#: Least intensity (counts) that is divided by, so that I = 0 with y > 0 stays finite.
DARK = 1e-20
#: Power S, as a fraction of the view's mean count, below which there is no light: transforms in single precision leave
#: up to 1e-12 of the mean, so that the phase at this limit is known to a tenth.
UNLIT = 2.0**-34


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
        least = (UNLIT / self.y[0].numel()) * of_view(self.y) if len(self.y) else S[:, :1, :1]
        good = self.below_ceiling(S) & (least <= S)
        return Data(torch.where(good, self.y, self.y.new_zeros(())), good, self.background, self.ceiling)


def residual_terms(S: Tensor, data: Data) -> Tensor:
    """Return sum (sqrt I - sqrt y)^2, sum y, sum |sqrt I - sqrt y|, sum sqrt y of each view, (B, 4) float64."""
    root = data.y.sqrt()
    difference = data.intensity(S).sqrt() - root
    terms = (difference**2, data.y, difference.abs(), root)
    return torch.stack([per_view(t, data.good) for t in terms], dim=1)


def per_view(terms: Tensor, good: Tensor) -> Tensor:
    """Return the sum over each window's good pixels, (B,) float64."""
    return over_window(torch.where(good, terms, terms.new_zeros(())))


def of_view(terms: Tensor) -> Tensor:
    """Return the sum over each window, (B, 1, 1) in the terms' precision."""
    return over_window(terms).to(terms.dtype)[:, None, None]
