"""A thread that moves frames from a source to the spool, so that the source never waits for the reconstruction."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ptymesh.errors import BadInput, PtymeshError
from ptymesh.live.frames import MOST, ApartStream, FrameSource
from ptymesh.live.positions import GrowingRows, PositionSource, interpolate_positions
from ptymesh.live.spool import Spool

#: Seconds between two requests where the last one has brought all frames that were there: each costs as much as some.
POLL_S = 0.05
#: Seconds without an answer before that is said.
SILENT_S = 5.0


class Receiver:
    """Moves frames from a source to a spool until the source has ended.

    Args:
        source: of the frames, and of positions that come apart from them.
        folder: of the spool; frames that it holds are not asked for again.
        reserve: called with the spool before the source is asked for its first frame.
    """

    def __init__(
        self,
        source: FrameSource | ApartStream,
        folder: Path,
        reserve: Callable[[Spool], None] = lambda spool: None,
    ) -> None:
        stream = source if isinstance(source, ApartStream) else ApartStream(source, None)
        self._source, self._clock, self._folder, self._reserve = stream.frames, stream.clock, folder, reserve
        self._positions: PositionSource | None = stream.positions
        #: Samples of positions that come with the frames, and whether the source has said that nothing follows.
        self._samples, self._has_source_ended = GrowingRows("the stream"), False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="frames", daemon=True)
        #: Number of frames of a file that the source keeps back, as they have no positions.
        self._lacking = 0
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
        self.stop()
        self._thread.join()
        self._source.close()

    def stop(self) -> None:
        """Ask for no more frames; those of a question that is being answered are still kept."""
        self._stopping.set()

    @property
    def count(self) -> int:
        """Number of frames that are in the spool with their positions."""
        return 0 if self.spool is None else self.spool.count

    @property
    def silent_s(self) -> float:
        """Seconds since the source has last answered."""
        return time.monotonic() - self.heard

    @property
    def waiting(self) -> int:
        """Number of frames in the spool that wait for their positions."""
        return 0 if self.spool is None else self.spool.held - self.count

    @property
    def lacking(self) -> int:
        """Number of frames that are known to wait for their positions, in the spool or at the source."""
        return self.waiting + self._lacking

    def check(self) -> None:
        """Raise the error that ended the thread, if one did."""
        if self.failure is not None:
            raise self.failure

    def arrival_times(self, views: np.ndarray) -> np.ndarray:
        """Return when these frames arrived (time.monotonic), NaN for those of an earlier process.

        Args:
            views: (n,) numbers of frames.
        """
        arrivals = list(self.arrivals)
        if not arrivals:
            return np.full(len(views), np.nan)
        counts, times = np.array([c for c, _ in arrivals]), np.array([t for _, t in arrivals])
        place = np.searchsorted(counts, views, side="right")
        return np.where((views >= counts[0]) & (place < len(counts)), times[np.minimum(place, len(times) - 1)], np.nan)

    def _run(self) -> None:
        try:
            # positions that come apart may follow when frames have ended, and a detector describes itself only once
            if (self._folder / "stream.json").exists() and (
                (spool := Spool(self._folder)).has_ended or self._positions is not None
            ):
                self.arrivals.append((spool.held, time.monotonic()))
                self.spool, self.ended = spool, spool.has_ended
            while not self._stopping.is_set() and not self.ended:
                if not self._step():
                    self._stopping.wait(POLL_S)
        except (PtymeshError, OSError) as error:
            self.failure = error

    def _step(self) -> bool:
        """Ask the sources once; return True if more frames are there."""
        if self.spool is None:
            description = self._source.describe()
            if description is None:
                return False
            spool = Spool(self._folder, description)
            self._reserve(spool)
            self.heard = time.monotonic()
            self.arrivals.append((spool.held, time.monotonic()))
            self.spool = spool
        more = self._is_asking(self.spool) and self._take_frames(self.spool)
        if self._positions is not None:
            self._take_positions(self.spool, self._positions)
        if self.spool.have_frames_ended and not self.waiting:
            self.spool.mark_ended()
            self.ended = True
        return more

    def _is_asking(self, spool: Spool) -> bool:
        """Return True while the source of frames has more to give: frames, or the positions that these wait for."""
        bring_positions = self._positions is None or self._positions is self._samples
        return not spool.have_frames_ended or (bring_positions and self.waiting > 0)

    def _take_frames(self, spool: Spool) -> bool:
        """Ask the source of frames once; return True if it has given as many as it may at a time."""
        held_before, got = spool.held, self._source.take(spool.held)
        if got is None:
            return False
        self._lacking = got.lacking
        if len(got.frames) or not got.lacking:
            self.heard = time.monotonic()
        ended = self._has_source_ended = got.ended
        if got.samples is not None:
            self._samples.add(got.samples)
            self._positions = self._positions or self._samples
        if len(got.frames):
            if self._positions is not None:
                numbers = np.arange(held_before, held_before + len(got.frames)) if got.numbers is None else got.numbers
                times = self._clock.times_of(numbers, got.times_s, spool.description)
                spool.append_frames(got.frames, numbers, times)
                # the message of the end may have gone to a process that was killed
                ended |= spool.description.views is not None and int(numbers[-1]) + 1 >= spool.description.views
            else:
                assert got.positions_m is not None
                spool.append(got.frames, got.positions_m)
            if got.numbers is None:
                ended = False  # the source learns from the next question that these have been stored
            self.arrivals.append((held_before + len(got.frames), self.heard))
        if ended:
            spool.mark_frames_ended()
        return len(got.frames) >= MOST

    def _take_positions(self, spool: Spool, source: PositionSource) -> None:
        """Give positions to the frames that wait for them, as far as these are known."""
        numbers = spool.waiting_numbers()
        if not len(numbers):
            return
        positions = source.read()
        if positions.shape[1] == 3:
            exposure = self._clock.exposure_of(spool.description)
            ready = interpolate_positions(positions, spool.waiting_times(), exposure)
        else:
            without_position = np.flatnonzero(numbers >= len(positions))
            ready = positions[numbers[: without_position[0]] if len(without_position) else numbers]
        if len(ready):
            spool.append_positions(ready)
            self.heard = time.monotonic()
        if source is self._samples and self._has_source_ended and self.waiting:
            raise BadInput(
                f"The stream has ended, and its last {self.waiting} frames are later than its last position; send one "
                "at the end of the last exposure, or later."
            )
