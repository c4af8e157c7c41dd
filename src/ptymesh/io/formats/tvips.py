"""TVIPS sequences (`NAME_000.tvips`, `NAME_001.tvips` ...): frames, each behind a header, in one or more files.

The first file begins with 256 bytes: thirteen little-endian int32, of which these are used: size (256), version (1, 2),
columns, rows, bits of a pixel, pixel size, high tension in kV, and (version 2) bytes of a frame's header, which has
columns of the scan generator, x and y, as float32 at bytes 68 and 72. Of version 1 a frame's header has 12 bytes.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.formats.contents import first_bytes
from ptymesh.io.options import DataOptions
from ptymesh.io.rasters import Shape, orientation_note, scan_shape
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.source import JoinedSource, MappedSource, SlabSource
from ptymesh.io.units import ELECTRON_EV, check_energy

NAME = "TVIPS sequence (.tvips)"
HEADER = struct.Struct("<13i")
HEADER_BYTES, FRAME_HEADER_BYTES_1, MOST_FRAME_HEADER_BYTES = 256, 12, 1 << 16
MOST_PIXELS = 1 << 15
#: Bytes before the scan generator's x, y in a frame's header; frames that are looked at for the first row of the scan.
SCAN_OFFSET, LOOKED_AT = 68, 4096


@dataclass(frozen=True)
class SequenceHeader:
    """Header of the first file, which holds for all frames.

    Attributes:
        version: 1 or 2.
        shape: (rows, columns) of a frame.
        dtype: of its pixels.
        pixel_size: as it stands, a whole number.
        volts: of the beam; 0: not said.
        before_frame: bytes of a frame's header.
    """

    version: int
    shape: Shape
    dtype: np.dtype
    pixel_size: int
    volts: float
    before_frame: int

    @property
    def frame_bytes(self) -> int:
        """Bytes from one frame to the next."""
        return self.before_frame + self.shape[0] * self.shape[1] * self.dtype.itemsize


def recognises(path: Path, _: DataOptions) -> bool:
    """Return True for a file that begins with a header of a sequence, whose numbers can be."""
    return _header(path) is not None


def read(path: Path, data: DataOptions) -> RawScan:
    """Return the scan of a sequence.

    Raises:
        BadInput: A file is cut short, or the scan generator's coordinates say another shape than there are frames.
    """
    header = _header(path)
    assert header is not None
    sources = [
        _frames(one, header, start) for one, start in zip(_files(path), (HEADER_BYTES, *([0] * 10**3)), strict=False)
    ]
    count = sum(source.shape[0] for source in sources)
    if header.volts and data.energy_eV is None and data.wavelength_m is None:
        check_energy(header.volts, ELECTRON_EV, f"The beam's energy in {path}", f"{header.volts / 1e3:g} kV")
    notes = []
    declared, first = _scanned(path, header, sources[0].shape[0], count)
    if first and data.frames is None and declared is not None:
        raise BadInput(
            f"The scan generator's coordinates in {path} begin at frame {first}, with rows of {declared[1]}: if the "
            f"{first} frames before it belong to no view, set data.frames to {{shape: [{declared[0]}, {declared[1]}], "
            f"skip: {first}}}."
        )
    if header.pixel_size:
        notes.append(
            f"The header's pixel size, {header.pixel_size}, is not used: programs take it for nm and for 1/nm. Set "
            "data.object_pixel_m."
        )
    shape = scan_shape(count, declared, data, f"The scan generator of {path}")
    if len(sources) > 1:
        notes.append(f"{len(sources)} files are joined, of {count} frames.")
    return RawScan(
        patterns=sources[0] if len(sources) == 1 else JoinedSource(sources),
        optics=Optics(radiation="electron", energy_eV=header.volts or None),
        raster=shape.shape,
        name=re.sub(r"_0+$", "", path.stem),
        notes=(*shape.notes, *notes, orientation_note("TVIPS")),
    )


def _header(path: Path) -> SequenceHeader | None:
    """Return what the file's first bytes say; None where they are no header of a sequence."""
    start = first_bytes(path, HEADER.size)
    if len(start) < HEADER.size:
        return None
    size, version, columns, rows, bits, *_, pixel_size, kilovolts, _, before = HEADER.unpack(start)
    before = FRAME_HEADER_BYTES_1 if version == 1 else before
    is_header = (
        size == HEADER_BYTES
        and version in (1, 2)
        and bits in (8, 16, 32)
        and 0 < rows <= MOST_PIXELS
        and 0 < columns <= MOST_PIXELS
        and 0 < before <= MOST_FRAME_HEADER_BYTES
        and kilovolts >= 0
    )
    if not is_header:
        return None
    return SequenceHeader(version, (rows, columns), np.dtype(f"<u{bits // 8}"), pixel_size, kilovolts * 1e3, before)


def _files(path: Path) -> list[Path]:
    """Return the file and those that follow it: `_001` after `_000`, up to the first number that is missing."""
    files = [path]
    matched = re.fullmatch(r"(.*_)(0+)", path.stem)
    while matched is not None and len(files) < 10**3:
        following = path.with_name(f"{matched[1]}{len(files):0{len(matched[2])}d}{path.suffix}")
        if not following.is_file():
            break
        files.append(following)
    return files


def _frames(path: Path, header: SequenceHeader, start: int) -> SlabSource:
    """Return the frames of one file, which begin behind `start` bytes."""
    size = path.stat().st_size - start
    count, over = divmod(size, header.frame_bytes)
    if over or not count:
        raise BadInput(
            f"{path} has {path.stat().st_size} bytes, which are {count} frames of {header.frame_bytes} bytes and "
            f"{over} bytes; it is truncated: copy it again."
        )
    rows, columns = header.shape
    item = header.dtype.itemsize
    return MappedSource(
        path,
        (count, rows, columns),
        header.dtype,
        offset=start + header.before_frame,
        strides=(header.frame_bytes, columns * item, item),
    )


def _scanned(path: Path, header: SequenceHeader, frames_on_disk: int, count: int) -> tuple[Shape | None, int]:
    """Return (rows, columns) of the scan and its first frame, by the scan generator's coordinates; None for none.

    Args:
        path: the first file.
        header: of the sequence.
        frames_on_disk: frames in that file.
        count: frames in all files; those behind the last whole row are no reason to know nothing.
    """
    if header.version == 1 or header.before_frame < SCAN_OFFSET + 8:
        return None, 0
    frames_read = min(frames_on_disk, LOOKED_AT)
    places = np.empty((frames_read, 2))
    with path.open("rb") as file:
        for k in range(frames_read):
            file.seek(HEADER_BYTES + k * header.frame_bytes + SCAN_OFFSET)
            places[k] = np.frombuffer(file.read(8), "<f4")
    x, y = np.rint(np.nan_to_num(places, posinf=0, neginf=0)).astype(np.int64).T
    begins = np.flatnonzero((x[1:] == 1) & (y[1:] == 0) & (x[:-1] == 0) & (y[:-1] == 0))
    if not len(begins):
        return None, 0
    first = int(begins[0])
    turns = np.flatnonzero((x[first + 1 :] == 0) & (y[first + 1 :] == 1))
    if not len(turns):
        return None, 0
    columns = int(turns[0]) + 1
    rows = (count - first) // columns
    return ((rows, columns), first) if rows else (None, 0)
