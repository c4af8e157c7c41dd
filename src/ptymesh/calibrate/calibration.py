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
from ptymesh.calibrate.centre_of_mass import CurlFit
from ptymesh.calibrate.descan import DescanField
from ptymesh.calibrate.description import Description
from ptymesh.calibrate.disc import Disc
from ptymesh.calibrate.parallax import Lens, ParallaxFit
from ptymesh.calibrate.pattern_sums import PatternSums
from ptymesh.calibrate.scan_grid import ScanGrid

#: Curl with the other transposition over that with the better one, from which on it counts.
CLEARLY = 1.3


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
