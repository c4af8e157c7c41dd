"""The file that is a lock (lock.py): who holds it, as it stands there, and how it appears, whole and exclusively."""

from __future__ import annotations

import json
import os
import secrets
import stat
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path

from ptymesh.distributed.processes import began
from ptymesh.files import machine

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"
#: Bytes of a lock that are read.
MOST = 4096
#: Seconds after which what a process left that was killed as it took a lock goes, if nobody knows whether it lives.
LEFT_S = 86400.0


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


def busy(file: int) -> bool:
    """Whether another process has the advisory lock; False where the file system knows none."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    except (OSError, AttributeError):
        pass
    return False


def advise(file: int) -> None:
    """The advisory lock, with others that hold it; waits for who only looks whether it is free."""
    for _ in range(100):
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(0.01)
        except (OSError, AttributeError):
            return


def unadvise(file: int) -> None:
    """Lets go of the advisory lock."""
    with suppress(OSError, AttributeError):
        fcntl.flock(file, fcntl.LOCK_UN)


def create(path: Path, holder: Holder) -> int | None:
    """A new lock, open; None where there is one."""
    if os.path.lexists(path):
        return None
    if sys.platform == "win32":  # where what is open keeps its only name
        return _create_empty(path, holder)
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
    """As `create`, on a file system without links: the lock is empty for a moment."""
    try:
        return _filled(path, holder)
    except FileExistsError:
        return None


def replace(path: Path, holder: Holder) -> int:
    """A new lock in place of another one, open."""
    if sys.platform == "win32":  # who is dead has closed it, and who looks at it keeps it from being replaced
        return _filled(path, holder, os.O_TRUNC)
    file, temporary = _written(path, holder)
    try:
        os.replace(temporary, path)
    except BaseException:
        os.close(file)
        temporary.unlink(missing_ok=True)
        raise
    return file


def _written(path: Path, holder: Holder) -> tuple[int, Path]:
    """A lock under a name that nobody else has."""
    temporary = path.with_name(f"{NAME}-{secrets.token_hex(8)}")
    return _filled(temporary, holder), temporary


def _filled(path: Path, holder: Holder, how: int = os.O_CREAT | os.O_EXCL) -> int:
    """A file that says so, open; on the disk, as other machines see it only then."""
    file = os.open(path, os.O_RDWR | how, 0o666)
    try:
        advise(file)
        text = json.dumps(asdict(holder)).encode() + b"\n"
        while text:
            text = text[os.write(file, text) :]
        os.fsync(file)
    except BaseException:
        os.close(file)
        path.unlink(missing_ok=True)
        raise
    return file


def tidy(path: Path, file: int) -> None:
    """What others left beside the lock at `path`, which is the caller's and open, when they were killed taking one."""
    with suppress(OSError):
        now = os.fstat(file).st_mtime  # by the clock of the file system
        for left in path.parent.iterdir():
            if left.name.startswith((f"{NAME}-", f"{NAME}.")):
                with suppress(OSError):
                    if now - left.lstat().st_mtime > LEFT_S or _left_here(left):
                        left.unlink()


def _left_here(path: Path) -> bool:
    """Whether it is of a process of this machine that has ended. Raises OSError."""
    if not stat.S_ISREG(path.lstat().st_mode):
        return False
    with suppress(ValueError, RecursionError), path.open("rb") as file:
        holder = Holder.read(file.read(MOST))
        return holder.machine == machine() and began(holder.pid) not in (holder.started, "")
    return False


def same(path: Path, file: int) -> bool:
    """Whether the file that is open is still the one of that name; False where that cannot be seen."""
    with suppress(OSError):
        return identity(os.stat(path, follow_symlinks=False)) == identity(os.fstat(file))
    return False


def identity(found: os.stat_result) -> tuple[int, int]:
    """Device and inode of a file, which tell it from others."""
    return found.st_dev, found.st_ino
