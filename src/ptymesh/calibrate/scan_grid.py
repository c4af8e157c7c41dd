"""Regular grid that images of a scan are drawn on: the scan's own raster, or one laid over its positions.

N       views
R, C    rows and columns of the grid
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, sqrt

import numpy as np
from scipy.sparse import csr_array
from scipy.spatial import ConvexHull, Delaunay, cKDTree

from ptymesh.errors import BadInput
from ptymesh.io.prepare.positions import row_length
from ptymesh.io.prepare.survey import even_cell

#: Least number of rows and columns of which a rotation or a defocus can be found.
FEWEST_LINES = 8
#: Largest departure from a raster, in steps, that is still taken for one.
RASTER_ERROR = 0.1
#: Most grid points for one view where the scan is no raster: a scan that lies along few lines would need more.
MOST_PER_VIEW = 4


@dataclass(frozen=True)
class ScanGrid:
    """Grid of a scan.

    Attributes:
        positions_m: (N, 2) float64, y x, of the views in the scan's own axes.
        shape: (R, C).
        step_m: (y, x) distance between neighbouring rows and columns.
        is_raster: whether the views are the grid's points, row by row.
        area_m2: that each view has to itself.
    """

    positions_m: np.ndarray
    shape: tuple[int, int]
    step_m: tuple[float, float]
    is_raster: bool
    area_m2: float

    def image(self, values: np.ndarray) -> np.ndarray:
        """Return values (N, ...) of the views as images (R, C, ...), interpolated linearly if the scan is no raster."""
        if self.is_raster:
            return values.reshape(*self.shape, *values.shape[1:])
        flat = self._interpolation @ values.reshape(len(values), -1).astype(np.float64)
        return np.asarray(flat.reshape(*self.shape, *values.shape[1:]))

    @cached_property
    def _interpolation(self) -> csr_array:
        """Matrix (R C, N): linear in the triangles between views, the nearest view outside of all of them."""
        # in steps from the middle: triangles of metres would be lost in rounding
        views = (self.positions_m - (self.positions_m.min(axis=0) + self.positions_m.max(axis=0)) / 2) / self.step_m
        axes = [np.arange(n) - (n - 1) / 2 for n in self.shape]
        points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
        mesh = Delaunay(views)
        triangle = mesh.find_simplex(points)
        inside = np.flatnonzero(triangle >= 0)
        transform = mesh.transform[triangle[inside]]
        first = np.einsum("nij,nj->ni", transform[:, :2], points[inside] - transform[:, 2])
        weights = np.concatenate([first, 1 - first.sum(axis=1, keepdims=True)], axis=1)
        sound = np.isfinite(weights).all(axis=1)  # not in triangles without an area
        outside = np.setdiff1d(np.arange(len(points)), inside[sound])
        nearest = cKDTree(views).query(points[outside])[1]
        rows = np.concatenate([np.repeat(inside[sound], 3), outside])
        columns = np.concatenate([mesh.simplices[triangle[inside[sound]]].reshape(-1), nearest])
        entries = np.concatenate([weights[sound].reshape(-1), np.ones(len(outside))])
        return csr_array((entries, (rows, columns)), shape=(len(points), len(views)))


def scan_grid(positions_m: np.ndarray) -> ScanGrid:
    """Return the grid of a scan.

    Args:
        positions_m: (N, 2) y x in metres.

    Raises:
        BadInput: the scan has too few rows or columns.
    """
    length = row_length(positions_m)
    if length is not None and len(positions_m) % length == 0:
        raster = _raster(positions_m, (len(positions_m) // length, length))
        if raster is not None:
            return _refuse_few_lines(raster)
    return _refuse_few_lines(_laid_over(positions_m))


def _raster(positions_m: np.ndarray, shape: tuple[int, int]) -> ScanGrid | None:
    """Return the raster that views are, with rows along y; None if they lie otherwise."""
    lattice = positions_m.reshape(*shape, 2)
    step_y = float(np.diff(lattice[..., 0], axis=0).mean())
    step_x = float(np.diff(lattice[..., 1], axis=1).mean())
    if step_y <= 0 or step_x <= 0:
        return None
    steps = np.array((step_y, step_x))
    ideal = np.stack(np.meshgrid(*(np.arange(n) for n in shape), indexing="ij"), axis=-1) * steps
    error = lattice - ideal
    error -= error.mean(axis=(0, 1))
    if np.abs(error / steps).max() > RASTER_ERROR:
        return None
    return ScanGrid(positions_m, shape, (step_y, step_x), True, step_y * step_x)


def _laid_over(positions_m: np.ndarray) -> ScanGrid:
    """Return a square grid over positions of any kind, about as dense as they are."""
    extent = np.ptp(positions_m, axis=0)
    if len(positions_m) < FEWEST_LINES**2 or not extent.min() > 1e-3 * extent.max():
        raise BadInput(_too_few(f"{len(positions_m)} views over {extent[0]:.3g} x {extent[1]:.3g} m"))
    hull = float(ConvexHull(positions_m / extent.max()).volume) * float(extent.max()) ** 2
    area = even_cell(positions_m) or hull / len(positions_m)
    step = sqrt(area)
    shape = (ceil(extent[0] / step) + 1, ceil(extent[1] / step) + 1)
    if shape[0] * shape[1] > MOST_PER_VIEW * len(positions_m):
        raise BadInput(
            f"The {len(positions_m)} views leave most of the {extent[0]:.3g} x {extent[1]:.3g} m that they span empty; "
            "calibrate needs a scan that covers an area evenly."
        )
    return ScanGrid(positions_m, shape, (step, step), False, area)


def _refuse_few_lines(grid: ScanGrid) -> ScanGrid:
    if min(grid.shape) < FEWEST_LINES:
        raise BadInput(_too_few(f"{grid.shape[0]} x {grid.shape[1]} views"))
    return grid


def _too_few(noun: str) -> str:
    return (
        f"The scan has {noun}, from which no rotation and no defocus follow; calibrate needs at least {FEWEST_LINES} "
        "rows and columns."
    )
