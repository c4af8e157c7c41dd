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
        positions_m: (n, 2) float64, y x; None where they come from elsewhere.
        ended: True if no frames will follow these.
        numbers: (n,) int64, of the frames in the detector's count; None: those asked for and what follows.
    """

    frames: np.ndarray
    positions_m: np.ndarray | None
    ended: bool
    numbers: np.ndarray | None = None


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


class ApartStream(NamedTuple):
    """Stream whose positions come apart from its frames.

    Attributes:
        frames: source of the frames.
        positions: source of the positions.
    """

    frames: FrameSource
    positions: PositionSource


def zmq_module() -> Any:
    """Return the package zmq; raise BadInput where it is not installed."""
    try:
        import zmq
    except ImportError as error:
        raise BadInput("Streams over ZeroMQ need pyzmq; install ptymesh[live].") from error
    return zmq


def check_port(address: str, given: str) -> None:
    """Check that an address over TCP has a port that can be: ZeroMQ takes 99999 for 34463.

    Args:
        address: tcp://HOST:PORT, or one over another transport, of which nothing is checked.
        given: the address as the user wrote it, for the message.

    Raises:
        BadInput: it has none, or one that is too large.
    """
    port = address.rpartition(":")[2]
    is_port = port == "*" or (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= LAST_PORT)
    if address.startswith("tcp://") and not is_port:
        scheme = given.split(":")[0]
        raise BadInput(
            f"{given} has no port up to {LAST_PORT}; give {scheme}://HOST:PORT, such as {scheme}://127.0.0.1:5599."
        )
