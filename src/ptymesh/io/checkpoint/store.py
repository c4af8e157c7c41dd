"""Checkpoints: raw state from which any number of ranks can continue.

    checkpoint/
      manifest.json            names the current generation; renamed into place last
      000012/manifest.json     ranks, meta, files with their sizes, digests and arrays
      000012/rank00000.h5      one shard per rank
        /views                 (n,) int64, the global indices of this rank's views
        /per_view/<name>       (n, ...) one row per own view
        /shared/<name>         any shape; in the first shard alone
        /tiles/<name>          (..., h, w) part of an array of the object, which starts at its attribute `corner`
      000011/...               the generation before it

A save that is killed at any moment leaves the current generation as it was. When a save begins, it removes the
generation before the current one and what killed saves have left, so that there are never more than two. If the current
generation turns out to be damaged, the one before it is used (manifests.py).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from ptymesh.distributed.tiles import Rect
from ptymesh.distributed.world import World
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.files import writing
from ptymesh.io.checkpoint import manifests
from ptymesh.io.checkpoint.manifests import exists, make_current, read_meta
from ptymesh.io.hdf5 import digests, own_datasets
from ptymesh.io.hdf5.reading import reading
from ptymesh.io.hdf5.writing import new_hdf5

__all__ = ["Checkpoint", "exists", "load", "make_current", "read_meta", "save"]

#: numpy's letters of the kinds of numbers that a shard may hold.
NUMBERS = "biufc"

#: Groups of arrays in a shard.
GROUPS = ("shared", "per_view", "tiles")
#: Number of rows of a shard that are read at a time.
SLAB = 256


class PerView(Mapping[str, np.ndarray]):
    """Per-view arrays of all shards by name, in global view order, read when they are asked for.

    Args:
        shards: path of each shard and (n,) global indices of its views.
        names: of the arrays.
    """

    def __init__(self, shards: list[tuple[Path, np.ndarray]], names: tuple[str, ...]) -> None:
        self._shards, self._names = shards, names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> np.ndarray:
        """Return the array of all views (N, ...)."""
        if name not in self._names:
            raise KeyError(name)
        return self.rows(name, np.arange(self.views))

    @property
    def views(self) -> int:
        """Number of views."""
        return sum(len(views) for _, views in self._shards)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one view's row, as the first shard has it."""
        with _shard_of(self._shards[0][0]) as file:
            return _dataset_of(file, f"per_view/{name}").shape[1:]

    def rows(self, name: str, views: np.ndarray) -> np.ndarray:
        """Return the rows (len(views), ...) of views in ascending order; no more than a slab of others is read."""
        out: np.ndarray | None = None
        for path, shard_views in self._shards:
            with _shard_of(path) as file:
                data = _dataset_of(file, f"per_view/{name}")
                if data.shape[:1] != shard_views.shape or (out is not None and data.shape[1:] != out.shape[1:]):
                    raise BadInput(f"{name} in the checkpoint's {path} has shape {data.shape}; {COPY}.")
                if out is None:
                    out = np.empty((len(views), *data.shape[1:]), dtype=data.dtype)
                for start in range(0, len(shard_views), SLAB):
                    _, out_rows, shard_rows = np.intersect1d(
                        views, shard_views[start : start + SLAB], return_indices=True
                    )
                    if len(out_rows):
                        out[out_rows] = data[start : start + SLAB][shard_rows]
        assert out is not None, "a checkpoint has at least one shard"
        return out


class Tiles(Mapping[str, list[Path]]):
    """Arrays of the object by name, cut in tiles over the shards; parts of them are read when they are asked for."""

    def __init__(self, shards: dict[str, list[Path]]) -> None:
        self._shards = shards

    def __iter__(self) -> Iterator[str]:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, name: str) -> list[Path]:
        """Return the shards that hold a tile of the array."""
        return self._shards[name]

    def part(self, name: str, rect: Rect) -> np.ndarray:
        """Return the pixels (..., h, w) of a rectangle; raise BadInput if the tiles do not cover it."""
        out: np.ndarray | None = None
        missing = rect.shape[0] * rect.shape[1]
        for path in self[name]:
            with _shard_of(path) as file:
                data = _dataset_of(file, f"tiles/{name}")
                top, left = (int(n) for n in data.attrs["corner"])
                if data.ndim < 2 or (out is not None and data.shape[:-2] != out.shape[:-2]):
                    raise BadInput(f"{name} in the checkpoint's {path} has shape {data.shape}; {COPY}.")
                common = rect & Rect(top, left, top + data.shape[-2], left + data.shape[-1])
                if out is None:
                    out = np.empty((*data.shape[:-2], *rect.shape), dtype=data.dtype)
                if not common.empty:
                    out[(..., *common.inside(rect.corner))] = data[(..., *common.inside((top, left)))]
                    missing -= common.shape[0] * common.shape[1]
        if out is None or missing:
            raise BadInput(f"The checkpoint's tiles of {name} leave {missing} pixels out; {COPY}.")
        return out


@dataclass(frozen=True)
class Checkpoint:
    """Saved state, independent of the number of ranks that saved it.

    Attributes:
        shared: arrays that are the same on every rank, by name.
        per_view: (N, ...) arrays in global view order, by name.
        meta: JSON values.
        tiles: arrays of the object, by name.
        owner: (N,) int64, the rank that saved each view.
        ranks: number of ranks that saved it.
        generation: its number.
        note: a sentence about damaged generations that came before it; empty if there were none.
    """

    shared: dict[str, np.ndarray]
    per_view: PerView
    meta: dict[str, Any]
    tiles: Tiles
    owner: np.ndarray
    ranks: int
    generation: int = 0
    note: str = ""


@dataclass(frozen=True)
class RankArrays:
    """Arrays of a checkpoint that one rank has, by name; a name may hold '/'.

    Attributes:
        shared: arrays of any shape, taken from rank 0 alone.
        views: (n,) global indices of this rank's views; over the ranks each of 0..N-1 occurs once.
        per_view: arrays with one row per own view, the same names on every rank.
        tiles: (..., h, w) this rank's tile of arrays of the object, the same names on every rank.
        corner: (y, x) of the tile in the object.
    """

    shared: Mapping[str, np.ndarray]
    views: np.ndarray
    per_view: Mapping[str, np.ndarray]
    tiles: Mapping[str, np.ndarray] = field(default_factory=dict)
    corner: tuple[int, int] = (0, 0)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for group in (self.shared, self.per_view, self.tiles) for array in group.values())


def save(directory: Path, world: World, arrays: RankArrays, meta: Mapping[str, object]) -> None:
    """Write a new generation, after removing all but the current one. Collective.

    Args:
        directory: on a file system that all ranks see.
        world: the ranks.
        arrays: of this rank.
        meta: values that JSON can hold, the same on every rank.

    Raises:
        PtymeshError: on every rank, if one of them could not write; the previous checkpoint is then intact.
    """
    number, problem = 0, None
    if world.rank == 0:
        try:
            number = _new_generation(directory)
        except Exception as error:
            problem = error
    number = int(world.sum(torch.tensor([number], device=world.device))[0])
    _all_well(world, problem, directory)
    generation = directory / manifests.folder(number)
    shard = generation / manifests.shard(world.rank)
    described = ""
    try:
        local_arrays = arrays if world.rank == 0 else replace(arrays, shared={})
        with writing(shard, local_arrays.nbytes):
            generation.mkdir(parents=True, exist_ok=True)
            _write_shard(shard, local_arrays)
            with _shard_of(shard) as file:
                inventory = _inventory(file)
            entry = {"name": shard.name, "bytes": shard.stat().st_size, "arrays": inventory}
            described = json.dumps({**entry, digests.NAME: digests.of_file(shard)})
    except Exception as error:
        problem = error
    _all_well(world, problem, directory, number)

    descriptions = world.gather_strings(described)
    if world.rank == 0:
        try:
            files = [json.loads(words) for words in descriptions]
            manifests.write(directory, number, {"ranks": world.size, "files": files, "meta": dict(meta)})
        except Exception as error:
            problem = error
    _all_well(world, problem, directory, number)


def load(directory: Path, world: World | None = None) -> Checkpoint:
    """Return the newest sound checkpoint in `directory`, merged into global view order.

    Collective if a world of several ranks is given: each checks its share of the digests.

    Raises:
        BadInput: on every rank, if there is none, if none is sound, or if views are missing.
    """
    manifest, note = manifests.choose_generation(directory, world or World())
    generation = directory / manifests.folder(manifest["generation"])
    paths = {generation / entry["name"]: entry.get("arrays") for entry in manifest["files"]}
    shared: dict[str, np.ndarray] = {}
    shards: list[tuple[Path, np.ndarray]] = []
    names: list[set[str]] = []
    tiles: dict[str, list[Path]] = {}
    for path, arrays in paths.items():
        with _shard_of(path) as file:
            if _inventory(file) != arrays:
                raise BadInput(f"The checkpoint's {path} does not hold the arrays that its manifest names; {COPY}.")
            shared |= {name: np.asarray(_dataset_of(file, f"shared/{name}")[()]) for name in _names(file, "shared")}
            shards.append((path, _views(file)))
            names.append(set(_names(file, "per_view")))
            for name in _names(file, "tiles"):
                tiles.setdefault(name, []).append(path)
    if unshared_names := {name for shard_names in names for name in shard_names ^ names[0]}:
        raise BadInput(
            f"The checkpoint's shards do not hold the same arrays ({', '.join(sorted(unshared_names))}); {COPY}."
        )
    views = np.concatenate([shard_views for _, shard_views in shards])
    if not np.array_equal(np.sort(views), np.arange(len(views))):
        raise BadInput(f"The shards of {directory} do not hold each view once; they come from different runs.")
    owner = np.empty(len(views), dtype=np.int64)
    for rank, (_, shard_views) in enumerate(shards):
        owner[shard_views] = rank
    per_view = PerView(shards, tuple(sorted(names[0])))
    return Checkpoint(shared, per_view, manifest["meta"], Tiles(tiles), owner, len(paths), manifest["generation"], note)


#: Remedy for a damaged shard.
COPY = "copy the whole checkpoint folder again"


@contextmanager
def _shard_of(path: Path) -> Iterator[h5py.File]:
    """Open a shard for reading; what HDF5 raises becomes one sentence."""
    with reading(f"The checkpoint's {path}", COPY), h5py.File(path, "r") as file:
        yield file


def _dataset_of(file: h5py.File, name: str) -> h5py.Dataset:
    """Return a dataset of numbers in a shard; raise BadInput if there is none."""
    dataset = own_datasets.dataset(file, name, NUMBERS)
    if dataset is None:
        raise BadInput(f"The checkpoint's {file.filename} has no {name}; {COPY}.")
    return dataset


def _inventory(file: h5py.File) -> dict[str, str]:
    """Return type and shape of every array in a shard, by name."""
    names = ["views", *(f"{group}/{name}" for group in GROUPS for name in _names(file, group))]
    datasets = {name: _dataset_of(file, name) for name in names}
    return {name: f"{data.dtype.str} {list(data.shape)}" for name, data in datasets.items()}


def _views(file: h5py.File) -> np.ndarray:
    """Return the views (n,) int64 of a shard."""
    views = _dataset_of(file, "views")
    if views.ndim != 1 or views.dtype != np.int64:
        raise BadInput(f"views in the checkpoint's {file.filename} is {views.dtype} {views.shape}; {COPY}.")
    return np.asarray(views[()])


def _names(file: h5py.File, group: str) -> list[str]:
    """Return the names of all datasets below a group, with '/', sorted: engines' state depends on their order."""
    names: list[str] = []
    parent = own_datasets.member(file, group)
    if not isinstance(parent, h5py.Group):
        raise BadInput(f"The checkpoint's {file.filename} has no group {group}; {COPY}.")
    parent.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return sorted(names)


def _new_generation(directory: Path) -> int:
    """Remove all generations but the current one, and return a number above all that were on disk."""
    folders = manifests.generations(directory)
    current = manifests.current(directory)
    for number, path in folders.items():
        if number != current:
            shutil.rmtree(path, ignore_errors=True)  # the next save tries again
    return 1 + max(folders, default=0)


def _write_shard(path: Path, arrays_of_rank: RankArrays) -> None:
    for name, array in arrays_of_rank.per_view.items():
        if array.shape[:1] != (len(arrays_of_rank.views),):
            raise ValueError(f"per-view array {name} has shape {array.shape} for {len(arrays_of_rank.views)} views")
    with new_hdf5(path) as file:
        file["views"] = np.asarray(arrays_of_rank.views, dtype=np.int64)
        for group, arrays in (("shared", arrays_of_rank.shared), ("per_view", arrays_of_rank.per_view)):
            target = file.create_group(group)
            for name, array in arrays.items():
                target.create_dataset(name, data=array)
        target = file.create_group("tiles")
        for name, array in arrays_of_rank.tiles.items():
            target.create_dataset(name, data=array).attrs["corner"] = arrays_of_rank.corner


def _all_well(world: World, problem: Exception | None, directory: Path, number: int = 0) -> None:
    """Raise on every rank if any met a problem, after removing what was written of this generation. Collective."""
    try:
        world.raise_if_any_failed(problem, "writing it")
    except Exception as error:
        if world.rank == 0 and manifests.current(directory) != number:
            shutil.rmtree(directory / manifests.folder(number), ignore_errors=True)
        reason = str(error).rstrip(".") if isinstance(error, PtymeshError) else f"{type(error).__name__}: {error}"
        raise PtymeshError(
            f"The checkpoint in {directory} could not be written ({reason}); the previous one, if any, is intact: "
            f"make room or mend the folder, then resume."
        ) from problem
