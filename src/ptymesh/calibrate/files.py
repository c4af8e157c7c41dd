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


def write_files(found: Calibration, folder: Path) -> list[Path]:
    """Write all files of a calibration, and return their paths, the recipe first.

    Args:
        found: the calibration.
        folder: is made if it does not exist; files in it are replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = calibrated_text(found, (folder / RUN).resolve())
    paths = []
    for name, image in found.images.items():
        paths += _write_image(folder, name, image, found)
    figure = save_figure(draw(found), folder / FIGURE)
    with replacing(folder / RECIPE, len(text), durable=False) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return [folder / RECIPE, figure, *paths]


def _write_image(folder: Path, name: str, image: np.ndarray, found: Calibration) -> list[Path]:
    pages = np.moveaxis(image, -1, 0) if image.ndim == 3 else image
    tiff = folder / f"{name}.tiff"
    save_tiff(tiff, pages, found.grid.step_m, VALUES[name])
    figure = new_figure(5.2, 5.0)
    title = TITLES.get(name, "differential phase contrast")
    if image.ndim == 3:
        vectors = image[..., 1] + 1j * image[..., 0]
        top = float(np.percentile(np.abs(vectors), 98)) or 1.0
        image_panel(figure.subplots(), colour_of(vectors, top), title, None, found.grid.step_m)
    else:
        image_panel(figure.subplots(), image, title, ColourScale("gray", bounds(image), ""), found.grid.step_m)
    return [tiff, save_figure(figure, folder / f"{name}.png")]


def draw(found: Calibration) -> Figure:
    """Return the figure of a calibration."""
    scan, disc, lens = found.description.scan, found.disc, found.lens
    mask = upright(scan, scan.mask)
    shown = ShownDisc(
        np.where(mask, found.sums.mean, np.nan),
        np.where(mask, found.sums.largest, np.nan),
        edge(found),
        found.descan.places,
        found.descan.measured,
        f"{found.descan.wander_px:.2g} px, +- {found.descan.scatter_px:.1g}",
    )
    sure = found.parallax.is_sure
    size, unit = unit_for(abs(lens.c10_m))
    sentence = f"parallax: C10 {lens.c10_m / size:.3g}, C12 {lens.astigmatism[0] / size:.2g} {unit}"
    parallax = ShownParallax(found.angles, found.shifts_m if sure else np.zeros((0, 2)), sentence)
    title = (
        f"{scan.name}: disc {disc.radius:.2f} px = {found.semiangle_rad * 1e3:.4g} mrad, "
        f"{'transposed' if lens.transpose else 'not transposed'}, rotation {lens.rotation_deg:.1f}°"
        f"{'' if found.settled else ' (or its twin)'}, {found.dose_e_per_A2:.3g} e/Å²"
    )
    return calibration_figure(title, shown, found.images, parallax, found.grid.step_m)


def edge(found: Calibration) -> np.ndarray:
    """Return points (n, 2), y x, of the fitted edge of the disc."""
    disc = found.disc
    angle = np.linspace(0, 2 * pi, 181)
    long = np.exp(np.hypot(*disc.stretch))
    along, across = disc.radius * long * np.cos(angle), disc.radius / long * np.sin(angle)
    turn = np.radians(disc.long_axis_deg)
    y, x = along * sin(turn) + across * cos(turn), along * cos(turn) - across * sin(turn)
    return np.stack([disc.centre[0] + y, disc.centre[1] + x], axis=1)
