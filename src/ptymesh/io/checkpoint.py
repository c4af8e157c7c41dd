"""Checkpoints: raw state from which any number of ranks can go on.

    checkpoint/
      manifest.json            generation, ranks, files with their sizes, meta; renamed into place last
      000012/rank00000.h5      one shard per rank
        /views                 (n,) int64, the global indices of this rank's views
        /per_view/<name>       (n, ...) one row per own view
        /shared/<name>         any shape; in the first shard alone
        /tiles/<name>          (..., h, w) part of an array of the object, which starts at its attribute `corner`

The manifest names the only generation that counts. A save that is killed at any moment leaves the previous manifest,
and the generation that it names, as they were; what the dead save left behind is removed by the next one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from ptymesh.errors import BadInput, PtymeshError
from ptymesh.parallel.tiles import Rect
from ptymesh.parallel.world import World

MANIFEST = "manifest.json"
FORMAT, VERSION = "ptymesh-checkpoint", 2


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
        return self.rows(name, np.arange(sum(len(held) for _, held in self._shards)))

    def rows(self, name: str, views: np.ndarray) -> np.ndarray:
        """Rows of these views (ascending) alone, (len(views), ...), with no more than a slab of others on the way."""
        out: np.ndarray | None = None
        for path, held in self._shards:
            with _shard_of(path) as file:
                data = file["per_view"][name]
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
                data = file["tiles"][name]
                top, left = (int(n) for n in data.attrs["corner"])
                common = rect & Rect(top, left, top + data.shape[-2], left + data.shape[-1])
                if out is None:
                    out = np.empty((*data.shape[:-2], *rect.shape), dtype=data.dtype)
                if not common.empty:
                    out[(..., *common.inside(rect.corner))] = data[(..., *common.inside((top, left)))]
                    missing -= common.shape[0] * common.shape[1]
        if out is None or missing:
            raise BadInput(f"The checkpoint's tiles of {name} leave {missing} pixels out; copy the folder again.")
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
    """

    shared: dict[str, np.ndarray]
    per_view: PerView
    meta: dict[str, Any]
    tiles: Tiles
    owner: np.ndarray
    ranks: int


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
    """Write a new generation and then let go of the previous one. Collective: every rank calls it.

    Args:
        directory: on a file system that all ranks see.
        shared: arrays of any shape, taken from rank 0 alone; a name may hold '/'.
        views: (n,) global indices of this rank's views; over the ranks each of 0..N-1 occurs once.
        per_view: arrays with one row per own view, the same names on every rank.
        meta: what JSON can hold, alike on every rank.
        tiles: (..., h, w) this rank's tile of arrays of the object, the same names on every rank; corner: of the tile.

    Raises PtymeshError on every rank when one of them could not write; the previous checkpoint is then intact.
    """
    number = int(world.sum(torch.tensor([_next(directory) if world.rank == 0 else 0], device=world.device))[0])
    generation = directory / f"{number:06d}"
    sizes = torch.zeros(world.size, dtype=torch.int64, device=world.device)
    problem: Exception | None = None
    try:
        generation.mkdir(parents=True, exist_ok=True)
        shard = generation / _shard(world.rank)
        _write_shard(shard, shared if world.rank == 0 else {}, views, per_view, tiles or {}, corner)
        sizes[world.rank] = shard.stat().st_size
    except Exception as error:
        problem = _named(error, generation / _shard(world.rank))
    _all_well(world, problem, directory)

    (sizes,) = world.sum(sizes)
    if world.rank == 0:
        try:
            _sync_folder(generation)
            files = [{"name": f"{generation.name}/{_shard(r)}", "bytes": int(sizes[r])} for r in range(world.size)]
            manifest = {"format": FORMAT, "version": VERSION, "generation": number, "ranks": world.size}
            _write_manifest(directory, {**manifest, "files": files, "meta": dict(meta)})
        except Exception as error:
            problem = error
    _all_well(world, problem, directory)
    if world.rank == 0:
        _remove_others(directory, number)


def load(directory: Path) -> Checkpoint:
    """Read the checkpoint in `directory`, merged into global view order.

    Raises BadInput when there is none, when a shard is missing or truncated, or when views are missing.
    """
    manifest = _checked_manifest(directory)
    paths = [directory / entry["name"] for entry in manifest["files"]]
    shared: dict[str, np.ndarray] = {}
    shards: list[tuple[Path, np.ndarray]] = []
    names: list[set[str]] = []
    tiles: dict[str, list[Path]] = {}
    for path in paths:
        with _shard_of(path) as file:
            shared |= _read_group(file["shared"])
            shards.append((path, file["views"][()]))
            names.append(_names(file["per_view"]))
            for name in _names(file["tiles"]):
                tiles.setdefault(name, []).append(path)
    if odd := {name for some in names for name in some ^ names[0]}:
        raise BadInput(
            f"The checkpoint's shards do not hold the same arrays ({', '.join(sorted(odd))}); copy the folder again."
        )
    views = np.concatenate([held for _, held in shards])
    if not np.array_equal(np.sort(views), np.arange(len(views))):
        raise BadInput(f"The shards of {directory} do not hold each view once; they come from different runs.")
    owner = np.empty(len(views), dtype=np.int64)
    for rank, (_, held) in enumerate(shards):
        owner[held] = rank
    per_view = PerView(shards, tuple(sorted(names[0])))
    return Checkpoint(shared, per_view, manifest["meta"], Tiles(tiles), owner, len(paths))


@contextmanager
def _shard_of(path: Path) -> Iterator[h5py.File]:
    """A shard, open for reading; what HDF5 has to say against it becomes one sentence."""
    try:
        with h5py.File(path, "r") as file:
            yield file
    except (OSError, KeyError) as error:
        raise BadInput(f"The checkpoint's {path} cannot be read ({error}); copy the folder again.") from error


def read_meta(directory: Path) -> dict[str, Any]:
    """The checkpoint's meta alone, once all its files are found whole. Raises BadInput as `load` does."""
    return _checked_manifest(directory)["meta"]


def exists(directory: Path) -> bool:
    """Whether `directory` holds a checkpoint (its manifest; `load` says whether it is sound)."""
    return (directory / MANIFEST).is_file()


def _shard(rank: int) -> str:
    return f"rank{rank:05d}.h5"


def _generations(directory: Path) -> dict[int, Path]:
    if not directory.is_dir():
        return {}
    return {int(path.name): path for path in directory.iterdir() if path.name.isdecimal() and path.is_dir()}


def _next(directory: Path) -> int:
    """A number above every generation on disk, a dead save's included."""
    return 1 + max(_generations(directory), default=0)


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
    with path.open("w+b") as raw:
        with h5py.File(raw, "w") as file:
            file["views"] = np.asarray(views, dtype=np.int64)
            for group, arrays in (("shared", shared), ("per_view", per_view)):
                target = file.create_group(group)
                for name, array in arrays.items():
                    target.create_dataset(name, data=array)
            target = file.create_group("tiles")
            for name, array in tiles.items():
                target.create_dataset(name, data=array).attrs["corner"] = corner
        raw.flush()
        os.fsync(raw.fileno())


def _write_manifest(directory: Path, manifest: dict[str, Any]) -> None:
    temporary = directory / (MANIFEST + ".new")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, directory / MANIFEST)
    _sync_folder(directory)


def _sync_folder(path: Path) -> None:
    """Make names in a folder durable; systems on which a folder cannot be opened do without."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _all_well(world: World, problem: Exception | None, directory: Path) -> None:
    """Raise on every rank if any met a problem. The next save removes what this one leaves."""
    try:
        world.all_well(problem, "writing it")
    except Exception as error:
        reason = f"{type(error).__name__}: {error}" if error is problem else str(error)
        raise PtymeshError(
            f"The checkpoint in {directory} could not be written ({reason}); the previous one, if any, is intact: "
            f"make room or mend the folder, then resume."
        ) from problem


def _named(error: Exception, path: Path) -> Exception:
    """The error with the file that it is about."""
    if not isinstance(error, OSError) or error.filename:
        return error
    return OSError(error.errno, error.strerror or str(error), str(path))


def _remove_others(directory: Path, number: int) -> None:
    """Older generations, and what dead saves left. What cannot be removed now is tried again by the next save."""
    for other, path in _generations(directory).items():
        if other != number:
            shutil.rmtree(path, ignore_errors=True)


def _read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    if not path.is_file():
        out = directory.parent if directory.name == "checkpoint" else directory
        finished = "; that run is finished" if (out / "result.h5").exists() else ""
        raise BadInput(
            f"{out} holds no checkpoint ({path} is missing){finished}; "
            "give the output folder of a run that was stopped."
        )
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadInput(f"{path} is not readable as JSON ({error}); copy the checkpoint folder again.") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BadInput(f"{path} is not the manifest of a ptymesh checkpoint; give the folder of an earlier run.")
    if manifest.get("version") != VERSION:
        raise BadInput(
            f"{path} has checkpoint version {manifest.get('version')}, this ptymesh reads {VERSION}; "
            f"resume with the version that wrote it."
        )
    return manifest


def _checked_manifest(directory: Path) -> dict[str, Any]:
    manifest = _read_manifest(directory)
    for entry in manifest["files"]:
        _check_file(directory / entry["name"], entry["bytes"])
    return manifest


def _check_file(path: Path, size: int) -> None:
    if not path.is_file():
        raise BadInput(f"The checkpoint's {path} is missing; copy the whole checkpoint folder again.")
    found = path.stat().st_size
    if found != size:
        raise BadInput(
            f"The checkpoint's {path} has {found} bytes where its manifest says {size}; "
            f"it was cut short: copy the whole checkpoint folder again."
        )


def _names(group: h5py.Group) -> set[str]:
    """Names of all datasets below a group, with '/'."""
    found: set[str] = set()
    group.visititems(lambda name, item: found.add(name) if isinstance(item, h5py.Dataset) else None)
    return found


def _read_group(group: h5py.Group) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}

    def collect(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset):
            arrays[name] = np.asarray(item[()])

    group.visititems(collect)
    return arrays
