"""Lengths that cannot be meant, as metres are given for micrometres: found by what the window and its pixels allow.

lambda  wavelength (m)
p       object pixel (m)
n       pixels along a side of the window
"""

from __future__ import annotations

from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry

#: Largest spacing of slices, in distances over which light at the detector's edge crosses the window, n p^2 / lambda.
MOST_CROSSINGS = 2.0
#: Smallest spacing of slices, in depths of field, p^2 / lambda.
LEAST_DEPTHS = 1e-3


def refuse_spacing(geometry: Geometry, spacing_m: float) -> None:
    """Raise BadInput where slices lie too far apart or too near.

    Too far, light leaves the window between them; too near, nothing tells one from the next.

    Args:
        geometry: of the window; where it is in pixels alone, nothing is refused.
        spacing_m: distance between neighbours.
    """
    if geometry.object_pixel_m is None or geometry.wavelength_m is None:
        return
    sides = list(zip(geometry.shape, geometry.object_pixel_m, strict=True))
    most = MOST_CROSSINGS * min(n * p**2 for n, p in sides) / geometry.wavelength_m
    least = LEAST_DEPTHS * min(p**2 for _, p in sides) / geometry.wavelength_m
    if spacing_m > most:
        width = min(n * p for n, p in sides)
        raise BadInput(
            f"object.slice_spacing_m is {spacing_m:.3g} m, and between slices more than {most:.2g} m apart light "
            f"leaves the window, which is {width:.2g} m wide; give metres (1e-6 for 1 um), or a larger window."
        )
    if spacing_m < least:
        raise BadInput(
            f"object.slice_spacing_m is {spacing_m:.3g} m, and the depth of field is {least / LEAST_DEPTHS:.2g} m: "
            "nothing tells such slices apart; give metres (1e-6 for 1 um), or one slice."
        )
