"""Figure of a calibration of electrons: disc, descan, virtual images, parallax.

h, w    detector pixels, as the file stores them with the direct beam near the middle
R, C    rows and columns of the scan
K       bright-field pixels
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from ptymesh.plot.style import (
    BLUE,
    GREY,
    RED,
    ColourScale,
    Pixel,
    bounds,
    colour_of,
    image_panel,
    new_figure,
    plain_axes,
    round_length,
    unit_for,
)

#: Titles of the images, in their order in the figure.
TITLES = {
    "bf": "bright field",
    "abf": "annular bright field",
    "adf": "annular dark field",
    "com": "centre of mass",
    "icom": "phase by its integral (iCoM)",
    "parallax": "aligned bright field (parallax)",
    "ssb": "phase by single side band",
}


class ShownDisc(NamedTuple):
    """Disc that a figure shows.

    Attributes:
        mean, largest: (h, w) counts, NaN where masked.
        edge: (n, 2) y x pixels of the fitted edge.
        places: (B, 2) shares of the scan, y x, of its blocks.
        moves_px: (B, 2) moves of the disc there.
        wander: sentence about them.
    """

    mean: np.ndarray
    largest: np.ndarray
    edge: np.ndarray
    places: np.ndarray
    moves_px: np.ndarray
    wander: str


class ShownParallax(NamedTuple):
    """Displacements of bright-field images that a figure shows.

    Attributes:
        angles: (K, 2) places in the disc, y x, over its radius.
        shifts_m: (K, 2) displacements in the scan's axes.
        sentence: about them.
    """

    angles: np.ndarray
    shifts_m: np.ndarray
    sentence: str


def calibration_figure(
    title: str, disc: ShownDisc, images: Mapping[str, np.ndarray], parallax: ShownParallax, step_m: Pixel
) -> Figure:
    """Return twelve panels about the calibration of a scan.

    Args:
        title: of the figure.
        disc: patterns and the fitted disc.
        images: by name, (R, C), or (R, C, 2) for vectors y x; those that are missing are left blank.
        parallax: of the bright-field images; without displacements nothing is drawn.
        step_m: (y, x) of the scan.
    """
    figure = new_figure(15, 10.5, title)
    axes = figure.subplots(3, 4)
    _pattern(axes[0, 0], disc.mean, "mean pattern and its disc (counts)", disc.edge)
    _pattern(axes[0, 1], disc.largest, "maximum of all patterns (counts)", None)
    _moves(axes[0, 2], disc)
    _shifts(axes[0, 3], parallax)
    for one, (name, caption) in zip(axes[1:].flat, TITLES.items(), strict=False):
        image = images.get(name)
        if image is None:
            one.set_axis_off()
            one.text(0.5, 0.5, f"{caption}:\nnothing sure", ha="center", color=GREY, transform=one.transAxes)
        elif image.ndim == 3:
            vectors = image[..., 1] + 1j * image[..., 0]
            top = float(np.percentile(np.abs(vectors), 98)) or 1.0
            image_panel(one, colour_of(vectors, top), f"{caption} (hue: direction, 0 along x)", None, step_m)
        else:
            image_panel(one, image, caption, ColourScale("gray", bounds(image), None), step_m)
    _profile(axes[2, 3], disc)
    return figure


def _pattern(axes: Axes, pattern: np.ndarray, title: str, edge: np.ndarray | None) -> None:
    """Draw counts on a logarithmic scale of at most four decades, with the edge of the disc."""
    good = pattern[np.isfinite(pattern) & (pattern > 0)]
    top = float(good.max()) if good.size else 1.0
    low = max(top * 1e-4, float(good.min()) if good.size else 0.0)
    low = low if low < top else top / 10
    image_panel(axes, np.maximum(pattern, low), title, ColourScale("viridis", LogNorm(low, top), ""))
    if edge is not None:
        axes.plot(edge[:, 1], edge[:, 0], color=RED, lw=0.9)


def _moves(axes: Axes, disc: ShownDisc) -> None:
    """Draw how far the disc lies from its mean place in blocks of the scan."""
    plain_axes(axes, "x over the scan", "y over the scan", f"descan: {disc.wander}")
    axes.set(xlim=(0, 1), ylim=(1, 0), aspect="equal")
    longest = float(np.hypot(*disc.moves_px.T).max())
    if not longest > 0:
        return
    key = round_length(longest)
    arrows = axes.quiver(
        disc.places[:, 1], disc.places[:, 0], disc.moves_px[:, 1], disc.moves_px[:, 0],
        color=BLUE, angles="xy", scale_units="xy", scale=longest / 0.15, width=0.006,
    )  # fmt: skip
    axes.quiverkey(arrows, 0.72, 0.04, key, f"{key:g} px", labelpos="E", coordinates="axes")


def _shifts(axes: Axes, parallax: ShownParallax) -> None:
    """Draw the displacement of each bright-field image at its pixel's place in the disc."""
    longest = float(np.hypot(*parallax.shifts_m.T).max()) if len(parallax.shifts_m) else 0.0
    if not longest > 0:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no parallax that is sure", ha="center", color=GREY, transform=axes.transAxes)
        return
    plain_axes(axes, "x over the disc's radius", "y over the disc's radius", parallax.sentence)
    size, unit = unit_for(longest)
    arrows = axes.quiver(
        parallax.angles[:, 1], parallax.angles[:, 0], parallax.shifts_m[:, 1], parallax.shifts_m[:, 0],
        color=BLUE, angles="xy", scale_units="xy", scale=longest / 0.35, width=0.005,
    )  # fmt: skip
    key = round_length(longest)
    axes.quiverkey(arrows, 0.72, 0.04, key, f"{key / size:.3g} {unit}", labelpos="E", coordinates="axes")
    axes.set(xlim=(-1.4, 1.4), ylim=(1.4, -1.4), aspect="equal")


def _profile(axes: Axes, disc: ShownDisc) -> None:
    """Draw the mean counts over distances from the disc's middle, with its edge."""
    centre = disc.edge.mean(axis=0)
    y, x = np.indices(disc.mean.shape)
    radius = float(np.hypot(*(disc.edge - centre).T).mean())
    ring = np.floor(np.hypot(y - centre[0], x - centre[1]) * 2).astype(int)
    good = np.isfinite(disc.mean)
    total = np.bincount(ring[good], disc.mean[good])
    count = np.bincount(ring[good])
    rings = np.flatnonzero(count)
    plain_axes(axes, "distance from the disc's middle (px)", "mean counts", "edge of the disc")
    axes.plot((rings + 0.5) / 2, total[rings] / count[rings], color=BLUE)
    axes.axvline(radius, color=RED, lw=0.9)
    axes.set_xlim(0, 2 * radius)
