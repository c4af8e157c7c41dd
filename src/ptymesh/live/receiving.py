"""A thread that moves frames from a source to the spool, so that the source never waits for the reconstruction."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np

from ptymesh.errors import PtymeshError
from ptymesh.live.sources import FrameSource
from ptymesh.live.spool import Spool

#: Seconds between two requests where no frames have come.
POLL_S = 0.01
#: Seconds without an answer before that is said.
SILENT_S = 5.0


class Receiver:
    """Moves frames from a source to a spool until the source has ended.

    Args:
        source: of the frames.
        folder: of the spool; frames that it holds are not asked for again.
    """

    def __init__(self, source: FrameSource, folder: Path) -> None:
        self._source, self._folder = source, folder
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="frames", daemon=True)
        #: The spool, once the source has described its frames.
        self.spool: Spool | None = None
        #: True once all frames of the stream are in the spool.
        self.ended = False
        #: Error that ended the thread.
        self.failure: Exception | None = None
        #: Number of frames that had arrived, and the time (time.monotonic) when they had.
        self.arrivals: list[tuple[int, float]] = []
        #: Time of the last answer.
        self.heard = time.monotonic()

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._source.close()

    @property
    def silent_s(self) -> float:
        """Seconds since the source has last answered."""
        return time.monotonic() - self.heard

    def check(self) -> None:
        """Raise the error that ended the thread, if one did."""
        if self.failure is not None:
            raise self.failure

    def arrival_times(self, views: np.ndarray) -> np.ndarray:
        """Return when these frames arrived (time.monotonic), NaN for those of an earlier process.

        Args:
            views: (n,) numbers of frames.
        """
        known = list(self.arrivals)
        if not known:
            return np.full(len(views), np.nan)
        counts, times = np.array([c for c, _ in known]), np.array([t for _, t in known])
        place = np.searchsorted(counts, views, side="right")
        return np.where((views >= counts[0]) & (place < len(counts)), times[np.minimum(place, len(times) - 1)], np.nan)

    def _run(self) -> None:
        try:
            if (self._folder / "stream.json").exists() and (spool := Spool(self._folder)).has_ended:
                self.arrivals.append((spool.count, time.monotonic()))
                self.spool, self.ended = spool, True
            while not self._stopping.is_set() and not self.ended:
                if not self._step():
                    self._stopping.wait(POLL_S)
        except (PtymeshError, OSError) as error:
            self.failure = error

    def _step(self) -> bool:
        """Ask the source once; return True if frames have come."""
        if self.spool is None:
            said = self._source.describe()
            if said is None:
                return False
            spool = Spool(self._folder, said)
            self.arrivals.append((spool.count, time.monotonic()))
            self.spool = spool
        count = self.spool.count
        got = self._source.take(count)
        if got is None:
            return False
        self.heard = time.monotonic()
        if len(got.frames):
            self.spool.append(got.frames, got.positions_m)
            self.arrivals.append((count + len(got.frames), self.heard))
            return True
        if got.ended:
            self.spool.mark_ended()
            self.ended = True
        return False
