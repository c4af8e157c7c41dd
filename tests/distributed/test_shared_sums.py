"""Sums in memory that ranks of one machine share: the same bits as sums that are sent, and nothing is left behind."""

import os
from typing import Any

import numpy as np
import pytest
import torch

from ptymesh.distributed import shared_memory, shared_sums
from ptymesh.distributed.shared_sums import SumAreas, rectangles
from ptymesh.distributed.tiles import Rect
from ptymesh.distributed.world import Ranks, World
from ptymesh.engines import DM, RPIE, Adam, Engine
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import make, share

pytestmark = pytest.mark.skipif(not shared_memory.possible(), reason="no shared memory here, or no x86 processor")

ENGINES: list[Engine] = [RPIE(epochs=2, batch=7), Adam(epochs=1, batch=7), DM(epochs=1)]


def test_rectangles_make_up_the_blocks_each_once() -> None:
    rng = np.random.default_rng(1)
    for part in (0.0, 0.3, 0.9, 1.0):
        hit = rng.random((9, 7)) < part
        seen = np.zeros((9 * 32, 7 * 32), dtype=int)
        for top, bottom, left, right in rectangles(*hit.nonzero()):
            seen[top:bottom, left:right] += 1
        assert np.array_equal(seen, np.kron(hit, np.ones((32, 32), dtype=int)))
    assert rectangles(*np.ones((9, 7)).nonzero()) == [(0, 288, 0, 224)], "what lies together is added together"


def finished(world: World, precision: torch.dtype, layout: str) -> dict[str, np.ndarray]:
    toy = make(views=20, modes=2, dtype=precision)
    problem = toy.problem(world, layout)
    state = RunState(share(toy.start(), problem))
    Loop(problem, state, [type(e)(**e.model_dump()) for e in ENGINES], seed=2).run()
    whole = problem.layout.gather_whole(state.estimate.object, state.estimate)
    return {"object": whole.numpy(), "probe": state.estimate.probe.numpy()}


def both(world: World, precision: torch.dtype, layout: str) -> tuple[dict[str, Any], dict[str, Any], int, int, int]:
    """What a run ends with in shared memory, and by messages; memories that were made; bytes handed over by either."""
    assert isinstance(world, Ranks)

    def handed() -> int:
        return world.bytes_reduced + world.bytes_sent

    before = handed()
    ours = finished(world, precision, layout)
    shared, made = handed() - before, len([c for c in world._shared_sums_cache.kept.values() if c is not None])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ranks, "shared_sums", World.shared_sums)
        theirs = finished(world, precision, layout)
    return ours, theirs, made, shared, handed() - before - shared


@pytest.mark.sample(2)
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("precision", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("layout", ["replicated", "tiled"])
def test_the_same_bits_as_by_messages(ranks, size: int, precision: torch.dtype, layout: str) -> None:  # type: ignore[no-untyped-def]
    """Which are what is left where there is no room."""
    found = ranks(size, both, precision, layout)
    if size == 2:  # of more ranks, some sums are relayed
        shared, sent = (sum(one[place] for one in found) for place in (3, 4))
        assert shared == sent, "what one rank reads another would have sent"
    for ours, theirs, made, shared, sent in found:
        assert made == (2 if precision == torch.complex64 else 1), "of one part, and of two"
        assert shared == sent or layout == "tiled", "as many bytes count as handed over"
        for name, array in theirs.items():
            assert np.array_equal(ours[name], array) and np.array_equal(found[0][0][name], array), name


def square(side: int, world: World) -> SumAreas:
    return SumAreas(1, (Rect(0, 0, side, side),) * world.size)


def without_room(world: World) -> tuple[bool, int, float]:
    """Whether ranks of which one has no room for such memory go on without; files that are left open; what they sum."""
    assert isinstance(world, Ranks)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.MonkeyPatch.context() as patch:
        if world.rank == 1:
            patch.setattr(shared_sums.os, "posix_fallocate", lambda *_: (_ for _ in ()).throw(OSError("full")))
        none = world.shared_sums(square(64, world), 1, torch.complex64) is None
    total = float(world.sum(torch.ones(1))[0])
    return none, len(os.listdir("/proc/self/fd")) - before, total


def test_no_room_for_it_on_one_rank(ranks) -> None:  # type: ignore[no-untyped-def]
    assert ranks(2, without_room) == [(True, 0, 2.0)] * 2


def kept_open(world: World) -> tuple[int, int]:
    """Files that are open beyond those before, with memory of two shapes after each other; memories that are kept."""
    before = len(os.listdir("/proc/self/fd"))
    for side in (64, 96):
        assert world.shared_sums(square(side, world), 1, torch.complex64) is not None
    assert isinstance(world, Ranks)
    return len(os.listdir("/proc/self/fd")) - before, len(world._shared_sums_cache.kept)


def test_no_file_stays_open_and_of_another_object_nothing_is_kept(ranks) -> None:  # type: ignore[no-untyped-def]
    assert {kept for _, kept in ranks(2, kept_open)} == {1}
