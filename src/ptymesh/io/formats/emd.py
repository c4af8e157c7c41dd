"""EMD files of electron diffraction: py4DSTEM (version 1.0 and those before) and Prismatic.

The patterns are four-dimensional (scan rows, scan columns, detector rows, detector columns). Version 1.0 has a group
whose `python_class` is `DataCube`, with vectors `dim0` to `dim3` and a `calibration` beside it; before, data lie in
`data/datacubes/NAME/data` or, Prismatic's, `datacube`, with vectors `dim1` to `dim4`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.formats.calibrated import Scale, make_calibrated_scan
from ptymesh.io.formats.contents import is_hdf5_with
from ptymesh.io.hdf5.reading import DAMAGE, Hdf5File, attribute, dataset_of, item_of, open_hdf5, read_dataset, text_of
from ptymesh.io.options import DataOptions
from ptymesh.io.scan import RawScan
from ptymesh.io.source import Hdf5Source
from ptymesh.io.units import ELECTRON_EV, check_energy, length_m

NAME = "EMD (py4DSTEM, Prismatic)"
#: Groups that are looked into, and how deep, for the patterns.
GROUPS, DEPTH = 500, 5
#: Where programs keep the patterns of a data cube.
ARRAYS = ("data", "datacube")
#: Units of Prismatic's axes, which it calls nanometres.
PRISMATIC = ("A", "A", "1/A", "1/A")
#: A microscope's values, where they are found.
ENERGY_NAMES = ("beam_energy", "accelerating_voltage", "accelerating voltage", "high tension", "voltage")


def recognises(path: Path, data: DataOptions) -> bool:
    """Return True for HDF5 with a data cube."""
    return is_hdf5_with(path, data, _cubes)


def read(path: Path, data: DataOptions) -> RawScan:
    """Return the scan of the first data cube.

    Raises:
        BadInput: Its patterns are not four-dimensional, or something that it says of them cannot be.
    """
    with open_hdf5(path, follow=data.follow) as file:
        cubes = _cubes(file)
        group, array = cubes[0]
        name = f"{group}/{array}"
        source = Hdf5Source(path, name, follow=data.follow)
        if source.raster is None:
            raise BadInput(
                f"{name} in {path} has shape {source.shape}; a data cube has four axes: name it in data.keys."
            )
        notes = [f"Of {len(cubes)} data cubes ({', '.join(one for one, _ in cubes[:4])}), {group} is read."][
            : len(cubes) - 1
        ]
        calibration = CubeCalibration(file, group)
        energy = None
        if data.energy_eV is None and data.wavelength_m is None:
            energy = calibration.energy_eV()
        scan = make_calibrated_scan(path, source, calibration.scales(), energy, data, notes=notes)
        return replace(scan, notes=(*scan.notes, *calibration.rotation_notes()))


def _cubes(file: Hdf5File) -> list[tuple[str, str]]:
    """Return (group, array) of the data cubes, in the order of their names."""
    cubes = []
    for name, group in _groups(file):
        class_name = text_of(attribute(group, "python_class")) or ""
        is_old = name.split("/")[-2] == "datacubes" if name.count("/") > 1 else False
        if class_name == "DataCube" or is_old:
            array = next((one for one in ARRAYS if isinstance(item_of(file, f"{name}/{one}"), h5py.Dataset)), None)
            if array is not None:
                cubes.append((name, array))
    return cubes


def _groups(file: Hdf5File) -> Iterator[tuple[str, h5py.Group]]:
    """Yield groups of the file, to a depth; links to elsewhere are not followed."""
    waiting, visited = [""], 0
    while waiting and visited < GROUPS:
        name = waiting.pop(0)
        group = item_of(file, name or "/")
        visited += 1
        if not isinstance(group, h5py.Group):
            continue
        if name:
            yield name, group
        if name.count("/") < DEPTH:
            try:
                names = [one for one in group if isinstance(group.get(one, getlink=True), h5py.HardLink)]
                waiting += [f"{name}/{one}" for one in names if group.get(one, getclass=True) is h5py.Group]
            except DAMAGE as error:
                raise BadInput(
                    f"{name or '/'} in {file.filename} is damaged ({error}): copy the file again."
                ) from error


class CubeCalibration:
    """Calibration of a data cube in a file: its axes, the microscope's values, and the scan's rotation."""

    def __init__(self, file: Hdf5File, group: str) -> None:
        self._file, self._group = file, group
        first = 0 if item_of(file, f"{group}/dim0") is not None else 1
        self._axes = [self._axis(f"{group}/dim{first + k}") for k in range(4)]
        self._values = self._stated_values()
        #: Prismatic's own parameters stand beside its results; its lengths are in angstrom, whatever its axes say.
        self._is_prismatic = {"e", "rx", "ry"} <= set(self._values)
        if self._is_prismatic:
            self._axes = [(step, unit) for (step, _), unit in zip(self._axes, PRISMATIC, strict=True)]

    def _axis(self, name: str) -> tuple[float, str]:
        """Return (step, unit) of a vector: its first two values, or those of a linear one."""
        item = item_of(self._file, name)
        if not isinstance(item, h5py.Dataset) or item.ndim != 1 or item.dtype.kind not in "iuf" or len(item) < 2:
            return 0.0, ""
        values = read_dataset(self._file, name, 1 << 20, "iuf").astype(np.float64)
        unit = text_of(attribute(dataset_of(self._file, name), "units"), 40) or ""
        step = float(values[1] - values[0])
        return (step if math.isfinite(step) else 0.0), unit

    def _stated_values(self) -> dict[str, Any]:
        """Return numbers and words of calibration and microscope, by their names in lower case.

        Version 1.0 keeps them in a `metadatabundle` beside the cube or in it; files before it in `metadata`.
        """
        root = "/" + self._group.strip("/").split("/")[0]
        places = [f"{root}/metadatabundle", f"{self._group}/metadatabundle", f"{root}/metadata", "/metadata"]
        values: dict[str, Any] = {}
        for place in places:
            waiting = [place]
            while waiting and len(values) < GROUPS:
                name = waiting.pop(0)
                item = item_of(self._file, name)
                if isinstance(item, h5py.Group):
                    values |= {key.lower(): self._value(attribute(item, key)) for key in list(item.attrs)[:GROUPS]}
                    waiting += [f"{name}/{key}" for key in item]
                elif isinstance(item, h5py.Dataset) and item.size is not None and item.size <= 4:
                    values.setdefault(name.rpartition("/")[2].lower(), self._value(item[()]))
        return values

    @staticmethod
    def _value(stored: Any) -> Any:
        text = text_of(stored, 100)
        if text is not None:
            return text
        values = np.asarray(stored)
        if values.dtype.kind not in "iufb" or not values.size:
            return None
        return [float(value) for value in values.reshape(-1)[:4]]

    def _number(self, name: str) -> float | None:
        value = self._values.get(name)
        if isinstance(value, str):
            try:
                value = [float(value)]
            except ValueError:
                return None
        return value[0] if value and math.isfinite(value[0]) else None

    def _word(self, name: str) -> str:
        value = self._values.get(name)
        return value if isinstance(value, str) else ""

    def energy_eV(self) -> float | None:
        """Return the electrons' energy; BadInput where it cannot be told whether it is in V or kV.

        Prismatic's `E` is in keV, py4DSTEM's and the microscopes' own are in V.
        """
        name = next((name for name in ENERGY_NAMES if self._number(name)), None)
        if name is not None:
            volts = self._number(name) or 0.0
            return check_energy(volts, ELECTRON_EV, f"{name} in {self._file.filename}", f"{volts:g}")
        kilovolts = self._number("e") if self._is_prismatic else None
        if kilovolts is None:
            return None
        return check_energy(1e3 * kilovolts, ELECTRON_EV, f"E in {self._file.filename}", f"{kilovolts:g} keV")

    def scales(self) -> list[Scale]:
        """Return step and unit of all axes: those of the calibration, else of the array."""
        scan, detector = self._axes[:2], self._axes[2:]
        size, unit = self._number("r_pixel_size"), self._word("r_pixel_units") or self._word("r_units")
        if size and (length_m(unit) or not all(step > 0 and length_m(other) for step, other in scan)):
            scan = [(size, unit)] * 2
        size, unit = self._number("q_pixel_size"), self._word("q_pixel_units") or self._word("q_units")
        return scan + ([(size, unit)] * 2 if size else detector)

    def rotation_notes(self) -> list[str]:
        """Return what the file says of the detector against the scan, which is not applied."""
        angle, flip = self._number("qr_rotation_degrees"), self._number("qr_flip")
        if angle is None:
            radians = self._number("qr_rotation")
            angle = None if radians is None else math.degrees(radians)
        if angle is None and not flip:
            return []
        transposed = ", transposed" if flip else ""
        return [
            f"The file says that the detector lies rotated by {angle or 0:.4g} degrees against the scan{transposed} "
            "(py4DSTEM's QR_rotation), which is not applied: see ptymesh orient."
        ]
