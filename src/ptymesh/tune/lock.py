"""The lock of a study's journal: one that a killed worker cannot leave behind."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

from optuna.storages.journal import JournalFileSymlinkLock

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

#: What file systems say that have no such locks.
UNKNOWN = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
POLL_S = 0.002


class JournalLock(JournalFileSymlinkLock):
    """An advisory lock on a file beside the journal, which the system lets go of when its process ends.

    Optuna's own locks are files that a killed process leaves, and that others break after half a minute. Where the
    file system knows no advisory locks, those are used (see `lock_of`).
    """

    def __init__(self, journal: Path) -> None:
        super().__init__(str(journal))
        self._journal, self._path = journal, journal.with_suffix(".lock")
        self._held = threading.local()

    def acquire(self) -> bool:
        """Waits for the lock. What a killed process may have left of a last line is cut off."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(POLL_S)
            except OSError:
                os.close(file)
                raise
        self._held.file = file
        self._mend()
        return True

    def release(self) -> None:
        """Gives the lock back."""
        os.close(self._held.file)

    def _mend(self) -> None:
        with self._journal.open("r+b") as journal:
            size = journal.seek(0, os.SEEK_END)
            if not size:
                return
            journal.seek(size - 1)
            if journal.read(1) != b"\n":
                journal.seek(0)
                journal.truncate(journal.read().rfind(b"\n") + 1)


def lock_of(journal: Path) -> JournalFileSymlinkLock:
    """The lock of a journal, which exists: ours, or Optuna's where the file system has none such."""
    lock = JournalLock(journal)
    if fcntl is None:
        return JournalFileSymlinkLock(str(journal))
    try:
        lock.acquire()
    except OSError as error:
        if error.errno not in UNKNOWN:
            raise
        return JournalFileSymlinkLock(str(journal))
    lock.release()
    return lock
