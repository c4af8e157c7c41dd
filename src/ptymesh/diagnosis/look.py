"""What a diagnosis looks at: the result, and some of its patterns beside their model.

N, B    all views, views looked at
h, w    window pixels
I, y    modelled intensities, counts
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from scipy import special

from ptymesh.auto.orientation import centres
from ptymesh.compare import illumination
from ptymesh.geometry import Geometry
from ptymesh.io.results import Result
from ptymesh.io.survey import speckle_diameter_px
from ptymesh.measurement import Measurement
from ptymesh.physics.model import Model
from ptymesh.run.patterns import CHUNK
from ptymesh.run.patterns import modelled as intensities_of

#: Views, and numbers in an array of their patterns, that are looked at, at most.
MOST_VIEWS, MOST_NUMBERS, LEAST_VIEWS = 256, 1 << 24, 16
#: Half of the distance, in pixels, over which intensities are differentiated by positions.
STEP_PX = 0.25


@dataclass(frozen=True)
class Look:
    """A result, and the scan that it was made from, or None where only the result is at hand."""

    result: Result
    scan: Measurement | None = None

    # --- the result alone ---

    @cached_property
    def light(self) -> np.ndarray:
        """Counts that fell on each object pixel, (H, W)."""
        r = self.result
        return illumination((r.object.shape[-2], r.object.shape[-1]), r.probe, r.positions_px, r.weights)

    @cached_property
    def power(self) -> np.ndarray:
        """sum_m |P_m|^2, (h, w)."""
        return np.asarray((np.abs(self.result.probe.astype(np.complex128)) ** 2).sum(axis=0))

    @cached_property
    def object(self) -> np.ndarray:
        """Product of the slices, (H, W) complex128."""
        return np.asarray(np.prod(self.result.object.astype(np.complex128), axis=0))

    @cached_property
    def nearest_px(self) -> np.ndarray:
        """Distance of each view's nearest neighbours, the four nearest, (N, 4)."""
        from scipy.spatial import cKDTree

        positions = self.result.positions_px
        near = min(4, len(positions) - 1)
        if near < 1:
            return np.full((len(positions), 1), np.inf)
        return np.asarray(cKDTree(positions).query(positions, k=near + 1)[0][:, 1:])

    # --- with the data ---

    @cached_property
    def views(self) -> np.ndarray:
        """Those that are looked at, evenly along the scan, (B,)."""
        assert self.scan is not None
        h, w = self.scan.window
        most = min(MOST_VIEWS, max(LEAST_VIEWS, MOST_NUMBERS // (h * w)), self.scan.views)
        return np.unique(np.linspace(0, self.scan.views - 1, most).round().astype(np.int64))

    @cached_property
    def good(self) -> np.ndarray:
        """Pixels that hold data, (B, h, w) bool."""
        return self._counts[1]

    @cached_property
    def y(self) -> np.ndarray:
        """Counts, 0 where there are no data, (B, h, w)."""
        return self._counts[0]

    @cached_property
    def _counts(self) -> tuple[np.ndarray, np.ndarray]:
        assert self.scan is not None
        measured = self.scan.patterns.read(self.views).astype(np.float64)
        good = self.scan.mask & (measured >= 0)
        return np.where(good, measured, 0), good

    @cached_property
    def modelled(self) -> np.ndarray:
        """Modelled intensities, 0 where there are no data, (B, h, w)."""
        return self.model(self.result)

    def model(self, result: Result, geometry: Geometry | None = None) -> np.ndarray:
        """Intensities (B, h, w) of a result, in another geometry if one is given; 0 where there are no data."""
        assert self.scan is not None
        how = Model.for_geometry(
            geometry or self.scan.geometry,
            subpixel=result.attrs.get("subpixel", "fourier"),
            slices=len(result.object),
            slice_spacing_m=result.slice_spacing_m,
            tilt_rad=result.tilt_rad,
            dtype=torch.complex64 if result.probe.dtype == np.complex64 else torch.complex128,
        )
        chunks = [self.views[start : start + CHUNK] for start in range(0, len(self.views), CHUNK)]
        found = np.concatenate([intensities_of(how, result, chunk) for chunk in chunks])
        return np.where(self.good, np.maximum(found, 0), 0)

    @cached_property
    def misfit(self) -> np.ndarray:
        """sqrt y - sqrt I, (B, h, w)."""
        return np.asarray(np.sqrt(self.y) - np.sqrt(self.modelled))

    @cached_property
    def whole(self) -> bool:
        """Whether the patterns are whole numbers, which counts are."""
        return bool((self.y == np.round(self.y)).all())

    @cached_property
    def excess(self) -> float:
        """Misfit over what counting would leave of it, of the modelled intensities: about 1 where all is explained.
        Infinite where the patterns are no counts."""
        if not self.whole:
            return math.inf
        return float((self.misfit**2).sum() / max(counting(self.modelled[self.good]).sum(), 1e-30))

    @cached_property
    def moves(self) -> tuple[np.ndarray, np.ndarray]:
        """What each view asks of its position, and the standard error of that from counting, (B, 2) y x, in pixels.

        One Gauss-Newton step of sum (sqrt I - sqrt y)^2 along either axis, the object standing still.
        """
        slopes = [self._along(axis) for axis in range(2)]
        weight = np.array([[(a * b).sum(axis=(1, 2)) for b in slopes] for a in slopes]).transpose(2, 0, 1)
        force = np.array([(slope * self.misfit).sum(axis=(1, 2)) for slope in slopes]).T
        weight = weight + 1e-9 * np.trace(weight, axis1=1, axis2=2)[:, None, None] * np.eye(2) + 1e-30 * np.eye(2)
        inverse = np.linalg.inv(weight)
        moves = np.einsum("jab,jb->ja", inverse, force)
        return moves, 0.5 * np.sqrt(np.einsum("jaa->ja", inverse))

    def _along(self, axis: int) -> np.ndarray:
        """Derivative of sqrt I by the position, (B, h, w)."""
        found = []
        for sign in (1, -1):
            positions = self.result.positions_px.copy()
            positions[:, axis] += sign * STEP_PX
            most = np.array(self.result.object.shape[-2:]) - self.result.probe.shape[-2:]
            inside = np.clip(positions, 0, most - 1e-9)
            found.append(np.sqrt(self.model(replace(self.result, positions_px=inside))))
        return np.asarray((found[0] - found[1]) / (2 * STEP_PX))

    @cached_property
    def speckle_px(self) -> float:
        """Diameter of the beam that the speckles of far-field patterns tell, in object pixels; 0 where they do not."""
        if self.scan is None or self.scan.geometry.propagation != "far_field":
            return 0.0
        return speckle_diameter_px(self.scan)

    @cached_property
    def centres(self) -> np.ndarray:
        """Centres of mass (N, 2) of all far-field patterns about their mean, in detector pixels."""
        assert self.scan is not None
        return centres(self.scan)


#: Intensities up to which the misfit that counting leaves is tabulated.
_DIM = 60.0


def counting(I: np.ndarray) -> np.ndarray:
    """E (sqrt y - sqrt I)^2 of counts y, Poisson of mean I."""
    roots = np.linspace(0, math.sqrt(_DIM), 400)
    return np.where(I < _DIM, np.interp(np.sqrt(I), roots, _table()), 0.25 + 7 / 64 / np.maximum(I, 1))


def _table() -> np.ndarray:
    I = np.linspace(0, math.sqrt(_DIM), 400)[:, None] ** 2
    k = np.arange(160)
    p = np.exp(special.xlogy(k, I) - I - special.gammaln(k + 1))
    return np.asarray((p * (np.sqrt(k) - np.sqrt(I)) ** 2).sum(axis=1))
