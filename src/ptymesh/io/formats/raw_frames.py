"""Raw frames of a detector, one after the other, whose pixels and type the recipe says (data.raw)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.options import DataOptions, RawLayout
from ptymesh.io.rasters import scan_shape
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.source import MappedSource


def read(path: Path, layout: RawLayout, data: DataOptions) -> RawScan:
    """Return the scan of a raw file.

    Args:
        path: the file.
        layout: pixels, type, and bytes before and between frames.
        data: of the recipe, for the scan's shape.

    Raises:
        BadInput: the file's length is no whole number of frames.
    """
    rows, columns = layout.pixels
    dtype = np.dtype(layout.dtype).newbyteorder(">" if layout.big_endian else "<")
    frame = rows * columns * dtype.itemsize
    content_bytes = path.stat().st_size - layout.offset
    count, over = divmod(content_bytes + layout.gap, frame + layout.gap)
    if content_bytes < frame or over not in (0, layout.gap):
        raise BadInput(
            f"{data.path} has {path.stat().st_size} bytes, which are {layout.offset} in front and {max(count, 0)} "
            f"frames of {frame} bytes ({rows} x {columns} {layout.dtype}) with {layout.gap} between them, and {over} "
            "bytes more; check pixels, dtype, offset and gap of data.raw, or copy the file again."
        )
    shape = scan_shape(count, None, data, str(data.path))
    item = dtype.itemsize
    strides = (frame + layout.gap, columns * item, item)
    return RawScan(
        patterns=MappedSource(path, (count, rows, columns), dtype, offset=layout.offset, strides=strides),
        optics=Optics(radiation=data.radiation),
        raster=shape.shape,
        name=data.path.name.split(".")[0],
        notes=shape.notes,
    )
