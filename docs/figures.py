"""Draws the pictures of the documentation from result files: python docs/figures.py cryo-4dstem|siemens-star RESULT.h5

Written to docs/figures/NAME.png, small enough for a repository.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from PIL import Image
from scipy import ndimage

from ptymesh.compare import illumination
from ptymesh.io.results import Result
from ptymesh.plot.objects import prepared
from ptymesh.plot.phase import unwrapped_phase
from ptymesh.plot.style import bounds, image_panel, new_figure

FOLDER = Path(__file__).with_name("figures")
#: In object pixels from the middle of the scan, y x; tests/real/test_cryo.py finds them.
BEADS, RING, RING_RADIUS = [(-100, -104), (17, -61), (-80, 90), (-38, 13)], (-94, -20), 57


def cryo_4dstem(result: Result) -> Figure:
    """Phase as reconstructed, and averaged over a few pixels, with what is in it marked."""
    phase, region, pixel, origin = phase_of(result, 0.2)
    figure = new_figure(9.6, 4.9)
    left, right = figure.subplots(1, 2)
    panel(left, phase, "phase", pixel, bounds(phase))
    filled = np.where(region, phase, 0)
    weight = np.maximum(ndimage.gaussian_filter(region.astype(float), 3), 1e-3)
    smooth = np.where(region, ndimage.gaussian_filter(filled, 3) / weight, np.nan)
    panel(right, smooth, "phase, averaged over 7 px (3 nm)", pixel, (-0.08, 0.1))
    for (y, x), radius, colour in [*((bead, 14, "tab:orange") for bead in BEADS), (RING, RING_RADIUS, "tab:cyan")]:
        right.add_patch(Circle((x + origin[1], y + origin[0]), radius, fill=False, color=colour, linewidth=1.2))
    return figure


def siemens_star(result: Result) -> Figure:
    """Phase, and amplitude."""
    phase, region, pixel, _ = phase_of(result, 0.05)
    light = illumination(result.object.shape[1:], result.probe, result.positions_px, result.weights)
    image, _, _ = prepared(result.object, result.pixel_size_m, np.where(light > 0.05 * light.max(), light, 0))
    amplitude = np.where(region, np.abs(image), np.nan)
    figure = new_figure(9.6, 4.9)
    left, right = figure.subplots(1, 2)
    panel(left, phase, "phase", pixel, bounds(phase))
    panel(right, amplitude, "amplitude", pixel, bounds(amplitude))
    return figure


def phase_of(result: Result, dim: float) -> tuple[np.ndarray, np.ndarray, tuple[float, float] | None, np.ndarray]:
    """Unwrapped phase of what is lit, which pixels those are, their size, and where the middle of the scan is."""
    light = illumination(result.object.shape[1:], result.probe, result.positions_px, result.weights)
    light = np.where(light > dim * light.max(), light, 0)
    image, region, pixel = prepared(result.object, result.pixel_size_m, light)
    corner = np.array([np.flatnonzero(light.any(axis=1))[0], np.flatnonzero(light.any(axis=0))[0]])
    middle = result.positions_px.mean(axis=0) + np.array(result.probe.shape[1:]) // 2
    return unwrapped_phase(image, region), region, pixel, middle - corner


def panel(
    axes: Axes, image: np.ndarray, title: str, pixel: tuple[float, float] | None, limits: tuple[float, float]
) -> None:
    """A grey picture with a scale bar."""
    image_panel(axes, image, title, "gray", pixel, limits, "rad" if title.startswith("phase") else "|O|")


def write(figure: Figure, path: Path) -> None:
    """As PNG with a palette, at 90 dots per inch."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=90)
    path.parent.mkdir(exist_ok=True)
    picture = Image.open(drawn).convert("RGB")
    picture.quantize(200, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)
    sys.stdout.write(f"{path}: {path.stat().st_size // 1000} kB\n")


if __name__ == "__main__":
    name, source = sys.argv[1:]
    draw = {"cryo-4dstem": cryo_4dstem, "siemens-star": siemens_star}[name]
    write(draw(Result.load(source)), FOLDER / f"{name}.png")
