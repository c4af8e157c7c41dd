"""Display of scans, results and reconstructions in a notebook.

They do not import the modules that draw them; those are imported when the display is needed.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Displayed:
    """Base class of objects that notebooks show as HTML with thumbnails; their `repr` is one line."""

    #: Module with `html(thing) -> str`, and `figure(thing) -> Figure` where there is a `plot`.
    displayed_by: ClassVar[str]

    def _repr_html_(self) -> str:
        html: str = self._drawn().html(self)
        return html

    def _drawn(self) -> ModuleType:
        return import_module(self.displayed_by)

    def _figure(self) -> Figure:
        figure: Figure = self._drawn().figure(self)
        return figure
