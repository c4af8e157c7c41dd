"""Efficiency and offset of a detector's pixels: the share of the light that each one counts, and counts without light.

q       efficiency (h, w), relative to the mean over good pixels; of S scans whose detectors differ (S, h, w)
o       offset, in counts, one number for all pixels and views

    R S = q S                   detector_efficiency
    I = R S + o                 detector_offset, behind all pieces that act on light

Counts that are divided by q instead (`data.flat`) are no counts any more: their noise is not that of their number. The
offset is what is left of a dark level that was taken at another temperature or exposure, or light that falls evenly on
all pixels. What differs from pixel to pixel is the background, which engines of gradients can refine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.measurement import Measurement
from ptymesh.physics.detector.pieces import DetectorPiece
from ptymesh.physics.operators import Piece, Tables, Values
from ptymesh.unknowns import Unknown


class DetectorEfficiency(DetectorPiece):
    """Share of the light that each pixel counts (`efficiency`), from `data.efficiency`; no engine moves it."""

    name: ClassVar[str] = "detector_efficiency"
    is_fast: ClassVar[bool] = True
    unknowns: ClassVar[tuple[Unknown, ...]] = (
        Unknown("efficiency", ("v", "u"), start=1.0, least=0.0, largest=1e6, may_rest=True, is_fixed=True),
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

    def for_scan(self, measurement: Measurement) -> tuple[Piece, str]:
        """Return the piece; of several scans whose detectors differ, one with the efficiency of each.

        Args:
            measurement: the scan.
        """
        by_scan = measurement.efficiency is not None and measurement.efficiency.ndim == 3
        return (_EfficiencyOfScans(**self.model_dump()) if by_scan else self), ""

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


class _EfficiencyOfScans(DetectorPiece):
    """Share of the light that each pixel counts in each of several scans, (S, h, w)."""

    name: ClassVar[str] = DetectorEfficiency.name
    is_fast: ClassVar[bool] = True
    unknowns: ClassVar[tuple[Unknown, ...]] = tuple(
        replace(one, axes=("S", *one.axes)) for one in DetectorEfficiency.unknowns
    )

    def start_values(self, measurement: Measurement) -> Mapping[str, float | np.ndarray]:
        """Return the efficiency of each scan's detector, (S, h, w)."""
        assert measurement.efficiency is not None, "for_scan has seen it"
        return {"efficiency": measurement.efficiency, **super().start_values(measurement)}

    def forward(self, S: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return q S of each view's scan.

        Args:
            S: (B, ..., h, w) real.
            values: `efficiency` (B, h, w).
            tables: none.
        """
        q = values["efficiency"]
        return S * q.view(len(q), *[1] * (S.ndim - 3), *q.shape[1:])

    def adjoint(self, x: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return q x, as `forward` does.

        Args:
            x: (B, ..., h, w) real.
            values: `efficiency` (B, h, w).
            tables: none.
        """
        return self.forward(x, values, tables)


class DetectorOffset(DetectorPiece):
    """Counts that every pixel of every view has without light (`offset`)."""

    name: ClassVar[str] = "detector_offset"
    adds_counts: ClassVar[bool] = True
    is_fast: ClassVar[bool] = True
    # at 0 the norm of a pixel without light has no bound, so that no Gauss-Newton step would ever leave it
    unknowns: ClassVar[tuple[Unknown, ...]] = (Unknown("offset", unit="counts", start=0.5, least=1e-3, largest=1e9),)

    def sizes(self, geometry: Geometry) -> dict[str, float]:
        """Return the noise of a pixel of few counts."""
        return {"offset": 1.0}

    def added(self, values: Values, tables: Tables) -> Tensor:
        """Return the counts that every pixel has without light.

        Args:
            values: `offset` 0-d, in counts.
            tables: none.
        """
        return values["offset"]

    def derivatives(self, S: Tensor, values: Values, tables: Tables) -> dict[str, Tensor]:
        """Return 1 at every pixel.

        Args:
            S: (B, h, w) real.
            values: not used.
            tables: none.
        """
        return {"offset": torch.ones_like(S)}
