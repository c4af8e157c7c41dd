"""Validation of paths from users; every objection of the system becomes a BadInput."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from ptymesh.errors import BadInput
from ptymesh.printable import printable

#: Files that make a folder a zarr group or array.
ZARR_VERSION_3, ZARR_GROUP_2, ZARR_ARRAY_2 = "zarr.json", ".zgroup", ".zarray"


def usable(path: Any, said: str) -> Path:
    """Return a path with `~` expanded, which need not exist but which the system can follow.

    Afterwards `exists`, `is_file` and `open` raise no unexpected errors.

    Args:
        path: text or path.
        said: name of the path in messages, such as `data.path`.

    Raises:
        BadInput: no possible path (not text, empty, with NUL characters, with too long a name), or one that the system
            cannot follow (through a file, a loop of links, a folder without permission).
    """
    try:
        text = os.fsdecode(path)
    except TypeError as error:
        raise BadInput(f"{said} is of type {type(path).__name__}; give a path.") from error
    if not text:
        raise BadInput(f"{said} is empty; give a path.")
    if not is_text(text):
        raise BadInput(
            f"{said} {printable(text)} holds bytes that are no UTF-8 text; rename it: files name each other."
        )
    if "\0" in text:
        raise BadInput(f"{said} {short(text)} has a NUL character in it, as no path can; give another one.")
    try:
        found = Path(text).expanduser()
    except RuntimeError as error:
        raise BadInput(f"{said} {short(text)} names the home folder of a user who is not there; mend it.") from error
    try:
        found.stat()
    except FileNotFoundError:
        pass
    except PermissionError as error:
        raise BadInput(f"{said} {short(text)} cannot be reached ({error.strerror}); give another path.") from error
    except OSError as error:
        raise BadInput(f"{said} {short(text)} leads nowhere ({error.strerror}); give another path.") from error
    except ValueError as error:
        raise BadInput(f"{said} {short(text)} has characters that no path can have; give another one.") from error
    return found


def is_text(path: str) -> bool:
    """Return True if the path can be encoded as UTF-8, so that other files can refer to it."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def regular(path: object, said: str) -> Path:
    """Return the path of an existing, readable, regular file; pipes and devices are refused, as they could be endless.

    Args:
        path: text or path.
        said: name of the path in messages.

    Raises:
        BadInput: it is no such file.
    """
    found = usable(path, said)
    why = _unreadable(found)
    if why:
        raise BadInput(f"{said} {short(str(found))} cannot be read ({why}); give the path of a file.")
    return found


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
    shown = text if text.isprintable() else repr(text)
    return shown if len(shown) <= most else f"{shown[: most - 40]}...{shown[-37:]}"


def is_zarr_folder(path: Path) -> bool:
    """Return True for a folder that is a zarr group or array, of version 2 or 3."""
    return any((path / name).is_file() for name in (ZARR_VERSION_3, ZARR_GROUP_2, ZARR_ARRAY_2))
