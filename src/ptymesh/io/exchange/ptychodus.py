"""Ptychodus products, as HDF5 and as npz (Pty-Chi's front end).

L, M, K     object layers, incoherent modes, variable-probe (OPR) modes
N           views
H, W        object pixels
h, w        window pixels

    HDF5                                npz
    attributes of the file              arrays of the same names
    probe (1+K, M, h, w) complex        probe
      @pixel_height_m, @pixel_width_m   probe_pixel_height_m, probe_pixel_width_m
    opr_weights (N, 1+K)                opr_weights
    object (L, H, W) complex            object
      @center_x_m, @center_y_m ...      object_center_x_m, object_center_y_m, object_pixel_height_m, ...
    object_layer_spacing_m (L-1,)       the same
    probe_position_indexes, probe_position_x_m, probe_position_y_m (N,)
    loss_epochs, loss_values

A position in metres is the middle of the probe's window, and the object's centre the middle of its array, both counted
from edges of pixels: x_px = (x - center) / pixel + W/2, and the window begins at x_px - w/2. (Since 1.7 Ptychodus, as
Pty-Chi, counts from the middles of pixels, (W - 1)/2 and (w - 1)/2, with the same windows.) The probe of view j is
sum_c weights[j, c] probe[c, 0] in its first mode, and probe[0, m] in others. Source: Ptychodus' own reader and writer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.files import replacing
from ptymesh.io.exchange.building import build_result, equal_spacing, file_has, number_attribute
from ptymesh.io.exchange.result_format import ResultFormat, new_file, number_of, pixel_size_of, setting_of
from ptymesh.io.hdf5.reading import has, item_of, open_hdf5, read_dataset
from ptymesh.io.results import Result
from ptymesh.io.staging import is_npz, npz_members, read_member

#: The energy, by its name since Ptychodus 1.7 and the one before; both are written.
ENERGY = ("photon_energy_eV", "probe_energy_eV")
NEEDED = ("probe", "object", "probe_position_x_m", "probe_position_y_m")
#: Numbers of objects and probes, which are attributes in HDF5 and arrays with the prefix in npz.
PLACES = {
    "object": ("center_x_m", "center_y_m", "pixel_height_m", "pixel_width_m"),
    "probe": ("pixel_height_m", "pixel_width_m"),
}


def write(result: Result, path: Path) -> None:
    """Write a product; as npz where the path ends so, else as HDF5.

    Raises:
        BadInput: the result is in pixel units, or the path cannot be a file.
    """
    about, numbers, arrays = _contents(result, path)
    if path.suffix.lower() == ".npz":
        members: dict[str, Any] = {**about, **arrays}
        members |= {f"{array}_{name}": value for array, named in numbers.items() for name, value in named.items()}
        needed = sum(array.nbytes for array in arrays.values())
        with replacing(path, needed) as temporary, temporary.open("wb") as stream:
            np.savez(stream, **members)
        return
    with new_file(result, path) as file:
        file.attrs.update(about)
        for name, array in arrays.items():
            file.create_dataset(name, data=array)
        for name, named in numbers.items():
            file[name].attrs.update(named)


def _contents(result: Result, path: Path) -> tuple[dict[str, Any], dict[str, dict[str, float]], dict[str, np.ndarray]]:
    """Return what a product says of itself, numbers of its object and probe, and its arrays."""
    pixel = np.array(pixel_size_of(result))
    extent, window = (np.array(array.shape[-2:]) for array in (result.object, result.probe))
    # The centre is put where positions in metres are those of the scan (plus half a pixel of windows with odd sides).
    centre = (extent / 2 - window / 2 - np.array(result.origin_px)) * pixel
    positions = (result.positions_px + window / 2 - extent / 2) * pixel + centre
    power = float((np.abs(result.probe.astype(np.complex128)) ** 2).sum())
    about = {
        "name": path.stem,
        "comments": "Converted by ptymesh.",
        "detector_object_distance_m": number_of(result, "distance_m") or 0.0,
        **dict.fromkeys(ENERGY, number_of(result, "energy_eV") or 0.0),
        "probe_photon_count": power,
        "exposure_time_s": 0.0,
        "mass_attenuation_m2_per_kg": 0.0,
        "tomography_angle_deg": 0.0,
        "far_field": setting_of(result, "propagation") in (None, "far_field"),
    }
    size = {"pixel_height_m": float(pixel[0]), "pixel_width_m": float(pixel[1])}
    numbers = {"object": {"center_x_m": float(centre[1]), "center_y_m": float(centre[0]), **size}, "probe": size}
    probe = result.probe[None]
    if result.opr is not None:
        varying = np.zeros((len(result.opr), *result.probe.shape), result.probe.dtype)
        varying[:, 0] = result.opr
        probe = np.concatenate((probe, varying))
    losses = np.asarray(result.history.get("loss", np.zeros(0)), dtype=np.float64)
    arrays = {
        "probe": probe,
        "object": result.object,
        "object_layer_spacing_m": np.full(len(result.object) - 1, result.slice_spacing_m),
        "probe_position_indexes": np.arange(len(positions)),
        "probe_position_x_m": positions[:, 1],
        "probe_position_y_m": positions[:, 0],
        "loss_epochs": np.arange(len(losses)),
        "loss_values": losses,
    }
    if result.weights is not None:
        arrays["opr_weights"] = np.asarray(result.weights, dtype=np.float64)
    return about, numbers, arrays


def remarks(result: Result) -> list[str]:
    """Return sentences about numbers that are not known, and about weights, which act on the first mode alone."""
    sentences = [
        f"The {word} is not known: 0 is written."
        for word, name in (("energy", "energy_eV"), ("distance to the detector", "distance_m"))
        if number_of(result, name) is None
    ]
    if result.weights is not None and len(result.probe) > 1 and (result.weights[:, 0] != 1).any():
        sentences.append("The beam's amplitude in each view acts on the first probe mode alone.")
    return sentences


def recognises(path: Path) -> bool:
    """Return True for HDF5 and npz with the arrays of a product."""
    if file_has(path, *NEEDED):
        return True
    try:
        return is_npz(path) and set(NEEDED) <= set(npz_members(path))
    except BadInput:
        return False


def read(path: Path) -> tuple[Result, list[str]]:
    """Return the result in a product, and sentences about what was left out.

    Raises:
        BadInput: its arrays do not fit together.
    """
    if is_npz(path):
        names = npz_members(path)
        return _read(path, lambda name: read_member(path, name) if name in names else None, {})
    with open_hdf5(path) as file:
        attributes: dict[str, float | None] = {}
        for array, named in PLACES.items():
            for name in named:
                attributes[f"{array}_{name}"] = number_attribute(file, item_of(file, array), name)
        for name in (*ENERGY, "detector_object_distance_m"):
            attributes[name] = number_attribute(file, item_of(file, "/"), name)
        return _read(path, lambda name: read_dataset(file, name) if has(file, name) else None, attributes)


def _read(
    path: Path, array_of: Callable[[str], np.ndarray | None], attributes: dict[str, float | None]
) -> tuple[Result, list[str]]:
    """Return the result and sentences, given a function that returns an array by its name, or None."""
    notes = []

    def number(*names: str) -> float:
        for name in names:
            value = attributes.get(name)
            if value is None and (array := array_of(name)) is not None and array.size == 1:
                value = float(array.reshape(-1)[0])
            if value is not None:
                return value
        raise BadInput(f"{path} does not say {names[0]}; it is no complete product of Ptychodus.")

    probe, obj, x, y = (_array(path, name, array_of(name)) for name in NEEDED)
    weights, opr = array_of("opr_weights"), None
    if probe.ndim == 4:
        probe, varying = probe[0], probe[1:, 0]
        if weights is None and len(varying):
            notes.append(f"{len(varying)} variable-probe (OPR) modes without weights are left out.")
        elif weights is not None and len(varying):
            opr = np.ascontiguousarray(varying)
    if weights is not None and weights.shape != (len(x), 1 + (0 if opr is None else len(opr))):
        raise BadInput(f"opr_weights in {path} has shape {weights.shape}; it does not fit probe and positions.")
    pixel = np.array([number("object_pixel_height_m"), number("object_pixel_width_m")])
    centre = np.array([number("object_center_y_m"), number("object_center_x_m")])
    if obj.ndim < 2 or probe.ndim < 2 or not (pixel > 0).all():
        raise BadInput(f"Object, probe or pixel size in {path} are not those of a product of Ptychodus.")
    extent, window = np.array(obj.shape[-2:]), np.array(probe.shape[-2:])
    positions = (np.stack((y, x), axis=1) - centre) / pixel + extent / 2 - window / 2
    layers, spacings = len(obj) if obj.ndim > 2 else 1, array_of("object_layer_spacing_m")
    attrs = {"energy_eV": number(*ENERGY) or None, "distance_m": number("detector_object_distance_m") or None}
    result = build_result(
        path,
        FORMAT.program,
        object=obj,
        probe=probe,
        positions_px=positions,
        pixel_size_m=(float(pixel[0]), float(pixel[1])),
        origin_px=extent / 2 - window / 2 - centre / pixel,
        slice_spacing_m=equal_spacing(path, spacings if spacings is not None and spacings.size else None, layers),
        weights=weights,
        opr=opr,
        attrs=attrs,
    )
    return result, notes


def _array(path: Path, name: str, array: np.ndarray | None) -> np.ndarray:
    if array is None or array.dtype.kind not in "fciu":
        raise BadInput(f"{name} in {path} holds no numbers; it is no product of Ptychodus.")
    if name.startswith("probe_position"):
        array = array.reshape(-1)
    return array


FORMAT = ResultFormat(
    name="ptychodus",
    endings=(".npz", ".h5"),
    program="Ptychodus, Pty-Chi",
    holds=frozenset({"probe", "modes", "slices", "positions", "opr", "intensities"}),
    write=write,
    recognises=recognises,
    read=read,
    remarks=remarks,
)
