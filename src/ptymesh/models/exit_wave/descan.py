"""Patterns that wander over the detector while the beam is scanned, because what brings it back (descan) is off.

t_j        shift of view j's pattern (y, x), detector pixels
p_j        position of view j, object pixels, from the mean of all;  c_j  centre of mass of its pattern, pixels
y, x       place in the window, from its middle

    psi_j -> psi_j exp(2 pi i (t_jy y / h + t_jx x / w)) behind the last slice

A descan that is linear in the position, t = C p, has a symmetric part, which is another curvature of the beam, and is
taken on by it; the antisymmetric part nothing in the sample does. So t_j starts at a (p_jx, -p_jy), with the one number
a = (C_yx - C_xy) / 2 of the least-squares fit c = C p; whatever else patterns wander is refined for each view. A shift
that all patterns have is a tilt of the probe, and is left to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.measurement import Measurement, centres_of_mass, evenly_spread
from ptymesh.physics.model import inner
from ptymesh.physics.operators import Place, Tables, Values, WaveOperator
from ptymesh.physics.separable import turn_waves
from ptymesh.unknowns import Unknown

#: Views whose patterns are looked at, at most.
LOOKED_AT = 1024
#: Views from which on the number is to be had.
FEWEST = 16


class Descan(WaveOperator):
    """Shift of each view's pattern on the detector (`descan`, px), which starts from how all wander along the scan.

    It stays there, or is refined if a stage has `unknowns: {descan: true}`.
    """

    name: ClassVar[str] = "descan"
    is_fast: ClassVar[bool] = True
    at: ClassVar[Place] = "exit"
    keeps_products: ClassVar[bool] = True
    unknowns: ClassVar[tuple[Unknown, ...]] = (
        Unknown("descan", ("N", "2"), "view", unit="px", common_to="probe", may_rest=True),
    )

    def check(self, geometry: Geometry) -> None:
        """Check that the geometry is a far field.

        Raises:
            BadInput: it is a near field, where patterns move with the beam.
        """
        if geometry.propagation != "far_field":
            raise BadInput("optics.descan is for far fields, and this scan is in the near field; leave it out.")

    def start_values(self, measurement: Measurement) -> Mapping[str, float | np.ndarray]:
        """Return the shifts (N, 2) that follow from how centres of mass wander, unless `start` says one number.

        Args:
            measurement: the scan.
        """
        if self.start or measurement.views < FEWEST:
            return super().start_values(measurement)
        p = measurement.positions - measurement.positions.mean(axis=0)
        return {"descan": wandering(measurement) * np.stack([p[:, 1], -p[:, 0]], axis=1)}

    def tables(self, geometry: Geometry) -> Tables:
        """Return 2 pi y / h, (h, 1), and 2 pi x / w, (1, w)."""
        y, x = (2 * math.pi * (torch.arange(n, dtype=torch.float64) - n // 2) / n for n in geometry.shape)
        return y[:, None], x[None, :]

    def forward(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return psi with the phase ramp of each view.

        Args:
            psi: (B, M, h, w) complex.
            values: `descan` (B, 2), px.
            tables: from `tables`.
        """
        return turn_waves(psi, *_phases(values["descan"], tables))

    def adjoint(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return psi without the phase ramp of each view.

        Args:
            psi: (B, M, h, w) complex.
            values: `descan` (B, 2), px.
            tables: from `tables`.
        """
        return turn_waves(psi, *_phases(-values["descan"], tables))

    def slopes(self, psi: Tensor, values: Values, tables: Tables, back: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the slope and the norm by the shifts along y and x, (B, 2) each.

        Args:
            psi: (B, M, h, w) complex, where the operator begins.
            values: `descan` (B, 2), px.
            tables: from `tables`.
            back: (B, M, h, w) complex, wave taken back to where it ends.
        """
        wave = self.forward(psi, values, tables)
        turned = torch.complex(-wave.imag, wave.real)
        pairs = [(inner(turned * axis, back), inner(turned * axis, turned * axis)) for axis in tables]
        slope, norm = (torch.stack(part, dim=1) for part in zip(*pairs, strict=True))
        return {"descan": (slope, norm)}


def wandering(measurement: Measurement) -> float:
    """Return a, detector pixels per object pixel, of up to LOOKED_AT views spread over the scan.

    Args:
        measurement: a far-field scan.
    """
    views = evenly_spread(measurement.views, LOOKED_AT)
    p = measurement.positions[views]
    fitted = np.linalg.lstsq(p - p.mean(axis=0), centres_of_mass(measurement, views), rcond=None)[0].T  # C, rows y x
    return float(fitted[0, 1] - fitted[1, 0]) / 2


def _phases(shift: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """Return the phase factors of rows (B, h) and of columns (B, w)."""
    y, x = (shift[:, axis, None] * table.flatten() for axis, table in enumerate(tables))
    return torch.polar(torch.ones_like(y), y), torch.polar(torch.ones_like(x), x)
