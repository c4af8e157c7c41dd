"""A defocus for every view: a sample that is not flat, or a stage that moves along the beam.

z_j     distance of view j downstream of the probe's plane (m): adds to C10, the negative defocus
r       phase per metre of free space, 2 pi (k_z - 1 / lambda)

    G(z_j) P = F^H exp(i z_j r) F P,    dG P / dz_j = F^H [i r exp(i z_j r) F P]

The angular spectrum of free space (physics/propagate.py) without a band limit: |z_j| is small against the depth at
which the window's edge is reached. A mean of all z_j is the same as a defocus of the probe: if the probe is refined,
only differences of the z_j are, for both would take the same step otherwise, and views that are left out would have
another mean.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from ptymesh.geometry import Geometry
from ptymesh.physics.elementwise import times
from ptymesh.physics.model import inner
from ptymesh.physics.operators import Place, ShiftedCopies, Tables, Values, WaveOperator
from ptymesh.physics.propagate import fft, ifft, phase_rate, turn_phases
from ptymesh.unknowns import Unknown


class PropagatedViews:
    """The methods of a `WaveOperator` that propagates each view's waves by a distance z_j, its first unknown.

    It comes before `WaveOperator` among the bases; `tables` returns r, (h, w) rad/m.
    """

    unknowns: ClassVar[tuple[Unknown, ...]]

    def forward(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return F^H exp(i z r) F psi.

        Args:
            psi: (B, M, h, w) complex.
            values: z in metres, (B,), by name.
            tables: r (h, w).
        """
        return propagated(psi, values[self.unknowns[0].name], tables[0])

    def adjoint(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return F^H exp(-i z r) F psi.

        Args:
            psi: (B, M, h, w) complex.
            values: z in metres, (B,), by name.
            tables: r (h, w).
        """
        return propagated(psi, -values[self.unknowns[0].name], tables[0])

    def slopes(self, psi: Tensor, values: Values, tables: Tables, back: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Return <F^H [i r exp(i z r) F psi], back> and the square of the first wave's norm, (B,) each.

        Args:
            psi: (B, M, h, w) complex, where the operator begins.
            values: z in metres, (B,), by name.
            tables: r (h, w).
            back: (B, M, h, w) complex, wave taken back to where it ends.
        """
        name = self.unknowns[0].name
        moved = propagated_slope(psi, values[name], tables[0])
        return {name: (inner(moved, back), inner(moved, moved))}


class ViewDefocus(ShiftedCopies, PropagatedViews, WaveOperator):
    """Defocus z_j of each view (m, downstream positive as C10), refined if a stage has `unknowns: {defocus: true}`."""

    name: ClassVar[str] = "view_defocus"
    at: ClassVar[Place] = "probe"
    depends_on_wavelength: ClassVar[bool] = True
    unknowns: ClassVar[tuple[Unknown, ...]] = (
        Unknown("defocus", ("N",), "view", unit="m", largest=1.0, common_to="probe"),
    )

    def check(self, geometry: Geometry) -> None:
        """Check that the geometry has what a defocus needs.

        Raises:
            BadInput: the wavelength or the object pixel is unknown.
        """
        geometry.pixel_and_wavelength("optics.view_defocus")

    def sizes(self, geometry: Geometry) -> dict[str, float]:
        """Return the defocus, m, that turns the phase by a radian.

        The radian is between the middle of the window's spectrum and half its band.
        """
        (y, x), wavelength = geometry.object_pixel_m or (0.0, 0.0), geometry.wavelength_m
        assert wavelength is not None, "checked"
        return {"defocus": 16 * max(y, x) ** 2 / (math.pi * wavelength)}

    def tables(self, geometry: Geometry) -> Tables:
        """Return r, (h, w) rad/m."""
        assert geometry.object_pixel_m is not None and geometry.wavelength_m is not None, "checked"
        return (phase_rate(geometry.shape, geometry.object_pixel_m, geometry.wavelength_m),)

    def copies(self, values: Values, tables: Tables) -> tuple[Tensor, Tensor]:
        """Return no shift and a factor of 1, of the one wave.

        Args:
            values: not used.
            tables: r (h, w).
        """
        return tables[0].new_zeros((1, 1, 2)), tables[0].new_ones(1)

    def distances(self, values: Values, tables: Tables) -> tuple[Tensor, Tensor]:
        """Return z, (B, 1), and r.

        Args:
            values: `defocus` (B,), z in metres.
            tables: r (h, w).
        """
        return values["defocus"][:, None], tables[0]


def propagated(psi: Tensor, z: Tensor, rate: Tensor) -> Tensor:
    """Return F^H exp(i z r) F psi, (B, M, h, w).

    Args:
        psi: (B, M, h, w) complex.
        z: (B,), distances in metres.
        rate: r (h, w), rad/m.
    """
    return ifft(times(fft(psi), turn_phases(z, rate)[:, None]))


def propagated_slope(psi: Tensor, z: Tensor, rate: Tensor) -> Tensor:
    """Return the derivative of `propagated` by z, F^H [i r exp(i z r) F psi], (B, M, h, w).

    Args:
        psi: (B, M, h, w) complex.
        z: (B,), distances in metres.
        rate: r (h, w), rad/m.
    """
    turned = times(fft(psi), turn_phases(z, rate)[:, None]) * rate
    return ifft(torch.complex(-turned.imag, turned.real))
