"""Patterns of a surface that the beam meets at an angle, on a flat detector across the beam that it reflects.

theta      angle between that beam and the normal of the surface
m          place (y, x) of a detector's pixel on the grid of the exit wave's transform, which follows from theta and
           the pixel's direction (physics/detector/surface.py);  J  the Jacobian of m, the grid's area that a pixel sees

    R S = J S(m),    S(m) linear between the four points around m

R has no negative entries, which engines that revise waves rely on, and makes and loses no light. Between points it is
as exact as the window samples the intensity: a residual of 5e-4 is left at most for exit waves of a quarter of the
window, 3e-5 for those of an eighth. The counts stay as they were measured, with their own noise. An angle of 0 is a
flat detector that reaches to large angles in transmission.

`TiltedWaves` takes waves instead of intensities from between the points:

f          points of the transform along each axis for one pixel of the detector;  Z pads with zeros to f h, f w

    psi -> F_hw^H W F Z psi,    W Psi = f sqrt(J) Psi(m),    Psi(m) linear between the four points around m

behind the last slice. F has its origin in the middle of the window, without which waves change their sign from point to
point. Engines that revise waves want these, and they may be taken from finer points. With f = 1 the numbers are those
of `correct_tilt` of CDTools' Bragg2DPtycho, but for its weights: it multiplies waves by what intensities are to be
multiplied by.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
import scipy
import torch
from pydantic import Field
from torch import Tensor
from torch.fft import fftshift, ifftshift

from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.measurement import Measurement
from ptymesh.physics.detector.pieces import DetectorPiece
from ptymesh.physics.detector.sparse_rows import Rows
from ptymesh.physics.detector.surface import Grid, greatest_bend, seen_areas, seen_places
from ptymesh.physics.operators import Piece, Place, Tables, Values, WaveOperator
from ptymesh.physics.propagate import fft, ifft
from ptymesh.unknowns import Unknown

#: The last two axes.
YX = (-2, -1)
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
        _check_far_detector(self.name, geometry)

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
        lean_deg = geometry.surface_deg[Grid.of_geometry(geometry).axis]
        return self.model_copy(update={"start": {"surface_angle": lean_deg}}), ""

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


def _check_far_detector(name: str, geometry: Geometry) -> None:
    """Raise BadInput unless a geometry is a far field of which distance and detector pixel are known.

    Args:
        name: of the piece that needs them.
        geometry: of the scan.
    """
    if geometry.propagation != "far_field":
        raise BadInput(f"optics.{name} is for far fields, and this scan is in the near field; leave it out.")
    if geometry.distance_m is None or geometry.detector_pixel_m is None:
        raise BadInput(
            f"optics.{name} needs the distance and the pixel of the detector, which this data set does not have; give "
            "data.distance_m and data.detector_pixel_m."
        )


class Resampling(NamedTuple):
    """R, or W, and its adjoint."""

    forward: Rows
    adjoint: Rows


def _at(S: Tensor, values: Values, tables: Tables, further_deg: float = 0.0) -> Resampling:
    """Return R at the present angle, and so many degrees further."""
    y, x, shorter_y, shorter_x, axis = (float(number) for number in tables[0])
    grid = Grid((S.shape[-2], S.shape[-1]), (y, x), (shorter_y, shorter_x), int(axis))
    return _make_resampling(grid, float(values["surface_angle"]) + further_deg, S.device)


@lru_cache(maxsize=4)
def _make_resampling(grid: Grid, angle_deg: float, device: torch.device) -> Resampling:
    """Return the resampling R of patterns and its adjoint; the zero frequency of patterns lies at their corner.

    Args:
        grid: window and scales of the transform.
        angle_deg: between the beam and the normal of the surface.
        device: of the matrices.
    """
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
    matrix = scipy.sparse.csr_array((np.concatenate(entries), places), shape=(h * w, h * w))
    return Resampling(Rows.of_matrix(matrix, device), Rows.of_matrix(matrix.T.tocsr(), device))


class TiltedWaves(WaveOperator):
    """Surface that the beam meets at an angle, `data.surface_deg`, and a flat detector across the reflected beam."""

    name: ClassVar[str] = "tilted_waves"
    at: ClassVar[Place] = "exit"

    finer: int = Field(
        2,
        ge=1,
        le=8,
        description="points of the transform along each axis for one pixel of the detector, between which waves are "
        "linear: more are nearer to the truth and cost more; 1 is what CDTools does",
    )

    def check(self, geometry: Geometry) -> None:
        """Check that the geometry is a far field of which distance and detector pixel are known.

        Raises:
            BadInput: it is not.
        """
        _check_far_detector(self.name, geometry)

    def transforms(self, geometry: Geometry) -> tuple[tuple[int, int], ...]:
        """Return the sides of the padded window."""
        h, w = geometry.shape
        return ((self.finer * h, self.finer * w),)

    def tables(self, geometry: Geometry) -> Tables:
        """Return the numbers of the geometry's `Grid` but its window, and the angle in degrees."""
        grid = Grid.of_geometry(geometry)
        numbers = [*grid.detector, *grid.transform, grid.axis, geometry.surface_deg[grid.axis]]
        return (torch.tensor(numbers, dtype=torch.float64),)

    def forward(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return F^H W F Z psi.

        Args:
            psi: (B, M, h, w) complex.
            values: not used.
            tables: from `tables`.
        """
        (top, left), (h, w), sides = self._place(psi)
        padded = psi.new_zeros(*psi.shape[:2], *sides)
        padded[..., top : top + h, left : left + w] = psi
        waves = fft(ifftshift(padded, YX)).flatten(-2)
        return fftshift(ifft(self._between(psi, tables).forward.gathered(waves).view(psi.shape)), YX)

    def adjoint(self, psi: Tensor, values: Values, tables: Tables) -> Tensor:
        """Return Z^T F^H W^T F psi.

        Args:
            psi: (B, M, h, w) complex.
            values: not used.
            tables: from `tables`.
        """
        (top, left), (h, w), sides = self._place(psi)
        points = self._between(psi, tables).adjoint.gathered(fft(ifftshift(psi, YX)).flatten(-2))
        padded = fftshift(ifft(points.view(*psi.shape[:2], *sides)), YX)
        return padded[..., top : top + h, left : left + w].contiguous()

    def _place(self, psi: Tensor) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Return where the window begins within the padded one, its sides, and those of the padded one."""
        h, w = psi.shape[-2:]
        f = self.finer
        return (f * h // 2 - h // 2, f * w // 2 - w // 2), (h, w), (f * h, f * w)

    def _between(self, psi: Tensor, tables: Tables) -> Resampling:
        """Return W for waves like psi (B, M, h, w)."""
        y, x, further_y, further_x, axis, angle = (float(number) for number in tables[0])
        grid = Grid((psi.shape[-2], psi.shape[-1]), (y, x), (further_y, further_x), int(axis))
        return _between(grid, angle, self.finer, psi.device)

    def slopes(self, psi: Tensor, values: Values, tables: Tables, back: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Return nothing, as there is no unknown.

        Args:
            psi: (B, M, h, w) complex.
            values: not used.
            tables: from `tables`.
            back: (B, M, h, w) complex.
        """
        return {}


@lru_cache(maxsize=4)
def _between(grid: Grid, angle_deg: float, finer: int, device: torch.device) -> Resampling:
    """Return W for waves with the zero frequency first."""
    (h, w), sides = grid.window, tuple(finer * n for n in grid.window)
    m = finer * seen_places(grid, angle_deg)
    first = np.floor(m).astype(np.int64)
    share, roots = m - first, finer * np.sqrt(seen_areas(grid, angle_deg))
    pixel = np.fft.fftshift(np.arange(h * w).reshape(h, w))
    rows, columns, entries = [], [], []
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        (y, x), weights = first + np.array([i, j])[:, None, None], roots * np.abs(1 - i - share[0])
        weights = weights * np.abs(1 - j - share[1])
        inside = _has(sides[0], y) & _has(sides[1], x) & (weights > 0)
        rows.append(pixel[inside])
        columns.append((y[inside] % sides[0]) * sides[1] + x[inside] % sides[1])
        entries.append(weights[inside])
    places = np.concatenate(rows), np.concatenate(columns)
    matrix = scipy.sparse.csr_array((np.concatenate(entries), places), shape=(h * w, sides[0] * sides[1]))
    return Resampling(Rows.of_matrix(matrix, device), Rows.of_matrix(matrix.T.tocsr(), device))


def _has(side: int, points: np.ndarray) -> np.ndarray:
    """Return True where a transform of so many points has these, counted from the zero frequency."""
    return np.asarray((points >= -(side // 2)) & (points < side - side // 2))
