"""Arrays that options name: `file.npy`, `file.tif`, `file.npz:name`, `file.h5:/path`, recognised by content."""

from __future__ import annotations

import zipfile
from pathlib import Path

import h5py
import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.hdf5 import open_hdf5, read_dataset
from ptymesh.io.staging import npz_members, read_member


def load_array(reference: str, option: str) -> np.ndarray:
    """The numeric array that a reference names; BadInput, naming the option, where there is none."""
    path, inside = _split(reference)
    if not path.is_file():
        raise BadInput(f"{option} names {path}, which is not a file; give file.npy, file.tif or file.h5:/path.")
    with path.open("rb") as file:
        start = file.read(8)
    if start.startswith(b"\x93NUMPY"):
        try:
            array = np.load(path, allow_pickle=False)
        except ValueError as error:
            raise BadInput(f"{option}: {path} cannot be read ({error}); save it again with numpy.save.") from error
    elif start[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        import tifffile

        array = tifffile.imread(path)
    elif h5py.is_hdf5(path):
        if not inside:
            raise BadInput(f"{option}: {path} is HDF5; say which dataset, as {path}:/path.")
        with open_hdf5(path) as hdf5:
            array = read_dataset(hdf5, inside)
    elif zipfile.is_zipfile(path):
        members = list(npz_members(path))
        if not inside and len(members) != 1:
            raise BadInput(f"{option}: {path} holds {', '.join(members)}; say which, as {path}:name.")
        array = read_member(path, inside or members[0])
    else:
        raise BadInput(f"{option}: {path} is neither .npy, TIFF, HDF5 nor npz; convert it to one of these.")
    if array.dtype.kind not in "buif":
        raise BadInput(f"{option}: {reference} holds {array.dtype} values; it must be real numbers.")
    return np.asarray(array)


def detector_array(value: str | float, option: str, shape: tuple[int, int]) -> np.ndarray:
    """(H, W) from a number or a reference; leading axes of length one are dropped. BadInput on another shape."""
    if isinstance(value, int | float):
        return np.full(shape, float(value))
    array = load_array(value, option)
    while array.ndim > 2 and array.shape[0] == 1:
        array = array[0]
    if array.shape != shape:
        raise BadInput(f"{option}: {value} has shape {array.shape}; the detector is {shape} as stored in the file.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise BadInput(f"{option}: {value} holds NaN or infinite values; mend it, or mask those pixels (data.mask).")
    return array


def _split(reference: str) -> tuple[Path, str]:
    """A path and what is inside the file; a colon that belongs to an existing file's name is left alone."""
    if Path(reference).exists() or ":" not in reference:
        return Path(reference), ""
    path, _, inside = reference.rpartition(":")
    return Path(path), inside
