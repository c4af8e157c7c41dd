"""What stands in the place of a recipe: whether it is a data set, and what is named after it. No torch here."""

from __future__ import annotations

import re
from pathlib import Path

from ptymesh.io.samples import PREFIX

#: Bytes of a file by which text is told from data.
HEAD = 4096


def is_data(path: Path) -> bool:
    """Whether what stands in the place of a recipe is a data set: no text, or the name of a sample; of what is not
    there, the ending says what it would be."""
    if str(path).startswith(PREFIX):
        return True
    try:
        if not path.exists():
            return path.suffix.lower() not in ("", ".yaml", ".yml")
        if not path.is_file():  # a pipe would be waited for
            return False
        with path.open("rb") as file:
            head = file.read(HEAD)
    except OSError:
        return False  # which will be said of it as a recipe
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.end < len(head) or b"\0" in head
    return b"\0" in head


def named_after(path: Path) -> Path:
    """The folder for what comes of a data set: its name without endings, in the working folder."""
    name = str(path).removeprefix(PREFIX)
    plain = re.sub(r"(\.[A-Za-z][A-Za-z0-9]{0,4})+$", "", Path(name).name)
    return Path(plain or "out")
