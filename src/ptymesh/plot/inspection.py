"""Overview figure of a data set: mean pattern, one pattern, mask, positions, intensity per view.

N       views
h, w    window pixels, DC in the middle of far-field patterns
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from ptymesh.plot.style import NotebookFigure

#: Colour and marker of each kind of faulty pixel.
MARKS = {"hot": ("tab:red", "o"), "dead": ("tab:blue", "s"), "stuck": ("tab:orange", "D")}


class ShownPatterns(NamedTuple):
    """Patterns of a data set that a figure shows.

    Attributes:
        mean: (h, w) counts, NaN where masked.
        example: (h, w) counts of one view, NaN where masked.
        odd: pixels (n, 2), y x, by what is odd of them: hot, dead, stuck.
    """

    mean: np.ndarray
    example: np.ndarray
    odd: Mapping[str, np.ndarray]


class ShownScan(NamedTuple):
    """Scan of a data set that a figure shows.

    Attributes:
        positions: (N, 2) y x object pixels.
        totals: (N,) counts per view, shown in file order and on the scan.
        pixel_m: object pixel (y, x), for axes in micrometres; None: axes in pixels.
        probe_diameter_px: drawn to scale; 0: not drawn.
        window: (h, w), drawn to scale; None: not drawn.
    """

    positions: np.ndarray
    totals: np.ndarray
    pixel_m: tuple[float, float] | None = None
    probe_diameter_px: float = 0.0
    window: tuple[int, int] | None = None


def inspection_figure(title: str, patterns: ShownPatterns, scan: ShownScan) -> Figure:
    """Return six panels about a data set.

    Args:
        title: of the figure.
        patterns: what is shown of the patterns.
        scan: what is shown of the positions and of the counts per view.
    """
    figure = NotebookFigure(figsize=(12, 7.2), layout="constrained")
    axes = figure.subplots(2, 3)
    figure.suptitle(title)
    _pattern(axes[0, 0], patterns.mean, "mean pattern (counts)")
    _pattern(axes[0, 1], patterns.example, "one pattern (counts)")
    _mask(axes[0, 2], patterns.mean, patterns.odd)
    _scan(axes[1, 0], scan)
    _intensity(axes[1, 1], scan.totals)
    _radial(axes[1, 2], patterns.mean)
    return figure


def _pattern(axes: Axes, pattern: np.ndarray, title: str) -> None:
    """Draw counts on a logarithmic scale; zeros get the darkest colour, masked pixels are grey."""
    axes.set_title(title)
    positive = pattern[np.isfinite(pattern) & (pattern > 0)]
    if not positive.size:
        axes.text(0.5, 0.5, "no counts", ha="center", transform=axes.transAxes)
        return
    low, high = max(float(np.percentile(positive, 1)), float(positive.max()) * 1e-6), float(positive.max())
    floored = np.where(np.isnan(pattern), np.nan, np.maximum(pattern, low))
    norm = LogNorm(low, high) if high > low else None
    axes.set_facecolor("0.6")
    image = axes.imshow(floored, norm=norm, cmap="viridis", interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, shrink=0.8)


def _mask(axes: Axes, mean_pattern: np.ndarray, odd: Mapping[str, np.ndarray]) -> None:
    bad = ~np.isfinite(mean_pattern)
    axes.set_title(f"mask ({int(bad.sum())} pixels left out)")
    axes.imshow(bad, cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
    for kind, pixels in odd.items():
        if len(pixels):
            colour, marker = MARKS[kind]
            axes.plot(pixels[:, 1], pixels[:, 0], marker, mfc="none", mec=colour, label=f"{kind} ({len(pixels)})")
    if any(len(pixels) for pixels in odd.values()):
        axes.legend(loc="upper right", fontsize="small")


def _scan(axes: Axes, scan: ShownScan) -> None:
    positions, totals, pixel_m, diameter, window = scan
    scale, unit = (np.ones(2), "px") if pixel_m is None else _readable(positions, pixel_m)
    y, x = (positions * scale).T
    size = float(np.clip(3000 / len(positions), 1, 30))
    points = axes.scatter(x, y, c=totals / max(float(totals.mean()), 1e-300), s=size, cmap="cividis", linewidths=0)
    axes.figure.colorbar(points, ax=axes, shrink=0.8, label="relative counts")
    if diameter > 0:
        turn = np.linspace(0, 2 * np.pi, 100)
        radius = diameter / 2 * scale
        axes.plot(x[0] + radius[1] * np.cos(turn), y[0] + radius[0] * np.sin(turn), "r-", lw=1, label="probe")
    if window is not None:
        dy, dx = np.array(window) * scale / 2
        box_x, box_y = np.array([-1, 1, 1, -1, -1]) * dx, np.array([-1, -1, 1, 1, -1]) * dy
        axes.plot(x[0] + box_x, y[0] + box_y, "k:", lw=0.8, label="window")
    if diameter > 0 or window is not None:
        axes.legend(loc="lower right", fontsize="small")
    axes.set(title=f"{len(positions)} positions", xlabel=f"x ({unit})", ylabel=f"y ({unit})")
    axes.set_aspect("equal", adjustable="box")
    axes.invert_yaxis()


def _readable(positions: np.ndarray, pixel_m: tuple[float, float]) -> tuple[np.ndarray, str]:
    """Return factors (y, x) from pixels to micrometres, or nanometres for small scans, and the unit."""
    pixel = np.array(pixel_m)
    small = float((np.ptp(positions, axis=0) * pixel).max()) < 1e-6
    return (pixel * 1e9, "nm") if small else (pixel * 1e6, "µm")


def _intensity(axes: Axes, totals: np.ndarray) -> None:
    axes.plot(totals, ".", ms=2)
    axes.set(title="counts per view", xlabel="view", ylabel="counts")
    axes.set_ylim(0, max(float(totals.max()), 1.0) * 1.08)


def _radial(axes: Axes, mean_pattern: np.ndarray) -> None:
    """Draw the mean counts over rings around the middle, which show how far the signal reaches."""
    h, w = mean_pattern.shape
    radius = np.hypot(np.arange(h)[:, None] - h // 2, np.arange(w) - w // 2).round().astype(int)
    good = np.isfinite(mean_pattern)
    total = np.bincount(radius[good], mean_pattern[good])
    count = np.bincount(radius[good])
    rings = np.flatnonzero(count)
    level = total[rings] / count[rings]
    axes.plot(rings, level)
    if (level > 0).any():
        axes.set_yscale("log")
    axes.axvline(min(h, w) / 2, color="0.6", ls=":", lw=1)
    axes.set(title="radial mean", xlabel="distance from the middle (px)", ylabel="counts")
