"""Reading HDF5 files that may be damaged, or made to do harm: whatever goes wrong becomes one sentence.

A damaged file makes h5py raise nearly every exception that Python knows: OSError from the library, RuntimeError and
KeyError for broken groups and links, ValueError and TypeError for broken types, MemoryError for sizes that no file has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ptymesh.errors import BadInput, PtymeshError

#: HDF5's chunk cache per dataset: neighbouring reads of one chunk then decompress it once.
CACHE_BYTES = 64 << 20

#: What h5py raises of damaged files. Nothing but calls of h5py stands where these are caught.
DAMAGE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SystemError,
    TypeError,
    ValueError,
)


@contextmanager
def reading(what: str, remedy: str = "copy the file again") -> Iterator[None]:
    """Around calls of h5py: what they raise becomes a BadInput, "WHAT is truncated or damaged (...): REMEDY."."""
    try:
        yield
    except PtymeshError:
        raise
    except DAMAGE as error:
        raise BadInput(f"{what} is truncated or damaged ({first_line(error)}): {remedy}.") from error


def open_hdf5(path: Path, cache: int = CACHE_BYTES) -> h5py.File:
    """Open for reading; BadInput where the file is truncated or damaged."""
    try:
        return h5py.File(path, "r", rdcc_nbytes=cache, locking="best-effort")
    except DAMAGE as error:
        raise BadInput(
            f"{path} cannot be opened as HDF5 ({first_line(error)}); it is truncated or damaged: copy it again."
        ) from error


def dataset_of(file: h5py.File, name: str) -> h5py.Dataset:
    """The dataset of this name, with the plugin loaded that its compression needs; BadInput where it is missing."""
    with reading(f"{name} in {file.filename}"):
        found = file.get(name)
        if not isinstance(found, h5py.Dataset):
            raise BadInput(f"{file.filename} has no dataset {name}; it has {listing(file)}.")
        filters = found.id.get_create_plist()
        if any(filters.get_filter(i)[0] >= 256 for i in range(filters.get_nfilters())):  # 256: first registered plugin
            import hdf5plugin  # noqa: F401
    return found


def read_dataset(file: h5py.File, name: str) -> np.ndarray:
    """A whole small dataset; BadInput where it is missing or damaged."""
    data = dataset_of(file, name)
    with reading(f"{name} in {file.filename}"):
        return np.asarray(data[()])


def listing(file: h5py.File, most: int = 8) -> str:
    """The datasets of a file, largest first, for error messages."""
    found: list[tuple[int, str]] = []

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found.append((item.size or 0, f"/{name} {item.shape}"))

    file.visititems(visit)
    names = [text for _, text in sorted(found, reverse=True)]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) + more) or "none at all"


def first_line(error: BaseException) -> str:
    """The first line of what an error says, in 160 characters; its name where it says nothing."""
    said = str(error).strip()
    return said.splitlines()[0][:160] if said else type(error).__name__
