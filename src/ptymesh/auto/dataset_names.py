"""Guess of the datasets in an HDF5 or npz file of no known format, if their shapes allow only one."""

from __future__ import annotations

from pathlib import Path

import h5py

from ptymesh.io.hdf5.reading import is_hdf5, open_hdf5
from ptymesh.io.load import all_readers
from ptymesh.io.options import DataOptions
from ptymesh.io.staging import is_npz, npz_members, unpacked

#: Least number of pixels on a side of a pattern.
SMALLEST = 8


def guessed_keys(path: Path) -> tuple[dict[str, object], str] | None:
    """Return `data.keys` and a sentence that says why.

    None if a reader knows the format, if the file is neither HDF5 nor npz, or if it is open which dataset holds the
    patterns.
    """
    options = DataOptions(path=path)
    if not path.is_file() or not path.stat().st_size:
        return None
    file = unpacked(path)
    if any(reader.recognises(file, options) for reader in all_readers()):
        return None
    shapes = _shapes(file)
    stacks = {name: shape for name, shape in shapes.items() if len(shape) in (3, 4) and min(shape[-2:]) >= SMALLEST}
    if not stacks:
        return None
    patterns = max(stacks, key=lambda name: _size(stacks[name]))
    if sum(_size(shape) == _size(stacks[patterns]) for shape in stacks.values()) > 1:
        return None
    shape = stacks[patterns]
    views = _size(shape[:-2])
    keys: dict[str, object] = {"patterns": patterns}
    pairs = [n for n, s in shapes.items() if s in ((views, 2), (2, views)) and n != patterns]
    reason = f"{patterns} is the largest array"
    if len(pairs) == 1:
        keys["positions"] = pairs[0]
        reason += f", and {pairs[0]} alone has a pair of numbers for each of its {views} patterns"
    return keys, f"{reason}."


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays of numbers in a file, by name."""
    if is_npz(path):
        return {name: shape for name, (shape, dtype) in npz_members(path).items() if dtype.kind in "buif"}
    shapes_by_key: dict[str, tuple[int, ...]] = {}
    if is_hdf5(path):

        def add_dataset(name: str, item: object) -> None:
            if isinstance(item, h5py.Dataset) and item.dtype.kind in "buif":
                shapes_by_key[f"/{name}"] = tuple(item.shape)

        with open_hdf5(path) as file:
            file.visititems(add_dataset)
    return shapes_by_key


def _size(shape: tuple[int, ...]) -> int:
    """Return the number of elements, which cannot overflow."""
    size = 1
    for side in shape:
        size *= side
    return size
