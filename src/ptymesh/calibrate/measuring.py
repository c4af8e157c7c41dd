"""The whole calibration: two passes over the patterns, two short reconstructions, and what follows from them.

h, w    window pixels, the direct beam near the middle
N       views
R, C    rows and columns of the scan grid
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np

from ptymesh.calibrate.bragg import KnownLattice, find_lattice
from ptymesh.calibrate.calibration import Calibration
from ptymesh.calibrate.centre_of_mass import fit_curl, integrated, turned
from ptymesh.calibrate.descan import aligned_mean, fit_descan
from ptymesh.calibrate.description import Description, describe, mean_pixel
from ptymesh.calibrate.disc import Disc, fit_disc
from ptymesh.calibrate.parallax import BrightField, Lens, fit_parallax
from ptymesh.calibrate.pattern_sums import VirtualDetectors, add_patterns, count_virtually, places_of
from ptymesh.calibrate.scan_grid import ScanGrid, scan_grid
from ptymesh.calibrate.twins import DefocusSign, PhaseSign, choose_twin
from ptymesh.distributed.world import Solo, World
from ptymesh.errors import BadInput
from ptymesh.io.prepare.survey import upright

#: Largest ratio of a semi-angle that is told to that by the lattice: the planes are others, where it is larger.
OTHER_PLANES = 1.15
#: Spacings of planes (m) that can be.
SPACINGS_M = (3e-11, 1e-8)


def calibrate(
    recipe: dict[str, Any],
    *,
    c10: DefocusSign = "unknown",
    phase: PhaseSign = "bright",
    lattice_m: float | None = None,
    world: World | None = None,
) -> Calibration:
    """Return the calibration of an electron scan.

    Args:
        recipe: plain dicts with absolute paths; the file, and what it does not say.
        c10: sign of C10 (minus the defocus), where it is known.
        phase: whether features of the object advance the phase (atoms do) or retard it; used where c10 is unknown.
        lattice_m: spacing of the planes of the innermost Bragg discs, which then sets the size of a pixel.
        world: the ranks, each of which reads its share of the patterns; None for this process alone.

    Raises:
        BadInput: the data are none that can be calibrated.
    """
    if lattice_m is not None and not SPACINGS_M[0] <= lattice_m <= SPACINGS_M[1]:
        raise BadInput(f"--lattice is {lattice_m:g} m; give the spacing of lattice planes, such as 3.905 A.")
    world = world or Solo()
    description = describe(recipe)
    scan = description.scan
    mask = upright(scan, scan.mask)
    # of positions in pixels, the grid needs no more than their ratios until the pixel is known
    grid = scan_grid(description.positions * (1e-10 if description.in_pixels else 1.0))
    sums = add_patterns(scan, grid, world)
    disc = fit_disc(sums.mean, mask)
    descan = fit_descan(sums, disc, mask, places_of(grid))
    mean = sums.mean
    if descan.degree:  # the disc wanders over the detector, which blurs it in the plain mean
        mean = aligned_mean(sums, descan)
        disc = fit_disc(mean, mask)
        descan = fit_descan(sums, disc, mask, places_of(grid))
    lattice = None if lattice_m is None else KnownLattice(find_lattice(mean, mask, disc), lattice_m)
    semiangle, pixel = _scale(description, disc) if lattice is None else _scale_by_lattice(description, disc, lattice)
    if description.in_pixels:
        grid = scan_grid(description.positions * np.array(pixel))
    virtual_counts = count_virtually(scan, disc, descan.centres, world)
    if not virtual_counts.centres.std() > 0:
        raise BadInput(f"All patterns of {scan.name} have the same centre of mass, as those of no sample do.")
    centres = grid.image(virtual_counts.centres) * (semiangle / disc.radius / description.wavelength_m)
    curl = fit_curl(centres, grid)
    bright = BrightField(virtual_counts.pixels, virtual_counts.angles, grid, semiangle, description.wavelength_m)
    extent = min(n * d for n, d in zip(scan.window, pixel, strict=True))
    parallax = fit_parallax(bright, 0.5 * extent / semiangle)
    lens = parallax.lens if parallax.is_sure else Lens(curl.transpose, curl.rotation_deg, 0.0)
    counts = float(sums.totals.mean())
    calibration = Calibration(
        description, grid, sums, disc, descan, curl, parallax, lens, "", semiangle, pixel, counts,
        counts / (grid.area_m2 * 1e20), {}, bright.shifts(lens), virtual_counts.angles, lattice,
    )  # fmt: skip
    by_gradient = integrated(turned(centres, lens.transpose, lens.rotation_deg), grid)
    image = bright.phase_image(lens) if parallax.is_sure else by_gradient
    lens, settled = _choose_on_first_rank(world, lambda: choose_twin(calibration, image, c10, phase))
    images = _images(virtual_counts, grid, centres * description.wavelength_m, lens)
    images["icom"] = integrated(turned(centres, lens.transpose, lens.rotation_deg), grid)
    if parallax.is_sure:
        images["parallax"], images["ssb"] = bright.aligned_image(lens), bright.phase_image(lens)
    return replace(calibration, lens=lens, settled=settled, images=images, shifts_m=bright.shifts(lens))


def _choose_on_first_rank(world: World, choose: Callable[[], tuple[Lens, str]]) -> tuple[Lens, str]:
    """Return the lens that the first rank chooses by short runs, and what tells it from its twin. Collective."""

    def choose_numbers() -> list[object]:
        lens, settled = choose()
        return [lens.transpose, lens.rotation_deg, lens.c10_m, lens.c12_m, settled]

    transpose, rotation_deg, c10_m, c12_m, settled = world.decide_on_first_rank(choose_numbers, "telling twins apart")
    return Lens(transpose, rotation_deg, c10_m, tuple(c12_m)), settled


def _scale(description: Description, disc: Disc) -> tuple[float, tuple[float, float]]:
    """Return the semi-angle, and the object pixel of the window (y, x): one follows from the other by the disc."""
    h, w = description.scan.window
    if description.semiangle_rad is not None:
        angle = description.semiangle_rad
        per_pixel = angle / disc.radius
        return angle, (description.wavelength_m / (h * per_pixel), description.wavelength_m / (w * per_pixel))
    if description.stored_pixel_m is None:
        raise BadInput(
            f"{description.scan.name} says neither the semi-angle of its beam nor the size of its pixels; give "
            "--semiangle RAD, such as --semiangle 20e-3 (probe.start.semiangle_rad in a recipe)."
        )
    y, x = (pixel * ratio for pixel, ratio in zip(description.stored_pixel_m, description.ratio, strict=True))
    return description.wavelength_m * disc.radius / sqrt(h * w) / mean_pixel((y, x)), (y, x)


def _scale_by_lattice(description: Description, disc: Disc, lattice: KnownLattice) -> tuple[float, tuple[float, float]]:
    """Return the semi-angle, and the object pixel of the window (y, x), by a lattice of known spacing.

    Raises:
        BadInput: a semi-angle that was told is another one.
    """
    measured_rad = lattice.angle_rad(disc.radius, description.wavelength_m)
    semiangle_rad = description.semiangle_rad or measured_rad
    if max(semiangle_rad / measured_rad, measured_rad / semiangle_rad) > OTHER_PLANES:
        raise BadInput(
            f"By planes of {lattice.spacing_m:.4g} m the semi-angle is {measured_rad:.4g} rad, and {semiangle_rad:.4g} "
            "is told; the innermost discs that show are then of planes of "
            f"{lattice.spacing_m * measured_rad / semiangle_rad:.4g} m: give that."
        )
    return measured_rad, lattice.pixel_m(description.scan.window)


def _images(virtual_counts: VirtualDetectors, grid: ScanGrid, angles: np.ndarray, lens: Lens) -> dict[str, np.ndarray]:
    """Return the images of the virtual detectors; vectors are in the scan's axes."""
    return {
        "bf": grid.image(virtual_counts.bright),
        "abf": grid.image(virtual_counts.annular),
        "adf": grid.image(virtual_counts.dark),
        "com": turned(angles - angles.mean(axis=(0, 1)), lens.transpose, lens.rotation_deg),
        "dpc": turned(grid.image(virtual_counts.halves), lens.transpose, lens.rotation_deg),
    }
