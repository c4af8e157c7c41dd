"""Font of all figures: the one that comes with matplotlib.

So figures do not depend on which fonts a machine has, or on matplotlib's cached list of them, and nothing is printed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.colorbar import Colorbar
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.text import Text

FAMILY = "DejaVu Sans"


@contextmanager
def own_font() -> Iterator[None]:
    """Use matplotlib's own font for texts made and drawn within this context; then restore the settings."""
    listed = {font.fname for font in fontManager.ttflist}
    for path in sorted(Path(matplotlib.get_data_path(), "fonts", "ttf").glob("*.ttf")):
        if str(path) not in listed:
            fontManager.addfont(path)
    with matplotlib.rc_context({"font.family": [FAMILY], "mathtext.fontset": "dejavusans"}):
        yield


class OwnFont(Figure):
    """Figure whose texts all use matplotlib's own font."""

    def add_axes(self, *args: Any, **options: Any) -> Axes:
        """Add axes as matplotlib does, which here looks up the font of the tick labels."""
        with own_font():
            return super().add_axes(*args, **options)

    def add_subplot(self, *args: object, **options: object) -> Axes:
        """Add a subplot as matplotlib does, with our font."""
        with own_font():
            return super().add_subplot(*args, **options)

    def colorbar(self, *args: Any, **options: Any) -> Colorbar:
        """Add a colour bar as matplotlib does, with our font."""
        with own_font():
            return super().colorbar(*args, **options)

    def draw(self, renderer: RendererBase) -> None:
        """Draw as matplotlib does, which makes some texts, such as tick labels, only here."""
        with own_font():
            for text in self.findobj(Text):
                text.set_fontfamily(FAMILY)
            super().draw(renderer)
