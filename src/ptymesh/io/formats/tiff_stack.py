"""TIFF stacks: one pattern a page, or an array (rows, columns, y, x) as tifffile and ImageJ write it.

Uncompressed stacks that lie in one piece are mapped; of others each page is unpacked when it is read.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import struct
import threading
import weakref
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ptymesh.errors import BadInput, PtymeshError
from ptymesh.io.arrays import check_tiff
from ptymesh.io.formats.calibrated import choose_stack_axes
from ptymesh.io.formats.contents import first_bytes
from ptymesh.io.hdf5.reading import DAMAGE, first_line
from ptymesh.io.options import DataOptions
from ptymesh.io.rasters import ScanShape, scan_shape
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.source import MappedSource

NAME = "a stack of patterns (TIFF)"
#: The recipe may say the order of the axes (`data.frames.axes`).
ASKS_AXES = True
#: First bytes of TIFF and BigTIFF in either byte order.
MAGICS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
#: What tifffile raises for damaged files.
TIFF_DAMAGE = (*DAMAGE, AssertionError, EOFError, IndexError, struct.error, zlib.error)
#: tifffile's handle of a file has one place, for all threads.
_LOCK = threading.Lock()


def recognises(path: Path, _: DataOptions) -> bool:
    """Return True for a file that begins as TIFF does."""
    return first_bytes(path, 4) in MAGICS


def read(path: Path, data: DataOptions) -> RawScan:
    """Return the scan of a stack.

    Raises:
        BadInput: its pages are no patterns of real numbers, or lie behind the file's end.
    """
    with _opened(path) as file:
        series = file.series[0]
        shape, dtype = tuple(int(side) for side in series.shape), np.dtype(series.dtype)
        pages, page = len(series.pages), tuple(int(side) for side in series.keyframe.shape)
        start = series.dataoffset
        if start is None:  # the end of one in one piece is compared below, and to look at all its pages takes seconds
            check_tiff(series, math.prod(shape) * dtype.itemsize, path.stat().st_size)
        stored = np.dtype(f"{file.byteorder}{dtype.char}")
    size, needed = path.stat().st_size, (start or 0) + math.prod(shape) * dtype.itemsize
    if start is not None and needed > size:
        raise BadInput(
            f"{path} says {shape} {dtype}, which needs {needed} bytes, and has {size}; it is truncated: copy it again."
        )
    if dtype.kind not in "buif":
        raise BadInput(f"{path} holds {dtype} values; patterns are real numbers.")
    shape = (1, *shape) if len(shape) == 2 else shape
    axes = choose_stack_axes(shape, path, data)
    source: MappedSource | PagedSource
    if start is not None:
        source = MappedSource(path, shape, stored, axes, int(start))
    elif shape[-2:] == page and pages == math.prod(shape[:-2]) and axes in ("nyx", "rcyx"):
        source = PagedSource(path, shape, dtype)
    else:
        raise BadInput(
            f"{path} has pages of {page} and shape {shape} in the order {axes}, and is packed or in pieces, so that "
            "single patterns cannot be read; save it uncompressed, one pattern a page."
        )
    scan = ScanShape(source.raster) if source.raster else scan_shape(source.shape[0], None, data, str(path))
    return RawScan(
        patterns=source, optics=Optics(radiation=data.radiation), raster=scan.shape, name=path.stem, notes=scan.notes
    )


class PagedSource:
    """Patterns of which each is a page of a TIFF file, unpacked when it is read.

    Args:
        path: the file.
        shape: (N, H, W), or (rows, columns, H, W).
        dtype: of its numbers.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._path, self._dtype = path, dtype
        self._shape = (math.prod(shape[:-2]), shape[-2], shape[-1])
        self.raster = (shape[0], shape[1]) if len(shape) == 4 else None
        self._file: Any = None
        self._pid = -1

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, H, W)."""
        return self._shape

    @property
    def dtype(self) -> np.dtype:
        """The stored type; single for half precision."""
        return np.dtype(np.float32) if self._dtype == np.float16 else self._dtype

    def read(self, views: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
        """Return patterns (len(views), rows, columns).

        Args:
            views: (n,) int64, in any order.
            rows: of the detector, with start and stop, and step 1.
            columns: of the detector, likewise.

        Raises:
            BadInput: a page cannot be unpacked.
        """
        out = np.empty((len(views), rows.stop - rows.start, columns.stop - columns.start), self.dtype)
        with _LOCK, _silence_tifffile(), _one_sentence(self._path):
            if self._file is None or self._pid != os.getpid():
                self._file, self._pid = _open(self._path), os.getpid()
                weakref.finalize(self, self._file.close)
            pages = self._file.series[0].pages
            for index, view in enumerate(views):
                out[index] = pages[int(view)].asarray()[rows, columns]
        return out

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pid": -1, "_file": None}


def _open(path: Path) -> Any:
    """Return an open file, of which no other file is opened, whatever it says of further ones."""
    from tifffile import TiffFile

    return TiffFile(path, _multifile=False, is_ome=False, is_mmstack=False, is_ndtiff=False)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    with _silence_tifffile(), _one_sentence(path), _open(path) as file:
        yield file


@contextlib.contextmanager
def _silence_tifffile() -> Iterator[None]:
    log = logging.getLogger("tifffile")
    before, log.disabled = log.disabled, True  # its messages become one sentence
    try:
        yield
    finally:
        log.disabled = before


@contextlib.contextmanager
def _one_sentence(path: Path) -> Iterator[None]:
    from tifffile import TiffFileError

    try:
        yield
    except PtymeshError:
        raise
    except (*TIFF_DAMAGE, TiffFileError) as error:
        raise BadInput(
            f"{path} cannot be read as TIFF ({first_line(error)}); if it is sound, save it without compression, or as "
            ".npy."
        ) from error
