"""Any HDF5 or npz file whose datasets the recipe names (data.keys)."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ptymesh.errors import BadInput
from ptymesh.geometry import Pair
from ptymesh.io.hdf5 import open_hdf5, read_dataset
from ptymesh.io.options import DataOptions, KeyMap
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.source import Hdf5Source, MappedSource, SlabSource
from ptymesh.io.staging import npz_members, npz_source, read_member, sliceable


def read(path: Path, keys: KeyMap, options: DataOptions) -> RawScan:
    """The scan that these keys describe; BadInput where one is missing or has an unsuitable shape."""
    source: Hdf5Source | MappedSource
    if zipfile.is_zipfile(path):
        if keys.patterns not in npz_members(path):
            raise BadInput(
                f"{options.path} has no array {keys.patterns}; data.keys.patterns can be one of "
                f"{', '.join(npz_members(path))}."
            )
        source = npz_source(path, keys.patterns, keys.pattern_axes)
        get: Any = _NpzArrays(path)
        patterns: SlabSource = source
    elif h5py.is_hdf5(path):
        source = Hdf5Source(path, keys.patterns, keys.pattern_axes)
        get = _Hdf5Arrays(path)
        patterns = sliceable(source, path)
    else:
        raise BadInput(f"{options.path} is neither HDF5 nor npz, so data.keys cannot name its arrays; convert it.")

    probe = get(keys.probe)
    if probe is not None and (probe.dtype.kind != "c" or probe.ndim not in (2, 3)):
        raise BadInput(f"{keys.probe} is {probe.shape} {probe.dtype}; a probe is complex, (y, x) or (modes, y, x).")
    mask = get(keys.mask)
    intensity = get(keys.intensity)
    return RawScan(
        patterns=patterns,
        optics=Optics(
            radiation=options.radiation,
            energy_eV=_scalar(get, keys.energy_eV),
            wavelength_m=_scalar(get, keys.wavelength_m),
            distance_m=_scalar(get, keys.distance_m),
            detector_pixel_m=_pair(get, keys.detector_pixel_m),
        ),
        positions=_positions(get, keys, source.shape[0]),
        raster=source.raster,
        mask=None if mask is None else (mask != 0) == (options.mask_true == "good"),
        dark=get(keys.dark),
        intensity=None if intensity is None else intensity.reshape(-1),
        probe=probe if probe is None or probe.ndim == 3 else probe[None],
        name=options.path.name.split(".")[0],
    )


class _NpzArrays:
    """Arrays of an npz by name; None for no name."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, name: str | None) -> np.ndarray | None:
        return None if name is None else read_member(self._path, name)


class _Hdf5Arrays:
    """Datasets of an HDF5 file by name; None for no name."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, name: str | None) -> np.ndarray | None:
        if name is None:
            return None
        with open_hdf5(self._path) as file:
            return read_dataset(file, name)


def _positions(get: Any, keys: KeyMap, count: int) -> np.ndarray | None:
    """(N, 2) y x as stored."""
    if keys.positions_y is not None and keys.positions_x is not None:
        y, x = get(keys.positions_y).reshape(-1), get(keys.positions_x).reshape(-1)
        if len(y) != len(x):
            raise BadInput(f"There are {len(y)} y positions and {len(x)} x positions; they must be pairs.")
        return np.stack([y, x], axis=1).astype(np.float64)
    if keys.positions is None:
        return None
    stored = get(keys.positions)
    if stored.ndim == 2 and stored.shape[0] == 2 and stored.shape != (count, 2):
        stored = stored.T
    if stored.ndim < 2 or stored.shape[-1] != 2 or stored.dtype.kind not in "iuf":
        raise BadInput(f"{keys.positions} has shape {stored.shape} {stored.dtype}; positions are (N, 2) or (2, N).")
    pairs = stored.reshape(-1, 2).astype(np.float64)
    return pairs if keys.position_order == "yx" else pairs[:, ::-1].copy()


def _scalar(get: Any, name: str | None) -> float | None:
    value = get(name)
    if value is None:
        return None
    if value.size != 1 or value.dtype.kind not in "iuf":
        raise BadInput(f"{name} has shape {value.shape} {value.dtype}; it must be one number.")
    return float(value.reshape(-1)[0])


def _pair(get: Any, name: str | None) -> Pair | None:
    value = get(name)
    if value is None:
        return None
    if value.size not in (1, 2) or value.dtype.kind not in "iuf":
        raise BadInput(f"{name} has shape {value.shape} {value.dtype}; it must be one number, or y and x.")
    flat = value.reshape(-1)
    return float(flat[0]), float(flat[-1])
