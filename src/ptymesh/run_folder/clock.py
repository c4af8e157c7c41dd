"""Time that a run has left."""

from __future__ import annotations

import time

from ptymesh.run_folder.reports import RunInfo


class Clock:
    """Time left, from the batches that remain and the pace of the last epochs."""

    def __init__(self, run: RunInfo) -> None:
        self.per_stage = [(epochs, batches) for _, epochs, batches in run.stages]
        self.total = sum(epochs * batches for epochs, batches in self.per_stage)
        self.done = self._before(run.done_epochs)
        self._began, self._at_start = time.monotonic(), self.done

    def _before(self, epochs: int) -> int:
        """Return the number of batches in the first `epochs` epochs, over all stages."""
        batches_done = 0
        for stage_epochs, batches in self.per_stage:
            batches_done += min(epochs, stage_epochs) * batches
            epochs = max(0, epochs - stage_epochs)
        return batches_done

    def at(self, stage: int, epoch: int, batch: int) -> None:
        """Note that `batch` batches of this epoch of this stage are done.

        Args:
            stage: number of the stage, from 0.
            epoch: number of the epoch within the stage, from 1.
            batch: batches of the epoch that are done.
        """
        earlier = sum(epochs for epochs, _ in self.per_stage[:stage]) + epoch - 1
        self.done = self._before(earlier) + batch

    def left_s(self) -> float | None:
        """Return the seconds to go, None before anything is known."""
        fresh = self.done - self._at_start
        if fresh <= 0:
            return None
        return (time.monotonic() - self._began) / fresh * (self.total - self.done)
