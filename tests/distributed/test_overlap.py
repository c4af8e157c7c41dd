"""Border views first: their sums travel while the interior is swept, and nothing that has been sent changes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ptymesh.distributed.layouts.tiled import Tiled
from ptymesh.distributed.world import Solo, World
from ptymesh.engines import LSQML, RPIE
from ptymesh.errors import PtymeshError
from ptymesh.estimate import BLOCK
from ptymesh.problem import Batch, Problem
from ptymesh.run import memory
from toy import make, relative, share


@pytest.mark.parametrize("ranks", [2, 3, 9])
@pytest.mark.parametrize("seed", range(4))
def test_interior_views_touch_no_shared_block(ranks: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    window = (int(rng.integers(16, 60)), int(rng.integers(16, 60)))
    extent = (24 * BLOCK, 20 * BLOCK)
    positions = 4 + rng.random((300, 2)) ** rng.choice([1, 2]) * (np.array(extent) - np.array(window) - 8)
    anchors = torch.as_tensor(np.floor(positions + 0.5)).long()
    batch = rng.permutation(300)[:100]
    e, interior = make(views=2).truth, 0
    for rank in range(ranks):
        world = Solo()
        world.rank, world.size = rank, ranks
        layout = Tiled(world, positions, window)
        part = layout.place(extent, (0.0, 0.0), anchors.numpy())
        obj = torch.empty(1, *part.shape, dtype=torch.complex64)
        mine = replace(e, object=obj, corner=part.corner, extent=extent, probe=torch.empty(1, *window))
        boxes = layout.window_boxes(mine, anchors, reach=0)
        border, blocks = layout.border(boxes), layout.touched_blocks(boxes, batch)
        assert border is not None
        travels = torch.zeros([n // BLOCK for n in part.shape], dtype=torch.bool)
        for places in blocks.sums_sent.values():
            travels[blocks.rows[places], blocks.columns[places]] = True
        held = [layout.parts[r] for r in range(ranks) if r != rank]
        for view in batch[layout.owner[batch] == rank]:
            touched = torch.from_numpy(boxes.cover(np.array([view])))
            corners = [(part.top + BLOCK * y, part.left + BLOCK * x) for y, x in touched.nonzero().tolist()]
            shared = any(r.top <= y < r.bottom and r.left <= x < r.right for r in held for y, x in corners)
            assert border[view] == shared
            if not shared:
                interior += 1
                assert not (touched & travels).any()
        assert border[layout.owner != rank].all()
    assert interior > 0


class Told:
    """What a problem does, in order: chunks of border and of interior views, messages posted and awaited."""

    def __init__(self, problem: Problem) -> None:
        self.events: list[str] = []
        self.post, self.chunks = problem.world.start_messages, problem.loader.chunks
        problem.world.start_messages, problem.loader.chunks = self._post, self._chunks  # type: ignore[method-assign]

    def _post(self, sends: Any, receives: Any) -> Any:
        wait = self.post(sends, receives)
        self.events.append("post")
        return lambda: (self.events.append("wait"), wait())

    def _chunks(self, *arguments: Any, **options: Any) -> Any:
        for chunk in self.chunks(*arguments, **options):
            self.events.append("border" if chunk.border else "interior")
            yield chunk


def gradients(world: World, layout: str) -> dict[str, Any]:
    toy = make(views=60, modes=2, blocks=8)
    problem = toy.problem(world, layout)
    e = share(toy.start(), problem)
    problem.begin_epoch(e)
    problem.loader.chunk_sizes.limit = 4
    told = Told(problem)
    s = problem.gradients(e, Batch(np.arange(0, 60, 2)))
    out = torch.zeros_like(e.object)
    problem.fields.add(out, s.object)
    world.__dict__.pop("start_messages")
    return {"object": problem.layout.gather_whole(out, e).numpy(), "probe": s.probe.numpy(), "events": told.events}


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_border_travels_while_the_interior_is_swept(ranks: Any, size: int) -> None:
    expected = gradients(Solo(), "replicated")
    assert set(expected["events"]) == {"border"}, "a rank alone keeps the plain order"
    for one in ranks(size, gradients, "sent"):
        events = one["events"][: one["events"].index("wait")]
        at = events.index("post")
        assert set(events[:at]) <= {"border"} and set(events[at + 1 :]) == {"interior"}
        for name in ("object", "probe"):
            assert relative(one[name], expected[name]) == 0


def test_views_in_the_order_of_the_batch(ranks: Any) -> None:
    for size in (1, 3):
        for found, expected in ranks(size, rows):
            assert np.array_equal(found, expected)


def rows(world: World) -> tuple[np.ndarray, np.ndarray]:
    toy = make(views=60, blocks=8)
    problem = toy.problem(world, "sent")
    e = share(toy.start(), problem)
    problem.begin_epoch(e)
    batch = Batch(np.random.default_rng(0).permutation(60)[:40])
    parts = [chunk.views[:, None].double() for chunk in problem.loader.chunks(e, batch.views)]
    assert (
        torch.cat(parts)[:, 0].tolist() == problem.loader.local_views.in_sweep_order(batch.views).tolist()
        if parts
        else True
    )
    return problem.loader.of_batch(batch, parts, 1)[:, 0].numpy(), batch.views


def retried(world: World, name: str, first: bool, fails: bool) -> dict[str, Any]:
    """Two steps; in the second, memory runs out on the last rank in the first interior chunk."""
    toy = make(views=60, window=(32, 32), blocks=8)
    problem = toy.problem(world, "sent")
    problem.loader.chunk_sizes.limit = 4
    e = share(toy.start(), problem)
    problem.begin_epoch(e)
    engine, batch = {"rpie": RPIE(), "lsqml": LSQML()}[name], Batch(np.arange(60))
    engine.before_epoch(problem, e)
    memory.step(engine, problem, e, batch, first=True)
    chunks, left = problem.loader.chunks, [fails and world.rank == world.size - 1]

    def scarce(*arguments: Any, **options: Any) -> Any:
        for chunk in chunks(*arguments, **options):
            if left[0] and not chunk.border:
                left[0] = False
                raise MemoryError("all gone")
            yield chunk

    problem.loader.chunks = scarce  # type: ignore[method-assign]
    memory.step(engine, problem, e, batch, first=first)
    world.barrier()
    return {
        "object": problem.layout.gather_whole(e.object, e).numpy(),
        "probe": e.probe.numpy(),
        "sent": (world.messages, world.bytes_sent, world.collectives),
        "limit": problem.loader.chunk_sizes.limit,
    }


@pytest.mark.sample(2)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("name", ["rpie", "lsqml"])
def test_memory_runs_out_while_the_border_travels(ranks: Any, name: str, first: bool) -> None:
    """The step is taken again with smaller chunks; what was sent is not sent again, and what came is not lost."""
    for one, other in zip(ranks(3, retried, name, first, True), ranks(3, retried, name, first, False), strict=True):
        for what in ("object", "probe"):
            assert relative(one[what], other[what]) == 0
        assert one["sent"] == other["sent"] and other["limit"] == 4
    assert one["limit"] == 2


def test_border_views_cannot_be_added_after_their_sums_have_gone(ranks: Any) -> None:
    assert all(ranks(2, twice))


def twice(world: World) -> bool:
    toy = make(views=60, blocks=8)
    problem = toy.problem(world, "sent")
    e = share(toy.start(), problem)
    problem.begin_epoch(e)
    batch = Batch(np.arange(60))
    sums = problem.accumulator(e, batch)
    seen = []
    for chunk in problem.loader.chunks(e, batch.views):
        scene = problem.evaluator.forward(e, chunk)
        sums.add(chunk, scene, scene.exit)
        seen.append((chunk, scene))
    with pytest.raises(PtymeshError, match="have been sent already"):
        sums.add(*seen[0], seen[0][1].exit)
    sums.total()
    return True
