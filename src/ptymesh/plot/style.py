"""Common elements of figures: colours, image panels, scale bars, units.

Figures are made through matplotlib's object interface: nothing is registered, no global setting is read or changed.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize, hsv_to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from mpl_toolkits.axes_grid1.anchored_artists import AnchoredSizeBar

from ptymesh.plot.fonts import OwnFont

#: Colours of lines: Okabe & Ito's palette, distinguishable with every common colour vision.
BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#777777"
#: Colour of warnings.
RED = "#c00000"
#: Colour of pixels without a value.
BLANK = "#d9d9d9"
#: Images with a longer side are averaged in blocks before they are drawn, as a panel has fewer pixels.
LARGEST_SIDE = 1200

#: Ratio of the ends of a logarithmic colour bar from which on ticks at powers of ten are enough.
MANY_TICKS = 100

#: Dots per inch of figures in a notebook.
NOTEBOOK_DPI = 80

UNITS = ((1e-3, "mm"), (1e-6, "µm"), (1e-9, "nm"))

Pixel = tuple[float, float] | None


class NotebookFigure(OwnFont):
    """Figure that notebooks display without pyplot."""

    def _repr_png_(self) -> bytes:
        stream = io.BytesIO()
        self.savefig(stream, format="png", dpi=NOTEBOOK_DPI)
        return stream.getvalue()


def new_figure(width: float, height: float, title: str | None = None) -> Figure:
    """Return an empty figure laid out so that nothing overlaps.

    Args:
        width: in inches.
        height: in inches.
        title: of the figure.
    """
    figure = NotebookFigure(figsize=(width, height), layout="constrained", dpi=150)
    if title:
        figure.suptitle(title, fontsize=12)
    return figure


class ColourScale(NamedTuple):
    """Colours of the values of an image.

    Attributes:
        cmap: name of matplotlib's colour map.
        limits: values of the lowest and the highest colour, or matplotlib's norm; None: those of the image.
        label: of the colour bar; None: no colour bar.
    """

    cmap: str
    limits: tuple[float, float] | Normalize | None = None
    label: str | None = None


def image_panel(
    axes: Axes,
    image: np.ndarray,
    title: str,
    colours: ColourScale | None = None,
    pixel_size_m: Pixel = None,
    bar: bool = True,
) -> AxesImage:
    """Draw an image with a scale bar and a colour bar; NaN is blank.

    Args:
        axes: to draw on.
        image: (H, W), or (H, W, 3) RGB.
        title: of the panel.
        colours: of the values; None for RGB.
        pixel_size_m: (y, x); None: the scale bar is in pixels.
        bar: False for no scale bar.

    Returns:
        Matplotlib's image.
    """
    pixel = (1.0, 1.0) if pixel_size_m is None else pixel_size_m
    axes.set_facecolor(BLANK)
    cmap, limits, label = (None, None, None) if colours is None else colours
    norm = Normalize(*limits) if isinstance(limits, tuple) else limits
    shown_image = axes.imshow(image, cmap=cmap, norm=norm, aspect=pixel[0] / pixel[1], interpolation="nearest")
    axes.set_title(title, fontsize=10)
    axes.set_xticks([])
    axes.set_yticks([])
    if bar:
        _scale_bar(axes, image.shape[:2], pixel_size_m)
    if label is not None:
        colour_bar(shown_image, axes, label)
    return shown_image


def colour_bar(image: ScalarMappable, axes: Axes | Sequence[Axes], label: str) -> None:
    """Draw the colour bar of an image beside one or several axes.

    Args:
        image: the image.
        axes: beside which it is drawn.
        label: of the colour bar.
    """
    first = axes if isinstance(axes, Axes) else axes[0]
    bar = first.figure.colorbar(image, ax=axes, shrink=0.85, pad=0.02)
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(which="both", labelsize=8)
    if isinstance(image.norm, LogNorm) and (image.norm.vmax or 0) >= MANY_TICKS * (image.norm.vmin or 1):
        bar.minorticks_off()  # they take more time than all else that is drawn of it


def _scale_bar(axes: Axes, shape: Sequence[int], pixel_size_m: Pixel) -> None:
    """Draw a scale bar of a round length, about a quarter of the width."""
    width = shape[1] if pixel_size_m is None else shape[1] * pixel_size_m[1]
    length = round_length(width / 4)
    pixels = length if pixel_size_m is None else length / pixel_size_m[1]
    name = f"{length:g} px" if pixel_size_m is None else length_name(length)
    anchored = AnchoredSizeBar(
        axes.transData, pixels, name, "lower left", pad=0.3, borderpad=0.5, sep=3, size_vertical=shape[0] / 100,
        color="black", fontproperties={"size": 8},
    )  # fmt: skip
    anchored.patch.set(alpha=0.8, linewidth=0)
    axes.add_artist(anchored)


def round_length(length: float) -> float:
    """Return the largest of 1, 2, 5 times a power of ten that is not longer."""
    power = 10.0 ** math.floor(math.log10(length))
    return max(step * power for step in (1, 2, 5) if step * power <= length * (1 + 1e-9))


def unit_for(length_m: float) -> tuple[float, str]:
    """Return the unit (metres, name) in which a length is best read."""
    for size, name in UNITS:
        if length_m >= 0.9999 * size:
            return size, name
    return UNITS[-1]


def length_name(length_m: float) -> str:
    """Return a length with its unit: '500 nm'."""
    size, name = unit_for(length_m)
    return f"{length_m / size:.4g} {name}"


def colour_of(waves: np.ndarray, brightest: float | None = None) -> np.ndarray:
    """Return RGB (..., h, w, 3) of complex waves (..., h, w): phase is hue, amplitude is brightness."""
    amplitude = np.abs(waves)
    top = float(amplitude.max()) if brightest is None else brightest
    value = np.clip(amplitude / top, 0, 1) if top > 0 else amplitude
    hue = (np.angle(waves) / (2 * np.pi)) % 1.0
    return hsv_to_rgb(np.stack([hue, np.ones_like(hue), value], axis=-1))


def colour_wheel(axes: Axes) -> None:
    """Draw the key to `colour_of`: phase around, amplitude outwards."""
    y, x = np.mgrid[1:-1:101j, -1:1:101j]
    wave = x + 1j * y
    rgb = np.concatenate([colour_of(wave, 1.0), (np.abs(wave) <= 1)[..., None]], axis=-1)
    axes.imshow(rgb, extent=(-1, 1, -1, 1))
    axes.set_axis_off()
    for angle, name in ((0, "0"), (np.pi / 2, "π/2"), (np.pi, "π"), (-np.pi / 2, "-π/2")):
        axes.text(1.3 * np.cos(angle), 1.3 * np.sin(angle), name, ha="center", va="center", fontsize=8)
    axes.set_xlim(-1.6, 1.6)
    axes.set_ylim(-1.6, 1.6)


def plain_axes(axes: Axes, x: str, y: str, title: str | None = None) -> None:
    """Set labels, a light grid and small ticks.

    Args:
        axes: to change.
        x: label of the x axis.
        y: label of the y axis.
        title: of the panel.
    """
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(which="both", labelsize=8)
    axes.grid(alpha=0.3, linewidth=0.5)
    if title:
        axes.set_title(title, fontsize=10)


def logarithmic(axes: Axes) -> None:
    """Make the y axis logarithmic, with ticks as plain numbers."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))


def legend(axes: Axes, **options: Any) -> None:
    """Draw a small legend with a light frame."""
    axes.legend(fontsize=8, framealpha=0.8, **options)


def blocks(image: np.ndarray, largest: int = LARGEST_SIDE) -> tuple[np.ndarray, int]:
    """Return means over square blocks such that no side of (..., H, W) exceeds `largest`, and the block's side."""
    side = max(1, math.ceil(max(image.shape[-2:]) / largest))
    rows, columns = (n // side * side for n in image.shape[-2:])
    cut = image[..., :rows, :columns].reshape(*image.shape[:-2], rows // side, side, columns // side, side)
    return (cut.mean(axis=(-3, -1)) if side > 1 else image), side


def scaled(pixel_size_m: Pixel, factor: float) -> Pixel:
    """Return the pixel size after averaging in blocks."""
    return None if pixel_size_m is None else (pixel_size_m[0] * factor, pixel_size_m[1] * factor)


def bounds(values: np.ndarray, share: float = 0.5) -> tuple[float, float]:
    """Return the percentiles `share` and 100 - `share` of the finite values, never equal."""
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return 0.0, 1.0
    low, high = (float(v) for v in np.percentile(finite, [share, 100 - share]))
    return (low, high) if high - low > 1e-9 * max(abs(low), abs(high), 1e-30) else (low - 0.5, high + 0.5)
