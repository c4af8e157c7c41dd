"""Looks into a file before its format is known; only regular files are opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ptymesh.errors import BadInput
from ptymesh.io.hdf5.reading import Hdf5File, is_hdf5, open_hdf5
from ptymesh.io.options import DataOptions


def first_bytes(path: Path, count: int) -> bytes:
    """Return the first bytes of a regular file, at most so many; none of anything else."""
    try:
        if not path.is_file():  # reading a pipe would wait
            return b""
        with path.open("rb") as file:
            return file.read(count)
    except OSError:
        return b""


def is_hdf5_with(path: Path, data: DataOptions, find: Callable[[Hdf5File], Any]) -> bool:
    """Return True if the file is HDF5 in which `find` finds anything.

    Args:
        path: the file.
        data: options of the recipe, for links to other files.
        find: returns what it finds in the open file; anything false for nothing.
    """
    if not is_hdf5(path):
        return False
    try:
        with open_hdf5(path, follow=data.follow) as file:
            return bool(find(file))
    except BadInput:
        return False
