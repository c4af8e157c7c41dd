"""Files of positions that grow while they are read, for streams whose frames come without.

m       positions so far
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import h5py
import numpy as np

from ptymesh.errors import BadInput


class PositionSource(Protocol):
    """A place where positions come from, in the order of the frames' numbers."""

    def read(self) -> np.ndarray:
        """Return the positions (m, 2) float64 that are there, y x in metres."""


def open_positions(path: Path, dataset: str) -> PositionSource:
    """Return the source of positions that a file is.

    Args:
        path: of an HDF5 file (.h5, .hdf5, .nxs, .cxi), or of a text file with a line `y x` or `y,x` for each frame.
        dataset: of the positions (N, 2), in an HDF5 file.
    """
    if path.suffix.lower() in (".h5", ".hdf5", ".nxs", ".cxi"):
        return Hdf5Positions(path, dataset)
    return TextPositions(path)


class TextPositions:
    """Lines of numbers that another program appends; a first line of words is a heading.

    Args:
        path: of the file, which may come later.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._read_bytes, self._lines = path, 0, 0
        self._rows: list[tuple[float, float]] = []

    def read(self) -> np.ndarray:
        """Return the positions (m, 2) float64 of all whole lines.

        Raises:
            BadInput: a line has other than two finite numbers.
        """
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._read_bytes)
            whole, newline, _ = file.read().rpartition(b"\n")  # the last line may be half written
            for line in whole.split(b"\n") if newline else ():
                self._lines += 1
                self._add(line.decode("utf-8", errors="replace"))
            self._read_bytes += len(whole) + len(newline)
        return np.array(self._rows, np.float64).reshape(-1, 2)

    def _add(self, line: str) -> None:
        """Add the position of a line."""
        words = line.replace(",", " ").split()
        if not words or words[0].startswith("#"):
            return
        try:
            y, x = (float(word) for word in words)
        except ValueError as error:
            if self._lines == 1:  # a heading
                return
            raise self._refusal(line) from error
        if not np.isfinite((y, x)).all():
            raise self._refusal(line)
        self._rows.append((y, x))

    def _refusal(self, line: str) -> BadInput:
        """Return the error about a line."""
        return BadInput(
            f"Line {self._lines} of {self._path} is {line.strip()[:60]!r}; a line of positions is two numbers, y and x "
            "in metres."
        )


class Hdf5Positions:
    """A dataset that another program extends, in HDF5's SWMR mode or by closing the file after each write.

    Args:
        path: of the file, which may come later.
        dataset: of the positions, (N, 2).
    """

    def __init__(self, path: Path, dataset: str) -> None:
        self._path, self._dataset = path, dataset
        self._rows = np.empty((0, 2))

    def read(self) -> np.ndarray:
        """Return the positions (m, 2) float64 that are there.

        Raises:
            BadInput: there is no such dataset of two columns.
        """
        with open_hdf5(self._path) as file:
            if file is not None:
                found = file.get(self._dataset)
                if not isinstance(found, h5py.Dataset) or found.ndim != 2 or found.shape[1] != 2:
                    raise BadInput(
                        f"{self._path} has no dataset {self._dataset} of two columns; name the positions (N, 2) in "
                        "metres, y x, with --positions."
                    )
                self._rows = np.concatenate((self._rows, np.asarray(found[len(self._rows) :], np.float64)))
        return self._rows


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File | None]:
    """Open an HDF5 file that another program writes, yielding None while that is not possible.

    Args:
        path: of the file.
    """
    file = None
    for swmr in (True, False):
        with suppress(OSError, ValueError):
            file = h5py.File(path, "r", swmr=swmr, locking=False)
            break
    try:
        yield file
    finally:
        if file is not None:
            file.close()
