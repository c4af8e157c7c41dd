"""A file of frames on a local disk: written once, read in any order, without a name.

frame   bytes of one pattern;  slot: its place in the file

The file has no name (or loses it when the process ends, on systems that need one), so that its space is freed
however a run ends. It is read at given offsets, not mapped, and what was read does not stay in the system's page cache,
so that memory stays within a budget, and the file's use can be measured.
"""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ptymesh.errors import BadInput, PtymeshError
from ptymesh.files import no_room

#: Number of written bytes after which the file is flushed, so that they can leave the page cache.
FLUSH_BYTES = 64 << 20
#: Largest number of frames that one system call reads (IOV_MAX is 1024 on Linux, macOS and the BSDs).
MOST_FRAMES = 512
PAGE = 4096
#: Errors of file systems that cannot reserve space; a disk that is too small then fails in `write`.
CANNOT_RESERVE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class Scratch:
    """`count` frames of `frame` bytes in a file in `folder` (None: the system's folder for temporary files).

    Raises:
        BadInput: there is no such folder, or not enough space.
    """

    def __init__(self, folder: Path | None, count: int, frame: int) -> None:
        self.folder, self.frame = _temporary_folder() if folder is None else folder, frame
        self._count, self._unflushed, self._lock = count, 0, threading.Lock()
        if not os.path.isdir(self.folder):
            raise BadInput(f"scratch is {self.folder}, which is not a folder; make it, or name another with --scratch.")
        try:
            self._file = tempfile.TemporaryFile(dir=self.folder, buffering=0)  # noqa: SIM115 - open as long as this is
        except OSError as error:
            raise self._refusal(error) from error
        self._number = self._file.fileno()
        try:
            self.grow(count)
        except BaseException:
            self.close()
            raise
        self._advise("RANDOM", 0, 0)

    def grow(self, count: int) -> None:
        """Reserve space for so many frames at once, so that a disk that is too small is noticed here.

        Raises:
            BadInput: there is not enough space.
        """
        self._count, needed_bytes = count, count * self.frame
        if not needed_bytes or not hasattr(os, "posix_fallocate"):
            return
        try:
            os.posix_fallocate(self._number, 0, needed_bytes)
        except OverflowError as error:  # more bytes than any file can have
            raise self._refusal(OSError(errno.EFBIG, os.strerror(errno.EFBIG))) from error
        except OSError as error:
            if error.errno not in CANNOT_RESERVE:
                raise self._refusal(error) from error

    def write(self, slots: np.ndarray, frames: np.ndarray) -> None:
        """Write frames (B, frame) of bytes to slots (B,).

        Raises:
            BadInput: the disk refuses.
        """
        try:
            for part, offset in self._runs(slots, np.arange(len(slots))):
                self._write_all(frames[part[0] : part[-1] + 1].reshape(-1), offset)
        except OSError as error:
            raise self._refusal(error) from error
        self._unflushed += frames.nbytes
        if self._unflushed >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write everything to the disk, and drop it from memory.

        Raises:
            BadInput: the disk refuses.
        """
        try:
            getattr(os, "fdatasync", os.fsync)(self._number)
        except OSError as error:
            raise self._refusal(error) from error
        self._advise("DONTNEED", 0, 0)
        self._unflushed = 0

    def read(self, slots: np.ndarray, out: np.ndarray) -> None:
        """Read the frames in slots (B,) into `out` (B, frame) of bytes.

        Raises:
            PtymeshError: the disk fails.
        """
        order = np.argsort(slots, kind="stable")
        runs = list(self._runs(slots, order))
        try:
            for part, offset in runs:  # all are announced before the first is read
                self._advise("WILLNEED", offset, len(part) * self.frame)
            for part, offset in runs:
                self._read_run([out[i].data for i in part], offset)
                self._advise("DONTNEED", offset, len(part) * self.frame)
        except OSError as error:
            raise PtymeshError(
                f"The patterns staged in {self.folder} cannot be read ({error.strerror or error}); name a folder on a "
                f"sound disk with --scratch, and `ptymesh resume`."
            ) from error

    def close(self) -> None:
        """Free the disk's space; may be called again."""
        self._file.close()

    def _runs(self, slots: np.ndarray, order: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
        """Yield frames that lie side by side, as indices in `order`, and their offset in the file."""
        along = slots[order]
        cuts = np.flatnonzero(np.diff(along) != 1) + 1
        for run in np.split(order, cuts) if len(order) else ():
            for start in range(0, len(run), MOST_FRAMES):
                part = run[start : start + MOST_FRAMES]
                yield part, int(slots[part[0]]) * self.frame

    def _read_run(self, frames: list[memoryview], offset: int) -> None:
        """Read frames that lie side by side, in one system call if possible."""
        if hasattr(os, "preadv") and os.preadv(self._number, frames, offset) == len(frames) * self.frame:
            return
        for k, frame in enumerate(frames):  # if the call has read less, or is not available
            bytes_read = 0
            while bytes_read < self.frame:
                with self._lock:
                    self._file.seek(offset + k * self.frame + bytes_read)
                    count = self._file.readinto(frame[bytes_read:])
                if not count:
                    raise OSError(f"it ends {self.frame - bytes_read} bytes too early")
                bytes_read += count

    def _write_all(self, content: np.ndarray, offset: int) -> None:
        with self._lock:
            self._file.seek(offset)
            rest = content.data
            while rest:
                rest = rest[self._file.write(rest) :]

    def _advise(self, advice: str, offset: int, length: int) -> None:
        """Tell the system how the file is used, in whole pages, if it accepts advice."""
        if hasattr(os, "posix_fadvise"):
            start = offset // PAGE * PAGE
            length = length and -(-(offset + length - start) // PAGE) * PAGE
            os.posix_fadvise(self._number, start, length, getattr(os, f"POSIX_FADV_{advice}"))

    def _refusal(self, error: OSError) -> BadInput:
        """Return the error that the patterns cannot be staged."""
        fact = no_room("The patterns cannot be staged on disk", self.folder, self._count * self.frame, error)
        return BadInput(f"{fact}; name a folder with room with --scratch, or give a larger --memory-budget.")


def _temporary_folder() -> Path:
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise BadInput(
            "There is no folder for temporary files that can be written to; name one on a local disk with --scratch."
        ) from error
