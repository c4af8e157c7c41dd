"""Figures of the probe, in the plane of the object and in reciprocal space.

M       incoherent probe modes
h, w    window pixels
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ptymesh.plot.style import (
    ColourScale,
    Pixel,
    bounds,
    colour_of,
    colour_wheel,
    image_panel,
    length_name,
    new_figure,
    plain_axes,
)

if TYPE_CHECKING:
    from ptymesh.physics.beam.pupil import LensFit

#: Most modes that are shown, the first ones.
MOST_MODES = 12
#: Names of aberrations; others go by their symbol alone.
NAMES = {"C10": "minus the defocus", "C12": "astigmatism", "C21": "coma", "C23": "threefold astigmatism", "C30": "Cs"}
#: Root of the mean square (rad) of what a fit leaves, beyond which the phase is not that of a lens of low orders.
UNEXPLAINED = 1.0
#: Sides of what is shown, in those of the pupil.
AROUND = 1.25


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
    modes_shown = probe[:MOST_MODES]
    columns = min(len(modes_shown), 4)
    rows = -(-len(modes_shown) // columns)
    rest = f", the first {len(modes_shown)} of {len(probe)} modes" if len(probe) > len(modes_shown) else ""
    figure = new_figure(2.7 * columns + 1.1, 2.9 * rows + 0.4, title or f"probe{rest}")
    outer_grid = figure.add_gridspec(1, 2, width_ratios=[2.7 * columns, 1.1])
    cells = outer_grid[0].subgridspec(rows, columns)
    for i, (mode, power) in enumerate(zip(modes_shown, powers_percent(probe), strict=False)):
        axes = figure.add_subplot(cells[i // columns, i % columns])
        image_panel(axes, colour_of(mode), f"mode {i + 1}: {power:.3g} %", None, pixel_size_m)
    colour_wheel(figure.add_subplot(outer_grid[1]))
    return figure


def pupil_figure(
    spectrum: np.ndarray,
    inside: np.ndarray,
    pixel_size_m: Pixel = None,
    wavelength_m: float | None = None,
    lens: LensFit | None = None,
    *,
    is_electron: bool = False,
    title: str | None = None,
) -> Figure:
    """Return a figure of a mode in reciprocal space, and of its aberration phase with the coefficients.

    Args:
        spectrum: (h, w) complex, spectrum of the mode, with zero frequency at (h//2, w//2).
        inside: (h, w) bool, the pupil, outside of which no phase is drawn.
        pixel_size_m: object pixel (y, x); None: frequencies are in 1/px.
        wavelength_m: wavelength; None if it is not known.
        lens: aberrations that were fitted; None: only intensity and phase are drawn.
        is_electron: angles in mrad where the wavelength is known, in place of frequencies in 1/um.
        title: of the figure.
    """
    step, unit = _axis_of(spectrum, pixel_size_m, wavelength_m if is_electron else None)
    power = np.abs(spectrum) ** 2
    figure = new_figure(9.6, 4.4 if lens is None else 9.4, title or "first mode of the probe in reciprocal space")
    rows = figure.add_gridspec(1 if lens is None else 3, 2, height_ratios=(1,) if lens is None else (1, 1, 0.34))
    panels = [figure.add_subplot(rows[i // 2, i % 2]) for i in range(2 if lens is None else 4)]
    phase = np.where(inside, np.angle(spectrum) % (2 * math.pi), np.nan)
    images = [
        ("intensity", power, ColourScale("magma", None, "counts")),
        ("phase of the spectrum", phase, ColourScale("hsv", (0.0, 2 * math.pi), "rad")),
    ]
    if lens is not None:
        most = max(float(np.nanpercentile(np.abs(lens.rest), 99.5)), 1e-6) if inside.any() else 1.0
        images += [
            ("aberration phase χ, without shift", lens.chi, ColourScale("viridis", bounds(lens.chi, 0.0), "rad")),
            (
                f"what the fit leaves: {lens.rest_rad:.3g} rad rms",
                lens.rest,
                ColourScale("RdBu_r", (-most, most), "rad"),
            ),
        ]
    reach = _reach(inside, step)
    for axes, (name, image, colours) in zip(panels, images, strict=True):
        _frequency_panel(axes, image, name, colours, (step, unit, reach))
    if lens is not None:
        _table(figure.add_subplot(rows[2, :]), lens)
    return figure


def _axis_of(spectrum: np.ndarray, pixel_size_m: Pixel, wavelength_m: float | None) -> tuple[tuple[float, float], str]:
    """Return the step (y, x) from a pixel of a spectrum to the next, and its unit.

    Args:
        spectrum: (h, w).
        pixel_size_m: object pixel (y, x), or None.
        wavelength_m: for angles; None for frequencies.
    """
    pixel = (1.0, 1.0) if pixel_size_m is None else pixel_size_m
    step = [1 / (n * d) for n, d in zip(spectrum.shape, pixel, strict=True)]
    if pixel_size_m is None:
        return (step[0], step[1]), "1/px"
    size, unit = (1e-6, "1/µm") if wavelength_m is None else (1e3 * wavelength_m, "mrad")
    return (step[0] * size, step[1] * size), unit


def _reach(inside: np.ndarray, step: tuple[float, float]) -> float:
    """Return half the side of a square about zero frequency that holds the pupil (h, w) and some room."""
    places = np.argwhere(inside)
    if not len(places):
        return max(n // 2 * d for n, d in zip(inside.shape, step, strict=True))
    far = np.abs((places - np.array(inside.shape) // 2) * np.array(step)).max()
    return AROUND * (float(far) + max(step))


def _frequency_panel(
    axes: Axes,
    image: np.ndarray,
    name: str,
    colours: ColourScale,
    scale: tuple[tuple[float, float], str, float],
) -> None:
    """Draw an image over frequencies.

    Args:
        axes: to draw on.
        image: (h, w) with zero frequency at (h//2, w//2).
        name: title of the panel.
        colours: of the values.
        scale: step (y, x) from a pixel to the next, its unit, and half the side that is shown.
    """
    step, unit, reach = scale
    panel = image_panel(axes, image, name, colours, bar=False)
    (top, bottom), (left, right) = (
        ((-(n // 2) - 0.5) * d, (n - n // 2 - 0.5) * d) for n, d in zip(image.shape, step, strict=True)
    )
    panel.set_extent((left, right, bottom, top))
    axes.set_aspect("equal")
    axes.set_xlim(max(-reach, left), min(reach, right))
    axes.set_ylim(min(reach, bottom), max(-reach, top))
    plain_axes(axes, f"x ({unit})", f"y ({unit})")
    axes.grid(False)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_locator(MaxNLocator(6))


def _table(axes: Axes, lens: LensFit) -> None:
    """Write the coefficients into a table, or why there are none."""
    axes.set_axis_off()
    about = f"half-angle {1e3 * lens.semiangle_rad:.4g} mrad"
    if lens.rest_rad > UNEXPLAINED:
        text = f"{about}\nlow orders leave {lens.rest_rad:.2g} rad of the phase: this is not the pupil of a simple lens"
        axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=9)
        return
    axes.set_title(about, fontsize=10)
    rows = []
    for one in lens.aberrations:
        angle = "" if one.angle_rad is None else f"{math.degrees(one.angle_rad):.3g}°"
        size = ("-" if one.size_m < 0 else "") + length_name(abs(one.size_m))
        rows.append([f"{one.name} ({NAMES[one.name]})" if one.name in NAMES else one.name, size, angle])
        rows[-1].append(f"{one.edge_rad:.3g} rad")
    table = axes.table(
        rows, colLabels=["aberration", "coefficient", "angle from x to y", "phase at the edge"], loc="center",
        cellLoc="center", edges="horizontal",
    )  # fmt: skip
    table.auto_set_font_size(False)
    table.set_fontsize(9)
