"""PtyRAD's model files, .hdf5.

L, M    object slices, probe modes
N       views

    /optimizable_tensors/obja, objp (object mode, L, H, W) float32          amplitude and phase (rad)
    /optimizable_tensors/probe (M, h, w) complex64
    /optimizable_tensors/probe_pos_shifts (N, 2), /model_attributes/crop_pos (N, 2) int     y x, pixels
    /optimizable_tensors/obj_tilts (1 or N, 2) mrad, y x; /optimizable_tensors/slice_thickness
    /model_attributes/{dx, dk, lambd, slice_thickness, omode_occu, probe_int_sum}
    /loss_iters (epochs, 2)                                                 epoch, loss

A window begins at crop_pos + probe_pos_shifts, whole pixels and the rest. Lengths are in angstrom for electrons, in
metres for X-rays. The tilt acts as ours does. Source: PtyRAD's io.save, core.models.ptycho and init.initializer.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.geometry import electron_wavelength_m, photon_wavelength_m
from ptymesh.io.exchange.building import build_result, file_has, in_metres, number_in
from ptymesh.io.exchange.result_format import ANGSTROM_M, ResultFormat, new_file, number_of, pixel_size_of, unit_of
from ptymesh.io.hdf5.reading import has, open_hdf5, read_dataset
from ptymesh.io.results import Result

TENSORS, MODEL = "optimizable_tensors", "model_attributes"


def write(result: Result, path: Path) -> None:
    """Write object, probe, positions, spacing and tilt under PtyRAD's names.

    Raises:
        BadInput: the result is in pixel units, its pixels are not square, or the path cannot be a file.
    """
    y, x = pixel_size_of(result)
    if abs(y / x - 1) > 1e-6:
        raise BadInput(f"The object pixels are {y:g} x {x:g} m, and PtyRAD's are square; choose another format.")
    unit, _ = unit_of(result, ANGSTROM_M)
    corners = np.rint(result.positions_px).astype(np.int32)
    with new_file(result, path) as file:
        tensors, model = file.create_group(TENSORS), file.create_group(MODEL)
        modes = result.object[None] if result.object_modes is None else result.object_modes
        tensors["obja"] = np.abs(modes).astype(np.float32)
        tensors["objp"] = np.angle(modes).astype(np.float32)
        tensors["probe"] = result.probe.astype(np.complex64)
        tensors["probe_pos_shifts"] = (result.positions_px - corners).astype(np.float32)
        tensors["obj_tilts"] = 1e3 * np.array([result.tilt_rad], dtype=np.float32)
        tensors["slice_thickness"] = np.float32(result.slice_spacing_m / unit)
        model["crop_pos"] = corners
        if (energy := number_of(result, "energy_eV")) is not None and energy > 0:
            wavelength = electron_wavelength_m(energy) if unit == ANGSTROM_M else photon_wavelength_m(energy)
            model["lambd"] = wavelength / unit
        if len(losses := np.asarray(result.history.get("loss", ()), dtype=np.float64)):
            file["loss_iters"] = np.stack((np.arange(1, len(losses) + 1), losses), axis=1)
        model["dx"], model["dk"] = y / unit, unit / (y * result.probe.shape[-1])
        model["slice_thickness"] = result.slice_spacing_m / unit
        model["omode_occu"] = np.full(len(modes), 1 / len(modes), dtype=np.float32)
        model["probe_int_sum"] = float((np.abs(result.probe.astype(np.complex128)) ** 2).sum())


def recognises(path: Path) -> bool:
    """Return True for HDF5 with PtyRAD's object, probe and positions."""
    return file_has(path, f"{TENSORS}/objp", f"{TENSORS}/probe", f"{MODEL}/crop_pos")


def read(path: Path) -> tuple[Result, list[str]]:
    """Return the result in a model file, and sentences about what was assumed or left out.

    Raises:
        BadInput: its arrays do not fit together.
    """
    notes = []
    with open_hdf5(path) as file:
        amplitude, phase = (read_dataset(file, f"{TENSORS}/{name}", None, "iuf") for name in ("obja", "objp"))
        probe = read_dataset(file, f"{TENSORS}/probe", None, "buifc")
        corners = read_dataset(file, f"{MODEL}/crop_pos", None, "iuf").astype(np.float64)
        shifts = np.zeros(corners.shape)
        if has(file, f"{TENSORS}/probe_pos_shifts"):
            shifts = read_dataset(file, f"{TENSORS}/probe_pos_shifts", None, "iuf").astype(np.float64)
        pixel, is_angstrom = in_metres(number_in(file, f"{MODEL}/dx"))
        unit = ANGSTROM_M if is_angstrom else 1.0
        spacing = number_in(file, f"{TENSORS}/slice_thickness", 0.0) * unit
        occupancy = np.ones(1)
        if has(file, f"{MODEL}/omode_occu"):
            occupancy = read_dataset(file, f"{MODEL}/omode_occu", None, "iuf").astype(np.float64)
        tilts = np.zeros((1, 2))
        if has(file, f"{TENSORS}/obj_tilts"):
            tilts = read_dataset(file, f"{TENSORS}/obj_tilts", None, "iuf").astype(np.float64)
    if amplitude.shape != phase.shape or phase.ndim != 4 or shifts.shape != corners.shape or tilts.shape[-1:] != (2,):
        raise BadInput(
            f"{path} has obja {amplitude.shape}, objp {phase.shape}, crop_pos {corners.shape} and probe_pos_shifts "
            f"{shifts.shape}, which do not fit together."
        )
    if np.ptp(occupancy) > 1e-3 * np.abs(occupancy).max():
        notes.append("The object modes are taken as equally likely, though the file says otherwise.")
    modes = amplitude * np.exp(1j * phase)
    obj = modes[0]
    if len(modes) > 1:
        from ptymesh.physics.object_modes import mean_object  # torch, which a single mode does not need

        obj = mean_object(modes)
    if len(tilts) > 1 and np.ptp(tilts, axis=0).any():
        notes.append(f"Of the tilts of {len(tilts)} views the mean is taken.")
    if is_angstrom:
        notes.append("Lengths are taken for angstrom, as PtyRAD has them with electrons.")
    slices = phase.shape[1]
    tilt = np.mean(tilts.reshape(-1, 2), axis=0) / 1e3
    result = build_result(
        path,
        FORMAT.program,
        object=obj,
        object_modes=modes if len(modes) > 1 else None,
        probe=probe,
        positions_px=corners + shifts,
        pixel_size_m=(pixel, pixel),
        slice_spacing_m=spacing if slices > 1 else 0.0,
        tilt_rad=(float(tilt[0]), float(tilt[1])) if slices > 1 else (0.0, 0.0),
        attrs={"radiation": "electron" if is_angstrom else None},
    )
    return result, notes


FORMAT = ResultFormat(
    name="ptyrad",
    endings=(".hdf5",),
    program="PtyRAD",
    holds=frozenset({"probe", "modes", "object modes", "slices", "tilt", "positions"}),
    write=write,
    recognises=recognises,
    read=read,
    remarks=lambda result: unit_of(result, ANGSTROM_M)[1],
)
