"""abTEM's measurements before its version with zarr (.hdf5): `/array` with `/sampling` and `/units` of each axis.

Axes are (x, y, kx, ky), of scan and detector alike; they are read as rows and columns in this order, so that the object
is transposed against abTEM's figures, and nothing else changes.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from ptymesh.errors import BadInput
from ptymesh.geometry import Pair, electron_wavelength_m
from ptymesh.io.formats.about import About
from ptymesh.io.formats.contents import is_hdf5_with
from ptymesh.io.hdf5.reading import Hdf5File, item_of, open_hdf5, read_dataset, text_of
from ptymesh.io.options import DataOptions
from ptymesh.io.quantities import holds_numbers
from ptymesh.io.rasters import raster_positions
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.source import Hdf5Source
from ptymesh.io.staging import sliceable
from ptymesh.io.units import length_m, object_pixel_m, uncalibrated_note

NAME = "abTEM (HDF5)"
ABOUT = About(
    instrument="abTEM",
    reads="HDF5 of a simulated 4-D scan (`/array`, `/sampling`, `/units`)",
    takes="scan step, detector pixel in angles or inverse lengths",
    asks="energy (`data.energy_eV`); axes without units",
    library="h5py (BSD)",
)
ARRAY, SAMPLING, UNITS = "/array", "/sampling", "/units"


def recognises(path: Path, data: DataOptions) -> bool:
    """Return True for HDF5 with a 4-D array and what abTEM says of its axes."""
    return is_hdf5_with(path, data, _is_scan)


def read(path: Path, data: DataOptions) -> RawScan:
    """Return the scan of a measurement.

    Raises:
        BadInput: it does not say sampling and unit of each of its axes.
    """
    with open_hdf5(path, follow=data.follow) as file:
        source = Hdf5Source(path, ARRAY, "rcyx", data.follow)
        axes = _axes(file)
        wavelength = data.wavelength_m or (electron_wavelength_m(data.energy_eV) if data.energy_eV else None)
        pixel = object_pixel_m(source.shape[1:], axes[2:], wavelength)
        notes = ["abTEM's first axis is x: the object is transposed against its figures."]
        if pixel is None:
            notes.append(uncalibrated_note(*axes[2]))
        step = _step_m(axes[:2], notes)
        raster = source.raster
        return RawScan(
            patterns=sliceable(source),
            optics=Optics(radiation="electron", object_pixel_m=pixel),
            positions=None if step is None or raster is None else raster_positions(raster, step),
            raster=raster,
            name=path.stem,
            notes=tuple(notes),
        )


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


def _step_m(axes: list[tuple[float, str]], notes: list[str]) -> Pair | None:
    """Return the metres from view to view; None, with a note, where the file says no lengths."""
    (first, unit), (second, other) = axes
    metres, others = length_m(unit), length_m(other)
    if first <= 0 or second <= 0 or metres is None or others is None:
        said = f"{first:g} {unit or 'without a unit'}"
        notes.append(f"The file's scan step is {said}, which is no length: set positions.raster.step_m.")
        return None
    return first * metres, second * others
