"""Figure of two aligned objects: both phases, what is left between them, and the Fourier ring correlation.

H, W    object pixels
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ptymesh.plot.objects import panel_size
from ptymesh.plot.phase import unwrapped_phase
from ptymesh.plot.style import (
    BLUE,
    GREY,
    ORANGE,
    Pixel,
    blocks,
    bounds,
    image_panel,
    legend,
    length_name,
    new_figure,
    plain_axes,
    scaled,
    unit_for,
)


def comparison_figure(
    aligned: np.ndarray,
    reference: np.ndarray,
    region: np.ndarray,
    frequency: np.ndarray,
    correlation: np.ndarray,
    threshold: np.ndarray,
    resolution: float | None = None,
    pixel_size_m: Pixel = None,
    names: tuple[str, str] = ("A", "B"),
    title: str | None = None,
) -> Figure:
    """Object A aligned to B.

    Args:
        aligned, reference: (H, W) complex, A in the frame of B, and B.
        region: (H, W) bool, the pixels that were compared.
        frequency: of each ring, cycles per metre (per pixel in pixel units); correlation, threshold: of each ring.
        resolution: full period (m or px) at which the two curves cross; None: they do not.
        pixel_size_m: (y, x); None: pixel units.
    """
    rows, columns = (np.flatnonzero(region.any(axis=axis)) for axis in (1, 0))
    box = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    a, side = blocks(aligned[box])
    b, inside = blocks(reference[box])[0], blocks(region[box].astype(float))[0] > 0.5
    pixel = scaled(pixel_size_m, side)
    phase = unwrapped_phase(b, inside)
    # A wraps as B does: only their difference is taken modulo 2 pi.
    other = phase + np.angle(a * np.conj(b))
    error = np.where(inside, np.abs(a - b), np.nan) / np.sqrt((np.abs(b[inside]) ** 2).mean())
    width, height = panel_size(b.shape, pixel)
    figure = new_figure(2 * width, 2 * height + (0.4 if title else 0), title)
    grid = figure.subplots(2, 2)
    limits = bounds(phase)
    image_panel(grid[0, 0], other, f"phase of {names[0]}, aligned", "viridis", pixel, limits, "rad")
    image_panel(grid[0, 1], phase, f"phase of {names[1]}", "viridis", pixel, limits, "rad")
    largest = max(float(np.nanpercentile(error, 99)), 1e-12)
    image_panel(grid[1, 0], error, "|difference| / rms", "magma", pixel, (0.0, largest), "")
    rings_panel(grid[1, 1], frequency, correlation, threshold, resolution, pixel_size_m is not None)
    return figure


def rings_panel(
    axes: Axes,
    frequency: np.ndarray,
    correlation: np.ndarray,
    threshold: np.ndarray,
    resolution: float | None,
    metres: bool,
) -> None:
    """Fourier ring correlation with the 1/2-bit threshold and where they cross; frequencies per metre or pixel."""
    size, unit = unit_for(1 / frequency[-1]) if metres else (1.0, "px")
    plain_axes(axes, f"spatial frequency (1/{unit})", "Fourier ring correlation")
    axes.plot(frequency * size, correlation, color=BLUE, linewidth=1.2, label="correlation")
    axes.plot(frequency * size, threshold, color=ORANGE, linewidth=1.2, linestyle="--", label="1/2-bit threshold")
    if resolution is not None:
        name = length_name(resolution) if metres else f"{resolution:.3g} px"
        axes.axvline(size / resolution, color=GREY, linewidth=0.8, linestyle=":", label=f"full period {name}")
    axes.set_ylim(min(-0.1, float(correlation.min()) - 0.05), 1.05)
    axes.set_xlim(0, frequency[-1] * size)
    legend(axes, loc="lower left")
