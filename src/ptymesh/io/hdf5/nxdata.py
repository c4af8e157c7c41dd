"""NXdata groups in a result's file, by which silx, NeXpy and other NeXus viewers show object and probe at once.

L, M    object slices, probe modes
H, W    object pixels
h, w    window pixels

    /entry              NXentry, attribute default: object
    /entry/object       NXdata: data (link to /object), z, y, x
    /entry/probe        NXdata: data (link to /probe), mode, y, x

Links are soft ones in the same file, so that no value is stored twice. Source: the NeXus manual, NXdata (signal, axes).
"""

from __future__ import annotations

from typing import TypeAlias

import h5py
import numpy as np

#: Coordinates along one axis, their unit ("" for none) and their name for people.
Axis: TypeAlias = tuple[np.ndarray, str, str]

#: Attributes of the file itself that are for viewers alone.
VIEWED = ("NX_class", "default")


def write_default_plot(
    file: h5py.File, pixel_size_m: tuple[float, float] | None, slice_spacing_m: float, origin_px: tuple[float, float]
) -> None:
    """Add the groups to a file that has /object and /probe, and name the object as what is shown first.

    Args:
        file: open for writing.
        pixel_size_m: object pixel (y, x) in metres; None: axes are in pixels.
        slice_spacing_m: distance between slices in metres; 0: z counts slices.
        origin_px: object pixel (y, x) at which y and x are zero.
    """
    file.attrs["NX_class"], file.attrs["default"] = "NXroot", "entry"
    entry = file.create_group("entry")
    entry.attrs["NX_class"], entry.attrs["default"] = "NXentry", "object"
    pixel, unit = (pixel_size_m, "m") if pixel_size_m is not None else ((1.0, 1.0), "")
    word = unit or "px"

    def _lateral_axis(name: str, count: int, size: float, zero: float) -> Axis:
        return (np.arange(count) - zero) * size, unit, f"{name} ({word})"

    slices, height, width = file["object"].shape
    depth: Axis = (np.arange(slices) * 1.0, "", "slice")
    if slice_spacing_m > 0:
        depth = np.arange(slices) * slice_spacing_m, "m", "z (m)"
    y, x = (_lateral_axis("yx"[i], (height, width)[i], pixel[i], origin_px[i]) for i in range(2))
    _write_group(entry, "object", "/object", {"z": depth, "y": y, "x": x})
    modes, height, width = file["probe"].shape
    y, x = (_lateral_axis("yx"[i], (height, width)[i], pixel[i], (height, width)[i] // 2) for i in range(2))
    _write_group(entry, "probe", "/probe", {"mode": (np.arange(modes) * 1.0, "", "mode"), "y": y, "x": x})


def _write_group(entry: h5py.Group, name: str, target: str, axes: dict[str, Axis]) -> None:
    """Write one NXdata group whose signal is a link to `target`, with one axis for each dimension."""
    group = entry.create_group(name)
    group.attrs["NX_class"], group.attrs["signal"], group.attrs["interpretation"] = "NXdata", "data", "image"
    group.attrs.create("axes", list(axes), dtype=h5py.string_dtype())
    group.attrs["title"] = name
    group["data"] = h5py.SoftLink(target)
    for index, (axis, (values, unit, title)) in enumerate(axes.items()):
        dataset = group.create_dataset(axis, data=values)
        dataset.attrs["long_name"] = title
        if unit:
            dataset.attrs["units"] = unit
        group.attrs[f"{axis}_indices"] = index
