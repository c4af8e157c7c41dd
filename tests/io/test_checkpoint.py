"""Checkpoints: bit-exact, merged over ranks, never half there."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from ptymesh.errors import BadInput, PtymeshError
from ptymesh.io import checkpoint
from ptymesh.parallel.world import World


class Threads:
    """R ranks as threads of this process: sums and agreement through shared lists."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.slots: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=10)

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self.slots[rank] = value
        self.barrier.wait()
        values = list(self.slots)
        self.barrier.wait()
        return values

    def run(self, work: Callable[[FakeWorld], Any]) -> list[Any]:
        """`work` on every rank; what each returned or raised."""
        outcomes: list[Any] = [None] * self.size

        def one(rank: int) -> None:
            try:
                outcomes[rank] = work(FakeWorld(self, rank))
            except Exception as error:
                outcomes[rank] = error
                if not isinstance(error, PtymeshError):
                    self.barrier.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return outcomes


class FakeWorld(World):
    def __init__(self, threads: Threads, rank: int) -> None:
        super().__init__()
        self.threads, self.rank, self.size = threads, rank, threads.size

    def words(self, text: str) -> list[str]:
        return self.threads.exchange(self.rank, text)

    def sum(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        parts = self.threads.exchange(self.rank, tensors)
        return [sum(column[1:], column[0].clone()) for column in zip(*parts, strict=True)]

    def agree(self, flag: bool) -> bool:
        return any(self.threads.exchange(self.rank, flag))


N = 7


def state(seed: int = 0) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, Any]]:
    rng = np.random.default_rng(seed)
    shared = {
        "object": (rng.normal(size=(2, 5, 4)) + 1j * rng.normal(size=(2, 5, 4))).astype(np.complex64),
        "engine/momentum/velocity": rng.normal(size=(3, 3)),
        "engine/steps": np.array(41),
        "gain": np.array(1.5 + 2j),
        "good": np.array([True, False]),
        "odd": np.array([np.nan, -0.0, np.inf], dtype=np.float32),
        "none": np.empty((0, 3), dtype=np.uint16),
    }
    per_view = {
        "positions": rng.normal(size=(N, 2)),
        "anchors": rng.integers(-5, 5, size=(N, 2)),
        "engine/waves": (rng.normal(size=(N, 1, 3, 2)) + 1j * rng.normal(size=(N, 1, 3, 2))),
    }
    meta = {"epoch": 3, "stage": 1, "loss": 0.1 + 0.2, "recipe": "seed: 0\n", "history": [0.1, 1e-300]}
    return shared, per_view, meta


def saver(directory: Path, size: int, seed: int = 0) -> Callable[[FakeWorld], None]:
    shared, per_view, meta = state(seed)
    order = np.random.default_rng(9).permutation(N)

    def work(world: FakeWorld) -> None:
        views = order[world.rank :: size] if size <= N else order[world.rank : world.rank + 1]
        own = {name: array[views] for name, array in per_view.items()}
        mine = shared if world.rank == 0 else {name: np.zeros_like(array) for name, array in shared.items()}
        checkpoint.save(directory, world, shared=mine, views=views, per_view=own, meta=meta)

    return work


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape, name
        assert found[name].tobytes() == array.tobytes(), name


def assert_holds(directory: Path, seed: int = 0) -> None:
    shared, per_view, meta = state(seed)
    found = checkpoint.load(directory)
    assert_same(found.shared, shared)
    assert_same(found.per_view, per_view)
    assert found.meta == meta == checkpoint.read_meta(directory)


@pytest.mark.parametrize("size", [1, 2, 3, N + 2])
def test_round_trip_is_bit_exact_on_any_number_of_ranks(tmp_path: Path, size: int) -> None:
    assert not checkpoint.exists(tmp_path / "checkpoint")
    assert Threads(size).run(saver(tmp_path / "checkpoint", size)) == [None] * size
    assert checkpoint.exists(tmp_path / "checkpoint")
    assert_holds(tmp_path / "checkpoint")


def test_only_the_newest_generation_stays(tmp_path: Path) -> None:
    for seed, size in ((0, 3), (1, 2), (2, 1)):
        Threads(size).run(saver(tmp_path, size, seed))
        assert_holds(tmp_path, seed)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000003", "manifest.json"]
    assert [p.name for p in (tmp_path / "000003").iterdir()] == ["rank00000.h5"]


@pytest.mark.parametrize("moment", ["_write_shard", "_write_manifest"])
def test_a_save_that_dies_leaves_the_previous_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    Threads(2).run(saver(tmp_path, 2, 0))

    class Killed(BaseException):
        pass

    def die(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, moment, die)
        with pytest.raises(Killed):
            saver(tmp_path, 1, 1)(FakeWorld(Threads(1), 0))
    assert_holds(tmp_path, 0)
    Threads(2).run(saver(tmp_path, 2, 2))
    assert_holds(tmp_path, 2)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_failure_on_one_rank_is_raised_on_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    Threads(3).run(saver(tmp_path, 3, 0))
    write = checkpoint._write_shard

    def full(path: Path, *arguments: Any) -> None:
        if path.name == checkpoint._shard(rank):
            raise OSError(28, "No space left on device")
        write(path, *arguments)

    monkeypatch.setattr(checkpoint, "_write_shard", full)
    outcomes = Threads(3).run(saver(tmp_path, 3, 1))
    assert all(isinstance(error, PtymeshError) for error in outcomes)
    assert all("No space left" in str(outcome) for outcome in outcomes), "what happened there is said everywhere"
    assert f"(Rank {rank} failed while writing it: OSError" in str(outcomes[(rank + 1) % 3])
    assert_holds(tmp_path, 0)


def test_a_failing_manifest_is_raised_on_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Threads(2).run(saver(tmp_path, 2, 0))

    def refuse(*_: Any) -> None:
        raise OSError("read-only")

    monkeypatch.setattr(checkpoint, "_write_manifest", refuse)
    assert all(isinstance(error, PtymeshError) for error in Threads(2).run(saver(tmp_path, 2, 1)))
    assert_holds(tmp_path, 0)


def test_rows_must_match_views(tmp_path: Path) -> None:
    with pytest.raises(PtymeshError, match="positions has shape"):
        checkpoint.save(
            tmp_path,
            FakeWorld(Threads(1), 0),
            shared={},
            views=np.arange(3),
            per_view={"positions": np.zeros((2, 2))},
            meta={},
        )


def remove_shard(directory: Path) -> None:
    (directory / "000001" / "rank00001.h5").unlink()


def truncate_shard(directory: Path) -> None:
    path = directory / "000001" / "rank00001.h5"
    path.write_bytes(path.read_bytes()[:-100])


def scramble_shard(directory: Path) -> None:
    path = directory / "000001" / "rank00001.h5"
    path.write_bytes(b"\0" * path.stat().st_size)


def repeat_views(directory: Path) -> None:
    with h5py.File(directory / "000001" / "rank00001.h5", "r+") as file:
        file["views"][0] = file["views"][1]


def drop_array(directory: Path) -> None:
    path = directory / "000001" / "rank00001.h5"
    with h5py.File(path, "r+") as file:
        del file["per_view/positions"]
    edit_manifest(directory, lambda m: m["files"][1].update(bytes=path.stat().st_size))


def edit_manifest(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = directory / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove_shard, "rank00001.h5 is missing; copy"),
        (truncate_shard, "cut short: copy"),
        (scramble_shard, "cannot be read"),
        (repeat_views, "each view once"),
        (drop_array, "same arrays .positions."),
        (lambda d: (d / "manifest.json").unlink(), "holds no checkpoint"),
        (lambda d: (d / "manifest.json").write_text("{"), "not readable as JSON"),
        (lambda d: (d / "manifest.json").write_text("[]"), "not the manifest"),
        (lambda d: edit_manifest(d, lambda m: m.update(version=99)), "version 99"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: Callable[[Path], Any], message: str) -> None:
    Threads(2).run(saver(tmp_path, 2))
    damage(tmp_path)
    with pytest.raises(BadInput, match=message):
        checkpoint.load(tmp_path)
    if damage in (remove_shard, truncate_shard):
        with pytest.raises(BadInput, match=message):
            checkpoint.read_meta(tmp_path)
