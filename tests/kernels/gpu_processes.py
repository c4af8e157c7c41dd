"""Processes of `make gpu-check`: each with a hard limit, its words in a file, and nothing left of it afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: Seconds that a process has to say where it hangs, before it is killed.
LAST_WORDS_S = 2.0
#: Characters of a file that are looked at from its end.
TAIL = 20_000


@dataclass(frozen=True)
class Ended:
    """A process that is over.

    Attributes:
        status: its exit status; None where it was killed.
        said: the end of what it wrote.
        is_cut: killed because the time for everything was over, not its own.
    """

    status: int | None
    said: str
    is_cut: bool = False


class Processes:
    """All processes of this program, so that none outlives it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._alive: set[subprocess.Popen[bytes]] = set()
        self._over = False

    def run(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        folder: Path,
        limit_s: float,
        until: float,
    ) -> Ended:
        """Run a command to its end, or kill it and all that it started.

        Args:
            command: program and arguments.
            log: file to which all that it writes is appended.
            environment: all of its variables.
            folder: where it works.
            limit_s: seconds after which it is killed.
            until: moment of time.monotonic() at which it is killed, whatever its limit.
        """
        with log.open("ab") as file:
            file.write(f"$ {' '.join(command)}\n".encode())
            file.flush()
            began = file.tell()
            environment = {**environment, "PYTHONFAULTHANDLER": "1"}  # says where it hangs when it gets SIGABRT
            with self._lock:
                if self._over:
                    return Ended(None, "", is_cut=True)
                process = subprocess.Popen(
                    command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                    start_new_session=True,
                )  # fmt: skip
                self._alive.add(process)
            is_cut = until - time.monotonic() < limit_s
            status: int | None = None
            try:
                status = process.wait(max(0.5, min(limit_s, until - time.monotonic())))
            except subprocess.TimeoutExpired:
                kill(process)
            finally:
                with self._lock:
                    self._alive.discard(process)
                    is_cut = is_cut or self._over
            ended = Ended(status, tail(log, began), is_cut and status is None)
            file.write(f"\n[{'killed' if status is None else f'status {status}'}]\n\n".encode())
        return ended

    def end(self) -> None:
        """Kill all that are alive; whatever is started afterwards is over at once."""
        with self._lock:
            self._over = True
            alive = list(self._alive)
        for process in alive:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ask a process where it is, then kill it and all below it; ranks have sessions of their own."""
    import psutil

    below = []
    with suppress(psutil.NoSuchProcess):
        below = psutil.Process(process.pid).children(recursive=True)
    for one in (process, *below):  # one after the other, as they write to the same log
        with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired, ProcessLookupError, subprocess.TimeoutExpired):
            one.send_signal(signal.SIGABRT)
            one.wait(LAST_WORDS_S / (1 + len(below)))
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for child in below:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    process.wait()


def tail(log: Path, start: int = 0) -> str:
    """Return the end of a file, from `start` at the earliest."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(start, size - TAIL))
        return file.read().decode("utf-8", errors="replace")
