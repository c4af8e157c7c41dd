"""Frames that have arrived, on disk: nothing is lost where frames come faster than they are used, or a process dies.

N       frames so far
H, W    detector pixels

A spool is a folder of files, of which frames and positions grow by appending:

    stream.json     shape and type of a frame, and what the source says of beam and detector
    frames.raw      (N, H, W) numbers, in the order of arrival
    positions.raw   (N, 2) float64, y x in metres
    numbers.raw     (N,) int64, numbers of the frames in the detector's count, where positions come apart from them
    times.raw       (N,) float64, when exposures began, in seconds, NaN where that is not known; there likewise
    ended           there once the stream has ended
    frames_ended    there once no more frames come, where positions come apart from them

A frame counts once its position is complete, too: positions are written after their frames. What a process that was
killed had half written is overwritten by the next one.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ptymesh.errors import BadInput, PtymeshError
from ptymesh.files import replacing
from ptymesh.geometry import Radiation
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.source import MappedSource

#: Bytes of a position, and of a number.
POSITION_BYTES, NUMBER_BYTES = 16, 8
#: Bytes that are written at a time: for more, Linux takes large pages, which a virtual machine may have to get from its
#: host, where small ones lie about: 0.02 ms instead of 0.07 for 64 KiB.
WRITE_BYTES = 64 << 10


@dataclass(frozen=True)
class StreamDescription:
    """Frames of a stream, as its source describes them.

    Attributes:
        shape: (H, W).
        dtype: of the numbers, as numpy writes it, such as <u2.
        energy_eV: of photons or electrons; None: not said, likewise below.
        radiation: photon or electron.
        distance_m: from the sample to the detector.
        detector_pixel_m: (y, x).
        views: number of frames that are to come.
        frame_period_s: seconds from frame to frame, the first one at 0.
        exposure_s: seconds of a frame's exposure.
    """

    shape: tuple[int, int]
    dtype: str
    energy_eV: float | None = None
    radiation: Radiation | None = None
    distance_m: float | None = None
    detector_pixel_m: tuple[float, float] | None = None
    views: int | None = None
    frame_period_s: float | None = None
    exposure_s: float | None = None

    @classmethod
    def parse(cls, fields: object, source: str) -> StreamDescription:
        """Return the description that JSON holds.

        Args:
            fields: what was read from the JSON.
            source: for messages.

        Raises:
            BadInput: it is none.
        """
        try:
            known_fields = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}  # type: ignore[operator,index]
            shape, dtype = tuple(int(n) for n in known_fields.pop("shape")), np.dtype(str(known_fields.pop("dtype")))
            pixel = known_fields.pop("detector_pixel_m", None)
            named = ("energy_eV", "distance_m", "frame_period_s", "exposure_s")
            numbers = {name: float(known_fields[name]) for name in named if known_fields.get(name) is not None}
            if min(numbers.get("frame_period_s", 1.0), numbers.get("exposure_s", 1.0)) <= 0:
                raise ValueError("times that are not above 0 s")
            if len(shape) != 2 or min(shape) < 1 or dtype.kind not in "uif" or dtype.hasobject:
                raise ValueError(f"frames of shape {shape} and type {dtype}")
            description = cls(
                shape=(shape[0], shape[1]),
                dtype=dtype.str,
                radiation=known_fields.get("radiation"),
                detector_pixel_m=None if pixel is None else (float(pixel[0]), float(pixel[1])),
                views=None if known_fields.get("views") is None else int(known_fields["views"]),
                **numbers,
            )
        except (TypeError, KeyError, ValueError, IndexError) as error:
            raise BadInput(
                f"{source} describes its frames in a way that is not understood ({error}); it should say shape "
                f"[H, W] and dtype, such as <u2."
            ) from error
        if description.radiation not in (None, "photon", "electron"):
            raise BadInput(f"{source} says radiation {description.radiation}; it should be photon or electron.")
        return description

    @property
    def frame_bytes(self) -> int:
        """Bytes of a frame."""
        return self.shape[0] * self.shape[1] * np.dtype(self.dtype).itemsize


class Spool:
    """The frames of a stream on disk; one process appends to them, any number read them.

    Args:
        folder: where the files are; made if it does not exist.
        description: of the frames; None takes that of the folder.

    Raises:
        BadInput: the folder holds frames of another stream, or none where no description is given.
    """

    def __init__(self, folder: Path, description: StreamDescription | None = None) -> None:
        self.folder, description_path = folder, folder / "stream.json"
        if description_path.exists():
            self.description = StreamDescription.parse(json.loads(description_path.read_text()), str(description_path))
            if description is not None and (description.shape, description.dtype) != (
                self.description.shape,
                self.description.dtype,
            ):
                raise BadInput(
                    f"{folder} holds frames of {self.description.shape} {self.description.dtype}, and these are "
                    f"{description.shape} {description.dtype}; choose another folder with --out."
                )
        elif description is None:
            raise BadInput(f"{folder} holds no frames; give the source of the stream.")
        else:
            self.description = description
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(description_path) as path:
                path.write_text(json.dumps(asdict(description)))
        self._frames, self._positions = folder / "frames.raw", folder / "positions.raw"
        self._numbers, self._times = folder / "numbers.raw", folder / "times.raw"
        for path in (self._frames, self._positions):
            path.touch()

    @property
    def count(self) -> int:
        """Number of frames that are complete with their positions."""
        frames = self._frames.stat().st_size // self.description.frame_bytes
        return min(frames, self._positions.stat().st_size // POSITION_BYTES)

    @property
    def held(self) -> int:
        """Number of frames that are complete, also those that wait for their positions."""
        if not self._numbers.exists():
            return self.count
        frames = self._frames.stat().st_size // self.description.frame_bytes
        return min(frames, self._numbers.stat().st_size // NUMBER_BYTES)

    @property
    def have_frames_ended(self) -> bool:
        """True once all frames of the stream are here, maybe without positions."""
        return self.has_ended or (self.folder / "frames_ended").exists()

    def mark_frames_ended(self) -> None:
        """Note that no frames will follow, but positions may."""
        (self.folder / "frames_ended").touch()

    @property
    def has_ended(self) -> bool:
        """True once all frames of the stream are here."""
        return (self.folder / "ended").exists()

    def mark_ended(self) -> None:
        """Note that no frames will follow."""
        (self.folder / "ended").touch()

    def append(self, frames: np.ndarray, positions_m: np.ndarray) -> None:
        """Add frames behind those that are there.

        Args:
            frames: (n, H, W) of the stream's type.
            positions_m: (n, 2) float64, y x.

        Raises:
            BadInput: another shape or type.
            PtymeshError: the disk refuses.
        """
        if positions_m.shape != (len(frames), 2):
            raise BadInput(
                f"{len(frames)} frames have come with positions of shape {positions_m.shape}; each frame needs one "
                f"position (y, x)."
            )
        if self._numbers.exists():
            raise BadInput(
                f"The positions of {self.folder} come apart from its frames; name them with --positions-from."
            )
        self._check_frames(frames)
        count = self.count
        self._write(self._frames, count, frames)
        self._write(self._positions, count, positions_m.astype("<f8"))

    def append_frames(self, frames: np.ndarray, numbers: np.ndarray, times_s: np.ndarray | None = None) -> None:
        """Add frames whose positions come later.

        Args:
            frames: (n, H, W) of the stream's type.
            numbers: (n,) int64, of the frames in the detector's count.
            times_s: (n,) float64, when their exposures began, NaN or None where that is not known.

        Raises:
            BadInput: another shape or type, or a spool of frames that came with their positions.
            PtymeshError: the disk refuses.
        """
        if not self._numbers.exists():
            if self.count:
                raise BadInput(
                    f"The frames of {self.folder} came with their positions; leave out --positions-from, or choose "
                    "another folder with --out."
                )
            self._numbers.touch()
        self._check_frames(frames)
        held, times = self.held, np.full(len(frames), np.nan) if times_s is None else times_s
        if not self._times.exists():
            self._times.touch()
            self._write(self._times, 0, np.full(held, np.nan, "<f8"))
        self._write(self._frames, held, frames)
        self._write(self._times, held, times.astype("<f8"))
        self._write(self._numbers, held, numbers.astype("<i8"))

    def append_positions(self, positions_m: np.ndarray) -> None:
        """Add positions (n, 2) float64, y x, of the first frames that wait for theirs."""
        self._write(self._positions, self.count, positions_m.astype("<f8"))

    def waiting_numbers(self) -> np.ndarray:
        """Return the numbers (n,) int64, in the detector's count, of frames that wait for their positions."""
        if not self._numbers.exists():
            return np.empty(0, np.int64)
        count, held = self.count, self.held
        return np.fromfile(self._numbers, "<i8", held - count, offset=count * NUMBER_BYTES).astype(np.int64)

    def waiting_times(self) -> np.ndarray:
        """Return the times (n,) float64 in seconds of frames that wait for their positions, NaN where not known."""
        count, held = self.count, self.held
        if not self._times.exists():  # of frames that were kept before they had times
            return np.full(held - count, np.nan)
        return np.fromfile(self._times, "<f8", held - count, offset=count * NUMBER_BYTES)

    def missing(self) -> int:
        """Return how many frames of the detector's count lie between those that are here, or before them."""
        if not self._numbers.exists() or not (held := self.held):
            return 0
        numbers = np.fromfile(self._numbers, "<i8", held)
        return int(numbers.max()) + 1 - len(np.unique(numbers))

    def _check_frames(self, frames: np.ndarray) -> None:
        """Raise BadInput where frames (n, H, W) are not of this stream."""
        shape, dtype = self.description.shape, np.dtype(self.description.dtype)
        if frames.shape[1:] != shape or frames.dtype != dtype:
            raise BadInput(
                f"{len(frames)} frames of {frames.shape[1:]} {frames.dtype} do not belong to a stream of {shape} "
                f"{dtype}; choose another folder with --out."
            )

    def _write(self, path: Path, rows_before: int, rows: np.ndarray) -> None:
        """Write rows (n, ...) behind those that are there, over what was half written."""
        size = rows.itemsize * int(np.prod(rows.shape[1:]))
        try:
            with path.open("r+b", buffering=0) as file:
                file.truncate(rows_before * size)
                file.seek(0, os.SEEK_END)
                rest = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
                while rest:
                    rest = rest[file.write(rest[:WRITE_BYTES]) :]
        except OSError as error:
            raise PtymeshError(f"{self.folder} cannot take more frames ({error.strerror}); free some disk.") from error

    def positions(self, count: int) -> np.ndarray:
        """Return the positions (count, 2) float64 of the first frames, y x in metres."""
        return np.fromfile(self._positions, "<f8", 2 * count).reshape(-1, 2)

    def frames(self, first: int, last: int) -> np.ndarray:
        """Return the frames (last - first, H, W) from number `first` on, before `last`."""
        description, pixels = self.description, self.description.shape[0] * self.description.shape[1]
        offset, count = first * description.frame_bytes, max(0, last - first) * pixels
        return np.fromfile(self._frames, np.dtype(description.dtype), count, offset=offset).reshape(
            -1, *description.shape
        )

    def scan(self, count: int) -> RawScan:
        """Return the first frames as a scan that readers would have found in a file.

        Args:
            count: number of frames.
        """
        description = self.description
        return RawScan(
            patterns=MappedSource(self._frames, (count, *description.shape), np.dtype(description.dtype)),
            optics=Optics(
                radiation=description.radiation,
                energy_eV=description.energy_eV,
                distance_m=description.distance_m,
                detector_pixel_m=description.detector_pixel_m,
            ),
            positions=self.positions(count),
            name=self.folder.parent.name or "live",
        )
