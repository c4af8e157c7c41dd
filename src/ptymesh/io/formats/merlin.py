"""Merlin (Medipix3) `.mib`: frames, each behind a header of text; and the `.hdr` beside it, which may say the scan.

The header's fields are separated by commas: `MQ1`, number of the frame, bytes of the header, chips, columns, rows, type
(U08, U16, U32; R64 is the chips' own order, see `merlin_raw`), layout (`1x1`, `2x2`, `2x2G` with a gap between chips);
the last one is the depth of the counter. Numbers are big-endian. Neither energy nor camera length nor step is there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.formats.contents import first_bytes
from ptymesh.io.formats.merlin_raw import DEEP, DEPTHS, STRIPE, ChipOrderSource
from ptymesh.io.options import DataOptions
from ptymesh.io.rasters import Shape, orientation_note, scan_shape
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.source import MappedSource, SlabSource

NAME = "Merlin (.mib)"
MAGIC = b"MQ1,"
#: Bytes in which the fields that are needed stand, and the least and the most that a header has.
FIELDS_BYTES, HEADER_BYTES = 256, (128, 1 << 16)
DTYPES = {"U08": ">u1", "U16": ">u2", "U32": ">u4", "U64": ">u8"}
#: Type of frames in the chips' order.
CHIP_ORDER = "R64"
#: Of Medipix3 chips: metres, and pixels along a side.
PIXEL_M, CHIP = 55e-6, 256
MOST_PIXELS = 1 << 15
HDR_BYTES = 1 << 20


@dataclass(frozen=True)
class FrameHeader:
    """The header of a frame.

    Attributes:
        number: of the frame, counted from 1.
        size: bytes of the header.
        shape: (rows, columns) of the detector, or of the stored bytes in the chips' order.
        dtype: of the frame's numbers.
        layout: of the chips, such as `2x2G`.
        depth: bits of the counter, of frames in the chips' order; else 0.
        chips: how many there are.
    """

    number: int
    size: int
    shape: Shape
    dtype: np.dtype
    layout: str
    depth: int = 0
    chips: int = 1

    @property
    def frame_bytes(self) -> int:
        """Bytes from one frame to the next."""
        return self.size + self.shape[0] * self.shape[1] * self.dtype.itemsize


def recognises(path: Path, _: DataOptions) -> bool:
    """Return True for a file that begins with a frame's header."""
    return first_bytes(path, len(MAGIC)) == MAGIC


def read(path: Path, data: DataOptions) -> RawScan:
    """Return the scan of a `.mib` file.

    Raises:
        BadInput: It is cut short, or its headers contradict each other or its length.
    """
    first = _header(path, 0)
    count, cut = _frames(path, first, data)
    last = _header(path, (count - 1) * first.frame_bytes)
    if (last.size, last.shape, last.dtype) != (first.size, first.shape, first.dtype):
        raise BadInput(
            f"{path} begins with frames of {first.shape} {first.dtype} and ends with such of {last.shape} "
            f"{last.dtype}: split it where they change."
        )
    notes = [] if cut is None else [cut]
    if last.number - first.number != count - 1:
        notes.append(
            f"The frames are numbered from {first.number} to {last.number}, and there are {count}: some were lost, or "
            "several acquisitions are joined."
        )
    declared, origin = _declared_shape(path)
    shape = scan_shape(count, declared, data, origin)
    mask = _gap_mask(first)
    if mask is not None:
        notes.append(f"{int((~mask).sum())} pixels in the gap between the chips ({first.layout}) are masked.")
    rows, columns = first.shape
    item = first.dtype.itemsize
    strides = (first.frame_bytes, columns * item, item)
    patterns: SlabSource = MappedSource(path, (count, rows, columns), first.dtype, offset=first.size, strides=strides)
    if first.depth:
        patterns = ChipOrderSource(patterns, first.depth, is_quad=first.chips > 1)
        if first.chips > 1:
            notes.append("Undecoded frames (R64): the four chips are joined without the gap between them.")
    return RawScan(
        patterns=patterns,
        optics=Optics(detector_pixel_m=(PIXEL_M, PIXEL_M)),
        raster=shape.shape,
        mask=mask,
        name=path.stem,
        notes=(*shape.notes, *notes, orientation_note("Merlin")),
    )


def _header(path: Path, offset: int) -> FrameHeader:
    """Return the header that begins at an offset; BadInput where there is none, or it cannot be."""
    with path.open("rb") as file:
        file.seek(offset)
        text = file.read(FIELDS_BYTES).decode("latin-1")
    fields = [field.strip() for field in text.split(",")]
    subject = f"The frame's header at byte {offset} of {path}"
    if fields[0] != "MQ1" or len(fields) < 8:
        raise BadInput(f"{subject} does not begin with MQ1 and seven more fields; the file is damaged: copy it again.")
    numbers = [int(field) if re.fullmatch(r"\d{1,9}", field) else -1 for field in fields[1:6]]
    number, size, chips, columns, rows = numbers
    if fields[6] not in (*DTYPES, CHIP_ORDER):
        raise BadInput(f"{subject} says the type {fields[6][:20]!r}; known are {', '.join((*DTYPES, CHIP_ORDER))}.")
    if not (HEADER_BYTES[0] <= size <= HEADER_BYTES[1] and 0 < rows <= MOST_PIXELS and 0 < columns <= MOST_PIXELS):
        raise BadInput(
            f"{subject} says {fields[2]} bytes of header and {fields[4]} x {fields[5]} pixels (x, y), which cannot be; "
            "the file is damaged: copy it again."
        )
    if fields[6] != CHIP_ORDER:
        return FrameHeader(number, size, (rows, columns), np.dtype(DTYPES[fields[6]]), fields[7])
    depth = _depth(path, offset, size)
    is_known = chips == 1 or (chips == 4 and fields[7].startswith("2x2") and depth != DEEP)
    if depth not in (*DEPTHS, DEEP) or not is_known or columns % (STRIPE * max(chips, 1)):
        raise BadInput(
            f"{subject} says undecoded frames (R64) of {chips} chips ({fields[7]}), {columns} columns and {depth} "
            "bits, which are not read; export it from the camera's software as U08, U16 or U32."
        )
    if depth == DEEP:  # two frames of 12 bits, side by side in the header and one after the other in the file
        rows, columns = 2 * rows, columns // 2
    row_bytes = columns // STRIPE * DEPTHS[min(depth, 12)][0]
    return FrameHeader(number, size, (rows, row_bytes), np.dtype(np.uint8), fields[7], depth, chips)


def _depth(path: Path, offset: int, size: int) -> int:
    """Return the bits of the counter, which is the header's last number; -1 where it is none."""
    with path.open("rb") as file:
        file.seek(offset)
        text = file.read(size).decode("latin-1")
    fields = [field.strip() for field in text.split("\0")[0].rstrip().rstrip(",").split(",")]
    return int(fields[-1]) if re.fullmatch(r"\d{1,2}", fields[-1]) else -1


def _frames(path: Path, header: FrameHeader, data: DataOptions) -> tuple[int, str | None]:
    """Return the number of whole frames, and what to say of the bytes behind them.

    Raises:
        BadInput: The last frame is cut, and the recipe does not say which frames are the scan's.
    """
    size = path.stat().st_size
    count, over = divmod(size, header.frame_bytes)
    if not over and count:
        return count, None
    sizes = f"{path} has {size} bytes, which are {count} frames of {header.frame_bytes} bytes and {over} bytes"
    if data.frames is None or data.frames.shape is None or not count:
        raise BadInput(
            f"{sizes}: copy it again, or, if the acquisition was stopped, set data.frames.shape to the whole rows and "
            "the columns that there are."
        )
    return count, f"{sizes}, which are left out."


def _declared_shape(path: Path) -> tuple[Shape | None, str]:
    """Return (rows, columns) that the `.hdr` beside a file says, None where there is none; and its name."""
    header_file = next(
        (path.with_suffix(ending) for ending in (".hdr", ".HDR") if path.with_suffix(ending).is_file()), None
    )
    if header_file is None or header_file.stat().st_size > HDR_BYTES:
        return None, str(path)
    lines = header_file.read_bytes().decode("latin-1").splitlines()
    values = {key.strip().rstrip(":"): value.strip() for key, _, value in (line.partition("\t") for line in lines)}

    def number(name: str) -> int:
        text = values.get(name, "")
        return int(text) if re.fullmatch(r"\d{1,9}", text) else 0

    rows, columns = number("ScanY"), number("ScanX")
    if rows and columns:
        return (rows, columns), str(header_file)
    total, row = number("Frames in Acquisition (Number)"), number("Frames per Trigger (Number)")
    if 1 < row < total and total % row == 0:  # a trigger for each row of the scan
        return (total // row, row), str(header_file)
    return None, str(header_file)


def _gap_mask(header: FrameHeader) -> np.ndarray | None:
    """Return (rows, columns) bool, False in the cross between four chips; None where no gap is stored."""
    if not header.layout.endswith("G"):
        return None
    gaps = [side - 2 * CHIP for side in header.shape]
    if not all(0 < gap < CHIP for gap in gaps):
        return None
    mask = np.ones(header.shape, bool)
    mask[CHIP : CHIP + gaps[0]] = False
    mask[:, CHIP : CHIP + gaps[1]] = False
    return mask
