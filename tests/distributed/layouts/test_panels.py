"""The object in panels: who owns what, what all see, what nobody keeps twice; the same bits are tests/conformance's."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from ptymesh.distributed import shared_memory
from ptymesh.distributed.layouts.panels import Panels, cut
from ptymesh.distributed.tiles import Rect
from ptymesh.distributed.world import Ranks, Solo, World
from ptymesh.engines import CG, LSQML, MPIE, RPIE, Adam, Engine
from ptymesh.estimate import BLOCK
from ptymesh.run.loop import Loop
from ptymesh.run.state import RunState
from toy import make, share

pytestmark = pytest.mark.skipif(not shared_memory.possible(), reason="no shared memory here, or no x86 processor")


@pytest.mark.parametrize("ranks_", [1, 2, 3, 5])
def test_panels_share_out_the_rows_that_views_reach(ranks_: int) -> None:
    anchors = np.array([[70, 3], [200, 9]])
    panels = cut((12 * BLOCK, 3 * BLOCK), anchors, (24, 24), ranks_)
    assert panels[0].top == 0 and panels[-1].bottom == 12 * BLOCK
    assert all(a.bottom == b.top for a, b in itertools.pairwise(panels))
    assert all(panel.shape[1] == 3 * BLOCK and panel.shape[0] % BLOCK == 0 for panel in panels)
    reached = [(panel & Rect(64, 0, 224, 96)).shape[0] // BLOCK for panel in panels]
    assert max(reached) - min(reached) <= 1 and sum(reached) == 5


def test_no_panel_is_empty() -> None:
    """Also where views reach fewer rows than there are ranks."""
    panels = cut((4 * BLOCK, 3 * BLOCK), np.array([[100, 3]]), (20, 24), 4)
    assert [panel.shape[0] for panel in panels] == [BLOCK] * 4
    assert not Panels.fit(Solo(), (4 * BLOCK, 96)), "a rank alone has all of it"


def fits(world: World) -> tuple[bool, bool]:
    return Panels.fit(world, (4 * BLOCK, 96)), Panels.fit(world, (BLOCK, 96))


def test_every_rank_needs_a_panel(ranks: Any) -> None:
    assert ranks(2, fits) == [(True, False)] * 2


def kept(world: World, name: str, layout: str) -> tuple[int, int, int]:
    """Bytes of what an engine remembers that has the object's shape, of the object, and of the whole one."""
    toy = make(views=20, blocks=6)
    problem = toy.problem(world, layout)
    state = RunState(share(toy.start(), problem))
    engines: dict[str, Engine] = {
        "adam": Adam(epochs=1, batch=7),
        "mpie": MPIE(epochs=1, batch=7),
        "lsqml": LSQML(epochs=1, batch=7, momentum={"memory": 1}),
        "cg": CG(epochs=2),
    }
    Loop(problem, state, [engines[name]], seed=2).run()
    shape = state.estimate.object.shape
    remembered = [t for t in state.engines[0].values() if t.shape[-2:] == shape[-2:]]
    size = sum(t.numel() * t.element_size() for t in remembered)
    obj = state.estimate.object
    assert isinstance(problem.layout, Panels) == (layout == "panels")
    return (
        size,
        obj.numel() * obj.element_size(),
        problem.layout.gather_whole(obj, state.estimate).numel() * obj.element_size(),
    )


@pytest.mark.parametrize("name", ["adam", "mpie", "lsqml", "cg"])
def test_what_engines_remember_of_the_object_is_there_once(ranks: Any, name: str) -> None:
    alone, obj, _ = kept(Solo(), name, "replicated")
    assert alone > 0
    for size, part, whole in ranks(3, kept, name, "panels"):
        assert size == alone // 3 and part == obj // 3 and whole == obj


def followed(world: World) -> list[bool]:
    """What all ranks see after each kind of change of a panel."""
    toy = make(views=20, blocks=4)
    problem = toy.problem(world, "panels")
    estimate, layout, found = share(toy.start(), problem), problem.layout, []
    assert isinstance(layout, Panels)

    def same() -> bool:
        whole = layout.fill_halo(estimate.object)
        return torch.equal(whole, layout.gather_whole(estimate.object, estimate)) and torch.equal(
            layout.last_filled(estimate.object), whole
        )

    found.append(same())
    estimate.object.mul_(1 + world.rank)  # torch counts this
    found.append(same())
    problem.begin_epoch(estimate)
    blocks = problem.loader.local_views.blocks(estimate, np.arange(3))
    ones = torch.full((1, len(blocks.rows), BLOCK, BLOCK), 2.0 + world.rank, dtype=estimate.object.dtype)
    from ptymesh.distributed.layouts.layout import BlockSparseField

    problem.fields.add(estimate.object, BlockSparseField(ones, blocks.rows, blocks.columns))  # not this
    found.append(same())
    estimate.object = estimate.object.clone() * 3  # another array
    found.append(same())
    return found


def test_all_ranks_see_what_has_changed(ranks: Any) -> None:
    assert ranks(2, followed) == [[True] * 4] * 2


def grown(world: World) -> tuple[np.ndarray, np.ndarray, list[tuple[int, ...]]]:
    """An object that has grown on all sides, and what an engine remembers of it."""
    toy = make(views=20, blocks=4)
    problem = toy.problem(world, "panels" if world.size > 1 else "replicated")
    estimate = share(toy.start(), problem)
    rows = torch.arange(estimate.corner[0], estimate.corner[0] + estimate.object.shape[1])
    estimate.object.copy_((rows[:, None] * 1000 + torch.arange(128)).expand(1, -1, -1))
    memory = estimate.object.clone()
    estimate.extent = (estimate.extent[0] + 3 * BLOCK, estimate.extent[1] + BLOCK)
    move = problem.layout.adapt_parts(estimate, (2 * BLOCK, BLOCK))
    assert move is not None
    estimate.object, memory = move.carry(estimate.object, 1.0), move.carry(memory, 0.0)
    estimate.corner = move.new.corner
    assert problem.layout.adapt_parts(estimate, (0, 0)) is None
    whole = problem.layout.gather_whole
    return whole(estimate.object, estimate).numpy(), whole(memory, estimate).numpy(), [tuple(estimate.object.shape)]


def test_panels_of_an_object_that_grows(ranks: Any) -> None:
    alone = grown(Solo())
    for obj, memory, shapes in ranks(2, grown):
        assert np.array_equal(obj, alone[0]) and np.array_equal(memory, alone[1])
        assert shapes[0][1] < 7 * BLOCK == alone[0].shape[1]


def without_room(world: World) -> np.ndarray:
    """Where there is no memory that all see, panels are sent."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ranks, "allocate_shared_array", World.allocate_shared_array)
        patch.setattr(Ranks, "shared_sums", World.shared_sums)
        return finished(world)


def finished(world: World) -> np.ndarray:
    toy = make(views=20, modes=2, blocks=4)
    problem = toy.problem(world, "panels" if world.size > 1 else "replicated")
    state = RunState(share(toy.start(), problem))
    Loop(problem, state, [LSQML(epochs=1, batch=7), Adam(epochs=1, batch=7)], seed=2).run()
    return problem.layout.gather_whole(state.estimate.object, state.estimate).numpy()


def test_without_room_for_what_all_see(ranks: Any) -> None:
    alone = finished(Solo())
    assert all(np.array_equal(one, alone) for one in ranks(2, without_room))


def by_quotients(world: World, subpixel: str, dtype: torch.dtype, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Return object and probe after rPIE and mPIE."""
    toy = make(views=23, modes=2, blocks=4, window=(32, 32), subpixel=subpixel, dtype=dtype, uneven=True)
    problem = toy.problem(world, "panels" if world.size > 1 else "replicated")
    state = RunState(share(toy.start(), problem))
    engines: list[Engine] = [RPIE(epochs=2, batch=batch), MPIE(epochs=1, batch=batch, momentum_every=3)]
    Loop(problem, state, engines, seed=2).run()
    layout, estimate = problem.layout, state.estimate
    return layout.gather_whole(estimate.object, estimate).numpy(), estimate.probe.numpy()


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize(("subpixel", "batch"), [("fourier", 7), ("none", 7), ("fourier", 2)])
def test_quotients_give_the_same_bits(ranks: Any, subpixel: str, dtype: torch.dtype, batch: int) -> None:
    """With a light of each view, with one for all, and where a rank has no view of a batch."""
    alone = by_quotients(Solo(), subpixel, dtype, batch)
    for size in (2, 3):
        for obj, probe in ranks(size, by_quotients, subpixel, dtype, batch):
            assert np.array_equal(obj, alone[0]) and np.array_equal(probe, alone[1])


def retried(world: World) -> tuple[np.ndarray, bool]:
    """Return the object where memory runs out on the last rank before its step; and whether it did."""
    toy = make(views=23, modes=2, blocks=4, window=(32, 32))
    problem = toy.problem(world, "panels" if world.size > 1 else "replicated")
    state = RunState(share(toy.start(), problem))
    fields, failed = problem.fields, []
    add_weighted = fields.add_weighted

    def scarce(target: Any, *given: Any, **options: Any) -> None:
        if world.rank == world.size - 1 and target.shape[-1] == 128 and not failed:
            failed.append(True)
            raise MemoryError("no room")
        add_weighted(target, *given, **options)

    fields.add_weighted = scarce  # type: ignore[method-assign]
    problem.loader.chunk_sizes.limit = 4
    Loop(problem, state, [RPIE(epochs=1, batch=11)], seed=2).run()
    return problem.layout.gather_whole(state.estimate.object, state.estimate).numpy(), bool(failed)


def test_a_step_after_memory_has_run_out(ranks: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """What others may be reading is not written again."""
    alone, _ = retried(Solo())
    found = ranks(2, retried)
    assert [failed for _, failed in found] == [False, True]
    assert all(np.array_equal(obj, alone) for obj, _ in found)
