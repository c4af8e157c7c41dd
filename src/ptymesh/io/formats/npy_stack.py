"""A single array of numpy (.npy): patterns (N, y, x), or (rows, columns, y, x), mapped from the file."""

from __future__ import annotations

from pathlib import Path

from ptymesh.errors import BadInput
from ptymesh.io.formats.calibrated import choose_stack_axes
from ptymesh.io.formats.contents import first_bytes
from ptymesh.io.npy import check_numbers, read_header
from ptymesh.io.options import DataOptions
from ptymesh.io.rasters import ScanShape, scan_shape
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.source import MappedSource

NAME = "a stack of patterns (.npy)"
#: The recipe may say the order of the axes (`data.frames.axes`).
ASKS_AXES = True
MAGIC = b"\x93NUMPY"


def recognises(path: Path, _: DataOptions) -> bool:
    """Return True for an array of numpy."""
    return first_bytes(path, len(MAGIC)) == MAGIC


def read(path: Path, data: DataOptions) -> RawScan:
    """Return the scan of a stack.

    Raises:
        BadInput: the array is no stack of real numbers, or the file ends before it does.
    """
    with path.open("rb") as file:
        header = read_header(file, str(path))
        offset = file.tell()
    check_numbers(header.dtype, str(path), "buif")
    axes = choose_stack_axes(header.shape, path, data)
    size = path.stat().st_size
    if size < offset + header.nbytes:
        raise BadInput(
            f"{path} says {header.shape} {header.dtype}, which needs {offset + header.nbytes} bytes, and has {size}; "
            "it is truncated: copy it again."
        )
    source = MappedSource(path, header.shape, header.dtype, axes, offset, header.fortran)
    shape = ScanShape(source.raster) if source.raster else scan_shape(source.shape[0], None, data, str(path))
    return RawScan(
        patterns=source, optics=Optics(radiation=data.radiation), raster=shape.shape, name=path.stem, notes=shape.notes
    )
