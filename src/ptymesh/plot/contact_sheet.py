"""Sheet with a small picture of each of many results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from ptymesh.plot.objects import phase_panel, prepared
from ptymesh.plot.style import RED, Pixel, new_figure

#: Pictures in a row.
COLUMNS = 5
#: Inches of the height of a picture.
HEIGHT = 2.4


@dataclass(frozen=True)
class SheetPicture:
    """A picture of the sheet.

    Attributes:
        title: above it.
        object: (L, H, W) complex; None: there is no result, and the title stands alone.
        illumination: (H, W), counts on each pixel; weakly illuminated pixels are blank. None: everything is shown.
        pixel_size_m: (y, x); None: the scale bar is in pixels.
        is_good: False to show the title in red.
    """

    title: str
    object: np.ndarray | None = None
    illumination: np.ndarray | None = None
    pixel_size_m: Pixel = None
    is_good: bool = True


def contact_sheet(pictures: Sequence[SheetPicture], title: str | None = None) -> Figure:
    """Return a figure of the phase of each object, with scale bars, five in a row.

    Args:
        pictures: in their order.
        title: of the figure.
    """
    columns = min(COLUMNS, len(pictures))
    rows = -(-len(pictures) // columns)
    figure = new_figure(columns * (HEIGHT + 1.0), rows * (HEIGHT + 0.5) + 0.4, title)
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat[len(pictures) :]:
        axes.set_axis_off()
    for axes, picture in zip(panels.flat, pictures, strict=False):
        if picture.object is None:
            axes.set_axis_off()
        else:
            phase_panel(axes, *prepared(picture.object, picture.pixel_size_m, picture.illumination))
        axes.set_title(picture.title, fontsize=8, **({} if picture.is_good else {"color": RED}))
    return figure
