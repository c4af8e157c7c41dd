"""Reflection from a mirror behind the object: the beam passes the object, is reflected, and passes it once more.

O       transmission of the object, such as the absorber of a mask;  P  the beam on it
d       distance from the object's plane to the plane of the mirror; of a multilayer, the depth from which it reflects
theta   angle of incidence;  s, c  sine (signed along the lean) and cosine of the beam's angle to the normal
k       frequencies along the surface of the wave without its carrier s / lambda
q       frequency along the normal of a plane wave, (lambda^-2 - (s / lambda + k_a)^2 - k_b^2)^(1/2)
R       complex reflectivity of the mirror for a plane wave, by its angle of incidence, acos(lambda q)

    psi = O . G (O . P),   G = F^H R exp(4 pi i d (q - c / lambda)) F

Both passes are of the same pixels of O. The way to the mirror and back displaces the wave by 2 d tan(theta) against
the object: features come twice, beside each other. Waves that go along the surface or vanish (q^2 < 0) do not return.

This is one layer of the reflecting multislice model of Zhu et al., "Reflection-mode Multi-slice Fourier Ptychographic
Tomography", arXiv:2503.12246 (2025), with an angle-dependent mirror. On when a single plane no longer does for a sample
that reflects: Senhorst, Witte & Coene, "The 2D approximation quickly breaks down in reflection ptychography",
arXiv:2604.05989 (2026).
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field, field_validator

from ptymesh.geometry import Geometry
from ptymesh.models.surface_propagation import leaning_axis
from ptymesh.physics.operators import MirrorPiece, Tables
from ptymesh.physics.propagate import frequencies


class DoublePass(MirrorPiece):
    """A mirror behind the object, through which the beam comes and goes: an absorber on a multilayer.

    The angle of incidence is `data.surface_deg`.
    """

    name: ClassVar[str] = "double_pass"
    depends_on_wavelength: ClassVar[bool] = True

    depth_m: float = Field(ge=0, le=1, description="distance from the object's plane to that of the mirror")
    reflectivity: list[tuple[float, float, float]] | None = Field(
        None,
        max_length=10_000,
        description="angle of incidence in degrees, amplitude and phase in radians of the light that the mirror "
        "returns at it, between which it is interpolated; none: it returns all light alike",
    )

    @field_validator("reflectivity")
    @classmethod
    def _check_table(cls, table: list[tuple[float, float, float]] | None) -> list[tuple[float, float, float]] | None:
        rows = np.array([] if table is None else table)
        if table is not None and (
            not len(rows) or not np.isfinite(rows).all() or (np.diff(rows[:, 0]) <= 0).any() or (rows[:, 1] < 0).any()
        ):
            raise ValueError("reflectivity holds angles that do not rise, or amplitudes below 0; mend its rows")
        return table

    def check(self, geometry: Geometry) -> None:
        """Check that pixel and wavelength are known.

        Raises:
            BadInput: they are not.
        """
        geometry.pixel_and_wavelength("optics.double_pass")

    def tables(self, geometry: Geometry) -> Tables:
        """Return R exp(4 pi i d (q - c / lambda)), (h, w) complex128."""
        pixel_m, wavelength_m = geometry.pixel_and_wavelength("optics.double_pass")
        axis = leaning_axis(geometry)
        sine = -math.sin(math.radians(geometry.surface_deg[axis]))
        inverse, k = 1 / wavelength_m, frequencies(geometry.shape, pixel_m)
        along, across = k[axis], k[1 - axis]
        squared = inverse**2 - (sine * inverse + along) ** 2 - across**2
        q = squared.clamp(min=0).sqrt()
        phase = 4 * math.pi * self.depth_m * (q - inverse * math.sqrt(1 - sine * sine))
        amplitude = torch.ones_like(q)
        if self.reflectivity is not None:
            degrees, amplitudes, phases = np.array(self.reflectivity).T
            angles = np.degrees(np.arccos((q / inverse).clamp(max=1).numpy()))
            amplitude = torch.from_numpy(np.interp(angles, degrees, amplitudes))
            phase = phase + torch.from_numpy(np.interp(angles, degrees, phases))
        return (torch.polar(torch.where(squared > 0, amplitude, 0.0), phase),)
