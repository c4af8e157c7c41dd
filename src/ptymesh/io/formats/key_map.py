"""Any HDF5 or npz file whose datasets the recipe names (data.keys)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.geometry import Pair
from ptymesh.io.hdf5 import check_count, check_kind, dataset_of, is_hdf5, open_hdf5, read_dataset, reading
from ptymesh.io.options import DataOptions, KeyMap
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.source import Hdf5Source, MappedSource, SlabSource
from ptymesh.io.staging import is_npz, npz_members, npz_source, read_member, sliceable

#: Probe modes that a file can reasonably hold.
MODES = 4096


def read(path: Path, keys: KeyMap, options: DataOptions) -> RawScan:
    """The scan that these keys describe; BadInput where one is missing or has an unsuitable shape."""
    source: Hdf5Source | MappedSource
    if is_npz(path):
        if keys.patterns not in npz_members(path):
            raise BadInput(
                f"{options.path} has no array {keys.patterns}; data.keys.patterns can be one of "
                f"{', '.join(npz_members(path))}."
            )
        source = npz_source(path, keys.patterns, keys.pattern_axes)
        get: Any = _NpzArrays(path)
        patterns: SlabSource = source
    elif is_hdf5(path):
        source = Hdf5Source(path, keys.patterns, keys.pattern_axes, options.follow)
        get = _Hdf5Arrays(path, options.follow)
        patterns = sliceable(source)
    else:
        raise BadInput(f"{options.path} is neither HDF5 nor npz, so data.keys cannot name its arrays; convert it.")

    count, height, width = source.shape
    probe, notes = _probe(get, keys.probe, (height, width))
    mask = get(keys.mask, 2 * height * width, "buif")
    intensity = get(keys.intensity, 2 * count, "buif")
    return RawScan(
        patterns=patterns,
        optics=Optics(
            radiation=options.radiation,
            energy_eV=_scalar(get, keys.energy_eV),
            wavelength_m=_scalar(get, keys.wavelength_m),
            distance_m=_scalar(get, keys.distance_m),
            detector_pixel_m=_pair(get, keys.detector_pixel_m),
        ),
        positions=_positions(get, keys, count),
        raster=source.raster,
        mask=None if mask is None else (mask != 0) == (options.mask_true == "good"),
        dark=get(keys.dark, 2 * height * width, "buif"),
        intensity=None if intensity is None else intensity.reshape(-1),
        probe=probe,
        name=options.path.name.split(".")[0],
        notes=notes,
    )


class _NpzArrays:
    """Arrays of an npz by name; None for no name. Nothing is read that has other kinds of values, or too many."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def about(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and dtype of an array; of one that is missing, those of nothing."""
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

    def about(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and dtype of a dataset."""
        with open_hdf5(self._path, follow=self._follow) as file, reading(f"{name} in {self._path}"):
            data = dataset_of(file, name)
            return data.shape, data.dtype

    def __call__(self, name: str | None, most: int, kinds: str) -> np.ndarray | None:
        if name is None:
            return None
        with open_hdf5(self._path, follow=self._follow) as file:
            return read_dataset(file, name, most, kinds)


def _probe(get: Any, name: str | None, window: tuple[int, int]) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """(M, H, W) complex, or why it is left out."""
    if name is None:
        return None, ()
    shape, dtype = get.about(name)
    if dtype.kind == "c" and len(shape) in (2, 3) and shape[-2:] != window:
        return None, (f"The file's probe is {shape[-2:]} pixels, its patterns {window}: it is left out.",)
    probe = get(name, MODES * window[0] * window[1], "buifc")
    if probe.dtype.kind != "c" or probe.ndim not in (2, 3):
        raise BadInput(f"{name} is {probe.shape} {probe.dtype}; a probe is complex, (y, x) or (modes, y, x).")
    return probe.reshape(-1, *window), ()


def _positions(get: Any, keys: KeyMap, count: int) -> np.ndarray | None:
    """(N, 2) y x as stored."""
    most = 64 * count + 1000  # of a fly scan, several for each view
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


def _scalar(get: Any, name: str | None) -> float | None:
    value = get(name, 1000, "iuf")
    if value is None:
        return None
    if value.size != 1:
        raise BadInput(f"{name} has shape {value.shape} {value.dtype}; it must be one number.")
    return float(value.reshape(-1)[0])


def _pair(get: Any, name: str | None) -> Pair | None:
    value = get(name, 1000, "iuf")
    if value is None:
        return None
    if value.size not in (1, 2):
        raise BadInput(f"{name} has shape {value.shape} {value.dtype}; it must be one number, or y and x.")
    flat = value.reshape(-1)
    return float(flat[0]), float(flat[-1])
