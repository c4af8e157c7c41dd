"""abTEM's measurements: zarr stores (folder, or .zip), and HDF5 before them, which say sampling and unit of each axis.

Zarr: `array0`, and attributes `metadata0` (version 1.0.10 and later: axes, energy) or `kwargs0` (before). HDF5:
`/array` with `/sampling` and `/units`.

Axes are (x, y, kx, ky), of scan and detector alike; they are read as rows and columns in this order, so that the object
is transposed against abTEM's figures, and nothing else changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.formats.calibrated import Scale, make_calibrated_scan
from ptymesh.io.formats.contents import is_hdf5_with
from ptymesh.io.formats.zarr_store import ZarrSource, ZarrTree
from ptymesh.io.hdf5.reading import Hdf5File, item_of, open_hdf5, read_dataset, text_of
from ptymesh.io.options import DataOptions
from ptymesh.io.quantities import holds_numbers
from ptymesh.io.scan import RawScan
from ptymesh.io.source import Hdf5Source
from ptymesh.io.units import ELECTRON_EV, beam_of, check_energy

NAME = "abTEM (zarr, HDF5)"
ARRAY, SAMPLING, UNITS = "/array", "/sampling", "/units"
ZARR_ARRAY, PATTERNS = "array0", "DiffractionPatterns"


def recognises(path: Path, data: DataOptions) -> bool:
    """Return True for a zarr store or HDF5 with a 4-D array and what abTEM says of its axes."""
    tree = ZarrTree.open(path)
    return _axes_of_zarr(tree) is not None if tree is not None else is_hdf5_with(path, data, _is_scan)


def read(path: Path, data: DataOptions) -> RawScan:
    """Return the scan of a measurement.

    Raises:
        BadInput: it does not say sampling and unit of each of its axes, or its energy cannot be.
    """
    tree = ZarrTree.open(path)
    if tree is not None:
        axes = _axes_of_zarr(tree)
        assert axes is not None
        beam = beam_of(axes.semiangle_mrad)
        scan = _scan(path, data, ZarrSource(path, ZARR_ARRAY, "rcyx"), axes.scales, axes.energy_eV)
        return replace(scan, centred=axes.centred, beam=beam)
    with open_hdf5(path, follow=data.follow) as file:
        return _scan(path, data, Hdf5Source(path, ARRAY, "rcyx", data.follow), _axes(file), None)


def _scan(
    path: Path, data: DataOptions, source: Hdf5Source | ZarrSource, axes: list[Scale], energy: float | None
) -> RawScan:
    """Return the scan of an array, given (step, unit) of its axes and the energy that the file says."""
    if data.energy_eV is not None or data.wavelength_m is not None:
        energy = None
    elif energy is not None:
        check_energy(energy, ELECTRON_EV, f"The energy in {path}", f"{energy:g} eV")
    notes = ["abTEM's first axis is x: the object is transposed against its figures."]
    return make_calibrated_scan(path, source, axes, energy, data, notes=notes)


@dataclass(frozen=True)
class ZarrAxes:
    """Axes and energy of the array of a store.

    Attributes:
        scales: (step, unit) of its four axes.
        energy_eV: of the beam; None: not said.
        semiangle_mrad: of the probe; None: not said.
        centred: whether the zero frequency is in the middle, else at the corner.
    """

    scales: list[Scale]
    energy_eV: float | None
    semiangle_mrad: float | None
    centred: bool


def _axes_of_zarr(tree: ZarrTree) -> ZarrAxes | None:
    """Return what a store says of a 4-D scan of patterns; None where it holds none."""
    attributes = tree.attributes()
    if len(tree.array_shape(ZARR_ARRAY) or ()) != 4:
        return None
    metadata, kwargs = _plain(attributes.get("metadata0")), _plain(attributes.get("kwargs0"))
    axes: list[object] = []
    about: object = None
    if isinstance(metadata, dict) and metadata.get("type") == PATTERNS:
        named = metadata.get("axes")
        axes = [named.get(f"axis_{k}") for k in range(4)] if isinstance(named, dict) else []
        about = metadata
    elif isinstance(kwargs, dict) and attributes.get("type0") == PATTERNS:
        sampling, scanned = kwargs.get("sampling"), kwargs.get("ensemble_axes_metadata")
        shifted = kwargs.get("fftshift", True)
        detector = [{"sampling": one, "units": "1/Å", "fftshift": shifted} for one in _listed(sampling)]
        axes = [*_listed(scanned), *detector]
        about = kwargs.get("metadata")
    energy, semiangle = (about.get(key) if isinstance(about, dict) else None for key in ("energy", "semiangle_cutoff"))
    groups = [axis for axis in axes if isinstance(axis, dict)]
    steps = [_number(axis.get("sampling")) for axis in groups]
    if len(axes) != 4 or len(groups) != 4 or None in steps:
        return None
    scales = [(abs(step or 0.0), str(axis.get("units", ""))[:40]) for step, axis in zip(steps, groups, strict=True)]
    return ZarrAxes(scales, _number(energy), _number(semiangle), bool(groups[2].get("fftshift", True)))


def _plain(value: object) -> object:
    """Return JSON with abTEM's marked tuples as lists."""
    if isinstance(value, dict):
        if value.get("_type") == "tuple":
            return _plain(value.get("_value"))
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _number(value: object) -> float | None:
    """Return a finite number; None for anything else."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain and isinstance(value, int | float) and math.isfinite(value) else None


def _is_scan(file: Hdf5File) -> bool:
    array, units = item_of(file, ARRAY), item_of(file, UNITS)
    is_stack = isinstance(array, h5py.Dataset) and array.ndim == 4 and array.dtype.kind in "buif"
    return is_stack and isinstance(units, h5py.Dataset) and holds_numbers(file, SAMPLING)


def _axes(file: Hdf5File) -> list[tuple[float, str]]:
    """Return (step, unit) of the four axes; BadInput where there are more or fewer."""
    steps = read_dataset(file, SAMPLING, 1000, "iuf").reshape(-1).astype(np.float64)
    units = [text_of(one, 40) or "" for one in read_dataset(file, UNITS, 1000).reshape(-1)]
    if len(steps) != 4 or len(units) != 4:
        raise BadInput(
            f"{file.filename} says the sampling of {len(steps)} axes and the units of {len(units)}, and its array has "
            "4: name it in data.keys."
        )
    return [(float(step) if np.isfinite(step) else 0.0, unit) for step, unit in zip(steps, units, strict=True)]
