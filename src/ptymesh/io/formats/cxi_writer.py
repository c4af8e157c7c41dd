"""Writing CXI 1.6 (Maia 2012), slab by slab.

N, M        views, probe modes
h, w        detector pixels

What CXI cannot say (electrons, near field, a given object pixel, pixel units, incident intensities, background) is
kept in ptymesh's own group, /entry_1/ptymesh, so that reading the file back gives the same measurement.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np

import ptymesh
from ptymesh import constants
from ptymesh.errors import BadInput
from ptymesh.files import replacing, target_of, writing
from ptymesh.geometry import Geometry
from ptymesh.io.hdf5.writing import new_hdf5
from ptymesh.io.source import slabs
from ptymesh.measurement import Measurement

DETECTOR = "/entry_1/instrument_1/detector_1"
SOURCE = "/entry_1/instrument_1/source_1"
OWN = "/entry_1/ptymesh"
TRUTH = "/entry_1/ptymesh_truth"
#: Bit of the CXI mask for a pixel that is simply bad (CXI 1.6, "pixel is bad").
BAD_PIXEL = 0x00000002


def write_cxi(
    path: str | os.PathLike[str],
    *,
    patterns: Iterable[np.ndarray],
    count: int,
    dtype: np.dtype | type | str,
    geometry: Geometry,
    positions_m: np.ndarray | None = None,
    positions_px: np.ndarray | None = None,
    mask: np.ndarray | None = None,
    probe: np.ndarray | None = None,
    background: np.ndarray | None = None,
    intensity: np.ndarray | None = None,
    efficiency: np.ndarray | None = None,
    extra: Mapping[str, np.ndarray] | None = None,
    attributes: Mapping[str, Any] | None = None,
    compression: Literal["gzip"] | None = "gzip",
) -> None:
    """Write a CXI 1.6 file under a temporary name and rename it into place; no more than one slab is in memory.

    Args:
        path: the file, replaced if it exists.
        patterns: slabs (n, h, w) in the order of the views; far-field data with DC centred at (h//2, w//2).
        count: N, the number of patterns that the slabs hold together.
        dtype: of the stored patterns.
        geometry: energy, distances and pixel sizes that are written.
        positions_m: (N, 2) metres, y x: where the window lies on the sample (rows grow with y).
        positions_px: (N, 2) object pixels, for data in pixel units; exactly one of the two is given.
        mask: (h, w) bool, True where good.
        probe: (M, h, w) complex, optical axis at (h//2, w//2).
        background: (h, w) counts.
        intensity: (N,) relative incident intensity.
        efficiency: (h, w) relative share of the light that each pixel counts.
        extra: datasets under /entry_1/ptymesh_truth: what a simulation knows (object, probe, positions_m).
        attributes: scalars and strings that are added to /entry_1/ptymesh.
        compression: of the patterns; None: none.

    Raises:
        BadInput: the arrays do not fit each other, or the path cannot be a file; nothing is left behind.
        PtymeshError: the disk refuses; nothing is left behind.
    """
    path = Path(path)
    if (positions_m is None) == (positions_px is None):
        raise BadInput("A CXI file needs positions either in metres or in pixels; give exactly one of the two.")
    positions = positions_m if positions_m is not None else positions_px
    if positions is None or positions.shape != (count, 2):
        shape = None if positions is None else positions.shape
        raise BadInput(f"There are {count} patterns and positions of shape {shape}; give one (y, x) pair each.")
    target_of(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    most = count * math.prod(geometry.shape) * np.dtype(dtype).itemsize
    with replacing(path, most) as temporary, new_hdf5(temporary) as file:
        file.create_dataset("cxi_version", data=160)
        _write_instrument(file, geometry, mask, probe)
        _write_positions(file, positions_m)
        arrays = {"background": background, "intensity": intensity, "efficiency": efficiency}
        _write_own(file, geometry, {"positions_px": positions_px, **arrays}, {**(attributes or {})})
        for name, value in (extra or {}).items():
            file.create_dataset(f"{TRUTH}/{name}", data=value)
        _write_patterns(file, patterns, count, np.dtype(dtype), geometry.shape, compression)


def write_measurement(
    measurement: Measurement, path: str | os.PathLike[str], *, compression: Literal["gzip"] | None = "gzip"
) -> None:
    """Write a measurement as it is (prepared, in its own window); reading the file gives the same one.

    Data in pixel units keep their positions where only ptymesh looks for them.

    Args:
        measurement: the data.
        path: the file, replaced if it exists.
        compression: of the patterns; None: none.

    Raises:
        BadInput: a pattern holds what is not a count, or the path cannot be a file.
    """
    m, pixel = measurement, measurement.geometry.object_pixel_m

    def upright(array: np.ndarray) -> np.ndarray:
        return np.fft.fftshift(array, axes=(-2, -1)) if m.geometry.propagation == "far_field" else array

    write_cxi(
        path,
        patterns=(upright(m.patterns.read(views)) for views in slabs(m.views, m.window[0] * m.window[1] * 8)),
        count=m.views,
        dtype=m.patterns.dtype,
        geometry=m.geometry,
        positions_m=None if pixel is None else m.positions * np.array(pixel),
        positions_px=m.positions if pixel is None else None,
        mask=upright(m.mask),
        probe=m.probe,
        background=None if m.background is None else upright(m.background),
        intensity=m.intensity,
        efficiency=None if m.efficiency is None else upright(m.efficiency),
        attributes={"name": m.name, "notes": list(m.notes), "negative_is_missing": m.patterns.dtype.kind in "if"},
        compression=compression,
    )


def _write_instrument(file: h5py.File, geometry: Geometry, mask: np.ndarray | None, probe: np.ndarray | None) -> None:
    detector, source = file.create_group(DETECTOR), file.create_group(SOURCE)
    if geometry.wavelength_m is not None:
        source["wavelength"] = geometry.wavelength_m
    if geometry.energy_eV is not None:
        source["energy"] = geometry.energy_eV * constants.e
        source["energy"].attrs["units"] = "J"
    if geometry.distance_m is not None:
        detector["distance"] = geometry.distance_m
    if geometry.detector_pixel_m is not None:
        y, x = geometry.detector_pixel_m
        detector["y_pixel_size"], detector["x_pixel_size"] = y, x
        detector["basis_vectors"] = np.array([[0.0, -x], [-y, 0.0], [0.0, 0.0]])
    if mask is not None:
        detector["mask"] = np.where(mask, 0, BAD_PIXEL).astype(np.uint32)
    if probe is not None:
        source["illumination"] = probe


def _write_positions(file: h5py.File, positions_m: np.ndarray | None) -> None:
    """Write positions as the sample's translation (x, y, z): with CXI's default basis vectors, x, y = column, row."""
    file.create_group("/entry_1/data_1")
    if positions_m is None:
        return
    translation = np.zeros((len(positions_m), 3))
    translation[:, 0], translation[:, 1] = positions_m[:, 1], positions_m[:, 0]
    file["/entry_1/sample_1/geometry_1/translation"] = translation
    file["/entry_1/data_1/translation"] = h5py.SoftLink("/entry_1/sample_1/geometry_1/translation")


def _write_own(
    file: h5py.File, geometry: Geometry, arrays: Mapping[str, np.ndarray | None], attributes: Mapping[str, Any]
) -> None:
    group = file.create_group(OWN)
    group.attrs["ptymesh_version"] = ptymesh.__version__
    group.attrs["propagation"] = geometry.propagation
    for name in ("radiation", "wavelength_m", "distance_m", "focus_distance_m", "detector_pixel_m", "object_pixel_m"):
        value = getattr(geometry, name)
        if value is not None:
            group.attrs[name] = value
    for name, array in arrays.items():
        if array is not None:
            group[name] = array
    for name, value in attributes.items():
        group.attrs[name] = value


def _write_patterns(
    file: h5py.File,
    patterns: Iterable[np.ndarray],
    count: int,
    dtype: np.dtype,
    window: tuple[int, int],
    compression: str | None,
) -> None:
    packed = {"chunks": (1, *window), "compression": "gzip", "compression_opts": 2, "shuffle": True}
    options = packed if compression == "gzip" else {}  # as they are, one after the other
    data = file.create_dataset(f"{DETECTOR}/data", (count, *window), dtype=dtype, **options)
    file["/entry_1/data_1/data"] = h5py.SoftLink(f"{DETECTOR}/data")
    written = 0
    for slab in patterns:
        if slab.ndim != 3 or slab.shape[1:] != window or written + len(slab) > count:
            raise BadInput(f"A slab of patterns is {slab.shape} after {written} of {count} views of {window}.")
        data[written : written + len(slab)] = slab
        written += len(slab)
    if written != count:
        raise BadInput(f"Only {written} of {count} patterns were given.")
