"""Figure of a beam along its axis.

h, w    window pixels
Z       planes
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ptymesh.plot.style import (
    BLUE,
    GREY,
    ORANGE,
    ColourScale,
    image_panel,
    legend,
    length_name,
    new_figure,
    plain_axes,
    unit_for,
)

Pair = tuple[float, float]


class Beam(Protocol):
    """Beam along its axis, as `physics.beam.caustic.caustic_of` returns it."""

    @property
    def z_m(self) -> np.ndarray:
        """Distances (Z,) of the planes from the probe's, ascending."""

    @property
    def profiles(self) -> tuple[np.ndarray, np.ndarray]:
        """Power (Z, 2h) along y and (Z, 2w) along x."""

    @property
    def pixel_m(self) -> Pair:
        """Pixel (y, x)."""

    @property
    def width_m(self) -> np.ndarray:
        """Widths (Z, 2) y x."""

    @property
    def waist_m(self) -> Pair:
        """Distances (y, x) of the waists."""

    @property
    def size_m(self) -> Pair:
        """Widths (y, x) at the waists."""

    @property
    def images(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Power (h, w) in the probe's plane, and at the waists of y and x."""


def caustic_figure(beam: Beam, title: str | None = None) -> Figure:
    """Return a figure of the profiles along the axis, their widths, and the beam in three planes.

    Args:
        beam: that is drawn.
        title: of the figure.
    """
    figure = new_figure(9.6, 8.4 + (0.4 if title else 0), title)
    grid = figure.add_gridspec(3, 2, width_ratios=(2.2, 1.0))
    along = unit_for(float(np.abs(beam.z_m).max()) / 2)
    for axis in (0, 1):
        _profiles_panel(figure.add_subplot(grid[axis, 0]), beam, axis, along)
    _widths_panel(figure.add_subplot(grid[2, 0]), beam, along)
    names = ("at the sample", "at the waist of y", "at the waist of x")
    for row, (name, image) in enumerate(zip(names, beam.images, strict=True)):
        image_panel(figure.add_subplot(grid[row, 1]), image, name, ColourScale("magma"), beam.pixel_m)
    return figure


def _profiles_panel(axes: Axes, beam: Beam, axis: int, along: tuple[float, str]) -> None:
    """Draw the profiles along y (axis 0) or x (axis 1); `along` is the unit of the distance."""
    profiles, pixel = beam.profiles[axis], beam.pixel_m[axis]
    across = unit_for(float(beam.width_m[:, axis].max()) / 2)
    # What holds nearly all of the power in each plane is shown.
    cumulative = np.cumsum(profiles, axis=1) / profiles.sum(axis=1, keepdims=True)
    count = profiles.shape[1]
    reach = max(
        float(np.abs([(line > edge).argmax() - count // 2 for line in cumulative]).max()) for edge in (0.01, 0.99)
    )
    half = min(1.1 * reach + 2, count / 2) * pixel / across[0]
    edges = (np.array([0, count]) - count // 2 - 0.5) * pixel / across[0]
    step = (beam.z_m[1] - beam.z_m[0]) / along[0] / 2
    extent = (beam.z_m[0] / along[0] - step, beam.z_m[-1] / along[0] + step, edges[1], edges[0])
    plain_axes(axes, f"distance downstream of the sample ({along[1]})", f"{'yx'[axis]} ({across[1]})")
    axes.grid(False)
    axes.imshow(profiles.T, cmap="magma", extent=extent, aspect="auto", interpolation="nearest")
    axes.set_ylim(half, -half)
    axes.axvline(0.0, color="white", linewidth=1.0, linestyle=":")
    axes.axvline(beam.waist_m[axis] / along[0], color="white", linewidth=1.0, linestyle="--")
    size = length_name(beam.size_m[axis])
    axes.set_title(f"power along {'yx'[axis]}; dotted: sample, dashed: waist of {size}", fontsize=10)


def _widths_panel(axes: Axes, beam: Beam, along: tuple[float, str]) -> None:
    """Draw the widths of y and x, and the waists; `along` is the unit of the distance."""
    unit = unit_for(float(beam.width_m.max()) / 2)
    plain_axes(axes, f"distance downstream of the sample ({along[1]})", f"width ({unit[1]})")
    for axis, colour in enumerate((BLUE, ORANGE)):
        label = f"{'yx'[axis]}, waist at {beam.waist_m[axis] / along[0]:.4g} {along[1]}"
        axes.plot(beam.z_m / along[0], beam.width_m[:, axis] / unit[0], color=colour, linewidth=1.2, label=label)
        axes.axvline(beam.waist_m[axis] / along[0], color=colour, linewidth=1.0, linestyle="--")
    axes.axvline(0.0, color=GREY, linewidth=1.0, linestyle=":")
    axes.set_xlim(beam.z_m[0] / along[0], beam.z_m[-1] / along[0])
    axes.set_ylim(0, None)
    legend(axes, loc="upper center")
