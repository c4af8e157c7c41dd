"""Numbers and images that the calibration of an electron scan ends with.

h, w    window pixels, the direct beam near the middle
N       views
R, C    rows and columns of the scan grid
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ptymesh.calibrate.bragg import KnownLattice
from ptymesh.calibrate.centre_of_mass import CurlFit, turned
from ptymesh.calibrate.descan import DescanField
from ptymesh.calibrate.description import Description
from ptymesh.calibrate.disc import Disc
from ptymesh.calibrate.parallax import Lens, ParallaxFit
from ptymesh.calibrate.pattern_sums import PatternSums
from ptymesh.calibrate.scan_grid import ScanGrid

#: Curl with the other transposition over that with the better one, from which on it counts.
CLEARLY = 1.3
#: Descan over the scan, in detector pixels and in its standard errors, from which on the recipe has it in the model:
#: of 0.2 pixels, held-out views are explained better by 3 % with it.
LEAST_DESCAN_PX, DESCAN_ERRORS = 0.15, 3.0


@dataclass(frozen=True)
class Calibration:
    """Numbers and images of a scan.

    Attributes:
        description: what was known before.
        grid: of the scan.
        sums: mean patterns.
        disc: of the mean pattern, in window pixels.
        descan: how it wanders.
        curl: orientation by the centres of mass.
        parallax: orientation and lens by the bright-field images.
        lens: orientation and lens that are believed; without aberrations where the parallax is not sure.
        settled: what tells the lens from its twin; empty where nothing does.
        semiangle_rad: of the beam's cone.
        pixel_m: object pixel of the window (y, x).
        counts_per_view: mean number of electrons.
        dose_e_per_A2: over the area that each view has to itself.
        images: (R, C) or (R, C, 2), by name.
        shifts_m: (K, 2) displacement of each bright-field pixel's image.
        angles: (K, 2) places of these pixels over the disc's radius.
        lattice: of the Bragg discs, by which a known spacing of planes sets the size of a pixel; None without one.
    """

    description: Description
    grid: ScanGrid
    sums: PatternSums
    disc: Disc
    descan: DescanField
    curl: CurlFit
    parallax: ParallaxFit
    lens: Lens
    settled: str
    semiangle_rad: float
    pixel_m: tuple[float, float]
    counts_per_view: float
    dose_e_per_A2: float
    images: dict[str, np.ndarray]
    shifts_m: np.ndarray
    angles: np.ndarray
    lattice: KnownLattice | None = None

    @property
    def orientation_from(self) -> Literal["parallax", "curl", "nothing"]:
        """Measurement that the orientation was taken from."""
        if self.parallax.is_sure:
            return "parallax"
        return "curl" if self.curl.other_curl > CLEARLY * self.curl.curl else "nothing"

    @property
    def descan_turn_px(self) -> tuple[float, float]:
        """Length over the scan of the part of the descan that no lens makes, and its standard error, detector pixels.

        A descan t = C p along positions p in the detector's axes is another curvature of the beam but for the
        antisymmetric part of C, which starts the model's piece `descan` (models/exit_wave/descan.py).
        """
        positions = self.grid.positions_m - self.grid.positions_m.mean(axis=0)
        centres = turned(self.descan.centres, self.lens.transpose, self.lens.rotation_deg)
        fitted = np.linalg.lstsq(positions, centres - centres.mean(axis=0), rcond=None)[0].T
        size = abs(fitted[0, 1] - fitted[1, 0]) / 2 * np.hypot(*np.ptp(positions, axis=0))
        places = self.descan.places
        return float(size), float(self.descan.scatter_px / np.sqrt(len(places)) / max(places.std(axis=0).min(), 1e-9))

    @property
    def has_descan(self) -> bool:
        """True if a descan is worth a piece of the model: beyond its error, in an orientation that is sure."""
        size, error = self.descan_turn_px
        sure = self.descan.degree > 0 and self.orientation_from != "nothing"
        return sure and size > max(LEAST_DESCAN_PX, DESCAN_ERRORS * error)
