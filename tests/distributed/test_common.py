"""Sums in memory that ranks of one machine share: the same bits as sums that are sent, and nothing is left behind."""

import os
from typing import Any

import numpy as np
import pytest
import torch

from ptymesh.distributed import common, shared_memory
from ptymesh.distributed.common import rectangles
from ptymesh.distributed.world import Ranks, World
from ptymesh.engines import DM, RPIE, Adam, Engine
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import make

pytestmark = pytest.mark.skipif(not shared_memory.possible(), reason="no shared memory here, or no x86 processor")

ENGINES: list[Engine] = [RPIE(epochs=2, batch=7), Adam(epochs=1, batch=7), DM(epochs=1)]


def test_rectangles_make_up_the_blocks_each_once() -> None:
    rng = np.random.default_rng(1)
    for share in (0.0, 0.3, 0.9, 1.0):
        hit = rng.random((9, 7)) < share
        seen = np.zeros((9 * 32, 7 * 32), dtype=int)
        for top, bottom, left, right in rectangles(*hit.nonzero()):
            seen[top:bottom, left:right] += 1
        assert np.array_equal(seen, np.kron(hit, np.ones((32, 32), dtype=int)))
    assert rectangles(*np.ones((9, 7)).nonzero()) == [(0, 288, 0, 224)], "what lies together is added together"


def finished(world: World, precision: torch.dtype) -> dict[str, np.ndarray]:
    toy = make(views=20, modes=2, dtype=precision)
    problem, state = toy.problem(world), RunState(toy.start())
    Loop(problem, state, [type(e)(**e.model_dump()) for e in ENGINES], seed=2).run()
    return {"object": state.estimate.object.numpy(), "probe": state.estimate.probe.numpy()}


def both(world: World, precision: torch.dtype) -> tuple[dict[str, Any], dict[str, Any], int, int, int]:
    """What a run ends with in shared memory, and by messages; memories that were made; bytes handed over by either."""
    assert isinstance(world, Ranks)
    before = world.bytes_reduced
    ours = finished(world, precision)
    shared, made = world.bytes_reduced - before, len([c for c in world._commons.kept.values() if c is not None])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ranks, "common", World.common)
        theirs = finished(world, precision)
    return ours, theirs, made, shared, world.bytes_reduced - before - shared


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("precision", [torch.complex64, torch.complex128])
def test_the_same_bits_as_by_messages(ranks, size: int, precision: torch.dtype) -> None:  # type: ignore[no-untyped-def]
    found = ranks(size, both, precision)
    for ours, theirs, made, shared, sent in found:
        assert made == (2 if precision == torch.complex64 else 1), "of one part, and of two"
        assert shared == sent, "as many bytes count as handed over"
        for name, array in theirs.items():
            assert np.array_equal(ours[name], array) and np.array_equal(found[0][0][name], array), name


def without_room(world: World) -> tuple[bool, int, float]:
    """Whether ranks of which one has no room for such memory go on without; files that are left open; what they sum."""
    assert isinstance(world, Ranks)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.MonkeyPatch.context() as patch:
        if world.rank == 1:
            patch.setattr(common.os, "posix_fallocate", lambda *_: (_ for _ in ()).throw(OSError("full")))
        none = world.common((1, 64, 64), 1, torch.complex64) is None
    total = float(world.sum(torch.ones(1))[0])
    return none, len(os.listdir("/proc/self/fd")) - before, total


def test_no_room_for_it_on_one_rank(ranks) -> None:  # type: ignore[no-untyped-def]
    assert ranks(2, without_room) == [(True, 0, 2.0)] * 2


def kept_open(world: World) -> tuple[int, int]:
    """Files that are open beyond those before, with memory of two shapes after each other; memories that are kept."""
    before = len(os.listdir("/proc/self/fd"))
    for side in (64, 96):
        assert world.common((1, side, side), 1, torch.complex64) is not None
    assert isinstance(world, Ranks)
    return len(os.listdir("/proc/self/fd")) - before, len(world._commons.kept)


def test_no_file_stays_open_and_of_another_object_nothing_is_kept(ranks) -> None:  # type: ignore[no-untyped-def]
    assert {kept for _, kept in ranks(2, kept_open)} == {1}
