"""Scans whose file says step and unit of each axis, those of the scan before those of the detector; plain stacks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ptymesh.errors import BadInput
from ptymesh.geometry import Pair, Radiation, electron_wavelength_m
from ptymesh.io.formats.zarr_store import ZarrSource
from ptymesh.io.options import DataOptions
from ptymesh.io.rasters import raster_positions, scan_shape
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.source import Hdf5Source, MappedSource
from ptymesh.io.staging import sliceable
from ptymesh.io.units import length_m, object_pixel_m, uncalibrated_note

#: Step and unit of an axis; (0, "") where the file does not say them.
Scale = tuple[float, str]


def make_calibrated_scan(
    path: Path,
    source: Hdf5Source | ZarrSource | MappedSource,
    scales: Sequence[Scale],
    energy_eV: float | None,
    data: DataOptions,
    *,
    notes: Sequence[str] = (),
    radiation: Radiation = "electron",
) -> RawScan:
    """Return the scan of calibrated patterns.

    Args:
        path: of the file.
        source: of the patterns, (N, H, W), which knows the raster if the file has four axes.
        scales: of all axes of the file, slowest first.
        energy_eV: that the file says; None: nothing, or the recipe says it.
        data: of the recipe.
        notes: what is said before what the calibration lacks.
        radiation: of the beam.
    """
    all_notes, raster, positions = list(notes), source.raster, None
    energy = energy_eV or data.energy_eV
    wavelength = data.wavelength_m or (electron_wavelength_m(energy) if energy else None)
    pixel = object_pixel_m(source.shape[1:], scales[-2:], wavelength)
    if pixel is None:
        all_notes.append(uncalibrated_note(*scales[-2]))
    if raster is None:
        shape = scan_shape(source.shape[0], None, data, str(path))
        raster = shape.shape
        all_notes += shape.notes
    elif (step := _step_m(scales[:2], all_notes)) is not None:
        positions = raster_positions(raster, step)
    return RawScan(
        patterns=source if isinstance(source, MappedSource) else sliceable(source),
        optics=Optics(radiation=radiation, energy_eV=energy_eV, object_pixel_m=pixel),
        positions=positions,
        raster=raster,
        name=path.stem,
        notes=tuple(all_notes),
    )


def _step_m(scales: Sequence[Scale], notes: list[str]) -> Pair | None:
    """Return the metres from view to view (y, x); None, with a note, where the file says no lengths."""
    (y, unit_y), (x, unit_x) = scales
    metres_y, metres_x = length_m(unit_y), length_m(unit_x)
    if y > 0 and x > 0 and metres_y is not None and metres_x is not None:
        return y * metres_y, x * metres_x
    step = f"{y:g} {unit_y or 'without a unit'}"
    notes.append(f"The file's scan step is {step}, which is no length: set positions.raster.step_m.")
    return None


def choose_stack_axes(shape: tuple[int, ...], path: Path, data: DataOptions) -> str:
    """Return the letters of the axes of an array of patterns: the recipe's, else views, y, x or rows, columns, y, x.

    Args:
        shape: of the array.
        path: of its file, for messages.
        data: of the recipe, whose `frames.axes` come first.

    Raises:
        BadInput: it has other axes, or one of no length.
    """
    axes = data.frames.axes if data.frames is not None else None
    axes = axes or {3: "nyx", 4: "rcyx"}.get(len(shape), "")
    if len(axes) != len(shape) or 0 in shape:
        raise BadInput(
            f"{path} has shape {shape}; patterns have three axes (views, y, x), or four for a raster (rows, columns, "
            "y, x): save them so, or name their order in data.frames.axes."
        )
    return axes
