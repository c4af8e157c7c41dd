"""Reader of arrays that options name: `file.npy`, `file.tif`, `file.npz:name`, `file.h5:/path`, `file.csv:column`.

Formats are recognised by content. Type and shape of an array are checked before it is read.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ptymesh.errors import BadInput, PtymeshError
from ptymesh.io.hdf5.reading import (
    DAMAGE,
    dataset_of,
    first_line,
    in_other_files,
    is_hdf5,
    native,
    open_hdf5,
    read_dataset,
    reading,
)
from ptymesh.io.mda import is_mda, read_mda
from ptymesh.io.npy import MOST_VALUES, check_numbers, read_header, read_values
from ptymesh.io.staging import is_npz, most_of, npz_members, read_member
from ptymesh.io.tables import is_table, read_table

#: Characters of the longest path that a system knows.
LONGEST = 4096
#: numpy's letters of real numbers.
REAL = "buif"
#: numpy's letters of all numbers.
ANY = "buifc"
#: First bytes of .npy files and of TIFF.
_NPY, _TIFF = b"\x93NUMPY", (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
#: References that messages offer.
KNOWN = "file.npy, file.tif, file.csv, file.mda, file.npz:name or file.h5:/path"


@dataclass(frozen=True)
class Stored:
    """An array in a file that is not read yet.

    Attributes:
        shape: of the array.
        dtype: of its values.
        read: returns the array.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]


def load_array(
    reference: str,
    option: str,
    kinds: str = REAL,
    most: int = MOST_VALUES,
    window: tuple[int, int] | None = None,
    follow: Sequence[Path] = (),
) -> np.ndarray:
    """Return the array of numbers that a reference names.

    Args:
        reference: file, and the array in it.
        option: key of the recipe, for messages.
        kinds: numpy's letters of the types that it may have.
        most: largest number of values.
        window: sides (h, w) that its last two axes must have; None: any.
        follow: folders, besides the file's own, in which files that it refers to may lie.

    Raises:
        BadInput: there is no such array, or it cannot be used; the message names the option.
    """
    with _opened(reference, option, follow) as stored:
        if window is not None and stored.shape[-2:] != window:
            raise BadInput(f"{option}: {reference} has shape {stored.shape} and the window {window}; make them equal.")
        return _read(stored, reference, option, kinds, most)


def holds_array(reference: str) -> bool:
    """Return True unless a reference names a file in which another reader has to look for patterns.

    That is a folder, HDF5 without the name of a dataset, and any file of which `load_array` knows no format; a file
    that is not there is left to `load_array` to refuse.
    """
    path, inside = _split(reference)
    if not path.is_file() or not os.path.getsize(path):
        return not path.is_dir()
    if is_hdf5(path):
        return bool(inside)
    with contextlib.suppress(OSError), path.open("rb") as file:
        start = file.read(8)
        return start.startswith(_NPY) or start[:4] in _TIFF or is_npz(path) or is_mda(path) or is_table(path)
    return True


def detector_array(value: str | float, option: str, shape: tuple[int, int], follow: Sequence[Path] = ()) -> np.ndarray:
    """Return an array (H, W) from a number or a reference; leading axes of length one are dropped.

    Args:
        value: number of all pixels, or reference to an array.
        option: key of the recipe, for messages.
        shape: sides (H, W) of the detector.
        follow: folders, besides the file's own, in which files that it refers to may lie.

    Raises:
        BadInput: the array has another shape, is not finite, or cannot be read.
    """
    if isinstance(value, int | float):
        return np.full(shape, float(value))
    with _opened(value, option, follow) as stored:
        array_shape = stored.shape
        while len(array_shape) > 2 and array_shape[0] == 1:
            array_shape = array_shape[1:]
        if array_shape != shape:
            raise BadInput(f"{option}: {value} has shape {array_shape}; the detector is {shape} as stored in the file.")
        array = _read(stored, value, option, REAL, math.prod(shape)).reshape(shape)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise BadInput(f"{option}: {value} holds NaN or infinite values; mend it, or mask those pixels (data.mask).")
    return array


def _read(stored: Stored, reference: str, option: str, kinds: str, most: int) -> np.ndarray:
    check_numbers(stored.dtype, f"{option}: {reference}", kinds)
    if math.prod(stored.shape) > most:
        raise BadInput(f"{option}: {reference} has shape {stored.shape}, more than {option} can use; check the name.")
    return native(np.asarray(stored.read()))


@contextlib.contextmanager
def _opened(reference: str, option: str, follow: Sequence[Path]) -> Iterator[Stored]:
    """Yield the array behind a reference while its file is open."""
    path, inside = _split(reference)
    if not os.path.exists(path):
        raise BadInput(f"There is no file {path}, which {option} names; give {KNOWN}.")
    if not os.path.isfile(path):  # a pipe or a device might never answer
        raise BadInput(f"{option} names {path}, which is not a file; give {KNOWN}.")
    if not os.path.getsize(path):  # files that the system makes up while they are read have no size
        raise BadInput(f"{option} names {path}, which is empty; give {KNOWN}.")
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise BadInput(f"{option}: {path} cannot be opened ({error.strerror}); check its permissions.") from error
    subject = f"{option}: {reference}"
    if start.startswith(_NPY):
        opened = _npy(path, subject)
    elif start[:4] in _TIFF:
        opened = _tiff(path, subject)
    elif is_hdf5(path):
        if not inside:
            raise BadInput(f"{option}: {path} is HDF5; say which dataset, as {path}:/path.")
        opened = _hdf5(path, inside, follow)
    elif is_npz(path):
        opened = _npz(path, inside, option)
    elif is_mda(path):
        opened = _mda(path, inside, subject)
    elif is_table(path):
        opened = _table(path, inside, subject)
    else:
        raise BadInput(
            f"{option}: {path} is neither .npy, TIFF, HDF5, npz, .mda nor a table; convert it to one of these."
        )
    with opened as stored:
        yield stored


def unit_of_mda(reference: str) -> str:
    """Return the unit of positions in an EPICS scan; empty for other files, and where none is said."""
    path, inside = _split(reference)
    return read_mda(path, inside, reference)[1] if is_mda(path) else ""


@contextlib.contextmanager
def _mda(path: Path, inside: str, subject: str) -> Iterator[Stored]:
    values, _ = read_mda(path, inside, subject)
    yield Stored(values.shape, values.dtype, lambda: values)


@contextlib.contextmanager
def _table(path: Path, inside: str, subject: str) -> Iterator[Stored]:
    values = read_table(path, inside, subject)
    yield Stored(values.shape, values.dtype, lambda: values)


@contextlib.contextmanager
def _npy(path: Path, subject: str) -> Iterator[Stored]:
    with path.open("rb") as file:
        header = read_header(file, subject)
        bytes_left = os.fstat(file.fileno()).st_size - file.tell()
        if header.nbytes > bytes_left and not header.dtype.hasobject:
            raise BadInput(
                f"{subject} cannot be read (it has {bytes_left} bytes of the {header.nbytes} that its shape "
                f"{header.shape} takes); it is truncated: save it again with numpy.save."
            )
        yield Stored(header.shape, header.dtype, lambda: read_values(file, header, subject))


@contextlib.contextmanager
def _npz(path: Path, inside: str, option: str) -> Iterator[Stored]:
    members = npz_members(path)
    if not members:
        raise BadInput(f"{option}: {path} is a zip file without arrays (.npy); save them with numpy.savez.")
    if not inside and len(members) != 1:
        raise BadInput(f"{option}: {path} holds {', '.join(members)}; say which, as {path}:{next(iter(members))}.")
    name = inside or next(iter(members))
    if name not in members and name.removesuffix(".npy") in members:
        name = name.removesuffix(".npy")
    if name not in members:
        raise BadInput(f"{option}: {path} has no array {name}; it has {', '.join(members)}.")
    shape, dtype = members[name]
    yield Stored(shape, dtype, lambda: read_member(path, name))


@contextlib.contextmanager
def _hdf5(path: Path, inside: str, follow: Sequence[Path]) -> Iterator[Stored]:
    with open_hdf5(path, follow=follow) as file:
        data = dataset_of(file, inside)
        with reading(f"{inside} in {path}"):
            shape, dtype, home = data.shape, data.dtype, Path(data.file.filename)
        # Values in several files are limited by the memory alone, when they are read.
        if not in_other_files(data) and math.prod(shape) * dtype.itemsize > most_of(home.stat().st_size):
            raise BadInput(f"{inside} in {path} has shape {shape}, far more than its file holds; check the name.")
        yield Stored(shape, dtype, lambda: read_dataset(file, inside))


@contextlib.contextmanager
def _tiff(path: Path, subject: str) -> Iterator[Stored]:
    """Yield the first image series of a TIFF; references to other files are not followed."""
    from tifffile import TiffFile, TiffFileError

    log = logging.getLogger("tifffile")
    before, log.disabled = log.disabled, True  # its messages become one sentence below
    try:
        with TiffFile(path, _multifile=False, is_ome=False, is_mmstack=False, is_ndtiff=False) as file:
            series = file.series[0]
            shape, dtype = tuple(int(n) for n in series.shape), np.dtype(series.dtype)
            check_tiff(series, math.prod(shape) * dtype.itemsize, path.stat().st_size)
            yield Stored(shape, dtype, lambda: file.asarray(series=0))
    except PtymeshError:
        raise
    except (*DAMAGE, AssertionError, EOFError, TiffFileError, struct.error) as error:
        raise BadInput(
            f"{subject} cannot be read as TIFF ({first_line(error)}); if it is sound, save it without compression, or "
            "as .npy."
        ) from error
    finally:
        log.disabled = before


def check_tiff(series: Any, needed: int, size: int) -> None:
    """Raise ValueError if the pages cannot hold what they declare: tifffile takes missing parts to be zero.

    Args:
        series: tifffile's images of a file.
        needed: bytes of the images, once unpacked.
        size: bytes of the file.
    """
    if needed > most_of(size):
        raise ValueError(f"{size} bytes cannot hold {series.shape}")
    for page in series.pages:
        parts = list(zip(page.dataoffsets, page.databytecounts, strict=True))
        if not parts or any(count <= 0 or offset + count > size for offset, count in parts):
            raise ValueError("parts of the image are missing")


def names_file(reference: str, folder: Path) -> str | None:
    """Return a reference with the path of the file that it names, there or in a folder; None where there is none."""
    for candidate in (reference, str(folder / reference)):
        if "\0" not in candidate and len(candidate) < LONGEST and _split(candidate)[0].is_file():
            return candidate
    return None


def _split(reference: str) -> tuple[Path, str]:
    """Return the path of a reference, and the name inside the file; an existing file's name may hold a colon."""
    if ":" not in reference or os.path.exists(reference):
        return Path(reference), ""
    for place, letter in enumerate(reference):  # the name of an array may hold colons as well
        if letter == ":" and os.path.isfile(reference[:place]):
            return Path(reference[:place]), reference[place + 1 :]
    path, _, inside = reference.rpartition(":")
    return Path(path), inside
