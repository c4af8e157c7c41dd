"""Reader of datasets in files that ptymesh wrote: values must lie in the file, be of the expected kind, and fit.

A file that was damaged, or made to do harm, may lead to other files (links, external and virtual storage), or declare
more values than it holds. Such datasets are refused.
"""

from __future__ import annotations

import h5py
import numpy as np

from ptymesh.errors import BadInput
from ptymesh.files import size
from ptymesh.io.hdf5.damage import ChunkCheck
from ptymesh.io.hdf5.reading import DAMAGE, first_line
from ptymesh.limits import check_room

#: Largest factor by which a compressed dataset may unfold (deflate's own limit is 1032).
UNFOLDS = 1100
#: Bytes that a compressed dataset may have in any case.
FREELY = 64 << 20


def dataset(group: h5py.Group, name: str, kinds: str) -> h5py.Dataset | None:
    """Return the dataset of this name, checked for reading; None if there is none.

    Args:
        group: open group.
        name: of the dataset; may hold '/'.
        kinds: numpy's letters of the dtypes that it may have; "U" for text.

    Raises:
        BadInput: it is of another kind, lies in another file, or is larger than what the file holds of it or than this
            machine's memory.
    """
    node = member(group, name)
    if not isinstance(node, h5py.Dataset):
        return None
    check(node, kinds)
    return node


def member(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset | None:
    """Return the group or dataset of this name, None if there is none; raise BadInput for a link to elsewhere."""
    node = group
    for part in name.split("/"):
        link = node.get(part, getlink=True) if isinstance(node, h5py.Group) else None
        if link is None:
            return None
        if not isinstance(link, h5py.HardLink):
            raise BadInput(f"{name} of {group.file.filename} is a link to elsewhere, which is not followed.")
        node = node[part]
    return node


def check(data: h5py.Dataset, kinds: str) -> None:
    """Raise BadInput as `dataset` does."""
    subject = f"{data.name} of {data.file.filename}"
    properties = data.id.get_create_plist()
    if data.is_virtual or properties.get_external_count():
        raise BadInput(f"The values of {subject} lie in other files, which are not read.")
    if data.shape is None:
        raise BadInput(f"{subject} is empty; it should hold values.")
    text = h5py.check_string_dtype(data.dtype) is not None
    if not ("U" in kinds if text else _is_of(data.dtype, kinds)):
        raise BadInput(f"{subject} holds {'text' if text else data.dtype}, where {_words_for_kinds(kinds)} should be.")
    stored_bytes = data.id.get_storage_size()
    most = stored_bytes * UNFOLDS + FREELY if properties.get_nfilters() else stored_bytes
    if data.nbytes > most:
        raise BadInput(f"{subject} declares {size(data.nbytes)} and holds {size(stored_bytes)}.")
    if data.nbytes > FREELY:
        check_room(data.nbytes, subject, "free some, or take a larger machine")
    try:
        ChunkCheck(data).check_part(data, tuple(slice(0, side) for side in data.shape))
    except DAMAGE as error:
        raise BadInput(f"{subject} is damaged ({first_line(error)}).") from error


def _is_of(dtype: np.dtype, kinds: str) -> bool:
    """Return True for numbers of these kinds with at most double precision."""
    return dtype.kind in kinds and dtype.itemsize <= (16 if dtype.kind == "c" else 8)


def _words_for_kinds(kinds: str) -> str:
    names = {"c": "complex numbers", "f": "real numbers", "i": "integers", "U": "text"}
    return " or ".join(name for letter, name in names.items() if letter in kinds)
