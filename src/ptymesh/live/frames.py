"""Frames as sources give them, and how a source is asked for them.

n       frames of an answer
H, W    detector pixels
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.live.positions import PositionSource
from ptymesh.live.spool import StreamDescription

#: Frames of an answer, at most.
MOST = 256
#: Largest port of TCP.
LAST_PORT = 65535


class Frames(NamedTuple):
    """Frames that a source has given.

    Attributes:
        frames: (n, H, W).
        positions_m: (n, 2) float64, y x; None where they come from elsewhere, or as samples.
        ended: True if no frames will follow these.
        numbers: (n,) int64, of the frames in the detector's count; None: those asked for and what follows.
        times_s: (n,) float64, when the exposure of each frame began; None where that is not known.
        samples: (m, 3) float64, t y x: positions at a rate of their own that follow those given before.
        lacking: number of the frames of the same file that are kept back, as they have no positions so far.
    """

    frames: np.ndarray
    positions_m: np.ndarray | None
    ended: bool
    numbers: np.ndarray | None = None
    times_s: np.ndarray | None = None
    samples: np.ndarray | None = None
    lacking: int = 0


class FrameSource(Protocol):
    """A place where frames come from."""

    def describe(self) -> StreamDescription | None:
        """Return what the source says of its frames, None while it does not answer."""

    def take(self, first: int) -> Frames | None:
        """Return frames from number `first` on, None while the source does not answer.

        Args:
            first: number of frames that have been stored; a source that cannot go back gives those that come next.
        """

    def close(self) -> None:
        """Let go of the source."""


class FrameClock(NamedTuple):
    """Times of frames on the clock of positions that come at a rate of their own.

    Attributes:
        start_s: time of the first frame; where frames have times, what is added to them.
        period_s: seconds from frame to frame; None: as the source says.
        exposure_s: seconds over which a frame's position is averaged; None: as the source says.
    """

    start_s: float = 0.0
    period_s: float | None = None
    exposure_s: float | None = None

    def exposure_of(self, description: StreamDescription) -> float:
        """Return the seconds over which a position is averaged, 0 where nobody says any."""
        return (description.exposure_s or 0.0) if self.exposure_s is None else self.exposure_s

    def times_of(self, numbers: np.ndarray, own_s: np.ndarray | None, description: StreamDescription) -> np.ndarray:
        """Return the times (n,) float64 of frames, NaN where nobody knows them.

        Args:
            numbers: (n,) int64, of the frames in the detector's count.
            own_s: (n,) their own times, if they have any.
            description: what the source says of its frames.
        """
        period = description.frame_period_s if self.period_s is None else self.period_s
        if self.period_s is None and own_s is not None:
            return self.start_s + own_s
        return np.full(len(numbers), np.nan) if period is None else self.start_s + period * numbers


class ApartStream(NamedTuple):
    """Stream whose positions come apart from its frames, or at a rate of their own.

    Attributes:
        frames: source of the frames.
        positions: source of the positions; None: the frames bring them, or samples.
        clock: times of the frames, where positions have times.
    """

    frames: FrameSource
    positions: PositionSource | None
    clock: FrameClock = FrameClock()


def zmq_module() -> Any:
    """Return the package zmq; raise BadInput where it is not installed."""
    try:
        import zmq
    except ImportError as error:
        raise BadInput("Streams over ZeroMQ need pyzmq; install ptymesh[live].") from error
    return zmq


def check_port(address: str, text: str) -> None:
    """Check that an address over TCP has a port that can be: ZeroMQ takes 99999 for 34463.

    Args:
        address: tcp://HOST:PORT, or one over another transport, of which nothing is checked.
        text: the address as the user wrote it, for the message.

    Raises:
        BadInput: it has none, or one that is too large.
    """
    port = address.rpartition(":")[2]
    is_port = port == "*" or (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= LAST_PORT)
    if address.startswith("tcp://") and not is_port:
        scheme = text.split(":")[0]
        raise BadInput(
            f"{text} has no port up to {LAST_PORT}; give {scheme}://HOST:PORT, such as {scheme}://127.0.0.1:5599."
        )
