"""Ranks of one machine through memory that they share, against the same through sockets."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from ptymesh.distributed import shared_memory
from ptymesh.distributed.devices import BACKEND
from ptymesh.distributed.shared_memory import MemoryLayout, SharedMemory
from ptymesh.distributed.world import Ranks, World

pytestmark = pytest.mark.skipif(not shared_memory.possible(), reason="no shared memory here, or no x86 processor")

#: Numbers of a message: some, more than one rank adds up by itself, and more than fit a place.
LENGTHS = (1, 7, 100_000, 3_000_001)


def test_a_python_without_such_memory_goes_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those that are built for a C library older than the call."""
    monkeypatch.delattr(os, "memfd_create")
    assert not shared_memory.possible()


def by_sockets(world: World) -> Ranks:
    """Ranks of the same group that share nothing."""
    assert isinstance(world, Ranks)
    assert world._shared is not None
    before = os.environ.get(BACKEND)
    os.environ[BACKEND] = "gloo"
    try:
        other = Ranks(group=world.group)
    finally:
        if before is None:
            del os.environ[BACKEND]
        else:
            os.environ[BACKEND] = before
    assert other._shared is None
    return other


def both_reductions(world: World) -> list[tuple[bool, float]]:
    found, sockets = [], by_sockets(world)
    for length in LENGTHS:
        for dtype in (torch.float32, torch.float64, torch.int64):
            generator = torch.Generator().manual_seed(length + world.rank)
            numbers = (1000 * torch.randn(length, generator=generator, dtype=torch.float64)).to(dtype)
            kept = numbers.clone()
            ours, theirs = world.sum(numbers)[0], sockets.sum(numbers)[0]
            same = torch.equal(world.max(numbers)[0], sockets.max(numbers)[0]) and torch.equal(kept, numbers)
            if dtype == torch.int64 or world.size == 2:
                same = same and torch.equal(ours, theirs)
            found.append((same, float((ours - theirs).abs().max() / theirs.abs().max())))
            found.append((len({float(s) for s in everybodys(world, ours)}) == 1, 0.0))
    return found


def everybodys(world: World, values: torch.Tensor) -> torch.Tensor:
    """A number of each rank that any other bit would change."""
    table = torch.zeros(world.size, dtype=torch.float64)
    table[world.rank] = (values.double() * torch.arange(1, len(values) + 1) ** 0.5).sum()
    return world.sum(table)[0]


@pytest.mark.sample(2)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_sums_and_maxima_are_those_of_sockets_and_alike_on_all_ranks(ranks, size: int) -> None:  # type: ignore[no-untyped-def]
    for found in ranks(size, both_reductions):
        assert all(same and off < 1e-6 for same, off in found)


def round_robin(world: World, sizes: list[int], times: int) -> list[bool]:
    """Each rank writes to all others, some of them late, and more than lies in an outbox."""
    good = []
    for turn in range(times):
        if turn % 3 == world.rank:
            time.sleep(0.01)
        others = [r for r in range(world.size) if r != world.rank]
        sizes_to = {r: sizes[(turn + world.rank + r) % len(sizes)] for r in others}
        sends = {r: torch.full((sizes_to[r],), 100.0 * world.rank + r + turn) for r in others}
        receives = {r: torch.zeros(sizes_to[r]) for r in others}
        world.start_messages(sends, receives)()
        good.append(all(bool((t == 100.0 * r + world.rank + turn).all()) for r, t in receives.items()))
    return good


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("sizes", [[1, 5000], [10, 600_000], [3_000_000, 3, 700_000]])
def test_letters_arrive_whatever_their_size(ranks, size: int, sizes: list[int]) -> None:  # type: ignore[no-untyped-def]
    for good in ranks(size, round_robin, sizes, 7):
        assert len(good) == 7 and all(good)


def one_way(world: World, times: int) -> list[float]:
    """Rank 1 writes again and again; rank 0 reads when it has slept."""
    if world.rank == 1:
        for turn in range(times):
            world.start_messages({0: torch.full((50_000,), float(turn))}, {})()
        return []
    got = []
    for _ in range(times):
        time.sleep(0.005)
        letter = torch.zeros(50_000)
        world.start_messages({}, {1: letter})()
        got.append(float(letter.unique()))
    return got


def test_letters_wait_to_be_taken(ranks) -> None:  # type: ignore[no-untyped-def]
    assert ranks(2, one_way, 30)[0] == [float(turn) for turn in range(30)]


def test_the_outbox_is_filled_round_and_round() -> None:
    """No letter lies on another that has not been taken, whatever their sizes."""
    handle, _ = shared_memory.create(2)
    me = SharedMemory(0, 2, handle)
    room, lying = MemoryLayout(2).outbox, list[tuple[int, int]]()
    sizes = torch.randint(1, room // 3, (500,), generator=torch.Generator().manual_seed(1)).tolist()
    by_sockets = 0
    for number, size in enumerate(sizes, start=1):
        me._taken[0, 1] = number - 2  # all but the last
        work = me.send(torch.zeros(size, dtype=torch.uint8), 1, lambda: "sent")
        lying = lying[-1:]
        at = int(me._where[number % shared_memory.SLOTS, 0, 1])
        assert (at < 0) == (work == "sent")
        by_sockets += at < 0
        if at >= 0:
            assert at + size <= room and all(at + size <= begin or end <= at for begin, end in lying)
            lying.append((at, at + size))
    assert by_sockets < 50
    me.close()


def names(world: World) -> list[str]:
    """Of the files of memory that this rank shares, as the system calls them."""
    world.barrier()
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return [line.split(maxsplit=5)[5] for line in lines if "ptymesh" in line and ".so" not in line]


def test_what_is_shared_has_no_name_that_could_be_left_behind(ranks) -> None:  # type: ignore[no-untyped-def]
    for found in ranks(3, names):
        assert found and set(found) == {"/memfd:ptymesh (deleted)"}


def test_memory_of_a_process_is_found_by_others_of_this_machine_alone() -> None:
    handle, where = shared_memory.create(2)
    found = shared_memory.find(where)
    assert os.path.samestat(os.fstat(found), os.fstat(handle))
    os.close(found)
    with pytest.raises(FileNotFoundError):
        shared_memory.find(f"another-{where}")
    os.close(handle)
    with pytest.raises(OSError):
        shared_memory.find(where)


def many_worlds(world: World) -> int:
    """Open files after worlds have come and gone, beyond those before."""
    assert isinstance(world, Ranks)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(10):
        other = Ranks(group=world.group)
        other.sum(torch.ones(3))
        if number % 2:
            other.close()
        del other
    return len(os.listdir("/proc/self/fd")) - before


def test_worlds_that_are_forgotten_leave_no_memory(ranks) -> None:  # type: ignore[no-untyped-def]
    assert max(ranks(2, many_worlds)) <= 2


def test_no_room_means_sockets(ranks) -> None:  # type: ignore[no-untyped-def]
    assert all(ranks(3, without_room))


def without_room(world: World) -> bool:
    """No rank shares memory where the first finds no room for it."""
    assert isinstance(world, Ranks)

    def full(handle: int, at: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    before = os.posix_fallocate
    os.posix_fallocate = full  # type: ignore[assignment]
    try:
        other = Ranks(group=world.group)
    finally:
        os.posix_fallocate = before
    return other._shared is None and float(other.sum(torch.ones(()))[0]) == world.size


#: A rank that shares memory with rank 0 and is then killed.
KILLED = """
import sys, time
from ptymesh.distributed import shared_memory
from ptymesh.distributed.shared_memory import SharedMemory
rank = SharedMemory(1, 2, shared_memory.find(sys.argv[1]))
print("here", flush=True)
time.sleep(60)
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("what", ["sum", "letter"])
def test_a_rank_that_was_killed_is_noticed(what: str) -> None:
    handle, where = shared_memory.create(2)
    other = subprocess.Popen([sys.executable, "-c", KILLED, where], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "here\n"
        me = SharedMemory(0, 2, handle)
        other.kill()
        with pytest.raises(RuntimeError, match="rank 1 has ended"):
            if what == "sum":
                me.reduce(torch.ones(3), torch.add)
            else:
                me.awaited(torch.zeros(3, dtype=torch.uint8), 1, lambda: None)()
        me.close()
    finally:
        other.kill()
        other.wait()
        other.stdout.close()  # type: ignore[union-attr]
