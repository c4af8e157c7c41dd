"""One try: a function in a fork of this process, which has little time, memory and disk, and what it has said and left.

The process that forks has one thread, and has imported and done already what the function will do: a fork then takes
milliseconds. The fork leads a session of its own, so that what it starts can be ended with it.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import hashlib
import os
import resource
import select
import signal
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

#: Status with which the fork leaves where the function returned, but found fault; its words are in the note.
FAULT = 99
#: Signal upon which the fork writes down where it is.
WHERE = signal.SIGUSR2


@dataclass(frozen=True)
class Limits:
    """What a try may take: seconds on the clock (and of the processor), bytes beyond those of the process that forks,
    bytes on the disk; and seconds that it has to end after SIGTERM where it was still getting on."""

    seconds: float = 10.0
    memory: int = 2 << 30
    disk: int = 200 << 20
    farewell: float = 5.0


@dataclass(frozen=True)
class Ended:
    """How a try ended.

    status: of its exit, None where a signal ended it; late: it was still there when its time was up; stopped: it was
    then told to stop, as it was getting on; left: processes of its session that outlived it; seconds: on the clock;
    busy: of the processor; stack: where Python was when it crashed or its time was up.
    """

    status: int | None
    signal: int
    late: bool
    stopped: bool
    left: bool
    seconds: float
    busy: float
    out: str
    err: str
    note: str
    stack: str


def attempt(
    work: Callable[[], str], folder: Path, said: Path, limits: Limits, getting_on: Callable[[], bool] = lambda: False
) -> Ended:
    """Calls `work` in a fork whose working folder is `folder`. Its status is 0, FAULT where `work` returns words, or
    that of the SystemExit that it raises. What is printed goes into the folder `said`.

    getting_on: asked when the time is up; true asks the fork to stop instead of killing it.
    """
    said.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _child(work, folder, said, limits)
    handle = os.pidfd_open(pid)
    try:
        late = not _gone(handle, limits.seconds)
        stopped = late and getting_on()
        if stopped:
            os.kill(pid, signal.SIGTERM)
            _gone(handle, limits.farewell)
        if late:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, WHERE)
                _gone(handle, 0.1)
                os.kill(pid, signal.SIGKILL)
        _, status, used = os.wait4(pid, 0)
    finally:
        os.close(handle)
    left = _end_session(pid)
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return Ended(
        None if number else os.WEXITSTATUS(status),
        number,
        late,
        stopped,
        left,
        time.monotonic() - began,
        used.ru_utime + used.ru_stime,
        *(_text(said / name) for name in ("out", "err", "note", "stack")),
    )


def _gone(handle: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(seconds * 1e3))


def _end_session(leader: int) -> bool:
    """Whether there was anybody left."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _text(path: Path, most: int = 1 << 20) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return file.read(most).decode("utf-8", "replace")


def _child(work: Callable[[], str], folder: Path, said: Path, limits: Limits) -> None:
    """Never returns."""
    status = 1
    try:
        os.setsid()
        atexit._clear()
        os.chdir(folder)
        _confine(limits)
        _streams(said)
        stack = (said / "stack").open("w")
        faulthandler.enable(stack)
        faulthandler.register(WHERE, stack, all_threads=True)
        status = _status_of(work, said / "note")
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    finally:
        os._exit(status)


def _confine(limits: Limits) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    seconds = int(limits.seconds + limits.farewell) + 2
    for what, most in (
        (resource.RLIMIT_AS, pages * resource.getpagesize() + limits.memory),
        (resource.RLIMIT_FSIZE, limits.disk),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))


def _streams(said: Path) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(said / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        os.dup2(file, number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (open(n, "w", buffering=1, encoding="utf-8", closefd=False) for n in (1, 2))  # noqa: SIM115
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]


def _status_of(work: Callable[[], str], note: Path) -> int:
    try:
        fault = work()
    except SystemExit as left:
        return left.code & 255 if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    if not fault:
        return 0
    note.write_text(fault, encoding="utf-8")
    return FAULT


#: Of a file: its kind and permissions, and a digest of what is in it (of a link, where it points).
State = dict[str, tuple[int, str]]
#: Files with more bytes than these are known by their size and time alone: they are sparse.
READ = 64 << 20


def state(folder: Path) -> State:
    """All that is in a folder, by relative name."""
    found: State = {}
    for here, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(here, name)
            about = path.lstat()
            found[str(path.relative_to(folder))] = (about.st_mode, _digest(path, about))
    return found


def _digest(path: Path, about: os.stat_result) -> str:
    if stat.S_ISLNK(about.st_mode):
        return os.readlink(path)
    if not stat.S_ISREG(about.st_mode):
        return ""
    if about.st_size > READ:
        return f"{about.st_size} {about.st_mtime_ns}"
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def size(folder: Path) -> int:
    """Bytes that a folder takes of the disk."""
    return sum(
        Path(here, name).lstat().st_blocks * 512
        for here, folders, files in os.walk(folder)
        for name in (*folders, *files)
    )
