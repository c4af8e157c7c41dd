"""Frames that a program hands over, as they come from its own detector.

n       frames that are handed over at a time
H, W    detector pixels
"""

from __future__ import annotations

from threading import Lock

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.live.frames import MOST, Frames
from ptymesh.live.spool import StreamDescription


class HandedFrames:
    """A source of frames that a program fills, from whichever thread; they stay in memory until they are on disk.

    To go on with an earlier run, hand over its frames again from the first, or say how many were handed over.

    Args:
        description: of the frames.
        first: number of frames that an earlier run with the same folder was given.
    """

    def __init__(self, description: StreamDescription, first: int = 0) -> None:
        self._description, self._first, self._ended = description, first, False
        self._frames: list[np.ndarray] = []
        self._positions: list[np.ndarray] = []
        self._lock = Lock()

    def hand(self, frames: np.ndarray, positions_m: np.ndarray) -> None:
        """Hand over the frames that come next; they are copied.

        Args:
            frames: (n, H, W) of the description's type, as the detector stores them.
            positions_m: (n, 2), y x.

        Raises:
            BadInput: they are not of this stream, or it has been ended.
        """
        shape, dtype = self._description.shape, np.dtype(self._description.dtype)
        if frames.ndim != 3 or frames.shape[1:] != shape or frames.dtype != dtype:
            raise BadInput(
                f"Frames are {frames.shape} {frames.dtype}; they must be (n, {shape[0]}, {shape[1]}) {dtype}."
            )
        places = np.array(positions_m, np.float64)
        if places.shape != (len(frames), 2):
            raise BadInput(f"Positions of {len(frames)} frames must be ({len(frames)}, 2), not {places.shape}.")
        if not np.isfinite(places).all():
            raise BadInput("Some positions of these frames are not finite numbers; hand over only views with a place.")
        own_copy = frames.copy()
        with self._lock:
            if self._ended:
                raise BadInput("Frames come after the stream has been ended; end it when all are handed over.")
            self._frames.extend(own_copy)
            self._positions.extend(places)

    def end(self) -> None:
        """Say that no frames will follow."""
        with self._lock:
            self._ended = True

    def describe(self) -> StreamDescription:
        """Return what the program says of its frames."""
        return self._description

    def take(self, first: int) -> Frames:
        """Return frames from number `first` on, and let go of those before it, which have been stored.

        Args:
            first: number of frames that have been stored.

        Raises:
            BadInput: the frames of that number were never handed over to this source.
        """
        with self._lock:
            if first < self._first:
                raise BadInput(
                    f"Frames are handed over from number {self._first} on, and the run's folder holds {first}; begin "
                    f"with number {first}."
                )
            stored = min(first - self._first, len(self._frames))
            del self._frames[:stored], self._positions[:stored]
            self._first += stored
            missing = first - self._first
            count_given = 0 if missing else min(len(self._frames), MOST)
            frames = np.array(self._frames[:count_given], self._description.dtype).reshape(
                count_given, *self._description.shape
            )
            positions = np.array(self._positions[:count_given]).reshape(count_given, 2)
            return Frames(frames, positions, self._ended and count_given == len(self._frames))

    def close(self) -> None:
        """Do nothing: what has not been stored stays with the program."""
