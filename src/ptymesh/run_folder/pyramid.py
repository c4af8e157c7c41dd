"""Pyramid of a large object: out/pyramid.h5, which holds it in ever coarser pixels, to be looked at at once.

L, H, W  slices, object pixels

`object/2`, `object/4`, ... hold means over 2 x 2, 4 x 4, ... pixels in square chunks, (L, H // 2, W // 2) complex64 and
so on. The full resolution is in the result.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import h5py
import numpy as np

from ptymesh.files import replacing

NAME = "pyramid.h5"
#: Objects with a larger side have a pyramid; its coarsest level has no larger side than this.
LEAST_SIDE, COARSEST_SIDE = 4096, 1024
#: Side of the chunks in which a level lies in the file.
CHUNK = 256
#: Rows of the result that are read at a time.
ROWS = 512


def write_pyramid(result: Path, least_side: int = LEAST_SIDE, coarsest_side: int = COARSEST_SIDE) -> Path | None:
    """Write the pyramid of a result beside it, reading the object some rows at a time; return its path.

    Args:
        result: path of result.h5.
        least_side: largest side in pixels of objects that need none; a pyramid of an earlier result is removed then.
        coarsest_side: largest side of the coarsest level in pixels.

    Raises:
        OSError: the result cannot be read.
        PtymeshError: the disk refuses.
    """
    path = result.with_name(NAME)
    with h5py.File(result, "r", locking=False) as file:
        source = file["object"]
        slices, height, width = source.shape
        if max(height, width) <= least_side:
            path.unlink(missing_ok=True)
            return None
        needed = slices * height * width * 3
        with (
            replacing(path, needed, durable=False) as temporary,
            h5py.File(temporary, "x", locking=False) as pyramid,
        ):
            pyramid.attrs["probe_crc32"] = crc_of_probe(file)
            pyramid.attrs["shape"] = source.shape
            factor = 1
            while max(source.shape[1:]) > coarsest_side and min(source.shape[1:]) >= 2:
                factor *= 2
                source = _write_level(pyramid, source, factor)
    return path


def crc_of_probe(result: h5py.File) -> int:
    """Return the CRC-32 of a result's probe, by which a pyramid knows the result that it is of."""
    return zlib.crc32(np.ascontiguousarray(result["probe"][()]).tobytes())


def _write_level(pyramid: h5py.File, source: h5py.Dataset, factor: int) -> h5py.Dataset:
    """Write means over 2 x 2 pixels of an array (L, H, W), and return them as they are in the file.

    Args:
        pyramid: the pyramid.
        source: the object, or the level before.
        factor: pixels of the object along a side of one of the new level.
    """
    slices, rows, columns = source.shape[0], source.shape[1] // 2, source.shape[2] // 2
    chunks = (1, min(CHUNK, rows), min(CHUNK, columns))
    level = pyramid.create_dataset(f"object/{factor}", (slices, rows, columns), np.complex64, chunks=chunks)
    for index in range(slices):
        for top in range(0, rows, ROWS):
            bottom = min(top + ROWS, rows)
            band = source[index, 2 * top : 2 * bottom, : 2 * columns]
            level[index, top:bottom] = 0.25 * (
                (band[0::2, 0::2] + band[1::2, 0::2]) + (band[0::2, 1::2] + band[1::2, 1::2])
            )
    return level
