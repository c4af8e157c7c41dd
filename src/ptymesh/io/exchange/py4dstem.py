"""py4DSTEM's ptychographic reconstructions, EMD 1.0.

L, M    object slices, probe modes
N       views

    /ROOT/NAME/_object_emd/data ([L,] H, W)     complex transmission, or a real potential V of which it is exp(i V)
    /ROOT/NAME/_probe_emd/data ([M,] h, w)      complex, optical axis at pixel (0, 0)
    /ROOT/NAME/metadatabundle/preprocess_metadata/{positions_px (N, 2), sampling (2,)}      y x; pixels, angstrom
    /ROOT/NAME/metadatabundle/instantiation_metadata/{energy (eV), slice_thicknesses}       angstrom
    /ROOT/NAME/metadatabundle/instantiation_metadata/{theta_x, theta_y}                     mrad, of our y, x

A position is the pixel h//2, w//2 of the window, in py4DSTEM's frame of the detector. A tilt of ours moves an image by
-z tan t, one of py4DSTEM's by +z tan theta. Ours have all that its classes are made of again (`read`, `from_h5`); the
sampling is then worked out from `angular_sampling` (mrad), `amplitudes_shape` and the wavelength of electrons. Source:
py4DSTEM's phase_base_class.py and files of emdfile.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ptymesh.errors import BadInput
from ptymesh.geometry import electron_wavelength_m
from ptymesh.io.exchange.building import build_result, equal_spacing, number_in
from ptymesh.io.exchange.result_format import ANGSTROM_M, ResultFormat, new_file, number_of, pixel_size_of, setting_of
from ptymesh.io.hdf5.reading import (
    Hdf5File,
    attribute,
    has,
    is_hdf5,
    item_of,
    names_in,
    open_hdf5,
    read_dataset,
    text_of,
)
from ptymesh.io.results import Result

OBJECT, PROBE = "_object_emd/data", "_probe_emd/data"
PREPROCESSED = "metadatabundle/preprocess_metadata"
INSTANTIATED = "metadatabundle/instantiation_metadata"
RECONSTRUCTED = "metadatabundle/reconstruction_metadata"
ABERRATIONS = "metadatabundle/aberrations_metadata"
#: py4DSTEM's class for several slices (first) and several probe modes (second).
CLASSES = {
    (False, False): "SingleslicePtychography",
    (False, True): "MixedstatePtychography",
    (True, False): "MultislicePtychography",
    (True, True): "MixedstateMultislicePtychography",
}
#: emdfile's words for the types of values, and its None.
KINDS = {
    type(None): "None",
    bool: "bool",
    int: "number",
    float: "number",
    str: "string",
    tuple: "tuple",
    list: "list",
    np.ndarray: "array",
}
NOTHING = "_None"
#: Groups that are looked into.
GROUPS = 100


def write(result: Result, path: Path) -> None:
    """Write object, probe, positions and lengths as py4DSTEM saves a reconstruction.

    Raises:
        BadInput: the result is in pixel units, or the path cannot be a file.
    """
    pixel = np.array(pixel_size_of(result)) / ANGSTROM_M
    window = np.array(result.probe.shape[-2:])
    slices, modes = len(result.object), len(result.probe)
    with new_file(result, path) as file:
        file.attrs.update(emd_group_type="file", version_major=1, version_minor=0, authoring_program="ptymesh")
        root = _group(file, "ptychography_root", "root", "Root")
        reconstruction = _group(root, "ptychography", "custom", CLASSES[slices > 1, modes > 1])
        _array(reconstruction, "_object_emd", result.object if slices > 1 else result.object[0], pixel)
        probe = np.fft.ifftshift(result.probe, axes=(-2, -1))
        _array(reconstruction, "_probe_emd", probe if modes > 1 else probe[0], pixel)
        _group(reconstruction, "metadatabundle", "metadatabundle", "")
        middles = result.positions_px + window // 2
        _metadata(reconstruction, INSTANTIATED, _arguments(result, middles * pixel))
        _metadata(reconstruction, PREPROCESSED, _calibration(result, middles, pixel))
        residual = [float(value) for value in result.history.get("residual", ())]
        _metadata(
            reconstruction, RECONSTRUCTED, {"reconstruction_error": residual or [math.nan]}
        )  # the last one is asked for
        _metadata(reconstruction, ABERRATIONS, {})  # they are in the probe


def _energy(result: Result) -> float | None:
    """Return the energy in eV, None where it is not known (or zero, as other programs say that)."""
    energy = number_of(result, "energy_eV")
    return energy if energy is not None and energy > 0 else None


def _arguments(result: Result, positions: np.ndarray) -> dict[str, Any]:
    """Return what py4DSTEM makes its class of, by its names.

    Args:
        result: whole.
        positions: (N, 2) y x, middles of windows in angstrom.
    """
    slices, modes = len(result.object), len(result.probe)
    arguments: dict[str, Any] = {
        "energy": _energy(result),
        "semiangle_cutoff": None,
        "rolloff": 2.0,
        "object_padding_px": None,
        "object_type": "complex",
        "name": "ptychography",
        "vacuum_probe_intensity": None,
        "positions": positions,
    }
    if modes > 1:
        arguments["num_probes"] = modes
    if slices > 1:
        arguments["num_slices"] = slices
        arguments["slice_thicknesses"] = np.full(slices - 1, result.slice_spacing_m / ANGSTROM_M)
        arguments["theta_x"], arguments["theta_y"] = (-1e3 * tilt for tilt in result.tilt_rad)
    return arguments


def _calibration(result: Result, middles: np.ndarray, pixel: np.ndarray) -> dict[str, Any]:
    """Return what py4DSTEM would have found before it reconstructs, by its names.

    Args:
        result: whole.
        middles: (N, 2) y x, of windows in pixels.
        pixel: (2,) y x in angstrom.
    """
    energy = _energy(result)
    window = np.array(result.probe.shape[-2:])
    angles = None
    if energy is not None:
        angles = tuple(1e3 * electron_wavelength_m(energy) / ANGSTROM_M / (window * pixel))
    return {
        "rotation_angle_rad": 0.0,
        "data_transpose": False,
        "positions_px": middles,
        "region_of_interest_shape": window,
        "amplitudes_shape": window,
        "num_diffraction_patterns": len(middles),
        "sampling": tuple(pixel),
        "angular_sampling": angles,
        "positions_mask": None,
    }


def _group(parent: h5py.Group, name: str, kind: str, python_class: str) -> h5py.Group:
    """Return a new group with the attributes by which emdfile knows it."""
    group = parent.create_group(name)
    group.attrs["emd_group_type"] = kind
    if python_class:
        group.attrs["python_class"] = python_class
    return group


def _array(parent: h5py.Group, name: str, values: np.ndarray, pixel: np.ndarray) -> None:
    """Add an array with its axes: a linear one is its first two values."""
    group = _group(parent, name, "custom_array", "Array")
    group["data"] = values
    group["data"].attrs["units"] = ""
    for axis in range(values.ndim):
        is_image = axis >= values.ndim - 2
        group[f"dim{axis}"] = [0.0, float(pixel[axis - values.ndim + 2]) if is_image else 1.0]
        group[f"dim{axis}"].attrs.update(name=f"dim{axis}", units="A" if is_image else "")


def _metadata(parent: h5py.Group, name: str, values: dict[str, Any]) -> None:
    """Add values, each with the kind by which emdfile reads it."""
    group = _group(parent, name, "metadata", "Metadata")
    for key, value in values.items():
        group[key] = NOTHING if value is None else value
        group[key].attrs["type"] = KINDS[type(value)]


def recognises(path: Path) -> bool:
    """Return True for EMD with an object, a probe and positions of py4DSTEM."""
    if not is_hdf5(path):
        return False
    try:
        with open_hdf5(path) as file:
            return bool(_place(file))
    except BadInput:
        return False


def _place(file: Hdf5File) -> str:
    """Return the name of the group of the first reconstruction; empty where there is none."""
    for root in names_in(file, GROUPS):
        group = item_of(file, root)
        for name in names_in(group, GROUPS) if isinstance(group, h5py.Group) else ():
            place = f"{root}/{name}"
            if all(has(file, f"{place}/{one}") for one in (OBJECT, PROBE, f"{PREPROCESSED}/positions_px")):
                return place
    return ""


def _number(file: Hdf5File, name: str) -> float:
    """Return a number, 0 where it is missing or None."""
    if has(file, name) and text_of(attribute(item_of(file, name), "type")) == "None":
        return 0.0
    return number_in(file, name, 0.0)


def _remarks(result: Result) -> list[str]:
    if _energy(result) is None:
        return ["The energy is not known: py4DSTEM opens the file, but finds no sampling."]
    if setting_of(result, "radiation") == "photon":
        return ["py4DSTEM knows electrons alone: lengths are right there, angles and distances of propagation are not."]
    return []


def read(path: Path) -> tuple[Result, list[str]]:
    """Return the result in a reconstruction, and sentences about what was assumed or left out.

    Raises:
        BadInput: its arrays do not fit together.
    """
    notes = []
    with open_hdf5(path) as file:
        place = _place(file)
        obj, probe = (read_dataset(file, f"{place}/{name}", None, "iufc") for name in (OBJECT, PROBE))
        positions = read_dataset(file, f"{place}/{PREPROCESSED}/positions_px", None, "iuf")
        sampling = read_dataset(file, f"{place}/{PREPROCESSED}/sampling", 2, "iuf").reshape(-1)
        energy, *tilt = (_number(file, f"{place}/{INSTANTIATED}/{name}") for name in ("energy", "theta_x", "theta_y"))
        spacings = np.zeros(1)
        if has(file, f"{place}/{INSTANTIATED}/slice_thicknesses"):
            spacings = read_dataset(file, f"{place}/{INSTANTIATED}/slice_thicknesses", None, "iuf").reshape(-1)
    if obj.dtype.kind != "c":
        notes.append("The object is a potential: its transmission exp(i V) is taken.")
        obj = np.exp(1j * obj)
    if probe.ndim > 3:
        raise BadInput(f"The probe in {path} has shape {probe.shape}, one for each scan; ptymesh takes (modes, y, x).")
    if sampling.size != 2:
        raise BadInput(f"sampling in {path} has {sampling.size} values; it should have two, in angstrom.")
    slices = obj.shape[0] if obj.ndim == 3 else 1
    window = np.array(probe.shape[-2:])
    result = build_result(
        path,
        FORMAT.program,
        object=obj,
        probe=np.fft.fftshift(probe, axes=(-2, -1)),
        positions_px=np.asarray(positions, np.float64) - window // 2,
        pixel_size_m=(float(sampling[0]) * ANGSTROM_M, float(sampling[1]) * ANGSTROM_M),
        slice_spacing_m=equal_spacing(path, spacings, slices) * ANGSTROM_M,
        tilt_rad=(-tilt[0] / 1e3, -tilt[1] / 1e3) if slices > 1 else (0.0, 0.0),
        attrs={"radiation": "electron", **({"energy_eV": energy} if energy else {})},
    )
    return result, notes


FORMAT = ResultFormat(
    name="py4dstem",
    endings=(".emd",),
    program="py4DSTEM",
    holds=frozenset({"probe", "modes", "slices", "tilt", "positions"}),
    write=write,
    recognises=recognises,
    read=read,
    remarks=_remarks,
)
