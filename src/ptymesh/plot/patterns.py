"""Figures of measured patterns, and of their mean, against the model.

h, w    window pixels
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from ptymesh.plot.style import BLUE, ORANGE, ColourScale, image_panel, legend, new_figure, plain_axes


def patterns_figure(
    pairs: Mapping[str, tuple[np.ndarray, np.ndarray]],
    mask: np.ndarray | None = None,
    shift: bool = True,
    title: str | None = None,
) -> Figure:
    """Return a figure of measured and modelled patterns side by side, and of the difference of their square roots.

    The squares of that difference make up the residual.

    Args:
        pairs: name of each row ("typical: view 12, residual 0.011") -> measured and modelled counts, both (h, w).
            Measured values below zero have no data.
        mask: (h, w) bool, True where the detector is good.
        shift: bring DC from the corner to the centre (far field).
        title: of the figure.
    """
    figure = new_figure(10.5, 3.5 * len(pairs) + (0.4 if title else 0), title)
    grid = figure.subplots(len(pairs), 3, squeeze=False)
    for row, (name, (measured, modelled)) in zip(grid, pairs.items(), strict=True):
        good = measured >= 0 if mask is None else (measured >= 0) & mask
        difference = np.sqrt(np.maximum(modelled, 0)) - np.sqrt(np.maximum(measured, 0).astype(float))
        panels = [np.where(good, image, np.nan) for image in (measured, modelled, difference)]
        if shift:
            panels = [np.fft.fftshift(panel) for panel in panels]
        _logarithmic(row[0], panels[0], panels[0], "measured")
        row[0].set_ylabel(name, fontsize=9)
        _logarithmic(row[1], panels[1], panels[0], "model")
        _difference(row[2], panels[2])
    return figure


def mean_pattern_figure(
    measured: np.ndarray,
    modelled: np.ndarray,
    views: int,
    step_rad: tuple[float, float] | None = None,
    shift: bool = True,
    *,
    is_electron: bool = False,
) -> Figure:
    """Return a figure of the mean pattern beside its model, and of their radial means.

    Args:
        measured: (h, w) mean counts of a view, NaN where there are no data.
        modelled: (h, w) the same of the model.
        views: number of views that were averaged.
        step_rad: angle (y, x) from a pixel to the next; None: the radius is in pixels.
        shift: bring DC from the corner to the centre (far field); without it there are no radial means.
        is_electron: call the far field's mean a PACBED pattern, as the electron microscopist does.
    """
    good = np.isfinite(measured) & np.isfinite(modelled)
    difference = np.sqrt(np.maximum(modelled, 0)) - np.sqrt(np.maximum(measured, 0))
    residual = float((difference[good] ** 2).sum()) / max(float(measured[good].sum()), 1e-30)
    name = "position-averaged pattern (PACBED)" if shift and is_electron else "mean pattern"
    title = f"{name} of {views} views, residual {residual:.3g}"
    figure = new_figure(10.5, 7.0 if shift else 3.9, title)
    grid = figure.add_gridspec(2 if shift else 1, 3)
    panels = [measured, modelled, difference]
    if shift:
        panels = [np.fft.fftshift(panel) for panel in panels]
    axes = [figure.add_subplot(grid[0, column]) for column in range(3)]
    _logarithmic(axes[0], panels[0], panels[0], "measured")
    _logarithmic(axes[1], panels[1], panels[0], "model")
    _difference(axes[2], panels[2])
    if shift:
        _radial_panel(figure.add_subplot(grid[1, :]), panels[0], panels[1], step_rad)
    return figure


def radial_means(image: np.ndarray, step: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Return radii and the mean over each ring about the pixel (h//2, w//2), NaN where a ring has no value.

    Args:
        image: (h, w), NaN where there is no value.
        step: distance (y, x) from a pixel to the next; rings are as wide as the larger one, up to the nearer edge.

    Returns:
        Both (n,), the radius in the unit of the step.
    """
    y, x = ((np.arange(n) - n // 2) * d for n, d in zip(image.shape, step, strict=True))
    width = max(step)
    ring = np.rint(np.hypot(y[:, None], x) / width).astype(np.int64)
    count = int(min(n // 2 * d for n, d in zip(image.shape, step, strict=True)) / width + 1e-9) + 1
    used = np.isfinite(image) & (ring < count)
    total, pixels = (np.bincount(ring[used], weights=weights, minlength=count) for weights in (image[used], None))
    return np.arange(count) * width, np.where(pixels > 0, total / np.maximum(pixels, 1), np.nan)


def _radial_panel(axes: Axes, measured: np.ndarray, modelled: np.ndarray, step_rad: tuple[float, float] | None) -> None:
    """Draw the radial means of both patterns on a logarithmic scale.

    Args:
        axes: to draw on.
        measured: (h, w) with DC at the centre, NaN where there are no data.
        modelled: (h, w) the same of the model.
        step_rad: angle (y, x) from a pixel to the next; None: the radius is in pixels.
    """
    step = (1.0, 1.0) if step_rad is None else (1e3 * step_rad[0], 1e3 * step_rad[1])
    plain_axes(axes, "radius (px)" if step_rad is None else "angle (mrad)", "mean counts of a ring")
    largest = 0.0
    for image, name, colour, line in ((measured, "measured", BLUE, "-"), (modelled, "model", ORANGE, "--")):
        radius, mean = radial_means(image, step)
        axes.plot(radius, mean, color=colour, linestyle=line, linewidth=1.3, label=name)
        largest = max(largest, float(np.nanmax(mean, initial=0.0)))
    if largest > 0:
        axes.set_yscale("log", nonpositive="mask")
        axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlim(0, max(radius[-1], max(step)))  # of elongated pixels there may be the middle one alone
    legend(axes, loc="upper right")


def _difference(axes: Axes, image: np.ndarray) -> None:
    """Draw the difference of the square roots, NaN where there are no data, on a scale that is even about zero."""
    spread = float(np.nanpercentile(np.abs(image), 99.5)) if np.isfinite(image).any() else 0.0
    limits = (-spread, spread) if spread > 0 else (-1.0, 1.0)
    image_panel(axes, image, "√model - √measured", ColourScale("RdBu_r", limits, "√counts"), bar=False)


def _logarithmic(axes: Axes, image: np.ndarray, measured: np.ndarray, title: str) -> None:
    """Draw counts on a logarithmic scale of at most four decades, the same for both patterns of a row."""
    positive = measured[measured > 0]
    top = float(positive.max()) if positive.size else 1.0
    low = max(top / 1e4, float(positive.min()) if positive.size else 0.0)
    low = low if low < top else top / 10
    image_panel(axes, np.maximum(image, low), title, ColourScale("viridis", LogNorm(low, top), "counts"), bar=False)
