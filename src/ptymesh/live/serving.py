"""Scans that are played as a detector would send them, for trials of `ptymesh live`."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.live.dectris import Encoder
from ptymesh.live.frames import check_port, zmq_module
from ptymesh.live.spool import StreamDescription
from ptymesh.measurement import Measurement

if TYPE_CHECKING:
    import zmq


class Played(NamedTuple):
    """Frames that are played.

    Attributes:
        description: of the frames.
        frames: (N, H, W), with DC in the middle where the field is far.
        positions_m: (N, 2) float64, y x.
    """

    description: StreamDescription
    frames: np.ndarray
    positions_m: np.ndarray


def read_scan(measurement: Measurement) -> Played:
    """Return the frames of a scan, all in memory, so that the rate is that of the stream and not of a disk.

    Raises:
        BadInput: the scan has no lengths.
    """
    geometry = measurement.geometry
    pixel = geometry.object_pixel_m
    if pixel is None:
        raise BadInput(f"{measurement.name} has no object pixel in metres; a stream needs positions in metres.")
    dtype = np.dtype(measurement.patterns.dtype).newbyteorder("<")
    description = StreamDescription(
        measurement.window,
        dtype.str,
        radiation=geometry.radiation,
        distance_m=geometry.distance_m,
        detector_pixel_m=geometry.detector_pixel_m,
        energy_eV=geometry.energy_eV,
        views=measurement.views,
    )
    frames = measurement.patterns.read(np.arange(measurement.views))
    if geometry.propagation == "far_field":
        frames = np.fft.fftshift(frames, axes=(-2, -1))
    positions = np.ascontiguousarray(measurement.positions * np.array(pixel), "<f8")
    return Played(description, np.ascontiguousarray(frames, dtype), positions)


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
    zmq, played = zmq_module(), read_scan(measurement)
    context = zmq.Context()
    socket = context.socket(zmq.REP)
    socket.setsockopt(zmq.LINGER, 1000)
    try:
        _bind(socket, address)
        if served is not None:
            served.append(socket.getsockopt_string(zmq.LAST_ENDPOINT))
        _answer(socket, played, rate)
    finally:
        socket.close()
        context.term()


def _parse_request(request: bytes) -> tuple[int, int]:
    """Return from which number on, and how many frames at most, a request asks for; none where it is no request."""
    fields: object = None
    with suppress(ValueError):
        fields = json.loads(request)
    if not isinstance(fields, dict):
        return 0, 0
    first, most = fields.get("next"), fields.get("most")
    return (first, most) if isinstance(first, int) and isinstance(most, int) and first >= 0 <= most else (0, 0)


def _answer(socket: zmq.Socket[bytes], played: Played, rate: float) -> None:
    """Answer requests until all frames were given.

    Args:
        socket: a REP socket.
        played: the frames.
        rate: frames per second.
    """
    began, (description, frames, positions), total = None, played, len(played.frames)
    while True:
        first, most = _parse_request(socket.recv())
        if most and began is None:
            began = time.monotonic() - first / rate
        played_count = 0 if began is None else min(total, int((time.monotonic() - began) * rate))
        last = max(first, min(played_count, first + most))
        head = {
            "first": first,
            "count": last - first,
            "ended": bool(most) and last == total,
            "stream": asdict(description),
        }
        socket.send_multipart(
            [json.dumps(head).encode(), frames[first:last].tobytes(), positions[first:last].tobytes()]
        )
        if most and first >= total:  # all frames have been stored
            return


def serve_dectris(
    measurement: Measurement, address: str, rate: float, positions: Path, served: list[str] | None = None
) -> None:
    """Send the views of a scan as a detector does that speaks Dectris' Stream V2, and their positions to a file.

    The clock starts once somebody is there to receive. Returns when all has been handed over.

    Args:
        measurement: the scan; far-field patterns are given with DC in the middle.
        address: of the PUSH socket, such as tcp://127.0.0.1:31001.
        rate: frames per second.
        positions: text file that positions are appended to, one line after each frame.
        served: the address that was bound is appended.

    Raises:
        BadInput: the address cannot be bound, or the scan has no lengths.
    """
    zmq, played = zmq_module(), read_scan(measurement)
    encoder = Encoder(played.description)
    context = zmq.Context()
    socket = context.socket(zmq.PUSH)
    socket.setsockopt(zmq.LINGER, 60_000)
    try:
        _bind(socket, address)
        if served is not None:
            served.append(socket.getsockopt_string(zmq.LAST_ENDPOINT))
        with positions.open("w", encoding="utf-8") as file:
            socket.send(encoder.start())  # waits for a receiver
            began = time.monotonic()
            for k, (frame, (y, x)) in enumerate(zip(played.frames, played.positions_m.tolist(), strict=True)):
                time.sleep(max(0.0, began + k / rate - time.monotonic()))
                socket.send(encoder.image(k, frame))
                file.write(f"{y!r} {x!r}\n")
                file.flush()
            socket.send(encoder.end())
    finally:
        socket.close()
        context.term()


def _bind(socket: zmq.Socket[bytes], address: str) -> None:
    """Bind a socket; raise BadInput where that cannot be."""
    import zmq

    check_port(address, address)
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        raise BadInput(
            f"{address} cannot be used for a stream ({error}); give another one, such as tcp://127.0.0.1:5599."
        ) from error
