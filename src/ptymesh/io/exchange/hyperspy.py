"""hyperspy's signals, .hspy (HDF5 after its specification; h5py writes it, no code of hyperspy's).

L, M    object slices, probe modes
N       views

    @file_format "HyperSpy", @file_format_version "3.1"
    /Experiments/object/{data (L, H, W) or (H, W), axis-0 ..., metadata, original_metadata}
    /Experiments/probe/{data (M, h, w), ...}
    /Experiments/object/original_metadata/ptymesh       what signals have no place for, ours alone: positions_px, ...

Each axis is an empty group with the attributes name, size, scale, offset, units, navigate, is_binned. Zero of y and x
is where that of the positions is; of the probe, the optical axis. Source: RosettaSciIO's documentation of HSpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.exchange.building import build_result, file_has, number_in
from ptymesh.io.exchange.result_format import ResultFormat, new_file
from ptymesh.io.hdf5.reading import has, open_hdf5, read_dataset
from ptymesh.io.results import Result

OWN = "Experiments/object/original_metadata/ptymesh"
#: Arrays of a result that stand in the group of our own.
FURTHER = ("nominal_px", "background", "weights", "opr", "residuals")


@dataclass
class SignalTree:
    """Arrays, and attributes of groups, of two signals by their paths, whatever file they are written to.

    Attributes:
        arrays: numbers by path.
        attributes: of groups, by path; a group without any is empty.
    """

    arrays: dict[str, np.ndarray]
    attributes: dict[str, dict[str, str | float | bool]]


def signals_of(result: Result) -> SignalTree:
    """Return object and probe as two signals of complex images, with what signals have no place for.

    Args:
        result: whole.
    """
    pixel = result.pixel_size_m or (1.0, 1.0)
    unit = "px" if result.pixel_size_m is None else "m"
    spacing = result.slice_spacing_m
    stack_axis = ("z", spacing, "m") if spacing > 0 else ("slice", 1.0, "")
    images = result.object[0] if len(result.object) == 1 else result.object
    window = result.probe.shape[-2:]
    tree = SignalTree({}, {})
    _add_signal(tree, "object", images, stack_axis, pixel, result.origin_px, unit)
    _add_signal(tree, "probe", result.probe, ("mode", 1.0, ""), pixel, (window[0] // 2, window[1] // 2), unit)
    tree.attributes[OWN] = {"recipe": result.recipe}
    ptymesh_arrays: dict[str, Any] = {
        "positions_px": result.positions_px,
        "origin_px": result.origin_px,
        "slice_spacing_m": spacing,
        "tilt_rad": result.tilt_rad,
        "pixel_size_m": result.pixel_size_m,
        **{name: getattr(result, name) for name in FURTHER},
    }
    tree.arrays |= {f"{OWN}/{name}": np.asarray(array) for name, array in ptymesh_arrays.items() if array is not None}
    return tree


def write(result: Result, path: Path) -> None:
    """Write object and probe as two signals of complex images.

    Raises:
        BadInput: the path cannot be a file.
    """
    tree = signals_of(result)
    with new_file(result, path) as file:
        file.attrs["file_format"], file.attrs["file_format_version"] = "HyperSpy", "3.1"
        for name, attributes in tree.attributes.items():
            file.require_group(name).attrs.update(attributes)
        for name, array in tree.arrays.items():
            file[name] = array


def _add_signal(
    tree: SignalTree,
    title: str,
    images: np.ndarray,
    stack_axis: tuple[str, float, str],
    pixel: tuple[float, float],
    zero: tuple[float, float],
    unit: str,
) -> None:
    """Add one signal.

    Args:
        tree: changed in place.
        title: of the signal, and name of its group.
        images: (H, W) or (K, H, W) complex.
        stack_axis: name, scale and unit of the navigation axis of a stack.
        pixel: scales of y and x.
        zero: pixel (y, x) at which they are zero.
        unit: of y and x.
    """
    group = f"Experiments/{title}"
    tree.attributes[group] = {"package": "", "package_version": ""}
    tree.arrays[f"{group}/data"] = images
    axes = [(*stack_axis, 0.0, True)] if images.ndim == 3 else []
    axes += [("yx"[i], pixel[i], unit, -pixel[i] * zero[i], False) for i in range(2)]
    for index, (name, scale, units, offset, navigate) in enumerate(axes):
        tree.attributes[f"{group}/axis-{index}"] = {
            "_type": "UniformDataAxis",
            "name": name,
            "size": int(images.shape[index]),
            "scale": float(scale),
            "offset": float(offset),
            "units": units,
            "navigate": navigate,
            "is_binned": False,
            "index_in_array": index,
        }
    tree.attributes[f"{group}/metadata/General"] = {"title": title}
    quantity = "transmission" if title == "object" else "amplitude"
    tree.attributes[f"{group}/metadata/Signal"] = {"signal_type": "", "quantity": quantity}
    tree.attributes[f"{group}/original_metadata"] = {}


def recognises(path: Path) -> bool:
    """Return True for signals that ptymesh wrote: those of others hold no positions."""
    return file_has(path, f"{OWN}/positions_px", "Experiments/object/data", "Experiments/probe/data")


def read(path: Path) -> tuple[Result, list[str]]:
    """Return the result in signals that ptymesh wrote.

    Raises:
        BadInput: their arrays do not fit together.
    """
    with open_hdf5(path) as file:

        def read_own(name: str) -> np.ndarray | None:
            return read_dataset(file, f"{OWN}/{name}", None, "buifc") if has(file, f"{OWN}/{name}") else None

        obj, probe = (read_dataset(file, f"Experiments/{name}/data", None, "buifc") for name in ("object", "probe"))
        positions = read_dataset(file, f"{OWN}/positions_px", None, "iuf")
        pixel, origin, tilt = read_own("pixel_size_m"), read_own("origin_px"), read_own("tilt_rad")
        spacing = number_in(file, f"{OWN}/slice_spacing_m", 0.0)
        optional: dict[str, Any] = {name: read_own(name) for name in FURTHER}
    ptymesh_arrays = {"pixel_size_m": pixel, "origin_px": origin, "tilt_rad": tilt, **optional}
    return result_of_signals(
        path, {"object": obj, "probe": probe, "positions_px": positions}, ptymesh_arrays, spacing
    ), []


def result_of_signals(
    path: Path, arrays: dict[str, np.ndarray], ptymesh_arrays: dict[str, Any], slice_spacing_m: float
) -> Result:
    """Return the result of two signals.

    Args:
        path: of the file, for messages.
        arrays: object, probe and positions_px.
        ptymesh_arrays: pixel_size_m, origin_px, tilt_rad and FURTHER, None where the file has none.
        slice_spacing_m: distance between slices.

    Raises:
        BadInput: arrays do not fit together.
    """
    pixel, origin, tilt = (ptymesh_arrays.get(name) for name in ("pixel_size_m", "origin_px", "tilt_rad"))
    optional: dict[str, Any] = {name: ptymesh_arrays.get(name) for name in FURTHER}
    for name, pair in (("pixel_size_m", pixel), ("origin_px", origin), ("tilt_rad", tilt)):
        if pair is not None and (pair.shape != (2,) or pair.dtype.kind not in "iuf"):
            raise BadInput(f"{name} in {path} has shape {pair.shape}; it should be two numbers.")
    return build_result(
        path,
        FORMAT.program,
        pixel_size_m=None if pixel is None else (float(pixel[0]), float(pixel[1])),
        origin_px=np.zeros(2) if origin is None else origin,
        slice_spacing_m=slice_spacing_m,
        tilt_rad=(0.0, 0.0) if tilt is None else (float(tilt[0]), float(tilt[1])),
        **arrays,
        **optional,
    )


FORMAT = ResultFormat(
    name="hyperspy",
    endings=(".hspy",),
    program="hyperspy",
    holds=frozenset(
        {"probe", "modes", "slices", "tilt", "positions", "opr", "intensities", "background", "nominal", "recipe"}
    ),
    write=write,
    recognises=recognises,
    read=read,
    needs_metres=False,
)
