"""MATLAB files (.mat) with one array of patterns: level 5 (`save -v6`, `-v7`) and HDF5 (`-v7.3`).

fold_slice's electron data hold `dp`, whose size is (y, x, rows, columns), the beam's `voltage` in kV and the detector's
`ADU` of one electron. MATLAB's first axis is the fastest one, so that h5py sees the axes in the reverse order; here
they are named in MATLAB's. Source: fold_slice's examples of data preparation.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import h5py

from ptymesh.errors import BadInput
from ptymesh.io.formats.contents import first_bytes
from ptymesh.io.formats.mat5 import HEADER_BYTES, has_level_5_header, list_variables
from ptymesh.io.hdf5.reading import Hdf5File, is_hdf5, item_of, names_in, open_hdf5, read_dataset
from ptymesh.io.options import DataOptions
from ptymesh.io.quantities import holds_numbers
from ptymesh.io.rasters import ScanShape, scan_shape
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.source import Hdf5Source, MappedSource
from ptymesh.io.staging import sliceable

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "MATLAB (.mat)"
#: The recipe may say the order of the axes (`data.frames.axes`).
ASKS_AXES = True
HDF5_TEXT = b"MATLAB 7.3 MAT-file"
#: Name of fold_slice's patterns, and their axes in MATLAB's order, for which the sides must not speak against it.
FOLD_SLICE = "dp"
FOLD_SLICE_AXES = {3: "yxn", 4: "yxrc"}
#: Axes of one pattern, as many files have it that are joined; least pixels along a side of it.
ONE_PATTERN, SMALLEST = "yx", 8
MOST_NAMES = 1000


@dataclass(frozen=True)
class Array:
    """An array of numbers in a file of either kind.

    Attributes:
        shape: its size in MATLAB's order.
        source: returns its patterns, given the letters of its axes in that order.
    """

    shape: tuple[int, ...]
    source: Callable[[str], MappedSource | Hdf5Source]


def recognises(path: Path, _: DataOptions) -> bool:
    """Return True for a file that begins as MATLAB's do."""
    start = first_bytes(path, HEADER_BYTES)
    return has_level_5_header(start) or (start.startswith(HDF5_TEXT) and is_hdf5(path))


def read(path: Path, data: DataOptions) -> RawScan:
    """Return the scan of a file.

    Raises:
        BadInput: it holds no array of patterns or several, or nothing says the order of its axes.
    """
    arrays, numbers = (_read_hdf5 if is_hdf5(path) else _read_level_5)(path, data)
    name = _patterns_name(arrays, path)
    shape = arrays[name].shape
    axes = data.frames.axes if data.frames is not None and data.frames.axes else _usual_axes(name, shape, path)
    if len(shape) == 2:
        axes = "".join(letter for letter in axes if letter in ONE_PATTERN)
    if len(axes) != len(shape):
        raise BadInput(f"data.frames.axes is {axes!r}, and {name} in {path} has the size {shape}; name each axis once.")
    source = arrays[name].source(axes)
    raster = source.raster
    scan = ScanShape(raster) if raster is not None else scan_shape(source.shape[0], None, data, str(path))
    if len(shape) == 2:
        scan = ScanShape(None)
    sides = dict(zip(axes, shape, strict=True))
    notes = [f"{name} is {shape}: patterns of {sides['y']} x {sides['x']} pixels (axes {axes} in MATLAB's order)."]
    is_fold_slice = name == FOLD_SLICE and data.radiation != "photon"
    energy = _energy_eV(numbers, path, data) if is_fold_slice else None
    if is_fold_slice and numbers.get("ADU", 1.0) > 1:
        notes.append(f"The file says ADU = {numbers['ADU']:g} detector units for an electron: set data.gain to it.")
    return RawScan(
        patterns=sliceable(source) if isinstance(source, Hdf5Source) else source,
        optics=Optics(radiation="electron" if energy else data.radiation, energy_eV=energy),
        raster=scan.shape,
        name=path.stem,
        notes=(*notes, *scan.notes),
    )


def _read_level_5(path: Path, data: DataOptions) -> tuple[dict[str, Array], dict[str, float]]:
    """Return arrays of three or four axes, and single numbers, by name."""
    variables = list_variables(path)
    arrays = {one.name: Array(one.shape, one.source) for one in variables if _is_stack(one.shape, data) and one.nbytes}
    for one in variables:
        if one.name in arrays and one.is_complex:
            del arrays[one.name]
    numbers = {one.name: value for one in variables if (value := one.number()) is not None}
    return arrays, numbers


def _read_hdf5(path: Path, data: DataOptions) -> tuple[dict[str, Array], dict[str, float]]:
    """Return the same of a file of version 7.3."""
    arrays, numbers = {}, {}
    with open_hdf5(path, follow=data.follow) as file:
        for name, item in _datasets(file):
            if _is_stack(item.shape, data) and item.dtype.kind in "buif" and 0 not in item.shape:
                arrays[name] = Array(tuple(item.shape[::-1]), _hdf5_source(path, name, data))
            elif item.size == 1 and holds_numbers(file, name):
                numbers[name] = float(read_dataset(file, name, 1, "iuf").reshape(-1)[0])
    return arrays, numbers


def _is_stack(shape: tuple[int, ...], data: DataOptions) -> bool:
    """Return True for three or four axes, and, where files are joined, for one pattern."""
    return len(shape) in (3, 4) or (len(shape) == 2 and bool(data.further) and min(shape) >= SMALLEST)


def _datasets(file: Hdf5File) -> list[tuple[str, h5py.Dataset]]:
    items = [(name, item_of(file, name)) for name in names_in(file, MOST_NAMES)]
    return [(name, item) for name, item in items if isinstance(item, h5py.Dataset)]


def _hdf5_source(path: Path, name: str, data: DataOptions) -> Callable[[str], Hdf5Source]:
    return lambda axes: Hdf5Source(path, f"/{name}", axes[::-1], data.follow)


def _patterns_name(arrays: dict[str, Array], path: Path) -> str:
    """Return the name of the patterns: fold_slice's, or the only array; BadInput where there are none or several."""
    if FOLD_SLICE in arrays or len(arrays) == 1:
        return FOLD_SLICE if FOLD_SLICE in arrays else next(iter(arrays))
    if not arrays:
        raise BadInput(f"{path} holds no array of real numbers with three or four axes; save the patterns in it.")
    listed = ", ".join(f"{name} {array.shape}" for name, array in list(arrays.items())[:8])
    hint = "name the patterns in data.keys" if is_hdf5(path) else "save the patterns alone, or with -v7.3"
    raise BadInput(f"{path} holds several arrays, {listed}, and does not say which are the patterns; {hint}.")


def _usual_axes(name: str, shape: tuple[int, ...], path: Path) -> str:
    """Return fold_slice's axes; BadInput for another array, and where the sides rather speak for another order."""
    if len(shape) == 2:
        return ONE_PATTERN
    axes = FOLD_SLICE_AXES[len(shape)]
    if name == FOLD_SLICE and not (shape[0] != shape[1] and shape[-2] == shape[-1]):
        return axes
    other = "rcyx" if len(shape) == 4 else "nyx"
    raise BadInput(
        f"{name} in {path} has the size {shape}, and nothing says which axes are the pattern's: set data.frames.axes "
        f"to {axes} (patterns of {shape[0]} x {shape[1]}) or to {other} (patterns of {shape[-2]} x {shape[-1]}), or "
        "another order of these letters."
    )


def _energy_eV(numbers: dict[str, float], path: Path, data: DataOptions) -> float | None:
    """Return fold_slice's voltage, which is in kV; BadInput where it can be none."""
    voltage = numbers.get("voltage")
    if voltage is None or data.energy_eV is not None or data.wavelength_m is not None:
        return None
    if not 10 <= voltage <= 2000:
        raise BadInput(
            f"voltage in {path} is {voltage:g}, and fold_slice's is in kV, 10 to 2000: set data.energy_eV, in "
            "electronvolts."
        )
    return 1e3 * voltage
