"""Paths from users: what they may be, what lies there, and BadInput for every objection of the system."""

from __future__ import annotations

import os
import re
import stat
from itertools import islice
from pathlib import Path
from typing import Any

from ptymesh.errors import BadInput
from ptymesh.printable import printable

#: Beginning of names of data sets that are downloaded (io/samples.py), which are no paths.
SAMPLE = "sample:"
#: First bytes of a file, by which text is told from data.
HEAD = 4096
#: Files of a folder that are looked at.
MOST_FILES = 100_000
#: Files of a run, and of `ptymesh simulate`, that are no data set: pictures, results, truths.
OF_RUNS = re.compile(r".*\.(png|pdf|svg|jpg|truth\.h5)|(result|preview|pyramid|live)\.h5", re.IGNORECASE)
#: Files that make a folder a zarr group or array.
ZARR_VERSION_3, ZARR_GROUP_2, ZARR_ARRAY_2 = "zarr.json", ".zgroup", ".zarray"


def usable(path: Any, name: str) -> Path:
    """Return a path with `~` expanded, which need not exist but which the system can follow.

    Afterwards `exists`, `is_file` and `open` raise no unexpected errors.

    Args:
        path: text or path.
        name: name of the path in messages, such as `data.path`.

    Raises:
        BadInput: no possible path (not text, empty, with NUL characters, with too long a name), or one that the system
            cannot follow (through a file, a loop of links, a folder without permission).
    """
    try:
        text = os.fsdecode(path)
    except TypeError as error:
        raise BadInput(f"{name} is of type {type(path).__name__}; give a path.") from error
    if not text:
        raise BadInput(f"{name} is empty; give a path.")
    if not is_text(text):
        raise BadInput(
            f"{name} {printable(text)} holds bytes that are no UTF-8 text; rename it: files name each other."
        )
    if "\0" in text:
        raise BadInput(f"{name} {short(text)} has a NUL character in it, as no path can; give another one.")
    try:
        expanded = Path(text).expanduser()
    except RuntimeError as error:
        raise BadInput(f"{name} {short(text)} names the home folder of a user who is not there; mend it.") from error
    try:
        expanded.stat()
    except FileNotFoundError:
        pass
    except PermissionError as error:
        raise BadInput(f"{name} {short(text)} cannot be reached ({error.strerror}); give another path.") from error
    except OSError as error:
        raise BadInput(f"{name} {short(text)} leads nowhere ({error.strerror}); give another path.") from error
    except ValueError as error:
        raise BadInput(f"{name} {short(text)} has characters that no path can have; give another one.") from error
    return expanded


def is_text(path: str) -> bool:
    """Return True if the path can be encoded as UTF-8, so that other files can refer to it."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def regular(path: object, name: str) -> Path:
    """Return the path of an existing, readable, regular file; pipes and devices are refused, as they could be endless.

    Args:
        path: text or path.
        name: name of the path in messages.

    Raises:
        BadInput: it is no such file.
    """
    expanded = usable(path, name)
    if not expanded.exists():
        raise BadInput(f"{name} {short(str(expanded))} is not there; check its path.")
    why = _unreadable(expanded)
    if why:
        raise BadInput(f"{name} {short(str(expanded))} cannot be read ({why}); give the path of a file.")
    return expanded


def _unreadable(path: Path) -> str:
    """Return why the path is no readable regular file; empty if it is one."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return str(error.strerror)
    if stat.S_ISDIR(mode):
        return "it is a folder"
    if not stat.S_ISREG(mode):
        return "it is a pipe, a socket or a device"
    return "" if os.access(path, os.R_OK) else "permission denied"


def short(text: str, most: int = 120) -> str:
    """Return a path for a message: unprintable characters escaped, the middle of a long one left out."""
    quoted = text if text.isprintable() else repr(text)
    return quoted if len(quoted) <= most else f"{quoted[: most - 40]}...{quoted[-37:]}"


def is_zarr_folder(path: Path) -> bool:
    """Return True for a folder that is a zarr group or array, of version 2 or 3."""
    return any((path / name).is_file() for name in (ZARR_VERSION_3, ZARR_GROUP_2, ZARR_ARRAY_2))


def is_data(path: Path) -> bool:
    """Return True if a path that may name a recipe is data: a sample's name, a zarr store, a file that is no text.

    XML is data as well, as a camera's description. If nothing is there, or an empty file, the ending decides.
    """
    if str(path).startswith(SAMPLE):
        return True
    try:
        if path.is_dir():
            return is_zarr_folder(path)
        if path.exists() and not path.is_file():  # reading a pipe would wait
            return False
        head = b""
        if path.exists():
            with path.open("rb") as file:
                head = file.read(HEAD)
    except OSError:
        return False  # reading it as a recipe will report the error
    if not head:
        return path.suffix.lower() not in ("", ".yaml", ".yml")
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.end < len(head) or b"\0" in head
    return b"\0" in head or head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<")


def refuse_folder(path: Path, text: str = "recipe", *, data: bool = True) -> None:
    """Raise BadInput for a folder where a file is meant, with what of it to give; data that it is pass.

    Args:
        path: that a user gave.
        text: kind of YAML file that may be meant, such as recipe; empty: none.
        data: True if a data set may be meant.
    """
    try:
        if not path.is_dir() or (data and is_data(path)):
            return
        names = sorted(islice((one.name for one in path.iterdir() if one.is_file()), MOST_FILES))
    except OSError:
        return  # reading it will report the error
    texts = [name for name in names if text and Path(name).suffix.lower() in (".yaml", ".yml")]
    by_suffix: dict[str, list[str]] = {}
    for name in names if data else ():
        if not name.startswith(".") and not OF_RUNS.fullmatch(name):
            by_suffix.setdefault(Path(name).suffix.lower(), []).append(name)
    kinds = [file_names for file_names in by_suffix.values() if is_data(path / file_names[0])]
    if texts:
        raise BadInput(f"{path} is a folder; give the {text} in it, {path / texts[0]}.")
    if not kinds:
        wanted_kinds = [f"a {text}"] * bool(text) + ["data"] * data
        given_kinds = [f"of a {text}"] * bool(text) + ["of a data set"] * data
        raise BadInput(
            f"{path} is a folder without {' or '.join(wanted_kinds)}; give the path {' or '.join(given_kinds)}."
        )
    file_names = max(kinds, key=len)
    first = path / file_names[0]
    if len(file_names) == 1:
        raise BadInput(f"{path} is a folder; give the data in it, {first}.")
    raise BadInput(
        f"{path} is a folder; give one of the {len(file_names)} data files in it, such as {first}. If they are of one "
        f"scan, add --set data.further='{path / f'*{first.suffix}'}'."
    )


def named_after(path: Path) -> Path:
    """Return the folder for the output of a data set: its name without endings, in the working folder."""
    plain = re.sub(r"(\.[A-Za-z][A-Za-z0-9]{0,4})+$", "", Path(str(path).removeprefix(SAMPLE)).name)
    return Path(plain or "out")
