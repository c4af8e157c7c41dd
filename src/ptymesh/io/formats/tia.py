"""TIA series (.ser) of an FEI microscope: patterns that are found by a table of offsets, with the place of each.

Little-endian. The header says how many elements there are and how many of them are valid, and where the table begins.
Each element begins with its calibration and its type; its tag holds the time and the position of the beam in metres.
Energy and camera length are in the `.emi` file beside it, which is not read.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.formats.contents import first_bytes
from ptymesh.io.options import DataOptions
from ptymesh.io.rasters import orientation_note
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.source import MappedSource

NAME = "TIA series (.ser)"
#: Byte order, identity, version, kind of data, kind of tags, elements, valid ones.
HEADER = struct.Struct("<HHHIIII")
IDENTITY = (0x4949, 0x0197)
#: Version from which on offsets have eight bytes.
LONG_OFFSETS = 0x0220
IMAGES, SPECTRA, PLACED = 0x4122, 0x4120, 0x4142
#: Of an image: offset, step and reference of either axis, type, columns, rows. Of a tag: kind, time, position (x, y).
ELEMENT, TAG = struct.Struct("<ddiddiHii"), struct.Struct("<HHIdd")
DTYPES = {1: "<u1", 2: "<u2", 3: "<u4", 4: "<i1", 5: "<i2", 6: "<i4", 7: "<f4", 8: "<f8"}
MOST_ELEMENTS, MOST_SIDE = 1 << 24, 1 << 15


def recognises(path: Path, _: DataOptions) -> bool:
    """Return True for a file that begins as series do."""
    return first_bytes(path, 4) == struct.pack("<HH", *IDENTITY)


def read(path: Path, _: DataOptions) -> RawScan:
    """Return the scan of a series.

    Raises:
        BadInput: It holds spectra, or is cut short, or its elements are not alike.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(HEADER.size + 8)
        if len(start) < HEADER.size + 8:
            raise _truncated(path)
        _, _, version, kind, tags, total, valid = HEADER.unpack_from(start)
        if kind != IMAGES:
            kinds = "spectra" if kind == SPECTRA else f"elements of kind {kind:#x}"
            raise BadInput(f"{path} holds {valid} {kinds}, not patterns; name the series of the camera.")
        if not 0 < valid <= total <= MOST_ELEMENTS:
            raise BadInput(f"{path} says that {valid} of {total} elements are valid, which cannot be; copy it again.")
        width = "<u8" if version >= LONG_OFFSETS else "<u4"
        table = int.from_bytes(start[HEADER.size : HEADER.size + int(width[2])], "little")
        file.seek(table)
        content = file.read(2 * total * int(width[2]))
        if len(content) < 2 * total * int(width[2]):
            raise _truncated(path)
        offsets = np.frombuffer(content, width).astype(np.int64)
        if ((offsets < 0) | (offsets > size)).any():
            raise _truncated(path)
        first = _element(path, _bytes_at(file, int(offsets[0]), ELEMENT.size))
        places = [_bytes_at(file, int(offset), TAG.size) for offset in offsets[total : total + valid]]
    shape, dtype, step = first
    frame = shape[0] * shape[1] * dtype.itemsize
    stride = _stride(path, offsets[:valid], frame)
    end = int(offsets[valid - 1]) + ELEMENT.size + frame
    if end > size:
        raise BadInput(
            f"{path} says {valid} patterns, the last of which ends at byte {end}, and has {size} bytes; copy it again."
        )
    notes = [f"Energy and camera length are not in a .ser file; its detector pixel is {step:.4g}, without a unit."]
    if valid < total:
        notes.append(f"{valid} of {total} patterns are valid, and read.")
    return RawScan(
        patterns=MappedSource(
            path,
            (valid, *shape),
            dtype,
            offset=int(offsets[0]) + ELEMENT.size,
            strides=(stride, shape[1] * dtype.itemsize, dtype.itemsize),
        ),
        optics=Optics(radiation="electron"),
        positions=_positions(places) if tags == PLACED else None,
        name=path.stem,
        notes=(*notes, orientation_note("TIA")),
    )


def _truncated(path: Path) -> BadInput:
    return BadInput(f"{path} ends within its header or its table; it is truncated: copy it again.")


def _bytes_at(file: BinaryIO, offset: int, count: int) -> bytes:
    file.seek(offset)
    return file.read(count)


def _element(path: Path, content: bytes) -> tuple[tuple[int, int], np.dtype, float]:
    """Return (rows, columns), type and calibration of a pattern."""
    if len(content) < ELEMENT.size:
        raise _truncated(path)
    _, step, _, _, _, _, kind, columns, rows = ELEMENT.unpack(content)
    if kind not in DTYPES or not (0 < rows <= MOST_SIDE and 0 < columns <= MOST_SIDE):
        raise BadInput(
            f"{path} says {rows} x {columns} pixels of type {kind} of its first pattern, which cannot be; copy it "
            "again."
        )
    return (rows, columns), np.dtype(DTYPES[kind]), step


def _stride(path: Path, offsets: np.ndarray, frame: int) -> int:
    """Return the bytes from pattern to pattern; BadInput where these vary."""
    steps = np.unique(np.diff(offsets))
    if len(steps) > 1 or (len(steps) == 1 and steps[0] < frame + ELEMENT.size) or offsets[0] <= 0:
        raise BadInput(f"{path} has patterns of several sizes, or its table is damaged; export it anew.")
    return int(steps[0]) if len(steps) else frame + ELEMENT.size


def _positions(places: list[bytes]) -> np.ndarray | None:
    """Return (N, 2) metres, y x; None where not every pattern has a place."""
    if not all(len(one) == TAG.size for one in places):
        return None
    tags = [TAG.unpack(one) for one in places]
    if not all(one[0] == PLACED and math.isfinite(one[3] + one[4]) for one in tags):
        return None
    positions = np.array([(one[4], one[3]) for one in tags])
    return positions if len(np.unique(positions, axis=0)) > 1 or len(positions) == 1 else None
