"""Terminal with colours, tables and moving bars, which does not obey control characters in names."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ptymesh.printable import printable


class Terminal(Console):
    """Rich's console, which alone writes commands to the terminal: those in what it shows are written out."""

    def __init__(self, stream: TextIO | None = None, **options: Any) -> None:
        stream = stream or sys.stdout
        super().__init__(file=getattr(stream, "styled", stream), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich.console.Console does, with control characters in texts escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
