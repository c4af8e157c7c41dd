"""Writer of HDF5 files on disks that may be full.

HDF5 cannot close a file after a write failed; it keeps the file, and the process crashes later, when it tries again. So
HDF5 never learns of a failure: the first error is kept, all that follows is dropped, and the error is raised once the
file is closed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import h5py


@contextmanager
def new_hdf5(path: Path) -> Iterator[h5py.File]:
    """Yield a new file that is on the disk when this ends; raise the system's OSError if it could not be written."""
    with path.open("w+b") as raw:
        lenient = _Lenient(raw)
        try:
            with h5py.File(lenient, "w") as file:
                yield file
            lenient.attempt(raw.flush)
            lenient.attempt(lambda: os.fsync(raw.fileno()))
        finally:
            if lenient.error is not None:
                raise lenient.error


class _Lenient:
    """A file-like object for HDF5 whose writes never fail; the first error is kept in `error`."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self.error: OSError | None = None

    def attempt(self, act: Callable[[], Any]) -> None:
        """Call `act` unless an error came before, and keep the error that it raises."""
        if self.error is None:
            try:
                act()
            except OSError as error:
                self.error = error

    def write(self, data: Any) -> int:
        self.attempt(lambda: self._raw.write(data))
        return len(data)

    def read(self, size: int = -1) -> bytes:
        """Read bytes; h5py asks only that there is such a method, and reads by `readinto`."""
        return self._raw.read(size)

    def readinto(self, buffer: Any) -> int:
        count = 0
        if self.error is None:
            count = self._raw.readinto(buffer)  # type: ignore[attr-defined]
        if self.error is not None:
            memoryview(buffer).cast("B")[:] = bytes(len(buffer))
            return len(buffer)
        return count

    def seek(self, *where: int) -> int:
        position = 0

        def act() -> None:
            nonlocal position
            position = self._raw.seek(*where)  # which writes what has waited in Python's buffer

        self.attempt(act)
        return position

    def position_in_file(self) -> int:
        return 0 if self.error is not None else self._raw.tell()

    #: What h5py calls it.
    tell = position_in_file

    def truncate(self, size: int | None = None) -> int:
        self.attempt(lambda: self._raw.truncate(size))
        return 0 if size is None else size

    def flush(self) -> None:
        self.attempt(self._raw.flush)
