"""Pixels of a detector that are wider than those of the model: each counts the light of K x K of the model's.

K          pixels of the model along a side of one of the detector's
h, w       pixels of the model's window, K times as many along a side as the detector's

    R S(Y, X) = sum_kl S(K Y + k, K X + l),    R^T x(y, x) = x(y // K, x // K)

In the far field a pixel K times as narrow belongs to a window K times as wide on the sample, at the same object pixel.
So this is the model of a beam, or of an exit wave, that is wider than lambda z / p, which the pixels p of the detector
can tell from others: with patterns alone that would be aliased, and what several views have in common tells it apart
(Edo et al., Phys. Rev. A 87, 053850 (2013); Batey et al., Phys. Rev. A 89, 043812 (2014)). Far-field patterns have
their zero frequency at the corner: a pixel there sums the K about it, as `data.bin` does, from (K - 1) // 2 before it
on; an even number of them has its middle half a fine pixel beside it.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.physics.detector.pieces import DetectorPiece
from ptymesh.physics.operators import Tables, Values


class BinnedDetector(DetectorPiece):
    """Pixels of the detector that each count the light of `factor` x `factor` of the model's, which are finer.

    The model's window is so many times as wide as without it, at the same object pixel.
    """

    name: ClassVar[str] = "binned_detector"
    is_fast: ClassVar[bool] = True

    factor: int = Field(
        2,
        ge=2,
        le=8,
        description="pixels of the model along a side of one of the detector's; an epoch costs its square as much",
    )

    @property
    def binning(self) -> int:
        """Number of pixels along a side that are summed to one."""
        return self.factor

    def check(self, geometry: Geometry) -> None:
        """Check that finer pixels belong to a wider window.

        Raises:
            BadInput: a near field, where they would belong to a finer object.
        """
        if geometry.propagation != "far_field":
            raise BadInput(
                "optics.binned_detector is for far-field scans, and this one is in the near field; use "
                "optics.detector_transfer with pixel_side: 1."
            )

    def forward(self, S: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return the sums of K x K pixels.

        Args:
            S: (B, ..., h, w) real.
            values: none.
            tables: none.

        Returns:
            (B, ..., h / K, w / K).
        """
        k, before = self.factor, (self.factor - 1) // 2
        rolled = S.roll((before, before), (-2, -1))
        # term by term: the order of a sum must not depend on how many views there are
        first, *further_parts = (rolled[..., y::k, x::k] for y in range(k) for x in range(k))
        return sum(further_parts, first)

    def adjoint(self, x: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return the value of a pixel in each of the K x K that it sums.

        Args:
            x: (B, ..., h / K, w / K) real.
            values: none.
            tables: none.

        Returns:
            (B, ..., h, w).
        """
        k, before = self.factor, (self.factor - 1) // 2
        spread = x.repeat_interleave(k, -2).repeat_interleave(k, -1)
        return spread.roll((-before, -before), (-2, -1))
