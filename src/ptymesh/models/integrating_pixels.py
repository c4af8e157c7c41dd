"""Pixels of the detector that integrate over their area, finer than the detector samples a pattern.

a          side of the square over which a pixel integrates, in pixels; 1 for one that is sensitive all over
c_k, v_k   nodes and weights of Gauss and Legendre on (-1/2, 1/2), k = 1 ... K
r          place in the window from the optical axis, over the window's size, (-1/2, 1/2) along y and x

    psi_m -> sqrt(v_k v_l) exp(-2 pi i a (c_k r_y + c_l r_x)) psi_m      M modes become M K^2
    I(q) = sum_mkl v_k v_l |F psi_m|^2 at q + a (c_k, c_l)

A wave of (h, w) pixels has a pattern that is known between the detector's pixels, too: F psi at q + c is the transform
of psi with a phase ramp. So this is the integral for every exit wave that ends within its window. A transfer function
of the pixels (detector_transfer.py) does the same for waves that fill half of it, at the cost of one transform: what is
beyond makes fringes finer than two pixels, of which the samples at the pixels' centres know nothing. Fringes of f
cycles per pixel, f at most 1, keep sinc(a f) of their contrast; at a = 1, 2 nodes miss that by 0.02 for f up to 1/2 and
by 0.24 for others, 3 by 0.001 and 0.022.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.physics.elementwise import times
from ptymesh.physics.model import inner
from ptymesh.physics.operators import Place, Tables, Values, WaveOperator, sum_in_order
from ptymesh.unknowns import Unknown


class IntegratingPixels(WaveOperator):
    """Pixels that integrate over a square (`sensitive_side`, px) of a pattern that is finer than they are.

    The side stays as it starts, at a whole pixel, unless a stage has `unknowns: {sensitive_side: true}`.
    """

    name: ClassVar[str] = "integrating_pixels"
    at: ClassVar[Place] = "exit"
    # at 0 no pattern changes with it to first order, so that no step would ever leave it
    unknowns: ClassVar[tuple[Unknown, ...]] = (
        Unknown("sensitive_side", unit="px", start=1.0, least=0.02, largest=2.0, may_rest=True),
    )

    points: int = Field(
        3,
        ge=2,
        le=9,
        description="number of places in a pixel along y and along x, K; their K^2 waves are each as costly as a probe "
        "mode",
    )

    @property
    def fan_out(self) -> int:
        """Number of waves that each mode becomes, K^2."""
        return self.points**2

    def check(self, geometry: Geometry) -> None:
        """Check that the geometry allows the sum.

        Raises:
            BadInput: a near field, where the model's pixels are those of the detector.
        """
        if geometry.propagation != "far_field":
            raise BadInput(
                "optics.integrating_pixels is for far-field scans, and this one is in the near field; use "
                "optics.detector_transfer with pixel_side: 1."
            )

    def sizes(self, geometry: Geometry) -> dict[str, float]:
        """Return a change of the side, px, that changes the contrast of the finest fringes by a third."""
        return {"sensitive_side": 0.3}

    def tables(self, geometry: Geometry) -> Tables:
        """Return 2 pi (c_k r_y + c_l r_x), (K^2, h, w), and sqrt(v_k v_l), (K^2,)."""
        nodes, weights = (torch.from_numpy(x) / 2 for x in np.polynomial.legendre.leggauss(self.points))
        y, x = ((torch.arange(n, dtype=torch.float64) - n // 2) / n for n in geometry.shape)
        places = torch.cartesian_prod(nodes, nodes)
        rates = 2 * math.pi * (places[:, 0, None, None] * y[:, None] + places[:, 1, None, None] * x)
        return rates, torch.cartesian_prod(weights, weights).prod(1).sqrt()

    def forward(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return sqrt(v_k v_l) exp(-2 pi i a (c_k r_y + c_l r_x)) psi.

        Args:
            psi: (B, M, h, w) complex.
            values: `sensitive_side` 0-d, a in pixels.
            tables: 2 pi (c_k r_y + c_l r_x) and sqrt(v_k v_l).

        Returns:
            (B, M K^2, h, w), the K^2 waves of a mode beside each other.
        """
        return times(psi[:, :, None], _factors(values, tables)).flatten(1, 2)

    def adjoint(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return sum_kl sqrt(v_k v_l) exp(2 pi i a (c_k r_y + c_l r_x)) psi_kl.

        Args:
            psi: (B, M K^2, h, w) complex.
            values: `sensitive_side` 0-d, a in pixels.
            tables: 2 pi (c_k r_y + c_l r_x) and sqrt(v_k v_l).
        """
        return sum_in_order(times(psi.unflatten(1, (-1, self.fan_out)), _factors(values, tables).conj()), 2)

    def slopes(self, psi: Tensor, values: Values, tables: Tables, back: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the slope and norm by the side, (B,) each.

        Args:
            psi: (B, M, h, w) complex, where the operator begins.
            values: `sensitive_side` 0-d, a in pixels.
            tables: 2 pi (c_k r_y + c_l r_x) and sqrt(v_k v_l).
            back: (B, M K^2, h, w) complex, wave taken back to where it ends.
        """
        turned = times(psi[:, :, None], _factors(values, tables)) * tables[0]
        moved = torch.complex(turned.imag, -turned.real).flatten(1, 2)
        return {"sensitive_side": (inner(moved, back), inner(moved, moved))}


def _factors(values: Values, tables: Tables) -> Tensor:
    """Return sqrt(v_k v_l) exp(-2 pi i a (c_k r_y + c_l r_x)), (K^2, h, w) complex."""
    rates, roots = tables
    return torch.polar(roots[:, None, None].expand_as(rates), -values["sensitive_side"] * rates)
