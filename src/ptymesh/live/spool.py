"""Frames that have arrived, on disk: nothing is lost where frames come faster than they are used, or a process dies.

N       frames so far
H, W    detector pixels

A spool is a folder of files, of which frames and positions grow by appending:

    stream.json     shape and type of a frame, and what the source says of beam and detector
    frames.raw      (N, H, W) numbers, in the order of arrival
    positions.raw   (N, 2) float64, y x in metres
    ended           there once the stream has ended

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

#: Bytes of a position.
POSITION_BYTES = 16


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
    """

    shape: tuple[int, int]
    dtype: str
    energy_eV: float | None = None
    radiation: Radiation | None = None
    distance_m: float | None = None
    detector_pixel_m: tuple[float, float] | None = None
    views: int | None = None

    @classmethod
    def parse(cls, said: object, source: str) -> StreamDescription:
        """Return the description that JSON holds.

        Args:
            said: what was read from the JSON.
            source: for messages.

        Raises:
            BadInput: it is none.
        """
        try:
            known = {name: said[name] for name in cls.__dataclass_fields__ if name in said}  # type: ignore[operator,index]
            shape, dtype = tuple(int(n) for n in known.pop("shape")), np.dtype(str(known.pop("dtype")))
            pixel = known.pop("detector_pixel_m", None)
            numbers = {name: float(known[name]) for name in ("energy_eV", "distance_m") if known.get(name) is not None}
            if len(shape) != 2 or min(shape) < 1 or dtype.kind not in "uif" or dtype.hasobject:
                raise ValueError(f"frames of shape {shape} and type {dtype}")
            made = cls(
                shape=(shape[0], shape[1]),
                dtype=dtype.str,
                radiation=known.get("radiation"),
                detector_pixel_m=None if pixel is None else (float(pixel[0]), float(pixel[1])),
                views=None if known.get("views") is None else int(known["views"]),
                **numbers,
            )
        except (TypeError, KeyError, ValueError, IndexError) as error:
            raise BadInput(
                f"{source} describes its frames in a way that is not understood ({error}); it should say shape "
                f"[H, W] and dtype, such as <u2."
            ) from error
        if made.radiation not in (None, "photon", "electron"):
            raise BadInput(f"{source} says radiation {made.radiation}; it should be photon or electron.")
        return made

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
        self.folder, said = folder, folder / "stream.json"
        if said.exists():
            self.description = StreamDescription.parse(json.loads(said.read_text()), str(said))
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
            with replacing(said) as path:
                path.write_text(json.dumps(asdict(description)))
        self._frames, self._positions = folder / "frames.raw", folder / "positions.raw"
        for path in (self._frames, self._positions):
            path.touch()

    @property
    def count(self) -> int:
        """Number of frames that are complete with their positions."""
        frames = self._frames.stat().st_size // self.description.frame_bytes
        return min(frames, self._positions.stat().st_size // POSITION_BYTES)

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
        shape, dtype = self.description.shape, np.dtype(self.description.dtype)
        if frames.shape[1:] != shape or frames.dtype != dtype or positions_m.shape != (len(frames), 2):
            raise BadInput(
                f"{len(frames)} frames of {frames.shape[1:]} {frames.dtype} with positions of {positions_m.shape} do "
                f"not belong to a stream of {shape} {dtype}; each frame needs one position (y, x)."
            )
        count = self.count
        try:
            for path, rows, size in (
                (self._frames, frames, self.description.frame_bytes),
                (self._positions, positions_m.astype("<f8"), POSITION_BYTES),
            ):
                with path.open("r+b") as file:
                    file.truncate(count * size)  # what was half written
                    file.seek(0, os.SEEK_END)
                    file.write(np.ascontiguousarray(rows).data)
        except OSError as error:
            raise PtymeshError(f"{self.folder} cannot take more frames ({error.strerror}); free some disk.") from error

    def positions(self, count: int) -> np.ndarray:
        """Return the positions (count, 2) float64 of the first frames, y x in metres."""
        return np.fromfile(self._positions, "<f8", 2 * count).reshape(-1, 2)

    def scan(self, count: int) -> RawScan:
        """Return the first frames as a scan that readers would have found in a file.

        Args:
            count: number of frames.
        """
        said = self.description
        return RawScan(
            patterns=MappedSource(self._frames, (count, *said.shape), np.dtype(said.dtype)),
            optics=Optics(
                radiation=said.radiation,
                energy_eV=said.energy_eV,
                distance_m=said.distance_m,
                detector_pixel_m=said.detector_pixel_m,
            ),
            positions=self.positions(count),
            name=self.folder.parent.name or "live",
        )
