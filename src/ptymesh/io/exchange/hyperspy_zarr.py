"""hyperspy's signals in a zarr store, .zspy: the tree of .hspy (hyperspy.py) in one zip file of zarr's format 2.

RosettaSciIO, by which hyperspy reads, takes a zip file as it takes a folder; a file is written whole or not at all.
Source: RosettaSciIO's documentation of ZSpy; the specification of Zarr, version 2.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.files import replacing
from ptymesh.io.exchange import hyperspy
from ptymesh.io.exchange.hyperspy import FURTHER, OWN, result_of_signals, signals_of
from ptymesh.io.formats.zarr_store import ZarrTree
from ptymesh.io.results import Result
from ptymesh.io.staging import ARCHIVE_DAMAGE

#: Bytes of an array for each byte of the file, above which no packed picture is so empty.
MOST_UNPACKED = 4096


def write(result: Result, path: Path) -> None:
    """Write object and probe as two signals of complex images.

    Raises:
        BadInput: the path cannot be a file, or zarr is not installed.
    """
    zarr, tree = _zarr(path), signals_of(result)
    groups: dict[str, dict[str, Any]] = {"": {"file_format": "ZSpy", "file_format_version": "3.1"}}
    for name in (*tree.attributes, *tree.arrays):
        parts = name.split("/")[: None if name in tree.attributes else -1]
        for depth in range(1, len(parts) + 1):
            parent = "/".join(parts[:depth])
            groups.setdefault(parent, tree.attributes.get(parent, {}))
    needed = sum(array.nbytes for array in tree.arrays.values())
    with replacing(path, needed) as temporary, zarr.storage.ZipStore(temporary, mode="w") as store:
        for name, attributes in groups.items():
            zarr.create_group(store, path=name, zarr_format=2, attributes=attributes)
        for name, array in tree.arrays.items():
            zarr.create_array(store, name=name, data=array, zarr_format=2)


def recognises(path: Path) -> bool:
    """Return True for signals that ptymesh wrote: those of others hold no positions."""
    tree = ZarrTree.open(path)
    names = (f"{OWN}/positions_px", "Experiments/object/data", "Experiments/probe/data")
    return tree is not None and all(tree.array_shape(name) is not None for name in names)


def read(path: Path) -> tuple[Result, list[str]]:
    """Return the result in signals that ptymesh wrote.

    Raises:
        BadInput: an array is damaged, arrays do not fit together, or zarr is not installed.
    """
    zarr, tree = _zarr(path), ZarrTree.open(path)
    if tree is None:
        raise BadInput(f"{path} is no zarr store; copy the file again.")

    def array_of(name: str) -> np.ndarray:
        tree.check_codecs(name)
        try:
            with zarr.storage.ZipStore(path) as store:
                array = zarr.open_array(store, path=name, mode="r")
                sound = array.dtype.kind in "buifc" and array.nbytes <= MOST_UNPACKED * path.stat().st_size
                description = f"{array.dtype} {array.shape}"
                values = np.asarray(array[...]) if sound else None
        except (*ARCHIVE_DAMAGE, TypeError, MemoryError) as error:
            raise BadInput(f"{name} in {path} cannot be read; copy the file again.") from error
        if values is None:
            raise BadInput(f"{name} in {path} is {description}, which this file cannot hold; copy the file again.")
        return values

    def own_of(name: str) -> np.ndarray | None:
        return None if tree.array_shape(f"{OWN}/{name}") is None else array_of(f"{OWN}/{name}")

    arrays = {name: array_of(f"Experiments/{name}/data") for name in ("object", "probe")}
    arrays["positions_px"] = array_of(f"{OWN}/positions_px")
    spacing = own_of("slice_spacing_m")
    if spacing is not None and (spacing.shape != () or spacing.dtype.kind not in "iuf"):
        raise BadInput(f"slice_spacing_m in {path} has shape {spacing.shape}; it should be one number.")
    ptymesh_arrays = {name: own_of(name) for name in ("pixel_size_m", "origin_px", "tilt_rad", *FURTHER)}
    return result_of_signals(path, arrays, ptymesh_arrays, 0.0 if spacing is None else float(spacing)), []


def _zarr(path: Path) -> Any:
    """Return the module zarr. Raises BadInput where it is not installed."""
    try:
        import zarr
        import zarr.storage
    except ImportError as error:
        raise BadInput(f"{path} needs zarr; run pip install 'ptymesh[zarr]'.") from error
    return zarr


FORMAT = replace(
    hyperspy.FORMAT, name="hyperspy_zarr", endings=(".zspy",), write=write, recognises=recognises, read=read
)
