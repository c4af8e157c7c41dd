"""PtychoShelves' results as its branch fold_slice writes them, NiterN.mat.

L, M    object slices, probe modes
N       views

    object (H, W[, L]), probe (h, w, M[, 1 + OPR])      MATLAB's order: h5py sees the axes of version 7.3 reversed
    outputs.probe_positions (N, 2)                      x y, pixels from the middle of the object
    outputs.fourier_error_out (epochs,)                 error of each epoch; ours: the residual
    p.dx_spec (1, 2)                                    y x, as the far field of detectors with sides (y, x) gives it
    p.lambda, p.multi_slice_param.z_distance            spacings of the slices, then infinity (or the near field's z)

A window begins at probe_positions + ceil(object/2 - window/2) - 1, counted from 0. Lengths are in metres for X-rays, in
angstrom for electrons. Written as version 5 (scipy), which MATLAB and Python read; 5 and 7.3 are read. Source:
fold_slice's ptycho_solver.m and find_reconstruction_ROI.m, and the readers of PtyRAD and Ptychodus.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.files import replacing
from ptymesh.geometry import electron_wavelength_m, photon_wavelength_m
from ptymesh.io.exchange.building import build_result, equal_spacing, file_has, in_metres
from ptymesh.io.exchange.result_format import ANGSTROM_M, ResultFormat, number_of, pixel_size_of, unit_of
from ptymesh.io.hdf5.reading import has, open_hdf5, read_dataset, reading
from ptymesh.io.results import Result

#: First bytes of version 5; those of 7.3 are an HDF5 file with a block in front.
MAGIC = b"MATLAB 5.0"
#: Bytes that one variable of version 5 may have.
MOST_BYTES = 1 << 31
POSITIONS, PIXEL, SPACINGS = "outputs/probe_positions", "p/dx_spec", "p/multi_slice_param/z_distance"


def write(result: Result, path: Path) -> None:
    """Write object, probe, positions and lengths under fold_slice's names.

    Raises:
        BadInput: the result is in pixel units, too large for version 5, or the path cannot be a file.
    """
    from scipy.io import savemat

    pixel = np.array(pixel_size_of(result))
    unit, _ = unit_of(result, 1.0)
    energy = number_of(result, "energy_eV")
    if result.object.nbytes >= MOST_BYTES:
        raise BadInput(f"The object has {result.object.nbytes:g} bytes, more than a .mat of version 5 holds.")
    window, extent = (np.array(array.shape[-2:]) for array in (result.probe, result.object))
    middle = np.ceil(extent / 2 - window / 2) - 1
    p: dict[str, Any] = {"dx_spec": (pixel / unit)[None]}
    if energy is not None:
        wavelength = electron_wavelength_m(energy) if unit == ANGSTROM_M else photon_wavelength_m(energy)
        p["lambda"] = wavelength / unit
    if len(result.object) > 1:
        spacings = [result.slice_spacing_m / unit] * (len(result.object) - 1)
        p["multi_slice_param"] = {"z_distance": np.array([[*spacings, np.inf]])}
    contents = {
        "object": np.moveaxis(result.object, 0, -1),
        "probe": np.moveaxis(result.probe, 0, -1),
        "outputs": {
            "probe_positions": (result.positions_px - middle)[:, ::-1],
            "fourier_error_out": np.asarray(result.history.get("residual", np.zeros(0)), dtype=np.float64),
        },
        "p": p,
    }
    with replacing(path, result.object.nbytes + result.probe.nbytes) as temporary, temporary.open("wb") as stream:
        savemat(stream, contents)


def recognises(path: Path) -> bool:
    """Return True for a .mat of version 5 or 7.3 with fold_slice's variables."""
    if file_has(path, "object", "probe", POSITIONS):
        return True
    try:
        with path.open("rb") as stream:
            if stream.read(len(MAGIC)) != MAGIC:
                return False
        from scipy.io import whosmat

        with reading(str(path)):
            return {"object", "probe", "outputs"} <= {name for name, *_ in whosmat(path)}
    except (OSError, BadInput):
        return False


def read(path: Path) -> tuple[Result, list[str]]:
    """Return the result in a .mat, and sentences about what was assumed or left out.

    Raises:
        BadInput: its arrays do not fit together.
    """
    with path.open("rb") as stream:
        is_old = stream.read(len(MAGIC)) == MAGIC
    if is_old:
        from scipy.io import loadmat

        with reading(str(path)):
            variables = loadmat(path, variable_names=["object", "probe", "outputs", "p"])
        return _read(path, lambda name: _array_in_structs(variables, name))
    with open_hdf5(path) as file:

        def array_of(name: str) -> np.ndarray | None:
            if not has(file, name):
                return None
            stored = read_dataset(file, name)
            if stored.dtype.names == ("real", "imag"):
                stored = stored["real"] + 1j * stored["imag"]
            return stored.transpose()

        return _read(path, array_of)


def _array_in_structs(variables: dict[str, Any], name: str) -> np.ndarray | None:
    """Return an array within scipy's nested structs (record arrays), None if there is none."""
    first, *fields = name.split("/")
    node: Any = variables.get(first)
    for field in fields:
        if not isinstance(node, np.ndarray) or field not in (node.dtype.names or ()) or node.size == 0:
            return None
        node = node[field].reshape(-1)[0]
    return node if isinstance(node, np.ndarray) else None


def _read(path: Path, array_of: Callable[[str], np.ndarray | None]) -> tuple[Result, list[str]]:
    """Return the result and sentences, given a function that returns an array in MATLAB's order, or None."""
    notes = ["The probe has fold_slice's scale; squares of it need not be counts."]
    obj, probe, positions, pixels = (_numbers(path, name, array_of) for name in ("object", "probe", POSITIONS, PIXEL))
    if probe.ndim == 4:
        notes.append(f"Of {probe.shape[3]} variable-probe (OPR) modes the mean probe is taken.")
        probe = probe[..., 0]
    if positions.ndim == 3:
        notes.append("Of the positions of several modes (fly scan) those of the first are taken.")
        positions = positions[..., 0]
    if obj.ndim not in (2, 3) or probe.ndim not in (2, 3) or positions.ndim != 2 or pixels.size not in (1, 2):
        raise BadInput(
            f"{path} has object {obj.shape}, probe {probe.shape}, positions {positions.shape} and dx_spec "
            f"{pixels.shape}; they are not those of fold_slice."
        )
    (y, is_angstrom), (x, _) = (in_metres(float(size)) for size in np.resize(pixels.reshape(-1), 2))
    if is_angstrom:
        notes.append("Lengths are taken for angstrom, as fold_slice has them with electrons.")
    images, modes = (np.moveaxis(one, -1, 0) if one.ndim == 3 else one[None] for one in (obj, probe))
    extent, window = np.array(images.shape[-2:]), np.array(modes.shape[-2:])
    result = build_result(
        path,
        FORMAT.program,
        object=images,
        probe=modes,
        positions_px=positions[:, ::-1].astype(np.float64) + np.ceil(extent / 2 - window / 2) - 1,
        pixel_size_m=(y, x),
        origin_px=np.ceil(extent / 2 - window / 2) - 1,
        slice_spacing_m=equal_spacing(path, array_of(SPACINGS), len(images)) * (ANGSTROM_M if is_angstrom else 1.0),
        attrs={"radiation": "electron" if is_angstrom else None},
    )
    return result, notes


def _numbers(path: Path, name: str, array_of: Callable[[str], np.ndarray | None]) -> np.ndarray:
    array = array_of(name)
    if array is None or array.dtype.kind not in "iufc" or array.size == 0:
        raise BadInput(f"{path} has no numbers in {name.replace('/', '.')}; it is no result of fold_slice.")
    return array


FORMAT = ResultFormat(
    name="ptychoshelves",
    endings=(".mat",),
    program="PtychoShelves, fold_slice",
    holds=frozenset({"probe", "modes", "slices", "positions"}),
    write=write,
    recognises=recognises,
    read=read,
    remarks=lambda result: unit_of(result, 1.0)[1],
)
