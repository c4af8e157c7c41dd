"""Results made of what other programs' files hold, with checks that their arrays fit together.

L, M    object slices, probe modes
N       views
H, W    object pixels
h, w    window pixels
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.exchange.result_format import ANGSTROM_M
from ptymesh.io.hdf5.reading import Hdf5File, attribute, has, is_hdf5, open_hdf5, read_dataset, text_of
from ptymesh.io.results import Result

#: Pixel sizes and spacings above this are in angstrom, for no object pixel is as large as 0.1 mm, nor as small as
#: 1e-4 angstrom.
LARGEST_PIXEL_M = 1e-4


def build_result(
    path: Path,
    program: str,
    *,
    object: np.ndarray,
    probe: np.ndarray,
    positions_px: np.ndarray,
    pixel_size_m: tuple[float, float] | None,
    origin_px: tuple[float, float] | np.ndarray = (0.0, 0.0),
    **further: Any,
) -> Result:
    """Return a result made of another program's arrays.

    Args:
        path: of the file, which the result remembers.
        program: that wrote it.
        object: (H, W) or (L, H, W) complex.
        probe: (h, w) or (M, h, w) complex, optical axis at (h//2, w//2).
        positions_px: (N, 2) float, y x, object pixel under the window's top-left corner.
        pixel_size_m: object pixel (y, x) in metres; None: pixel units.
        origin_px: object pixel (y, x) under a window's corner whose position in metres is zero.
        further: other fields of `Result`.

    Raises:
        BadInput: shapes or types are other ones, or values are not finite.
    """
    arrays = {"object": object, "probe": probe, "positions": positions_px}
    for name, array in arrays.items():
        if array.size == 0 or array.dtype.kind not in "fciu" or not np.isfinite(array).all():
            raise BadInput(f"The {name} in {path} is empty, or holds what is no finite number; take another file.")
    for name in ("object", "probe"):
        if arrays[name].ndim not in (2, 3):
            raise BadInput(f"The {name} in {path} has shape {arrays[name].shape}; it should have two or three axes.")
    if pixel_size_m is not None and not (np.isfinite(pixel_size_m).all() and min(pixel_size_m) > 0):
        raise BadInput(f"The object pixel in {path} is {pixel_size_m}; it should be two positive lengths.")
    positions = np.asarray(positions_px, dtype=np.float64)
    if positions.ndim != 2 or positions.shape[1] != 2:
        raise BadInput(f"The positions in {path} have shape {positions.shape}; there should be two for each view.")
    pixel = None if pixel_size_m is None else (float(pixel_size_m[0]), float(pixel_size_m[1]))
    return Result(
        object=_stack(object),
        probe=_stack(probe),
        positions_px=positions,
        positions_m=None if pixel is None else (positions - np.asarray(origin_px)) * np.asarray(pixel),
        pixel_size_m=pixel,
        attrs={"converted_from": program, "converted_file": path.name, **further.pop("attrs", {})},
        **further,
    )


def _stack(array: np.ndarray) -> np.ndarray:
    """Return an image or images as (K, h, w) complex, contiguous."""
    images = array if array.ndim == 3 else array[None]
    dtype = np.complex128 if images.dtype.itemsize > 8 or images.dtype == np.float64 else np.complex64
    return np.ascontiguousarray(images, dtype=dtype)


def equal_spacing(path: Path, spacings: np.ndarray | None, slices: int) -> float:
    """Return the distance between the slices of an object in the file's unit, 0 of a single one or where none is said.

    Args:
        path: of the file.
        spacings: distances that the file says, one for each two neighbours at least.
        slices: number of slices.

    Raises:
        BadInput: the slices are not equally far apart.
    """
    if spacings is None or slices == 1:
        return 0.0
    distances = np.atleast_1d(spacings).reshape(-1)[: slices - 1].astype(np.float64)
    if (
        len(distances) < slices - 1
        or not np.isfinite(distances).all()
        or not np.allclose(distances, distances[0], atol=0)
    ):
        raise BadInput(
            f"The slices in {path} are {distances} apart (in its own unit); ptymesh's are equally far apart."
        )
    return float(distances[0])


def in_metres(length: float) -> tuple[float, bool]:
    """Return a length in metres, and True if it was taken for angstrom (see LARGEST_PIXEL_M)."""
    angstrom = abs(length) > LARGEST_PIXEL_M
    return (length * ANGSTROM_M, True) if angstrom else (length, False)


def file_has(path: Path, *names: str) -> bool:
    """Return True if a path is HDF5 and has all of these groups or datasets; raise nothing."""
    if not is_hdf5(path):
        return False
    try:
        with open_hdf5(path) as file:
            return all(has(file, name) for name in names)
    except BadInput:
        return False


def number_in(file: Hdf5File, name: str, default: float | None = None) -> float:
    """Return a dataset of one number.

    Args:
        file: open file.
        name: of the dataset.
        default: what is returned where it is missing; None: that is an error.

    Raises:
        BadInput: it is something else, or it is missing and there is no default.
    """
    if default is not None and not has(file, name):
        return default
    values = read_dataset(file, name, 1, "iuf").reshape(-1)
    if values.size != 1:
        raise BadInput(f"{name} in {file.filename} is empty; it should be a number.")
    return float(values[0])


def number_attribute(file: Hdf5File, item: Any, name: str) -> float | None:
    """Return a number among the attributes of a group or dataset, None if there is none.

    Args:
        file: open file, for messages.
        item: group or dataset.
        name: of the attribute.

    Raises:
        BadInput: it is no number.
    """
    value = attribute(item, name)
    if value is None:
        return None
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "iuf":
        raise BadInput(
            f"Attribute {name} of {item.name} in {file.filename} is {text_of(value)}; it should be a number."
        )
    return float(array.reshape(-1)[0])
