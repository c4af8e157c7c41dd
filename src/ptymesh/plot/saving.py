"""Writing figures."""

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
    """The figure in a file of the kind that the path's ending names, which is whole or not there.

    options: as of matplotlib's savefig. Raises BadInput where the path or its ending cannot be, PtymeshError where the
    disk refuses.
    """
    target = usable(path, "The figure")
    kind = target.suffix.removeprefix(".").lower()
    known = figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise BadInput(f"The figure {target} has an unknown ending; end it in {', '.join(f'.{one}' for one in known)}.")
    with replacing(target, durable=False) as temporary:
        if kind == "png" and not options:  # savefig draws all twice, the first time for the layout alone
            FigureCanvasAgg(figure).print_png(temporary)
        else:
            figure.savefig(temporary, format=kind, **options)
    return target
