"""Checkpoints: raw state from which any number of ranks can go on.

    checkpoint/
      manifest.json            names the current generation; renamed into place last
      000012/manifest.json     ranks, meta, files with their sizes, digests and arrays
      000012/rank00000.h5      one shard per rank
        /views                 (n,) int64, the global indices of this rank's views
        /per_view/<name>       (n, ...) one row per own view
        /shared/<name>         any shape; in the first shard alone
        /tiles/<name>          (..., h, w) part of an array of the object, which starts at its attribute `corner`
      000011/...               the generation before it

A save that is killed at any moment leaves the current generation as it was. The one before it goes when a save begins,
so that there are never more than two, and what a dead save left goes with it. Where the current generation turns out to
be damaged, the one before it is taken (manifests.py).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from ptymesh.distributed.tiles import Rect
from ptymesh.distributed.world import World
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.files import writing
from ptymesh.io import digests, manifests, plain
from ptymesh.io.hdf5 import reading
from ptymesh.io.manifests import exists, read_meta, settle
from ptymesh.io.new_hdf5 import new_hdf5

__all__ = ["Checkpoint", "exists", "load", "read_meta", "save", "settle"]

#: Numbers of every kind that a shard may hold.
NUMBERS = "biufc"

#: Groups of arrays in a shard.
GROUPS = ("shared", "per_view", "tiles")
#: Rows of a shard that are read at a time.
SLAB = 256


class PerView(Mapping[str, np.ndarray]):
    """Per-view arrays of all shards by name, in global view order, read when they are asked for.

    shards: (path, (n,) global indices of its views, ascending).
    """

    def __init__(self, shards: list[tuple[Path, np.ndarray]], names: tuple[str, ...]) -> None:
        self._shards, self._names = shards, names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> np.ndarray:
        """The array of all views (N, ...)."""
        if name not in self._names:
            raise KeyError(name)
        return self.rows(name, np.arange(self.views))

    @property
    def views(self) -> int:
        """Number of views."""
        return sum(len(held) for _, held in self._shards)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the row of one view, as the first shard has it."""
        with _shard_of(self._shards[0][0]) as file:
            return _held(file, f"per_view/{name}").shape[1:]

    def rows(self, name: str, views: np.ndarray) -> np.ndarray:
        """Rows of these views (ascending) alone, (len(views), ...), with no more than a slab of others on the way."""
        out: np.ndarray | None = None
        for path, held in self._shards:
            with _shard_of(path) as file:
                data = _held(file, f"per_view/{name}")
                if data.shape[:1] != held.shape or (out is not None and data.shape[1:] != out.shape[1:]):
                    raise BadInput(f"{name} in the checkpoint's {path} has shape {data.shape}; {COPY}.")
                if out is None:
                    out = np.empty((len(views), *data.shape[1:]), dtype=data.dtype)
                for start in range(0, len(held), SLAB):
                    _, here, there = np.intersect1d(views, held[start : start + SLAB], return_indices=True)
                    if len(here):
                        out[here] = data[start : start + SLAB][there]
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
        """The shards that hold a tile of the array."""
        return self._shards[name]

    def part(self, name: str, rect: Rect) -> np.ndarray:
        """The pixels (..., h, w) of a rectangle. Raises BadInput where the tiles do not cover it."""
        out: np.ndarray | None = None
        missing = rect.shape[0] * rect.shape[1]
        for path in self[name]:
            with _shard_of(path) as file:
                data = _held(file, f"tiles/{name}")
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
    """What was saved, whatever the number of ranks that saved it.

    Fields:
        shared: arrays that every rank had alike, by name.
        per_view: (N, ...) arrays in global view order, by name.
        meta: JSON values.
        tiles: arrays of the object, by name.
        owner: (N,) rank that saved each view; ranks: how many there were.
        generation: its number; note: what was found damaged on the way to it, a sentence.
    """

    shared: dict[str, np.ndarray]
    per_view: PerView
    meta: dict[str, Any]
    tiles: Tiles
    owner: np.ndarray
    ranks: int
    generation: int = 0
    note: str = ""


def save(
    directory: Path,
    world: World,
    *,
    shared: Mapping[str, np.ndarray],
    views: np.ndarray,
    per_view: Mapping[str, np.ndarray],
    meta: Mapping[str, Any],
    tiles: Mapping[str, np.ndarray] | None = None,
    corner: tuple[int, int] = (0, 0),
) -> None:
    """Write a new generation, after letting go of all but the current one. Collective: every rank calls it.

    Args:
        directory: on a file system that all ranks see.
        shared: arrays of any shape, taken from rank 0 alone; a name may hold '/'.
        views: (n,) global indices of this rank's views; over the ranks each of 0..N-1 occurs once.
        per_view: arrays with one row per own view, the same names on every rank.
        meta: what JSON can hold, alike on every rank.
        tiles: (..., h, w) this rank's tile of arrays of the object, the same names on every rank; corner: of the tile.

    Raises PtymeshError on every rank when one of them could not write; the previous checkpoint is then intact.
    """
    number, problem = 0, None
    if world.rank == 0:
        try:
            number = _begin(directory)
        except Exception as error:
            problem = error
    number = int(world.sum(torch.tensor([number], device=world.device))[0])
    _all_well(world, problem, directory)
    generation = directory / manifests.folder(number)
    shard = generation / manifests.shard(world.rank)
    described = ""
    try:
        arrays = shared if world.rank == 0 else {}
        needed = sum(array.nbytes for group in (arrays, per_view, tiles or {}) for array in group.values())
        with writing(shard, needed):
            generation.mkdir(parents=True, exist_ok=True)
            _write_shard(shard, arrays, views, per_view, tiles or {}, corner)
            with _shard_of(shard) as file:
                held = _inventory(file)
            entry = {"name": shard.name, "bytes": shard.stat().st_size, "arrays": held}
            described = json.dumps({**entry, digests.NAME: digests.of_file(shard)})
    except Exception as error:
        problem = error
    _all_well(world, problem, directory, number)

    said = world.gather_strings(described)
    if world.rank == 0:
        try:
            files = [json.loads(words) for words in said]
            manifests.write(directory, number, {"ranks": world.size, "files": files, "meta": dict(meta)})
        except Exception as error:
            problem = error
    _all_well(world, problem, directory, number)


def load(directory: Path, world: World | None = None) -> Checkpoint:
    """Read the newest sound checkpoint in `directory`, merged into global view order.

    Collective where a world of several ranks is given: each checks its share of the digests. Raises BadInput, on all of
    them, when there is none, when none is sound, or when views are missing.
    """
    manifest, note = manifests.choose(directory, world or World())
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
            shared |= {name: np.asarray(_held(file, f"shared/{name}")[()]) for name in _names(file, "shared")}
            shards.append((path, _views(file)))
            names.append(set(_names(file, "per_view")))
            for name in _names(file, "tiles"):
                tiles.setdefault(name, []).append(path)
    if odd := {name for some in names for name in some ^ names[0]}:
        raise BadInput(f"The checkpoint's shards do not hold the same arrays ({', '.join(sorted(odd))}); {COPY}.")
    views = np.concatenate([held for _, held in shards])
    if not np.array_equal(np.sort(views), np.arange(len(views))):
        raise BadInput(f"The shards of {directory} do not hold each view once; they come from different runs.")
    owner = np.empty(len(views), dtype=np.int64)
    for rank, (_, held) in enumerate(shards):
        owner[held] = rank
    per_view = PerView(shards, tuple(sorted(names[0])))
    return Checkpoint(shared, per_view, manifest["meta"], Tiles(tiles), owner, len(paths), manifest["generation"], note)


#: What to do about a shard that is not what it should be.
COPY = "copy the whole checkpoint folder again"


@contextmanager
def _shard_of(path: Path) -> Iterator[h5py.File]:
    """A shard, open for reading; what HDF5 has to say against it becomes one sentence."""
    with reading(f"The checkpoint's {path}", COPY), h5py.File(path, "r") as file:
        yield file


def _held(file: h5py.File, name: str) -> h5py.Dataset:
    """A dataset of a shard, of numbers."""
    found = plain.dataset(file, name, NUMBERS)
    if found is None:
        raise BadInput(f"The checkpoint's {file.filename} has no {name}; {COPY}.")
    return found


def _inventory(file: h5py.File) -> dict[str, str]:
    """Type and shape of every array in a shard, by name."""
    names = ["views", *(f"{group}/{name}" for group in GROUPS for name in _names(file, group))]
    held = {name: _held(file, name) for name in names}
    return {name: f"{data.dtype.str} {list(data.shape)}" for name, data in held.items()}


def _views(file: h5py.File) -> np.ndarray:
    """(n,) int64, the views of a shard."""
    found = _held(file, "views")
    if found.ndim != 1 or found.dtype != np.int64:
        raise BadInput(f"views in the checkpoint's {file.filename} is {found.dtype} {found.shape}; {COPY}.")
    return np.asarray(found[()])


def _names(file: h5py.File, group: str) -> list[str]:
    """Names of all datasets below a group, with '/', in one order on all ranks: what engines remember goes by it."""
    found: list[str] = []
    held = plain.member(file, group)
    if not isinstance(held, h5py.Group):
        raise BadInput(f"The checkpoint's {file.filename} has no group {group}; {COPY}.")
    held.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    return sorted(found)


def _begin(directory: Path) -> int:
    """Number of a new generation, above every other on disk; older ones than the current one go, and dead saves."""
    found = manifests.generations(directory)
    current = manifests.current(directory)
    for number, path in found.items():
        if number != current:
            shutil.rmtree(path, ignore_errors=True)  # what cannot be removed now is tried again by the next save
    return 1 + max(found, default=0)


def _write_shard(
    path: Path,
    shared: Mapping[str, np.ndarray],
    views: np.ndarray,
    per_view: Mapping[str, np.ndarray],
    tiles: Mapping[str, np.ndarray],
    corner: tuple[int, int],
) -> None:
    for name, array in per_view.items():
        if array.shape[:1] != (len(views),):
            raise ValueError(f"per-view array {name} has shape {array.shape} for {len(views)} views")
    with new_hdf5(path) as file:
        file["views"] = np.asarray(views, dtype=np.int64)
        for group, arrays in (("shared", shared), ("per_view", per_view)):
            target = file.create_group(group)
            for name, array in arrays.items():
                target.create_dataset(name, data=array)
        target = file.create_group("tiles")
        for name, array in tiles.items():
            target.create_dataset(name, data=array).attrs["corner"] = corner


def _all_well(world: World, problem: Exception | None, directory: Path, number: int = 0) -> None:
    """Raise on every rank if any met a problem; what there is of this generation then gives back its room."""
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
