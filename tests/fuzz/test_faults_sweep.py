"""A sample of the fault points of faults.py, and that what is planted is found. All of them: `make faults`."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import faults
import judged
import pytest
from faults import Bench, Point
from programs import compile_shim, compiler

#: Fault points of `make test` and of `make long`.
SAMPLES = [3, pytest.param(24, marks=pytest.mark.long)]

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="programs are preloaded and forked on Linux alone"),
    pytest.mark.skipif(compiler() is None, reason="there is no C compiler for the shim (apt-get install gcc)"),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("faults")
    made = Bench(judged.scene(folder, faults.RECIPE), compile_shim(folder))
    yield made
    made.close()


@pytest.mark.long
def test_calls_of_every_kind_are_seen(bench: Bench) -> None:
    bench.scene.learn(bench.programs, 1)
    alone = bench.count(1, "0")
    assert all(alone[kind] > 0 for kind in ("write", "sync", "rename", "said", "open", "truncate")), alone
    assert alone["write"] > 100, "HDF5's writes are among them"
    first, second = bench.count(2, "0"), bench.count(2, "1")
    assert all(count[kind] > 0 for count in (first, second) for kind in ("map", "send", "write", "sync")), second


def planted(bench: Bench) -> Path:
    """A run that was stopped by a fault after its last checkpoint, and left it there."""
    bench.scene.learn(bench.programs, 1)
    # one of the last: what is thought of the result is added to it when it is safe, and the status is written by time
    for number in range(bench.count(1, "0")["rename"], 0, -1):
        folder = bench.scene.fresh()
        ended, counted, _ = bench.disturbed(Point(1, "0", "rename", "EIO", "once", number), folder)
        if counted.what == "rename out/result.h5" and ended.status == 1:
            break
    assert ended.status == 1 and counted.what == "rename out/result.h5", (ended, counted)
    assert judged.judge_end(ended, names=("Input/output error",)) == []
    assert judged.judge_checkpoint(folder / "out", bench.scene, 1) == []
    return folder


def shards(folder: Path) -> list[Path]:
    """Of all generations."""
    return sorted((folder / "out" / "checkpoint").glob("*/rank*.h5"))


@pytest.mark.long
def test_what_is_planted_is_found(bench: Bench) -> None:
    folder, expected = planted(bench), bench.scene.listings[1]

    def copy(name: str) -> Path:
        shutil.copytree(folder, bench.scene.folder / name, symlinks=True)
        return bench.scene.folder / name

    sound = copy("sound")
    assert judged.go_on(bench.programs, sound, bench.scene, 1) == ("resumed", [])
    assert judged.listing(sound) == expected

    flipped = copy("flipped")
    for shard in shards(flipped):
        content = bytearray(shard.read_bytes())
        start = content.find(bench.scene.results[1].object.tobytes())  # of the last generation
        content[start + 8 * 2000 + 2 if start >= 0 else len(content) // 2] ^= 0x40
        shard.write_bytes(content)
    assert judged.go_on(bench.programs, flipped, bench.scene, 1)[1], "neither other bits nor a refusal"

    short = copy("short")
    for shard in shards(short):
        shard.write_bytes(shard.read_bytes()[:-1])
    assert "the checkpoint is damaged" in judged.judge_checkpoint(short / "out", bench.scene, 1)[0]
    assert judged.go_on(bench.programs, short, bench.scene, 1)[1]

    left = copy("left")
    (left / "out" / "result.h5.tmp").touch()
    (bench.programs.temporary / "ptymesh-left").touch()
    _, wrong = judged.go_on(bench.programs, left, bench.scene, 1)
    assert wrong == ["then: left behind: out/result.h#.tmp", "then: left behind outside: ptymesh-left"]


@pytest.mark.parametrize(
    ("program", "wrong"),
    [
        ("raise ValueError('x')", "said “Traceback"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGBUS)", "status -7"),
        ("import os, time; os.fork() or time.sleep(60)", "left running"),
        ("import sys; sys.exit(1)", "no sentence"),
        ("import sys; sys.exit('ptymesh: It did not work.')", "does not say what failed"),
    ],
)
def test_bad_ends_are_found(bench: Bench, tmp_path: Path, program: str, wrong: str) -> None:
    bench.programs.start(["-c", program], tmp_path)
    ended = bench.programs.wait(grace=0.3)
    assert any(wrong in fault for fault in judged.judge_end(ended, names=("No space left on device",))), ended


@pytest.mark.long
@pytest.mark.parametrize("count", SAMPLES)
def test_a_sample_of_the_fault_points(bench: Bench, count: int) -> None:
    rng, calls = random.Random(22), {}
    for ranks, who in ((1, "0"), (2, "0"), (2, "1")):
        bench.scene.learn(bench.programs, ranks)
        calls[ranks, who] = bench.count(ranks, who)
    series = [first for first in faults.all_series((1, 2), faults.KINDS) if first.who != "launcher"]
    series = [first for first in series if calls[first.ranks, first.who][first.kind]]
    rng.shuffle(series)
    for first in series[:count]:
        outcome = bench.attempt(replace(first, at=rng.randint(1, calls[first.ranks, first.who][first.kind])))
        assert not outcome.wrong, f"{outcome.point} ({outcome.what}): {outcome.wrong}\n{outcome.said}"
