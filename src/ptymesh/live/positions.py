"""Positions of streams whose frames come without: one for each frame, or samples at a rate of their own.

m       rows so far
n       frames

A row is the position of a frame, `y x` in metres; or a sample, `t y x` with its time in seconds. Between samples a
position goes along a straight line, and that of a frame is its mean over the frame's exposure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import h5py
import numpy as np

from ptymesh.errors import BadInput


class PositionSource(Protocol):
    """A place where positions come from."""

    def read(self) -> np.ndarray:
        """Return the rows that are there: positions (m, 2) float64, y x in metres, in the order of the frames' numbers.

        Of samples that have times, (m, 3), t y x.
        """


def open_positions(path: Path, dataset: str) -> PositionSource:
    """Return the source of positions that a file is.

    Args:
        path: of an HDF5 file (.h5, .hdf5, .nxs, .cxi), or of a text file with a line `y x` or `y,x` for each frame, or
            a line `t y x` for each sample.
        dataset: of the positions (N, 2) or samples (N, 3), in an HDF5 file.
    """
    if path.suffix.lower() in (".h5", ".hdf5", ".nxs", ".cxi"):
        return Hdf5Positions(path, dataset)
    return TextPositions(path)


class GrowingRows:
    """Rows (m, 2) of positions or (m, 3) of samples, float64, to which others are added; a source of positions itself.

    Args:
        name: of where they come from, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name, self._count, self._held = name, 0, np.empty((0, 2))

    def read(self) -> np.ndarray:
        """Return the rows (m, 2) or (m, 3) that are there."""
        return self._held[: self._count]

    def add(self, rows: np.ndarray) -> None:
        """Add rows behind those that are there.

        Args:
            rows: (k, 2) or (k, 3), y x or t y x.

        Raises:
            BadInput: numbers that are not finite, or times that go backwards.
        """
        before, last = self._count, self._count + len(rows)
        if last > len(self._held) or not before:  # with room for as many again: each is copied seldom
            larger = np.empty((2 * last, rows.shape[1]))
            if before:  # else the number of columns was not known
                larger[:before] = self._held[:before]
            self._held = larger
        self._held[before:last] = rows
        if (odd := np.flatnonzero(~np.isfinite(rows).all(axis=1))).size:
            raise BadInput(
                f"Position {before + odd[0] + 1} of {self._name} is {rows[odd[0]].tolist()}; give finite numbers."
            )
        first = max(0, before - 1)
        t = self._held[first:last, 0]
        if rows.shape[1] == 3 and (back := np.flatnonzero(np.diff(t) < 0)).size:
            earlier, later = t[back[0] : back[0] + 2]
            raise BadInput(
                f"Position {first + back[0] + 2} of {self._name} has the time {later:.9g} s, which lies before "
                f"{earlier:.9g} s of the one above it; give positions in the order of their times."
            )
        self._count = last


class TextPositions:
    """Lines of numbers that another program appends; a first line of words is a heading.

    Args:
        path: of the file, which may come later.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._read_bytes, self._lines = path, 0, 0
        self._rows = GrowingRows(str(path))

    def read(self) -> np.ndarray:
        """Return the rows (m, 2) or (m, 3) float64 of all whole lines.

        Raises:
            BadInput: a line has other than two or three finite numbers, or not as many as those before it, or times go
                backwards.
        """
        before = self._rows.read()
        added: list[list[float]] = []
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._read_bytes)
            complete_lines, newline, _ = file.read().rpartition(b"\n")  # the last line may be half written
            for line in complete_lines.split(b"\n") if newline else ():
                self._lines += 1
                columns = len(added[0]) if added else before.shape[1] if len(before) else None
                if row := self._parse(line.decode("utf-8", errors="replace"), columns):
                    added.append(row)
            self._read_bytes += len(complete_lines) + len(newline)
        if added:
            self._rows.add(np.array(added))
        return self._rows.read()

    def _parse(self, line: str, columns: int | None) -> list[float]:
        """Return the numbers of a line, none of a heading or a comment; columns: of the lines before it."""
        words = line.replace(",", " ").split()
        if not words or words[0].startswith("#"):
            return []
        try:
            row = [float(word) for word in words]
        except ValueError:
            if self._lines == 1:  # a heading
                return []
            row = []
        if len(row) not in (2, 3) or not all(map(math.isfinite, row)) or columns not in (None, len(row)):
            raise BadInput(
                f"Line {self._lines} of {self._path} is {line.strip()[:60]!r}; a line of positions is two numbers, y "
                "and x in metres, or in all lines three, the time in seconds before them."
            )
        return row


class Hdf5Positions:
    """A dataset that another program extends, in HDF5's SWMR mode or by closing the file after each write.

    Args:
        path: of the file, which may come later.
        dataset: of the positions, (N, 2), or of samples, (N, 3).
    """

    def __init__(self, path: Path, dataset: str) -> None:
        self._path, self._dataset, self._rows = path, dataset, GrowingRows(f"{dataset} of {path}")

    def read(self) -> np.ndarray:
        """Return the rows (m, 2) or (m, 3) float64 that are there.

        Raises:
            BadInput: there is no such dataset of two or three columns, a number is not finite, or times go backwards.
        """
        with open_hdf5(self._path) as file:
            if file is not None:
                dataset = file.get(self._dataset)
                if not isinstance(dataset, h5py.Dataset) or dataset.ndim != 2 or dataset.shape[1] not in (2, 3):
                    raise BadInput(
                        f"{self._path} has no dataset {self._dataset} of two or three columns; name the positions "
                        "(N, 2) in metres, y x, or samples (N, 3), t y x, with --positions."
                    )
                self._rows.add(np.asarray(dataset[len(self._rows.read()) :], np.float64))
        return self._rows.read()


def interpolate_positions(samples: np.ndarray, times_s: np.ndarray, exposure_s: float) -> np.ndarray:
    """Return the positions of frames, as far as there is a sample at the end of their exposure or later.

    Args:
        samples: (m, 3) float64, t y x in seconds and metres, in the order of their times; between them positions go
            along straight lines.
        times_s: (n,) float64, when the exposures of the frames began, ascending.
        exposure_s: seconds over which a position is averaged; 0 takes that at the frame's time.

    Returns:
        (k, 2) float64, y x in metres, of the first k <= n frames.

    Raises:
        BadInput: a frame has no time, or one before its predecessor or the first sample.
    """
    if not np.isfinite(times_s).all():
        raise BadInput("Positions have times, and frames have none; say them with --frame-period.")
    if (np.diff(times_s) < 0).any():
        raise BadInput("The times of frames go backwards; give frames in the order of their times.")
    if not len(samples) or not len(times_s):
        return np.empty((0, 2))
    t = samples[:, 0]
    if times_s[0] < t[0]:
        raise BadInput(
            f"A frame has the time {times_s[0]:.9g} s, and the first position {t[0]:.9g} s; say with --frame-start "
            "when the first frame was taken, on the clock of the positions."
        )
    samples = samples[int(np.searchsorted(t, times_s[0], side="right")) - 1 :]
    t = samples[:, 0]
    ready = times_s[: int(np.searchsorted(times_s + exposure_s, t[-1], side="right"))]
    if exposure_s == 0:
        return np.stack([np.interp(ready, t, column) for column in samples.T[1:]], axis=1)
    return (_integrate(samples, ready + exposure_s) - _integrate(samples, ready)) / exposure_s


def _integrate(samples: np.ndarray, until_s: np.ndarray) -> np.ndarray:
    """Return the integral (n, 2) of the positions from the first sample to some times.

    Args:
        samples: (m, 3) float64, t y x.
        until_s: (n,), none beyond the last sample.
    """
    t, places = samples[:, 0], samples[:, 1:]
    steps = 0.5 * np.diff(t)[:, None] * (places[1:] + places[:-1])
    integral = np.concatenate((np.zeros((1, 2)), np.cumsum(steps, axis=0)))
    before = np.searchsorted(t, until_s, side="right") - 1
    at_times = np.stack([np.interp(until_s, t, column) for column in places.T], axis=1)
    return integral[before] + 0.5 * (until_s - t[before])[:, None] * (places[before] + at_times)


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
