"""PtychoShelves' results as `NAME_recons.h5`, which it writes by default.

L, M    object slices, probe modes
N       views

    /reconstruction/p/objects/object_0 ([L,] H, W), /reconstruction/p/probes/probe_0 ([M,] h, w)      fields r, i
    /reconstruction/p/positions (N, 2)                  y x, pixel under the window's corner, counted from 0
    /reconstruction/p/{dx_spec (2) y x, lambda, delta_z (L - 1)} m, energy keV

Axes are in the order that h5py has: MATLAB's are reversed, and PtychoShelves transposes them before it saves. Source:
PtychoShelves' save.extract4saving, load_ptycho_recons and get_projections.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from ptymesh.errors import BadInput
from ptymesh.geometry import photon_wavelength_m
from ptymesh.io.exchange.building import build_result, equal_spacing, file_has, number_in
from ptymesh.io.exchange.result_format import ResultFormat, new_file, number_of, pixel_size_of
from ptymesh.io.hdf5.reading import Hdf5File, has, item_of, open_hdf5, read_dataset
from ptymesh.io.results import Result

P = "reconstruction/p"
OBJECT, PROBE = f"{P}/objects/object_0", f"{P}/probes/probe_0"


def write(result: Result, path: Path) -> None:
    """Write object, probe, positions and lengths under PtychoShelves' names.

    Raises:
        BadInput: the result is in pixel units, or the path cannot be a file.
    """
    pixel = pixel_size_of(result)
    energy = number_of(result, "energy_eV")
    with new_file(result, path) as file:
        for name, waves in ((OBJECT, result.object), (PROBE, result.probe)):
            file[name] = waves if len(waves) > 1 else waves[0]  # h5py's complex numbers are the fields r and i
        file["reconstruction/object"] = h5py.SoftLink(f"/{OBJECT}")
        file["reconstruction/probes"] = h5py.SoftLink(f"/{PROBE}")
        file[f"{P}/positions"] = result.positions_px
        file[f"{P}/dx_spec"] = np.array(pixel)
        if energy is not None:
            file[f"{P}/energy"] = energy / 1e3
            file[f"{P}/lambda"] = photon_wavelength_m(energy)
        if len(result.object) > 1:
            file[f"{P}/delta_z"] = np.full(len(result.object) - 1, result.slice_spacing_m)


def recognises(path: Path) -> bool:
    """Return True for HDF5 with PtychoShelves' object, probe and positions."""
    return file_has(path, OBJECT, PROBE, f"{P}/positions", f"{P}/dx_spec")


def read(path: Path) -> tuple[Result, list[str]]:
    """Return the result in a file, and sentences about what was assumed or left out.

    Raises:
        BadInput: its arrays do not fit together.
    """
    notes = ["The probe has PtychoShelves' scale; squares of it need not be counts."]
    with open_hdf5(path) as file:
        obj, probe = (_waves(file, name) for name in (OBJECT, PROBE))
        count = len(item_of(file, f"{P}/objects"))
        if count > 1:
            notes.append(f"Of {count} objects the first is taken, with the positions of all scans.")
        positions = read_dataset(file, f"{P}/positions", None, "iuf")
        pixel = read_dataset(file, f"{P}/dx_spec", 2, "iuf").reshape(-1)
        energy = number_in(file, f"{P}/energy", 0.0)
        spacings = np.zeros(1)
        if has(file, f"{P}/delta_z"):
            spacings = np.append(read_dataset(file, f"{P}/delta_z", None, "iuf").reshape(-1), 0.0)[:-1]
    slices = obj.shape[0] if obj.ndim == 3 else 1
    if pixel.size != 2:
        raise BadInput(f"{P}/dx_spec in {path} has {pixel.size} values; it should have two, y and x in metres.")
    result = build_result(
        path,
        FORMAT.program,
        object=obj,
        probe=probe,
        positions_px=np.asarray(positions, np.float64),
        pixel_size_m=(float(pixel[0]), float(pixel[1])),
        slice_spacing_m=equal_spacing(path, spacings, slices),
        attrs={"radiation": "photon", **({"energy_eV": energy * 1e3} if energy else {})},
    )
    return result, notes


def _waves(file: Hdf5File, name: str) -> np.ndarray:
    """Return a dataset of the fields r and i, complex in h5py, without axes of length one before the last two."""
    stored = read_dataset(file, name, None, "buifc")
    if stored.dtype.kind != "c":
        raise BadInput(f"{name} in {file.filename} is {stored.dtype}; it should have the fields r and i.")
    if stored.ndim < 2:
        raise BadInput(f"{name} in {file.filename} has shape {stored.shape}; it should have two or three axes.")
    waves = stored.reshape(*(n for n in stored.shape[:-2] if n > 1), *stored.shape[-2:])
    if waves.ndim > 3:
        raise BadInput(f"{name} in {file.filename} has shape {stored.shape}; it should have two or three axes.")
    return waves


FORMAT = ResultFormat(
    name="ptychoshelves_h5",
    endings=(".cxs",),
    program="PtychoShelves",
    holds=frozenset({"probe", "modes", "slices", "positions"}),
    write=write,
    recognises=recognises,
    read=read,
)
