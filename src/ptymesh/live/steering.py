"""Word from a live run to those who look at its folder, and what they ask of it there.

The first rank writes out/status.json and looks at out/control, as it does in any run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ptymesh.run_folder.control import Control
from ptymesh.run_folder.reports import StreamReport
from ptymesh.run_folder.status import StatusFile


class Steering:
    """Status of a live run and requests to it, on the first rank; on the others nothing is written or asked.

    Args:
        folder: of the run.
        rank: of this process.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._status = StatusFile() if rank == 0 else None
        self._control = Control(folder) if rank == 0 else None

    @contextmanager
    def publish_status(self, *, followed: bool, command: str) -> Iterator[None]:
        """Write within this context that the run goes on, and at its end how it has ended.

        Args:
            followed: True where another run goes on in the folder.
            command: that goes on with this run; empty where it was not started by one.
        """
        status = self._status
        if status is None:
            yield
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        if command:
            status.say_command(command)
        status.entering("receiving", self._folder)
        try:
            yield
        except BaseException as error:
            status.fail(error)
            raise
        status.end_stream(followed=followed)

    def report(self, report: StreamReport) -> None:
        """Write how far the run is, if it is time."""
        if self._status is not None:
            self._status.follow_stream(report)

    def take_stop(self) -> bool:
        """Return True if the run was asked to stop since this was last called."""
        return self._control is not None and self._control.take_stop()

    def take_save(self) -> bool:
        """Return True if the run was asked for a checkpoint since this was last called."""
        return self._control is not None and self._control.take_save()
