"""Reader of numpy's .npy format that does not trust headers: sizes are checked before anything is allocated."""

from __future__ import annotations

import io
import math
import struct
import tokenize
import warnings
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.hdf5.reading import DAMAGE, first_line, native

#: Largest number of values that is read into memory for any purpose: an object of 16384 x 16384 pixels.
MOST_VALUES = 1 << 28
#: Largest header in bytes; one that describes numbers has about a hundred, and numpy accepts any length.
HEADER_BYTES = 4096
#: Bytes that are read at a time.
PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class Header:
    """The header of an .npy file.

    Attributes:
        shape: of the array.
        fortran: whether the first axis is the fastest.
        dtype: of the numbers.
    """

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers, as a Python integer, which cannot overflow."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(stream: BinaryIO, subject: str) -> Header:
    """Return the header at the beginning of a stream, which is left where the numbers start.

    Raises:
        BadInput: there is no header, or it cannot be right.
    """
    try:
        header = _parse_header(stream)
    except (*DAMAGE, EOFError, SyntaxError, struct.error, tokenize.TokenError) as error:
        raise BadInput(
            f"{subject} is not a readable array ({first_line(error)}); it is truncated or damaged: save it again with "
            f"numpy.save or numpy.savez."
        ) from error
    if len(header.shape) > 32 or any(not 0 <= n < 1 << 48 for n in header.shape):
        shape_text = str(header.shape)[:80]
        raise BadInput(
            f"{subject} says that its shape is {shape_text}, which cannot be; the file is damaged: save it again."
        )
    return header


def _parse_header(stream: BinaryIO) -> Header:
    magic = _read_exactly(stream, 8)
    version = magic[6], magic[7]
    if magic[:6] != b"\x93NUMPY":
        raise ValueError("it does not start as numpy's arrays do")
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"version {version[0]}.{version[1]} of the format is unknown")
    size = _read_exactly(stream, 2 if version == (1, 0) else 4)
    length = int.from_bytes(size, "little")
    if length > HEADER_BYTES:
        raise ValueError(f"its header says that it has {length} bytes")
    sized_header = io.BytesIO(size + _read_exactly(stream, length))
    read_numpy_header = (
        np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # headers of Python 2, names of types that are going out of use
        shape, fortran, dtype = read_numpy_header(sized_header)
    return Header(tuple(int(n) for n in shape), bool(fortran), dtype)


def check_numbers(dtype: np.dtype, subject: str, kinds: str = "buifc") -> None:
    """Raise BadInput if a type is no number of the wanted kinds.

    Args:
        dtype: type of the values.
        subject: words for the array.
        kinds: numpy's letters of wanted kinds.
    """
    if dtype.kind not in kinds:
        wanted_kind = "numbers" if "c" in kinds else "real numbers"
        held_kind = "Python objects" if dtype.hasobject else f"{str(dtype)[:80]} values"
        raise BadInput(
            f"{subject} holds {held_kind}; it must be {wanted_kind}: convert it with astype and save it again."
        )


def read_values(stream: BinaryIO, header: Header, subject: str) -> np.ndarray:
    """Return the numbers that follow a header, as `native`.

    Args:
        stream: just behind the header.
        header: describes the numbers.
        subject: words for the array.

    Raises:
        BadInput: there are fewer numbers, or they do not fit in memory.
    """
    try:
        flat = np.empty(header.nbytes, np.uint8)
    except (MemoryError, ValueError, OverflowError) as error:
        raise BadInput(f"{subject} has shape {header.shape}, which does not fit in memory; make it smaller.") from error
    bytes_read = 0
    while bytes_read < len(flat):
        piece = stream.read(min(PIECE_BYTES, len(flat) - bytes_read))
        if not piece:
            raise BadInput(f"{subject} ends before its {header.shape} values do; it is truncated: save it again.")
        flat[bytes_read : bytes_read + len(piece)] = np.frombuffer(piece, np.uint8)
        bytes_read += len(piece)
    if header.dtype.kind == "b":  # bytes other than 0 and 1 would be neither true nor false
        flat = (flat != 0).view(np.uint8)
    array: np.ndarray = flat.view(header.dtype) if len(flat) else np.empty(0, header.dtype)
    return native(array.reshape(header.shape, order="F" if header.fortran else "C"))


def _read_exactly(stream: BinaryIO, count: int) -> bytes:
    content = b""
    while len(content) < count:
        piece = stream.read(count - len(content))
        if not piece:
            raise EOFError("it ends within its header")
        content += piece
    return content
