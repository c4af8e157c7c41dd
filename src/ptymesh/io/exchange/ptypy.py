"""ptypy's reconstructions, .ptyr (HDF5 as its h5rw writes it: every item says its Python type in the attribute `type`).

L, M    object layers (incoherent modes in ptypy), probe modes
N       views

    /header/{kind, description}                         kind: "minimal"
    /content/probe/<ID>/{data (M, h, w), _psize, _origin, _center, ...}
    /content/obj/<ID>/{data (L, H, W), _psize, _origin, _center, _energy, ...}
    /content/positions/<ID> (N, 2)
    /content/pars/{run, scans/<label>/data/{energy, distance}}

Pairs are y, x; lengths metres, energies keV. A position is that of the middle pixel of a view, of index h//2: view j
covers the pixels (position - _origin) / _psize - h//2 and so on, with _origin the place of pixel (0, 0). ptypy keeps
the slices of its multislice engine elsewhere. Source: ptypy's core.classes, core.ptycho and io.h5rw.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.exchange.building import build_result, file_has
from ptymesh.io.exchange.result_format import ResultFormat, new_file, number_of, pixel_size_of
from ptymesh.io.hdf5.reading import Hdf5File, has, item_of, open_hdf5, read_dataset, reading
from ptymesh.io.results import Result

#: Name of the storages that are written, as ptypy calls those of its first scan.
STORAGE = "Sscan_00G00"
LABEL = "scan_00"


def write(result: Result, path: Path) -> None:
    """Write a reconstruction of kind "minimal", whose object, probe and positions ptypy loads.

    Raises:
        BadInput: the result is in pixel units, or the path cannot be a file.
    """
    pixel = np.array(pixel_size_of(result))
    window = np.array(result.probe.shape[-2:])
    origin = -(np.array(result.origin_px) + window // 2) * pixel
    positions = (result.positions_px + window // 2) * pixel + origin
    energy = number_of(result, "energy_eV")
    projection = np.prod(result.object, axis=0, keepdims=True)
    data = {"energy": None if energy is None else energy / 1e3, "distance": number_of(result, "distance_m")}
    content = {
        "probe": {STORAGE: _storage(result.probe, pixel, -(window // 2) * pixel, energy)},
        "obj": {STORAGE: _storage(projection, pixel, origin, energy)},
        "positions": {STORAGE: positions},
        "pars": {"run": path.stem, "scans": {LABEL: {"data": data}}},
    }
    with new_file(result, path) as file:
        file.attrs["h5rw_version"] = "0.1"
        _store(file, "header", {"kind": "minimal", "description": "Converted by ptymesh"})
        _store(file, "content", content)


def _storage(data: np.ndarray, pixel: np.ndarray, origin: np.ndarray, energy: float | None) -> dict[str, Any]:
    """Return a storage as ptypy has it: an array and the place of its pixel (0, 0)."""
    return {
        "ID": STORAGE,
        "data": data,
        "shape": np.array(data.shape),
        "layermap": np.arange(len(data)),
        "nlayers": len(data),
        "fill_value": 0.0,
        "_psize": pixel,
        "_origin": origin,
        "_center": -origin / pixel,
        "_energy": None if energy is None else energy / 1e3,
    }


def _store(group: h5py.Group, name: str, value: Any) -> None:
    """Store a value with its type, as ptypy's h5rw reads it."""
    if isinstance(value, dict):
        item = group.create_group(name)
        for key, one in value.items():
            _store(item, key, one)
        kind = "dict"
    elif value is None:
        item, kind = group.create_dataset(name, data=np.zeros(1)), "None"
    elif isinstance(value, str):
        item, kind = group.create_dataset(name, data=value, dtype=h5py.string_dtype()), "string"
    else:
        item = group.create_dataset(name, data=value)
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
    item.attrs["type"] = kind


def recognises(path: Path) -> bool:
    """Return True for HDF5 with ptypy's containers of objects and probes."""
    return file_has(path, "content/obj", "content/probe")


def read(path: Path) -> tuple[Result, list[str]]:
    """Return the result in a .ptyr, and sentences about what was left out.

    Raises:
        BadInput: it holds no positions, or its arrays do not fit together.
    """
    notes: list[str] = []
    with open_hdf5(path) as file:
        place = _first(file, "content/obj", notes)
        of_probe = _first(file, "content/probe", notes)
        positions_name = f"content/positions/{place.rpartition('/')[2]}"
        if not has(file, positions_name):
            raise BadInput(
                f"{path} holds no positions ({positions_name}), as ptypy writes them at the end of a run; convert "
                "that file."
            )
        obj, probe = (read_dataset(file, f"{one}/data", None, "buifc") for one in (place, of_probe))
        pixel, origin = (_pair(file, f"{place}/{name}") for name in ("_psize", "_origin"))
        positions = read_dataset(file, positions_name, None, "iuf").astype(np.float64)
        energy = None
        if has(file, f"{place}/_energy"):
            values = read_dataset(file, f"{place}/_energy", 1).reshape(-1)
            energy = float(values[0]) * 1e3 if values.size and values.dtype.kind in "iuf" and values[0] > 0 else None
    if obj.ndim != 3 or probe.ndim != 3 or positions.ndim != 2 or positions.shape[1] != 2:
        raise BadInput(f"{path} has an object {obj.shape}, a probe {probe.shape} and positions {positions.shape}.")
    repeats = len(obj) * len(probe)  # ptypy has a view for every pair of modes
    if repeats > 1 and len(positions) % repeats == 0:
        groups = positions.reshape(-1, repeats, 2)
        positions = groups[:, 0] if (groups == groups[:, :1]).all() else positions
    if len(obj) > 1:
        notes.append(f"Of {len(obj)} object modes the first is taken.")
    window = np.array(probe.shape[-2:])
    result = build_result(
        path,
        FORMAT.program,
        object=obj[:1],
        probe=probe,
        positions_px=(positions - origin) / pixel - window // 2,
        pixel_size_m=(float(pixel[0]), float(pixel[1])),
        origin_px=-origin / pixel - window // 2,
        attrs={"energy_eV": energy},
    )
    return result, notes


def _first(file: Hdf5File, container: str, notes: list[str]) -> str:
    """Return the path of the first storage of a container; say if there are others."""
    group = item_of(file, container)
    with reading(f"{container} in {file.filename}"):
        names = sorted(group) if isinstance(group, h5py.Group) else []
    if not names:
        raise BadInput(f"{container} in {file.filename} is empty; it is no reconstruction of ptypy.")
    if len(names) > 1:
        notes.append(f"Of {len(names)} storages in {container} the first, {names[0]}, is taken.")
    return f"{container}/{names[0]}"


def _pair(file: Hdf5File, name: str) -> np.ndarray:
    """Return two numbers, y and x; one stands for both."""
    values = read_dataset(file, name, 2, "iuf").reshape(-1).astype(np.float64)
    if not len(values) or not np.isfinite(values).all() or (name.endswith("_psize") and not (values > 0).all()):
        raise BadInput(f"{name} in {file.filename} is {values}; it should be two lengths.")
    return np.resize(values, 2)


FORMAT = ResultFormat(
    name="ptypy",
    endings=(".ptyr",),
    program="ptypy",
    holds=frozenset({"probe", "modes", "positions"}),
    write=write,
    recognises=recognises,
    read=read,
)
