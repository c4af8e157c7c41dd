"""The lock of a study's journal: one that a killed worker cannot leave behind."""

from __future__ import annotations

import os
from pathlib import Path

from filelock import FileLock
from optuna.storages.journal import JournalFileSymlinkLock

from ptymesh.distributed.lease import NO_LOCKS

POLL_S = 0.002


class JournalLock(JournalFileSymlinkLock):
    """An advisory lock on a file beside the journal, which the system releases when its process ends.

    Optuna's own locks are files that a killed process leaves, and that others break after half a minute.
    """

    def __init__(self, journal: Path) -> None:
        super().__init__(str(journal))
        self._journal = journal
        self._lock = FileLock(journal.with_suffix(".lock"), poll_interval=POLL_S, fallback_to_soft=False)

    def acquire(self) -> bool:
        """Wait for the lock, and cut off what a killed process may have left of a last line."""
        self._lock.acquire()
        self._remove_partial_line()
        return True

    def release(self) -> None:
        """Give the lock back."""
        self._lock.release()

    def _remove_partial_line(self) -> None:
        with self._journal.open("r+b") as journal:
            size = journal.seek(0, os.SEEK_END)
            if not size:
                return
            journal.seek(size - 1)
            if journal.read(1) != b"\n":
                journal.seek(0)
                journal.truncate(journal.read().rfind(b"\n") + 1)


def lock_of(journal: Path) -> JournalFileSymlinkLock:
    """Return the lock of a journal, which exists: ours, or Optuna's where the file system has no advisory locks."""
    lock = JournalLock(journal)
    try:
        lock.acquire()
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in NO_LOCKS:
            raise
        return JournalFileSymlinkLock(str(journal))
    lock.release()
    return lock
