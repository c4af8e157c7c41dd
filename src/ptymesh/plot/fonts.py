"""The font of all figures: the one that matplotlib brings.

Which fonts a machine has, and whether matplotlib's list of them is still true, changes no figure and prints nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.text import Text

FAMILY = "DejaVu Sans"


@contextmanager
def own_font() -> Iterator[None]:
    """Texts that are made and drawn within are of that font; matplotlib's settings are as before afterwards."""
    listed = {font.fname for font in fontManager.ttflist}
    for path in sorted(Path(matplotlib.get_data_path(), "fonts", "ttf").glob("*.ttf")):
        if str(path) not in listed:
            fontManager.addfont(path)
    with matplotlib.rc_context({"font.family": [FAMILY], "mathtext.fontset": "dejavusans"}):
        yield


class OwnFont(Figure):
    """A figure all of whose texts are of that font."""

    def add_axes(self, *args: Any, **options: Any) -> Axes:
        """As matplotlib does, which looks for the font of its numbers here."""
        with own_font():
            return super().add_axes(*args, **options)

    def add_subplot(self, *args: Any, **options: Any) -> Axes:
        """As `add_axes`."""
        with own_font():
            return super().add_subplot(*args, **options)

    def colorbar(self, *args: Any, **options: Any) -> Colorbar:
        """As `add_axes`."""
        with own_font():
            return super().colorbar(*args, **options)

    def draw(self, renderer: Any) -> None:
        """As matplotlib does, which makes some texts, such as those of ticks, only here."""
        with own_font():
            for text in self.findobj(Text):
                text.set_fontfamily(FAMILY)
            super().draw(renderer)
