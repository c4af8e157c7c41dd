"""Sources of frames: programs that answer over ZeroMQ, and HDF5 files that grow while they are read.

n       frames of an answer
H, W    detector pixels

A source is asked for frames behind those that are already on disk, so that nothing is lost where either side dies.

Over ZeroMQ (REQ to REP) a request is JSON, {"next": k, "most": n}, and the answer three parts:

    JSON            {"first": k, "count": n, "ended": false, "stream": {shape, dtype, ...}} (StreamDescription)
    frames          (n, H, W), C order
    positions       (n, 2) float64, little-endian, y x in metres

An answer may hold fewer frames than asked for, or none. A source keeps frames until a later request shows that they
have been stored.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import h5py
import numpy as np

from ptymesh.errors import BadInput
from ptymesh.live.spool import StreamDescription
from ptymesh.measurement import Measurement

if TYPE_CHECKING:
    import zmq

#: Seconds that an answer may take before the request is sent again.
ANSWER_S = 1.0
#: Frames of an answer, at most.
MOST = 256


class Frames(NamedTuple):
    """Frames that a source has given.

    Attributes:
        frames: (n, H, W).
        positions_m: (n, 2) float64, y x.
        ended: True if no frames will follow these.
    """

    frames: np.ndarray
    positions_m: np.ndarray
    ended: bool


class FrameSource(Protocol):
    """A place where frames come from."""

    def describe(self) -> StreamDescription | None:
        """Return what the source says of its frames, None while it does not answer."""

    def take(self, first: int) -> Frames | None:
        """Return frames from number `first` on, None while the source does not answer."""

    def close(self) -> None:
        """Let go of the source."""


def open_source(address: str, patterns: str = "/patterns", positions: str = "/positions") -> FrameSource:
    """Return the source at an address.

    Args:
        address: tcp://HOST:PORT, ipc://PATH, or the path of an HDF5 file that grows.
        patterns: dataset of the patterns (N, H, W), of a file.
        positions: dataset of the positions (N, 2), y x in metres, of a file.

    Raises:
        BadInput: it is neither.
    """
    if address.startswith(("tcp://", "ipc://")):
        return ZmqSource(address)
    if "://" in address:
        raise BadInput(f"--from is {address}; give tcp://HOST:PORT, ipc://PATH, or the path of an HDF5 file.")
    return GrowingFile(Path(address), patterns, positions)


def zmq_module() -> Any:
    """Return the package zmq; raise BadInput where it is not installed."""
    try:
        import zmq
    except ImportError as error:
        raise BadInput("Streams over ZeroMQ need pyzmq; install ptymesh[live].") from error
    return zmq


class ZmqSource:
    """A program that answers requests for frames over ZeroMQ.

    Args:
        address: of its REP socket.

    Raises:
        BadInput: zmq is not installed, or the address is none.
    """

    def __init__(self, address: str) -> None:
        zmq = zmq_module()
        self._address, self._context = address, zmq.Context()
        self._socket = self._context.socket(zmq.REQ)
        for option, value in ((zmq.REQ_RELAXED, 1), (zmq.REQ_CORRELATE, 1), (zmq.LINGER, 0)):
            self._socket.setsockopt(option, value)
        self._socket.setsockopt(zmq.RCVTIMEO, int(1000 * ANSWER_S))
        try:
            self._socket.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise BadInput(f"--from is {address}, which is no address ({error}); give tcp://HOST:PORT.") from error

    def describe(self) -> StreamDescription | None:
        """Return what the source says of its frames, None while it does not answer."""
        answer = self._ask(0, 0)
        return None if answer is None else StreamDescription.parse(answer[0].get("stream"), self._address)

    def take(self, first: int) -> Frames | None:
        """Return frames from number `first` on, None while the source does not answer.

        Raises:
            BadInput: the answer is none.
        """
        answer = self._ask(first, MOST)
        if answer is None:
            return None
        head, frames, positions = answer
        said = StreamDescription.parse(head.get("stream"), self._address)
        count = head.get("count")
        if (
            not isinstance(count, int)
            or head.get("first") != first
            or len(frames) != count * said.frame_bytes
            or len(positions) != count * 16
        ):
            raise BadInput(
                f"{self._address} answered with {len(frames)} bytes of frames and {len(positions)} of positions for "
                f"{count} frames from {head.get('first')} on, not {first}; it is no source of frames."
            )
        return Frames(
            np.frombuffer(frames, said.dtype).reshape(count, *said.shape),
            np.frombuffer(positions, "<f8").reshape(count, 2),
            head.get("ended") is True,
        )

    def _ask(self, first: int, most: int) -> tuple[dict[str, Any], bytes, bytes] | None:
        """Return the three parts of an answer, None if there is none in time; raise BadInput for another answer."""
        zmq = zmq_module()
        self._socket.send_json({"next": first, "most": most})
        try:
            parts = self._socket.recv_multipart()
        except zmq.Again:
            return None
        head: object = None
        with suppress(ValueError):
            head = json.loads(parts[0])
        if len(parts) != 3 or not isinstance(head, dict):
            raise BadInput(f"{self._address} answered in {len(parts)} parts; it is no source of frames.")
        return head, parts[1], parts[2]

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()
        self._context.term()


class GrowingFile:
    """An HDF5 file to which another program appends, in HDF5's SWMR mode or by closing it after each write.

    The stream has ended once the file says so: attribute `ended` of the patterns is true.

    Args:
        path: of the file, which may come later.
        patterns: dataset of the patterns, (N, H, W).
        positions: dataset of the positions, (N, 2), y x in metres.
    """

    def __init__(self, path: Path, patterns: str, positions: str) -> None:
        self._path, self._patterns, self._positions = path, patterns, positions

    def describe(self) -> StreamDescription | None:
        """Return shape and type of the patterns, None while the file is not there.

        Raises:
            BadInput: a dataset is missing or of another shape.
        """
        with self._opened() as file:
            return None if file is None else self._description(file)

    def take(self, first: int) -> Frames | None:
        """Return frames from number `first` on, None while the file cannot be read."""
        with self._opened() as file:
            if file is None:
                return None
            self._description(file)
            patterns, positions = file[self._patterns], file[self._positions]
            ended = bool(patterns.attrs.get("ended", False))  # before the length: nothing is appended after it
            count = min(len(patterns), len(positions))
            last = min(count, first + MOST)
            return Frames(patterns[first:last], np.asarray(positions[first:last], np.float64), ended and last == count)

    def _description(self, file: h5py.File) -> StreamDescription:
        for name, axes in ((self._patterns, 3), (self._positions, 2)):
            if not isinstance(file.get(name), h5py.Dataset) or file[name].ndim != axes:
                raise BadInput(
                    f"{self._path} has no dataset {name} of {axes} axes; name the patterns (N, H, W) with --patterns "
                    f"and the positions (N, 2) in metres with --positions."
                )
        patterns = file[self._patterns]
        return StreamDescription((patterns.shape[1], patterns.shape[2]), patterns.dtype.str)

    @contextmanager
    def _opened(self) -> Iterator[h5py.File | None]:
        """Open the file for reading, yielding None while that is not possible."""
        file = None
        for swmr in (True, False):
            with suppress(OSError, ValueError):
                file = h5py.File(self._path, "r", swmr=swmr, locking=False)
                break
        try:
            yield file
        finally:
            if file is not None:
                file.close()

    def close(self) -> None:
        """Do nothing: the file is opened for each question."""


def serve_scan(measurement: Measurement, address: str, rate: float, served: list[str] | None = None) -> None:
    """Answer requests for the views of a scan, as a detector of `rate` frames a second would have them.

    The clock starts with the first request for frames. Returns when a request shows that all frames have been stored.

    Args:
        measurement: the scan; far-field patterns are given with DC in the middle.
        address: of the REP socket, such as tcp://127.0.0.1:5599.
        rate: frames per second.
        served: the address that was bound is appended.

    Raises:
        BadInput: the address cannot be bound, or the scan has no lengths.
    """
    zmq, geometry = zmq_module(), measurement.geometry
    pixel = geometry.object_pixel_m
    if pixel is None:
        raise BadInput(f"{measurement.name} has no object pixel in metres; a stream needs positions in metres.")
    views, dtype = measurement.views, np.dtype(measurement.patterns.dtype).newbyteorder("<")
    said = StreamDescription(
        measurement.window,
        dtype.str,
        radiation=geometry.radiation,
        distance_m=geometry.distance_m,
        detector_pixel_m=geometry.detector_pixel_m,
        energy_eV=geometry.energy_eV,
        views=views,
    )
    frames = measurement.patterns.read(np.arange(views))  # so that the rate is that of the stream, not of a disk
    if geometry.propagation == "far_field":
        frames = np.fft.fftshift(frames, axes=(-2, -1))
    frames = np.ascontiguousarray(frames, dtype)
    positions = np.ascontiguousarray(measurement.positions * np.array(pixel), "<f8")
    context = zmq.Context()
    socket = context.socket(zmq.REP)
    socket.setsockopt(zmq.LINGER, 1000)
    try:
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            raise BadInput(f"--stream is {address}, which cannot be used ({error}); choose another port.") from error
        if served is not None:
            served.append(socket.getsockopt_string(zmq.LAST_ENDPOINT))
        _answer(socket, said, frames, positions, rate)
    finally:
        socket.close()
        context.term()


def _parse_request(request: bytes) -> tuple[int, int]:
    """Return from which number on, and how many frames at most, a request asks for; none where it is no request."""
    asked: object = None
    with suppress(ValueError):
        asked = json.loads(request)
    if not isinstance(asked, dict):
        return 0, 0
    first, most = asked.get("next"), asked.get("most")
    return (first, most) if isinstance(first, int) and isinstance(most, int) and first >= 0 <= most else (0, 0)


def _answer(
    socket: zmq.Socket[bytes], said: StreamDescription, frames: np.ndarray, positions: np.ndarray, rate: float
) -> None:
    """Answer requests until all frames were given.

    Args:
        socket: a REP socket.
        said: description of the frames.
        frames: (N, H, W).
        positions: (N, 2) float64, y x in metres.
        rate: frames per second.
    """
    began, total = None, len(frames)
    while True:
        first, most = _parse_request(socket.recv())
        if most and began is None:
            began = time.monotonic() - first / rate
        there = 0 if began is None else min(total, int((time.monotonic() - began) * rate))
        last = max(first, min(there, first + most))
        head = {"first": first, "count": last - first, "ended": bool(most) and last == total, "stream": asdict(said)}
        socket.send_multipart(
            [json.dumps(head).encode(), frames[first:last].tobytes(), positions[first:last].tobytes()]
        )
        if most and first >= total:  # all frames have been stored
            return
