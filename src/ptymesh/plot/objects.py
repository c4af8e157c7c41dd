"""Figures of the object.

L       object slices
H, W    object pixels
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ptymesh.physics.phase import unwrapped_phase
from ptymesh.plot.style import (
    ColourScale,
    Pixel,
    blocks,
    bounds,
    colour_bar,
    image_panel,
    length_name,
    new_figure,
    scaled,
)

#: Pixels whose illumination is below this share of the largest are blank.
DIM = 0.05
#: Most slices shown; of thicker stacks this many evenly spaced ones.
MOST_SLICES = 12


def object_figure(
    object: np.ndarray,
    pixel_size_m: Pixel = None,
    illumination: np.ndarray | None = None,
    title: str | None = None,
) -> Figure:
    """Return a figure of amplitude and unwrapped phase of an object; of several slices, of their product.

    Args:
        object: (L, H, W) or (H, W) complex.
        pixel_size_m: (y, x); None: the scale bar is in pixels.
        illumination: (H, W), counts on each pixel; weakly illuminated pixels are blank. None: everything is shown.
        title: of the figure.
    """
    image, region, pixel = prepared(object, pixel_size_m, illumination)
    width, height = panel_size(image.shape, pixel)
    figure = new_figure(2 * width, height + (0.4 if title else 0), title)
    left, right = figure.subplots(1, 2)
    amplitude_panel(left, image, region, pixel)
    phase_panel(right, image, region, pixel)
    return figure


def slices_figure(
    object: np.ndarray,
    pixel_size_m: Pixel = None,
    illumination: np.ndarray | None = None,
    slice_spacing_m: float = 0.0,
    title: str | None = None,
) -> Figure:
    """Return a figure of the phase of each slice of an object, all on one colour scale.

    Args:
        object: (L, H, W) complex; of many slices, evenly spaced ones are shown.
        pixel_size_m: (y, x); None: the scale bar is in pixels.
        illumination: (H, W), counts on each pixel; weakly illuminated pixels are blank. None: everything is shown.
        slice_spacing_m: distance between slices; 0: depths are not shown.
        title: of the figure.
    """
    chosen = np.unique(np.linspace(0, len(object) - 1, min(len(object), MOST_SLICES)).round().astype(int))
    images = [prepared(object[i], pixel_size_m, illumination) for i in chosen]
    phases = [unwrapped_phase(image, region) for image, region, _ in images]
    limits = bounds(np.stack(phases))
    columns = min(len(chosen), 4)
    rows = -(-len(chosen) // columns)
    width, height = panel_size(phases[0].shape, images[0][2], 3.2)
    figure = new_figure(
        columns * width + 0.8, rows * height + 0.4, title or "phase of each slice, unwrapped, ramp removed"
    )
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[len(chosen) :]:
        axes.set_axis_off()
    for axes, index, phase, (_, _, pixel) in zip(grid, chosen, phases, images, strict=False):
        depth = f" at {length_name(index * slice_spacing_m)}" if slice_spacing_m > 0 and index > 0 else ""
        met = ", met first" if index == 0 and len(object) > 1 else ""
        title = f"slice {index + 1} of {len(object)}{depth}{met}"
        panel = image_panel(axes, phase, title, ColourScale("viridis", limits), pixel)
    colour_bar(panel, list(grid), "arg O (rad)")
    return figure


def field_figure(
    planes: np.ndarray,
    pixel_size_m: Pixel = None,
    illumination: np.ndarray | None = None,
    title: str | None = None,
) -> Figure:
    """Return a figure of numbers on the object's pixels: of complex ones, real and imaginary parts side by side.

    Args:
        planes: (C, H, W) real or complex; a row of panels for each plane.
        pixel_size_m: (y, x); None: the scale bar is in pixels.
        illumination: (H, W), counts on each pixel; weakly illuminated pixels are blank. None: everything is shown.
        title: of the figure.
    """
    names = ["real part", "imaginary part"] if np.iscomplexobj(planes) else [""]
    images = [prepared(plane, pixel_size_m, illumination) for plane in planes]
    width, height = panel_size(images[0][0].shape, images[0][2])
    figure = new_figure(len(names) * width, len(images) * height + (0.4 if title else 0), title)
    grid = figure.subplots(len(images), len(names), squeeze=False)
    for row, (image, region, pixel) in zip(grid, images, strict=True):
        for axes, name, part in zip(row, names, (image.real, image.imag), strict=False):
            values = np.where(region, part, np.nan)
            image_panel(axes, values, name, ColourScale("viridis", bounds(values), ""), pixel)
    return figure


def prepared(
    object: np.ndarray, pixel_size_m: Pixel, illumination: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, Pixel]:
    """Return what is drawn of an object.

    Args:
        object: (L, H, W) or (H, W) complex.
        pixel_size_m: (y, x), or None.
        illumination: (H, W) counts on each pixel; None: all pixels count as illuminated.

    Returns:
        The product of its slices, cut to the illuminated area and averaged in blocks if large; the mask of its
        illuminated pixels; its pixel size.
    """
    image = object if object.ndim == 2 else np.prod(object, axis=0)
    region = np.ones(image.shape, dtype=bool) if illumination is None else illumination > DIM * illumination.max()
    if not region.any():
        region = np.ones(image.shape, dtype=bool)
    rows, columns = (np.flatnonzero(region.any(axis=axis)) for axis in (1, 0))
    box = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    image, side = blocks(image[box])
    return image, blocks(region[box].astype(float))[0] > 0.5, scaled(pixel_size_m, side)


def panel_size(shape: tuple[int, ...], pixel_size_m: Pixel, width: float = 5.0) -> tuple[float, float]:
    """Return width and height in inches of a panel with title and colour bar.

    Args:
        shape: (H, W) of the image.
        pixel_size_m: (y, x), or None for square pixels.
        width: in inches.
    """
    pixel = (1.0, 1.0) if pixel_size_m is None else pixel_size_m
    ratio = shape[0] * pixel[0] / (shape[1] * pixel[1])
    return width, min(max(0.82 * width * ratio, 0.5 * width), 1.5 * width) + 0.35


def amplitude_panel(axes: Axes, image: np.ndarray, region: np.ndarray, pixel_size_m: Pixel) -> None:
    """Draw |O| over the region.

    Args:
        axes: to draw on.
        image: (H, W) complex.
        region: (H, W) bool.
        pixel_size_m: (y, x), or None.
    """
    amplitude = np.where(region, np.abs(image), np.nan)
    image_panel(axes, amplitude, "amplitude", ColourScale("gray", bounds(amplitude), "|O|"), pixel_size_m)


def phase_panel(axes: Axes, image: np.ndarray, region: np.ndarray, pixel_size_m: Pixel) -> None:
    """Draw the unwrapped arg O over the region.

    Args:
        axes: to draw on.
        image: (H, W) complex.
        region: (H, W) bool.
        pixel_size_m: (y, x), or None.
    """
    phase = unwrapped_phase(image, region)
    colours = ColourScale("viridis", bounds(phase), "arg O (rad)")
    image_panel(axes, phase, "phase, unwrapped, ramp removed", colours, pixel_size_m)
