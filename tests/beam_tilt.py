"""A user's operator: a tilt of each view's beam, by which its pattern is shifted on the detector (descan)."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from ptymesh.geometry import Geometry
from ptymesh.models import WaveOperator
from ptymesh.physics.elementwise import times
from ptymesh.physics.model import inner
from ptymesh.physics.operators import Place, Tables, Values
from ptymesh.unknowns import Unknown


class BeamTilt(WaveOperator):
    """psi_j exp(2 pi i (t_jy y / h + t_jx x / w)): in the far field, pattern j shifts by t_j detector pixels."""

    name: ClassVar[str] = "beam_tilt"
    at: ClassVar[Place] = "exit"
    unknowns: ClassVar[tuple[Unknown, ...]] = (Unknown("shift", ("N", "2"), "view", unit="px", common_to="probe"),)

    def tables(self, geometry: Geometry) -> Tables:
        """Return 2 pi y / h (h, 1) and 2 pi x / w (1, w)."""
        h, w = geometry.shape
        y, x = (2 * math.pi * (torch.arange(n, dtype=torch.float64) - n // 2) / n for n in (h, w))
        return y[:, None], x[None, :]

    def forward(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        return times(psi, self._ramps(values["shift"], tables))

    def adjoint(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        return times(psi, self._ramps(-values["shift"], tables))

    def slopes(self, psi: Tensor, values: Values, tables: Tables, back: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        wave = self.forward(psi, values, tables)
        moved = [wave * (1j * axis) for axis in tables]
        pairs = [(inner(one, back), inner(one, one)) for one in moved]
        slope, norm = (torch.stack(part, dim=1) for part in zip(*pairs, strict=True))
        return {"shift": (slope, norm)}

    @staticmethod
    def _ramps(shift: Tensor, tables: Tables) -> Tensor:
        """Return the phase factors (B, 1, h, w)."""
        y, x = (shift[:, axis, None, None] * table for axis, table in enumerate(tables))
        return torch.polar(torch.ones_like(y + x), y + x)[:, None]
