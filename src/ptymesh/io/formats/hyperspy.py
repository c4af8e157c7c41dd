"""hyperspy's signals (.hspy, HDF5; .zspy, zarr): `Experiments/TITLE/data` with groups `axis-0` ..., of scale and unit.

Axes with `navigate` are the scan's, the other two the detector's. `beam_energy` is in keV, `convergence_angle`, a
semi-angle, in mrad. Source: the documentation of the format; no code of hyperspy's is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.formats.calibrated import make_calibrated_scan
from ptymesh.io.formats.contents import is_hdf5_with
from ptymesh.io.formats.zarr_store import ZarrSource, ZarrTree
from ptymesh.io.hdf5.reading import Hdf5File, attribute, item_of, names_in, open_hdf5, text_of
from ptymesh.io.options import DataOptions
from ptymesh.io.scan import RawScan
from ptymesh.io.source import Hdf5Source
from ptymesh.io.units import ELECTRON_EV, beam_of, check_energy

NAME = "hyperspy (.hspy, .zspy)"
EXPERIMENTS = "Experiments"
ENERGY = "metadata/Acquisition_instrument/TEM"
#: Returns an attribute, given the names of a group and of the attribute; None where there is none.
Attribute = Callable[[str, str], object]


def recognises(path: Path, data: DataOptions) -> bool:
    """Return True for HDF5 or a zarr store with a signal of patterns."""
    tree = ZarrTree.open(path)
    return bool(_signals_of_zarr(tree)) if tree is not None else is_hdf5_with(path, data, _signals)


def read(path: Path, data: DataOptions) -> RawScan:
    """Return the scan of the first signal of patterns.

    Raises:
        BadInput: its axes are not two of a detector behind one or two of a scan, or its energy cannot be.
    """
    tree = ZarrTree.open(path)
    if tree is not None:
        signals = _signals_of_zarr(tree)
        zarr_source = ZarrSource(path, f"{signals[0]}/data")
        return _scan(path, data, signals, zarr_source, lambda group, key: tree.attributes(group).get(key))
    with open_hdf5(path, follow=data.follow) as file:

        def attribute_of(group: str, key: str) -> object:
            item = item_of(file, group)
            return None if item is None else attribute(item, key)

        names = _signals(file)
        return _scan(path, data, names, Hdf5Source(path, f"{names[0]}/data", follow=data.follow), attribute_of)


def _scan(
    path: Path, data: DataOptions, names: list[str], source: Hdf5Source | ZarrSource, attribute_of: Attribute
) -> RawScan:
    """Return the scan of the first of these signals, whose patterns and attributes are given."""
    name = names[0]
    axes = 3 if source.raster is None else 4
    _check_navigation(attribute_of, name, axes, path)
    scales = [_axis(attribute_of, name, k) for k in range(axes)]
    notes = [f"Of the signals {', '.join(names[:4])}, the first is read."] if len(names) > 1 else []
    energy = None
    if data.energy_eV is None and data.wavelength_m is None:
        energy = _energy_eV(attribute_of, name, path)
    radiation = data.radiation or "electron"
    scan = make_calibrated_scan(path, source, scales, energy, data, notes=notes, radiation=radiation)
    return replace(scan, beam=beam_of(_number(attribute_of, f"{name}/{ENERGY}", "convergence_angle")))


def _signals_of_zarr(tree: ZarrTree) -> list[str]:
    """Return the names of the signals of three or four axes."""
    names = [f"{EXPERIMENTS}/{name}" for name in tree.children(EXPERIMENTS)]
    return [
        name
        for name in names
        if len(tree.array_shape(f"{name}/data") or ()) in (3, 4) and tree.attributes(f"{name}/axis-0")
    ]


def _signals(file: Hdf5File) -> list[str]:
    """Return the names of the signals whose data can be patterns, real and of three or four axes."""
    group = item_of(file, EXPERIMENTS)
    if not isinstance(group, h5py.Group):
        return []
    names = [f"{EXPERIMENTS}/{name}" for name in names_in(group, 1000)]
    return [name for name in names if _is_stack(file, name) and item_of(file, f"{name}/axis-0") is not None]


def _is_stack(file: Hdf5File, name: str) -> bool:
    data = item_of(file, f"{name}/data")
    return isinstance(data, h5py.Dataset) and data.ndim in (3, 4) and data.dtype.kind in "buif"


def _number(attribute_of: Attribute, name: str, key: str) -> float | None:
    """Return a finite number that an attribute of a group says; None where it says none."""
    stored = attribute_of(name, key)
    value = None if stored is None else np.asarray(stored)
    if value is None or value.dtype.kind not in "buif" or value.size != 1:
        return None
    number = float(value.reshape(-1)[0])
    return number if np.isfinite(number) else None


def _check_navigation(attribute: Attribute, name: str, axes: int, path: Path) -> None:
    """Raise BadInput unless the last two axes, and no others, are the detector's; nothing said is taken so."""
    navigates = [_number(attribute, f"{name}/axis-{k}", "navigate") for k in range(axes)]
    expected = [k < axes - 2 for k in range(axes)]
    if any(one is not None and bool(one) != want for one, want in zip(navigates, expected, strict=True)):
        words = ", ".join("?" if one is None else "scan" if one else "detector" for one in navigates)
        raise BadInput(
            f"{name} in {path} has the axes {words}; patterns are two of a detector behind those of a scan: "
            "name them in data.keys, with pattern_axes."
        )


def _axis(attribute_of: Attribute, name: str, index: int) -> tuple[float, str]:
    """Return (scale, unit) of an axis; (0, "") where the file does not say it."""
    unit = text_of(attribute_of(f"{name}/axis-{index}", "units"), 40) or ""
    return abs(_number(attribute_of, f"{name}/axis-{index}", "scale") or 0.0), unit


def _energy_eV(attribute_of: Attribute, name: str, path: Path) -> float | None:
    """Return the energy, which hyperspy keeps in keV; BadInput where it can be none in keV."""
    energy = _number(attribute_of, f"{name}/{ENERGY}", "beam_energy")
    if not energy:
        return None
    return check_energy(1e3 * energy, ELECTRON_EV, f"beam_energy in {path}", f"{energy:g} keV")
