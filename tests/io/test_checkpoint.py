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

from ptymesh.distributed.world import World
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.io.checkpoint import manifests
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.io.hdf5 import digests


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

    def gather_strings(self, text: str) -> list[str]:
        return self.threads.exchange(self.rank, text)

    def sum(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        parts = self.threads.exchange(self.rank, tensors)
        return [sum(column[1:], column[0].clone()) for column in zip(*parts, strict=True)]

    def agree(self, flag: bool) -> bool:
        return any(self.threads.exchange(self.rank, flag))


N = 7
RANKS = [f"rank{rank:05d}.h5" for rank in range(3)]


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
        checkpoint.save(directory, world, checkpoint.RankArrays(mine, views, own), meta)

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


def test_shards_are_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Threads(3).run(saver(tmp_path, 3))
    opened: list[str] = []
    shard_of = checkpoint._shard_of
    monkeypatch.setattr(checkpoint, "_shard_of", lambda path: (opened.append(path.name), shard_of(path))[1])
    checkpoint.load(tmp_path)
    assert opened == RANKS


def test_the_current_generation_and_the_one_before_stay(tmp_path: Path) -> None:
    for seed, size in ((0, 3), (1, 2), (2, 1)):
        Threads(size).run(saver(tmp_path, size, seed))
        assert_holds(tmp_path, seed)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000002", "000003", "manifest.json"]
    assert sorted(p.name for p in (tmp_path / "000003").iterdir()) == ["manifest.json", "rank00000.h5"]
    assert sorted(p.name for p in (tmp_path / "000002").iterdir()) == ["manifest.json", *RANKS[:2]]


@pytest.mark.parametrize("moment", ["store._write_shard", "manifests.write", "manifests.make_current"])
def test_a_save_that_dies_leaves_the_previous_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    Threads(2).run(saver(tmp_path, 2, 0))

    class Killed(BaseException):
        pass

    def die(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(f"ptymesh.io.checkpoint.{moment}", die)
        with pytest.raises(Killed):
            saver(tmp_path, 1, 1)(FakeWorld(Threads(1), 0))
    assert_holds(tmp_path, 0)
    Threads(2).run(saver(tmp_path, 2, 2))
    assert_holds(tmp_path, 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000001", "000003", "manifest.json"]


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_failure_on_one_rank_is_raised_on_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    Threads(3).run(saver(tmp_path, 3, 0))
    write = checkpoint._write_shard

    def full(path: Path, *arguments: Any) -> None:
        if path.name == RANKS[rank]:
            raise OSError(28, "No space left on device")
        write(path, *arguments)

    monkeypatch.setattr(checkpoint, "_write_shard", full)
    outcomes = Threads(3).run(saver(tmp_path, 3, 1))
    assert all(isinstance(error, PtymeshError) for error in outcomes)
    assert all("No space left" in str(outcome) for outcome in outcomes), "what happened there is said everywhere"
    assert f"(Rank {rank} failed while writing it: {tmp_path}" in str(outcomes[(rank + 1) % 3])
    assert all(f"{RANKS[rank]} cannot be written" in str(outcome) for outcome in outcomes)
    assert_holds(tmp_path, 0)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000001", "manifest.json"], "its room is given back"


def test_a_failing_manifest_is_raised_on_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Threads(2).run(saver(tmp_path, 2, 0))

    def refuse(*_: Any) -> None:
        raise OSError("read-only")

    monkeypatch.setattr("ptymesh.io.checkpoint.manifests.make_current", refuse)
    assert all(isinstance(error, PtymeshError) for error in Threads(2).run(saver(tmp_path, 2, 1)))
    assert_holds(tmp_path, 0)


def test_rows_must_match_views(tmp_path: Path) -> None:
    with pytest.raises(PtymeshError, match="positions has shape"):
        arrays = checkpoint.RankArrays({}, np.arange(3), {"positions": np.zeros((2, 2))})
        checkpoint.save(tmp_path, FakeWorld(Threads(1), 0), arrays, {})


SHARD = Path("000001") / RANKS[1]


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def zeroed(path: Path) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)


def flip(path: Path, bit: int) -> None:
    """One bit of a file."""
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(content))


def signed(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """A manifest that says something else, with the digest that goes with it."""
    manifest = json.loads(path.read_text())
    change(manifest)
    manifest[digests.NAME] = digests.of_json(manifest)
    path.write_text(json.dumps(manifest))


def resigned(directory: Path) -> None:
    """The digests of shards as they are now."""

    def change(manifest: dict[str, Any]) -> None:
        for entry in manifest["files"]:
            path = directory / "000001" / entry["name"]
            entry.update({"bytes": path.stat().st_size, digests.NAME: digests.of_file(path)})

    signed(directory / "000001" / "manifest.json", change)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / SHARD).unlink(), "rank00001.h5 is missing; copy"),
        (lambda d: truncated(d / SHARD), "cut short: copy"),
        (lambda d: zeroed(d / SHARD), "does not hold what was written; copy"),
        (lambda d: flip(d / SHARD, 12345), "does not hold what was written; copy"),
        (lambda d: (d / "manifest.json").unlink(), "holds no checkpoint"),
        (lambda d: (d / "000001" / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda d: (d / "000001" / "manifest.json").write_text("{"), "not readable as JSON"),
        (lambda d: (d / "000001" / "manifest.json").write_text("[" * 100000), "not readable as JSON"),
        (lambda d: (d / "000001" / "manifest.json").write_text("9" * 5000), "not readable as JSON"),
        (lambda d: (d / "000001" / "manifest.json").write_text('{"version": NaN}'), "NaN is no number"),
        (lambda d: (d / "manifest.json").write_text("[]"), "does not say what was written"),
        (lambda d: (d / "manifest.json").write_text('{"format": "ptymesh-checkpoint", "version": 2}'), "version 2"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: Callable[[Path], Any], message: str) -> None:
    """With no generation to fall back to."""
    Threads(2).run(saver(tmp_path, 2))
    damage(tmp_path)
    if message == "does not say what was written":
        (tmp_path / "000001" / "manifest.json").unlink()
    for found in (*Threads(2).run(lambda world: checkpoint.load(tmp_path, world)), caught(checkpoint.load, tmp_path)):
        assert isinstance(found, BadInput) and message in str(found) and "\n" not in str(found), found
    if "what was written; copy" not in message:
        assert message in str(caught(checkpoint.read_meta, tmp_path))


def caught(act: Callable[..., Any], *arguments: Any) -> BadInput:
    with pytest.raises(BadInput) as error:
        act(*arguments)
    return error.value


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.pop("files"),
        lambda m: m.update(files=[]),
        lambda m: m.update(files={}),
        lambda m: m.update(files=["rank00000.h5"]),
        lambda m: m.pop("meta"),
        lambda m: m.update(meta=[1]),
        lambda m: m.update(generation=2),
        lambda m: m.update(generation="1"),
        lambda m: m.update(generation=10**30),
        lambda m: m["files"][0].update(name="../../etc/passwd"),
        lambda m: m["files"][0].pop("name"),
        lambda m: m["files"][0].update(name=["rank00000.h5"]),
        lambda m: m["files"][0].update(bytes=10**400),
        lambda m: m["files"][0].update(bytes="12"),
        lambda m: m["files"][0].pop(digests.NAME),
    ],
)
def test_manifests_that_say_what_they_should_not(tmp_path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    Threads(2).run(saver(tmp_path, 2))
    signed(tmp_path / "000001" / "manifest.json", change)
    assert "manifest.json" in str(caught(checkpoint.load, tmp_path)) or "bytes" in str(
        caught(checkpoint.load, tmp_path)
    )
    caught(checkpoint.read_meta, tmp_path)


def replaced(file: h5py.File, name: str, value: Any) -> None:
    del file[name]
    file[name] = value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f["views"].write_direct(np.full(f["views"].shape, f["views"][0])), "each view once"),
        (lambda f: f.__delitem__("views"), "has no views"),
        (lambda f: replaced(f, "views", np.zeros(3)), "does not hold the arrays that its manifest names"),
        (lambda f: replaced(f, "views", "text"), "holds text"),
        (lambda f: f.__delitem__("per_view/positions"), "does not hold the arrays that its manifest names"),
        (lambda f: f.__delitem__("tiles"), "no group tiles"),
        (lambda f: replaced(f, "shared", 3), "no group shared"),
        (lambda f: replaced(f, "per_view/positions", h5py.SoftLink("/views")), "its manifest names"),
        (lambda f: replaced(f, "per_view/positions", np.ones(3)), "its manifest names"),
        (lambda f: replaced(f, "per_view", h5py.ExternalLink("elsewhere.h5", "/")), "is a link to elsewhere"),
        (lambda f: replaced(f, "views", h5py.SoftLink("/views")), "is a link to elsewhere"),
        (lambda f: f.create_dataset("shared/huge", (1 << 40,), "u1"), "declares 1.1 TB and holds 0 bytes"),
        (lambda f: f.create_dataset("shared/far", (9,), "u1", external=[("x", 0, 9)]), "lie in other files"),
        (lambda f: f.create_dataset("shared/none", data=h5py.Empty("f")), "is empty"),
        (lambda f: f.create_dataset("shared/long", data=np.ones(3, np.longdouble)), "holds"),
    ],
)
def test_shards_that_hold_what_they_should_not(
    tmp_path: Path, change: Callable[[h5py.File], Any], message: str
) -> None:
    """Whose digests hold nevertheless."""
    Threads(2).run(saver(tmp_path, 2))
    with h5py.File(tmp_path / SHARD, "r+") as file:
        change(file)
    resigned(tmp_path)
    error = str(caught(checkpoint.load, tmp_path))
    assert message in error and "\n" not in error


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "file", ["000002/rank00000.h5", "000002/rank00001.h5", "000002/manifest.json", "manifest.json"]
)
def test_a_flipped_bit_anywhere_is_noticed_and_the_generation_before_taken(tmp_path: Path, file: str) -> None:
    Threads(2).run(saver(tmp_path, 2, 0))
    Threads(2).run(saver(tmp_path, 2, 1))
    path = tmp_path / file
    sound, expected = path.read_bytes(), {seed: checkpoint_of(seed) for seed in (0, 1)}
    fallen = 0
    for bit in np.random.default_rng(5).integers(0, 8 * len(sound), 30):
        flip(path, int(bit))
        try:
            assert checkpoint.read_meta(tmp_path) == state(0)[2]
            found = checkpoint.load(tmp_path)
        except BadInput as error:  # of another format or version, by that bit: never of another content
            assert path.name == "manifest.json" and ("version" in str(error) or "not the manifest" in str(error))
        else:
            used = 0 if found.generation == 1 else 1
            fallen += found.note != ""
            assert_same(found.shared, expected[used][0])
            assert_same(found.per_view, expected[used][1])
            if file == "manifest.json" or not found.note:
                assert used == 1, "the generation itself is sound"
            else:
                assert file in found.note and found.note.endswith("Going on from generation 000001.")
        path.write_bytes(sound)
    assert fallen >= (30 if file.endswith("h5") else 20), "but for bits between the words of a manifest"


def checkpoint_of(seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    shared, per_view, _ = state(seed)
    return shared, per_view


def test_ranks_share_the_checking_and_fall_back_together(tmp_path: Path) -> None:
    Threads(3).run(saver(tmp_path, 3, 0))
    Threads(3).run(saver(tmp_path, 3, 1))
    flip(tmp_path / "000002" / RANKS[2], 4000)
    for size in (1, 2, 3, 4):
        found = Threads(size).run(lambda world: checkpoint.load(tmp_path, world))
        assert [(one.generation, "rank00002.h5 is damaged" in one.note) for one in found] == [(1, True)] * size
    flip(tmp_path / "000001" / RANKS[0], 4000)
    for error in Threads(2).run(lambda world: checkpoint.load(tmp_path, world)):
        assert isinstance(error, BadInput) and "No generation in" in str(error)


def test_a_settled_generation_outlives_the_next_save(tmp_path: Path) -> None:
    """The next save removes the damaged one, not the one that was fallen back to."""
    for seed in (0, 1):
        Threads(1).run(saver(tmp_path, 1, seed))
    flip(tmp_path / "000002" / RANKS[0], 4000)
    checkpoint.make_current(tmp_path, checkpoint.load(tmp_path).generation)
    assert checkpoint.load(tmp_path).note == ""
    Threads(1).run(saver(tmp_path, 1, 2))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000001", "000003", "manifest.json"]
    assert_holds(tmp_path, 2)


@pytest.mark.parametrize("place", ["_manifest", "_candidates"])
def test_a_disk_that_fails_one_rank_fails_all_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Network drives know errors that no local disk has; none of the others is left waiting."""
    for seed in (0, 1):
        Threads(2).run(saver(tmp_path, 2, seed))
    read, failures = getattr(manifests, place), [OSError(116, "Stale file handle")]

    def stale(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return read(*arguments)

    monkeypatch.setattr(manifests, place, stale)
    for found in Threads(2).run(lambda world: checkpoint.load(tmp_path, world)):
        if place == "_manifest":
            assert found.generation == 1 and "cannot be read (Stale file handle)" in found.note
        else:
            assert isinstance(found, BadInput) and "cannot be read (Stale file handle)" in str(found)
