"""Spatial frequencies along a surface that pixels of a flat detector see, on the grid of the exit wave's transform.

Y, X       place on the detector (m) from where the reflected beam meets it at right angles, at the distance z
theta      angle between that beam and the normal of the surface, which leans from it along one axis (here x)
R          sqrt(z^2 + Y^2 + X^2)
p, p'      detector pixel; as the surface sees it, p' = p cos theta_0 across the lean
f          (f_y, f_x) along the surface, from the scattering vector without that of the reflected beam

    f_y = Y / (lambda R),    f_x = [X cos theta + (R - z) sin theta] / (lambda R)

The transform has them in steps of p / (lambda z) and p' / (lambda z), with the angle theta_0 of the geometry.
Source: Gardner et al., Opt. Express 20, 19050, 2012; de Beurs et al., Opt. Lett. 47, 1949, 2022.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ptymesh.geometry import Geometry


class Grid(NamedTuple):
    """Pixels of the detector and of the transform.

    Attributes:
        window: (h, w).
        detector: z / p (y, x).
        transform: z / p' (y, x).
        axis: along which the surface leans, 0 for y.
    """

    window: tuple[int, int]
    detector: tuple[float, float]
    transform: tuple[float, float]
    axis: int

    @classmethod
    def of_geometry(cls, geometry: Geometry) -> Grid:
        """Return the grid of a far field whose distance and detector pixel are known."""
        assert geometry.distance_m is not None and geometry.detector_pixel_m is not None
        y, x = (geometry.distance_m / pixel for pixel in geometry.detector_pixel_m)
        lean_y, lean_x = (math.cos(math.radians(angle)) for angle in geometry.surface_deg)
        return cls(geometry.shape, (y, x), (y / lean_y, x / lean_x), 0 if geometry.surface_deg[0] else 1)


def seen_places(grid: Grid, angle_deg: float) -> np.ndarray:
    """Return m, (2, h, w) y x, pixels of the transform from its zero frequency, of pixels in the detector's order."""
    (h, w), theta = grid.window, math.radians(angle_deg)
    y = (np.arange(h) - h // 2)[:, None] / grid.detector[0]
    x = (np.arange(w) - w // 2)[None, :] / grid.detector[1]
    R = np.sqrt(1 + y**2 + x**2)
    directions = [np.broadcast_to(y, (h, w)) / R, np.broadcast_to(x, (h, w)) / R]
    # (1 - 1 / R) without the difference of two numbers that are nearly equal
    along = (y**2 + x**2) / (R * (R + 1))
    directions[grid.axis] = directions[grid.axis] * math.cos(theta) + along * math.sin(theta)
    return np.stack([scale * direction for scale, direction in zip(grid.transform, directions, strict=True)])


def seen_areas(grid: Grid, angle_deg: float) -> np.ndarray:
    """Return the area of the transform, in its pixels, that each pixel of the detector sees, (h, w)."""
    (h, w), theta = grid.window, math.radians(angle_deg)
    y = (np.arange(h) - h // 2)[:, None] / grid.detector[0]
    x = (np.arange(w) - w // 2)[None, :] / grid.detector[1]
    # d(f_y, f_x) = n . s / (n . z) d(solid angle) for unit vectors s; the normal leans by theta along the axis
    R = np.sqrt(1 + y**2 + x**2)
    lean = y if grid.axis == 0 else x
    cosine = np.maximum(math.cos(theta) + math.sin(theta) * lean, 0) / R
    scale = grid.transform[0] * grid.transform[1] / (grid.detector[0] * grid.detector[1])
    return np.broadcast_to(scale * cosine / R**3, (h, w))


def greatest_bend(geometry: Geometry) -> float:
    """Return the largest distance, in pixels, of a used pixel's place from where a plain transform takes it to be.

    0 for a geometry of which no surface is known.
    """
    if not any(geometry.surface_deg) or geometry.distance_m is None or geometry.detector_pixel_m is None:
        return 0.0
    grid = Grid.of_geometry(geometry)
    plain = [np.arange(n) - n // 2 for n in geometry.shape]
    apart = seen_places(grid, geometry.surface_deg[grid.axis]) - np.stack(np.meshgrid(*plain, indexing="ij"))
    return float(np.linalg.norm(apart, axis=0)[np.fft.fftshift(seen_pixels(geometry))].max())


def seen_pixels(geometry: Geometry) -> np.ndarray:
    """Return True for pixels that see frequencies of the transform, (h, w), the zero frequency at the corner.

    Towards the surface, pixels at the rim see higher ones.
    """
    if not any(geometry.surface_deg) or geometry.distance_m is None or geometry.detector_pixel_m is None:
        return np.ones(geometry.shape, dtype=bool)
    grid = Grid.of_geometry(geometry)
    angle, shape = geometry.surface_deg[grid.axis], np.array(geometry.shape)[:, None, None]
    places = seen_places(grid, angle) + shape // 2
    inside = ((places >= 0) & (places <= shape - 1)).all(axis=0) & (seen_areas(grid, angle) > 0)
    return np.asarray(np.fft.ifftshift(inside))
