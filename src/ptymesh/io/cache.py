"""Files that are made once from others, and found again: in $PTYMESH_CACHE, or in the machine's temporary folder.

They are named after the content that they come from. Of several processes that need one, the first makes it, in a file
without a name where the system has such, so that nothing is left of it however the process ends; the others wait.
Beside each lies NAME.lock, which holds its size and digest: a file that was truncated, damaged or replaced since it
was made is made anew. Files that nobody has used for a week are removed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from ptymesh.errors import BadInput
from ptymesh.files import no_room, size

WEEK_S = 7 * 24 * 3600
#: Names of files that are made here; no other file of the folder is ever removed.
OURS = re.compile(r"[0-9a-f]{32}-")
#: What is left free on the disk: so much, or this share of a small one.
LEFT_BYTES, LEFT_SHARE = 1 << 30, 0.05
#: So many bytes are written between two looks at the disk's room.
CHECK_BYTES = 16 << 20
#: A process that holds a lock and has not written for so long is taken to be stuck.
STALLED_S = 300.0


@dataclass(frozen=True)
class Plan:
    """A file to be made.

    Fields:
        source: the file that it is made from, for messages.
        name: of the file in the folder.
        make: writes it.
        most: bytes that it may have at most.
        needed: bytes that it will have, where that is known.
        remedy: what to do where it would be too large, or has no room.
    """

    source: Path
    name: str
    make: Callable[[Sink], None]
    most: int
    needed: int | None
    remedy: str


class Sink:
    """Where the bytes go: counted, digested, and stopped before they are too many, or fill the disk."""

    def __init__(self, file: BinaryIO, folder: Path, plan: Plan, beat: Callable[[], None]) -> None:
        self.count, self._digest = 0, xxhash.xxh3_128()
        self._file, self._folder, self._plan, self._beat, self._unchecked = file, folder, plan, beat, 0

    def write(self, data: Any) -> None:
        """All of these bytes. Raises BadInput where they cannot, or should not, be written."""
        view = memoryview(data).cast("B")
        self.count += len(view)
        self._unchecked += len(view)
        check_size(self._plan, self.count)
        if self._unchecked >= CHECK_BYTES:
            check_room(self._plan, self._folder, 0)
            self._beat()
            self._unchecked = 0
        try:
            self._file.write(view)
        except OSError as error:
            raise _refusal(self._plan, self._folder, error) from error
        self._digest.update(view)

    def digest(self) -> str:
        """Of all that was written."""
        return self._digest.hexdigest()


def safe_name(key: str, label: str) -> str:
    """A name for what is made of the content `key` (32 hexadecimal digits); any label will do."""
    clean = re.sub(r"[^A-Za-z0-9_-]", "_", label)[:40]
    return f"{key}-{clean}-{hashlib.sha256(label.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"


def made(plan: Plan) -> Path:
    """The file of this plan, made now if it is not there as it was made. BadInput where that cannot be."""
    check_size(plan, plan.needed or 0)
    folder = cache_folder()
    target = folder / plan.name
    try:
        with _locked(folder / f"{plan.name}.lock") as lock:
            if not _as_recorded(target, lock):
                _forget_old(folder)
                target.unlink(missing_ok=True)
                _make(plan, folder, target, lock)
            if lock is not None:
                os.utime(lock)
    except OSError as error:
        raise _refusal(plan, folder, error) from error
    return target


def cache_folder() -> Path:
    """Where such files lie; a folder of this user alone. BadInput where it cannot be made."""
    given = os.environ.get("PTYMESH_CACHE")
    user = os.getuid() if hasattr(os, "getuid") else "user"
    try:
        folder = Path(given).expanduser() if given else Path(tempfile.gettempdir()) / f"ptymesh-{user}"
        folder = folder.absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = folder.lstat().st_uid
    except (OSError, RuntimeError) as error:  # RuntimeError: `~name` of an unknown user
        where = f"PTYMESH_CACHE is {given[:200]}" if given else "The folder for temporary files is missing"
        why = getattr(error, "strerror", None) or error
        raise BadInput(
            f"{where}, where nothing can be written ({why}); set PTYMESH_CACHE to a folder with room."
        ) from error
    if not given and owner != user and hasattr(os, "getuid"):
        raise BadInput(f"{folder} belongs to another user; set PTYMESH_CACHE to a folder of your own.")
    return folder


def check_size(plan: Plan, count: int) -> None:
    """BadInput where so many bytes are more than the plan allows."""
    if count > plan.most:
        raise BadInput(
            f"{plan.source} unpacks to more than {size(plan.most)}, far more than measured data of its size do; if "
            f"that is meant, {plan.remedy}."
        )


def check_room(plan: Plan, folder: Path, coming: int) -> None:
    """BadInput where the folder's disk has no room for so many bytes and something to spare."""
    usage = shutil.disk_usage(folder)
    if usage.free < coming + min(LEFT_BYTES, LEFT_SHARE * usage.total):
        raise _refusal(plan, folder, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


def _refusal(plan: Plan, folder: Path, error: OSError) -> BadInput:
    """What is said where a file cannot be written."""
    fact = no_room(f"{plan.source} cannot be unpacked", folder, plan.needed, error)
    return BadInput(f"{fact}; set PTYMESH_CACHE to a folder with room, or {plan.remedy}.")


def _make(plan: Plan, folder: Path, target: Path, lock: int | None) -> None:
    check_room(plan, folder, plan.needed or 0)
    with _published(target) as file:
        sink = Sink(file, folder, plan, lambda: None if lock is None else os.utime(lock))
        plan.make(sink)
        file.flush()
    if lock is not None:
        _record(lock, target.lstat(), sink.digest())


@contextlib.contextmanager
def _published(target: Path) -> Iterator[BinaryIO]:
    """A file to write to that gets its name when all is well, and is gone otherwise."""
    nameless = _nameless(target)
    if nameless is not None:
        with os.fdopen(nameless, "w+b") as file:
            yield file
            # Without locks, another process may have made the same file meanwhile; its content is the same.
            with contextlib.suppress(FileExistsError):
                _name(nameless, target)
        return
    # This process holds the lock, so whoever wrote these was killed.
    for left in target.parent.glob(f"{target.name}.*.tmp"):
        left.unlink(missing_ok=True)
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _nameless(target: Path) -> int | None:
    """A file without a name in the target's folder; None where the system has none, or cannot name it later."""
    kind = getattr(os, "O_TMPFILE", None)
    if kind is None:
        return None
    probe = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        first = os.open(target.parent, kind | os.O_RDWR, 0o600)
        try:
            _name(first, probe)
            probe.unlink()
        finally:
            os.close(first)
        return os.open(target.parent, kind | os.O_RDWR, 0o600)
    except OSError:
        return None


def _name(number: int, path: Path) -> None:
    # Python follows the link in /proc only where it calls linkat(2), which it does when a folder is given; as the path
    # is absolute, the system ignores which one.
    os.link(f"/proc/self/fd/{number}", path, src_dir_fd=number, follow_symlinks=True)


def _as_recorded(target: Path, lock: int | None) -> bool:
    """Whether the file is there and still what was written. It is read again only where its inode or times changed."""
    try:
        there = target.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(there.st_mode):
        raise BadInput(f"{target}, where unpacked data belong, is no regular file; remove it.")
    if lock is None:
        return True
    record = _recorded(lock)
    if record.get("size") != there.st_size:
        return False
    if record.get("seen") == _seen(there):
        return True
    digest = xxhash.xxh3_128()
    with target.open("rb") as file:
        while piece := file.read(CHECK_BYTES):
            digest.update(piece)
            os.utime(lock)
    if record.get("digest") != digest.hexdigest():
        return False
    _record(lock, there, digest.hexdigest())
    return True


def _seen(there: os.stat_result) -> list[int]:
    """What changes when anybody writes to a file, or puts another in its place.

    Not the device: each machine has its own number for a file system that it shares with others.
    """
    return [there.st_ino, there.st_mtime_ns, there.st_ctime_ns]


def _recorded(lock: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(lock, 4096, 0))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _record(lock: int, there: os.stat_result, digest: str) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, json.dumps({"size": there.st_size, "digest": digest, "seen": _seen(there)}).encode(), 0)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int | None]:
    """Processes of one machine take turns; where files cannot be locked they may do the work twice, and agree."""
    if sys.platform == "win32":
        yield None
        return
    import fcntl

    try:
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise BadInput(f"{path}, a lock of unpacked data, is no regular file; remove it.") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise BadInput(f"{path}, a lock of unpacked data, is no regular file; remove it.")
        wait, last, since = 0.01, -1, 0.0
        while True:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                touched = os.fstat(number).st_mtime_ns  # only compared with itself: the file server's clock may differ
                if touched != last:
                    last, since = touched, time.monotonic()
                elif time.monotonic() - since > STALLED_S:
                    raise BadInput(
                        f"Another process holds {path} and has written nothing for {STALLED_S:.0f} s; end it, or set "
                        f"PTYMESH_CACHE to another folder."
                    ) from None
            except OSError:
                # Some network file systems have no locks. Two processes may then do the same work; nobody sees half of
                # a file, as it gets its name when it is whole.
                break
            else:
                os.utime(number)  # those who wait see that another process has its turn
                break
            time.sleep(wait)
            wait = min(2 * wait, 0.5)
        yield number
    finally:
        os.close(number)


def _forget_old(folder: Path) -> None:
    """Removes what nobody has used for a week: its lock is touched whenever it is."""
    for file in folder.iterdir():
        if not OURS.match(file.name):
            continue
        with contextlib.suppress(OSError):  # another process removed it first, or we may not
            used = [one.lstat() for one in (file, file.with_name(f"{file.name}.lock")) if one.exists()]
            if all(stat.S_ISREG(one.st_mode) and time.time() - one.st_mtime > WEEK_S for one in used):
                file.unlink()
