"""A lease: the right to something in a folder that one process at a time has, from whatever machine.

It is a file that says who holds it, and that the holder touches every `beat_s` seconds (filelock's soft lease). On the
holder's machine it is free as soon as the process is gone. Elsewhere it is free once nobody has touched it for
`silent_s` seconds by the clock of who wants it, as the clocks of two machines need not agree. Of several that take over
from a dead holder, one does. A holder that was only suspended for so long finds out by `Lease.state`.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from filelock import SoftFileLease, Timeout

from ptymesh.distributed.processes import start_time

#: What file systems answer that have no advisory locks.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
#: Seconds that a file which says nothing of a holder is given to be written.
WRITING_S = 1.0
POLL_S = 0.1
#: So much longer than filelock this waits before it takes over in its stead.
MARGIN = 1.1

State = Literal["held", "removed", "lapsed", "taken", "unknown"]


@dataclass(frozen=True)
class Owner:
    """Holder of a lease: process `pid` on `host`, begun at `start`; `token` tells this lease from any other."""

    token: str
    pid: int
    host: str
    start: int | None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class LeaseHeldError(Exception):
    """Another process that lives holds the lease: `owner`."""

    def __init__(self, owner: Owner) -> None:
        super().__init__(str(owner))
        self.owner = owner


class NoLeaseError(Exception):
    """Something else than a lease lies at its path."""


class Lease:
    """A lease at `path`, which this process may take.

    Args:
        path: of the file. Its folder exists.
        beat_s: seconds between two signs of life.
        silent_s: seconds without one after which others may take it; the same for all that want it.
    """

    def __init__(self, path: Path, beat_s: float, silent_s: float) -> None:
        self.path, self._beat_s, self._silent_s = path, beat_s, silent_s
        self._lock = SoftFileLease(path, lease_duration=silent_s, heartbeat_interval=beat_s, thread_local=False)
        self._identity: tuple[int, int] | None = None
        #: What was last seen of another holder, and since when.
        self._seen: tuple[tuple[Owner, int], float] | None = None
        self._lapsed, self._awake, self._end = False, time.time(), threading.Event()
        self._releasing = threading.Lock()

    @property
    def token(self) -> str:
        """Token that tells this lease from any other; empty while it is not held."""
        return self._lock.token or ""

    def owner(self) -> Owner | None:
        """Return who holds it; None where nobody does, or the file does not say so."""
        owner = self._lock.owner
        if owner is None or not (owner.token or "").isalnum():
            return None
        return Owner(owner.token or "", owner.pid, owner.hostname, owner.start)

    def try_acquire(self) -> bool:
        """Take the lease if it is free, or its holder is dead; return whether that was done."""
        if self._create():
            return True
        owner = self.owner()
        if owner is None or not self._is_dead(owner):
            return False
        self._remove(owner)
        return self._create()

    def acquire(self, warn: Callable[[Owner], None] = lambda owner: None) -> None:
        """Take the lease, after a while where it cannot be seen at once whether its holder lives.

        Args:
            warn: called once with the holder where that takes up to `silent_s`.

        Raises:
            LeaseHeldError: its holder lives.
            NoLeaseError: something else lies there, which stays.
            OSError: nothing can be written there.
        """
        first: tuple[Owner, int] | None = None
        unwritten = time.monotonic()
        while not self.try_acquire():
            owner, touched = self.owner(), self._touched()
            if owner is None:
                if time.monotonic() - unwritten > WRITING_S and os.path.lexists(self.path):
                    raise NoLeaseError(str(self.path))
            elif _lives_here(owner) or (first and first[0] == owner and touched not in (0, first[1])):
                raise LeaseHeldError(owner)
            elif first is None or first[0] != owner:
                first = owner, touched
                warn(owner)
            time.sleep(POLL_S)

    def state(self) -> State:
        """Return what has become of a lease that was taken.

        held: it is this process's. removed: somebody has removed the file. lapsed: it is gone, and this process stood
        still for so long that others may have had it. taken: another process has it. unknown: the file system does not
        answer.
        """
        try:
            identity = file_identity(self.path)
        except FileNotFoundError:
            return "lapsed" if self._has_lapsed() else "removed"
        except OSError:
            return "unknown"
        return "held" if identity == self._identity else "taken"

    def release(self) -> None:
        """Give the lease back. Two threads may do so at once."""
        with self._releasing:
            self._end.set()
            self._lock.release(force=True)

    def _note_lapses(self, end: threading.Event) -> None:
        while not end.wait(self._beat_s):
            self._lapsed, self._awake = self._has_lapsed(), time.time()

    def _has_lapsed(self) -> bool:
        """Return True if others may have taken this process for dead, now or before."""
        return self._lapsed or abs(time.time() - self._awake) > self._silent_s / 2

    def _create(self) -> bool:
        """Make the file, or let filelock take over from a dead holder; return whether this process holds it now."""
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            return False
        self._identity = file_identity(self.path)
        self._lapsed, self._awake, self._end = False, time.time(), threading.Event()
        threading.Thread(target=self._note_lapses, args=(self._end,), name="lease", daemon=True).start()
        return True

    def _is_dead(self, owner: Owner) -> bool:
        """Return True if the holder's process is gone, or has not touched the file for a while.

        filelock takes over from such holders by an exchange of names, which network file systems do not have, and not
        from those that nobody has waited for (zombies). It has had its chance when this says so.
        """
        if owner.host == host_name():
            return not _lives_here(owner)
        observed = owner, self._touched()
        if self._seen is None or self._seen[0] != observed:
            self._seen = observed, time.monotonic()
        return time.monotonic() - self._seen[1] > MARGIN * self._silent_s

    def _remove(self, dead: Owner) -> None:
        """Remove a dead holder's lease, while it is still that one; of several that try, one holds a second lease."""
        claim = Lease(self.path.with_name(f"{self.path.name}.{dead.token}"), self._beat_s, self._silent_s)
        with suppress(LeaseHeldError):
            claim.acquire()
            try:
                if self.owner() == dead:
                    self.path.unlink(missing_ok=True)
            finally:
                claim.release()

    def _touched(self) -> int:
        try:
            return os.lstat(self.path).st_mtime_ns
        except OSError:
            return 0


def _lives_here(owner: Owner) -> bool:
    """Return True if the holder is a process of this machine that lives, and not one that has its number now."""
    start = start_time(owner.pid) if owner.host == host_name() else None
    if start and owner.start is not None and sys.platform == "linux":
        return int(start) == owner.start % 2**64  # above it filelock keeps which boot that was
    return start is not None


@cache
def host_name() -> str:
    """Return this machine's name as leases have it: with the process name space of a container."""
    with TemporaryDirectory() as folder, SoftFileLease(Path(folder, "name")) as lease:
        assert lease.owner is not None, "it has just been written"
        return lease.owner.hostname


def file_identity(path: Path) -> tuple[int, int]:
    """Return device and inode of the file of that name, which tell it from others. Raises OSError."""
    status = os.stat(path, follow_symlinks=False)
    return status.st_dev, status.st_ino
