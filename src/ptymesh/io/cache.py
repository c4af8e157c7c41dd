"""Cache of files that are made once from others, in $PTYMESH_CACHE or in the machine's temporary folder.

Files are named after the content that they come from. Of several processes that need one, the first makes it, and the
others wait. Where the system can, the file has no name until it is complete, so that nothing is left of it however the
process ends. Beside each file lie NAME.lock, which its maker holds, and NAME.json with its size and digest: a file that
was truncated, damaged or replaced since is made anew. Files that nobody has used for a week are removed.
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
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import xxhash
from filelock import FileLock, Timeout

from ptymesh.distributed.lease import NO_LOCKS
from ptymesh.errors import BadInput
from ptymesh.files import no_room, size

WEEK_S = 7 * 24 * 3600
#: Pattern of the names of files that are made here; no other file of the folder is ever removed.
OURS = re.compile(r"[0-9a-f]{32}-")
#: Bytes that are left free on a large disk.
LEFT_BYTES = 1 << 30
#: Share that is left free of a small disk.
LEFT_SHARE = 0.05
#: Bytes that are written between two checks of the disk's free space.
CHECK_BYTES = 16 << 20
#: Seconds after which a process that holds a lock and writes nothing is taken to be stuck.
STALLED_S = 300.0


@dataclass(frozen=True)
class CacheEntry:
    """A file to be made.

    Attributes:
        source: the file that it is made from, for messages.
        name: of the file in the folder.
        make: writes it.
        most: bytes that it may have at most.
        needed: bytes that it will have; None: not known.
        remedy: what to do if it is too large or the disk is full.
    """

    source: Path
    name: str
    make: Callable[[Sink], None]
    most: int
    needed: int | None
    remedy: str


class Sink:
    """A writer that counts and digests bytes, and stops before they are too many or fill the disk."""

    def __init__(self, file: BinaryIO, folder: Path, entry: CacheEntry, beat: Callable[[], None]) -> None:
        self.count, self._digest = 0, xxhash.xxh3_128()
        self._file, self._folder, self._entry, self._beat, self._unchecked = file, folder, entry, beat, 0

    def write(self, data: Any) -> None:
        """Write all bytes; raise BadInput if they cannot or should not be written."""
        view = memoryview(data).cast("B")
        self.count += len(view)
        self._unchecked += len(view)
        check_size(self._entry, self.count)
        if self._unchecked >= CHECK_BYTES:
            check_disk_space(self._entry, self._folder, 0)
            self._beat()
            self._unchecked = 0
        try:
            self._file.write(view)
        except OSError as error:
            raise _refusal(self._entry, self._folder, error) from error
        self._digest.update(view)

    def digest(self) -> str:
        """Return the digest of all that was written."""
        return self._digest.hexdigest()


def safe_name(key: str, label: str) -> str:
    """Return a file name for what is made of the content `key` (32 hexadecimal digits), with any label."""
    clean = re.sub(r"[^A-Za-z0-9_-]", "_", label)[:40]
    return f"{key}-{clean}-{hashlib.sha256(label.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"


def get_or_make(entry: CacheEntry) -> Path:
    """Return the path of a file, made now unless it is there unchanged; raise BadInput if it cannot be made."""
    check_size(entry, entry.needed or 0)
    folder = cache_folder()
    target = folder / entry.name
    try:
        lock, record = (folder / f"{entry.name}.{end}" for end in ("lock", "json"))
        with _hold_lock(lock) as note_life:
            if not _as_recorded(target, record, note_life):
                _forget_old(folder)
                target.unlink(missing_ok=True)
                _make(entry, folder, target, record, note_life)
            note_life()
    except OSError as error:
        raise _refusal(entry, folder, error) from error
    return target


def cache_folder() -> Path:
    """Return the folder of such files, which belongs to this user alone; raise BadInput if it cannot be made."""
    named_folder = os.environ.get("PTYMESH_CACHE")
    user = os.getuid() if hasattr(os, "getuid") else "user"
    try:
        folder = Path(named_folder).expanduser() if named_folder else Path(tempfile.gettempdir()) / f"ptymesh-{user}"
        folder = folder.absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = folder.lstat().st_uid
    except (OSError, RuntimeError) as error:  # RuntimeError: `~name` of an unknown user
        subject = (
            f"PTYMESH_CACHE is {named_folder[:200]}" if named_folder else "The folder for temporary files is missing"
        )
        why = getattr(error, "strerror", None) or error
        raise BadInput(
            f"{subject}, where nothing can be written ({why}); set PTYMESH_CACHE to a folder with room."
        ) from error
    if not named_folder and owner != user and hasattr(os, "getuid"):
        raise BadInput(f"{folder} belongs to another user; set PTYMESH_CACHE to a folder of your own.")
    return folder


def check_size(entry: CacheEntry, count: int) -> None:
    """Raise BadInput if so many bytes are more than the entry allows."""
    if count > entry.most:
        raise BadInput(
            f"{entry.source} unpacks to more than {size(entry.most)}, far more than measured data of its size do; if "
            f"that is meant, {entry.remedy}."
        )


def check_disk_space(entry: CacheEntry, folder: Path, coming: int) -> None:
    """Raise BadInput if the folder's disk has no room for a file and something to spare.

    Args:
        entry: the file, for messages.
        folder: where it is written.
        coming: bytes that are still to be written.
    """
    usage = shutil.disk_usage(folder)
    if usage.free < coming + min(LEFT_BYTES, LEFT_SHARE * usage.total):
        raise _refusal(entry, folder, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


def _refusal(entry: CacheEntry, folder: Path, error: OSError) -> BadInput:
    """Return the error for a file that cannot be written."""
    fact = no_room(f"{entry.source} cannot be unpacked", folder, entry.needed, error)
    return BadInput(f"{fact}; set PTYMESH_CACHE to a folder with room, or {entry.remedy}.")


def _make(entry: CacheEntry, folder: Path, target: Path, record: Path, note_life: Callable[[], None]) -> None:
    """Make the file and its record."""
    check_disk_space(entry, folder, entry.needed or 0)
    with _write_whole(target) as file:
        sink = Sink(file, folder, entry, note_life)
        entry.make(sink)
        file.flush()
    _write_record(record, target.lstat(), sink.digest())


@contextlib.contextmanager
def _write_whole(target: Path) -> Iterator[BinaryIO]:
    """Yield a file to write to that gets its name if no exception is raised, and is gone otherwise."""
    nameless = _open_nameless(target)
    if nameless is not None:
        with os.fdopen(nameless, "w+b") as file:
            yield file
            # Without locks, another process may have made the same file meanwhile; its content is the same.
            with contextlib.suppress(FileExistsError):
                _give_path(nameless, target)
        return
    # This process holds the lock, so whoever wrote these was killed.
    for leftover in target.parent.glob(f"{target.name}.*.tmp"):
        leftover.unlink(missing_ok=True)
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _open_nameless(target: Path) -> int | None:
    """Open a file without a name in the target's folder; None if the system has none, or cannot name it later."""
    kind = getattr(os, "O_TMPFILE", None)
    if kind is None:
        return None
    probe = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        first = os.open(target.parent, kind | os.O_RDWR, 0o600)
        try:
            _give_path(first, probe)
            probe.unlink()
        finally:
            os.close(first)
        return os.open(target.parent, kind | os.O_RDWR, 0o600)
    except OSError:
        return None


def _give_path(number: int, path: Path) -> None:
    """Give a file without a name, by its descriptor, a path."""
    # Python follows the link in /proc only where it calls linkat(2), which it does when a folder is given; as the path
    # is absolute, the system ignores which one.
    os.link(f"/proc/self/fd/{number}", path, src_dir_fd=number, follow_symlinks=True)


def _as_recorded(target: Path, record: Path, note_life: Callable[[], None]) -> bool:
    """Return True if the file is there and unchanged; it is read again if its inode or times differ.

    Raises:
        BadInput: something that is no regular file has one of the names.
    """
    _refuse_odd(record, "a record")
    if not _refuse_odd(target, "where unpacked data belong"):
        return False
    status, noted = target.lstat(), _read_record(record)
    if noted.get("size") != status.st_size:
        return False
    if noted.get("seen") == _stamp(status):
        return True
    digest = xxhash.xxh3_128()
    with target.open("rb") as file:
        while piece := file.read(CHECK_BYTES):
            digest.update(piece)
            note_life()
    if noted.get("digest") != digest.hexdigest():
        return False
    _write_record(record, status, digest.hexdigest())
    return True


def _refuse_odd(path: Path, role: str) -> bool:
    """Return True if the file is there; raise BadInput if it is no regular file."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(mode):
        raise BadInput(f"{path}, {role}, is no regular file; remove it.")
    return True


def _stamp(status: os.stat_result) -> list[int]:
    """Return numbers that change when a file is written to or replaced.

    The device is not one of them: each machine has its own number for a file system that several share.
    """
    return [status.st_ino, status.st_mtime_ns, status.st_ctime_ns]


def _read_record(record: Path) -> dict[str, Any]:
    """Return what a record says; nothing if it is missing or damaged."""
    try:
        with record.open("rb") as file:
            noted = json.loads(file.read(4096))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return noted if isinstance(noted, dict) else {}


def _write_record(record: Path, status: os.stat_result, digest: str) -> None:
    """Write the record of a file."""
    temporary = record.with_name(f"{record.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps({"size": status.st_size, "digest": digest, "seen": _stamp(status)}))
    os.replace(temporary, record)


@contextlib.contextmanager
def _hold_lock(path: Path) -> Iterator[Callable[[], None]]:
    """Hold a lock between processes of one machine; yield a function that shows waiting ones that this one goes on.

    Where files cannot be locked, as on some network file systems, two processes may do the same work. Both make the
    same file, and nobody sees half of it, because it gets its name when it is complete.
    """
    _refuse_odd(path, "a lock of unpacked data")
    lock = FileLock(path, mode=0o600, fallback_to_soft=False)

    def note_life() -> None:
        with contextlib.suppress(FileNotFoundError):
            os.utime(path)

    wait, last, since = 0.01, -1, 0.0
    try:
        while True:
            try:
                lock.acquire(blocking=False)
            except Timeout:
                touched = path.lstat().st_mtime_ns  # only compared with itself: the file server's clock may differ
                if touched != last:
                    last, since = touched, time.monotonic()
                elif time.monotonic() - since > STALLED_S:
                    raise BadInput(
                        f"Another process holds {path} and has written nothing for {STALLED_S:.0f} s; end it, or set "
                        f"PTYMESH_CACHE to another folder."
                    ) from None
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                break
            else:
                note_life()
                break
            time.sleep(wait)
            wait = min(2 * wait, 0.5)
        yield note_life
    finally:
        lock.release()


def _forget_old(folder: Path) -> None:
    """Remove files that nobody has used for a week; each use touches a file's lock."""
    for file in folder.iterdir():
        if not OURS.match(file.name):
            continue
        with contextlib.suppress(OSError):  # another process removed it first, or this one may not remove it
            data = file.with_name(file.name.removesuffix(".lock").removesuffix(".json"))
            three = (data, data.with_name(f"{data.name}.lock"), data.with_name(f"{data.name}.json"))
            used = [one.lstat() for one in three if os.path.lexists(one)]
            if all(stat.S_ISREG(one.st_mode) and time.time() - one.st_mtime > WEEK_S for one in used):
                file.unlink()
