"""What may stand where a file is going to be written."""

from __future__ import annotations

import os
from pathlib import Path

from ptymesh.errors import BadInput


def refuse_irregular(path: Path) -> None:
    """Raises BadInput where `path` is there and is no plain file: a device, a pipe, a folder, or a link to nothing."""
    if not os.path.lexists(path) or path.is_file():
        return
    what = "a link to nothing" if path.is_symlink() and not path.exists() else "not a plain file"
    raise BadInput(f"{path} is {what}; move it away, or choose another folder.")
