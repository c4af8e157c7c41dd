"""Export to TIFF: float32 images with their pixel size in the resolution tags.

L       object slices
H, W    object pixels
"""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path

import numpy as np
import tifffile

from ptymesh.files import replacing
from ptymesh.physics.phase import unwrapped_phase
from ptymesh.plot.style import Pixel


def save_tiff(path: str | Path, image: np.ndarray, pixel_size_m: Pixel = None, description: str = "") -> None:
    """Write a real image, or a stack of them page by page, as float32.

    XResolution and YResolution are in pixels per centimetre; the exact pixel size (y, x) in metres and the meaning of
    the values are in ImageDescription, as JSON. In pixel units there is no resolution.

    Args:
        path: of the file.
        image: (H, W) or (L, H, W) real.
        pixel_size_m: (y, x), or None.
        description: meaning of the values.
    """
    pages = image if image.ndim == 3 else image[None]
    about = {"values": description, "pixel_size_m": pixel_size_m}
    packed = BytesIO()  # packed in memory: errors of the disk then come from one plain write
    with tifffile.TiffWriter(packed) as file:
        for page in pages:
            file.write(
                np.ascontiguousarray(page, dtype=np.float32),
                photometric="minisblack",
                metadata=None,
                description=json.dumps(about),
                # The tags hold pixels per centimetre, x first.
                resolution=None if pixel_size_m is None else (0.01 / pixel_size_m[1], 0.01 / pixel_size_m[0]),
                resolutionunit="NONE" if pixel_size_m is None else "CENTIMETER",
            )
    with replacing(path, packed.getbuffer().nbytes, durable=False) as temporary:
        temporary.write_bytes(packed.getbuffer())


def object_tiffs(
    folder: str | Path,
    object: np.ndarray,
    pixel_size_m: Pixel = None,
    region: np.ndarray | None = None,
    prefix: str = "",
) -> list[Path]:
    """Write `object_amplitude.tiff` and `object_phase.tiff` of an object, one page per slice.

    The phase is unwrapped over the region, without its ramp, and 0 outside.

    Args:
        folder: that takes the files.
        object: (L, H, W) complex.
        pixel_size_m: (y, x), or None.
        region: (H, W) bool; None: all.
        prefix: of the files' names.

    Returns:
        The two paths.
    """
    phase = np.stack([np.nan_to_num(unwrapped_phase(image, region)) for image in object])
    description = "phase of the object (rad), unwrapped, without its linear ramp"
    return _pair(folder, f"{prefix}object", np.abs(object), phase, pixel_size_m, description)


def probe_tiffs(folder: str | Path, probe: np.ndarray, pixel_size_m: Pixel = None, prefix: str = "") -> list[Path]:
    """Write `probe_amplitude.tiff` and `probe_phase.tiff` (not unwrapped) of a probe, one page per mode.

    Args:
        folder: that takes the files.
        probe: (M, h, w) complex.
        pixel_size_m: (y, x), or None.
        prefix: of the files' names.

    Returns:
        The two paths.
    """
    description = "phase of the probe (rad), -pi to pi"
    return _pair(folder, f"{prefix}probe", np.abs(probe), np.angle(probe), pixel_size_m, description)


def _pair(
    folder: str | Path, name: str, amplitude: np.ndarray, phase: np.ndarray, pixel_size_m: Pixel, description: str
) -> list[Path]:
    paths = [Path(folder) / f"{name}_amplitude.tiff", Path(folder) / f"{name}_phase.tiff"]
    save_tiff(paths[0], amplitude, pixel_size_m, "amplitude")
    save_tiff(paths[1], phase, pixel_size_m, description)
    return paths
