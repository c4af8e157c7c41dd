"""Waves of a surface that the beam meets at an angle, between the frequencies of the window's transform.

f          points of the transform along each axis for one pixel of the detector;  Z pads with zeros to f h, f w
m          place (y, x) of a detector's pixel among these points, which follows from the angle and the pixel's direction
           (physics/detector/surface.py);  J  the area in pixels of the plain transform that a pixel sees

    psi -> F_hw^H W F Z psi,    W Psi = f sqrt(J) Psi(m),    Psi(m) linear between the four points around m

behind the last slice. F has its origin in the middle of the window, without which waves change their sign from point to
point. `tilted_surface` is the same detector with intensities between the points, as engines that revise waves want
them; waves may be taken from finer points. With f = 1 the numbers are those of `correct_tilt` of CDTools'
Bragg2DPtycho, but for its weights: it multiplies waves by what intensities are to be multiplied by.
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from pydantic import Field
from scipy import sparse
from torch import Tensor
from torch.fft import fftshift, ifftshift

from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.physics.detector.sparse_rows import Rows
from ptymesh.physics.detector.surface import Grid, seen_areas, seen_places
from ptymesh.physics.operators import Place, Tables, Values, WaveOperator
from ptymesh.physics.propagate import fft, ifft

#: The last two axes.
YX = (-2, -1)


class Between(NamedTuple):
    """W and its adjoint."""

    forward: Rows
    adjoint: Rows


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
        if geometry.propagation != "far_field":
            raise BadInput("optics.tilted_waves is for far fields, and this scan is in the near field; leave it out.")
        if geometry.distance_m is None or geometry.detector_pixel_m is None:
            raise BadInput(
                "optics.tilted_waves needs the distance and the pixel of the detector, which this data set does not "
                "have; give data.distance_m and data.detector_pixel_m."
            )

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

    def _between(self, psi: Tensor, tables: Tables) -> Between:
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
def _between(grid: Grid, angle_deg: float, finer: int, device: torch.device) -> Between:
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
    matrix = sparse.csr_array((np.concatenate(entries), places), shape=(h * w, sides[0] * sides[1]))
    return Between(Rows.of_matrix(matrix, device), Rows.of_matrix(matrix.T.tocsr(), device))


def _has(side: int, points: np.ndarray) -> np.ndarray:
    """Return True where a transform of so many points has these, counted from the zero frequency."""
    return np.asarray((points >= -(side // 2)) & (points < side - side // 2))
