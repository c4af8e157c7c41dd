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
import json
import os
import secrets
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from types import TracebackType

from ptymesh import stopping
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.run.reports import BatchReport, Callback

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"
#: Environment variable by which ranks know the lock of the command that has started them.
TOKEN = "PTYMESH_LOCK"
#: Seconds between beats; without one, after which a holder elsewhere counts as dead; that the ranks of a launcher which
#: was killed are given to end; between two looks.
BEAT_S, SILENT_S, LEAVING_S, POLL_S = 5.0, 60.0, 60.0, 0.1
#: Bytes of a lock that are read.
MOST = 4096


@dataclass(frozen=True)
class Holder:
    """Who holds a lock: process `pid`, begun at `started` (of the system's clock), on `host`, since `since`."""

    token: str
    host: str
    machine: str
    pid: int
    started: str
    since: str

    @classmethod
    def here(cls) -> Holder:
        """This process, from now on."""
        import platform

        now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        return cls(secrets.token_hex(8), platform.node(), machine(), os.getpid(), began(os.getpid()) or "", now)

    @classmethod
    def read(cls, text: bytes) -> Holder:
        """As it stands in a lock. Raises ValueError."""
        made = json.loads(text)
        kinds = {field.name: int if field.name == "pid" else str for field in fields(cls)}
        if not isinstance(made, dict) or {name: type(value) for name, value in made.items()} != kinds:
            raise ValueError("other fields")
        return cls(**made)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def machine() -> str:
    """This machine since it was started, and the process numbers that are valid here: containers may share a name."""
    import platform

    boot, namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    with suppress(OSError):
        return f"{boot.read_text().strip()} {namespace.stat().st_ino}"
    return platform.node()


def began(pid: int) -> str | None:
    """When a process of this machine began, None where it has ended; empty where that cannot be seen."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else rest[18]
    except (OSError, ValueError, IndexError):
        pass
    if sys.platform == "linux":
        with suppress(ProcessLookupError, OverflowError):
            try:
                os.kill(pid, 0)
            except PermissionError:  # of another user, and hidden
                return ""
        return None
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
    except psutil.NoSuchProcess:
        return None


class Lock:
    """A lock that this process holds, or has a share in: `path`, open as `file`. made: folders to remove if empty.

    A share (of a rank) lets go of the file, and removes it only where the launcher has died.
    """

    def __init__(self, path: Path, file: int, token: str, made: tuple[Path, ...] = (), *, share: bool = False) -> None:
        self.path, self.token, self._file, self._made, self._share = path, token, file, made, share
        self._launcher = os.getppid()
        self._end = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="lock", daemon=True)
        self._beats.start()

    def _beat(self) -> None:
        while not self._end.wait(BEAT_S):
            with suppress(OSError):
                os.utime(self._file if os.utime in os.supports_fd else self.path)

    def _still_written(self) -> bool:
        """Whether the launcher lives, or other ranks that it has left."""
        if os.getppid() == self._launcher:
            return True
        with suppress(OSError, AttributeError):
            fcntl.flock(self._file, fcntl.LOCK_UN)
        return _busy(self._file)

    def mine(self) -> bool:
        """Whether the lock in the folder is still this one."""
        return _same(self.path, self._file)

    def check(self) -> None:
        """Raises PtymeshError where another run has taken the folder, as this one showed no life for too long."""
        if not self.mine():
            raise PtymeshError(
                f"{self.path.parent} was taken by another run while this one stood still; it ends without writing "
                "anything more."
            )

    def close(self) -> None:
        """Lets go of the folder; it and those above it that were made for this lock go where they are empty."""
        self._end.set()
        self._beats.join()
        if self.mine() and not (self._share and self._still_written()):
            self.path.unlink(missing_ok=True)
        os.close(self._file)
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
    """A rank's share in the lock of its launcher, None where that holds none here."""
    token = os.environ.get(TOKEN)
    found = _look(_resolved(folder) / NAME) if token else None
    if found is None:
        return None
    if found.holder is None or found.holder.token != token:
        found.close()
        return None
    _advise(found.file)
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
                if (file := _create(folder / NAME, holder)) is not None:
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
    return lock


def _win(path: Path, holder: Holder, said: Path) -> int:
    """The lock at `path`, open, once it is the holder's. Raises BadInput where another one lives."""
    watch = _Watch(said)
    while True:
        if (file := _create(path, holder)) is not None:
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
                if _same(path, found.file):
                    return _replace(path, holder)
            finally:
                if _same(claim, right):
                    claim.unlink()
                os.close(right)


class _Found:
    """A lock that is there, open. holder: None of an empty one."""

    def __init__(self, path: Path, file: int) -> None:
        self.path, self.file = path, file
        self.stat = os.fstat(file)
        text = os.pread(file, MOST, 0)
        self.holder: Holder | None = None
        if text or not stat.S_ISREG(self.stat.st_mode):
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
    flags = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC if hasattr(os, "O_NOFOLLOW") else 0
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

    def dead(self, found: _Found) -> bool:
        """To be asked again after a moment where it is not known yet. Raises BadInput where it lives."""
        new = self._first is None or self._first.identity != found.identity
        if new:
            self._first, self._since = found, time.monotonic()
        waited, holder = time.monotonic() - self._since, found.holder
        if holder is None or holder.machine != machine():
            return self._silent(found, waited, new)
        if began(holder.pid) in (holder.started, ""):
            raise self._refused(holder)
        if not _busy(found.file):
            return True
        if waited > LEAVING_S:
            raise BadInput(
                f"{self.said} is in use: {holder} has ended, and its ranks still write there; "
                "wait until they end, or end them."
            )
        if new:
            self._tell(f"{holder} has ended, and its ranks still write to {self.said}; waiting for them")
        return False

    def _silent(self, found: _Found, waited: float, new: bool) -> bool:
        assert self._first is not None
        if found.stat.st_mtime_ns != self._first.stat.st_mtime_ns:
            raise self._refused(found.holder)
        if new and found.holder:
            self._tell(
                f"{self.said} is held by {found.holder} since {found.holder.since}; "
                f"watching up to {SILENT_S:.0f} s whether it lives"
            )
        return waited > SILENT_S

    def _tell(self, sentence: str) -> None:
        print(f"ptymesh: {sentence[:1].upper()}{sentence[1:]}.", file=sys.stderr, flush=True)

    def _refused(self, holder: Holder | None) -> BadInput:
        who = f"{holder} has been writing there since {holder.since}" if holder else "another run is writing there"
        return BadInput(f"{self.said} is in use: {who}; wait until it ends, stop it, or choose another folder.")


def _busy(file: int) -> bool:
    """Whether another process has the advisory lock; False where the file system knows none."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    except (OSError, AttributeError):
        pass
    return False


def _advise(file: int) -> None:
    """The advisory lock, with others that hold it; waits for who only looks whether it is free."""
    for _ in range(100):
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(0.01)
        except (OSError, AttributeError):
            return


def _create(path: Path, holder: Holder) -> int | None:
    """A new lock, open; None where there is one."""
    if os.path.lexists(path):
        return None
    file, temporary = _written(path, holder)
    try:
        os.link(temporary, path)
        return file
    except FileExistsError:
        if os.fstat(file).st_nlink > 1:  # NFS may say so of what it has just done
            return file
    except OSError:
        os.close(file)
        return _create_empty(path, holder)
    finally:
        temporary.unlink(missing_ok=True)
    os.close(file)
    return None


def _create_empty(path: Path, holder: Holder) -> int | None:
    """As `_create`, on a file system without links: the lock is empty for a moment."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        return None
    try:
        _advise(file)
        os.write(file, _text(holder))
    except BaseException:
        path.unlink()
        os.close(file)
        raise
    return file


def _replace(path: Path, holder: Holder) -> int:
    """A new lock in place of another one, open."""
    file, temporary = _written(path, holder)
    try:
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        os.close(file)
        raise
    return file


def _written(path: Path, holder: Holder) -> tuple[int, Path]:
    """A lock under a name that nobody else has."""
    temporary = path.with_name(f"{NAME}-{secrets.token_hex(8)}")
    file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        _advise(file)
        os.write(file, _text(holder))
    except BaseException:
        temporary.unlink(missing_ok=True)
        os.close(file)
        raise
    return file, temporary


def _text(holder: Holder) -> bytes:
    return json.dumps(asdict(holder)).encode() + b"\n"


def _same(path: Path, file: int) -> bool:
    """Whether the file that is open is still the one of that name."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    own = os.fstat(file)
    return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)
