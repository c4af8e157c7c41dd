"""Figures of the scan: illumination, positions, and the moves from recorded to refined ones.

N       views
H, W    object pixels
h, w    window pixels
"""

from __future__ import annotations

import textwrap
from typing import Protocol

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
    legend,
    new_figure,
    plain_axes,
    round_length,
    scaled,
    unit_for,
)

#: Displacements below this (pixels) are rounding errors, not refinement.
STILL = 1e-3
#: Characters of a line of the title.
LINE = 110


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
    quiver = axes.quiver(
        start[:, 1], start[:, 0], arrows[:, 1], arrows[:, 0], distance,
        cmap="viridis", angles="xy", scale_units="xy", scale=1, width=0.004, headwidth=4,
    )  # fmt: skip
    axes.update_datalim(np.stack([start[:, ::-1], (start + arrows)[:, ::-1]]).reshape(-1, 2))
    axes.autoscale_view()
    colour_bar(quiver, axes, "displacement (px)")
    times = f", arrows {gain:g} times longer" if gain > 1 else ""
    moves = f"{len(place)} views moved by {distance.mean():.3g} px on average"
    axes.set_title(f"{moves}\ndots: nominal; arrows: displacement{times}", fontsize=10)
    return figure


def view_vectors_figure(
    positions_px: np.ndarray, vectors: np.ndarray, pixel_size_m: Pixel = None, name: str = "", unit: str = "px"
) -> Figure:
    """Return a figure of a vector of each view as an arrow at its position, such as the shift of its pattern.

    Args:
        positions_px: (N, 2) y x, pixels.
        vectors: (N, 2) y x, drawn as they are, their mean included; the longest ones are about as long as the distance
            between neighbours.
        pixel_size_m: (y, x); None: positions are in pixels.
        name: of the vectors.
        unit: of the vectors.
    """
    figure = new_figure(6.4, 6.1)
    axes = figure.subplots()
    pixel = np.ones(2) if pixel_size_m is None else np.array(pixel_size_m)
    extent = np.ptp(positions_px * pixel, axis=0)
    size, ending = (1.0, "px") if pixel_size_m is None else unit_for(float(extent.max()) / 2)
    place = positions_px * pixel / size
    plain_axes(axes, f"x ({ending})", f"y ({ending})")
    axes.set_aspect("equal")
    axes.invert_yaxis()
    length = np.linalg.norm(vectors, axis=1)
    rms, most = float(np.sqrt((length**2).mean())), float(length.max())
    axes.set_title(f"{name} of {len(place)} views: {rms:.3g} {unit} rms, at most {most:.3g} {unit}", fontsize=10)
    if most == 0:
        axes.plot(place[:, 1], place[:, 0], ".", color=BLUE, markersize=4)
        return figure
    spacing = max(np.sqrt(np.prod(extent) / len(place)), extent.max() / len(place), pixel.min()) / size
    scale = float(np.percentile(length, 95) or most) / (1.2 * spacing)
    arrows = axes.quiver(
        place[:, 1], place[:, 0], vectors[:, 1], vectors[:, 0], length,
        cmap="viridis", angles="xy", scale_units="xy", scale=scale, width=0.004, headwidth=4,
    )  # fmt: skip
    ends = np.concatenate([place, place + vectors / scale])
    # a line scan is shown with room on both sides
    middle, room = (ends.max(axis=0) + ends.min(axis=0)) / 2, 0.1 * float(np.ptp(ends, axis=0).max())
    axes.update_datalim(np.concatenate([ends, [middle - room, middle + room]])[:, ::-1])
    axes.autoscale_view()
    colour_bar(arrows, axes, f"length ({unit})")
    return figure


class MovesApart(Protocol):
    """Moves told apart, as `compare.moves_apart` returns them."""

    @property
    def shares(self) -> dict[str, float]:
        """Share of each part in the power of the moves, by name."""

    @property
    def held_out(self) -> np.ndarray:
        """Views (k,) that no update has moved."""

    @property
    def affine(self) -> np.ndarray:
        """Recorded positions (N, 2) moved by the mean move and the geometry, in pixels."""

    @property
    def fitted(self) -> np.ndarray:
        """Recorded positions (N, 2) moved by all parts but each view's own, in pixels."""

    def sentence(self) -> str:
        """Return what the moves are."""


def moves_figure(
    recorded_px: np.ndarray, refined_px: np.ndarray, moves: MovesApart, pixel_size_m: Pixel = None
) -> Figure:
    """Return a figure of recorded, refined and fitted positions, of the moves by view, and of their parts.

    Views that were held out are not drawn.

    Args:
        recorded_px: (N, 2) y x, pixels.
        refined_px: (N, 2) y x, pixels, whose origin may differ.
        moves: what they are.
        pixel_size_m: (y, x); None: pixel units.
    """
    figure = new_figure(11.0, 6.2, "\n".join(textwrap.wrap(moves.sentence(), LINE)))
    grid = figure.add_gridspec(2, 2, width_ratios=(1.15, 1.0), height_ratios=(2.0, 1.0))
    mean = (moves.affine - recorded_px).mean(axis=0)
    views = np.setdiff1d(np.arange(len(recorded_px)), moves.held_out)
    moved, affine, fitted = (
        (places - recorded_px - mean)[views] for places in (refined_px, moves.affine, moves.fitted)
    )
    _scan_panel(figure.add_subplot(grid[:, 0]), recorded_px[views], moved, affine, pixel_size_m)
    _views_panel(figure.add_subplot(grid[0, 1]), views + 1, moved, fitted)
    _shares_panel(figure.add_subplot(grid[1, 1]), moves.shares)
    return figure


def _scan_panel(axes: Axes, recorded: np.ndarray, moved: np.ndarray, affine: np.ndarray, pixel_size_m: Pixel) -> None:
    """Draw recorded positions, and both ends of the moves, enlarged such that they can be seen.

    Args:
        axes: to draw on.
        recorded: (N, 2) pixels.
        moved: (N, 2) moves in pixels, without their mean.
        affine: (N, 2) those of the fitted geometry.
        pixel_size_m: (y, x); None: pixel units.
    """
    pixel = np.ones(2) if pixel_size_m is None else np.array(pixel_size_m)
    size, unit = (1.0, "px") if pixel_size_m is None else unit_for(float(np.ptp(recorded * pixel, axis=0).max()) / 2)
    spacing = np.sqrt(max(np.prod(np.ptp(recorded, axis=0)), 1.0) / len(recorded))
    typical = max(float(np.percentile(np.linalg.norm(moved, axis=1), 90)), STILL)
    gain = max(1.0, round_length(spacing / typical))
    plain_axes(axes, f"x ({unit})", f"y ({unit})")
    axes.set_aspect("equal")
    axes.invert_yaxis()
    places = [(recorded + gain * move) * pixel / size for move in (0 * moved, moved, affine)]
    ends = np.stack(places[:2], axis=1)
    for axis_y, axis_x in zip(ends[..., 0], ends[..., 1], strict=True):
        axes.plot(axis_x, axis_y, color=GREY, linewidth=0.4)
    kinds = [("recorded", "o", GREY), ("refined", "o", BLUE)]
    if np.abs(affine).max() > STILL:
        kinds.append(("fitted scale, rotation, shear", "x", ORANGE))
    for (label, style, colour), place in zip(kinds, places, strict=False):
        axes.plot(place[:, 1], place[:, 0], style, color=colour, markersize=3, markeredgewidth=0.8, label=label)
    # a line scan is shown with room on both sides
    middle, room = (ends.max(axis=(0, 1)) + ends.min(axis=(0, 1))) / 2, 0.1 * float(np.ptp(ends, axis=(0, 1)).max())
    axes.update_datalim([(middle[1] + sign * room, middle[0] + sign * room) for sign in (-1, 1)])
    axes.autoscale_view()
    axes.set_title(f"{len(recorded)} views" + (f", moves {gain:g} times longer" if gain > 1 else ""), fontsize=10)
    # in points below the axes, as these are low where a scan is a line
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=3, frameon=False, borderaxespad=5.0)


def _views_panel(axes: Axes, views: np.ndarray, moved: np.ndarray, fitted: np.ndarray) -> None:
    """Draw the moves of views in the order in which they were taken, and what was fitted to them.

    Args:
        axes: to draw on.
        views: (n,) numbers of the views, from 1.
        moved: (n, 2) moves in pixels, without their mean.
        fitted: (n, 2) what was fitted to them.
    """
    plain_axes(axes, "view", "move (px)")
    for axis, colour in ((0, BLUE), (1, ORANGE)):
        axes.plot(views, moved[:, axis], ".", color=colour, markersize=2.5, alpha=0.5, label=f"{'yx'[axis]}")
        axes.plot(views, fitted[:, axis], color=colour, linewidth=1.0)
    low, high = np.percentile(moved, [0.5, 99.5])
    axes.set_ylim(low - 0.2 * (high - low) - STILL, high + 0.2 * (high - low) + STILL)
    axes.set_title("moves; lines: fitted", fontsize=10)
    legend(axes, loc="upper right")


def _shares_panel(axes: Axes, shares: dict[str, float]) -> None:
    """Draw the share of each part as a bar."""
    plain_axes(axes, "share of the moves' power (%)", "")
    names = list(shares)[::-1]
    axes.barh(range(len(names)), [100 * shares[name] for name in names], color=BLUE, height=0.6)
    axes.set_yticks(range(len(names)), ["each view's own" if name == "own" else name for name in names])
    axes.set_xlim(min(0.0, 100 * min(shares.values())), 100)
