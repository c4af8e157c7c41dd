"""Efficiency of a detector's pixels: the share of the light that each one counts.

q       efficiency (h, w), relative to the mean over good pixels

    R S = q S

Counts that are divided by q instead (`data.flat`) are no counts any more: their noise is not that of their number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.measurement import Measurement
from ptymesh.physics.detector.pieces import DetectorPiece
from ptymesh.physics.operators import Tables, Values
from ptymesh.unknowns import Unknown


class DetectorEfficiency(DetectorPiece):
    """Share of the light that each pixel counts (`efficiency`), from `data.efficiency`; no engine moves it."""

    name: ClassVar[str] = "detector_efficiency"
    is_fast: ClassVar[bool] = True
    unknowns: ClassVar[tuple[Unknown, ...]] = (
        Unknown("efficiency", ("h", "w"), start=1.0, least=0.0, largest=1e6, may_rest=True, is_fixed=True),
    )

    def start_values(self, measurement: Measurement) -> Mapping[str, float | np.ndarray]:
        """Return the efficiency of the scan's detector, (h, w).

        Args:
            measurement: the scan.

        Raises:
            BadInput: the scan does not say it.
        """
        if measurement.efficiency is None:
            raise BadInput(
                "optics.detector_efficiency needs the share of the light that each pixel counts; give it as "
                "data.efficiency, or remove it."
            )
        return {"efficiency": measurement.efficiency, **super().start_values(measurement)}

    def forward(self, S: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return q S.

        Args:
            S: (B, ..., h, w) real.
            values: `efficiency` (h, w).
            tables: none.
        """
        return S * values["efficiency"]

    def adjoint(self, x: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return q x.

        Args:
            x: (B, ..., h, w) real.
            values: `efficiency` (h, w).
            tables: none.
        """
        return x * values["efficiency"]
