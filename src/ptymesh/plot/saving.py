"""Writing of figures to files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ptymesh.errors import BadInput
from ptymesh.files import replacing
from ptymesh.paths import usable


def save_figure(figure: Figure, path: str | os.PathLike[str], **options: Any) -> Path:
    """Write a figure to a file of the format that the path's ending names; the file is complete or not there.

    Args:
        figure: the figure.
        path: of the file.
        options: of matplotlib's savefig.

    Returns:
        The path written.

    Raises:
        BadInput: a path or ending that cannot be written.
        PtymeshError: the disk refuses.
    """
    target = usable(path, "The figure")
    kind = target.suffix.removeprefix(".").lower()
    file_types = figure.canvas.get_supported_filetypes()
    if kind not in file_types:
        raise BadInput(
            f"The figure {target} has an unknown ending; end it in {', '.join(f'.{one}' for one in file_types)}."
        )
    with replacing(target, durable=False) as temporary:
        if kind == "png" and not options:  # savefig would draw everything twice, first for the layout
            FigureCanvasAgg(figure).print_png(temporary)
        else:
            figure.savefig(temporary, format=kind, **options)
    return target
