"""Sums over a batch for the background that all views share; their bits do not depend on the order of the views.

b, S, I, y   background (h, w), coherent signal, I = S + b, counts; (B, h, w)
slope        dL/dI of a view, which is its dL/db
darkness     I^(-1/2)

Pixels where the model has no light count for the background, too, for b needs none: S is raised there to FAINT of the
view's mean count, less b. So slope and darkness have bounds that are known before the first term:

    |slope| <= 1 + (n / FAINT)^(1/2)   amplitude, n pixels in a window, as no pixel has more than all counts
            <= 1 + n / FAINT           poisson
    darkness <= DARK^(-1/2)

For other fidelities, slopes are cut off at 2^BEYOND times those that are expected (Fidelity.largest_slope). Terms are
rounded to steps for these bounds (rounding.py), in two parts in either precision.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ptymesh.physics import fidelity
from ptymesh.physics.elementwise import over_window
from ptymesh.physics.fidelity import DARK, Data
from ptymesh.physics.rounding import rounded, shifts_for

#: Least intensity, as a share of the view's mean count, from which the background's terms are computed; and least
#: signal beside a background, as a share of that.
FAINT, FAINTEST = 1e-3, 1e-6
#: Number of quantities (slope and darkness), and of parts of each sum.
QUANTITIES, PARTS = 2, 2


@dataclass
class BackgroundSums:
    """Sums over a batch on this rank, to which chunks add rounded terms.

    Attributes:
        kind: the fidelity.
        sums: (PARTS TOLD, h, w) float64, part by part slope and darkness.
        shifts: (TOLD, PARTS) float64 on the host, rounding shifts.
        limits: (TOLD,) float64 on the host, powers of two at which terms are cut off.
        kept: buffers that a backend holds until `finish`.
    """

    kind: str
    sums: Tensor
    shifts: Tensor
    limits: Tensor
    kept: tuple[Any, ...] = field(default_factory=tuple)

    @classmethod
    def zeros(cls, background: Tensor, kind: str, brightest: float, views: int) -> BackgroundSums:
        """Return empty sums for a batch.

        Args:
            background: (h, w) intensity, counts.
            kind: the fidelity.
            brightest: largest count of a pixel.
            views: number of views in the batch, over all ranks.
        """
        spread = background.numel() / FAINT
        slope = fidelity.fidelity_of(kind).largest_slope(spread, brightest)
        bounds = torch.tensor([slope, DARK**-0.5], dtype=torch.float64)
        sums = background.new_zeros((PARTS * QUANTITIES, *background.shape), dtype=torch.float64)
        return cls(kind, sums, *shifts_for(bounds, views))

    def add(self, S: Tensor, data: Data) -> None:
        """Add the terms of views with signals S (B, h, w)."""
        S = raised_signals(S, data)
        for place, terms in enumerate((fidelity.slope(self.kind, S, data), darkness(S, data))):
            limit = float(self.limits[place])
            parts = rounded(terms.clamp(-limit, limit)[:, None], self.shifts[place], PARTS)
            self.sums[place::QUANTITIES] += parts.sum(0)

    @staticmethod
    def total(sums: Tensor) -> Tensor:
        """Return slope and darkness (TOLD, h, w) float64, from the sums (PARTS TOLD, h, w) of all ranks."""
        return sums[:QUANTITIES] + sums[QUANTITIES:]


def raised_signals(S: Tensor, data: Data) -> Tensor:
    """Return the signals S (B, h, w), raised where the model has no light.

    The background's terms are computed from them.
    """
    faint = FAINT * over_window(data.y).to(S.dtype)[:, None, None] / S[0].numel() if len(S) else S[:, :1, :1]
    b = torch.zeros_like(faint) if data.background is None else data.background
    return torch.maximum(S, torch.maximum(faint - b, (FAINTEST * faint).clamp(min=DARK)))


def darkness(S: Tensor, data: Data) -> Tensor:
    """Return I^(-1/2) of the raised signals S (B, h, w), 0 where there are no data."""
    return torch.where(data.good, data.intensity(S).rsqrt(), 0.0)
