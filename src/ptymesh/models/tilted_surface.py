"""Patterns of a surface that the beam meets at an angle, on a flat detector across the beam that it reflects.

theta      angle between that beam and the normal of the surface
m          place (y, x) of a detector's pixel on the grid of the exit wave's transform, which follows from theta and
           the pixel's direction (physics/detector/surface.py);  J  the Jacobian of m, the grid's area that a pixel sees

    R S = J S(m),    S(m) linear between the four points around m

R has no negative entries, which engines that revise waves rely on, and makes and loses no light. Between points it is
as exact as the window samples the intensity: a residual of 5e-4 is left at most for exit waves of a quarter of the
window, 3e-5 for those of an eighth. The counts stay as they were measured, with their own noise. An angle of 0 is a
flat detector that reaches to large angles in transmission.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.measurement import Measurement
from ptymesh.models.tilted_waves import TiltedWaves
from ptymesh.physics.detector.pieces import DetectorPiece
from ptymesh.physics.detector.sparse_rows import Rows
from ptymesh.physics.detector.surface import Grid, greatest_bend, seen_areas, seen_places
from ptymesh.physics.operators import Piece, Tables, Values
from ptymesh.unknowns import Unknown

#: Step of the central difference by which R follows the angle, in degrees.
STEP_DEG = 1e-4
#: Pixels by which a pattern of a surface may be bent where nothing unbends it.
MOST_BENT_PX = 1.0


class TiltedSurface(DetectorPiece):
    """Surface that the beam meets at an angle, `data.surface_deg`, and a flat detector across the reflected beam.

    The angle is refined if a stage has `unknowns: {surface_angle: true}`.
    """

    name: ClassVar[str] = "tilted_surface"
    unknowns: ClassVar[tuple[Unknown, ...]] = (Unknown("surface_angle", unit="deg", least=-85.0, largest=85.0),)

    def check(self, geometry: Geometry) -> None:
        """Check that the geometry is a far field of which distance and detector pixel are known.

        Raises:
            BadInput: it is not.
        """
        if geometry.propagation != "far_field":
            raise BadInput("optics.tilted_surface is for far fields, and this scan is in the near field; leave it out.")
        if geometry.distance_m is None or geometry.detector_pixel_m is None:
            raise BadInput(
                "optics.tilted_surface needs the distance and the pixel of the detector, which this data set does not "
                "have; give data.distance_m and data.detector_pixel_m."
            )

    def for_scan(self, measurement: Measurement) -> tuple[Piece, str]:
        """Return the piece with the angle that the geometry knows, unless `start` says another.

        Args:
            measurement: the scan.

        Raises:
            BadInput: distance or detector pixel are not known.
        """
        self.check(measurement.geometry)
        if self.start:
            return self, ""
        geometry = measurement.geometry
        known = geometry.surface_deg[Grid.of_geometry(geometry).axis]
        return self.model_copy(update={"start": {"surface_angle": known}}), ""

    def sizes(self, geometry: Geometry) -> dict[str, float]:
        """Return the change of the angle, deg, that moves a corner of the pattern by a pixel, 10 at most."""
        grid = Grid.of_geometry(geometry)
        angle = geometry.surface_deg[grid.axis]
        moved = np.abs(seen_places(grid, angle + 0.5) - seen_places(grid, angle - 0.5)).max()
        return {"surface_angle": 1 / max(float(moved), 0.1)}

    def tables(self, geometry: Geometry) -> Tables:
        """Return the numbers of the geometry's `Grid` but its window."""
        grid = Grid.of_geometry(geometry)
        return (torch.tensor([*grid.detector, *grid.transform, grid.axis], dtype=torch.float64),)

    def forward(self, S: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return R S.

        Args:
            S: (B, ..., h, w) real.
            values: `surface_angle`, 0-d, deg.
            tables: from `tables`.
        """
        return _at(S, values, tables).forward.applied(S)

    def adjoint(self, x: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return R^T x.

        Args:
            x: (B, ..., h, w) real.
            values: `surface_angle`, 0-d, deg.
            tables: from `tables`.
        """
        return _at(x, values, tables).adjoint.applied(x)

    def derivatives(self, S: Tensor, values: Values, tables: Tables) -> dict[str, Tensor]:
        """Return dR S / d theta, (B, h, w) per degree, from R at angles on both sides.

        Args:
            S: (B, h, w) real.
            values: `surface_angle`, 0-d, deg.
            tables: from `tables`.
        """
        above, below = (_at(S, values, tables, side * STEP_DEG).forward.applied(S.double()) for side in (1, -1))
        return {"surface_angle": ((above - below) / (2 * STEP_DEG)).to(S.dtype)}

    def reach_px(self, values: Values) -> float:
        """Return the width of the four points from which a pixel takes light."""
        return 1.0


def refuse_bent_patterns(geometry: Geometry, pieces: Iterable[Piece]) -> None:
    """Refuse patterns of a surface that a plain transform does not explain, where no piece of the model does.

    Args:
        geometry: of the scan.
        pieces: of the model.

    Raises:
        BadInput: patterns are bent by more than a pixel and no piece unbends them, or two do.
    """
    named = {one.name for one in pieces} & {TiltedSurface.name, TiltedWaves.name}
    if len(named) > 1:
        raise BadInput("optics has tilted_surface and tilted_waves, which are two ways to the same; remove one.")
    if named:
        return
    bent = greatest_bend(geometry)
    if bent > MOST_BENT_PX:
        y, x = geometry.surface_deg
        raise BadInput(
            f"data.surface_deg is [{y:g}, {x:g}], at which pixels see frequencies up to {bent:.3g} pixels from where a "
            "plain transform has them; add optics: {tilted_surface: true} (or tilted_waves), or crop the patterns."
        )


class Resampling(NamedTuple):
    """R and its adjoint."""

    forward: Rows
    adjoint: Rows


def _at(S: Tensor, values: Values, tables: Tables, further_deg: float = 0.0) -> Resampling:
    """Return R at the present angle, and so many degrees further."""
    y, x, shorter_y, shorter_x, axis = (float(number) for number in tables[0])
    grid = Grid((S.shape[-2], S.shape[-1]), (y, x), (shorter_y, shorter_x), int(axis))
    return _resampling(grid, float(values["surface_angle"]) + further_deg, S.device)


@lru_cache(maxsize=4)
def _resampling(grid: Grid, angle_deg: float, device: torch.device) -> Resampling:
    """Return R for patterns with the zero frequency at the corner."""
    h, w = grid.window
    m = seen_places(grid, angle_deg)
    areas = seen_areas(grid, angle_deg)
    first = np.floor(m).astype(np.int64)
    share = m - first
    number = np.fft.ifftshift(np.arange(h * w).reshape(h, w)).argsort(axis=None).reshape(h, w)
    rows, columns, entries = [], [], []
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        y, x = first[0] + i + h // 2, first[1] + j + w // 2
        weights = areas * np.abs(1 - i - share[0]) * np.abs(1 - j - share[1])
        inside = (y >= 0) & (y < h) & (x >= 0) & (x < w) & (weights > 0)
        rows.append(number[inside])
        columns.append(number[y[inside], x[inside]])
        entries.append(weights[inside])
    places = np.concatenate(rows), np.concatenate(columns)
    matrix = sparse.csr_array((np.concatenate(entries), places), shape=(h * w, h * w))
    return Resampling(Rows.of_matrix(matrix, device), Rows.of_matrix(matrix.T.tocsr(), device))
