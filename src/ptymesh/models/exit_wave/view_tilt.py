"""A tilt of the sample for every view: a foil that is bent, or a crystal whose parts lean differently.

t_j     tilt (y, x) of the axis along which slices are stacked, at view j, against `object.tilt_rad` (rad)
z       distance between slices;  K = 2 pi k

    psi -> F^H exp(i z (K_y tan t_jy + K_x tan t_jx)) F psi,    d/dt_a = F^H [i z K_a / cos^2 t_a ...]

on the way from each slice to the next, so that the wave moves by -z tan t from slice to slice: slopes of
the object's tilt and of this one add up. A tilt that all views have is that of the object: where that is refined, too,
only differences of the t_j are. PtyRAD has such tilts (tilt_type: each), with the same factor.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from ptymesh.geometry import Geometry
from ptymesh.physics.elementwise import times
from ptymesh.physics.model import inner
from ptymesh.physics.operators import Place, Tables, Values, WaveOperator
from ptymesh.physics.propagate import fft, frequencies, ifft
from ptymesh.unknowns import Unknown


class ViewTilt(WaveOperator):
    """Tilt (y, x) of the slices at each view (rad), refined if a stage has `unknowns: {view_tilt: true}`.

    It adds to `object.tilt_rad`.
    """

    name: ClassVar[str] = "view_tilt"
    at: ClassVar[Place] = "between"
    unknowns: ClassVar[tuple[Unknown, ...]] = (
        Unknown("view_tilt", ("N", "2"), "view", unit="rad", least=-0.25, largest=0.25, common_to="tilt"),
    )

    def check(self, geometry: Geometry) -> None:
        """Check that the geometry has pixels in metres. Raises BadInput."""
        geometry.pixel_and_wavelength("optics.view_tilt")

    def sizes(self, geometry: Geometry) -> dict[str, float]:
        """Return the tilt, rad, that moves the wave by a pixel over a metre, without its curvature."""
        assert geometry.object_pixel_m is not None, "checked"
        return {"view_tilt": max(geometry.object_pixel_m)}

    def tables(self, geometry: Geometry) -> Tables:
        """Return K along y (h, 1) and x (1, w), rad/m."""
        assert geometry.object_pixel_m is not None, "checked"
        y, x = frequencies(geometry.shape, geometry.object_pixel_m)
        return 2 * math.pi * y, 2 * math.pi * x

    def forward(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return psi, moved by -z tan t.

        Args:
            psi: (B, M, h, w) complex, behind the way to the next slice.
            values: t (B, 2), by name.
            tables: K_y, K_x and z.
        """
        return ifft(times(fft(psi), _factors(values["view_tilt"], tables)))

    def adjoint(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return psi, moved by z tan t.

        Args:
            psi: (B, M, h, w) complex, behind the way to the next slice.
            values: t (B, 2), by name.
            tables: K_y, K_x and z.
        """
        return ifft(times(fft(psi), _factors(-values["view_tilt"], tables)))

    def slopes(self, psi: Tensor, values: Values, tables: Tables, back: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Return Re <d psi / dt, back> and ||d psi / dt||^2 of each view, (B, 2) each.

        Args:
            psi: (B, M, h, w) complex, where the operator begins.
            values: t (B, 2), by name.
            tables: K_y, K_x and z.
            back: (B, M, h, w) complex, wave taken back to where it ends.
        """
        moved, pairs = times(fft(psi), _factors(values["view_tilt"], tables)), []
        turned = torch.complex(-moved.imag, moved.real)
        for rate, tilt in zip(tables[:2], values["view_tilt"].unbind(1), strict=True):
            change = ifft(turned * (tables[2] * rate)) / tilt.cos().square()[:, None, None, None]
            pairs.append((inner(change, back), inner(change, change)))
        along, norms = (torch.stack(parts, dim=1) for parts in zip(*pairs, strict=True))
        return {"view_tilt": (along, norms)}


def _factors(tilt: Tensor, tables: Tables) -> Tensor:
    """Return exp(i z (K_y tan t_y + K_x tan t_x)), (B, 1, h, w), of tilts (B, 2)."""
    (ky, kx), (y, x) = tables[:2], (tables[2] * tilt.tan())[:, :, None, None, None].unbind(1)
    phase = y * ky + x * kx
    return torch.polar(torch.ones_like(phase), phase)
