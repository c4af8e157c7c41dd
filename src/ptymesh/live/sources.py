"""Sources of frames: programs that answer over ZeroMQ, and HDF5 files that grow while they are read.

n       frames of an answer
H, W    detector pixels

A source is asked for frames behind those that are already on disk, so that nothing is lost where either side dies.

Over ZeroMQ (REQ to REP) a request is JSON, {"next": k, "most": n}, and the answer three parts:

    JSON            {"first": k, "count": n, "ended": false, "stream": {shape, dtype, ...}} (StreamDescription)
    frames          (n, H, W), C order
    positions       (n, 2) float64, little-endian, y x in metres

Where positions come at a rate of their own, the request says from which one on, {"sample": j}, the answer how many it
holds, {"samples": m}, and its third part is

    samples         (m, 3) float64, t y x in seconds and metres
    times           (n,) float64, a fourth part, where the frames have times of their own

An answer may hold fewer frames than asked for, or none. A source keeps frames until a later request shows that they
have been stored, and all samples, which are asked for from the first one on by a receiver that is started again.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ptymesh.errors import BadInput
from ptymesh.live.dectris import DectrisSource
from ptymesh.live.folder import FramesFolder
from ptymesh.live.frames import MOST, Frames, FrameSource, check_port, zmq_module
from ptymesh.live.positions import open_hdf5
from ptymesh.live.spool import NUMBER_BYTES, POSITION_BYTES, Spool, StreamDescription
from ptymesh.live.state import LOG, read_log

#: Seconds that an answer may take before the request is sent again.
ANSWER_S = 1.0
#: Bytes of a sample of a position with its time.
SAMPLE_BYTES = 24


def open_source(address: str, patterns: str = "/patterns", positions: str | None = "/positions") -> FrameSource:
    """Return the source at an address.

    Args:
        address: tcp://HOST:PORT, ipc://PATH, dectris://HOST:PORT, the path of an HDF5 file that grows, a folder in
            which files of frames arrive, or that of an earlier live run, which has a spool.
        patterns: dataset of the patterns (N, H, W), of HDF5 files.
        positions: dataset of the positions (N, 2), y x in metres, of HDF5 files; None: they come from elsewhere.

    Raises:
        BadInput: it is neither.
    """
    if address.startswith(("tcp://", "ipc://")):
        return ZmqSource(address, with_positions=positions is not None)
    if address.startswith("dectris://"):
        if positions is not None:
            raise BadInput(f"{address} sends no positions; name the file that they come to with --positions-from.")
        return DectrisSource(address)
    if "://" in address:
        raise BadInput(
            f"--from is {address}; give tcp://HOST:PORT, ipc://PATH, dectris://HOST:PORT, or the path of an HDF5 file "
            "or a folder."
        )
    if re.fullmatch(r"[^/\s]+:\d+", address) and not Path(address).exists():
        raise BadInput(f"--from is {address}, which is no file; of a host and its port give tcp://{address}.")
    if not Path(address).absolute().parent.is_dir():
        raise BadInput(f"--from is {address}, and there is no folder {Path(address).parent}; check the path.")
    if (Path(address) / "spool").is_dir():
        return SpooledStream(Path(address))
    if Path(address).is_dir():
        return FramesFolder(Path(address), patterns, positions)
    return GrowingFile(Path(address), patterns, positions)


class ZmqSource:
    """A program that answers requests for frames over ZeroMQ.

    Args:
        address: of its REP socket.
        with_positions: False where the positions come from elsewhere, and those of the answer are not read.

    Raises:
        BadInput: zmq is not installed, or the address is none.
    """

    def __init__(self, address: str, *, with_positions: bool = True) -> None:
        zmq, self._with_positions = zmq_module(), with_positions
        check_port(address, address)
        self._address, self._context, self._samples = address, zmq.Context(), 0
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
        head, frames, positions, times = answer
        description = StreamDescription.parse(head.get("stream"), self._address)
        count, samples = head.get("count"), head.get("samples")
        rows, row_bytes = (count, POSITION_BYTES) if samples is None else (samples, SAMPLE_BYTES)
        if (
            not isinstance(count, int)
            or not isinstance(rows, int)
            or head.get("first") != first
            or len(frames) != count * description.frame_bytes
            or (self._with_positions and len(positions) != rows * row_bytes)
            or len(times) not in (0, count * NUMBER_BYTES)
        ):
            raise BadInput(
                f"{self._address} answered with {len(frames)} bytes of frames, {len(positions)} of positions and "
                f"{len(times)} of times for {count} frames from {head.get('first')} on, not {first}; it is no source "
                "of frames."
            )
        numbers = np.frombuffer(positions, "<f8") if self._with_positions else None
        self._samples += samples or 0
        return Frames(
            np.frombuffer(frames, description.dtype).reshape(count, *description.shape),
            None if numbers is None or samples is not None else numbers.reshape(count, 2),
            head.get("ended") is True,
            times_s=np.frombuffer(times, "<f8") if times else None,
            samples=None if numbers is None or samples is None else numbers.reshape(samples, 3),
        )

    def _ask(self, first: int, most: int) -> tuple[dict[str, Any], bytes, bytes, bytes] | None:
        """Return the parts of an answer, None if there is none in time; raise BadInput for another answer."""
        zmq = zmq_module()
        self._socket.send_json({"next": first, "most": most, "sample": self._samples})
        try:
            parts = self._socket.recv_multipart()
        except zmq.Again:
            return None
        head: object = None
        with suppress(ValueError):
            head = json.loads(parts[0])
        if len(parts) not in (3, 4) or not isinstance(head, dict):
            raise BadInput(f"{self._address} answered in {len(parts)} parts; it is no source of frames.")
        return head, parts[1], parts[2], parts[3] if len(parts) == 4 else b""

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
        positions: dataset of the positions, (N, 2), y x in metres; None: they come from elsewhere.
    """

    def __init__(self, path: Path, patterns: str, positions: str | None) -> None:
        self._path, self._patterns, self._positions = path, patterns, positions

    def describe(self) -> StreamDescription | None:
        """Return shape and type of the patterns, None while the file is not there.

        Raises:
            BadInput: a dataset is missing or of another shape.
        """
        with open_hdf5(self._path) as file:
            return None if file is None else self._description(file)

    def take(self, first: int) -> Frames | None:
        """Return frames from number `first` on, None while the file cannot be read."""
        with open_hdf5(self._path) as file:
            if file is None:
                return None
            self._description(file)
            patterns = file[self._patterns]
            positions = None if self._positions is None else file[self._positions]
            ended = bool(patterns.attrs.get("ended", False))  # before the length: nothing is appended after it
            count = len(patterns) if positions is None else min(len(patterns), len(positions))
            last = min(count, first + MOST)
            positions_m = None if positions is None else np.asarray(positions[first:last], np.float64)
            lacking = len(patterns) - count
            return Frames(patterns[first:last], positions_m, ended and last == count, lacking=lacking)

    def _description(self, file: h5py.File) -> StreamDescription:
        for name, axes in ((self._patterns, 3), (self._positions, 2)):
            if name is not None and (not isinstance(file.get(name), h5py.Dataset) or file[name].ndim != axes):
                raise BadInput(
                    f"{self._path} has no dataset {name} of {axes} axes; name the patterns (N, H, W) with --patterns "
                    f"and the positions (N, 2) in metres with --positions."
                )
        patterns = file[self._patterns]
        return StreamDescription((patterns.shape[1], patterns.shape[2]), patterns.dtype.str)

    def close(self) -> None:
        """Do nothing: the file is opened for each question."""


class SpooledStream:
    """Frames that an earlier live run has kept.

    Args:
        folder: of that run.

    Raises:
        BadInput: it holds no frames.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._spool = folder, Spool(folder / "spool")

    def describe(self) -> StreamDescription | None:
        """Return what the spool says of its frames."""
        return self._spool.description

    def take(self, first: int) -> Frames | None:
        """Return frames from number `first` on."""
        last = min(first + MOST, self._spool.count)
        positions = self._spool.positions(last)[first:]
        return Frames(self._spool.frames(first, last), positions, first == last)

    def admissions(self, uses: int) -> tuple[tuple[int, bool], ...]:
        """Return for each segment of the earlier run the number of frames, and True if none followed.

        Args:
            uses: least number of updates that are to see each view, which the earlier run must have had, too.

        Raises:
            BadInput: it had another one.
        """
        rows = read_log(self._folder / LOG)
        for uses_wanted in {row.get("wanted", uses) for row in rows} - {uses}:
            raise BadInput(f"{self._folder} was made with --uses {uses_wanted}; give the same to replay it.")
        return tuple((int(row["frames"]), bool(row["ended"])) for row in rows)

    def close(self) -> None:
        """Do nothing: files are opened for each question."""
