"""What views ask of the background that they share: sums over a batch whose bits do not depend on their order.

b, S, I, y   background (h, w), coherent signal, I = S + b, counts; (B, h, w)
slope        dL/dI of a view, which is its dL/db
darkness     I^(-1/2)

A background is also told of pixels where the model has no light, for b needs none: S counts as FAINT of the view's mean
count at least, less b. So neither grows beyond what is known before the first term:

    |slope| <= 1 + (n / FAINT)^(1/2)   amplitude, of n pixels in a window, as no pixel has more than all counts
            <= 1 + n / FAINT           poisson
    darkness <= DARK^(-1/2)

Of intensities, slopes count as far as 2^BEYOND times the brightest pixel. Terms are rounded to steps for these
bounds (rounding.py), in two parts in either precision.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ptymesh.physics import fidelity
from ptymesh.physics.elementwise import over_window
from ptymesh.physics.fidelity import DARK, Data, Fidelity
from ptymesh.physics.rounding import rounded, shifts_for

#: The model's intensity that a background is told of, at least: this share of the view's mean count; and beside a
#: background the model's share of that.
FAINT, FAINTEST = 1e-3, 1e-6
#: Powers of two by which a model may be brighter than the brightest count.
BEYOND = 30
#: Slope and darkness, and the parts of each sum.
TOLD, PARTS = 2, 2


@dataclass
class BackgroundSums:
    """Sums over a batch on this rank, to which chunks add rounded terms.

    kind: the fidelity. sums: (PARTS TOLD, h, w) float64, part by part slope and darkness. shifts: (TOLD, PARTS) and
    limits: (TOLD,), powers of two at which terms are cut off; both on the host. kept: what a pass keeps until `finish`.
    """

    kind: Fidelity
    sums: Tensor
    shifts: Tensor
    limits: Tensor
    kept: tuple[Any, ...] = field(default_factory=tuple)

    @classmethod
    def begun(cls, background: Tensor, kind: Fidelity, brightest: float, views: int) -> BackgroundSums:
        """Without any term: for a background (h, w) of so many views, and the largest count of a pixel."""
        spread = background.numel() / FAINT
        slope = {"amplitude": 1 + spread**0.5, "poisson": 1 + spread, "intensity": 2.0 ** (1 + BEYOND) * brightest}
        bounds = torch.tensor([slope[kind], DARK**-0.5], dtype=torch.float64)
        sums = background.new_zeros((PARTS * TOLD, *background.shape), dtype=torch.float64)
        return cls(kind, sums, *shifts_for(bounds, views))

    def add(self, S: Tensor, data: Data) -> None:
        """Adds what views with these signals ask for."""
        S = told(S, data)
        for place, terms in enumerate((fidelity.slope(self.kind, S, data), darkness(S, data))):
            limit = float(self.limits[place])
            parts = rounded(terms.clamp(-limit, limit)[:, None], self.shifts[place], PARTS)
            self.sums[place::TOLD] += parts.sum(0)

    @staticmethod
    def total(sums: Tensor) -> Tensor:
        """Slope and darkness (TOLD, h, w) float64, from the sums of all ranks."""
        return sums[:TOLD] + sums[TOLD:]


def told(S: Tensor, data: Data) -> Tensor:
    """The signals that a background is told of, (B, h, w)."""
    faint = FAINT * over_window(data.y).to(S.dtype)[:, None, None] / S[0].numel() if len(S) else S[:, :1, :1]
    b = torch.zeros_like(faint) if data.background is None else data.background
    return torch.maximum(S, torch.maximum(faint - b, (FAINTEST * faint).clamp(min=DARK)))


def darkness(S: Tensor, data: Data) -> Tensor:
    """I^(-1/2) of signals that are told, 0 where there are no data."""
    return torch.where(data.good, data.intensity(S).rsqrt(), 0.0)
