"""Nion Swift's .ndata: a zip file of `data.npy` and `metadata.json`, which says scale and unit of each axis.

Axes of the collection are the scan's, the two of each datum the detector's. Source: Nion Swift's own export.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path

from ptymesh.errors import BadInput
from ptymesh.io.formats.calibrated import Scale, make_calibrated_scan
from ptymesh.io.options import DataOptions
from ptymesh.io.scan import RawScan
from ptymesh.io.staging import ARCHIVE_DAMAGE, npz_source, open_npz
from ptymesh.io.units import ELECTRON_EV, check_energy

NAME = "Nion Swift (.ndata)"
MEMBERS = {"data.npy", "metadata.json"}
#: Bytes of the longest description that is read.
MOST_BYTES = 16 << 20
#: Where versions of the program say the voltage, in V.
VOLTAGES = (("instrument", "high_tension"), ("hardware_source", "autostem", "high_tension_v"))


def recognises(path: Path, _: DataOptions) -> bool:
    """Return True for a zip file with Nion's two members."""
    try:
        if not path.is_file() or not zipfile.is_zipfile(path):
            return False
        with zipfile.ZipFile(path) as archive:
            return set(archive.namelist()) >= MEMBERS
    except ARCHIVE_DAMAGE:
        return False


def read(path: Path, data: DataOptions) -> RawScan:
    """Return the scan of a data item.

    Raises:
        BadInput: it is no collection of patterns, or it contradicts itself.
    """
    metadata = _metadata(path)
    source = npz_source(path, "data", None)
    axes = 4 if source.raster is not None else 3
    datum = metadata.get("datum_dimension_count", 2)
    if datum != 2:
        raise BadInput(f"{path} holds data of {datum} axes each, and patterns have two; export the camera's item.")
    scales = _scales(metadata, axes, path)
    energy = None
    if data.energy_eV is None and data.wavelength_m is None and (volts := _voltage(metadata)) is not None:
        energy = check_energy(volts, ELECTRON_EV, f"The voltage in {path}", f"{volts:g} V")
    return make_calibrated_scan(path, source, scales, energy, data, radiation=data.radiation or "electron")


def _metadata(path: Path) -> dict[str, object]:
    """Return what `metadata.json` says; BadInput where it cannot be read."""
    with open_npz(path) as archive:
        size = archive.getinfo("metadata.json").file_size
        content = archive.read("metadata.json") if size <= MOST_BYTES else b""
    try:
        metadata = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"metadata.json in {path} cannot be read ({error}); export the item again.") from error
    return metadata if isinstance(metadata, dict) else {}


def _scales(metadata: dict[str, object], axes: int, path: Path) -> list[Scale]:
    """Return (step, unit) of each axis, (0, "") where the file does not say it; BadInput for another number of axes."""
    calibrations = metadata.get("spatial_calibrations")
    if not isinstance(calibrations, list):
        return [(0.0, "")] * axes
    if len(calibrations) != axes:
        raise BadInput(
            f"{path} says {len(calibrations)} calibrations, and its data have {axes} axes; export the item again."
        )
    scales = []
    for one in calibrations:
        step = _number(one.get("scale")) if isinstance(one, Mapping) else None
        scales.append((abs(step or 0.0), str(one.get("units") or "")[:40] if step else ""))
    return scales


def _voltage(metadata: dict[str, object]) -> float | None:
    """Return the voltage in V that the metadata say, None for none."""
    for path in VOLTAGES:
        value = metadata.get("metadata")
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if (number := _number(value)) is not None and number > 0:
            return number
    return None


def _number(value: object) -> float | None:
    """Return a finite number; None for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(value)
