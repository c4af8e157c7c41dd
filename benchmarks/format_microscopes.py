"""The scan of benchmarks/formats.py in the files of electron microscopes, written byte by byte or by the format's tool.

`MICROSCOPES` has one function for each, as `MAKERS` of format_files.py has.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from format_files import COLUMNS, ROWS, Made, Scan, in_its_own_file, write_hdf5


def chip_order(folder: Path, scan: Scan) -> Made:
    """Write Merlin's undecoded frames (R64) of 12 bits: of each four pixels, the last one first."""
    path, (h, w) = folder / "chips.mib", scan.counts.shape[1:]
    with path.open("wb") as file:
        for number, frame in enumerate(scan.counts, 1):
            text = f"MQ1,{number:06d},00384,01,{w:04d},{h:04d},R64,   1x1,01,2026-11-28 18:00:00,0F,0.1,12,"
            stored = frame.astype(">u2").reshape(h, -1, 4)[..., ::-1]
            file.write(text.encode().ljust(384, b"\0") + stored.tobytes())
    return path, in_its_own_file(folder, scan), {}


def tia(folder: Path, scan: Scan) -> Made:
    """Write a series: header, offsets of patterns and of tags, then each pattern with its calibration and its tag."""
    path, count = folder / "scan_1.ser", len(scan.counts)
    header = struct.pack("<HHHIIIIQI", 0x4949, 0x0197, 0x0220, 0x4122, 0x4142, count, count, 34, 0)
    frames = len(header) + 16 * count
    body, patterns, tags = b"", [], []
    for place, frame in zip(scan.places, scan.counts, strict=True):
        patterns.append(frames + len(body))
        body += struct.pack("<ddiddiHii", 0, 1, 0, 0, 1, 0, 1, *frame.shape[::-1]) + frame.tobytes()
        tags.append(frames + len(body))
        body += struct.pack("<HHIdd", 0x4142, 0, 1456168868, place[1], place[0])
    path.write_bytes(header + struct.pack(f"<{2 * count}Q", *patterns, *tags) + body)
    return path, scan.beam(folder), {}


def velox(folder: Path, scan: Scan) -> Made:
    """Write a series of frames (rows, columns, frames), each with its metadata as JSON in a column of bytes."""
    path = folder / "velox.emd"
    size, unit = f"{1 / (scan.object_pixel_m * scan.counts.shape[1])}", "1/m"
    result = {"PixelSize": {"height": size, "width": size}, "PixelUnitX": unit, "PixelUnitY": unit}
    said = {"BinaryResult": result, "Optics": {"AccelerationVoltage": f"{scan.energy_eV}"}}
    text = np.frombuffer(json.dumps(said).encode() + b"\0", np.uint8)
    name = "Data/Image/0123456789abcdef0123456789abcdef"
    columns = np.tile(text[:, None], (1, len(scan.counts)))
    write_hdf5(path, {f"{name}/Data": scan.counts.transpose(1, 2, 0), f"{name}/Metadata": columns})
    return path, in_its_own_file(folder, scan), {}


class TagWriter:
    """Writer of DigitalMicrograph's tags, little-endian numbers in big-endian frames.

    Args:
        version: 3 or 4, of which the latter counts in eight bytes and says the length of each entry.
    """

    def __init__(self, version: int) -> None:
        self.version, self.count = version, ">Q" if version == 4 else ">I"

    def sizes(self, *numbers: int) -> bytes:
        """Return counts and types as the version writes them."""
        return b"".join(struct.pack(self.count, number) for number in numbers)

    def value(self, value: Any) -> bytes:
        """Return a number (uint32, or float32), a text (uint16), or an array (uint8) with what describes it."""
        if isinstance(value, int):
            return self.sizes(1, 5) + struct.pack("<I", value)
        if isinstance(value, float):
            return self.sizes(1, 6) + struct.pack("<f", value)
        if isinstance(value, str):
            return self.sizes(3, 20, 4, len(value)) + value.encode("utf-16-le")
        return self.sizes(3, 20, 8, value.size) + value.tobytes()

    def group(self, members: dict[str, Any] | list[Any]) -> bytes:
        """Return a group of named members, or of members without names."""
        named = [*(members.items() if isinstance(members, dict) else (("", one) for one in members))]
        entries = []
        for name, value in named:
            is_group = isinstance(value, dict | list)
            body = self.group(value) if is_group else b"%%%%" + self.value(value)
            length = struct.pack(">Q", len(body)) if self.version == 4 else b""
            entries.append(struct.pack(">BH", 20 if is_group else 21, len(name)) + name.encode() + length + body)
        return b"\1\0" + self.sizes(len(entries)) + b"".join(entries)

    def write(self, path: Path, members: dict[str, Any]) -> None:
        """Write a file."""
        body = self.group(members)
        path.write_bytes(struct.pack(">I", self.version) + self.sizes(len(body)) + struct.pack(">I", 1) + body)


def digital_micrograph(version: int, folder: Path, scan: Scan) -> Made:
    """Write a 4-D image (y, x, rows, columns, slowest first) with a thumbnail before it."""
    path = folder / f"scan.dm{version}"
    detector = 1e-9 / (scan.object_pixel_m * scan.counts.shape[1])
    axes = [(scan.step_m * 1e9, "nm")] * 2 + [(detector, "1/nm")] * 2

    def image(values: np.ndarray, axes: list[tuple[float, str]]) -> dict[str, Any]:
        sides = [{"Origin": 0.0, "Scale": float(step), "Units": unit} for step, unit in axes]
        data = {"Calibrations": {"Dimension": sides}, "Data": values.reshape(-1), "DataType": 6}
        return {"ImageData": data | {"Dimensions": list(values.shape[::-1])}}

    stored = image(scan.raster.transpose(2, 3, 0, 1), axes)
    stored["ImageTags"] = {"Microscope Info": {"Voltage": float(scan.energy_eV)}}
    thumbnail = image(np.zeros((32, 40), np.uint8), [(1.0, "")] * 2)
    TagWriter(version).write(path, {"InImageMode": 1, "ImageList": [thumbnail, stored]})
    return path, in_its_own_file(folder, scan), {}


def zarr_store(path: Path, arrays: dict[str, np.ndarray], groups: dict[str, dict[str, Any]]) -> Path:
    """Write arrays of patterns, one pattern a chunk, and the attributes of groups, by zarr itself."""
    import zarr

    root = zarr.open_group(path, mode="w", zarr_format=2, attributes=groups.pop(""))
    for name, said in groups.items():
        root.create_group(name, attributes=said)
    for name, array in arrays.items():
        chunks = (*(1,) * (array.ndim - 2), *array.shape[-2:])
        root.create_array(name, shape=array.shape, dtype=array.dtype, chunks=chunks)[...] = array
    return path


def zspy(folder: Path, scan: Scan) -> Made:
    detector = 1e-9 / (scan.object_pixel_m * scan.counts.shape[1])
    axes = [(scan.step_m * 1e9, "nm", True)] * 2 + [(detector, "1/nm", False)] * 2
    name = "Experiments/scan"
    groups: dict[str, dict[str, Any]] = {"": {"file_format": "ZSpy", "file_format_version": "3.3"}, name: {}}
    for index, (scale, unit, navigate) in enumerate(axes):
        groups[f"{name}/axis-{index}"] = {"scale": scale, "units": unit, "offset": 0.0, "navigate": navigate}
    path = zarr_store(folder / "scan.zspy", {f"{name}/data": scan.raster}, groups)
    return path, in_its_own_file(folder, scan), {}


def abtem_zarr(folder: Path, scan: Scan) -> Made:
    detector = 1e-10 / (scan.object_pixel_m * scan.counts.shape[1])
    axes = [("ScanAxis", scan.step_m * 1e10, "Å")] * 2 + [("ReciprocalSpaceAxis", detector, "1/Å")] * 2
    named = {
        f"axis_{k}": {"type": kind, "sampling": step, "units": unit, "offset": 0.0, "fftshift": True}
        for k, (kind, step, unit) in enumerate(axes)
    }
    said = {"axes": named, "type": "DiffractionPatterns", "label": "intensity"}
    path = zarr_store(folder / "scan.zarr", {"array0": scan.raster.astype(np.float32)}, {"": {"metadata0": said}})
    return path, in_its_own_file(folder, scan), {}


def py4dstem_legacy(folder: Path, scan: Scan) -> Made:
    """Write the layout before EMD 1.0, whose axes are lists of coordinates."""
    path, cube = folder / "legacy.h5", "4DSTEM_experiment/data/datacubes/datacube_0"
    detector = 1e-10 / (scan.object_pixel_m * scan.counts.shape[1])
    axes = [(ROWS, scan.step_m * 1e10, "A"), (COLUMNS, scan.step_m * 1e10, "A")]
    axes += [(side, detector, "A^-1") for side in scan.counts.shape[1:]]
    dims = {f"{cube}/dim{k}": np.arange(count) * step for k, (count, step, _) in enumerate(axes, 1)}
    write_hdf5(path, {f"{cube}/data": scan.raster} | dims)
    with h5py.File(path, "r+") as file:
        for k, (*_, unit) in enumerate(axes, 1):
            file[f"{cube}/dim{k}"].attrs["units"] = np.bytes_(unit.encode())
    return path, in_its_own_file(folder, scan), {}


MICROSCOPES: dict[str, Callable[[Path, Scan], Made]] = {
    "merlin_r64": chip_order,
    "tia": tia,
    "velox": velox,
    "dm3": partial(digital_micrograph, 3),
    "dm4": partial(digital_micrograph, 4),
    "zspy": zspy,
    "abtem_zarr": abtem_zarr,
    "py4dstem_legacy": py4dstem_legacy,
}
