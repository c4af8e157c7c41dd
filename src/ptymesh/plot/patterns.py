"""Figures of measured patterns against the model.

h, w    window pixels
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from ptymesh.plot.style import ColourScale, image_panel, new_figure


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
        spread = float(np.nanpercentile(np.abs(panels[2]), 99.5)) if good.any() else 0.0
        limits = (-spread, spread) if spread > 0 else (-1.0, 1.0)
        colours = ColourScale("RdBu_r", limits, "√counts")
        image_panel(row[2], panels[2], "√model - √measured", colours, bar=False)
    return figure


def _logarithmic(axes: Axes, image: np.ndarray, measured: np.ndarray, title: str) -> None:
    """Draw counts on a logarithmic scale of at most four decades, the same for both patterns of a row."""
    positive = measured[measured > 0]
    top = float(positive.max()) if positive.size else 1.0
    low = max(top / 1e4, float(positive.min()) if positive.size else 0.0)
    low = low if low < top else top / 10
    image_panel(axes, np.maximum(image, low), title, ColourScale("viridis", LogNorm(low, top), "counts"), bar=False)
