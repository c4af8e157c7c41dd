"""Reader of any HDF5 or npz file whose datasets the recipe names (data.keys), and of what other formats lack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.geometry import Pair
from ptymesh.io.arrays import ANY, load_array, names_file, unit_of_mda
from ptymesh.io.hdf5.reading import check_count, check_kind, dataset_of, has, is_hdf5, open_hdf5, read_dataset, reading
from ptymesh.io.options import DataOptions, KeyMap, Unit
from ptymesh.io.prepare.positions import METRES
from ptymesh.io.quantities import DISTANCE, ENERGY, PIXEL, WAVELENGTH, StoredQuantity, ask_for_unit, factor, unit_of
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.source import Hdf5Source, MappedSource, SlabSource
from ptymesh.io.staging import is_npz, npz_members, npz_source, read_member, sliceable
from ptymesh.io.units import LENGTH_M, normalised

#: Probe modes that a file can reasonably hold.
MODES = 4096
#: Words for positions in object pixels.
PIXELS = ("px", "pixel", "pixels")


def read(path: Path, keys: KeyMap, options: DataOptions) -> RawScan:
    """Return the scan that the recipe's keys describe.

    Args:
        path: the file, unpacked.
        keys: names of its datasets.
        options: of the recipe; `options.path` is the file's own path.

    Raises:
        BadInput: a dataset is missing or has an unsuitable shape.
    """
    source: Hdf5Source | MappedSource
    assert keys.patterns is not None
    if is_npz(path):
        if keys.patterns not in npz_members(path):
            raise BadInput(
                f"{options.path} has no array {keys.patterns}; data.keys.patterns can be one of "
                f"{', '.join(npz_members(path))}."
            )
        source = npz_source(path, keys.patterns, keys.pattern_axes)
        file_arrays: NamedArrays = _NpzArrays(path)
        patterns: SlabSource = source
    elif is_hdf5(path):
        source = Hdf5Source(path, keys.patterns, keys.pattern_axes, options.follow)
        file_arrays = _Hdf5Arrays(path, options.follow)
        patterns = sliceable(source)
    else:
        raise BadInput(f"{options.path} is neither HDF5 nor npz, so data.keys cannot name its arrays; convert it.")

    get = _OtherFiles(file_arrays, path, options.follow)
    count, height, width = source.shape
    probe, notes = _probe(get, keys.probe, (height, width))
    mask = get(keys.mask, 2 * height * width, "buif")
    intensity = get(keys.intensity, 2 * count, "buif")
    unit, doubt = _position_unit(get, keys)
    return RawScan(
        patterns=patterns,
        optics=Optics(
            radiation=options.radiation,
            energy_eV=_scalar(get, keys.energy_eV, ENERGY, options.energy_eV, "data.energy_eV"),
            wavelength_m=_scalar(get, keys.wavelength_m, WAVELENGTH, options.wavelength_m, "data.wavelength_m"),
            distance_m=_scalar(get, keys.distance_m, DISTANCE, options.distance_m, "data.distance_m"),
            detector_pixel_m=_pair(get, keys.detector_pixel_m, options.detector_pixel_m),
        ),
        positions=_positions(get, keys, count),
        unit=unit,
        unit_doubt=doubt,
        raster=source.raster,
        mask=None if mask is None else (mask != 0) == (options.mask_true == "good"),
        dark=get(keys.dark, 2 * height * width, "buif"),
        intensity=None if intensity is None else intensity.reshape(-1),
        probe=probe,
        name=options.path.name.split(".")[0],
        notes=notes,
    )


def add_arrays(scan: RawScan, path: Path, keys: KeyMap, options: DataOptions) -> RawScan:
    """Return a scan of a known format with what the keys name, mostly in other files, in place of its own.

    Args:
        scan: as its reader returns it.
        path: of its file.
        keys: without `patterns`.
        options: of the recipe.

    Raises:
        BadInput: an array is missing or has an unsuitable shape.
    """
    file_arrays: NamedArrays = (
        _NpzArrays(path) if is_npz(path) else _Hdf5Arrays(path, options.follow) if is_hdf5(path) else _NoArrays()
    )
    get = _OtherFiles(file_arrays, path, options.follow)
    count, height, width = scan.patterns.shape
    changed: dict[str, Any] = {}
    if keys.positions is not None or keys.positions_y is not None:
        unit, doubt = _position_unit(get, keys)
        changed |= {"positions": _positions(get, keys, count), "unit": unit, "unit_doubt": doubt}
        changed["raster"] = None
    if keys.mask is not None:
        mask = (get(keys.mask, 2 * height * width, "buif") != 0) == (options.mask_true == "good")
        changed["mask"] = mask if scan.mask is None else scan.mask & mask
    if keys.dark is not None:
        changed["dark"] = get(keys.dark, 2 * height * width, "buif")
    if keys.intensity is not None:
        changed["intensity"] = get(keys.intensity, 64 * count + 1000, "buif").reshape(-1)
    if keys.probe is not None:
        changed["probe"], notes = _probe(get, keys.probe, (height, width))
        changed["notes"] = (*scan.notes, *notes)
    numbers: dict[str, Any] = {
        "energy_eV": _scalar(get, keys.energy_eV, ENERGY, options.energy_eV, "data.energy_eV"),
        "wavelength_m": _scalar(get, keys.wavelength_m, WAVELENGTH, options.wavelength_m, "data.wavelength_m"),
        "distance_m": _scalar(get, keys.distance_m, DISTANCE, options.distance_m, "data.distance_m"),
        "detector_pixel_m": _pair(get, keys.detector_pixel_m, options.detector_pixel_m),
    }
    named = {name: value for name, value in numbers.items() if value is not None}
    return replace(scan, optics=replace(scan.optics, **named), **changed)


class NamedArrays(Protocol):
    """Arrays of a file by name."""

    def has(self, name: str) -> bool:
        """Return True if there is an array of this name."""

    def unit(self, name: str) -> str | None:
        """Return the unit that is said of an array; None if there is none."""

    def shape_and_dtype(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Return shape and dtype of an array."""

    def __call__(self, name: str | None, most: int, kinds: str) -> Any:
        """Return an array; None for no name. Other kinds of values, or more values, are refused."""


class _NoArrays:
    """Arrays of a file that is neither HDF5 nor npz: none."""

    def has(self, name: str) -> bool:
        """Return False."""
        return False

    def unit(self, name: str) -> str | None:
        """Raise BadInput."""
        raise BadInput(f"data.keys names {name}, and there is no such file beside the data; give file.csv:y,x.")

    def shape_and_dtype(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Raise BadInput."""
        raise BadInput(f"data.keys names {name}, and there is no such file beside the data; check its path.")

    def __call__(self, name: str | None, most: int, kinds: str) -> np.ndarray | None:
        if name is None:
            return None
        raise BadInput(f"data.keys names {name}, and there is no such file beside the data; check its path.")


class _NpzArrays:
    """Arrays of an npz by name; None for no name. Arrays with other kinds of values, or too many, are refused."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def has(self, name: str) -> bool:
        """Return True if there is an array of this name."""
        return name in npz_members(self._path)

    def unit(self, name: str) -> str | None:
        """Return None: an npz says no units."""
        return None

    def shape_and_dtype(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Return shape and dtype of an array; () and bool if it is missing."""
        return npz_members(self._path).get(name, ((), np.dtype(bool)))

    def __call__(self, name: str | None, most: int, kinds: str) -> np.ndarray | None:
        if name is None:
            return None
        members = npz_members(self._path)
        if name in members:
            check_kind(members[name][1], kinds, f"{name} in {self._path}")
            check_count(members[name][0], most, f"{name} in {self._path}")
        return read_member(self._path, name)


class _Hdf5Arrays:
    """Datasets of an HDF5 file by name, likewise."""

    def __init__(self, path: Path, follow: Sequence[Path]) -> None:
        self._path, self._follow = path, follow

    def has(self, name: str) -> bool:
        """Return True if there is an object of this name."""
        with open_hdf5(self._path, follow=self._follow) as file:
            return has(file, name)

    def unit(self, name: str) -> str | None:
        """Return the unit in a dataset's attribute; None if there is no attribute or no dataset."""
        with open_hdf5(self._path, follow=self._follow) as file:
            return unit_of(file, name) if has(file, name) else None

    def shape_and_dtype(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Return shape and dtype of a dataset."""
        with open_hdf5(self._path, follow=self._follow) as file, reading(f"{name} in {self._path}"):
            data = dataset_of(file, name)
            return data.shape, data.dtype

    def __call__(self, name: str | None, most: int, kinds: str) -> np.ndarray | None:
        if name is None:
            return None
        with open_hdf5(self._path, follow=self._follow) as file:
            return read_dataset(file, name, most, kinds)


class _OtherFiles:
    """Arrays of the data file by name, or, if it has none of that name, of the file that the name refers to."""

    def __init__(self, arrays: NamedArrays, path: Path, follow: Sequence[Path]) -> None:
        self._arrays, self._path, self._follow = arrays, path, follow

    def _reference_elsewhere(self, name: str) -> str | None:
        """Return the reference to another file; None if the data file has the array, or if there is no other file."""
        return None if self._arrays.has(name) else names_file(name, self._path.parent)

    def shape_and_dtype(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Return shape and dtype of an array."""
        other = self._reference_elsewhere(name)
        if other is None:
            return self._arrays.shape_and_dtype(name)
        array = load_array(other, "data.keys", ANY, follow=self._follow)
        return array.shape, array.dtype

    def unit(self, name: str) -> str | None:
        """Return the unit that an HDF5 dataset says; None if it says none."""
        other = self._reference_elsewhere(name)
        if other is None:
            return self._arrays.unit(name)
        if said_by_file := unit_of_mda(other):
            return said_by_file
        file, _, inside = other.rpartition(":")
        if not inside or not is_hdf5(Path(file)):
            return None
        return _Hdf5Arrays(Path(file), self._follow).unit(inside)

    def __call__(self, name: str | None, most: int, kinds: str) -> Any:
        other = None if name is None else self._reference_elsewhere(name)
        if other is None:
            return self._arrays(name, most, kinds)
        return load_array(other, "data.keys", kinds, most, follow=self._follow)


def _probe(get: _OtherFiles, name: str | None, window: tuple[int, int]) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Return the probe (M, H, W) complex, or None and a note that says why it is left out."""
    if name is None:
        return None, ()
    shape, dtype = get.shape_and_dtype(name)
    if dtype.kind == "c" and len(shape) in (2, 3) and shape[-2:] != window:
        return None, (f"The file's probe is {shape[-2:]} pixels, its patterns {window}: it is left out.",)
    probe = get(name, MODES * window[0] * window[1], "buifc")
    if probe.dtype.kind != "c" or probe.ndim not in (2, 3):
        raise BadInput(f"{name} is {probe.shape} {probe.dtype}; a probe is complex, (y, x) or (modes, y, x).")
    return probe.reshape(-1, *window), ()


def _positions(get: _OtherFiles, keys: KeyMap, count: int) -> np.ndarray | None:
    """Return the positions (N, 2), y x, in the file's unit; None if the keys name none."""
    most = 64 * count + 1000  # a fly scan has several for each view
    if keys.positions_y is not None and keys.positions_x is not None:
        y, x = (get(name, most, "buif").reshape(-1) for name in (keys.positions_y, keys.positions_x))
        if len(y) != len(x):
            raise BadInput(f"There are {len(y)} y positions and {len(x)} x positions; they must be pairs.")
        return np.stack([y, x], axis=1).astype(np.float64)
    if keys.positions is None:
        return None
    stored = get(keys.positions, most, "buif")
    if stored.ndim == 2 and stored.shape[0] == 2 and stored.shape != (count, 2):
        stored = stored.T
    if stored.ndim < 2 or stored.shape[-1] != 2 or stored.dtype.kind not in "iuf":
        raise BadInput(
            f"{keys.positions} has shape {stored.shape} {stored.dtype}, and there are {count} patterns; positions are "
            f"({count}, 2) or (2, {count}) numbers, or two datasets, positions_y and positions_x of data.keys."
        )
    pairs = stored.reshape(-1, 2).astype(np.float64)
    return pairs if keys.position_order == "yx" else pairs[:, ::-1].copy()


def _position_unit(get: _OtherFiles, keys: KeyMap) -> tuple[Unit, str]:
    """Return the positions' unit, metres if they say none, and a sentence that asks for it if it cannot be used."""
    names = [name for name in (keys.positions, keys.positions_y, keys.positions_x) if name is not None]
    units = {name: get.unit(name) for name in names}
    stated = {name: unit for name, unit in units.items() if unit}
    if not stated:
        return "m", ""
    sizes = {
        name: "px" if normalised(unit) in PIXELS else LENGTH_M.get(normalised(unit)) for name, unit in stated.items()
    }
    unit_of_size: dict[Any, Any] = {metres: unit for unit, metres in METRES.items()}
    unit_of_size["px"] = "px"
    first: Unit | None = unit_of_size.get(next(iter(sizes.values())))
    if first is None or len(set(sizes.values())) > 1 or len(stated) < len(names):
        listed = ", ".join(f"{name} in {unit!r}" for name, unit in units.items())
        return "m", f"The positions are {listed}; known are {', '.join(unit_of_size.values())}: set positions.unit."
    return first, ""


def _scalar(
    get: _OtherFiles, name: str | None, quantity: StoredQuantity, replaced: object, remedy: str
) -> float | None:
    """Return a number in the recipe's unit; None if the recipe says it itself."""
    value = None if replaced is not None else get(name, 1000, "iuf")
    if value is None or name is None:
        return None
    if value.size != 1:
        raise BadInput(f"{name} has shape {value.shape} {value.dtype}; it must be one number.")
    return _convert_unit(get, name, float(value.reshape(-1)[0]), quantity, remedy)


def _convert_unit(get: _OtherFiles, name: str, value: float, quantity: StoredQuantity, remedy: str) -> float:
    if not math.isfinite(value) or value <= 0:
        raise BadInput(f"{name} is {value:g}, and must be above zero: set {remedy} instead.")
    unit = get.unit(name)
    if unit is not None:
        return value * factor(unit, quantity, name, remedy)
    ask_for_unit(value, quantity, name, remedy)
    return value


def _pair(get: _OtherFiles, name: str | None, replaced: object) -> Pair | None:
    value = None if replaced is not None else get(name, 1000, "iuf")
    if value is None or name is None:
        return None
    if value.size not in (1, 2):
        raise BadInput(f"{name} has shape {value.shape} {value.dtype}; it must be one number, or y and x.")
    y, x = (_convert_unit(get, name, float(value.reshape(-1)[k]), PIXEL, "data.detector_pixel_m") for k in (0, -1))
    return y, x
