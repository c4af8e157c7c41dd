"""Partial spatial coherence: the image of the source has a size, so that a pattern is a sum over places of the beam.

sigma      width of the source's image in the sample's plane (px), a standard deviation, alike along y and x
x_a, v_a   nodes and weights of Gauss and Hermite, a = 1 ... K
d_ab       place of the beam, sqrt(2) sigma (x_a, x_b);  w_ab = v_a v_b / pi, sum_ab w_ab = 1
T_d        shift of a wave by d pixels (physics/window_shifts.py)

    P_m -> sqrt(w_ab) T_{d_ab} P_m      M modes become M K^2;  I_j = sum_mab |D(O_j sqrt(w_ab) T_{d_ab} P_jm)|^2

A Gaussian source of incoherent points (Nellist & Rodenburg, Ultramicroscopy 54, 61, 1994). As modes of the probe
(Thibault & Menzel, Nature 494, 68, 2013) the same light takes as many unknown waves as it has modes; here it takes one
number. K nodes along an axis are exact for what follows the place as a polynomial of degree 2 K - 1. Patterns follow
the place with fringes of no more than 2 q cycles per pixel, q the largest frequency of the beam: with t = 4 pi q sigma,
3 nodes miss the mean of the finest fringe by 0.007 of its height at t = 1, 5 by 0.013 at t = 2.
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
from ptymesh.physics import window_shifts
from ptymesh.physics.model import inner
from ptymesh.physics.operators import Place, ShiftedCopies, Tables, Values, WaveOperator
from ptymesh.unknowns import Unknown


class SourceSize(ShiftedCopies, WaveOperator):
    """Width of the source's image on the sample (`source_width`, px, a standard deviation): modes are sums of places.

    It stays as it starts, `start: {source_width: 0.5}`, unless a stage has `unknowns: {source_width: true}`.
    """

    name: ClassVar[str] = "source_size"
    at: ClassVar[Place] = "probe"
    # at 0 no pattern changes with it to first order, so that no step would ever leave it
    unknowns: ClassVar[tuple[Unknown, ...]] = (
        Unknown("source_width", unit="px", start=0.5, least=0.02, largest=1e3, may_rest=True),
    )

    points: int = Field(
        3,
        ge=2,
        le=9,
        description="number of places along y and along x, K; their K^2 waves are each as costly as a probe mode",
    )

    @property
    def fan_out(self) -> int:
        """Number of waves that each mode becomes, K^2."""
        return self.points**2

    def check(self, geometry: Geometry) -> None:
        """Check that the geometry allows the sum.

        Raises:
            BadInput: a near field, where a source of some size blurs the image on the detector.
        """
        if geometry.propagation != "far_field":
            raise BadInput(
                "optics.source_size is for far-field scans, and this one is in the near field, where a source of some "
                "size blurs the images; use optics.detector_blur."
            )

    def sizes(self, geometry: Geometry) -> dict[str, float]:
        """Return a change of the width, px, that patterns show where the beam's details are a few pixels wide."""
        return {"source_width": 3.0}

    def tables(self, geometry: Geometry) -> Tables:
        """Return sqrt(2) (x_a, x_b), (K^2, 2), and sqrt(w_ab), (K^2,)."""
        nodes, weights = (torch.from_numpy(x) for x in np.polynomial.hermite.hermgauss(self.points))
        places = math.sqrt(2) * torch.cartesian_prod(nodes, nodes)
        return places, (torch.cartesian_prod(weights, weights).prod(1) / math.pi).sqrt()

    def copies(self, values: Values, tables: Tables) -> tuple[Tensor, Tensor]:
        """Return d_ab, (1, K^2, 2), and sqrt(w_ab), (K^2,).

        Args:
            values: `source_width` 0-d, sigma in pixels.
            tables: sqrt(2) (x_a, x_b) and sqrt(w_ab).
        """
        places, roots = tables
        return (values["source_width"] * places)[None], roots

    def slopes(self, psi: Tensor, values: Values, tables: Tables, back: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the slope and norm by the width, (B,) each: d/d d is -T' of a wave, d d_ab sqrt(2) (x_a, x_b).

        Args:
            psi: (B, M, h, w) complex, where the operator begins.
            values: `source_width` 0-d, sigma in pixels.
            tables: sqrt(2) (x_a, x_b) and sqrt(w_ab).
            back: (B, M K^2, h, w) complex, wave taken back to where it ends.
        """
        waves = self.forward(psi, values, tables)
        places = tables[0].repeat(psi.shape[1], 1)[..., None, None]
        moved = -(places[:, 0] * window_shifts.derivative(waves, 0) + places[:, 1] * window_shifts.derivative(waves, 1))
        return {"source_width": (inner(moved, back), inner(moved, moved))}
