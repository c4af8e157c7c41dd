"""Runs that the page has started again: `ptymesh resume` of a folder, and nothing else."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from typing import IO

from ptymesh.distributed.child import PARENT
from ptymesh.distributed.processes import start_python
from ptymesh.files import machine
from ptymesh.watch.growing import Row
from ptymesh.watch.runs import RunFolder

#: States of a run that can go on, and those of one that can go on for longer.
STOPPED, LONGER = ("interrupted", "silent"), ("interrupted", "silent", "done")
#: Most epochs that can be asked for.
MOST_EPOCHS = 1_000_000
#: Characters of what a run that could not be started has said.
SAID = 500


class ResumedRuns:
    """Processes that were started to go on with runs, which outlive the page."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._said: dict[str, str] = {}
        self._lock = threading.Lock()

    def start(self, run: RunFolder, epochs: int | None) -> None:
        """Go on with a run from its checkpoint on this machine, in processes of its own.

        They are as many as they were if all were on this machine, else one: the result is the same.

        Args:
            run: that was stopped.
            epochs: of its last stage, if they are to be others; None: those of its recipe.

        Raises:
            ValueError: the run goes on, has no checkpoint, or the epochs are none.
            OSError: the process cannot be started.
        """
        if epochs is not None and not 1 <= epochs <= MOST_EPOCHS:
            raise ValueError(f"the number of epochs has to lie between 1 and {MOST_EPOCHS}")
        words = [] if epochs is None else ["--set", f"stages.{run.last_stage()}.epochs={epochs}"]
        words += _rank_words(run.status())
        with self._lock:
            state = run.summary()["state"]
            if state not in (STOPPED if epochs is None else LONGER) or self.is_alive(run.id):
                raise ValueError(f"the run {run.name} is {'running' if self.is_alive(run.id) else state}")
            if not run.can_resume():
                raise ValueError(f"the run {run.name} has no checkpoint to go on from")
            # no pipe, which would end with the page while the run still writes
            errors = tempfile.TemporaryFile()  # noqa: SIM115 - the thread below closes it
            try:
                process = start_python(
                    "-m",
                    "ptymesh",
                    "resume",
                    str(run.folder.absolute()),
                    *words,
                    environment={PARENT: ""},  # it goes on when the page ends
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    start_new_session=True,
                )
            except BaseException:
                errors.close()
                raise
            self._processes[run.id] = process
            self._said.pop(run.id, None)
        threading.Thread(target=self._wait, args=(run.id, process, errors), daemon=True).start()

    def is_alive(self, run_id: str) -> bool:
        """Return True while the process that was started for a run is there."""
        process = self._processes.get(run_id)
        return process is not None and process.poll() is None

    def last_words(self, run_id: str) -> str | None:
        """Return the end of what a process has said that could not go on; None if there is nothing to say."""
        return self._said.get(run_id)

    def _wait(self, run_id: str, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        """Wait for the end of a process, and keep what it has said last unless it is done or was stopped."""
        with errors:
            if process.wait() not in (0, 75):
                errors.seek(max(0, errors.seek(0, os.SEEK_END) - SAID))
                self._said[run_id] = errors.read().decode("utf-8", errors="replace").strip()


def _rank_words(status: Row) -> list[str]:
    """Return the option for as many ranks as a run had, empty where it was one or where they were elsewhere.

    Args:
        status: of the run, which names the machine of its first rank.
    """
    ranks = status.get("ranks")
    if status.get("machine") != machine() or not isinstance(ranks, int) or not 1 < ranks <= (os.cpu_count() or 1):
        return []
    return ["--ranks", str(ranks)]
