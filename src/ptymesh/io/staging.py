"""Staging of sources that cannot be sliced (bz2, compressed npz, HDF5 in huge chunks) as uncompressed files.

Each is unpacked once, and cache.py keeps it. The size of what is unpacked is bounded by `RATIO`.
"""

from __future__ import annotations

import bz2
import contextlib
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, BinaryIO, Protocol, cast

import numpy as np

from ptymesh.errors import BadInput, PtymeshError
from ptymesh.io.cache import CacheEntry, Sink, get_or_make, safe_name
from ptymesh.io.fingerprint import fingerprint
from ptymesh.io.hdf5.reading import DAMAGE, first_line
from ptymesh.io.npy import MOST_VALUES, Header, check_numbers, read_header, read_values
from ptymesh.io.source import Hdf5Source, JoinedSource, MappedSource, SlabSource

#: Largest number of bytes that one packed byte may become. Deflate's limit is 1032, and Poisson counts of 0.003 per
#: pixel in 32 bits, sparser than low-dose electron data, reach 890 in bz2; a bomb reaches a million.
RATIO = 1000
#: Bytes that may be unpacked in any case, for small files of few different values.
HARMLESS_BYTES = 64 << 20
#: Largest size of uncompressed members that are checked against their checksum.
CHECKED_BYTES = 64 << 20
#: Largest number of members of an npz: to look into a million takes minutes.
MOST_MEMBERS = 10_000
#: Bytes that are read at a time.
PIECE_BYTES = 1 << 20
#: First bytes of what is unpacked: npz and HDF5.
UNPACKED = (b"PK", b"\x89HDF")
#: What zipfile and the decompressors raise for damaged archives; RuntimeError (in DAMAGE) for encrypted ones, too.
ARCHIVE_DAMAGE = (*DAMAGE, EOFError, AssertionError, struct.error, zipfile.BadZipFile, zlib.error)


def most_of(packed: int) -> int:
    """Return the largest number of bytes that so many packed bytes may become."""
    return max(HARMLESS_BYTES, RATIO * packed)


def unpacked(path: Path) -> Path:
    """Return the file itself, or the unpacked content of a bz2 file; raise BadInput if that is truncated, or a bomb."""
    with path.open("rb") as file:
        if file.read(3) != b"BZh":
            return _check_archive(path)

    def unpack(out: Sink) -> None:
        try:
            with bz2.open(path) as packed:
                first = packed.read(PIECE_BYTES)
                if not first.startswith(UNPACKED):
                    raise BadInput(
                        f"{path} holds, packed, what is of no known format (it starts with {first[:8]!r}); known "
                        f"are npz and HDF5."
                    )
                out.write(first)
                while piece := packed.read(PIECE_BYTES):
                    out.write(piece)
        except PtymeshError:
            raise
        except (*DAMAGE, EOFError) as error:
            raise BadInput(
                f"{path} cannot be unpacked ({first_line(error)}); it is truncated or damaged: copy it again."
            ) from error

    most = most_of(path.stat().st_size)
    remedy = f"unpack it yourself (bunzip2 --keep {path.name}) and name the unpacked file"
    return _check_archive(
        get_or_make(CacheEntry(path, safe_name(fingerprint(path), "unpacked"), unpack, most, None, remedy))
    )


def npz_source(path: Path, member: str, axes: str | None) -> MappedSource:
    """Return the patterns in an npz, mapped from there if it is uncompressed, else staged once.

    Args:
        path: the npz.
        member: name of the array.
        axes: letters of its axes, as in the key map. None: "nyx" or "rcyx", and axes of length one in front of
            (N, H, W) are dropped (tike writes (1, N, H, W)).
    """
    subject = f"{member} in {path}"
    with open_npz(path) as archive:
        info = _member_info(archive, path, member)
        with archive.open(info) as stream:
            header = read_header(cast(BinaryIO, stream), subject)
    shape, dtype = header.shape, header.dtype
    if axes is None:
        while len(shape) > 3 and shape[0] == 1:
            shape = shape[1:]
        axes = {3: "nyx", 4: "rcyx"}.get(len(shape), "")
    if not axes or len(shape) != len(axes):
        raise BadInput(f"{subject} has shape {shape}; patterns have three axes (views, y, x), or four for a raster.")
    if dtype.kind not in "buif":
        raise BadInput(f"{subject} holds {str(dtype)[:80]} values; patterns are counts.")
    if 0 in shape:
        raise BadInput(f"{subject} has shape {shape}; there is nothing in it.")
    if info.file_size < header.nbytes:
        raise BadInput(f"{path} ends before its {shape} patterns do; it is truncated: copy it again.")
    file, offset = path, 0
    if info.compress_type == zipfile.ZIP_STORED:
        offset = _data_offset(path, info)
        _check_stored(path, info)
    else:
        file = _extract_member(path, info, member)
    with file.open("rb") as plain:
        plain.seek(offset)
        if read_header(plain, subject) != header:
            raise BadInput(f"{subject} contradicts itself; the file is damaged: copy it again.")
        offset = plain.tell()
    if file.stat().st_size < offset + header.nbytes:
        raise BadInput(f"{path} ends before its {shape} patterns do; it is truncated: copy it again.")
    return MappedSource(file, shape, dtype, axes, offset, header.fortran)


class ChunkedSource(SlabSource, Protocol):
    """Patterns in chunks, each of which is unpacked as a whole.

    Attributes:
        home: the file or folder that holds them.
        label: their name among others there.
        frames_per_chunk: number of views that one chunk spans.
        huge_chunks: whether chunks are too large to be unpacked for a single view.
    """

    home: Path
    label: str
    frames_per_chunk: int
    huge_chunks: bool


def sliceable(source: ChunkedSource) -> SlabSource:
    """Return the source itself, or a staged copy if reading one view would unpack a chunk of a great many."""
    if not source.huge_chunks or 0 in source.shape:
        return source
    count, height, width = source.shape
    header = {"shape": source.shape, "fortran_order": False, "descr": np.lib.format.dtype_to_descr(source.dtype)}

    def copy(out: Sink) -> None:
        np.lib.format.write_array_header_1_0(cast(IO[bytes], out), header)
        step = max(source.frames_per_chunk, 1)
        for start in range(0, count, step):
            views = np.arange(start, min(start + step, count))
            out.write(np.ascontiguousarray(source.read(views, slice(0, height), slice(0, width))).data)

    remedy = "write it again in chunks of one view"
    needed = count * height * width * source.dtype.itemsize
    home = source.home  # a file that only links to it has a fingerprint of its own
    name = safe_name(fingerprint(home), source.label)
    staged = get_or_make(CacheEntry(home, name, copy, most_of(_bytes_in(home)), needed, remedy))
    with staged.open("rb") as stream:
        staged_header = read_header(stream, str(staged))
        return MappedSource(
            staged, staged_header.shape, staged_header.dtype, "nyx", stream.tell(), staged_header.fortran
        )


def open_alike_sources(path: Path, names: Sequence[str], follow: Sequence[Path], remedy: str) -> list[Hdf5Source]:
    """Open the patterns (n, y, x) in several datasets of a file; `join_sliceable` joins them.

    Args:
        path: of the file.
        names: of the datasets.
        follow: folders of further files that it may refer to.
        remedy: end of the message about those that are not alike.

    Raises:
        BadInput: they hold patterns of several sizes or types.
    """
    sources = [Hdf5Source(path, name, "nyx", follow) for name in names]
    first = sources[0]
    for name, source in zip(names, sources, strict=True):
        if source.shape[1:] != first.shape[1:] or source.dtype != first.dtype:
            raise BadInput(
                f"{name} of {path} holds frames of {source.shape[1:]} {source.dtype}, and {names[0]} of "
                f"{first.shape[1:]} {first.dtype}{remedy}."
            )
    return sources


def join_sliceable(sources: Sequence[ChunkedSource]) -> SlabSource:
    """Join the patterns of several sources, one after the other, staged where they cannot be sliced."""
    ready = [sliceable(source) for source in sources]
    return ready[0] if len(ready) == 1 else JoinedSource(ready)


def _bytes_in(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(one.stat().st_size for one in path.rglob("*") if one.is_file())


def is_npz(path: Path) -> bool:
    """Return True if the file is a zip archive; raise BadInput if its directory contradicts itself."""
    try:
        return zipfile.is_zipfile(path)
    except ARCHIVE_DAMAGE as error:
        raise BadInput(
            f"{path} cannot be read as npz ({first_line(error)}); it is truncated or damaged: copy it again."
        ) from error


def _check_archive(path: Path) -> Path:
    """Return the path; raise BadInput if zipfile cannot tell whether it is an archive."""
    is_npz(path)
    return path


@contextlib.contextmanager
def open_npz(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an npz archive; raise BadInput if it is truncated or damaged, or packed in an unknown way."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except PtymeshError:
        raise
    except NotImplementedError as error:
        raise BadInput(
            f"{path} is packed in a way that is unknown here ({first_line(error)}); save it again with "
            f"numpy.savez_compressed."
        ) from error
    except ARCHIVE_DAMAGE as error:
        raise BadInput(
            f"{path} cannot be read as npz ({first_line(error)}); it is truncated or damaged: copy it again."
        ) from error


def npz_members(path: Path) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Return shape and dtype of every array in an npz."""
    members = {}
    with open_npz(path) as archive:
        if len(archive.infolist()) > MOST_MEMBERS:
            raise BadInput(f"{path} has {len(archive.infolist())} members; an npz of a scan holds a few arrays.")
        for info in archive.infolist():
            if info.filename.endswith(".npy"):
                name = info.filename.removesuffix(".npy")
                if name in members:
                    raise BadInput(f"{path} holds {_printable(name)} twice; save it again with numpy.savez.")
                if not name.isprintable():
                    raise BadInput(
                        f"{path} holds an array named {_printable(name)}; save it again under a printable name."
                    )
                header = _header(archive, path, info)
                members[name] = header.shape, header.dtype
    return members


def read_member(path: Path, member: str, most: int = MOST_VALUES) -> np.ndarray:
    """Return a small array of numbers in an npz.

    Args:
        path: the npz.
        member: name of the array.
        most: largest number of values.

    Raises:
        BadInput: the array is missing, damaged, too large, or holds no numbers.
    """
    subject = f"{_printable(member)} in {path}"
    with open_npz(path) as archive:
        info = _member_info(archive, path, member)
        with archive.open(info) as stream:
            header = read_header(cast(BinaryIO, stream), subject)
            check_numbers(header.dtype, subject)
            if header.nbytes > min(most * header.dtype.itemsize, most_of(info.compress_size)):
                raise BadInput(
                    f"{subject} has shape {header.shape}, more than can be used; check which array is meant."
                )
            array = read_values(cast(BinaryIO, stream), header, subject)
            if stream.read(1):  # the checksum is compared at the end, and nowhere else
                raise BadInput(f"{subject} is longer than its shape {header.shape} says; the file is damaged.")
            return array


def _member_info(archive: zipfile.ZipFile, path: Path, member: str) -> zipfile.ZipInfo:
    """Return the only member of this name; raise BadInput if there is none, or if it cannot be read."""
    matches = [info for info in archive.infolist() if info.filename == f"{member}.npy"]
    if len(matches) != 1:
        names = ", ".join(npz_members(path)) or "no arrays"
        raise BadInput(f"{path} has no array {_printable(member)}; it has {names}.")
    _refuse_unusual(path, matches[0])
    return matches[0]


def _header(archive: zipfile.ZipFile, path: Path, info: zipfile.ZipInfo) -> Header:
    _refuse_unusual(path, info)
    with archive.open(info) as stream:
        return read_header(cast(BinaryIO, stream), f"{_printable(info.filename)} in {path}")


def _refuse_unusual(path: Path, info: zipfile.ZipInfo) -> None:
    """Raise BadInput if a member is not as numpy writes them: zipfile unpacks other methods without any bound."""
    subject = f"{_printable(info.filename)} in {path}"
    if info.flag_bits & 0x1:
        raise BadInput(f"{subject} is encrypted; unpack it, and save it with numpy.savez.")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BadInput(
            f"{subject} is packed by zip's method {info.compress_type}, which numpy does not use; unpack it, and save "
            "it with numpy.savez_compressed."
        )


def _printable(name: str) -> str:
    """Return a name as it can stand in a sentence."""
    return name if name.isprintable() and len(name) <= 100 else f"{name[:100]!r}"


def _data_offset(path: Path, info: zipfile.ZipInfo) -> int:
    """Return the offset of a stored member's bytes, after its local header, whose length varies."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        header = file.read(30)
        start = info.header_offset + 30 + int.from_bytes(header[26:28], "little")
        start += int.from_bytes(header[28:30], "little")
        if header[:4] != b"PK\3\4" or start + info.file_size > path.stat().st_size:
            raise BadInput(f"{path} cannot be read as npz; it is truncated or damaged: copy it again.")
        return start


def _check_stored(path: Path, info: zipfile.ZipInfo) -> None:
    """Raise BadInput if a stored member of moderate size does not match its checksum."""
    if info.file_size <= CHECKED_BYTES:
        with open_npz(path) as archive, archive.open(info) as stream:
            while stream.read(PIECE_BYTES):
                pass


def _extract_member(path: Path, info: zipfile.ZipInfo, member: str) -> Path:
    def extract(out: Sink) -> None:
        with open_npz(path) as archive, archive.open(info) as stream:
            while piece := stream.read(PIECE_BYTES):
                out.write(piece)

    remedy = "save it with numpy.savez instead of numpy.savez_compressed"
    name = safe_name(fingerprint(path), member)
    return get_or_make(CacheEntry(path, name, extract, most_of(info.compress_size), info.file_size, remedy))
