"""Writing of files: atomically, never over anything but a regular file, with failures reported in one sentence."""

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

#: Error numbers for a full disk, an exhausted quota or a file that may not grow.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: Error numbers for a path that cannot be written to: the user's mistake.
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
#: Temporary files of other machines that have not been written to for so long count as abandoned.
DAY_S = 24 * 3600
KINDS = (
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
)


def target_of(path: str | os.PathLike[str]) -> Path:
    """Return the regular file that writing to `path` creates or replaces.

    A symbolic link to a regular file stands for that file, and is kept.

    Raises:
        BadInput: the path is a folder, a device, a FIFO, a socket, or a link to one of these or to nothing.
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
    """Yield a temporary name beside the target file, which is renamed into place on success and removed on failure.

    It is removed also when a signal ends the process (stopping.py).

    Args:
        path: of the file, or of a link to it.
        needed: bytes that will be written, for the message if the disk is full.
        durable: True to flush the file to the disk (fsync).

    Raises:
        BadInput: the path cannot be written to.
        PtymeshError: the disk refuses.
    """
    target = target_of(path)
    _remove_abandoned(target)
    temporary = target.with_name(f".{target.name}.{_place()}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with stopping.removing(str(temporary)), writing(path, needed):
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
    """Turn errors of the system within this context, which writes `path`, into those of `refusal`."""
    try:
        yield
    except PtymeshError:
        raise
    except (OSError, RuntimeError) as error:
        cause = _find_system_error(error)
        if cause is None:
            raise
        raise refusal(path, cause, needed) from error


def refusal(path: str | os.PathLike[str], error: Exception, needed: int | None = None) -> PtymeshError:
    """Return the error to raise if `path` cannot be written: BadInput if another path would do, else PtymeshError.

    Args:
        path: of the file.
        error: of the system.
        needed: bytes that were to be written.
    """
    number = getattr(error, "errno", None)
    if number in FULL:
        path = Path(path).absolute()
        fact = no_room(f"{path} cannot be written", path.parent, needed, error)
        return PtymeshError(f"{fact}; make room, or choose another folder.")
    if number in MISTAKEN or isinstance(error, ValueError):
        return BadInput(f"{path} cannot be written ({_reason(error)}); check its folder, or choose another one.")
    return PtymeshError(f"{path} cannot be written ({_reason(error)}); check the disk, or choose another folder.")


def no_room(failed: str, folder: Path, needed: int | None, error: Exception) -> str:
    """Return a sentence, without remedy and full stop, about a write that failed on a full disk.

    Args:
        failed: beginning of the sentence.
        folder: whose free space is named.
        needed: bytes that were to be written; None if unknown.
        error: of the system.
    """
    folder = next((above for above in (folder, *folder.parents) if above.is_dir()), folder)
    amount = "" if needed is None else f"{size(needed)} needed, "
    try:
        free = f"{size(shutil.disk_usage(folder).free)} free in {folder}"
    except OSError:
        free = f"how much is free in {folder} is not known"
    return f"{failed} ({_reason(error)}: {amount}{free})"


def size(count: float) -> str:
    """Format a number of bytes: 12 bytes, 640 MB."""
    unit = 0
    while count >= 999.5 and unit < 5:
        count, unit = count / 1000, unit + 1
    return f"{count:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB', 'PB')[unit]}"


def to_disk(path: Path) -> None:
    """Flush a file or a folder to the disk (fsync); folders are skipped on systems that cannot open them."""
    if path.is_dir() and not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _reason(error: Exception) -> str:
    reason = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return str(reason).splitlines()[0][:200]


def _find_system_error(error: BaseException | None) -> OSError | None:
    """Return the system's error that this one is or was raised from; None without one."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__
    return error


def _remove_abandoned(target: Path) -> None:
    """Remove temporary files of this target left by killed processes.

    On this machine those whose process has ended, on others those that have not been written to for a day.
    """
    named, place = re.compile(rf"\.{re.escape(target.name)}\.([0-9a-f]{{8}})\.(\d+)\.[0-9a-f]{{8}}\.tmp"), _place()
    with suppress(OSError):
        for path in target.parent.iterdir():
            if match := named.fullmatch(path.name):
                old = time.time() - path.lstat().st_mtime > DAY_S
                if not _alive(int(match[2])) if match[1] == place else old:
                    path.unlink(missing_ok=True)


def _place() -> str:
    """Return a short hash of this machine, so that file names stay short."""
    return f"{zlib.crc32(machine().encode()):08x}"


def machine() -> str:
    """Return a name of this machine since its boot, and of its pid namespace where that is known.

    Containers on different machines may share a host name.
    """
    import platform

    return pid_space() or platform.node()


def pid_space() -> str:
    """Return an identifier of this machine since its boot and of its pid namespace; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _alive(pid: int) -> bool:
    import psutil

    return pid >= 2**31 or psutil.pid_exists(pid)
