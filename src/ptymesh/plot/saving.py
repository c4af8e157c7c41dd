"""Writing figures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ptymesh.errors import BadInput
from ptymesh.files import replacing


def save_figure(figure: Figure, path: str | os.PathLike[str], **options: Any) -> None:
    """The figure in a file of the kind that the path's ending names, which is whole or not there.

    options: as of matplotlib's savefig. Raises BadInput where the path or its ending cannot be, PtymeshError where the
    disk refuses.
    """
    kind = Path(path).suffix.removeprefix(".").lower() or "png"
    known = figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise BadInput(f"{path} ends in .{kind}, which no figure has; choose one of {', '.join(sorted(known))}.")
    with replacing(path, durable=False) as temporary:
        figure.savefig(temporary, format=kind, **options)
