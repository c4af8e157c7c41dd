"""Variables of MATLAB files of level 5 (`save -v6` and `-v7`): names, sizes and where their numbers lie.

A file is a header of 128 bytes and one element for each variable, which is a matrix or, with `-v7`, a matrix packed by
zlib. A matrix holds flags, size, name and numbers, each behind a tag of eight bytes; numbers may be stored in a smaller
type than the variable's. Source: MAT-File Format, The MathWorks (level 5).
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.cache import CacheEntry, Sink, get_or_make, safe_name
from ptymesh.io.fingerprint import fingerprint
from ptymesh.io.source import MappedSource
from ptymesh.io.staging import most_of

HEADER_BYTES = 128
#: Bytes at the end of the header, by which the file was written in this or the other byte order.
ORDERS = {b"IM": "<", b"MI": ">"}
MATRIX, PACKED = 14, 15
DTYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
#: Classes of full arrays of numbers: double, single, and integers of 8 to 64 bits.
NUMERIC = range(6, 16)
COMPLEX_FLAG = 0x0800
#: Bytes from the beginning of a matrix in which its flags, size and name lie.
START_BYTES = 4096
MOST_VARIABLES = 10_000
PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class MatArray:
    """An array of numbers in a file.

    Attributes:
        path: of the file.
        name: of the variable.
        shape: its size, as MATLAB says it; the first axis is the fastest.
        dtype: of the numbers as stored.
        is_complex: whether an imaginary part follows.
        at: byte of the file at which the element's content begins.
        packed: bytes of the packed content; 0: it is not packed.
        offset: byte at which the numbers begin, from `at`, once unpacked.
        start: first bytes of the unpacked content.
    """

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    is_complex: bool
    at: int
    packed: int
    offset: int
    start: bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return math.prod(self.shape) * self.dtype.itemsize

    def number(self) -> float | None:
        """Return the value of a single number; None of an array."""
        content = self.start[self.offset : self.offset + self.dtype.itemsize]
        if math.prod(self.shape) != 1 or self.is_complex or len(content) < self.dtype.itemsize:
            return None
        return float(np.frombuffer(content, self.dtype)[0])

    def source(self, axes: str) -> MappedSource:
        """Return the numbers as patterns, mapped from the file, or from a copy that is unpacked once.

        Args:
            axes: letters of the axes in the order of `shape`.

        Raises:
            BadInput: the packed numbers end early, or are damaged.
        """
        path, offset = self.path, self.at + self.offset
        if self.packed:
            path, offset = self._unpacked(), 0
        return MappedSource(path, self.shape, self.dtype, axes, offset, fortran_order=True)

    def _unpacked(self) -> Path:
        def unpack(out: Sink) -> None:
            skip, bytes_left = self.offset, self.nbytes
            with self.path.open("rb") as file:
                for piece in _unpack(file, self.at, self.packed):
                    part = piece[skip : skip + bytes_left]
                    skip, bytes_left = max(0, skip - len(piece)), bytes_left - len(part)
                    out.write(part)
                    if not bytes_left:
                        return
            raise zlib.error(f"{bytes_left} bytes are missing")

        def unpack_or_refuse(out: Sink) -> None:
            try:
                unpack(out)
            except zlib.error as error:
                raise BadInput(
                    f"{self.name} in {self.path} cannot be unpacked ({error}); it is truncated or damaged: copy it "
                    "again."
                ) from error

        remedy = "save it with -v6 or -v7.3"
        name = safe_name(fingerprint(self.path), self.name)
        return get_or_make(CacheEntry(self.path, name, unpack_or_refuse, most_of(self.packed), self.nbytes, remedy))


def has_level_5_header(start: bytes) -> bool:
    """Return True if the first 128 bytes of a file are the header of MATLAB's level 5."""
    order = ORDERS.get(start[126:128])
    return len(start) >= HEADER_BYTES and order is not None and struct.unpack(f"{order}H", start[124:126])[0] == 0x0100


def list_variables(path: Path) -> list[MatArray]:
    """Return the arrays of numbers in a file of level 5; others (text, cells, structures) are passed over.

    Raises:
        BadInput: an element ends behind the file's end, or is damaged.
    """
    variables: list[MatArray] = []
    size = path.stat().st_size
    with path.open("rb") as file:
        order = ORDERS[file.read(HEADER_BYTES)[126:128]]
        at = HEADER_BYTES
        while at + 8 <= size and len(variables) < MOST_VARIABLES:
            file.seek(at)
            kind, count = struct.unpack(f"{order}II", file.read(8))
            at += 8
            if at + count > size:
                raise BadInput(
                    f"{path} says a variable up to byte {at + count}, and has {size} bytes; it is truncated: copy it "
                    "again."
                )
            variable = _variable(path, file, order, kind, at, count)
            variables += [variable] if variable is not None else []
            at += count
    return variables


def _variable(path: Path, file: BinaryIO, order: str, kind: int, at: int, count: int) -> MatArray | None:
    """Return what an element holds; None where it is no full array of numbers."""
    if kind == MATRIX:
        file.seek(at)
        start, shift = file.read(min(count, START_BYTES)), 0
    elif kind == PACKED:
        try:
            start = next(_unpack(file, at, count), b"")[: START_BYTES + 8]
        except zlib.error as error:
            raise BadInput(
                f"{path} cannot be unpacked at byte {at} ({error}); it is damaged: copy it again."
            ) from error
        if len(start) < 8 or struct.unpack_from(f"{order}I", start)[0] != MATRIX:
            return None
        shift = 8
    else:
        return None
    try:
        (_, flags, _), place = _sub_element(start, order, shift)
        (_, sizes, _), place = _sub_element(start, order, place)
        (_, name, _), place = _sub_element(start, order, place)
        bits = struct.unpack_from(f"{order}I", flags)[0]
        if bits & 0xFF not in NUMERIC:
            return None
        (stored, _, offset), _ = _sub_element(start, order, place)
        shape = struct.unpack(f"{order}{len(sizes) // 4}i", sizes)
        dtype = np.dtype(f"{order}{DTYPES[stored]}")
    except (struct.error, KeyError):
        return None
    if min(shape, default=0) < 0:
        raise BadInput(f"{path} says an array of {shape} at byte {at}, which cannot be; it is damaged: copy it again.")
    packed = count if kind == PACKED else 0
    text = name.decode("latin-1")
    array = MatArray(path, text, shape, dtype, bool(bits & COMPLEX_FLAG), at, packed, offset, start)
    if not packed and offset + array.nbytes > count:
        raise BadInput(
            f"{text} in {path} is {shape} {dtype.name}, which needs {array.nbytes} bytes, and its element has {count}; "
            "it is damaged: copy it again."
        )
    return array


def _sub_element(start: bytes, order: str, place: int) -> tuple[tuple[int, bytes, int], int]:
    """Return (type, content, place of the content) of the part at a place, and where the next one begins."""
    kind, count = struct.unpack_from(f"{order}II", start, place)
    if kind >> 16:  # up to four bytes stand within the tag
        return (kind & 0xFFFF, start[place + 4 : place + 4 + (kind >> 16)], place + 4), place + 8
    content = place + 8
    return (kind, start[content : content + count], content), content + (count + 7) // 8 * 8


def _unpack(file: BinaryIO, at: int, count: int) -> Iterator[bytes]:
    """Yield the unpacked content of an element, piece by piece; zlib.error where it is damaged."""
    file.seek(at)
    decoder = zlib.decompressobj()
    while count and not decoder.eof:
        piece = file.read(min(count, PIECE_BYTES))
        count -= len(piece)
        if not piece:
            return
        while piece and not decoder.eof:
            yield decoder.decompress(piece, PIECE_BYTES)
            piece = decoder.unconsumed_tail
