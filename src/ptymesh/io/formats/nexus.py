"""NeXus: patterns in an NXdata group of an NXentry, or in `ENTRY/data/data`, as Diamond and other beamlines write them.

Positions are `y` and `x` beside the patterns where there are any, in the unit that they say. Energy is the beam's (that
of `source` is the machine's), distance and pixels are the detector's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from ptymesh.errors import BadInput
from ptymesh.geometry import Radiation
from ptymesh.io.formats.contents import is_hdf5_with
from ptymesh.io.hdf5.reading import (
    Hdf5File,
    attribute,
    dataset_of,
    has,
    item_of,
    names_in,
    open_hdf5,
    read_dataset,
    text_of,
)
from ptymesh.io.options import DataOptions, Unit
from ptymesh.io.quantities import (
    DISTANCE,
    ENERGY,
    WAVELENGTH,
    find_position_unit,
    holds_numbers,
    read_number,
    read_pixel,
    unit_of,
)
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.source import Hdf5Source
from ptymesh.io.staging import sliceable
from ptymesh.io.units import PHOTON_EV, check_energy

NAME = "NeXus (NXdata)"
#: A pattern has at least so many pixels on a side; groups that are looked into.
SMALLEST, GROUPS = 8, 200
ENERGIES = ("incident_beam_energy", "incident_energy", "energy")
WAVELENGTHS = ("incident_wavelength", "wavelength")
PLACES = (("y", "x"), ("motor_y", "motor_x"), ("sample_y", "sample_x"))


def recognises(path: Path, data: DataOptions) -> bool:
    """Return True for HDF5 with patterns where NeXus keeps them."""
    return is_hdf5_with(path, data, lambda file: next(_signals(file), None))


def read(path: Path, data: DataOptions) -> RawScan:
    """Return the scan of the first NXdata group with patterns.

    Raises:
        BadInput: A value that is used has no unit where that matters, or another number of values than there are views.
    """
    with open_hdf5(path, follow=data.follow) as file:
        entry, group, name = next(_signals(file))
        source = Hdf5Source(path, name, follow=data.follow)
        positions, unit, doubt = _positions(file, group, source.shape[0])
        detector = next(_groups_of(file, entry, "NXdetector", "detector"), "")
        unread = [one for _, _, one in _signals(file)][1:4]
        notes = [f"{name} is read, and not {', '.join(unread)} (data.keys.patterns)."] if unread else []
        return RawScan(
            patterns=sliceable(source),
            optics=_optics(file, entry, detector, data),
            positions=positions,
            unit=unit,
            unit_doubt=doubt,
            raster=source.raster,
            mask=_mask(file, detector, source.shape[1:]),
            dark=_dark(file, detector, source.shape[1:]),
            name=path.stem,
            notes=tuple(notes),
        )


def _children(file: Hdf5File, name: str) -> Iterator[tuple[str, h5py.Group]]:
    """Yield the groups within a group, by their full names."""
    group = item_of(file, name or "/")
    if not isinstance(group, h5py.Group):
        return
    for one in names_in(group, GROUPS):
        item = item_of(file, f"{name}/{one}")
        if isinstance(item, h5py.Group):
            yield f"{name}/{one}", item


def _class_of(group: h5py.Group) -> str:
    return text_of(attribute(group, "NX_class"), 60) or ""


def _signals(file: Hdf5File) -> Iterator[tuple[str, str, str]]:
    """Yield (entry, group, dataset) of all patterns."""
    for entry, item in _children(file, ""):
        is_entry = _class_of(item) == "NXentry"
        for name, group in _children(file, entry):
            if not (is_entry and _class_of(group) == "NXdata") and not _is_plain(file, entry, name):
                continue
            signal = text_of(attribute(group, "signal"), 200) or "data"
            if "/" not in signal and _is_stack(file, f"{name}/{signal}"):
                yield entry, name, f"{name}/{signal}"


def _is_plain(file: Hdf5File, entry: str, name: str) -> bool:
    """Return True for a group `data` without a class that has positions, or a detector's description beside it."""
    if name.rpartition("/")[2] != "data":
        return False
    has_places = any(all(holds_numbers(file, f"{name}/{axis}") for axis in pair) for pair in PLACES)
    return has_places or next(_groups_of(file, entry, "NXdetector", "detector"), None) is not None


def _is_stack(file: Hdf5File, name: str) -> bool:
    item = item_of(file, name)
    if not isinstance(item, h5py.Dataset) or item.dtype.kind not in "buif" or item.ndim not in (3, 4):
        return False
    return min(item.shape[-2:]) >= SMALLEST


def _groups_of(file: Hdf5File, entry: str, kind: str, word: str) -> Iterator[str]:
    """Yield the groups of a class (or whose names begin with a word) of an entry and its instrument."""
    for name, group in _children(file, entry):
        if _class_of(group) == kind or name.rpartition("/")[2].startswith(word):
            yield name
        elif _class_of(group) == "NXinstrument" or name.rpartition("/")[2].startswith("instrument"):
            for inner, subgroup in _children(file, name):
                if _class_of(subgroup) == kind or inner.rpartition("/")[2].startswith(word):
                    yield inner


def _optics(file: Hdf5File, entry: str, detector: str, data: DataOptions) -> Optics:
    """Return what the file says of beam and detector; what the recipe replaces is not looked at."""
    groups = [*_groups_of(file, entry, "NXbeam", "beam"), *_groups_of(file, entry, "NXmonochromator", "monochromator")]
    recipe_energy = data.energy_eV or data.wavelength_m
    energy, name = read_number(
        file, tuple(f"{one}/{key}" for one in groups for key in ENERGIES), ENERGY, recipe_energy, "data.energy_eV"
    )
    names = tuple(f"{one}/{key}" for one in groups for key in WAVELENGTHS)
    wavelength, _ = read_number(file, names, WAVELENGTH, recipe_energy or energy, "data.wavelength_m")
    radiation: Radiation | None = data.radiation or (_probe_of(file, entry) if groups else None)
    if energy is not None and radiation == "photon":
        check_energy(energy, PHOTON_EV, f"{name} in {file.filename}", f"{energy:g} eV")
    distance, _ = read_number(file, (f"{detector}/distance",), DISTANCE, data.distance_m, "data.distance_m")
    return Optics(
        radiation=radiation,
        energy_eV=energy,
        wavelength_m=wavelength if energy is None else None,
        distance_m=distance,
        detector_pixel_m=read_pixel(file, detector, data.detector_pixel_m),
    )


def _probe_of(file: Hdf5File, entry: str) -> Radiation | None:
    """Return what the source says that it sends; photons where it says nothing."""
    for group in _groups_of(file, entry, "NXsource", "source"):
        if has(file, f"{group}/probe"):
            probe = text_of(dataset_of(file, f"{group}/probe")[()], 60) or ""
            return "electron" if probe.lower().startswith("electron") else "photon" if "ray" in probe.lower() else None
    return "photon"


def _positions(file: Hdf5File, group: str, count: int) -> tuple[np.ndarray | None, Unit, str]:
    """Return (N, 2) y x, None where none are beside the patterns; their unit; what to ask where that is unknown."""
    for pair in PLACES:
        names = [f"{group}/{axis}" for axis in pair]
        if not all(holds_numbers(file, name) for name in names):
            continue
        y, x = (read_dataset(file, name, 64 * count + 1000, "iuf").reshape(-1).astype(np.float64) for name in names)
        if len(y) != len(x):
            raise BadInput(f"{names[0]} in {file.filename} has {len(y)} values and {names[1]} {len(x)}; mend them.")
        units = [unit_of(file, name) for name in names]
        unit = find_position_unit(units)
        if unit is not None:
            return np.stack([y, x], axis=1), unit, ""
        words = " and ".join("no unit" if one is None else repr(one) for one in dict.fromkeys(units))
        return (
            np.stack([y, x], axis=1),
            "m",
            f"{names[0]} and {names[1]} in {file.filename} say {words}: set positions.unit.",
        )
    return None, "m", ""


def _mask(file: Hdf5File, detector: str, window: tuple[int, ...]) -> np.ndarray | None:
    """Return (H, W) bool of a detector's mask, in which zero is good."""
    name = f"{detector}/pixel_mask"
    if not detector or not holds_numbers(file, name) or dataset_of(file, name).shape != window:
        return None
    return np.asarray(read_dataset(file, name, kinds="iuf") == 0)


def _dark(file: Hdf5File, detector: str, window: tuple[int, ...]) -> np.ndarray | None:
    """Return (H, W) of a detector's dark pattern."""
    name = next(
        (f"{detector}/{key}" for key in ("data_dark", "dark") if holds_numbers(file, f"{detector}/{key}")), None
    )
    if not detector or name is None or dataset_of(file, name).shape != window:
        return None
    return read_dataset(file, name, kinds="iuf").astype(np.float64)
