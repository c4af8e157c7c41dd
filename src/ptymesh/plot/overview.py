"""Overview figure of a reconstruction.

N       views
M       incoherent probe modes
L       object slices
H, W    object pixels
h, w    window pixels
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec

from ptymesh.plot.objects import amplitude_panel, phase_panel, prepared
from ptymesh.plot.probes import powers_percent
from ptymesh.plot.progress import curve_panel
from ptymesh.plot.scan import coverage_panel
from ptymesh.plot.style import RED, Pixel, colour_of, colour_wheel, image_panel, new_figure

#: Number of strongest probe modes that are shown.
SHOWN = 4
#: Verdicts that are shown in red.
LOUD = ("poor", "failed")


def overview_figure(
    object: np.ndarray,
    probe: np.ndarray,
    positions_px: np.ndarray,
    illumination: np.ndarray,
    history: Mapping[str, np.ndarray],
    pixel_size_m: Pixel = None,
    final_residual: float | None = None,
    stage_names: Sequence[str] | None = None,
    title: str | None = None,
    verdict: str | None = None,
    reason: str | None = None,
) -> Figure:
    """Return a figure of object, strongest probe modes, coverage and residual.

    Args:
        object: (L, H, W) complex; the product of its slices is shown.
        probe: (M, h, w) complex; its four strongest modes are shown.
        positions_px: (N, 2) y x, object pixel under the window's top-left corner.
        illumination: (H, W), counts on each pixel.
        history: columns `epoch`, `stage`, `residual` or `loss`.
        pixel_size_m: (y, x); None: pixel units.
        final_residual: of the frozen estimate.
        stage_names: names of the stages.
        title: of the figure.
        verdict: on the result; poor or failed is shown over the figure in red, with the reason below it.
        reason: the verdict's sentence.
    """
    image, region, pixel = prepared(object, pixel_size_m, illumination)
    figure = new_figure(13.5, 7.8, title)
    grid = figure.add_gridspec(2, 3)
    if verdict in LOUD:
        figure.text(0.01, 0.985, verdict.upper(), color=RED, fontsize=18, fontweight="bold", va="top")
        figure.supxlabel(f"{verdict}: {reason}", color=RED, fontsize=10)
    amplitude_panel(figure.add_subplot(grid[0, 0]), image, region, pixel)
    phase_panel(figure.add_subplot(grid[0, 1]), image, region, pixel)
    column = next((name for name in ("residual", "loss") if name in history), None)
    curve = figure.add_subplot(grid[0, 2])
    if column is not None:
        curve_panel(curve, history, column, final_residual if column == "residual" else None, stage_names)
        curve.set_title(column, fontsize=10)
    else:
        curve.set_axis_off()
    _modes(figure, grid[1, :2], probe, pixel_size_m)
    centres = positions_px + (np.array(probe.shape[-2:]) - 1) / 2
    coverage_panel(figure.add_subplot(grid[1, 2]), illumination, centres, pixel_size_m)
    return figure


def _modes(figure: Figure, cell: SubplotSpec, probe: np.ndarray, pixel_size_m: Pixel) -> None:
    """Draw the strongest modes in a row, and the colour wheel."""
    powers = powers_percent(probe)
    strongest = np.argsort(-powers, kind="stable")[:SHOWN]
    row = cell.subgridspec(1, len(strongest) + 1, width_ratios=[*[1.0] * len(strongest), 0.35])
    for i, mode in enumerate(strongest):
        axes = figure.add_subplot(row[i])
        image_panel(axes, colour_of(probe[mode]), f"mode {mode + 1}: {powers[mode]:.3g} %", None, pixel_size_m)
    colour_wheel(figure.add_subplot(row[len(strongest)]))
