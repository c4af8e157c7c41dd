"""Figures into files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ptymesh.errors import BadInput
from ptymesh.paths import usable


def save_figure(figure: Figure, path: str | Path, **options: Any) -> Path:
    """Writes a figure, in the format that the name's ending says, into a folder that is there.

    options: of matplotlib's `savefig`. Raises BadInput for an ending that matplotlib does not know, and where the file
    cannot be written.
    """
    target = usable(path, "The figure")
    known = figure.canvas.get_supported_filetypes()
    if target.suffix[1:].lower() not in known:
        raise BadInput(f"The figure {target} has an unknown ending; end it in {', '.join(f'.{one}' for one in known)}.")
    if target.is_dir():
        raise BadInput(f"{target} is a folder; give the name of a file in it.")
    try:
        figure.savefig(target, **options)
    except OSError as error:
        raise BadInput(f"{target} cannot be written ({error.strerror or error}); check its folder.") from error
    return target
