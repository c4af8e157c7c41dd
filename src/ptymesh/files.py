"""Writing files: whole or not at all, never in place of what is no regular file, and one sentence where that fails."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ptymesh import stopping
from ptymesh.errors import BadInput, PtymeshError

#: What the system answers where there is no more room, or a file may not grow.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: ... and where a path is one that nothing can be written to: the user's mistake.
MISTAKEN = (
    errno.EACCES,
    errno.EEXIST,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
)
#: What a process of another machine has not touched for so long is taken to be abandoned.
DAY_S = 24 * 3600
KINDS = (
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
)


def target_of(path: str | os.PathLike[str]) -> Path:
    """The regular file that is made or replaced by writing to `path`.

    A symbolic link to a regular file stands for that file, and stays. Raises BadInput where there is a folder, a
    device, a FIFO, a socket, or a link that leads to one of these or nowhere.
    """
    path = Path(path)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        if path.is_symlink():
            raise BadInput(f"{path} is a link that leads nowhere; remove it, or choose another name.") from error
        return path
    except (OSError, ValueError) as error:
        raise refusal(path, error) from error
    if stat.S_ISDIR(mode):
        raise BadInput(f"{path} is a folder; give the name of a file.")
    if not stat.S_ISREG(mode):
        kind = next((kind for is_one, kind in KINDS if is_one(mode)), "something else")
        raise BadInput(f"{path} is {kind}, not a regular file, and is left alone; choose another name.")
    return path.resolve() if path.is_symlink() else path


@contextmanager
def replacing(path: str | os.PathLike[str], needed: int | None = None, *, durable: bool = True) -> Iterator[Path]:
    """A temporary name beside the file that `path` stands for: renamed into place when all went well, else removed,
    also where a signal ends the process (stopping.py).

    needed: bytes that will be written, for the message where the disk is full. durable: on the disk when this ends.
    Raises BadInput and PtymeshError as `target_of` and `writing` do.
    """
    target = target_of(path)
    _remove_abandoned(target)
    temporary = target.with_name(f".{target.name}.{_place()}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with stopping.tidying(lambda: temporary.unlink(missing_ok=True)), writing(path, needed):
            yield temporary
            if durable:
                to_disk(temporary)
            os.replace(temporary, target)
            if durable:
                to_disk(target.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def writing(path: str | os.PathLike[str], needed: int | None = None) -> Iterator[None]:
    """Around what writes `path`: what the system refuses is raised as `refusal` has it."""
    try:
        yield
    except PtymeshError:
        raise
    except (OSError, RuntimeError) as error:
        cause = _of_system(error)
        if cause is None:
            raise
        raise refusal(path, cause, needed) from error


def refusal(path: str | os.PathLike[str], error: Exception, needed: int | None = None) -> PtymeshError:
    """The error to raise where `path` cannot be written: BadInput where another path would do."""
    number = getattr(error, "errno", None)
    if number in FULL:
        path = Path(path).absolute()
        fact = no_room(f"{path} cannot be written", path.parent, needed, error)
        return PtymeshError(f"{fact}; make room, or choose another folder.")
    if number in MISTAKEN or isinstance(error, ValueError):
        return BadInput(f"{path} cannot be written ({_said(error)}); check its folder, or choose another one.")
    return PtymeshError(f"{path} cannot be written ({_said(error)}); check the disk, or choose another folder.")


def no_room(failed: str, folder: Path, needed: int | None, error: Exception) -> str:
    """What `failed`, how much room it needed, and what is free in the folder: a sentence without its remedy and full
    stop."""
    folder = next((above for above in (folder, *folder.parents) if above.is_dir()), folder)
    wanted = "" if needed is None else f"{size(needed)} needed, "
    try:
        free = f"{size(shutil.disk_usage(folder).free)} free in {folder}"
    except OSError:
        free = f"how much is free in {folder} is not known"
    return f"{failed} ({_said(error)}: {wanted}{free})"


def size(count: float) -> str:
    """Bytes as people read them: 12 bytes, 640 MB."""
    unit = 0
    while count >= 999.5 and unit < 5:
        count, unit = count / 1000, unit + 1
    return f"{count:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB', 'PB')[unit]}"


def to_disk(path: Path) -> None:
    """fsync a file or a folder; systems on which a folder cannot be opened do without."""
    if path.is_dir() and not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _said(error: Exception) -> str:
    said = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return str(said).splitlines()[0][:200]


def _of_system(error: BaseException | None) -> OSError | None:
    """The system's own error, this one or what it was raised from; not what happened to be handled meanwhile."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__
    return error


def _remove_abandoned(target: Path) -> None:
    """Temporary files for this target whose process was killed: on this machine where it is seen to be gone, on others
    where nothing was written for a day."""
    named, here = re.compile(rf"\.{re.escape(target.name)}\.([0-9a-f]{{8}})\.(\d+)\.[0-9a-f]{{8}}\.tmp"), _place()
    with suppress(OSError):
        for path in target.parent.iterdir():
            if found := named.fullmatch(path.name):
                old = time.time() - path.lstat().st_mtime > DAY_S
                if not _alive(int(found[2])) if found[1] == here else old:
                    path.unlink(missing_ok=True)


def _place() -> str:
    """This machine in a few letters, so that file names stay short."""
    return f"{zlib.crc32(machine().encode()):08x}"


def machine() -> str:
    """This machine since it was started, and the process numbers that are valid here: containers may share a name."""
    import platform

    return pid_space() or platform.node()


def pid_space() -> str:
    """Tells this machine, since it was started, and its name space of processes from any other; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _alive(pid: int) -> bool:
    import psutil

    return pid >= 2**31 or psutil.pid_exists(pid)
