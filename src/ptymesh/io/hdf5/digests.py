"""Digests that tell whether what is read is what was written: of files, of JSON, and of all that an HDF5 file holds.

XXH3 with 128 bits: no protection against malice, but damage passes it once in 10^38.

In an HDF5 file, every dataset has the digest of its values in its attribute `xxh3_128`, and the file itself one of all
names, types, shapes, attributes and datasets' digests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xxhash

from ptymesh.errors import BadInput
from ptymesh.io.hdf5 import own_datasets
from ptymesh.io.hdf5.damage import check_heaps

#: Name of the attributes and of the key in JSON.
NAME = "xxh3_128"
#: What is in memory at a time.
SLAB_BYTES = 64 << 20
#: Every kind of number that files of ptymesh hold, and text.
ANY = "biufcU"


def of_file(path: Path) -> str:
    """Return the digest of a file's bytes."""
    digest, block = xxhash.xxh3_128(), bytearray(1 << 20)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            digest.update(memoryview(block)[:count])
    return digest.hexdigest()


def of_array(array: np.ndarray) -> str:
    """Return the digest of an array's values in C order, little-endian, without its type and shape."""
    return xxhash.xxh3_128(_canonical(array)).hexdigest()


def of_json(document: dict[str, Any]) -> str:
    """Return the digest of a JSON document, without the digest that it holds."""
    rest = {key: value for key, value in document.items() if key != NAME}
    return xxhash.xxh3_128(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def sign(file: h5py.File) -> None:
    """Write digests of all that a file holds into it; they are made of what is read back."""
    for node in _nodes(file).values():
        if isinstance(node, h5py.Dataset):
            node.attrs[NAME] = _digest_dataset(node)
    file.attrs[NAME] = _digest_file(file)


def sign_attributes(file: h5py.File) -> None:
    """Write the digest of a file whose attributes alone have changed."""
    file.attrs[NAME] = _digest_file(file)


def check(file: h5py.File) -> None:
    """Raise BadInput if a digest in the file is wrong; datasets without one are not checked."""
    check_heaps(Path(file.filename))  # text attributes lie in heaps, and HDF5 would hang on damaged ones
    signed = file.attrs.get(NAME)
    for name, node in _nodes(file).items():
        if isinstance(node, h5py.Dataset) and (signed is not None or NAME in node.attrs):
            own_datasets.check(node, ANY)
            if NAME in node.attrs and node.attrs[NAME] != _digest_dataset(node):
                raise _damaged(file, f"/{name}", f"of the file, and that of /{name}")
    if signed is not None and signed != _digest_file(file):
        raise _damaged(file, "what it says of its datasets", "of the file")


def _damaged(file: h5py.File, subject: str, whose: str) -> BadInput:
    return BadInput(
        f"{file.filename} is damaged: {subject} is not what was written; take an older copy or run again (or, where it "
        f"was changed on purpose, delete the attribute {NAME} {whose})."
    )


def _nodes(file: h5py.File) -> dict[str, Any]:
    """Return groups and datasets by name, in alphabetical order."""
    nodes: dict[str, Any] = {}
    file.visititems(lambda name, item: nodes.__setitem__(name, item))
    return dict(sorted(nodes.items()))


def _digest_dataset(data: h5py.Dataset) -> str:
    digest = xxhash.xxh3_128()
    for slab in _slabs(data.shape, max(1, data.dtype.itemsize)):
        digest.update(_canonical(np.asarray(data[slab])))
    return digest.hexdigest()


def _slabs(shape: tuple[int, ...], itemsize: int) -> Iterator[tuple[Any, ...]]:
    """Yield indices of successive parts of an array in C order, none larger than SLAB_BYTES if elements are not."""
    if not shape or int(np.prod(shape)) * itemsize <= SLAB_BYTES:
        yield () if not shape else (Ellipsis,)
        return
    row = int(np.prod(shape[1:])) * itemsize
    if row > SLAB_BYTES:
        for index in range(shape[0]):
            for rest in _slabs(shape[1:], itemsize):
                yield (index, *rest)
        return
    step = max(1, SLAB_BYTES // max(1, row))
    for start in range(0, shape[0], step):
        yield (slice(start, start + step),)


def _digest_file(file: h5py.File) -> str:
    """Return the digest of names, types, shapes, attributes and the datasets' digests, in alphabetical order."""
    digest = xxhash.xxh3_128()

    def add(*parts: bytes) -> None:
        for part in parts:
            digest.update(len(part).to_bytes(8, "little") + part)

    for name, node in {"/": file, **_nodes(file)}.items():
        kind = "dataset" if isinstance(node, h5py.Dataset) else "group"
        add(name.encode(), kind.encode())
        if isinstance(node, h5py.Dataset):
            add(_type(node.dtype), str(node.shape).encode(), str(node.attrs.get(NAME, "")).encode())
        for key in sorted(set(node.attrs) - {NAME}):
            add(key.encode(), *_encode_attribute(node.attrs[key]))
    return digest.hexdigest()


def _encode_attribute(value: Any) -> tuple[bytes, bytes]:
    """Return type and content of an attribute."""
    if isinstance(value, str):
        return b"text", value.encode()
    array = np.asarray(value)
    return _type(array.dtype) + str(array.shape).encode(), bytes(_canonical(array))


def _type(dtype: np.dtype) -> bytes:
    return b"text" if dtype.kind in "OSU" else dtype.newbyteorder("<").str.encode()


def _canonical(array: np.ndarray) -> bytes | memoryview:
    """Return an array's values as bytes, little-endian and in C order; texts each with their length."""
    if array.dtype.kind in "OSU":
        texts = [item if isinstance(item, bytes) else str(item).encode() for item in array.reshape(-1).tolist()]
        return b"".join(len(item).to_bytes(8, "little") + item for item in texts)
    ordered = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return ordered.reshape(-1).view(np.uint8).data
