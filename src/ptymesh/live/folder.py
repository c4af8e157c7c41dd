"""Source of frames: a folder into which another program writes files, one after the other.

n       frames of a file
H, W    detector pixels

Files are taken in the order of the numbers in their names, each once it is complete: its size has not changed for a
while, or the stream has ended. The end is a file named `ended` in the folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.load import open_scan
from ptymesh.io.npy import check_numbers, read_header
from ptymesh.io.options import DataOptions
from ptymesh.io.prepare.positions import METRES
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.series import numbered_key
from ptymesh.io.source import MappedSource
from ptymesh.io.tables import read_table
from ptymesh.live.frames import MOST, Frames
from ptymesh.live.positions import TextPositions
from ptymesh.live.spool import StreamDescription
from ptymesh.run_folder.status import Throttle

#: Ends of names of files that hold frames; others, such as those that are renamed once they are complete, do not count.
SUFFIXES = (".npy", ".tif", ".tiff", ".h5", ".hdf5", ".nxs", ".cxi")
#: Ends of names of HDF5 files among these.
HDF5_SUFFIXES = (".h5", ".hdf5", ".nxs", ".cxi")
#: File that ends the stream, files with a line for each frame, and ends of names of those beside a file of frames.
ENDED, POSITIONS, BESIDE = "ended", ("positions.txt", "positions.csv"), (".txt", ".csv")
#: Seconds for which a file keeps its size before it is read.
SETTLE_S = 0.5
#: Seconds after which a file that cannot be read is an error, where a later one is there, and where none is: it may be
#: held open by who writes it.
UNREADABLE_S, LAST_UNREADABLE_S = 10.0, 120.0
#: Seconds for which positions of frames that are there may still come once the stream has ended.
POSITIONS_S = 10.0
#: Least seconds between two looks at the folder, and the largest share of the time that they take.
LOOK_S, LOOK_SHARE = 0.05, 0.05


@dataclass(frozen=True)
class FramesFile:
    """Frames of a file, which are read when they are asked for.

    Attributes:
        count: number of frames.
        description: of the frames.
        read: returns the frames (last - first, H, W) from number `first` on, before `last`.
        positions_m: (n, 2) float64, y x; None where the file has none.
    """

    count: int
    description: StreamDescription
    read: Callable[[int, int], np.ndarray]
    positions_m: np.ndarray | None


class FramesFolder:
    """A folder of files of frames, which grows.

    Positions are those of HDF5 files that have some, lines of a text beside each file (of the same name, .txt or .csv),
    or of positions.txt or positions.csv for all files.

    Args:
        folder: that is there already.
        patterns: dataset of the patterns (n, H, W) or (H, W) of HDF5 files; those without it are read as data sets are.
        positions: dataset of their positions (n, 2), y x in metres; None: positions come from elsewhere.
    """

    def __init__(self, folder: Path, patterns: str, positions: str | None) -> None:
        self._folder, self._patterns, self._positions = folder, patterns, positions
        #: Files in their order, and the number of frames of each that was opened, which are the first ones.
        self._paths: list[Path] = []
        self._counts: list[int] = []
        self._last: tuple[Path, FramesFile] | None = None
        #: Pixels (H, W) and type of the first frames.
        self._kind: tuple[tuple[int, int], str] | None = None
        self._seen: dict[Path, tuple[tuple[int, int], float]] = {}
        self._listing = Throttle(LOOK_S, LOOK_SHARE)
        self._table: TextPositions | None = None
        self._ended = False
        #: Since when the stream has ended, and there are frames without positions.
        self._lacks_positions_since: float | None = None

    def describe(self) -> StreamDescription | None:
        """Return what the first file says of its frames, None while it is not there.

        Raises:
            BadInput: it cannot be read, or the stream has ended without a file.
        """
        self._list_files()
        if self._ended and not self._paths:
            raise BadInput(
                f"{self._folder} has ended without a file of frames ({', '.join(SUFFIXES)}); check the detector."
            )
        first = self._open(0)
        return None if first is None else first.description

    def take(self, first: int) -> Frames | None:
        """Return frames from number `first` on, None while there are none.

        Raises:
            BadInput: a file cannot be read, holds other frames than the first one, or has come too late, or the stream
                has ended without positions of all frames.
        """
        self._list_files()
        index, before = self._file_of(first)
        rows = self._listed_positions()
        frames: list[np.ndarray] = []
        positions: list[np.ndarray] = []
        frames_given = lacking = 0
        while frames_given < MOST and (file := self._open(index)) is not None:
            start = first + frames_given - before
            stop = min(file.count, start + MOST - frames_given)
            frame_positions = self._positions_of(index, file, before, rows)
            if frame_positions is not None:
                positions.append(frame_positions[start:stop])
                stop = start + len(positions[-1])
            if stop > start:
                frames.append(self._frames_of(index, file, start, stop))
            frames_given += max(0, stop - start)
            if stop < file.count:  # no more frames, or no more positions, are there
                lacking = file.count - stop
                break
            index, before = index + 1, before + file.count
        ended = self._ended and index == len(self._paths)
        self._check_positions(
            waiting=self._ended and not frames_given and index < len(self._paths), frame=first, index=index
        )
        if frames_given:
            return Frames(np.concatenate(frames), np.concatenate(positions) if positions else None, ended)
        if not (ended or lacking) or self._last is None:
            return None
        description = self._last[1].description
        return Frames(np.empty((0, *description.shape), description.dtype), np.empty((0, 2)), ended, lacking=lacking)

    def _frames_of(self, index: int, file: FramesFile, first: int, last: int) -> np.ndarray:
        """Return frames of a file, (last - first, H, W).

        Args:
            index: of the file.
            file: its frames.
            first: number of the first frame in the file.
            last: number of the frame after the last one.

        Raises:
            BadInput: they are of another shape or type than those of the first file, or the file has gone.
        """
        path = self._paths[index]
        kind = file.description.shape, file.description.dtype
        self._kind = self._kind or kind
        if kind != self._kind:
            (shape, dtype), (first_shape, first_dtype) = kind, self._kind
            raise BadInput(
                f"{path} holds frames of {shape} {np.dtype(dtype)}, and those before it are of {first_shape} "
                f"{np.dtype(first_dtype)}; take it out of the folder."
            )
        try:
            return file.read(first, last)
        except OSError as error:
            raise BadInput(f"{path} cannot be read ({error.strerror or error}); leave files where they are.") from error

    def _check_positions(self, *, waiting: bool, frame: int, index: int) -> None:
        """Check that frames of a stream that has ended do not wait for positions that never come.

        Args:
            waiting: True if they wait now.
            frame: number of the first of them.
            index: of its file.

        Raises:
            BadInput: they have waited long enough.
        """
        if not waiting:
            self._lacks_positions_since = None
            return
        if self._lacks_positions_since is None:
            self._lacks_positions_since = time.monotonic()
        if time.monotonic() - self._lacks_positions_since >= POSITIONS_S:
            raise BadInput(
                f"{self._folder} has ended, and frame {frame} ({self._paths[index].name}) has no position; give each "
                f"frame a line with y and x in metres in {POSITIONS[0]}, or name other positions with --positions-from."
            )

    def close(self) -> None:
        """Do nothing: files are opened for each question."""

    def _list_files(self) -> None:
        """Look which files are there, if it is time."""
        if not self._listing.is_due():
            return
        began = time.monotonic()
        self._ended = (self._folder / ENDED).exists()  # before the files: none follows
        listed = set(self._paths)
        candidates = (
            path for path in self._folder.iterdir() if path.suffix.lower() in SUFFIXES and path.name[0] != "."
        )
        # folders and links to nothing are no files of frames, and pipes would be waited for
        new = sorted(
            (p for p in candidates if p not in listed and p.is_file()), key=lambda path: numbered_key(path.name)
        )
        counted_paths = self._paths[: len(self._counts)]
        if new and counted_paths and numbered_key(new[0].name) < numbered_key(counted_paths[-1].name):
            raise BadInput(
                f"{new[0]} has come when {counted_paths[-1].name} had been read; name files so that each follows "
                "those that are there, such as frame_0001.npy, frame_0002.npy."
            )
        waiting = sorted([*self._paths[len(counted_paths) :], *new], key=lambda path: numbered_key(path.name))
        self._paths = [*counted_paths, *waiting]
        for path in waiting:  # all at the same time, so that none waits for the one before it
            self._age_s(path)
        self._listing.count(time.monotonic() - began)

    def _file_of(self, frame: int) -> tuple[int, int]:
        """Return the index of the file with a frame, as far as files are complete, and the frames before that file."""
        index = before = 0
        while index < len(self._counts) or self._open(index) is not None:
            if before + self._counts[index] > frame:
                break
            before += self._counts[index]
            index += 1
        return index, before

    def _open(self, index: int) -> FramesFile | None:
        """Return the frames of a file, None while it is not there or not complete."""
        if index >= len(self._paths):
            return None
        path = self._paths[index]
        if self._last is not None and self._last[0] == path:
            return self._last[1]
        if index >= len(self._counts) and not self._is_complete(path):
            return None
        try:
            file = self._read_file(path)
        except BadInput:
            patience = LAST_UNREADABLE_S if index + 1 == len(self._paths) else UNREADABLE_S
            if not self._ended and self._age_s(path) < patience:
                return None
            raise
        if index == len(self._counts):
            self._counts.append(file.count)
            self._seen.pop(path, None)
        self._last = path, file
        return file

    def _is_complete(self, path: Path) -> bool:
        """Return True if a file has kept its size and time long enough, or the stream has ended."""
        return self._ended or self._age_s(path) >= SETTLE_S

    def _age_s(self, path: Path) -> float:
        """Return the seconds for which a file has been seen as it is; 0 where it is not there."""
        try:
            about = path.stat()
        except OSError:
            return 0.0
        now, state = time.monotonic(), (about.st_size, about.st_mtime_ns)
        if path not in self._seen or self._seen[path][0] != state:
            self._seen[path] = state, now
        return now - self._seen[path][1]

    def _listed_positions(self) -> np.ndarray | None:
        """Return the positions (N, 2) so far that a text has for the frames of all files; None where there is none."""
        if self._positions is None:
            return None
        if self._table is None:
            table_path = next((self._folder / name for name in POSITIONS if (self._folder / name).exists()), None)
            self._table = None if table_path is None else TextPositions(table_path)
        return None if self._table is None else self._table.read()

    def _positions_of(self, index: int, file: FramesFile, before: int, rows: np.ndarray | None) -> np.ndarray | None:
        """Return the positions (m, 2) of a file's frames as far as they are known; None where they come from elsewhere.

        Args:
            index: of the file.
            file: its frames.
            before: number of frames before it.
            rows: (N, 2) y x in metres so far of the frames of all files; None where no file lists them.
        """
        if self._positions is None:
            return None
        if file.positions_m is not None:
            return file.positions_m
        if rows is not None:
            return rows[before : before + file.count]
        path = self._paths[index]
        beside = next((path.with_suffix(end) for end in BESIDE if path.with_suffix(end).exists()), None)
        if beside is None or not self._is_complete(beside):
            return np.empty((0, 2))
        rows_beside = np.atleast_2d(read_table(beside, "", str(beside)))
        if rows_beside.shape != (file.count, 2):
            raise BadInput(
                f"{beside} holds {rows_beside.shape[0]} rows of {rows_beside.shape[1]} numbers, and {path.name} "
                f"{file.count} frames; give each frame a line with y and x in metres."
            )
        return rows_beside

    def _read_file(self, path: Path) -> FramesFile:
        """Return the frames of a file that is complete. Raises BadInput where it cannot be read."""
        try:
            return self._read(path)
        except OSError as error:
            raise BadInput(f"{path} cannot be read ({error.strerror or error}); leave files where they are.") from error

    def _read(self, path: Path) -> FramesFile:
        """Return the frames of a file that is complete."""
        if path.suffix.lower() == ".npy":
            with path.open("rb") as file:
                header = read_header(file, str(path))
                start = file.tell()
            if len(header.shape) == 2 and path.stat().st_size >= start + header.nbytes:
                check_numbers(header.dtype, str(path), "uif")
                one = MappedSource(path, (1, *header.shape), header.dtype, "nyx", start, header.fortran)
                return _scan_frames(path, RawScan(one, Optics()))
        elif path.suffix.lower() in HDF5_SUFFIXES:
            with suppress(OSError), h5py.File(path, "r", locking=False) as opened:
                if isinstance(opened.get(self._patterns), h5py.Dataset):
                    return self._named_frames(path, opened)
        return _scan_frames(path, open_scan(DataOptions(path=path)))

    def _named_frames(self, path: Path, file: h5py.File) -> FramesFile:
        """Return the frames of the datasets that were named."""
        name, patterns = self._patterns, file[self._patterns]
        shape = (1, *patterns.shape) if patterns.ndim == 2 else patterns.shape
        if len(shape) != 3 or 0 in shape:
            raise BadInput(f"{path} has {name} of shape {patterns.shape}; frames are (n, H, W), or one (H, W).")
        dtype = _plain_type(patterns.dtype, path)
        places = None if self._positions is None else file.get(self._positions)
        positions = None
        if places is not None:
            positions = np.asarray(places[()], np.float64)
            positions = positions[None] if positions.shape == (2,) else positions
            if positions.shape != (shape[0], 2):
                raise BadInput(
                    f"{path} has {self._positions} of shape {places.shape} for {shape[0]} frames; each needs its y "
                    "and x in metres."
                )

        def read(first: int, last: int) -> np.ndarray:
            with h5py.File(path, "r", locking=False) as opened:
                stored = opened[name]
                return np.ascontiguousarray(stored[()][None] if stored.ndim == 2 else stored[first:last], dtype)

        return FramesFile(shape[0], StreamDescription((shape[1], shape[2]), dtype.str), read, positions)


def _plain_type(dtype: np.dtype, path: Path) -> np.dtype:
    """Return a type of numbers with the bytes of streams; raise BadInput where it is another one."""
    if np.dtype(dtype).kind not in "uif":
        raise BadInput(f"{path} holds {dtype} values; frames of a stream are whole or real numbers.")
    return np.dtype(dtype).newbyteorder("<")


def _scan_frames(path: Path, scan: RawScan) -> FramesFile:
    """Return the frames of a file that a reader knows, with beam, detector and positions as far as it has them."""
    count, height, width = scan.patterns.shape
    dtype = _plain_type(scan.patterns.dtype, path)
    description = StreamDescription((height, width), dtype.str)
    with suppress(BadInput):  # about what is missing, which the recipe may say
        beam = scan.optics.geometry((height, width))
        description = replace(
            description,
            energy_eV=beam.energy_eV,
            radiation=beam.radiation,
            distance_m=beam.distance_m,
            detector_pixel_m=beam.detector_pixel_m,
        )
    positions = scan.positions
    if positions is not None and (scan.unit not in METRES or positions.shape != (count, 2)):
        raise BadInput(
            f"{path} has positions of shape {positions.shape} in {scan.unit}; a stream needs one for each frame in "
            "metres, which --positions-from can name."
        )

    def read(first: int, last: int) -> np.ndarray:
        frames = scan.patterns.read(np.arange(first, last), slice(0, height), slice(0, width))
        return np.ascontiguousarray(frames if scan.centred else np.fft.fftshift(frames, axes=(-2, -1)), dtype)

    return FramesFile(count, description, read, None if positions is None else positions * METRES[scan.unit])
