"""How scans, results and reconstructions show themselves in a notebook.

They stand below what draws them and do not import it; the module that knows how is imported when it is asked.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar


class Displayed:
    """What is shown as HTML with thumbnails where a notebook shows it; its `repr` stays one line."""

    #: Module with `html(thing) -> str`, and `figure(thing) -> Figure` where there is a `plot`.
    displayed_by: ClassVar[str]

    def _repr_html_(self) -> str:
        html: str = self._drawn().html(self)
        return html

    def _drawn(self) -> ModuleType:
        return import_module(self.displayed_by)

    def _figure(self) -> Any:
        return self._drawn().figure(self)
