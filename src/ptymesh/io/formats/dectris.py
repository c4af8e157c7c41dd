"""Dectris masters (ARINA, QUADRO, EIGER): `/entry/data/data_000001` and further ones, in files of their own.

Frames are a list over all data files; the scan is said by nobody but the program that ran it, which may have left its
own file beside (NAME.h5 beside NAME_master.h5). Compressed frames (bitshuffle, lz4) are read by hdf5plugin.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ptymesh.errors import BadInput
from ptymesh.geometry import Radiation
from ptymesh.io.formats.contents import is_hdf5_with
from ptymesh.io.hdf5.reading import (
    DAMAGE,
    Hdf5File,
    attribute,
    dataset_of,
    has,
    is_hdf5,
    item_of,
    open_hdf5,
    read_dataset,
    text_of,
)
from ptymesh.io.options import DataOptions
from ptymesh.io.quantities import DISTANCE, ENERGY, WAVELENGTH, read_number, read_pixel
from ptymesh.io.rasters import Shape, orientation_note, scan_shape
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.staging import join_sliceable, open_alike_sources
from ptymesh.io.units import ELECTRON_EV, check_energy

NAME = "Dectris (master of ARINA, QUADRO, EIGER)"
DATA, DETECTOR, BEAM = "/entry/data", "/entry/instrument/detector", "/entry/instrument/beam"
NUMBERED = re.compile(r"data_(\d{6,})")
#: What `description` says of a detector for electrons, and of one for photons.
KINDS: dict[str, Radiation] = {
    "ARINA": "electron",
    "QUADRO": "electron",
    "ELA": "electron",
    "SINGLA": "electron",
    "EIGER": "photon",
    "PILATUS": "photon",
}
MASKS = (f"{DETECTOR}/detectorSpecific/pixel_mask", f"{DETECTOR}/pixel_mask")
ENERGIES = (f"{BEAM}/incident_energy", f"{DETECTOR}/detectorSpecific/photon_energy", f"{DETECTOR}/photon_energy")
#: What the program of a microscope leaves beside a master.
STEM = "/STEM Metadata"


def recognises(path: Path, data: DataOptions) -> bool:
    """Return True for HDF5 with numbered data beside a detector's description."""
    return is_hdf5_with(path, data, lambda file: _numbers(file) and has(file, DETECTOR))


def read(path: Path, data: DataOptions) -> RawScan:
    """Return the scan of a master and its data files.

    Raises:
        BadInput: A data file is missing, or of another shape, or there are more or fewer frames than the master says.
    """
    with open_hdf5(path, follow=data.follow) as file:
        numbers = _numbers(file)
        gaps = sorted(set(range(min(numbers), max(numbers))) - set(numbers))
        if gaps:
            raise BadInput(f"{path} has no data_{gaps[0]:06d}, but later ones; copy the whole acquisition again.")
        names = [f"{DATA}/{numbers[number]}" for number in sorted(numbers)]
        source = join_sliceable(open_alike_sources(path, names, data.follow, ": they are of different acquisitions"))
        count, *window = source.shape
        notes: list[str] = []
        notes += _check_count(file, count, data)
        declared, voltage, origin = _scan_size_and_volts(path, file)
        shape = scan_shape(count, declared, data, origin)
        optics = _optics(file, voltage, data, notes)
        notes += _beam_note(file, (window[0], window[1]))
        return RawScan(
            patterns=source,
            optics=optics,
            raster=shape.shape,
            mask=_mask(file, (window[0], window[1]), path),
            name=path.stem.removesuffix("_master"),
            notes=(*shape.notes, *notes, orientation_note("Dectris")),
        )


def _numbers(file: Hdf5File) -> dict[int, str]:
    """Return the names of the numbered data, by their numbers; where they lead is not looked at."""
    group = item_of(file, DATA)
    if not isinstance(group, h5py.Group):
        return {}
    try:
        names = list(group.keys())
    except DAMAGE:
        return {}
    matches = {name: NUMBERED.fullmatch(name) for name in names}
    return {int(match[1]): name for name, match in matches.items() if match is not None}


def _whole_number(file: Hdf5File, name: str) -> int | None:
    """Return a whole number, None where there is none."""
    if not isinstance(item_of(file, name), h5py.Dataset):
        return None
    value = read_dataset(file, name, 1000, "iuf").reshape(-1)
    return int(value[0]) if len(value) and np.isfinite(value[0]) else None


def _check_count(file: Hdf5File, count: int, data: DataOptions) -> list[str]:
    """Return what to say of frames that are fewer or more than the master says; BadInput unless the recipe does."""
    images, triggers = (_whole_number(file, f"{DETECTOR}/detectorSpecific/{name}") for name in ("nimages", "ntrigger"))
    if images is None or triggers is None or images * triggers in (0, count):
        return []
    difference = f"{file.filename} says {triggers} triggers of {images} images, and its data files hold {count} frames"
    if data.frames is None or data.frames.shape is None:
        raise BadInput(
            f"{difference}: copy those that are missing, or, if the acquisition was stopped, set data.frames.shape to "
            "the rows and columns that there are."
        )
    return [f"{difference}."]


def _scan_size_and_volts(path: Path, file: Hdf5File) -> tuple[Shape | None, float | None, str]:
    """Return (rows, columns) and volts that are said beside the frames, and by whom."""
    group = item_of(file, DATA)
    scan_shape = None if group is None else attribute(group, "scan_shape")
    if scan_shape is not None and (shape := _pair(scan_shape)) is not None:
        return shape, None, f"scan_shape of {path}"
    stem = path.stem.removesuffix("_master")
    other = path.with_name(f"{stem}{path.suffix}")
    if other == path or not is_hdf5(other):
        return None, None, str(path)
    with open_hdf5(other) as described:
        item = item_of(described, STEM)
        if item is None:
            return None, None, str(path)
        shape = _pair([_attribute(item, name) for name in ("NumPixelsY", "NumPixelsX")])
        volts = _attribute(item, "High Tension")
        return shape, volts or None, str(other)


def _attribute(item: Any, name: str) -> float:
    """Return a number that an attribute says; 0 where it says none."""
    value = np.asarray(attribute(item, name))
    return float(value.reshape(-1)[0]) if value.dtype.kind in "iuf" and value.size else 0.0


def _pair(values: Any) -> Shape | None:
    """Return two whole numbers from 1 on, None for anything else."""
    numbers = np.asarray(values).reshape(-1)
    if numbers.size != 2 or numbers.dtype.kind not in "iuf" or not ((numbers >= 1) & (numbers < 1e6)).all():
        return None
    return int(numbers[0]), int(numbers[1])


def _optics(file: Hdf5File, voltage: float | None, data: DataOptions, notes: list[str]) -> Optics:
    """Return what the master says of beam and detector; what the recipe replaces is not looked at."""
    item = item_of(file, f"{DETECTOR}/description")
    text = text_of(dataset_of(file, f"{DETECTOR}/description")[()]) if isinstance(item, h5py.Dataset) else ""
    radiation = data.radiation or next((kind for word, kind in KINDS.items() if word in (text or "").upper()), None)
    recipe_energy = data.energy_eV or data.wavelength_m
    energy, name = read_number(file, ENERGIES, ENERGY, recipe_energy, "data.energy_eV")
    wavelength, _ = read_number(
        file, (f"{BEAM}/incident_wavelength",), WAVELENGTH, recipe_energy or energy, "data.wavelength_m"
    )
    if energy is None and wavelength is None and recipe_energy is None and voltage is not None:
        energy, name = voltage, STEM
    if energy is not None and radiation == "electron":
        check_energy(energy, ELECTRON_EV, f"{name} of {file.filename}", f"{energy:g} eV")
    distances = (f"{DETECTOR}/detector_distance", f"{DETECTOR}/distance")
    distance, _ = read_number(file, distances, DISTANCE, data.distance_m, "data.distance_m")
    if distance is None and data.distance_m is None and any(has(file, one) for one in distances):
        notes.append("The detector's distance is zero in the file, and therefore unknown (data.distance_m).")
    return Optics(
        radiation=radiation,
        energy_eV=energy,
        wavelength_m=wavelength,
        distance_m=distance,
        detector_pixel_m=read_pixel(file, DETECTOR, data.detector_pixel_m),
    )


def _beam_note(file: Hdf5File, window: Shape) -> list[str]:
    """Return what the file says of the direct beam, where that is not the middle."""
    names = [f"{DETECTOR}/beam_center_{axis}" for axis in "yx"]
    if not all(isinstance(item_of(file, name), h5py.Dataset) for name in names):
        return []
    y, x = (float(read_dataset(file, name, 1000, "iuf").reshape(-1)[0]) for name in names)
    if not np.isfinite(y + x) or (y == 0 and x == 0):
        return []
    if abs(y - window[0] // 2) <= 1 and abs(x - window[1] // 2) <= 1:
        return []
    return [
        f"The file puts the direct beam at pixel ({y:.1f}, {x:.1f}); the patterns are taken as centred: set "
        f"data.centre to [{y:.0f}, {x:.0f}] if they are not."
    ]


def _mask(file: Hdf5File, window: Shape, path: Path) -> np.ndarray | None:
    """Return (H, W) bool, True where no bit of the mask says anything against a pixel."""
    name = next((name for name in MASKS if isinstance(item_of(file, name), h5py.Dataset)), None)
    if name is None:
        return None
    bits = read_dataset(file, name, 4 * window[0] * window[1], "iuf")
    if bits.shape != window:
        raise BadInput(f"{name} in {path} has shape {bits.shape}, and its frames {window}; mend it, or leave it out.")
    return np.asarray(bits == 0)
