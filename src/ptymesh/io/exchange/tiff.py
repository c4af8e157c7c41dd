"""The object as an ImageJ hyperstack of 32 bits: amplitude and phase (rad, -pi to pi) as channels, slices as z.

L, H, W     object slices and pixels

The size of a pixel is in the resolution tags and in ImageJ's description, in nanometres (or pixels); in nanometres also
in the tags of DigitalMicrograph, the only ones from which hyperspy takes such a unit. Source: ImageJ's documentation of
TIFF and tifffile's, which writes it; RosettaSciIO's reader of TIFF for DigitalMicrograph's tags.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.files import replacing
from ptymesh.io.exchange.result_format import ResultFormat
from ptymesh.io.results import Result

#: Bytes that ImageJ's TIFF may have, with room for its tags.
MOST_BYTES = (1 << 32) - (1 << 20)
#: DigitalMicrograph's tags of the unit and of the scale of each axis.
DM_TAGS = {"x": (65003, 65009), "y": (65004, 65010), "z": (65005, 65011)}


def write(result: Result, path: Path) -> None:
    """Write amplitude and phase of the object, (L, 2, H, W).

    Raises:
        BadInput: the object is larger than ImageJ's TIFF, or the path cannot be a file.
    """
    import tifffile

    stack = np.stack((np.abs(result.object), np.angle(result.object)), axis=1).astype(np.float32)
    if stack.nbytes > MOST_BYTES:
        raise BadInput(f"Amplitude and phase take {stack.nbytes:g} bytes, more than ImageJ's TIFF holds (4 GB).")
    about: dict[str, Any] = {
        "axes": "ZCYX",
        "unit": "pixel",
        "mode": "grayscale",
        "Labels": [f"{name}, slice {i}" for i in range(len(stack)) for name in ("amplitude", "phase (rad)")],
    }
    resolution = None
    calibration: list[tuple[int, str, int, str | float, bool]] = []
    if result.pixel_size_m is not None:
        y, x = result.pixel_size_m
        about |= {"unit": "nm", "spacing": result.slice_spacing_m * 1e9 or 1.0}
        resolution = 1e-9 / x, 1e-9 / y  # pixels per unit, x first
        scales = {"x": x, "y": y} | ({"z": result.slice_spacing_m} if result.slice_spacing_m > 0 else {})
        for axis, scale in scales.items():
            unit, number = DM_TAGS[axis]
            calibration += [(unit, "s", 0, "nm", True), (number, "d", 1, scale * 1e9, True)]
    packed = BytesIO()  # in memory: errors of the disk then come from one plain write
    tifffile.imwrite(packed, stack, imagej=True, resolution=resolution, metadata=about, extratags=calibration)
    with replacing(path, packed.getbuffer().nbytes) as temporary:
        temporary.write_bytes(packed.getbuffer())


FORMAT = ResultFormat(
    name="tiff",
    endings=(".tif", ".tiff"),
    program="ImageJ, Fiji and others",
    holds=frozenset({"slices"}),
    write=write,
    needs_metres=False,
)
