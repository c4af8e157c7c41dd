"""Worker processes of this machine: how they are started, watched and told to stop."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import time
from pathlib import Path

from ptymesh.distributed.child import LAUNCHER
from ptymesh.distributed.processes import start_python
from ptymesh.errors import Interrupted, PtymeshError
from ptymesh.launcher.device_shares import Share

#: How often a worker that was killed is replaced: what kills it may be in the data, or the machine's want of memory.
REPLACED = 3
#: Seconds that workers get to leave, once told to.
STOP_S = 60.0


class WorkerProcesses:
    """Worker processes of a study in `folder`, one for each share; those that are killed are replaced for a while.

    Attributes:
        logs: folder of what they print.
        statuses: of those that ended by themselves, or were killed once too often, by place.
    """

    def __init__(self, folder: Path, shares: list[Share]) -> None:
        self.folder, self.shares = folder, shares
        self.logs = folder / "workers"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.statuses: dict[int, int] = {}
        self._replacements = dict.fromkeys(range(len(shares)), REPLACED)
        self._running = {place: self._start(place) for place in range(len(shares))}

    def any_running(self) -> bool:
        """Return True while one works; replace those that were killed."""
        for place, process in list(self._running.items()):
            status = process.poll()
            if status is not None:
                del self._running[place]
                if status < 0 and self._replacements[place]:
                    self._replacements[place] -= 1
                    self._running[place] = self._start(place)
                else:
                    self.statuses[place] = status
        return bool(self._running)

    def close(self) -> None:
        """Tell all to stop between two batches, and end those that do not in time."""
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        end = time.monotonic() + STOP_S
        for process in self._running.values():
            try:
                process.wait(timeout=max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()

    def raise_if_any_failed(self) -> None:
        """Raise PtymeshError where a worker failed, with what it said last."""
        for place, status in self.statuses.items():
            if status not in (0, Interrupted.exit_status):
                lines = self._log(place).read_text(encoding="utf-8", errors="replace").split("\n")
                last_line = next((line for line in reversed(lines) if line.strip()), "nothing").removeprefix(
                    "ptymesh: "
                )
                raise PtymeshError(f"Worker {place} ended with status {status} ({last_line}); see {self._log(place)}.")

    def _start(self, place: int) -> subprocess.Popen[bytes]:
        share = self.shares[place]
        with self._log(place).open("ab") as log:
            return start_python(
                "-m",
                "ptymesh.tune.worker",
                str(self.folder),
                share.device,
                share.name,
                environment={**share.environment, LAUNCHER: str(os.getpid())},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us, and we pass it on
            )

    def _log(self, place: int) -> Path:
        return self.logs / f"{platform.node()}-{place}.txt"
