"""The transfer function of a detector: pixels that integrate over their area, and a measured modulation transfer.

a          side of the square over which a pixel integrates, in pixels
k          frequency in cycles per pixel
m(|k|)     modulation transfer function, the contrast that fringes of this frequency keep

    R S = F^H T F S,    T(k) = m(|k|) sinc(a k_y) sinc(a k_x),    sinc x = sin(pi x) / (pi x)

This is the integral over a pixel of an intensity that is known at the pixels' centres alone, and so exact as far as
these sample it: exit waves that fill no more than half of the window (nearly so for wider ones, whose rims are dim).
Where they do not, the pattern has finer fringes than its pixels can tell, and no function of k can. Kernels of such a T
may go below zero beside bright pixels; intensities are held at zero there.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from ptymesh.physics.detector.pieces import DetectorPiece
from ptymesh.physics.operators import Tables, Values
from ptymesh.physics.propagate import frequencies
from ptymesh.physics.separable import filter_windows

#: A table as pairs of frequency and value.
Table = tuple[tuple[float, float], ...]


class DetectorTransfer(DetectorPiece):
    """Transfer function of the detector, known: pixels that integrate over a square, and a table of the contrast kept.

    A pixel that is sensitive all over is `{pixel_side: 1}`.
    """

    name: ClassVar[str] = "detector_transfer"
    is_fast: ClassVar[bool] = True

    pixel_side: float = Field(
        0.0, ge=0, le=4, description="side of the square over which a pixel integrates, in pixels; 0 for a point"
    )
    table: Table = Field(
        (),
        description="modulation transfer function, pairs `[cycles per pixel, value]` from `[0, 1]` on; between them on "
        "straight lines, beyond the last as there",
    )

    @model_validator(mode="after")
    def _meaningful(self) -> DetectorTransfer:
        if not self.pixel_side and not self.table:
            raise ValueError("detector_transfer does nothing; give pixel_side (1 for a whole pixel) or a table")
        if self.table:
            if tuple(self.table[0]) != (0.0, 1.0):
                raise ValueError(f"table begins with {list(self.table[0])}; begin with [0, 1], as all light is counted")
            if any(a >= b for (a, _), (b, _) in pairwise(self.table)):
                raise ValueError("frequencies of table do not rise from pair to pair; sort them, each once")
            if any(not 0 <= value <= 1 for _, value in self.table):
                raise ValueError("table has values that are not between 0 and 1; give the contrast that is kept")
        return self

    def forward(self, S: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return F^H T F S.

        Args:
            S: (B, ..., h, w) real.
            values: none.
            tables: none.
        """
        transfer = _transfer(self.pixel_side, tuple(self.table), (S.shape[-2], S.shape[-1]), S.device)
        return filter_windows(S, transfer)

    def adjoint(self, x: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return F^H T F x: T is real and even.

        Args:
            x: (B, ..., h, w) real.
            values: none.
            tables: none.
        """
        return self.forward(x, values, tables)

    def reach_px(self, values: Values) -> float:
        """Return the standard deviation of the kernel along an axis, from the curvature of T at 0 and at the table."""
        variance = self.pixel_side**2 / 12
        if len(self.table) > 1:
            k, value = self.table[1]
            variance += (1 - value) / (2 * np.pi**2 * k**2)
        return float(variance**0.5)


@lru_cache(maxsize=8)
def _transfer(side: float, table: Table, window: tuple[int, int], device: torch.device) -> Tensor:
    """Return T, (h, w) float64."""
    y, x = frequencies(window, (1.0, 1.0))
    transfer = torch.sinc(side * y) * torch.sinc(side * x)
    if table:
        k, values = np.array(table).T
        transfer = transfer * torch.from_numpy(np.interp(torch.hypot(y, x).numpy(), k, values))
    return transfer.to(device)
