"""Figure of two aligned objects: both phases, the remaining difference, and the Fourier ring correlation.

H, W    object pixels
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ptymesh.physics.phase import unwrapped_phase
from ptymesh.plot.objects import panel_size
from ptymesh.plot.style import (
    BLUE,
    GREEN,
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


class RingCurve(Protocol):
    """A curve over rings of the Fourier plane, and the resolution at which it crosses a threshold."""

    @property
    def frequency(self) -> np.ndarray:
        """Frequency of each ring, cycles per `unit`."""

    @property
    def resolution(self) -> float | None:
        """Full period (in `unit`) down to which the curve is above; None if it is below from the first ring on."""

    @property
    def at_limit(self) -> bool:
        """True if it never falls below, so that the resolution is that of the pixels."""

    @property
    def unit(self) -> str:
        """Unit of the resolution: m or px."""


class Rings(RingCurve, Protocol):
    """Fourier ring correlation, as `compare.ring_correlation` returns it."""

    @property
    def correlation(self) -> np.ndarray:
        """Correlation of each ring, -1 to 1."""

    @property
    def threshold(self) -> np.ndarray:
        """Correlation of each ring below which it counts as noise."""

    @property
    def one_bit(self) -> np.ndarray:
        """The 1-bit threshold of each ring."""

    @property
    def snr(self) -> np.ndarray:
        """Signal-to-noise ratio of the mean of both images in each ring."""


class Transfer(RingCurve, Protocol):
    """Phase-retrieval transfer function, as `run_folder.transfer` returns it; its threshold is 1/e."""

    @property
    def value(self) -> np.ndarray:
        """Value of each ring."""


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
    panels = _Panels.of_region(aligned, reference, region, pixel_size_m)
    width, height = panels.size
    figure = new_figure(2 * width, 2 * height + (0.4 if title else 0), title)
    grid = figure.subplots(2, 2)
    panels.draw((grid[0, 0], grid[0, 1], grid[1, 0]), names)
    rings_panel(grid[1, 1], rings)
    return figure


@dataclass(frozen=True)
class _Panels:
    """Two aligned objects within the box of the region that was compared.

    Attributes:
        a, b: (H, W) complex, averaged in blocks where they are large.
        inside: (H, W) bool, the region.
        pixel: (y, x) of these arrays; None: pixel units.
    """

    a: np.ndarray
    b: np.ndarray
    inside: np.ndarray
    pixel: Pixel

    @classmethod
    def of_region(cls, aligned: np.ndarray, reference: np.ndarray, region: np.ndarray, pixel_size_m: Pixel) -> _Panels:
        """Return both cut to the region.

        Args:
            aligned: (H, W) complex, A in the frame of B.
            reference: (H, W) complex, B.
            region: (H, W) bool, the pixels that were compared.
            pixel_size_m: (y, x); None: pixel units.
        """
        rows, columns = (np.flatnonzero(region.any(axis=axis)) for axis in (1, 0))
        box = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
        a, side = blocks(aligned[box])
        b, inside = blocks(reference[box])[0], blocks(region[box].astype(float))[0] > 0.5
        return cls(a, b, inside, scaled(pixel_size_m, side))

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of a panel in inches."""
        return panel_size(self.b.shape, self.pixel)

    def draw(self, axes: tuple[Axes, Axes, Axes], names: tuple[str, str]) -> None:
        """Draw both phases and the difference."""
        phase = unwrapped_phase(self.b, self.inside)
        # The phase of A is that of B plus their difference, so that both are unwrapped in the same way.
        other = phase + np.angle(self.a * np.conj(self.b))
        scale = np.sqrt((np.abs(self.b[self.inside]) ** 2).mean())
        error = np.where(self.inside, np.abs(self.a - self.b), np.nan) / scale
        radians = ColourScale("viridis", bounds(phase), "rad")
        image_panel(axes[0], other, f"phase of {names[0]}, aligned", radians, self.pixel)
        image_panel(axes[1], phase, f"phase of {names[1]}", radians, self.pixel)
        largest = max(float(np.nanpercentile(error, 99)), 1e-12)
        image_panel(axes[2], error, "|difference| / rms", ColourScale("magma", (0.0, largest), ""), self.pixel)


def resolution_figure(
    aligned: np.ndarray,
    reference: np.ndarray,
    region: np.ndarray,
    rings: Rings,
    transfer: Transfer | None = None,
    pixel_size_m: Pixel = None,
    names: tuple[str, str] = ("A", "B"),
    title: str | None = None,
) -> Figure:
    """Return a figure of two halves and of what says how finely they are resolved.

    Args:
        aligned: (H, W) complex, A in the frame of B.
        reference: (H, W) complex, B.
        region: (H, W) bool, the pixels that were compared.
        rings: Fourier ring correlation over the region.
        transfer: phase-retrieval transfer function; None: there is none.
        pixel_size_m: (y, x); None: pixel units.
        names: of A and B.
        title: of the figure.
    """
    panels = _Panels.of_region(aligned, reference, region, pixel_size_m)
    width, height = panels.size
    figure = new_figure(3 * width, height + 3.6 + (0.4 if title else 0), title)
    rows = figure.add_gridspec(2, 1, height_ratios=(height, 3.6))
    above, below = rows[0].subgridspec(1, 3), rows[1].subgridspec(1, 2 if transfer is None else 3)
    first, second, difference = (figure.add_subplot(above[column]) for column in range(3))
    panels.draw((first, second, difference), names)
    columns = [figure.add_subplot(below[column]) for column in range(2 if transfer is None else 3)]
    rings_panel(columns[0], rings)
    snr_panel(columns[1], rings)
    if transfer is not None:
        transfer_panel(columns[2], transfer, frequency_unit(rings))
    return figure


def frequency_unit(rings: Rings) -> tuple[float, str]:
    """Return the smallest unit, in metres and by name, in which the highest frequency of rings is more than one."""
    if rings.unit != "m":
        return 1.0, "px"
    return next(((size, name) for size, name in UNITS[::-1] if rings.frequency[-1] * size >= 1), UNITS[0])


def rings_panel(axes: Axes, rings: Rings) -> None:
    """Draw the Fourier ring correlation with both thresholds and the crossing with the 1/2-bit one."""
    top = rings.frequency[-1]
    size, unit = frequency_unit(rings)
    plain_axes(axes, f"spatial frequency (1/{unit})", "Fourier ring correlation")
    axes.plot(rings.frequency * size, rings.correlation, color=BLUE, linewidth=1.2, label="correlation")
    axes.plot(rings.frequency * size, rings.threshold, color=ORANGE, linewidth=1.2, ls="--", label="1/2-bit threshold")
    axes.plot(rings.frequency * size, rings.one_bit, color=GREEN, linewidth=1.0, ls=":", label="1-bit threshold")
    if rings.resolution is not None:
        name = length_name(rings.resolution) if rings.unit == "m" else f"{rings.resolution:.3g} px"
        label = f"never below, pixels end at {name}" if rings.at_limit else f"full period {name}"
        axes.axvline(size / rings.resolution, color=GREY, linewidth=1.0, linestyle=":", label=label)
    axes.set_ylim(min(-0.1, float(rings.correlation.min()) - 0.05), 1.05)
    axes.set_xlim(0, top * size * 1.01)
    legend(axes, loc="lower left")


def snr_panel(axes: Axes, rings: Rings) -> None:
    """Draw the signal-to-noise ratio of the mean of both images on a logarithmic axis."""
    size, unit = frequency_unit(rings)
    plain_axes(axes, f"spatial frequency (1/{unit})", "signal-to-noise ratio of both")
    is_positive = np.isfinite(rings.snr) & (rings.snr > 0)
    axes.plot(rings.frequency[is_positive] * size, rings.snr[is_positive], color=BLUE, linewidth=1.2)
    axes.axhline(1.0, color=GREY, linewidth=1.0, linestyle=":")
    axes.set_yscale("log")
    axes.set_xlim(0, rings.frequency[-1] * size * 1.01)


def transfer_panel(axes: Axes, transfer: Transfer, unit: tuple[float, str]) -> None:
    """Draw a phase-retrieval transfer function and where it falls below 1/e.

    Args:
        axes: to draw on.
        transfer: the function.
        unit: of length, in metres and by name, as `frequency_unit` returns it.
    """
    size, name = unit
    plain_axes(axes, f"spatial frequency (1/{name})", "phase-retrieval transfer function")
    axes.plot(transfer.frequency * size, transfer.value, color=BLUE, linewidth=1.2)
    axes.axhline(np.exp(-1), color=ORANGE, linewidth=1.0, linestyle="--", label="1/e")
    if transfer.resolution is not None and not transfer.at_limit:
        period = length_name(transfer.resolution) if transfer.unit == "m" else f"{transfer.resolution:.3g} px"
        axes.axvline(size / transfer.resolution, color=GREY, linewidth=1.0, ls=":", label=f"full period {period}")
    axes.set_ylim(0, max(1.05, float(np.nanmax(transfer.value)) * 1.05))
    axes.set_xlim(0, transfer.frequency[-1] * size * 1.01)
    legend(axes, loc="lower left")
