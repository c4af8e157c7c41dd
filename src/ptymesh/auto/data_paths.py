"""Tell data sets from recipes on the command line, and name folders after them. No torch here."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

from ptymesh.errors import BadInput
from ptymesh.io.samples import PREFIX
from ptymesh.paths import is_zarr_folder

#: First bytes of a file, by which text is told from data.
HEAD = 4096
#: Files of a folder that are looked at.
MOST_FILES = 100_000
#: Endings of pictures that a run draws, which are no data.
FIGURES = (".png", ".pdf", ".svg", ".jpg")


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


def refuse_folder(path: Path) -> None:
    """Raise BadInput for a folder where a recipe or data are meant, with what of it to give; data that it is pass."""
    try:
        if is_data(path) or not path.is_dir():
            return
        names = sorted(islice((one.name for one in path.iterdir() if one.is_file()), MOST_FILES))
    except OSError:
        return  # reading it as a recipe will report the error
    recipes = [name for name in names if Path(name).suffix.lower() in (".yaml", ".yml")]
    alike: dict[str, list[str]] = {}
    for name in names:
        if not name.startswith(".") and Path(name).suffix.lower() not in FIGURES:
            alike.setdefault(Path(name).suffix.lower(), []).append(name)
    kinds = [found for found in alike.values() if is_data(path / found[0])]
    if recipes:
        raise BadInput(f"{path} is a folder; give the recipe in it, {path / recipes[0]}.")
    if not kinds:
        raise BadInput(f"{path} is a folder without a recipe or data; give the path of a recipe or of a data set.")
    data = max(kinds, key=len)
    first = path / data[0]
    if len(data) == 1:
        raise BadInput(f"{path} is a folder; give the data in it, {first}.")
    raise BadInput(
        f"{path} is a folder; give one of the {len(data)} data files in it, such as {first}. If they are of one scan, "
        f"add --set data.further='{path / f'*{first.suffix}'}'."
    )


def named_after(path: Path) -> Path:
    """Return the folder for the output of a data set: its name without endings, in the working folder."""
    name = str(path).removeprefix(PREFIX)
    plain = re.sub(r"(\.[A-Za-z][A-Za-z0-9]{0,4})+$", "", Path(name).name)
    return Path(plain or "out")
