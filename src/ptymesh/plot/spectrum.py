"""Figure of the power spectrum of an object's phase, with its information limit.

h, w    pixels of the Fourier plane
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.ticker import MaxNLocator, NullLocator

from ptymesh.plot.style import (
    BLUE,
    GREY,
    ORANGE,
    RED,
    UNITS,
    ColourScale,
    blocks,
    image_panel,
    legend,
    length_name,
    new_figure,
    plain_axes,
)

#: Units of length, in metres and by name, in whose inverse frequencies are shown, ascending.
FREQUENCY_UNITS = ((1e-10, "Å"), *UNITS[::-1])
#: Share of the pixels that are darker than the darkest colour.
DARKEST = 1.0


class Spectrum(Protocol):
    """Power spectrum of a phase, as `compare.power_spectrum` returns it."""

    @property
    def power(self) -> np.ndarray:
        """Power (h, w) of each pixel of the Fourier plane, rad^2, with zero frequency at (h//2, w//2)."""

    @property
    def step(self) -> tuple[float, float]:
        """Frequency (y, x) from one of its pixels to the next, cycles per `unit`."""

    @property
    def frequency(self) -> np.ndarray:
        """Frequency of each ring, cycles per `unit`."""

    @property
    def radial(self) -> np.ndarray:
        """Mean power of each ring."""

    @property
    def noise(self) -> float:
        """Level of the noise."""

    @property
    def threshold(self) -> np.ndarray:
        """Power of each ring above which it counts as signal."""

    @property
    def limit(self) -> float | None:
        """Frequency of the information limit; None where no ring stands above noise."""

    @property
    def at_edge(self) -> bool:
        """True if pixels may limit it."""

    @property
    def unit(self) -> str:
        """Unit of length: m or px."""


def spectrum_figure(spectrum: Spectrum, title: str | None = None) -> Figure:
    """Return a figure of a power spectrum, its radial mean and the information limit, marked by a circle.

    Args:
        spectrum: that is drawn.
        title: of the figure.
    """
    figure = new_figure(10.4, 4.8 + (0.4 if title else 0), title)
    left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.0))
    unit = frequency_unit(spectrum)
    _power_panel(left, spectrum, unit)
    _radial_panel(right, spectrum, unit)
    return figure


def frequency_unit(spectrum: Spectrum) -> tuple[float, str]:
    """Return the smallest unit, in metres and by name, in which the highest frequency of rings is one or more."""
    if spectrum.unit != "m":
        return 1.0, "px"
    highest = spectrum.frequency[-1]
    return next(((size, name) for size, name in FREQUENCY_UNITS if highest * size >= 0.9999), FREQUENCY_UNITS[-1])


def limit_name(spectrum: Spectrum) -> str:
    """Return the information limit in words: '0.0821 nm', 'none above noise'."""
    if spectrum.limit is None:
        return "none: no ring stands above noise"
    period = 1 / spectrum.limit
    if spectrum.unit != "m":
        name = f"{period:.3g} px"
    else:
        name = f"{period * 1e10:.3g} Å" if period < 1e-9 else length_name(period)
    return f"{name} or better, pixels end there" if spectrum.at_edge else name


def _power_panel(axes: Axes, spectrum: Spectrum, unit: tuple[float, str]) -> None:
    """Draw the power on a logarithmic scale, with a circle at the limit.

    Args:
        axes: to draw on.
        spectrum: that is drawn.
        unit: of length, in metres and by name.
    """
    size, name = unit
    power, _ = blocks(spectrum.power)
    extent = []
    for n, step in zip(spectrum.power.shape[::-1], spectrum.step[::-1], strict=True):
        extent.append(((-(n // 2) - 0.5) * step * size, (n - n // 2 - 0.5) * step * size))
    positive = power[power > 0]
    top = float(positive.max()) if positive.size else 1.0
    low = max(float(np.percentile(positive, DARKEST)), top / 1e8) if positive.size else top / 10
    norm = LogNorm(low if low < top else top / 10, top)
    panel = image_panel(
        axes, np.maximum(power, low), "power of the phase", ColourScale("magma", norm, "rad²"), bar=False
    )
    panel.set_extent((*extent[0], extent[1][1], extent[1][0]))
    axes.set_aspect("equal")
    plain_axes(axes, f"x (1/{name})", f"y (1/{name})")
    axes.grid(False)
    axes.xaxis.set_major_locator(_few_ticks())
    axes.yaxis.set_major_locator(_few_ticks())
    if spectrum.limit is not None:
        axes.add_patch(Circle((0, 0), spectrum.limit * size, fill=False, color="white", linewidth=1.0, linestyle="--"))


def _few_ticks() -> MaxNLocator:
    """Return a locator of a few ticks, in place of those that `image_panel` takes away."""
    return MaxNLocator(7, symmetric=True)


def _radial_panel(axes: Axes, spectrum: Spectrum, unit: tuple[float, str]) -> None:
    """Draw the radial mean, noise, threshold and limit.

    Args:
        axes: to draw on.
        spectrum: that is drawn.
        unit: of length, in metres and by name.
    """
    size, name = unit
    plain_axes(axes, f"spatial frequency (1/{name})", "mean power of a ring (rad²)")
    place = spectrum.frequency * size
    axes.plot(place, spectrum.radial, color=BLUE, linewidth=1.2, label="radial mean")
    if spectrum.noise > 0:
        axes.plot(place, spectrum.threshold, color=ORANGE, linewidth=1.0, linestyle="--", label="signal is above this")
        axes.axhline(spectrum.noise, color=GREY, linewidth=1.0, linestyle=":", label="noise")
    if (spectrum.radial > 0).any():
        axes.set_yscale("log")
        axes.yaxis.set_minor_locator(NullLocator())
    if spectrum.limit is not None:
        axes.axvline(spectrum.limit * size, color=RED, linewidth=1.0, linestyle="--")
    axes.set_title(f"information limit {limit_name(spectrum)}", fontsize=10)
    axes.set_xlim(0, place[-1] * 1.01)
    legend(axes, loc="upper right")
