"""Figures of the probe.

M       incoherent probe modes
h, w    window pixels
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ptymesh.plot.style import Pixel, colour_of, colour_wheel, image_panel, new_figure

#: Most modes that are shown, the first ones.
MOST_MODES = 12


def powers_percent(probe: np.ndarray) -> np.ndarray:
    """Return the share of each mode (M, h, w) in the counts, per cent."""
    power = (np.abs(probe.astype(np.complex128)) ** 2).sum(axis=(1, 2))
    return 100 * power / power.sum() if power.sum() > 0 else power


def probe_figure(probe: np.ndarray, pixel_size_m: Pixel = None, title: str | None = None) -> Figure:
    """Return a figure of the probe modes with their powers.

    Hue is phase, brightness amplitude, each mode scaled to its own maximum.

    Args:
        probe: (M, h, w) complex.
        pixel_size_m: (y, x); None: pixel units.
        title: of the figure.
    """
    shown = probe[:MOST_MODES]
    columns = min(len(shown), 4)
    rows = -(-len(shown) // columns)
    rest = f", the first {len(shown)} of {len(probe)} modes" if len(probe) > len(shown) else ""
    figure = new_figure(2.7 * columns + 1.1, 2.9 * rows + 0.4, title or f"probe{rest}")
    whole = figure.add_gridspec(1, 2, width_ratios=[2.7 * columns, 1.1])
    cells = whole[0].subgridspec(rows, columns)
    for i, (mode, power) in enumerate(zip(shown, powers_percent(probe), strict=False)):
        axes = figure.add_subplot(cells[i // columns, i % columns])
        image_panel(axes, colour_of(mode), f"mode {i + 1}: {power:.3g} %", None, pixel_size_m)
    colour_wheel(figure.add_subplot(whole[1]))
    return figure
