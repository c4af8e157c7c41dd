"""Sources of patterns on disk, read a few views and a few detector rows and columns at a time.

N       views
H, W    detector pixels as stored

Files are opened when first read, once per process, so that sources can be handed to other processes.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import h5py
import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.hdf5.damage import ChunkCheck
from ptymesh.io.hdf5.reading import (
    CACHE_BYTES,
    DAMAGE,
    Hdf5File,
    dataset_of,
    in_other_files,
    native,
    open_hdf5,
    reading,
    unreadable,
)

#: HDF5's chunk cache per dataset if chunks hold a single frame, so that no chunk is needed twice.
LEAST_CACHE_BYTES = 1 << 20
#: Files that stay open at a time; of more, each is closed once it has been read.
MOST_OPEN = 64
#: Bytes of patterns in memory at a time in a pass over all of them.
SLAB_BYTES = 64 << 20


class SlabSource(Protocol):
    """Patterns as stored."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (N, H, W)."""

    @property
    def dtype(self) -> np.dtype:
        """Type of what `read` returns."""

    def read(self, views: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
        """Return patterns (len(views), rows, columns).

        Args:
            views: (n,) int64, in any order.
            rows: of the detector, with start and stop, and step 1.
            columns: of the detector, likewise.
        """


class MappedSource:
    """Patterns in an uncompressed array on disk, memory-mapped.

    Args:
        path: the file.
        shape: of the array.
        dtype: of its numbers.
        axes: letters of its axes, as in the key map.
        offset: byte at which the numbers start (in an .npy, or an uncompressed .npz).
        fortran_order: whether the first axis is the fastest.
        strides: bytes from one number to the next along each axis; None: there is nothing, such as headers of frames,
            between them.
    """

    def __init__(
        self,
        path: Path,
        shape: tuple[int, ...],
        dtype: np.dtype,
        axes: str = "nyx",
        offset: int = 0,
        fortran_order: bool = False,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        self._path, self._stored, self._on_disk = path, shape, dtype
        self._strides = strides
        self._axes, self._offset = axes, offset
        self._order: Literal["F", "C"] = "F" if fortran_order else "C"
        self._pid, self._map = -1, np.empty(0)
        self._pages: mmap.mmap | None = None
        self._shape, self.raster = _scan_shape(shape, axes)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, H, W)."""
        return self._shape

    @property
    def dtype(self) -> np.dtype:
        """The stored type in this machine's byte order; single for half, double for more than double precision."""
        return native(np.empty(0, self._on_disk)).dtype

    def read(self, views: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
        """Return patterns (len(views), rows, columns).

        Args:
            views: (n,) int64, in any order.
            rows: of the detector, with start and stop, and step 1.
            columns: of the detector, likewise.
        """
        if self._pages is None or self._pid != os.getpid():
            with self._path.open("rb") as file:
                self._pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            array: np.ndarray = np.ndarray(
                self._stored, self._on_disk, self._pages, self._offset, self._strides, order=self._order
            )
            order = "rcyx" if self.raster else "nyx"
            turned = array.transpose([self._axes.index(a) for a in order if a in self._axes])
            self._map, self._pid = turned if turned.ndim > 2 else turned[None], os.getpid()
        if self.raster:
            r, c = np.divmod(views, self.raster[1])
            patterns = self._map[r, c, rows, columns]
        else:
            patterns = self._map[views, rows, columns]
        if hasattr(self._pages, "madvise"):  # what was copied need not stay in memory
            self._pages.madvise(mmap.MADV_DONTNEED)
        with np.errstate(over="ignore"):
            return patterns.astype(self.dtype, copy=False)

    def close(self) -> None:
        """Let go of the file, which is mapped again by the next read."""
        self._map, self._pages, self._pid = np.empty(0), None, -1

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pid": -1, "_map": np.empty(0), "_pages": None}


@dataclass(frozen=True)
class StoredAxes:
    """Axes of stored patterns, and how views lie along them.

    Attributes:
        axes: letters, as in the key map.
        raster: (rows, columns) of patterns with axes r and c; None: they have an axis n.
        chunk: number of views along the last axis of views that are read together, where any two of them are.
    """

    axes: str
    raster: tuple[int, int] | None
    chunk: int = 1

    def read(
        self,
        views: np.ndarray,
        rows: slice,
        columns: slice,
        dtype: np.dtype,
        fetch: Callable[[tuple[int | slice, ...], slice], np.ndarray],
    ) -> np.ndarray:
        """Return patterns (len(views), rows, columns) of a type.

        Args:
            views: (n,) int64, in any order.
            rows: of the detector, with start and stop, and step 1.
            columns: of the detector, likewise.
            dtype: of what is returned.
            fetch: returns a part of the stored array, and is told which views along their axis these are; a raster's
                row is a number, and has no axis in it.
        """
        views = np.asarray(views)
        slab_axes = [a for a in self.axes if a != "r"]
        places = [slab_axes.index(a) for a in ("c", "n", "y", "x") if a in slab_axes]
        spans = [*self._spans(views)]
        shape = (len(views), rows.stop - rows.start, columns.stop - columns.start)
        out: np.ndarray | None = None
        for line, start, stop, members in spans:
            span = slice(start, stop)
            index_of: dict[str, int | slice] = {"n": span, "r": line, "c": span, "y": rows, "x": columns}
            block = fetch(tuple(index_of[a] for a in self.axes), span).transpose(places)
            block = block if block.ndim == 3 else block[None]  # a single pattern, which has no axis of views
            index = self._place_in_line(views[members]) - start
            is_all = np.array_equal(index, np.arange(stop - start))  # each view once, in order
            with np.errstate(over="ignore"):  # long doubles may become infinite, which is refused later
                if len(spans) == 1 and is_all and np.array_equal(members, np.arange(len(views))):
                    return np.ascontiguousarray(block, dtype)
                out = np.empty(shape, dtype) if out is None else out
                out[members] = block if is_all else block[index]
        return np.empty(shape, dtype) if out is None else out

    def _place_in_line(self, views: np.ndarray) -> np.ndarray:
        return views % self.raster[1] if self.raster else views

    def _spans(self, views: np.ndarray) -> Iterator[tuple[int, int, int, np.ndarray]]:
        """Yield runs of views that are neighbours or share a chunk, as (raster line, start, stop, members)."""
        if not len(views):
            return
        order = np.argsort(views, kind="stable")
        ordered = views[order]
        line = ordered // self.raster[1] if self.raster else np.zeros_like(ordered)
        along = self._place_in_line(ordered)
        same_chunk = along[1:] // self.chunk == along[:-1] // self.chunk
        cut = (np.diff(line) != 0) | ((np.diff(along) > 1) & ~same_chunk)
        for members in np.split(np.arange(len(order)), np.flatnonzero(cut) + 1):
            first, last = members[0], members[-1]
            yield int(line[first]), int(along[first]), int(along[last]) + 1, order[members]


class JoinedSource:
    """Patterns of several sources of one shape and type, one after the other."""

    def __init__(self, sources: Sequence[SlabSource]) -> None:
        self._sources = tuple(sources)
        self._starts = np.cumsum([0, *(source.shape[0] for source in sources)])

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, H, W)."""
        return (int(self._starts[-1]), *self._sources[0].shape[1:])

    @property
    def dtype(self) -> np.dtype:
        """Type of all sources."""
        return self._sources[0].dtype

    def read(self, views: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
        """Return patterns (len(views), rows, columns).

        Args:
            views: (n,) int64, in any order.
            rows: of the detector, with start and stop, and step 1.
            columns: of the detector, likewise.
        """
        views = np.asarray(views)
        out = np.empty((len(views), rows.stop - rows.start, columns.stop - columns.start), self.dtype)
        part = np.searchsorted(self._starts, views, side="right") - 1
        for index in np.unique(part):
            members = part == index
            source = self._sources[index]
            out[members] = source.read(views[members] - self._starts[index], rows, columns)
            if len(self._sources) > MOST_OPEN and isinstance(source, Hdf5Source | MappedSource):
                source.close()
        return out


class Hdf5Source:
    """Patterns in an HDF5 dataset, read as sorted hyperslabs, chunk by chunk.

    Args:
        path: the file.
        dataset: its name.
        axes: letters of its axes, as in the key map; None: "nyx" for three, "rcyx" for four.
        follow: folders, besides the file's own, in which files that it refers to may lie.
    """

    def __init__(self, path: Path, dataset: str, axes: str | None = None, follow: Sequence[Path] = ()) -> None:
        self._path, self.name, self._follow = path, dataset, tuple(follow)
        self._pid: int = -1
        self._file: Hdf5File | None = None
        self._data: h5py.Dataset | None = None
        self._check: ChunkCheck
        with open_hdf5(path, follow=follow) as file, reading(f"{dataset} in {path}"):
            data = dataset_of(file, dataset)
            if axes is None:
                axes = {3: "nyx", 4: "rcyx"}.get(data.ndim, "")
            if not axes or data.ndim != len(axes):
                raise BadInput(
                    f"{dataset} in {path} has shape {data.shape}; patterns have three axes (views, y, x), or four for "
                    f"a raster (rows, columns, y, x)."
                )
            if data.dtype.kind not in "buif":
                raise BadInput(f"{dataset} in {path} holds {str(data.dtype)[:60]} values; patterns are counts.")
            if 0 not in data.shape and _never_written(data):
                raise BadInput(f"{dataset} in {path} has shape {data.shape}, but no value was ever written to it.")
            self._axes = axes
            #: Name of these patterns among others in the same file.
            self.label = f"{data.name} {axes}"
            #: The file that holds them, to which `path` may only link.
            self.home = Path(data.file.filename)
            self._dtype = native(np.empty(0, data.dtype)).dtype
            self._shape, self.raster = _scan_shape(data.shape, axes)
            chunks = data.chunks or (1,) * data.ndim
            along = "c" if self.raster else "n"
            self._chunk = int(chunks[axes.index(along)]) if along in axes else 1
            #: Number of views that one chunk spans.
            self.frames_per_chunk = self._chunk * (int(chunks[axes.index("r")]) if self.raster else 1)
            packed = data.compression is not None or data.id.get_create_plist().get_nfilters() > 0
            size = int(np.prod(chunks, dtype=np.int64)) * data.dtype.itemsize
            #: Whether chunks are too large to be unpacked for a single view.
            self.huge_chunks = packed and self.frames_per_chunk > 1 and size > CACHE_BYTES
            if not packed and size > CACHE_BYTES:
                self._chunk = 1  # such chunks are read in part, and views of one need not be read together

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, H, W)."""
        return self._shape

    @property
    def dtype(self) -> np.dtype:
        """The stored type in this machine's byte order; single for half, double for more than double precision."""
        return self._dtype

    def read(self, views: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
        """Return patterns (len(views), rows, columns).

        Args:
            views: (n,) int64, in any order.
            rows: of the detector, with start and stop, and step 1.
            columns: of the detector, likewise.

        Raises:
            BadInput: the file is damaged.
        """
        data = self._dataset()

        def fetch(part: tuple[int | slice, ...], span: slice) -> np.ndarray:
            try:
                self._check.check_part(data, part)
                return np.asarray(data[part])
            except DAMAGE as error:
                raise unreadable(
                    f"{self.name} in {self._path} (views {span.start} to {span.stop - 1})", error
                ) from error

        return StoredAxes(self._axes, self.raster, self._chunk).read(views, rows, columns, self._dtype, fetch)

    def _dataset(self) -> h5py.Dataset:
        if self._file is None or self._pid != os.getpid():
            cache = CACHE_BYTES if self.frames_per_chunk > 1 else LEAST_CACHE_BYTES
            file = open_hdf5(self._path, cache, self._follow)
            try:
                data = dataset_of(file, self.name)
                with reading(f"{self.name} in {self._path}"):
                    check = ChunkCheck(data)
            except BaseException:
                file.close()
                raise
            self._file, self._data, self._check, self._pid = file, data, check, os.getpid()
        assert self._data is not None
        return self._data

    def close(self) -> None:
        """Close the file, which is opened again by the next read."""
        if self._file is not None and self._pid == os.getpid():
            self._file.close()
        self._file = self._data = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pid": -1, "_file": None, "_data": None, "_check": None}


def _never_written(data: h5py.Dataset) -> bool:
    return not in_other_files(data) and data.id.get_storage_size() == 0


def slabs(views: int, frame_bytes: int) -> Iterator[np.ndarray]:
    """Yield consecutive views, a bounded number of bytes at a time."""
    step = max(1, SLAB_BYTES // max(1, frame_bytes))
    for start in range(0, views, step):
        yield np.arange(start, min(start + step, views))


def _scan_shape(shape: tuple[int, ...], axes: str) -> tuple[tuple[int, int, int], tuple[int, int] | None]:
    size = dict(zip(axes, shape, strict=True))
    raster = (size["r"], size["c"]) if "r" in size else None
    count = raster[0] * raster[1] if raster else size.get("n", 1)
    return (count, size["y"], size["x"]), raster
