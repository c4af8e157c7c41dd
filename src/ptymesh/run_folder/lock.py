"""The lease of an output folder: one run at a time writes there, from whatever machine.

Ranks that a command has started hold leases of their own beside it, as those of a command that was killed write on for
a while: who takes over from it waits for them.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from ptymesh import stopping
from ptymesh.distributed.lease import Lease, LeaseHeldError, NoLeaseError, Owner
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.run_folder.reports import BatchReport, Callback

NAME = ".lock"
#: Environment variable by which ranks know the lease of the command that has started them.
TOKEN = "PTYMESH_LOCK"
#: Seconds between signs of life.
BEAT_S = 5.0
#: Seconds without a sign of life after which a holder on another machine counts as dead.
SILENT_S = 60.0
#: Seconds that ranks get to end after the command that started them was killed.
LEAVING_S = 60.0
#: Seconds between two looks at these ranks.
POLL_S = 0.1
#: Seconds of waiting for them after which a warning is printed; ranks killed together with their launcher end at once.
WARN_AFTER_S = 1.0


class FolderLease:
    """The right of this process to write to a folder, or a rank's share in that of the command that started it.

    Attributes:
        lease: of this process.
        token: tells ranks that this process starts whose folder it is.
    """

    def __init__(self, lease: Lease, folders_made: tuple[Path, ...] = (), *, shared_with: Lease | None = None) -> None:
        """Take over a lease that was acquired.

        Args:
            lease: of this process.
            folders_made: folders to remove if they are empty.
            shared_with: lease of the command that has started this rank.
        """
        self.lease, self.token = lease, lease.token
        self.path = lease.path
        self._made, self._command, self._launcher = folders_made, shared_with, os.getppid()
        self._has_warned_missing = False
        self._closing = threading.Lock()

    def is_held(self) -> bool:
        """Return True if the folder is still this process's; False where that cannot be seen."""
        return self.lease.state() == "held"

    def check(self) -> None:
        """Raise PtymeshError where another run has taken the folder, as this one showed no life for too long.

        A file system that does not answer, or a lease that somebody has removed, is no other run.
        """
        folder, ends = self.path.parent, "it ends without writing anything more"
        state = self.lease.state()
        if state == "taken":
            why = "had no lock" if self._has_warned_missing else "stood still"
            raise PtymeshError(f"{folder} was taken by another run while this one {why}; {ends}.")
        if state == "lapsed" and not self._has_warned_missing:
            reason = "stood still, and another run may have been there since"
            raise PtymeshError(f"The lock of {folder} has gone while this run {reason}; {ends}.")
        if state == "removed" and not self._has_warned_missing:
            self._has_warned_missing = True
            warn(f"{self.path} was removed; this run goes on: start no other one in this folder until it ends")

    def close(self) -> None:
        """Give the folder back; it and those above it that were made for this lease go where they are empty.

        Two threads may do so at once: one that leaves because of a signal, and the main thread.
        """
        with self._closing:
            self.lease.release()
            if self._command is not None and os.getppid() != self._launcher and self._command.try_acquire():
                self._command.release()  # its command was killed, which leaves nothing behind
            with suppress(OSError):
                for folder in self._made:
                    folder.rmdir()
            self._made = ()


class OwnershipCheck(Callback):
    """Checks after each batch, and before anything is written, that the folder is still this run's."""

    def __init__(self, lease: FolderLease) -> None:
        self._lease = lease

    def batch(self, report: BatchReport) -> None:
        """Raise PtymeshError where it is not."""
        self._lease.check()

    def saving(self, path: Path) -> None:
        """Raise PtymeshError where it is not."""
        self._lease.check()


_held: ContextVar[dict[Path, FolderLease]] = ContextVar("held", default={})  # noqa: B039 - never changed in place


@contextmanager
def hold_folder(folder: Path) -> Iterator[FolderLease]:
    """Lease the folder, which is made if need be, while the context lasts.

    In a context that leases it already, the same lease is yielded. A rank shares the lease of the command that has
    started it.

    Raises:
        BadInput: another run has it, or nothing can be written there.
    """
    resolved = resolve_folder(folder)
    if resolved in _held.get():
        yield _held.get()[resolved]
        return
    with ExitStack() as tidying:
        lease = hold_share(resolved, tidying) or take_folder(resolved, folder, tidying)
        before = _held.set({**_held.get(), resolved: lease})
        try:
            yield lease
        finally:
            _held.reset(before)
            lease.close()


def resolve_folder(folder: Path) -> Path:
    """Return the folder's absolute path without links. Raises BadInput."""
    try:
        return folder.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise BadInput(f"{folder} is no folder ({error}); choose another one.") from error


def hold_share(folder: Path, folder_lease: ExitStack) -> FolderLease | None:
    """Return what `share_lease` does; it is given back when `lease` is closed, or a signal ends the process."""
    lease = share_lease(folder)
    if lease is not None:
        folder_lease.callback(lease.close)
        folder_lease.enter_context(stopping.tidying(lease.close))
    return lease


def share_lease(folder: Path) -> FolderLease | None:
    """Return a rank's share in the lease of the command that started it, None where that holds none here."""
    token, folder = os.environ.get(TOKEN), resolve_folder(folder)
    if not token:
        return None
    command = Lease(folder / NAME, BEAT_S, SILENT_S)
    owner = command.owner()
    if owner is None or owner.token != token:
        return None
    lease = Lease(folder / f"{NAME}-{secrets.token_hex(8)}", BEAT_S, SILENT_S)
    try:
        lease.acquire()
    except OSError as error:
        raise BadInput(f"{folder} cannot be written to ({error.strerror}); choose another folder.") from error
    return FolderLease(lease, shared_with=command)


def take_folder(folder: Path, name: Path | None = None, tidying: ExitStack | None = None) -> FolderLease:
    """Return the lease of a folder, which is made if need be.

    Args:
        folder: whose it is, resolved.
        name: what the user calls it.
        tidying: until it ends, who leaves because of a signal gives the folder back.

    Raises:
        BadInput: another run has it, or nothing can be written there.
    """
    name, tidying = name or folder, tidying or ExitStack()
    for may_retry in (True, True, False):
        folders_made: list[Path] = []
        lease = Lease(folder / NAME, BEAT_S, SILENT_S)
        try:
            with stopping.undisturbed():
                for path in reversed((folder, *folder.parents)):
                    if not path.exists():
                        path.mkdir(exist_ok=True)
                        folders_made.insert(0, path)
            acquire_lease(lease, name)
            folder_lease = FolderLease(lease, tuple(folders_made))
            tidying.enter_context(stopping.tidying(folder_lease.close))
            wait_for_ranks(folder, name)
            return folder_lease
        except BaseException as error:
            lease.release()
            with suppress(OSError):
                for path in folders_made:
                    path.rmdir()
            if isinstance(error, FileNotFoundError) and may_retry:  # removed by another one that had made it
                continue
            if isinstance(error, OSError):
                raise BadInput(f"{name} cannot be written to ({error.strerror}); choose another folder.") from error
            raise
    raise AssertionError


def acquire_lease(lease: Lease, name: Path) -> None:
    """Take a folder's lease. Raises BadInput where a holder lives, or something else lies there."""

    def warn_about(owner: Owner) -> None:
        warn(f"{name} is held by {owner}; watching up to {SILENT_S:.0f} s whether it lives")

    try:
        if os.path.lexists(lease.path) and not stat.S_ISREG(lease.path.lstat().st_mode):
            raise NoLeaseError(str(lease.path))
        lease.acquire(warn_about)
    except LeaseHeldError as error:
        remedy = "wait until it ends, stop it, or choose another folder"
        raise BadInput(f"{name} is in use: {error.owner} writes there; {remedy}.") from error
    except NoLeaseError as error:
        raise BadInput(f"{lease.path} is no lock of ptymesh; move it away.") from error


def wait_for_ranks(folder: Path, name: Path) -> None:
    """Wait until no rank of a command that was killed writes there any more. Raises BadInput where they stay."""
    began, has_warned = time.monotonic(), False
    ranks = [Lease(path, BEAT_S, SILENT_S) for path in folder.glob(f"{NAME}-*")]
    while ranks := [rank for rank in ranks if rank.owner() is not None and not _has_left(rank)]:
        waited, who = time.monotonic() - began, ranks[0].owner()
        if waited > LEAVING_S:
            raise BadInput(
                f"{name} is in use: the command that ran there has ended, and its ranks still write there ({who}); "
                "wait until they end, or end them."
            )
        if waited > WARN_AFTER_S and not has_warned:
            has_warned = True
            warn(f"the command that wrote to {name} has ended, and its ranks still write there; waiting for them")
        time.sleep(POLL_S)


def _has_left(rank: Lease) -> bool:
    """Return True if a rank has died or ended; nothing is left of its lease then."""
    gone = rank.try_acquire()
    rank.release()
    return gone


def warn(sentence: str) -> None:
    """Say it on standard error."""
    print(f"ptymesh: {sentence[:1].upper()}{sentence[1:]}.", file=sys.stderr, flush=True)
