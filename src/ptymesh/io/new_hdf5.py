"""Writing HDF5 files onto disks that may be full.

HDF5 cannot close a file to which it could not write; it keeps it, and the process crashes later, when it tries again.
So it is never told: what the system refuses is noted, all else is dropped, and the error is raised once the file is
closed.
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
    """A new file, on the disk when this ends. Raises the system's OSError where it could not be written."""
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
    """A file to which everything can be written, as far as HDF5 knows."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self.error: OSError | None = None

    def attempt(self, act: Callable[[], Any]) -> None:
        """Unless something was refused before."""
        if self.error is None:
            try:
                act()
            except OSError as error:
                self.error = error

    def write(self, data: Any) -> int:
        self.attempt(lambda: self._raw.write(data))
        return len(data)

    def read(self, size: int = -1) -> bytes:
        """By which h5py knows a file; it reads by `readinto`."""
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
        found = 0

        def act() -> None:
            nonlocal found
            found = self._raw.seek(*where)  # which writes what has waited in Python's buffer

        self.attempt(act)
        return found

    def tell(self) -> int:
        return 0 if self.error is not None else self._raw.tell()

    def truncate(self, size: int | None = None) -> int:
        self.attempt(lambda: self._raw.truncate(size))
        return 0 if size is None else size

    def flush(self) -> None:
        self.attempt(self._raw.flush)
