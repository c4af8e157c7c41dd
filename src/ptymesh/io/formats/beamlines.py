"""HDF5 layouts of beamlines and programs that are told by the names of their datasets alone: one table, `LAYOUTS`.

Each line says where patterns, positions and the numbers of the beam lie, and in which units, where the file itself
says none (an attribute `units` comes first). All are in metres but for what a line says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import h5py
import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.formats.changed_source import squared
from ptymesh.io.formats.contents import is_hdf5_with
from ptymesh.io.hdf5.reading import Hdf5File, attribute, item_of, open_hdf5, read_dataset
from ptymesh.io.options import DataOptions, Unit
from ptymesh.io.quantities import (
    DISTANCE,
    ENERGY,
    PIXEL,
    WAVELENGTH,
    StoredQuantity,
    ask_for_unit,
    factor,
    find_position_unit,
    holds_numbers,
    unit_of,
)
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.source import Hdf5Source
from ptymesh.io.staging import sliceable

#: Kinds of the numbers that a layout may name.
QUANTITIES: dict[str, StoredQuantity] = {
    "energy_eV": ENERGY,
    "wavelength_m": WAVELENGTH,
    "distance_m": DISTANCE,
    "detector_pixel_m": PIXEL,
}


@dataclass(frozen=True)
class Column:
    """Coordinates along one axis: a dataset (N,), or one of the two columns of a dataset of pairs.

    Attributes:
        dataset: its name.
        index: of the column, in a dataset (N, 2) or (2, N); None: the dataset has one value for each view.
        sign: by which values are multiplied, where a stage moves against the probe.
    """

    dataset: str
    index: int | None = None
    sign: int = 1


@dataclass(frozen=True)
class FileLayout:
    """Names of the datasets of one beamline or program.

    Attributes:
        name: who writes such files.
        patterns: dataset of the patterns (N, y, x).
        y, x: the positions' coordinates; None where they lie in a file of their own.
        unit: of the positions, where their datasets say none.
        numbers: of beam and detector: (dataset, or DATASET@ATTRIBUTE, size of its unit in eV or metres where it says
            none; None: it is asked about where it could be another one; below zero: values may have the other sign).
        intensity: dataset of the incident intensity (N,); empty: none.
        amplitudes: whether the patterns are square roots of counts.
        note: what is said of each such scan.
    """

    name: str
    patterns: str
    y: Column | None
    x: Column | None
    unit: Unit
    numbers: Mapping[str, tuple[str, float | None]] = field(default_factory=lambda: MappingProxyType({}))
    intensity: str = ""
    amplitudes: bool = False
    note: str = ""


_HXN: dict[str, tuple[str, float | None]] = {
    "wavelength_m": ("/lambda_nm", 1e-9),
    "distance_m": ("/z_m", 1.0),
    "detector_pixel_m": ("/ccd_pixel_um", 1e-6),
}
_PTYLAB: dict[str, tuple[str, float | None]] = {
    "wavelength_m": ("/wavelength", 1.0),
    "distance_m": ("/zo", 1.0),
    "detector_pixel_m": ("/dxd", 1.0),
}
_CSAXS: dict[str, tuple[str, float | None]] = {
    "energy_eV": ("/entry/instrument/monochromator/energy", 1e3),
    "distance_m": ("/entry/instrument/monochromator/distance", -1e-3),
    "detector_pixel_m": ("/entry/instrument/eiger_4/y_pixel_size", 1e-6),
}
_LYNX: dict[str, tuple[str, float | None]] = {
    "energy_eV": ("/entry/data/eiger_4@Photon_energy_kev", 1e3),
    "distance_m": ("/entry/data/eiger_4@Detector_distance_m", 1.0),
    "detector_pixel_m": ("/entry/data/eiger_4@Pixel_size", 1.0),
}
_PSEUDO = "/entry/measurement/pseudo"
#: In the order in which a file is compared with them.
LAYOUTS = (
    FileLayout(
        name="NSLS-II HXN (`diffamp`)",
        patterns="/diffamp",
        y=Column("/points", 1),
        x=Column("/points", 0),
        unit="um",
        numbers=_HXN,
        amplitudes=True,
        note="diffamp are amplitudes, and are squared; some files keep their zero frequency at the corner (data.dc).",
    ),
    *(
        FileLayout(
            name=f"NSLS-II HXN (`{patterns}`)",
            patterns=patterns,
            y=Column("/scan/scan_positions", 1),
            x=Column("/scan/scan_positions", 0),
            unit="um",
            numbers={"energy_eV": ("/scan/energy", None)},
        )
        for patterns in ("/diff_data/merlin1/det_images", "/entry/data/data")
    ),
    FileLayout(
        name="PSI cSAXS (Eiger)",
        patterns="/entry/data/data",
        y=None,
        x=None,
        unit="um",
        numbers=_CSAXS,
        note="Positions lie in a file of their own: name it in data.keys, such as {positions: 'scan_00123.dat:Target_y,"
        "Target_x'}, with positions.unit um.",
    ),
    FileLayout(
        name="APS LYNX (`eiger_4`)",
        patterns="/entry/data/eiger_4",
        y=None,
        x=None,
        unit="um",
        numbers=_LYNX,
        note="Positions lie in a file of their own: name it in data.keys, such as {positions: 'scan_00123.dat:"
        "Average_y_st_fzp,Average_x_st_fzp'}, with positions.unit um; both run against the probe (positions.flip_y, "
        "positions.flip_x).",
    ),
    *(
        FileLayout(
            name=f"APS Polar (`{patterns.rpartition('entry/')[2]}`)",
            patterns=patterns,
            y=Column("/entry/instrument/NDAttributes/Ypos"),
            x=Column("/entry/instrument/NDAttributes/Xpos"),
            unit="um",
        )
        for patterns in ("/entry/externals/eiger", "/entry/data/data")
    ),
    FileLayout(
        name="PtyLab",
        patterns="/ptychogram",
        y=Column("/encoder", 0),
        x=Column("/encoder", 1),
        unit="m",
        numbers=_PTYLAB,
    ),
    FileLayout(
        name="LCLS XPP",
        patterns="/jungfrau1M/image_img",
        y=Column("/lmc/ch05", sign=-1),
        x=Column("/lmc/ch03", sign=-1),
        unit="um",
        intensity="/ipm2/sum",
        note="The sample's rotation is not in the file; positions are those of the stages ch05 and ch03, unrotated.",
    ),
    *(
        FileLayout(
            name=f"NanoMAX (`{patterns.rpartition('measurement/')[2] or patterns}`)",
            patterns=patterns,
            y=Column(f"{_PSEUDO}/y"),
            x=Column(f"{_PSEUDO}/x"),
            unit="um",
        )
        for patterns in ("/entry/measurement/eiger1m/frames", "/entry/measurement/Eiger/data")
    ),
)
NAME = "a beamline's HDF5 (HXN, cSAXS, LYNX, Polar, PtyLab, XPP, NanoMAX)"


def recognises(path: Path, data: DataOptions) -> bool:
    """Return True for HDF5 with the patterns and positions of one of the layouts."""
    return is_hdf5_with(path, data, _layout)


def read(path: Path, data: DataOptions) -> RawScan:
    """Return the scan of the first layout that fits.

    Raises:
        BadInput: its positions are no pairs, or a number has an unknown unit.
    """
    with open_hdf5(path, follow=data.follow) as file:
        layout = _layout(file)
        assert layout is not None
        stored = sliceable(Hdf5Source(path, layout.patterns, "nyx", data.follow))
        count = stored.shape[0]
        positions = None
        if layout.y is not None and layout.x is not None:
            positions = np.stack([_column(file, column, count) for column in (layout.y, layout.x)], axis=1)
        numbers = {
            name: _number(file, dataset, size, QUANTITIES[name], data, name)
            for name, (dataset, size) in layout.numbers.items()
        }
        if data.energy_eV is not None:
            numbers.pop("wavelength_m", None)
        unit, doubt = _unit(file, layout)
        pixel = numbers.pop("detector_pixel_m", None)
        intensity = None
        if layout.intensity and holds_numbers(file, layout.intensity):
            intensity = read_dataset(file, layout.intensity, 2 * count, "iuf").reshape(-1).astype(np.float64)
    return RawScan(
        patterns=squared(stored) if layout.amplitudes else stored,
        optics=Optics(
            radiation=data.radiation or "photon",
            detector_pixel_m=None if pixel is None else (pixel, pixel),
            wavelength_m=numbers.get("wavelength_m"),
            energy_eV=numbers.get("energy_eV"),
            distance_m=numbers.get("distance_m"),
        ),
        positions=positions,
        unit=unit,
        unit_doubt=doubt,
        intensity=intensity,
        name=path.stem,
        notes=(f"The file's names are those of {layout.name}.", *((layout.note,) if layout.note else ())),
    )


def _layout(file: Hdf5File) -> FileLayout | None:
    """Return the first layout of which the file has patterns and positions."""
    for layout in LAYOUTS:
        patterns = item_of(file, layout.patterns)
        if (
            isinstance(patterns, h5py.Dataset)
            and patterns.ndim == 3
            and all(_has_number(file, name) for name in _told_by(layout))
        ):
            return layout
    return None


def _told_by(layout: FileLayout) -> list[str]:
    """Return the datasets besides the patterns by which a layout is known: its positions, or its numbers."""
    places = [column.dataset for column in (layout.y, layout.x) if column is not None]
    return places or [name for name, _ in layout.numbers.values()]


def _has_number(file: Hdf5File, name: str) -> bool:
    """Return True for a dataset of numbers, and for DATASET@ATTRIBUTE that is one."""
    return len(_attribute(file, name)) > 0 if "@" in name else holds_numbers(file, name)


def _attribute(file: Hdf5File, name: str) -> np.ndarray:
    """Return the numbers of DATASET@ATTRIBUTE; none where there are none."""
    dataset, _, key = name.partition("@")
    item = item_of(file, dataset)
    values = np.asarray(() if item is None else attribute(item, key)).reshape(-1)
    return values if values.dtype.kind in "iuf" else values[:0]


def _column(file: Hdf5File, column: Column, count: int) -> np.ndarray:
    """Return the coordinates (N,) float64 along one axis; `count`: the number of patterns."""
    stored: np.ndarray = read_dataset(file, column.dataset, 64 * count + 1000, "iuf").astype(np.float64)
    if column.index is None:
        return column.sign * stored.reshape(-1)
    shape = stored.shape
    if stored.ndim != 2 or 2 not in shape:
        raise BadInput(
            f"{column.dataset} in {file.filename} has shape {shape}, and there are {count} patterns; positions are "
            f"({count}, 2) or (2, {count}): name others in data.keys."
        )
    if shape == (2, 2):
        raise BadInput(
            f"{column.dataset} in {file.filename} has shape (2, 2), which can be read either way; name them in "
            "data.keys."
        )
    return column.sign * (stored[column.index] if shape[0] == 2 else stored[:, column.index])


def _unit(file: Hdf5File, layout: FileLayout) -> tuple[Unit, str]:
    """Return the positions' unit, and a sentence that asks for it where the file says one that is not known."""
    places = [column for column in (layout.y, layout.x) if column is not None]
    unit_names = {unit_of(file, column.dataset) for column in places} - {None}
    if not unit_names:
        return layout.unit, ""
    unit = find_position_unit(unit_names)
    if unit is None:
        words = " and ".join(sorted(repr(unit) for unit in unit_names))
        return layout.unit, f"Positions in {file.filename} are in {words}: set positions.unit."
    return unit, ""


def _number(
    file: Hdf5File, dataset: str, size: float | None, quantity: StoredQuantity, data: DataOptions, option: str
) -> float | None:
    """Return a number of beam or detector; None where the recipe says it, and where the file does not.

    Args:
        file: open.
        dataset: that holds the number.
        size: of its unit in eV or metres, if the dataset says none; None: then the recipe is asked for it.
        quantity: what it is.
        data: of the recipe.
        option: the key of `data` that says it instead.
    """
    if getattr(data, option) is not None or not _has_number(file, dataset):
        return None
    is_attribute = "@" in dataset
    values = _attribute(file, dataset) if is_attribute else read_dataset(file, dataset, 1000, "iuf").reshape(-1)
    if size is not None and size < 0:
        values, size = np.abs(values), -size
    if not len(values) or not np.isfinite(values[0]) or values[0] <= 0:
        return None
    unit, subject = None if is_attribute else unit_of(file, dataset), f"{dataset} in {file.filename}"
    if unit is None and size is None:
        ask_for_unit(float(values[0]), quantity, subject, f"data.{option}")
    unit_size = (1.0 if size is None else size) if unit is None else factor(unit, quantity, subject, f"data.{option}")
    return float(values[0]) * unit_size
