"""The whole calibration: two passes over the patterns, and what follows from them.

h, w    window pixels, the direct beam near the middle
N       views
R, C    rows and columns of the scan grid
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal

import numpy as np
from scipy import ndimage

from ptymesh.calibrate.centre_of_mass import CurlFit, fit_curl, integrated, turned
from ptymesh.calibrate.descan import DescanField, aligned_mean, fit_descan
from ptymesh.calibrate.description import Description, describe, mean_pixel
from ptymesh.calibrate.disc import Disc, fit_disc
from ptymesh.calibrate.parallax import BrightField, Lens, ParallaxFit, fit_parallax
from ptymesh.calibrate.pattern_sums import PatternSums, VirtualDetectors, add_patterns, count_virtually, places_of
from ptymesh.calibrate.scan_grid import ScanGrid, scan_grid
from ptymesh.errors import BadInput
from ptymesh.io.prepare.survey import upright

#: Curl with the other transposition over that with the better one, from which on it counts.
CLEARLY = 1.3
#: Share of the images' borders that is left out where their sign is judged.
BORDER = 0.12
#: Skewness of a phase image from which on its sign is believed, and in its standard errors.
SKEWED, SKEWED_ERRORS = 0.15, 3.0

Sign = Literal["negative", "positive", "unknown"]


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

    @property
    def orientation_from(self) -> Literal["parallax", "curl", "nothing"]:
        """Measurement that the orientation was taken from."""
        if self.parallax.is_sure:
            return "parallax"
        return "curl" if self.curl.other_curl > CLEARLY * self.curl.curl else "nothing"


def calibrate(
    recipe: dict[str, Any], *, c10: Sign = "unknown", phase: Literal["bright", "dark"] = "bright"
) -> Calibration:
    """Return the calibration of an electron scan.

    Args:
        recipe: plain dicts with absolute paths; the file, and what it does not say.
        c10: sign of C10 (minus the defocus), where it is known.
        phase: whether features of the object advance the phase (atoms do) or retard it; used where c10 is unknown.

    Raises:
        BadInput: the data are none that can be calibrated.
    """
    known = describe(recipe)
    scan = known.scan
    mask = upright(scan, scan.mask)
    grid = scan_grid(known.positions * (1e-10 if known.in_pixels else 1.0))  # pixels: of any size for the first pass
    sums = add_patterns(scan, grid)
    disc = fit_disc(sums.mean, mask)
    descan = fit_descan(sums, disc, mask, places_of(grid))
    if descan.degree:  # the disc of the plain mean is blurred by its way
        disc = fit_disc(aligned_mean(sums, descan), mask)
        descan = fit_descan(sums, disc, mask, places_of(grid))
    semiangle, pixel = _scale(known, disc)
    if known.in_pixels:
        grid = scan_grid(known.positions * np.array(pixel))
    counted = count_virtually(scan, disc, descan.centres)
    if not counted.centres.std() > 0:
        raise BadInput(f"All patterns of {scan.name} have the same centre of mass, as those of no sample do.")
    centres = grid.image(counted.centres) * (semiangle / disc.radius / known.wavelength_m)
    curl = fit_curl(centres, grid)
    bright = BrightField(counted.pixels, counted.angles, grid, semiangle, known.wavelength_m)
    extent = min(n * d for n, d in zip(scan.window, pixel, strict=True))
    parallax = fit_parallax(bright, 0.5 * extent / semiangle)
    lens = parallax.lens if parallax.is_sure else Lens(curl.transpose, curl.rotation_deg, 0.0)
    phases = {"icom": integrated(turned(centres, lens.transpose, lens.rotation_deg), grid)}
    if parallax.is_sure:
        phases["ssb"] = bright.phase_image(lens)
    lens, settled = choose_twin(lens, phases["ssb" if parallax.is_sure else "icom"], c10, phase)
    counts = float(sums.totals.mean())
    images = _images(counted, grid, centres * known.wavelength_m, lens)
    images["icom"] = integrated(turned(centres, lens.transpose, lens.rotation_deg), grid)
    if parallax.is_sure:
        images["parallax"], images["ssb"] = bright.aligned_image(lens), bright.phase_image(lens)
    return Calibration(
        known, grid, sums, disc, descan, curl, parallax, lens, settled, semiangle, pixel, counts,
        counts / (grid.area_m2 * 1e20), images, bright.shifts(lens), counted.angles,
    )  # fmt: skip


def _scale(known: Description, disc: Disc) -> tuple[float, tuple[float, float]]:
    """Return the semi-angle, and the object pixel of the window (y, x): one follows from the other by the disc."""
    h, w = known.scan.window
    if known.semiangle_rad is not None:
        angle = known.semiangle_rad
        per_pixel = angle / disc.radius
        return angle, (known.wavelength_m / (h * per_pixel), known.wavelength_m / (w * per_pixel))
    if known.stored_pixel_m is None:
        raise BadInput(
            f"{known.scan.name} says neither the semi-angle of its beam nor the size of its pixels; give --semiangle "
            "RAD, such as --semiangle 20e-3 (probe.start.semiangle_rad in a recipe)."
        )
    y, x = (pixel * ratio for pixel, ratio in zip(known.stored_pixel_m, known.ratio, strict=True))
    return known.wavelength_m * disc.radius / sqrt(h * w) / mean_pixel((y, x)), (y, x)


def choose_twin(lens: Lens, image: np.ndarray, c10: Sign, phase: str) -> tuple[Lens, str]:
    """Return the lens or its twin, and what tells them apart; empty where neither their C10 nor the image does.

    Args:
        lens: one of the two.
        image: (R, C) phase with this lens.
        c10: known sign of C10.
        phase: whether features advance the phase (bright) or retard it (dark).
    """
    if c10 != "unknown" and lens.c10_m:
        right = (lens.c10_m < 0) == (c10 == "negative")
        return (lens if right else lens.twin), f"C10, said to be {c10}"
    rows, columns = (max(1, int(BORDER * n)) for n in image.shape)
    smooth = ndimage.gaussian_filter(image, 0.7) - ndimage.gaussian_filter(image, min(image.shape) / 8)
    inner = smooth[rows:-rows, columns:-columns]
    spread = float(inner.std())
    skewness = float(((inner - inner.mean()) ** 3).mean()) / spread**3 if spread else 0.0
    if abs(skewness) < max(SKEWED, SKEWED_ERRORS * sqrt(6 / inner.size)):
        return lens, ""
    right = (skewness > 0) == (phase == "bright")
    return (lens if right else lens.twin), f"features that are {phase} in the phase (skewness {abs(skewness):.2g})"


def _images(counted: VirtualDetectors, grid: ScanGrid, angles: np.ndarray, lens: Lens) -> dict[str, np.ndarray]:
    """Return the images of the virtual detectors; vectors are in the scan's axes."""
    return {
        "bf": grid.image(counted.bright),
        "abf": grid.image(counted.annular),
        "adf": grid.image(counted.dark),
        "com": turned(angles - angles.mean(axis=(0, 1)), lens.transpose, lens.rotation_deg),
        "dpc": turned(grid.image(counted.halves), lens.transpose, lens.rotation_deg),
    }
