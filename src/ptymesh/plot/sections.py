"""Figure of an object of several slices in depth: its sum, cuts along the beam, and the power of each slice.

L       slices
H, W    object pixels
y, x    rows and columns;  z  depth, 0 in the middle of the slice that the beam meets first
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from ptymesh.physics.phase import unwrapped_phase
from ptymesh.plot.objects import DIM
from ptymesh.plot.style import BLANK, BLUE, RED, Pixel, blocks, bounds, new_figure, plain_axes, round_length, unit_for

#: Slices with a longer side are averaged in blocks first, as each of them is unwrapped.
LONGEST = 600
#: Longest sides in inches of the sum, and of the depth of a cut.
WIDEST, DEEPEST = 4.6, 6.5
#: Least and largest depth, in sides of the sum, that is drawn to scale.
THIN, THICK = 0.2, 4.0
#: Inches of a slice where the depth has no scale.
ROW = 0.3
#: Inches left of, between and right of the panels, and above, between and below them.
LEFT, MIDDLE, RIGHT = 0.75, 1.25, 1.05
ABOVE, BETWEEN, BELOW = 0.6, 0.95, 0.55
#: Least width in inches of a panel beside the sum.
NARROWEST = 1.9
#: Inches from which on a title of a cut fits into a line.
ONE_LINE = 3.0
#: Most inches of the panel of powers.
BARS = 3.5


@dataclass(frozen=True)
class Sections:
    """Sum of slices, and cuts through one of its pixels.

    Attributes:
        total: (H, W) sum over the slices, NaN where there is no value.
        along_x: (L, W), the row of each slice that the cut goes through.
        along_y: (L, H), the column.
        through: pixel (row, column) of these arrays.
        corner: pixel (row, column) of the whole object at which they begin.
        side: of the blocks, in object pixels, that were averaged.
        powers: (L,) share of each slice in the sum of their variances, per cent.
    """

    total: np.ndarray
    along_x: np.ndarray
    along_y: np.ndarray
    through: tuple[int, int]
    corner: tuple[int, int]
    side: int
    powers: np.ndarray


def sections_of(
    slices: np.ndarray, illumination: np.ndarray | None = None, through: tuple[int, int] | None = None
) -> Sections:
    """Return the sum of slices over the illuminated area, and cuts through one of its pixels.

    Args:
        slices: (L, H, W) complex, of which the phases are taken, each unwrapped, without its ramp and with a median of
            zero; or real, such as a potential, taken as it is.
        illumination: (H, W), counts on each pixel; weakly illuminated pixels have no value. None: all have one.
        through: pixel (row, column) of the whole object; None: the one of the sum that differs most from the median in
            the middle half of each side.
    """
    shape = slices.shape[-2:]
    region = np.ones(shape, dtype=bool) if illumination is None else illumination > DIM * illumination.max()
    region = region if region.any() else np.ones(shape, dtype=bool)
    rows, columns = (np.flatnonzero(region.any(axis=axis)) for axis in (1, 0))
    box = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    averaged, side = blocks(slices[:, box[0], box[1]], LONGEST)
    inside = blocks(region[box].astype(float), LONGEST)[0] > 0.5
    if np.iscomplexobj(slices):
        values = np.stack([unwrapped_phase(one, inside) for one in averaged])
    else:
        values = np.where(inside, averaged, np.nan)
    total = values.sum(axis=0)
    corner = int(rows[0]), int(columns[0])
    if through is None:
        row, column = _strongest_pixel(total)
    else:
        row, column = (
            min(max((at - first) // side, 0), n - 1) for at, first, n in zip(through, corner, total.shape, strict=True)
        )
    variances = np.var(values[:, inside], axis=1)
    powers = 100 * variances / variances.sum() if variances.sum() > 0 else variances
    return Sections(total, values[:, row], values[:, :, column], (row, column), corner, side, powers)


def _strongest_pixel(image: np.ndarray) -> tuple[int, int]:
    """Return the pixel of (H, W) that differs most from the median in the middle half of each side."""
    top, left = (n // 4 for n in image.shape)
    middle = image[top : image.shape[0] - top, left : image.shape[1] - left]
    if not np.isfinite(middle).any():
        return image.shape[0] // 2, image.shape[1] // 2
    row, column = np.unravel_index(np.nanargmax(np.abs(middle - np.nanmedian(middle))), middle.shape)
    return int(row) + top, int(column) + left


def sections_figure(
    sections: Sections,
    pixel_size_m: Pixel = None,
    slice_spacing_m: float = 0.0,
    label: str = "arg O (rad)",
    title: str | None = None,
) -> Figure:
    """Return a figure of the sum of slices, of cuts along the beam through one of its pixels, and of their powers.

    Depth has the scale of the sum, unless that would make a cut too thin or too long to be seen: then it is stretched
    or compressed by a round number, which the titles of the cuts say.

    Args:
        sections: of `sections_of`.
        pixel_size_m: object pixel (y, x); None: pixel units.
        slice_spacing_m: distance between slices; 0: depth is in slices.
        label: of the colour bars.
        title: of the figure.
    """
    panels = _Panels(sections, pixel_size_m, slice_spacing_m)
    second = max(panels.deep, NARROWEST)
    width = LEFT + panels.wide + MIDDLE + second + RIGHT
    height = ABOVE + panels.high + BETWEEN + panels.deep + BELOW + (0.4 if title else 0)
    figure = new_figure(width, height, title)
    figure.set_layout_engine("none")  # sizes in inches keep the scale

    def add(*inches: float) -> Axes:
        return figure.add_axes(tuple(size / full for size, full in zip(inches, 2 * (width, height), strict=True)))

    low, right = BELOW + panels.deep + BETWEEN, LEFT + panels.wide + MIDDLE
    total = add(LEFT, low, panels.wide, panels.high)
    along_y = add(right, low, panels.deep, panels.high)
    along_x = add(LEFT, BELOW, panels.wide, panels.deep)
    bars = add(right, BELOW, min(second, BARS), panels.deep)
    beside = (
        (panels.draw_sum(total), add(LEFT + panels.wide + 0.1, low, 0.13, panels.high), f"sum of {label}"),
        (panels.draw_cuts(along_x, along_y), add(right + panels.deep + 0.1, low, 0.13, panels.high), label),
    )
    for image, axes, name in beside:
        figure.colorbar(image, cax=axes).set_label(name, fontsize=9)
        axes.tick_params(labelsize=8)
    panels.draw_powers(bars)
    return figure


class _Panels:
    """Sizes of the panels of sections, and what is drawn on them.

    Args:
        sections: what is drawn.
        pixel_size_m: object pixel (y, x); None: pixel units.
        slice_spacing_m: distance between slices; 0: depth is in slices.

    Attributes:
        wide, high, deep: inches along x, y and z.
        stretch: by which z is longer than to scale; None without a scale.
    """

    def __init__(self, sections: Sections, pixel_size_m: Pixel, slice_spacing_m: float) -> None:
        self.sections = sections
        self.pixel = (1.0, 1.0) if pixel_size_m is None else pixel_size_m
        size = [n * d * sections.side for n, d in zip(sections.total.shape, self.pixel, strict=True)]
        self.unit = (1.0, "px") if pixel_size_m is None else unit_for(max(size) / 2)
        slices = len(sections.powers)
        self.step = slice_spacing_m if slice_spacing_m > 0 else 1.0
        depth = slices * self.step
        self.depth_unit = unit_for(depth / 2) if slice_spacing_m > 0 else (1.0, "slices")
        self.stretch: float | None = None
        inches = WIDEST / max(size)
        self.deep = min(max(ROW * slices, 1.2), DEEPEST)
        if slice_spacing_m > 0 and pixel_size_m is not None:
            ratio = depth / max(size)
            self.stretch = 1.0
            if ratio < THIN:
                self.stretch = max(1.0, round_length(2 * THIN / ratio))
            elif ratio > THICK:
                self.stretch = 1 / round_length(2 * ratio / THICK)
            inches = min(inches, DEEPEST / (depth * self.stretch))
            self.deep = depth * self.stretch * inches
        self.high, self.wide = (length * inches for length in size)

    def _edges(self, axis: int) -> tuple[float, float]:
        """Return where the sum begins and ends along y (axis 0) or x (axis 1), in the unit."""
        first = self.sections.corner[axis] * self.pixel[axis]
        last = first + self.sections.total.shape[axis] * self.sections.side * self.pixel[axis]
        return first / self.unit[0], last / self.unit[0]

    def _place(self, axis: int) -> float:
        """Return where the cut across an axis is, in the unit."""
        first, last = self._edges(axis)
        return first + (last - first) * (self.sections.through[axis] + 0.5) / self.sections.total.shape[axis]

    @property
    def _depths(self) -> tuple[float, float]:
        """Depth at which the first slice begins and the last one ends, in its unit."""
        step = self.step / self.depth_unit[0]
        first = -step / 2 if self.depth_unit[1] != "slices" else 0.5
        return first, first + len(self.sections.powers) * step

    def draw_sum(self, axes: Axes) -> AxesImage:
        """Draw the sum and where it is cut."""
        total, (top, bottom), (left, right) = self.sections.total, self._edges(0), self._edges(1)
        image = _image(axes, total, (left, right, bottom, top), bounds(total))
        axes.axhline(self._place(0), color=RED, linewidth=0.8, linestyle="--")
        axes.axvline(self._place(1), color=RED, linewidth=0.8, linestyle="--")
        axes.set_title(f"sum of {len(self.sections.powers)} slices", fontsize=10)
        _label(axes, f"x ({self.unit[1]})", f"y ({self.unit[1]})")
        return image

    def draw_cuts(self, along_x: Axes, along_y: Axes) -> AxesImage:
        """Draw the cuts on one colour scale, z downwards below the sum and to the right beside it."""
        cuts, (first, last) = self.sections, self._depths
        limits = bounds(np.concatenate([cuts.along_x.ravel(), cuts.along_y.ravel()]))
        _image(along_x, cuts.along_x, (*self._edges(1), last, first), limits)
        top, bottom = self._edges(0)
        image = _image(along_y, cuts.along_y.T, (first, last, bottom, top), limits)
        depth = f"z ({self.depth_unit[1]})"
        for axes, name, across, width in ((along_x, "x-z at y", 0, self.wide), (along_y, "y-z at x", 1, self.deep)):
            scale = self._scale if width > ONE_LINE else self._scale.replace(", ", "\n")
            axes.set_title(f"{name} = {self._place(across):.4g} {self.unit[1]}{scale}", fontsize=10)
        _label(along_x, f"x ({self.unit[1]})", depth)
        _label(along_y, depth, "")
        return image

    @property
    def _scale(self) -> str:
        """Words on the scale of z."""
        if self.stretch is None or self.stretch == 1:
            return ""
        return f", z {self.stretch:g} times longer" if self.stretch > 1 else f", z {1 / self.stretch:g} times shorter"

    def draw_powers(self, axes: Axes) -> None:
        """Draw the share of each slice at its depth."""
        first, last = self._depths
        step = (last - first) / len(self.sections.powers)
        places = first + step * (np.arange(len(self.sections.powers)) + 0.5)
        axes.barh(places, self.sections.powers, height=0.8 * step, color=BLUE)
        axes.set_ylim(last, first)
        axes.set_xlim(0, None)
        plain_axes(axes, "share of the variance (%)", f"z ({self.depth_unit[1]})", "power of each slice")


def _image(axes: Axes, image: np.ndarray, extent: tuple[float, ...], limits: tuple[float, float]) -> AxesImage:
    """Draw values on axes whose size gives the aspect.

    Args:
        axes: to draw on.
        image: (rows, columns), blank where NaN.
        extent: left, right, bottom, top.
        limits: values of the lowest and the highest colour.
    """
    axes.set_facecolor(BLANK)
    left, right, bottom, top = extent
    return axes.imshow(
        image, cmap="viridis", vmin=limits[0], vmax=limits[1], extent=(left, right, bottom, top), aspect="auto",
        interpolation="nearest",
    )  # fmt: skip


def _label(axes: Axes, x: str, y: str) -> None:
    """Set the labels of an image's axes."""
    plain_axes(axes, x, y)
    axes.grid(False)
    axes.xaxis.set_major_locator(MaxNLocator(max(3, round(axes.bbox.width / axes.figure.dpi * 2))))
