"""Velox (.emd): series of frames of a camera, (rows, columns, frames), each with metadata as JSON in bytes.

Diffraction patterns have pixels in inverse metres; frames whose pixels are lengths are images, and refused as such.
Where the patterns were taken is not in the file.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ptymesh.errors import BadInput
from ptymesh.geometry import Pair
from ptymesh.io.formats.contents import is_hdf5_with
from ptymesh.io.hdf5.reading import DAMAGE, Hdf5File, dataset_of, item_of, open_hdf5, reading
from ptymesh.io.options import DataOptions
from ptymesh.io.rasters import orientation_note, scan_shape
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.source import Hdf5Source
from ptymesh.io.staging import sliceable
from ptymesh.io.units import ELECTRON_EV, check_energy, length_m, object_pixel_m

NAME = "Velox (.emd)"
IMAGES = "/Data/Image"
#: Bytes of a frame's metadata, at most.
METADATA_BYTES = 1 << 22


def recognises(path: Path, data: DataOptions) -> bool:
    """Return True for HDF5 with frames where Velox keeps them."""
    return is_hdf5_with(path, data, _series)


def read(path: Path, data: DataOptions) -> RawScan:
    """Return the scan of the longest series of frames.

    Raises:
        BadInput: Its frames are images, or its metadata cannot be read.
    """
    with open_hdf5(path, follow=data.follow) as file:
        names = _series(file)
        name = max(names, key=lambda one: names[one])
        metadata = _metadata(file, name, path)
    source = Hdf5Source(path, f"{name}/Data", "yxn", data.follow)
    pixel = _object_pixel(metadata, source.shape[1:], path, name)
    volts = _number(metadata, "Optics", "AccelerationVoltage")
    if volts is not None and data.energy_eV is None and data.wavelength_m is None:
        check_energy(volts, ELECTRON_EV, f"AccelerationVoltage in {path}", f"{volts:g} V")
    shape = scan_shape(source.shape[0], None, data, str(path))
    return RawScan(
        patterns=sliceable(source),
        optics=Optics(radiation="electron", energy_eV=volts, object_pixel_m=pixel),
        raster=shape.shape,
        name=path.stem,
        notes=(*shape.notes, orientation_note("Velox")),
    )


def _series(file: Hdf5File) -> dict[str, int]:
    """Return the number of frames of each series, by its group."""
    group = item_of(file, IMAGES)
    if not isinstance(group, h5py.Group):
        return {}
    try:
        names = list(group.keys())[:1000]
    except DAMAGE:
        return {}
    frames_of_group = {}
    for one in names:
        name = f"{IMAGES}/{one}"
        item = item_of(file, f"{name}/Data")
        if isinstance(item, h5py.Dataset) and item.ndim == 3 and item_of(file, f"{name}/Metadata") is not None:
            frames_of_group[name] = int(item.shape[2])
    return frames_of_group


def _metadata(file: Hdf5File, name: str, path: Path) -> dict[str, Any]:
    """Return what the first frame's metadata say; BadInput where they are no JSON."""
    subject = f"{name}/Metadata in {path}"
    data = dataset_of(file, f"{name}/Metadata")
    if data.dtype.kind not in "ui" or data.dtype.itemsize != 1 or data.ndim not in (1, 2) or len(data) > METADATA_BYTES:
        raise BadInput(f"{subject} has shape {data.shape} {data.dtype}; it must be bytes of JSON: copy the file again.")
    with reading(subject):
        content = np.asarray(data[()] if data.ndim == 1 else data[:, 0]).astype(np.uint8).tobytes()
    try:
        metadata = json.loads(content.partition(b"\0")[0])
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{subject} cannot be read as JSON ({error}); the file is damaged: copy it again.") from error
    return metadata if isinstance(metadata, dict) else {}


def _nested_value(value: Any, *keys: str) -> Any:
    """Return what nested dicts hold under successive keys; None if one is missing."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _number(metadata: Any, *keys: str) -> float | None:
    """Return a positive number of the metadata, None where there is none."""
    try:
        value = float(_nested_value(metadata, *keys))
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) and value > 0 else None


def _object_pixel(metadata: dict[str, Any], window: tuple[int, int], path: Path, name: str) -> Pair | None:
    """Return the object pixel (y, x), None where the patterns are not calibrated; BadInput for images."""
    scales = []
    for axis, letter in zip(("height", "width"), "YX", strict=True):
        size = _number(metadata, "BinaryResult", "PixelSize", axis)
        unit = str(_nested_value(metadata, "BinaryResult", f"PixelUnit{letter}") or "")
        if length_m(unit) is not None:
            raise BadInput(
                f"{name} in {path} holds images of {window[0]} x {window[1]} pixels of {size or 0:g} {unit}, not "
                "diffraction patterns; name the series of the camera in data.keys."
            )
        scales.append((size or 0.0, unit))
    return object_pixel_m(window, scales, None)
