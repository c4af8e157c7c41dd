"""Figures of the scan: illumination and positions.

N       views
H, W    object pixels
h, w    window pixels
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ptymesh.plot.style import (
    BLUE,
    GREY,
    ORANGE,
    ColourScale,
    Pixel,
    blocks,
    colour_bar,
    image_panel,
    new_figure,
    plain_axes,
    round_length,
    scaled,
    unit_for,
)

#: Displacements below this (pixels) are rounding errors, not refinement.
STILL = 1e-3


def coverage_figure(
    illumination: np.ndarray,
    centres_px: np.ndarray | None = None,
    pixel_size_m: Pixel = None,
    title: str | None = None,
) -> Figure:
    """Return a figure of the counts on each object pixel, with the windows' centres.

    Args:
        illumination: (H, W) counts.
        centres_px: (N, 2) y x, object pixels; None: not drawn.
        pixel_size_m: (y, x); None: pixel units.
        title: of the figure.
    """
    figure = new_figure(6.0, 5.2, title)
    coverage_panel(figure.subplots(), illumination, centres_px, pixel_size_m)
    return figure


def coverage_panel(axes: Axes, illumination: np.ndarray, centres_px: np.ndarray | None, pixel_size_m: Pixel) -> None:
    """Draw the counts on each object pixel, with the windows' centres.

    Args:
        axes: to draw on.
        illumination: (H, W) counts.
        centres_px: (N, 2) y x, object pixels; None: not drawn.
        pixel_size_m: (y, x); None: pixel units.
    """
    image, side = blocks(illumination)
    counts = ColourScale("gray", label="counts per object pixel")
    image_panel(axes, image, "illumination", counts, scaled(pixel_size_m, side))
    if centres_px is not None:
        y, x = ((centres_px + 0.5) / side - 0.5).T
        size = np.clip(1500 / len(centres_px), 0.6, 4)
        axes.plot(x, y, "o", color=ORANGE, markersize=size, markeredgewidth=0)
        axes.set_xlim(-0.5, image.shape[1] - 0.5)
        axes.set_ylim(image.shape[0] - 0.5, -0.5)


def positions_figure(
    positions_px: np.ndarray,
    nominal_px: np.ndarray | None = None,
    pixel_size_m: Pixel = None,
    title: str | None = None,
) -> Figure:
    """Return a figure of the scan, and of the displacements from the nominal positions without their mean.

    Args:
        positions_px: (N, 2) y x, pixels.
        nominal_px: (N, 2) y x, pixels, whose origin may differ; None: displacements are not drawn.
        pixel_size_m: (y, x); None: pixel units.
        title: of the figure.
    """
    figure = new_figure(6.4, 5.8, title)
    axes = figure.subplots()
    pixel = np.ones(2) if pixel_size_m is None else np.array(pixel_size_m)
    extent = float(np.ptp(positions_px * pixel, axis=0).max())
    size, unit = (1.0, "px") if pixel_size_m is None else unit_for(extent / 2)
    place = positions_px * pixel / size
    plain_axes(axes, f"x ({unit})", f"y ({unit})")
    axes.set_aspect("equal")
    axes.invert_yaxis()
    moved = None if nominal_px is None else positions_px - nominal_px
    if moved is not None:
        moved = moved - moved.mean(axis=0)
    if moved is None or np.abs(moved).max() < STILL:
        axes.plot(place[:, 1], place[:, 0], ".", color=BLUE, markersize=4)
        axes.set_title(f"{len(place)} views" + ("" if moved is None else ", as given"), fontsize=10)
        return figure
    start = place - moved * pixel / size
    distance = np.linalg.norm(moved, axis=1)
    # Arrows are enlarged such that most of them remain shorter than the distance between neighbours.
    spacing = np.sqrt(max(np.prod(np.ptp(positions_px, axis=0)), 1.0) / len(place))
    gain = max(1.0, round_length(spacing / max(np.percentile(distance, 90), STILL)))
    arrows = moved * pixel / size * gain
    axes.plot(start[:, 1], start[:, 0], "o", color=GREY, markersize=2.5, markeredgewidth=0)
    drawn = axes.quiver(
        start[:, 1], start[:, 0], arrows[:, 1], arrows[:, 0], distance,
        cmap="viridis", angles="xy", scale_units="xy", scale=1, width=0.004, headwidth=4,
    )  # fmt: skip
    axes.update_datalim(np.stack([start[:, ::-1], (start + arrows)[:, ::-1]]).reshape(-1, 2))
    axes.autoscale_view()
    colour_bar(drawn, axes, "displacement (px)")
    times = f", arrows {gain:g} times longer" if gain > 1 else ""
    moves = f"{len(place)} views moved by {distance.mean():.3g} px on average"
    axes.set_title(f"{moves}\ndots: nominal; arrows: displacement{times}", fontsize=10)
    return figure
