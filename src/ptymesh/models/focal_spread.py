"""Partial temporal coherence: electrons of slightly different energy are focused at slightly different planes.

sigma      focal spread (m), standard deviation of the defocus
r          phase per metre of free space, 2 pi (k_z - 1 / lambda)
x_k, v_k   nodes and weights of Gauss and Hermite, k = 1 ... K;  w_k = v_k / sqrt(pi), sum_k w_k = 1
z_k        defocus of state k, sqrt(2) sigma x_k

    P_m -> sqrt(w_k) F^H exp(i z_k r) F P_m     M modes become M K;  I_j = sum_mk |D(O_j sqrt(w_k) G(z_k) P_jm)|^2
    d(sqrt(w_k) G(z_k) P) / d sigma = sqrt(2) x_k sqrt(w_k) F^H [i r exp(i z_k r) F P]

sigma = Cc sqrt((sigma_E / E)^2 + (sigma_V / V)^2 + (2 sigma_I / I)^2) of a lens of chromatic aberration Cc; all are
standard deviations, 0.42 of a full width at half maximum (Kirkland, Advanced Computing in Electron Microscopy, ch. 3).

K nodes are exact for what follows the defocus as a polynomial of degree 2 K - 1. The phase between the middle of a beam
of half angle alpha and its edge is s = pi sigma alpha^2 / lambda at one sigma: 5 nodes suffice to s = 2, 7 to 2.5, 11
to 4.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ptymesh.geometry import Geometry
from ptymesh.physics.elementwise import times
from ptymesh.physics.model import inner
from ptymesh.physics.operators import Place, ShiftedCopies, Tables, Values, WaveOperator
from ptymesh.physics.propagate import fft, ifft, phase_rate
from ptymesh.unknowns import Unknown


class FocalSpread(ShiftedCopies, WaveOperator):
    """Focal spread of the beam (`focal_spread`, m, a standard deviation): each mode becomes several defocused states.

    It stays as it starts, `start: {focal_spread: 3e-9}`, unless a stage has `unknowns: {focal_spread: true}`.
    """

    name: ClassVar[str] = "focal_spread"
    at: ClassVar[Place] = "probe"
    depends_on_wavelength: ClassVar[bool] = True
    # at 0 no pattern changes with it to first order, so that no step would ever leave it
    unknowns: ClassVar[tuple[Unknown, ...]] = (
        Unknown("focal_spread", unit="m", start=3e-9, least=1e-10, largest=1.0, may_rest=True),
    )

    states: int = Field(
        7,
        ge=2,
        le=32,
        description="number of defocused states K, each as costly as a probe mode; with s = pi sigma alpha^2 / lambda, "
        "alpha the half angle of the beam, 5 suffice to s = 2, 7 to 2.5, 11 to 4",
    )

    @property
    def fan_out(self) -> int:
        """Number of waves that each mode becomes, K."""
        return self.states

    def check(self, geometry: Geometry) -> None:
        """Check that the geometry has what a defocus needs.

        Raises:
            BadInput: the wavelength or the object pixel is unknown.
        """
        geometry.pixel_and_wavelength("optics.focal_spread")

    def sizes(self, geometry: Geometry) -> dict[str, float]:
        """Return the spread, m, that turns phases by a radian between the middle and a quarter of a window's band."""
        (y, x), wavelength = geometry.object_pixel_m or (0.0, 0.0), geometry.wavelength_m
        assert wavelength is not None, "checked"
        return {"focal_spread": 64 * max(y, x) ** 2 / (math.pi * wavelength)}

    def tables(self, geometry: Geometry) -> Tables:
        """Return r, (h, w) rad/m, and sqrt(2) x_k and sqrt(w_k), (K,) each."""
        assert geometry.object_pixel_m is not None and geometry.wavelength_m is not None, "checked"
        nodes, weights = (torch.from_numpy(x) for x in np.polynomial.hermite.hermgauss(self.states))
        rate = phase_rate(geometry.shape, geometry.object_pixel_m, geometry.wavelength_m)
        return rate, math.sqrt(2) * nodes, (weights / math.sqrt(math.pi)).sqrt()

    def copies(self, values: Values, tables: Tables) -> tuple[Tensor, Tensor]:
        """Return no shifts, and sqrt(w_k).

        Args:
            values: not used.
            tables: r, sqrt(2) x_k and sqrt(w_k).
        """
        return tables[2].new_zeros((1, self.states, 2)), tables[2]

    def distances(self, values: Values, tables: Tables) -> tuple[Tensor, Tensor]:
        """Return z_k, (1, K), and r.

        Args:
            values: `focal_spread` 0-d, sigma in metres.
            tables: r, sqrt(2) x_k and sqrt(w_k).
        """
        return values["focal_spread"] * tables[1][None], tables[0]

    def slopes(self, psi: Tensor, values: Values, tables: Tables, back: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the slope and norm by the focal spread, (B,) each.

        Args:
            psi: (B, M, h, w) complex, where the operator begins.
            values: `focal_spread` 0-d, sigma in metres.
            tables: r, sqrt(2) x_k and sqrt(w_k).
            back: (B, M K, h, w) complex, wave taken back to where it ends.
        """
        rate, nodes, _ = tables
        turned = times(fft(psi)[:, :, None], self.turns(psi, values, tables)) * (nodes[:, None, None] * rate)
        moved = ifft(torch.complex(-turned.imag, turned.real)).flatten(1, 2)
        return {"focal_spread": (inner(moved, back), inner(moved, moved))}
