"""ASTAR block files (.blo): 8-bit patterns, each behind six bytes (AA 55 and its number), of a raster in nanometres.

The header's fields are little-endian: sides of the patterns and of the scan, the scan's step in nm, the energy in V,
the camera length in 0.1 mm, and how many pixels of the pattern come to a metre at that length (`SDP`, in 1/100 per cm).
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.formats.contents import first_bytes
from ptymesh.io.options import DataOptions
from ptymesh.io.rasters import orientation_note, raster_positions
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.source import MappedSource
from ptymesh.io.units import ELECTRON_EV, check_energy

NAME = "ASTAR block file (.blo)"
MAGIC = b"IMGBLO"
#: Identity, version, offsets of the image and of the patterns, flags, side, rotation, scan (x, y), rotation,
#: step (x, y) in nm, energy in V, SDP, camera length in 0.1 mm.
HEADER = struct.Struct("<6sHIIIHHHHHddIHI")
#: Bytes before each pattern.
MARK, MARK_BYTES = b"\xaa\x55", 6


def recognises(path: Path, _: DataOptions) -> bool:
    """Return True for a file that begins as block files do."""
    return first_bytes(path, len(MAGIC)) == MAGIC


def read(path: Path, data: DataOptions) -> RawScan:
    """Return the scan of a block file.

    Raises:
        BadInput: It is shorter or longer than its header says, or the header cannot be.
    """
    with path.open("rb") as file:
        start = file.read(HEADER.size)
        if len(start) < HEADER.size:
            raise BadInput(f"{path} ends within its header; it is truncated: copy it again.")
        _, _, _, offset, _, side, _, columns, rows, rotation, step_x, step_y, volts, sdp, camera = HEADER.unpack(start)
        file.seek(offset)
        mark = file.read(len(MARK))
    count, frame = rows * columns, side * side + MARK_BYTES
    size = path.stat().st_size
    if not count or not side:
        raise BadInput(
            f"{path} says {rows} x {columns} patterns of {side} x {side} pixels, which cannot be; copy it again."
        )
    if size != offset + count * frame:
        raise BadInput(
            f"{path} says {rows} x {columns} = {count} patterns of {side} x {side}, which end at byte "
            f"{offset + count * frame}, and has {size} bytes, {(size - offset) / frame:.6g} patterns: copy it again."
        )
    if mark != MARK:
        raise BadInput(f"{path} has no pattern at byte {offset}, where its header says; it is damaged: copy it again.")
    if volts and data.energy_eV is None and data.wavelength_m is None:
        check_energy(volts, ELECTRON_EV, f"The beam's energy in {path}", f"{volts} V")
    steps = (step_y * 1e-9, step_x * 1e-9)
    is_known = all(math.isfinite(step) and step > 0 for step in steps)
    pixel = 1 / sdp if sdp else None
    notes = []
    if camera and pixel is not None:
        notes.append(
            f"The camera length, {camera * 1e-4:g} m, and the pixel, {pixel * 1e6:.4g} um, are nominal: a calibration "
            "of the diffraction pattern is better (data.object_pixel_m)."
        )
    if rotation:
        notes.append(f"The file says that the scan was rotated by {rotation / 100:g} degrees, which is not applied.")
    return RawScan(
        patterns=MappedSource(
            path, (count, side, side), np.dtype(np.uint8), offset=offset + MARK_BYTES, strides=(frame, side, 1)
        ),
        optics=Optics(
            radiation="electron",
            energy_eV=float(volts) if volts else None,
            distance_m=camera * 1e-4 if camera else None,
            detector_pixel_m=None if pixel is None else (pixel, pixel),
        ),
        positions=raster_positions((rows, columns), steps) if is_known else None,
        raster=(rows, columns),
        name=path.stem,
        notes=(*notes, orientation_note("Block")),
    )
