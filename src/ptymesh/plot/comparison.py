"""Figure of two aligned objects: both phases, the remaining difference, and the Fourier ring correlation.

H, W    object pixels
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ptymesh.plot.objects import panel_size
from ptymesh.plot.phase import unwrapped_phase
from ptymesh.plot.style import (
    BLUE,
    GREY,
    ORANGE,
    UNITS,
    ColourScale,
    Pixel,
    blocks,
    bounds,
    image_panel,
    legend,
    length_name,
    new_figure,
    plain_axes,
    scaled,
)


class Rings(Protocol):
    """Fourier ring correlation, as `compare.ring_correlation` returns it."""

    @property
    def frequency(self) -> np.ndarray:
        """Frequency of each ring, cycles per `unit`."""

    @property
    def correlation(self) -> np.ndarray:
        """Correlation of each ring, -1 to 1."""

    @property
    def threshold(self) -> np.ndarray:
        """Correlation of each ring below which it counts as noise."""

    @property
    def resolution(self) -> float | None:
        """Full period (in `unit`) at which correlation and threshold cross; None if below from the first ring on."""

    @property
    def at_limit(self) -> bool:
        """True if they never cross, so that the resolution is that of the pixels."""

    @property
    def unit(self) -> str:
        """Unit of the resolution: m or px."""


def comparison_figure(
    aligned: np.ndarray,
    reference: np.ndarray,
    region: np.ndarray,
    rings: Rings,
    pixel_size_m: Pixel = None,
    names: tuple[str, str] = ("A", "B"),
    title: str | None = None,
) -> Figure:
    """Return a figure of object A, aligned to B, and B.

    Args:
        aligned: (H, W) complex, A in the frame of B.
        reference: (H, W) complex, B.
        region: (H, W) bool, the pixels that were compared.
        rings: Fourier ring correlation over the region.
        pixel_size_m: (y, x); None: pixel units.
        names: of A and B.
        title: of the figure.
    """
    rows, columns = (np.flatnonzero(region.any(axis=axis)) for axis in (1, 0))
    box = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    a, side = blocks(aligned[box])
    b, inside = blocks(reference[box])[0], blocks(region[box].astype(float))[0] > 0.5
    pixel = scaled(pixel_size_m, side)
    phase = unwrapped_phase(b, inside)
    # The phase of A is that of B plus their difference, so that both are unwrapped in the same way.
    other = phase + np.angle(a * np.conj(b))
    error = np.where(inside, np.abs(a - b), np.nan) / np.sqrt((np.abs(b[inside]) ** 2).mean())
    width, height = panel_size(b.shape, pixel)
    figure = new_figure(2 * width, 2 * height + (0.4 if title else 0), title)
    grid = figure.subplots(2, 2)
    radians = ColourScale("viridis", bounds(phase), "rad")
    image_panel(grid[0, 0], other, f"phase of {names[0]}, aligned", radians, pixel)
    image_panel(grid[0, 1], phase, f"phase of {names[1]}", radians, pixel)
    largest = max(float(np.nanpercentile(error, 99)), 1e-12)
    image_panel(grid[1, 0], error, "|difference| / rms", ColourScale("magma", (0.0, largest), ""), pixel)
    rings_panel(grid[1, 1], rings)
    return figure


def rings_panel(axes: Axes, rings: Rings) -> None:
    """Draw the Fourier ring correlation with the 1/2-bit threshold and their crossing."""
    top = rings.frequency[-1]
    # The smallest unit in which the highest frequency is more than one.
    size, unit = next(((s, u) for s, u in UNITS[::-1] if top * s >= 1), UNITS[0]) if rings.unit == "m" else (1.0, "px")
    plain_axes(axes, f"spatial frequency (1/{unit})", "Fourier ring correlation")
    axes.plot(rings.frequency * size, rings.correlation, color=BLUE, linewidth=1.2, label="correlation")
    axes.plot(rings.frequency * size, rings.threshold, color=ORANGE, linewidth=1.2, ls="--", label="1/2-bit threshold")
    if rings.resolution is not None:
        name = length_name(rings.resolution) if rings.unit == "m" else f"{rings.resolution:.3g} px"
        label = f"never below, pixels end at {name}" if rings.at_limit else f"full period {name}"
        axes.axvline(size / rings.resolution, color=GREY, linewidth=1.0, linestyle=":", label=label)
    axes.set_ylim(min(-0.1, float(rings.correlation.min()) - 0.05), 1.05)
    axes.set_xlim(0, top * size * 1.01)
    legend(axes, loc="lower left")
