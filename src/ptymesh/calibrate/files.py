"""Files of a calibration: recipe, figure, and each virtual image as PNG and as TIFF with its pixel size."""

from __future__ import annotations

from math import cos, pi, sin
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ptymesh.calibrate.calibration import Calibration
from ptymesh.calibrate.recipe import calibrated_text
from ptymesh.files import replacing
from ptymesh.io.prepare.survey import upright
from ptymesh.plot.calibration import TITLES, ShownDisc, ShownParallax, calibration_figure
from ptymesh.plot.saving import save_figure
from ptymesh.plot.style import ColourScale, bounds, colour_of, image_panel, new_figure, unit_for
from ptymesh.plot.tiff import save_tiff

#: Names of the files in the output folder, and of the folder that the recipe's run writes into.
RECIPE, FIGURE, RUN = "recipe.yaml", "calibration.png", "run"
#: What the values of the images are.
VALUES = {
    "bf": "counts in the disc",
    "abf": "counts in the outer half of the disc's radius",
    "adf": "counts beyond 1.1 radii of the disc",
    "com": "centre of mass (rad), pages y, x in the scan's axes",
    "dpc": "difference of the halves of the disc over their sum, pages y, x in the scan's axes",
    "icom": "phase (rad) whose gradient is the centre of mass",
    "parallax": "bright-field images moved by their parallax, mean share of the counts less its mean",
    "ssb": "phase by single side band, arbitrary units",
}


def write_files(calibration: Calibration, folder: Path) -> list[Path]:
    """Write all files of a calibration, and return their paths, the recipe first.

    Args:
        calibration: the calibration.
        folder: is made if it does not exist; files in it are replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = calibrated_text(calibration, (folder / RUN).resolve())
    paths = []
    for name, image in calibration.images.items():
        paths += _write_image(folder, name, image, calibration)
    figure = save_figure(draw(calibration), folder / FIGURE)
    with replacing(folder / RECIPE, len(text), durable=False) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return [folder / RECIPE, figure, *paths]


def _write_image(folder: Path, name: str, image: np.ndarray, calibration: Calibration) -> list[Path]:
    pages = np.moveaxis(image, -1, 0) if image.ndim == 3 else image
    tiff = folder / f"{name}.tiff"
    save_tiff(tiff, pages, calibration.grid.step_m, VALUES[name])
    figure = new_figure(5.2, 5.0)
    title = TITLES.get(name, "differential phase contrast")
    if image.ndim == 3:
        vectors = image[..., 1] + 1j * image[..., 0]
        top = float(np.percentile(np.abs(vectors), 98)) or 1.0
        image_panel(figure.subplots(), colour_of(vectors, top), title, None, calibration.grid.step_m)
    else:
        image_panel(figure.subplots(), image, title, ColourScale("gray", bounds(image), ""), calibration.grid.step_m)
    return [tiff, save_figure(figure, folder / f"{name}.png")]


def draw(calibration: Calibration) -> Figure:
    """Return the figure of a calibration."""
    scan, disc, lens = calibration.description.scan, calibration.disc, calibration.lens
    mask = upright(scan, scan.mask)
    shown_disc = ShownDisc(
        np.where(mask, calibration.sums.mean, np.nan),
        np.where(mask, calibration.sums.largest, np.nan),
        edge(calibration),
        calibration.descan.places,
        calibration.descan.measured,
        f"{calibration.descan.wander_px:.2g} px, +- {calibration.descan.scatter_px:.1g}",
    )
    sure = calibration.parallax.is_sure
    size, unit = unit_for(abs(lens.c10_m))
    sentence = f"parallax: C10 {lens.c10_m / size:.3g}, C12 {lens.astigmatism[0] / size:.2g} {unit}"
    parallax = ShownParallax(calibration.angles, calibration.shifts_m if sure else np.zeros((0, 2)), sentence)
    title = (
        f"{scan.name}: disc {disc.radius:.2f} px = {calibration.semiangle_rad * 1e3:.4g} mrad, "
        f"{'transposed' if lens.transpose else 'not transposed'}, rotation {lens.rotation_deg:.1f}°"
        f"{'' if calibration.settled else ' (or its twin)'}, {calibration.dose_e_per_A2:.3g} e/Å²"
    )
    return calibration_figure(title, shown_disc, calibration.images, parallax, calibration.grid.step_m)


def edge(calibration: Calibration) -> np.ndarray:
    """Return points (n, 2), y x, of the fitted edge of the disc."""
    disc = calibration.disc
    angle = np.linspace(0, 2 * pi, 181)
    long = np.exp(np.hypot(*disc.stretch))
    along, across = disc.radius * long * np.cos(angle), disc.radius / long * np.sin(angle)
    turn = np.radians(disc.long_axis_deg)
    y, x = along * sin(turn) + across * cos(turn), along * cos(turn) - across * sin(turn)
    return np.stack([disc.centre[0] + y, disc.centre[1] + x], axis=1)
