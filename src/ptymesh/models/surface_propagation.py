"""Beam on a surface that leans, and a stage that moves across the beam: the surface is nearer to the focus, or further.

theta    angle of incidence; the beam goes along u, with s = sin of its angle to the normal along the lean (signed)
u        unit vector of the incident beam;  k  frequencies along the surface of the wave without its carrier s / lambda
K        wave vector over 2 pi: (s / lambda + k_a, k_b) along the surface, the rest of 1 / lambda along its normal
z_j      distance (m) along the beam by which the surface is further downstream in view j than in the mean of all
p_j      position on the surface along the lean (m), from the mean of all

    G(z_j) P = F^H exp(i z_j r) F P,    r = 2 pi (K.u - 1 / lambda),    z_j = s p_j

The probe is the wave on the surface, and a move along the beam leaves it where it is: to first order in k, r is 0. A
stage that moves along the surface has z_j = 0 and needs no such piece. CDTools' Bragg2DPtycho has the same phase.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.geometry import STEEPEST_DEG, Geometry, Pair
from ptymesh.measurement import Measurement
from ptymesh.models.view_defocus import PropagatedViews
from ptymesh.physics.operators import Place, Tables, WaveOperator
from ptymesh.physics.propagate import frequencies
from ptymesh.unknowns import Unknown


class SurfacePropagation(PropagatedViews, WaveOperator):
    """Distance of a leaning surface along the beam in each view (`along_beam`, m), which follows from the positions.

    It stays there, or is refined if a stage has `unknowns: {along_beam: true}`.
    """

    name: ClassVar[str] = "surface_propagation"
    at: ClassVar[Place] = "probe"
    depends_on_wavelength: ClassVar[bool] = True
    keeps_products: ClassVar[bool] = True
    unknowns: ClassVar[tuple[Unknown, ...]] = (
        Unknown("along_beam", ("N",), "view", unit="m", largest=1.0, common_to="probe", may_rest=True),
    )

    incidence_deg: float | None = Field(
        None,
        ge=-STEEPEST_DEG,
        le=STEEPEST_DEG,
        description="angle between the surface's normal and the beam that comes in, in the plane in which "
        "`data.surface_deg` leans; none takes that of a mirror, `data.surface_deg`",
    )
    rate: float | None = Field(
        None,
        ge=-100,
        le=100,
        description="metres that the surface moves downstream along the beam per metre of position along the lean; "
        "none is a stage that moves across the beam",
    )

    def check(self, geometry: Geometry) -> None:
        """Check that the geometry is that of a surface whose pixel and wavelength are known.

        Raises:
            BadInput: it is not.
        """
        if not any(geometry.surface_deg):
            raise BadInput(
                "optics.surface_propagation is for a surface that leans; give data.surface_deg, or remove it."
            )
        geometry.pixel_and_wavelength("optics.surface_propagation")

    def start_values(self, measurement: Measurement) -> Mapping[str, float | np.ndarray]:
        """Return z_j, (N,), which follow from the positions, unless `start` says one number.

        Args:
            measurement: the scan.
        """
        geometry = measurement.geometry
        if self.start or geometry.object_pixel_m is None:
            return super().start_values(measurement)
        axis = leaning_axis(geometry)
        p = (measurement.positions - measurement.positions.mean(axis=0))[:, axis] * geometry.object_pixel_m[axis]
        return {"along_beam": p * (self._sine(geometry) if self.rate is None else self.rate)}

    def sizes(self, geometry: Geometry) -> dict[str, float]:
        """Return the distance, m, that turns the phase by a radian between the spectrum's middle and half its band."""
        rate = self.tables(geometry)[0].abs()
        h, w = geometry.shape
        half = max(float(rate[h // 4].min()), float(rate[:, w // 4].min()))
        return {"along_beam": 1 / half}

    def tables(self, geometry: Geometry) -> Tables:
        """Return r, (h, w) rad/m."""
        assert geometry.object_pixel_m is not None and geometry.wavelength_m is not None, "checked"
        return (
            leaning_rate(
                geometry.shape,
                geometry.object_pixel_m,
                geometry.wavelength_m,
                self._sine(geometry),
                leaning_axis(geometry),
            ),
        )

    def _sine(self, geometry: Geometry) -> float:
        """Return s; the beam comes in from the side to which the normal leans, and so goes against the axis."""
        lean_deg = geometry.surface_deg[leaning_axis(geometry)]
        return -math.sin(math.radians(lean_deg if self.incidence_deg is None else self.incidence_deg))


def leaning_rate(shape: tuple[int, int], pixel_m: Pair, wavelength_m: float, sine: float, axis: int) -> Tensor:
    """Return r = 2 pi (K.u - 1 / lambda), (h, w) float64 in rad/m, 0 for waves that do not leave the surface.

    With q the part of K across the beam, K.u - 1 / lambda = -q^2 / (K.u + 1 / lambda), without cancellation.

    Args:
        shape: (h, w).
        pixel_m: pixel (y, x) on the surface.
        wavelength_m: wavelength.
        sine: s, of the beam's angle to the surface's normal along the axis.
        axis: along which the surface leans, 0 for y.
    """
    k = frequencies(shape, pixel_m)
    along, across = k[axis], k[1 - axis]
    inverse, cosine = 1 / wavelength_m, math.sqrt(1 - sine * sine)
    more = 2 * inverse * sine * along + along**2 + across**2
    normal_squared = inverse**2 * cosine**2 - more
    leaves = normal_squared > 0
    # (inverse cosine - normal part), which the frequencies take from the carrier's
    less = more / (torch.sqrt(normal_squared.clamp(min=0)) + inverse * cosine)
    q2 = across**2 + (along * cosine + sine * less) ** 2
    forward = torch.sqrt((inverse**2 - q2).clamp(min=0))
    return torch.where(leaves & (q2 < inverse**2), -2 * math.pi * q2 / (forward + inverse), 0.0)


def leaning_axis(geometry: Geometry) -> int:
    """Return the axis along which the surface leans, 0 for y."""
    return 0 if geometry.surface_deg[0] else 1
