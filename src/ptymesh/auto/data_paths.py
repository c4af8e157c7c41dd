"""Tell data sets from recipes on the command line, and name folders after them. No torch here."""

from __future__ import annotations

import re
from pathlib import Path

from ptymesh.io.samples import PREFIX
from ptymesh.paths import is_zarr_folder

#: First bytes of a file, by which text is told from data.
HEAD = 4096


def is_data(path: Path) -> bool:
    """Return True if a path that may name a recipe is data: a sample's name, a zarr store, a file that is no text.

    XML is data as well, as a camera's description. If nothing is there, the ending decides.
    """
    if str(path).startswith(PREFIX):
        return True
    try:
        if not path.exists():
            return path.suffix.lower() not in ("", ".yaml", ".yml")
        if path.is_dir():
            return is_zarr_folder(path)
        if not path.is_file():  # reading a pipe would wait
            return False
        with path.open("rb") as file:
            head = file.read(HEAD)
    except OSError:
        return False  # reading it as a recipe will report the error
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.end < len(head) or b"\0" in head
    return b"\0" in head or head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<")


def named_after(path: Path) -> Path:
    """Return the folder for the output of a data set: its name without endings, in the working folder."""
    name = str(path).removeprefix(PREFIX)
    plain = re.sub(r"(\.[A-Za-z][A-Za-z0-9]{0,4})+$", "", Path(name).name)
    return Path(plain or "out")
