"""The lock of an output folder: one run at a time writes there, from whatever machine.

It is a file in the folder that says who holds it. It appears whole and exclusively (a link to a file made beside it),
and goes when the run ends. Whether the holder of one that is there still lives is told

on the same machine     by its process id and when that process began, as ids are used again; and by an advisory lock on
                        the file, which ranks hold too, as those of a launcher that was killed write on for a while;
on another machine      by its beats: the holder touches the file every BEAT_S seconds. Who wants the folder watches for
                        SILENT_S seconds by its own clock, as the clocks of two machines need not agree.

A lock whose holder is dead is replaced by who holds another such lock, named after it (`.lock.<token>`), while the
first is still the same: of several that try, one does, on file systems without advisory locks too. A holder that was
only suspended for so long finds out before it writes anything more (`Lock.check`).
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType

from ptymesh import stopping
from ptymesh.distributed.processes import began
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.files import machine
from ptymesh.run.lock_file import (
    MOST,
    NAME,
    Holder,
    advise,
    busy,
    create,
    identity,
    replace,
    same,
    tidy,
    unadvise,
)
from ptymesh.run.reports import BatchReport, Callback

#: Environment variable by which ranks know the lock of the command that has started them.
TOKEN = "PTYMESH_LOCK"
#: Seconds between beats; without one, after which a holder elsewhere counts as dead; that the ranks of a launcher which
#: was killed are given to end; between two looks.
BEAT_S, SILENT_S, LEAVING_S, POLL_S = 5.0, 60.0, 60.0, 0.1
#: Seconds of waiting after which it is said what for: ranks that were killed together with their launcher end at once.
TOLD_S = 1.0


class Lock:
    """A lock that this process holds, or has a share in: `path`, open as `file`. made: folders to remove if empty.

    A share (of a rank) lets go of the file, and removes it only where the launcher has died.
    """

    def __init__(self, path: Path, file: int, token: str, made: tuple[Path, ...] = (), *, share: bool = False) -> None:
        self.path, self.token, self._file, self._made, self._share = path, token, file, made, share
        self._launcher, self._own = os.getppid(), identity(os.fstat(file))
        self._beaten, self._lapsed, self._told = time.time(), False, False
        self._end, self._closing, self._closed = threading.Event(), threading.Lock(), False
        self._beats = threading.Thread(target=self._beat, name="lock", daemon=True)
        self._beats.start()

    def _beat(self) -> None:
        while not self._end.wait(BEAT_S):
            with suppress(OSError):
                os.utime(self._file if os.utime in os.supports_fd else self.path)
                self._lapsed, self._beaten = self._silent(), time.time()

    def _silent(self) -> bool:
        """Whether others may have taken this run for dead, now or before."""
        return self._lapsed or abs(time.time() - self._beaten) > SILENT_S / 2

    def _still_written(self) -> bool:
        """Whether the launcher lives, or other ranks that it has left."""
        if os.getppid() == self._launcher:
            return True
        unadvise(self._file)
        return busy(self._file)

    def tidy(self) -> None:
        """What others that were killed left beside it goes."""
        tidy(self.path, self._file)

    def mine(self) -> bool:
        """Whether the lock in the folder is still this one; False where that cannot be seen."""
        with suppress(OSError):
            return identity(os.stat(self.path, follow_symlinks=False)) == self._own
        return False

    def check(self) -> None:
        """Raises PtymeshError where another run has taken the folder, as this one showed no life for too long.

        A file system that does not answer, or a lock that somebody has removed, is no other run.
        """
        folder, ends = self.path.parent, "it ends without writing anything more"
        try:
            found = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            if not self._told and self._silent():
                said = "stood still, and another run may have been there since"
                raise PtymeshError(f"The lock of {folder} has gone while this run {said}; {ends}.") from None
            if not self._told:
                _tell(f"{self.path} was removed; this run goes on: start no other one in this folder until it ends")
            self._told = True
            return
        except OSError:
            return
        if identity(found) != self._own:
            why = "had no lock" if self._told else "stood still"
            raise PtymeshError(f"{folder} was taken by another run while this one {why}; {ends}.")

    def close(self) -> None:
        """Lets go of the folder; it and those above it that were made for this lock go where they are empty.

        Two threads may do so at once: one that leaves because of a signal, and the main thread.
        """
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._end.set()
            self._beats.join()
            goes = self.mine() and not (self._share and self._still_written())
            os.close(self._file)
            if goes:
                self.path.unlink(missing_ok=True)
            with suppress(OSError):
                for folder in self._made:
                    folder.rmdir()


class Fence(Callback):
    """Looks after each batch, and before anything is written, whether the folder is still this run's."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock

    def batch(self, report: BatchReport) -> None:
        """Raises PtymeshError where it is not."""
        self._lock.check()

    def saving(self, path: Path) -> None:
        """Raises PtymeshError where it is not."""
        self._lock.check()


_held: ContextVar[dict[Path, Lock]] = ContextVar("held", default={})  # noqa: B039 - never changed in place


@contextmanager
def hold(folder: Path) -> Iterator[Lock]:
    """Within it, the folder (made if need be) is this run's. What holds it already may hold it once more.

    A rank has a share in what the command that has started it holds. Raises BadInput where another run has it, or
    where nothing can be written there.
    """
    where = _resolved(folder)
    if where in _held.get():
        yield _held.get()[where]
        return
    with ExitStack() as tidying:
        lock = share(where) or take(where, folder, tidying)
        before = _held.set({**_held.get(), where: lock})
        try:
            yield lock
        finally:
            _held.reset(before)
            lock.close()


def _resolved(folder: Path) -> Path:
    try:
        return folder.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise BadInput(f"{folder} is no folder ({error}); choose another one.") from error


def share(folder: Path) -> Lock | None:
    """A rank's share in the lock of its launcher, None where that holds none here. Raises BadInput where it cannot be
    read."""
    token = os.environ.get(TOKEN)
    try:
        found = _look(_resolved(folder) / NAME) if token else None
    except OSError as error:
        why = f"{folder / NAME} cannot be read ({error.strerror})"
        raise BadInput(f"{why}; choose another folder, or start again.") from error
    if found is None:
        return None
    if found.holder is None or found.holder.token != token:
        found.close()
        return None
    advise(found.file)
    return Lock(found.path, found.file, found.holder.token, share=True)


def take(folder: Path, said: Path | None = None, tidying: ExitStack | None = None) -> Lock:
    """The lock of a folder, which is made if need be. said: what the user calls it. Raises BadInput.

    tidying: until it ends, who leaves because of a signal lets go of the lock.
    """
    said, tidying = said or folder, tidying or ExitStack()
    for again in (True, True, False):
        made: list[Path] = []
        try:
            holder = Holder.here()
            with stopping.undisturbed():
                for path in reversed((folder, *folder.parents)):
                    if not path.exists():
                        path.mkdir(exist_ok=True)
                        made.insert(0, path)
                if (file := create(folder / NAME, holder)) is not None:
                    return _tidied(Lock(folder / NAME, file, holder.token, tuple(made)), tidying)
            file = _win(folder / NAME, holder, said)
            return _tidied(Lock(folder / NAME, file, holder.token, tuple(made)), tidying)
        except BaseException as error:
            with suppress(OSError):
                for path in made:
                    path.rmdir()
            if isinstance(error, FileNotFoundError) and again:  # removed by another one that had made it
                continue
            if isinstance(error, OSError):
                raise BadInput(f"{said} cannot be written to ({error.strerror}); choose another folder.") from error
            raise
    raise AssertionError


def _tidied(lock: Lock, tidying: ExitStack) -> Lock:
    tidying.enter_context(stopping.tidying(lock.close))
    lock.tidy()
    return lock


def _win(path: Path, holder: Holder, said: Path) -> int:
    """The lock at `path`, open, once it is the holder's. Raises BadInput where another one lives."""
    watch = _Watch(said)
    while True:
        if (file := create(path, holder)) is not None:
            return file
        found = _look(path)
        if found is None:
            continue
        with found:
            if not watch.dead(found):
                time.sleep(POLL_S)
                continue
            claim = path.with_name(f"{path.name}.{found.name}")
            right = _win(claim, holder, said)
            try:
                if same(path, found.file):
                    return replace(path, holder)
            finally:
                ours = same(claim, right)
                os.close(right)
                if ours:
                    claim.unlink(missing_ok=True)


class _Found:
    """A lock that is there, open. holder: None of an empty one."""

    def __init__(self, path: Path, file: int) -> None:
        self.path, self.file = path, file
        self.stat = os.fstat(file)
        regular = stat.S_ISREG(self.stat.st_mode)
        text = os.read(file, MOST) if regular else b""
        self.holder: Holder | None = None
        if text or not regular:
            try:
                self.holder = Holder.read(text)
            except (ValueError, RecursionError) as error:
                raise BadInput(f"{path} is no lock of ptymesh; move it away.") from error

    @property
    def name(self) -> str:
        """Tells it from others of the same place."""
        return str(self.stat.st_ino) if self.holder is None else self.holder.token

    @property
    def identity(self) -> tuple[int, str]:
        """Changes where another lock takes its place."""
        return self.stat.st_ino, self.name

    def __enter__(self) -> _Found:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        os.close(self.file)


def _look(path: Path) -> _Found | None:
    """The lock at `path`, None where there is none. Raises BadInput for what is no lock."""
    flags = os.O_NONBLOCK | os.O_NOFOLLOW if hasattr(os, "O_NOFOLLOW") else 0
    try:
        try:
            file = os.open(path, os.O_RDWR | flags)
        except PermissionError:  # another user's
            file = os.open(path, os.O_RDONLY | flags)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return None
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise BadInput(f"{path} is no lock of ptymesh; move it away.") from error
        raise
    try:
        return _Found(path, file)
    except BaseException as error:
        os.close(file)
        if isinstance(error, OSError):
            if error.errno == errno.ESTALE:
                return None
            raise BadInput(f"{path} is no lock of ptymesh; move it away.") from error
        raise


class _Watch:
    """Whether the holder of a lock is dead. said: the folder."""

    def __init__(self, said: Path) -> None:
        self.said = said
        self._first: _Found | None = None
        self._since = 0.0
        self._told = False

    def dead(self, found: _Found) -> bool:
        """To be asked again after a moment where it is not known yet. Raises BadInput where it lives."""
        new = self._first is None or self._first.identity != found.identity
        if new:
            self._first, self._since, self._told = found, time.monotonic(), False
        waited, holder = time.monotonic() - self._since, found.holder
        if holder is None or holder.machine != machine():
            return self._silent(found, waited, new)
        if began(holder.pid) in (holder.started, ""):
            raise self._refused(holder)
        if not busy(found.file):
            return True
        if waited > LEAVING_S:
            raise BadInput(
                f"{self.said} is in use: {holder} has ended, and its ranks still write there; "
                "wait until they end, or end them."
            )
        if waited > TOLD_S and not self._told:
            self._told = True
            _tell(f"{holder} has ended, and its ranks still write to {self.said}; waiting for them")
        return False

    def _silent(self, found: _Found, waited: float, new: bool) -> bool:
        assert self._first is not None
        if found.stat.st_mtime_ns != self._first.stat.st_mtime_ns:
            raise self._refused(found.holder)
        if new and found.holder:
            _tell(
                f"{self.said} is held by {found.holder} since {found.holder.since}; "
                f"watching up to {SILENT_S:.0f} s whether it lives"
            )
        return waited > SILENT_S

    def _refused(self, holder: Holder | None) -> BadInput:
        who = f"{holder} has been writing there since {holder.since}" if holder else "another run is writing there"
        return BadInput(f"{self.said} is in use: {who}; wait until it ends, stop it, or choose another folder.")


def _tell(sentence: str) -> None:
    print(f"ptymesh: {sentence[:1].upper()}{sentence[1:]}.", file=sys.stderr, flush=True)
