"""TIFF export: float32 images with their pixel size in the resolution tags.

L       object slices
H, W    object pixels
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tifffile

from ptymesh.plot.phase import unwrapped_phase
from ptymesh.plot.style import Pixel


def save_tiff(path: str | Path, image: np.ndarray, pixel_size_m: Pixel = None, description: str = "") -> None:
    """Write a real image (H, W), or a stack of them (L, H, W) page by page, as float32.

    XResolution and YResolution are in pixels per centimetre; the exact pixel size (y, x) in metres and what the
    values are stand in ImageDescription, as JSON. In pixel units there is no resolution.
    """
    pages = image if image.ndim == 3 else image[None]
    about = {"values": description, "pixel_size_m": pixel_size_m}
    with tifffile.TiffWriter(path) as file:
        for page in pages:
            file.write(
                np.ascontiguousarray(page, dtype=np.float32),
                photometric="minisblack",
                metadata=None,
                description=json.dumps(about),
                # The tags count pixels per centimetre, x first.
                resolution=None if pixel_size_m is None else (0.01 / pixel_size_m[1], 0.01 / pixel_size_m[0]),
                resolutionunit="NONE" if pixel_size_m is None else "CENTIMETER",
            )


def object_tiffs(
    folder: str | Path, object: np.ndarray, pixel_size_m: Pixel = None, region: np.ndarray | None = None
) -> list[Path]:
    """Write `object_amplitude.tiff` and `object_phase.tiff` of an object (L, H, W), one page per slice.

    The phase is unwrapped over the region (H, W) bool (None: all), without its ramp, and 0 outside.
    Returns the two paths.
    """
    folder = Path(folder)
    phase = np.stack([np.nan_to_num(unwrapped_phase(image, region)) for image in object])
    images = {
        "object_amplitude.tiff": (np.abs(object), "amplitude of the object"),
        "object_phase.tiff": (phase, "phase of the object (rad), unwrapped, without its linear ramp"),
    }
    for name, (image, what) in images.items():
        save_tiff(folder / name, image, pixel_size_m, what)
    return [folder / name for name in images]
