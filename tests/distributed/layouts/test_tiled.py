"""Parts of an object on several ranks: sharing and its adjoint, sums, moves."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ptymesh.distributed.layouts.common_blocks import relayed_is_less
from ptymesh.distributed.layouts.tiled import Tiled
from ptymesh.distributed.tiles import bisect, parts_of, tiles_of
from ptymesh.distributed.world import World
from ptymesh.physics.blocks import blocked
from toy import make, share


def field(part, seed: int, extent: tuple[int, int]) -> torch.Tensor:  # type: ignore[no-untyped-def]
    """Random numbers that follow from the pixel: the same on all ranks."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(2, *extent, generator=rng, dtype=torch.complex128)[(slice(None), *part.inside((0, 0)))].clone()


def pairs(world: World) -> dict:
    toy = make(views=60, uneven=True)
    layout = Tiled(world, toy.measurement.positions, toy.measurement.window)
    problem = toy.problem(world, "tiled")
    e = share(toy.truth, problem)
    layout = problem.layout
    part, tile = layout.parts[world.rank], layout.tiles[world.rank]
    mine = (slice(None), *tile.inside(part.corner))
    # x lives on tiles, y on parts: <E x, y> = <x, E^H y>
    x, y = field(part, 1, e.extent), field(part, 2 + world.rank, e.extent)
    tiles_alone = torch.zeros_like(x)
    tiles_alone[mine] = x[mine]
    filled, added = layout.fill(tiles_alone), layout.add(y)
    left = world.sum((filled.conj() * y).sum())[0]
    right = world.sum((tiles_alone.conj() * added).sum())[0]
    return {
        "left": complex(left),
        "right": complex(right),
        "filled": bool(torch.equal(filled, x)),
        "sum is both": bool(torch.equal(layout.sum_field(y), layout.fill(layout.add(y)))),
        "whole": layout.gather_whole(x, e).numpy(),
        "around": layout.with_margin(x, e, 20)[0].numpy(),
        "around at": layout.with_margin(x, e, 20)[1],
        "dot": float(layout.dot(x, x, e)),
        "dot of reals": float(layout.dot(torch.view_as_real(x), torch.view_as_real(x), e)),
        "max": float(problem.fields.max(x.real)),
        "mean": float(problem.fields.mean(x.real, torch.ones(part.shape, dtype=torch.bool), e)),
        "messages": world.messages,
        "extent": e.extent,
    }


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_sharing_and_its_adjoint(ranks, size: int) -> None:  # type: ignore[no-untyped-def]
    got = ranks(size, pairs)
    whole = torch.randn(
        2, *got[0]["extent"], generator=torch.Generator().manual_seed(1), dtype=torch.complex128
    ).numpy()
    for one in got:
        assert one["left"] == pytest.approx(one["right"], rel=1e-12) and one["filled"] and one["sum is both"]
        assert np.array_equal(one["whole"], whole)
        assert np.array_equal(one["around"], whole[(slice(None), *one["around at"].inside((0, 0)))])
        assert one["dot"] == pytest.approx(np.vdot(whole, whole).real) == one["dot of reals"]
        assert one["max"] == whole.real.max() and one["mean"] == pytest.approx(whole.real.mean())
        assert (one["messages"] > 0) == (size > 1)


def batch_sums(world: World, layout: str, relayed: bool = False) -> dict:
    from ptymesh.problem import Batch

    toy = make(views=60, modes=2)
    problem = toy.problem(world, layout)
    e = share(toy.start(), problem)
    problem.begin_epoch(e)
    if layout == "sent":
        problem.layout.relayed = relayed
    world.bytes_sent = 0
    s = problem.gradients(e, Batch(np.arange(0, 60, 4)))
    sent = world.bytes_sent
    out = torch.zeros_like(e.object)
    problem.fields.add(out, s.object)
    weights = torch.zeros_like(e.object.real)
    problem.fields.add(weights, s.object_weight)
    return {
        "object": problem.layout.gather_whole(out, e).numpy(),
        "weight": problem.layout.gather_whole(weights, e).numpy(),
        "probe": s.probe.numpy(),
        "max": float(s.object_weight.max().max()),
        "ghosts": bool(torch.equal(out, problem.layout.sum_field(out * problem.layout.owned(e)))),
        "bytes": sent,
    }


@pytest.mark.parametrize("size", [2, 3, 4])
def test_sums_that_are_relayed_have_the_same_bits(ranks, size: int) -> None:  # type: ignore[no-untyped-def]
    directly, relayed = ranks(size, batch_sums, "sent", False), ranks(size, batch_sums, "sent", True)
    for one, other in zip(directly, relayed, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in ("object", "weight", "probe"))
        assert one["bytes"] > 0 and other["bytes"] > 0


def test_tiles_narrower_than_windows_relay_their_sums() -> None:
    centres = np.random.default_rng(0).random((4000, 2)) * 300 + 64
    owner, cells = bisect(centres, 64)
    tiles = tiles_of(cells, (0.0, 0.0), (448, 448))
    parts = parts_of(tiles, owner, np.floor(centres - 64).astype(int), (128, 128), (448, 448))
    assert relayed_is_less(tiles, parts)
    few = tiles_of(bisect(centres, 4)[1], (0.0, 0.0), (448, 448))
    assert not relayed_is_less(few, [tile.grown(16).blocks() for tile in few])


@pytest.mark.parametrize("layout", ["tiled", "sent"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_sums_over_a_batch(ranks, size: int, layout: str) -> None:  # type: ignore[no-untyped-def]
    """All parts that hold a pixel have its whole sum, to the bit; borders alone have travelled, or nothing where memory
    is shared."""
    expected = ranks(1, batch_sums, "replicated")[0]
    got = ranks(size, batch_sums, layout)
    for one in got:
        for name in ("object", "weight", "probe"):
            assert np.allclose(one[name], expected[name], rtol=1e-12, atol=1e-12 * np.abs(expected[name]).max())
        assert one["max"] == pytest.approx(expected["max"], rel=1e-12)
        assert one["ghosts"] and (one["bytes"] > 0) == (layout == "sent")
        assert np.array_equal(one["object"], got[0]["object"])


def moved(world: World, by: float) -> dict:
    """Views wander far, the object grows, and everything follows."""
    toy = make(views=50)
    problem = toy.problem(world, "tiled")
    e = share(toy.start(), problem)
    layout, rows = problem.layout, torch.as_tensor(problem.layout.own)
    counts, before = _patterns(problem), layout.owner.copy()
    ids = field(layout.parts[world.rank], 9, e.extent)[:1]
    rng = np.random.default_rng(0)
    e.positions += torch.as_tensor(by * rng.standard_normal(e.positions.shape))
    from ptymesh.engines import RPIE, positions

    engine = RPIE()
    engine.state["velocity"] = ids.clone()
    engine.per_view["rows"] = rows.clone()
    whole = layout.gather_whole(ids, e).numpy()
    positions.reanchor(engine, problem, e)
    carried = layout.gather_whole(engine.state["velocity"], e).numpy()
    everything = world.sum(_scattered(_patterns(problem), layout.own, 50))[0].numpy()
    original = world.sum(_scattered(counts, np.flatnonzero(before == world.rank), 50))[0].numpy()
    part = layout.parts[world.rank]
    anchors = e.anchors[torch.as_tensor(layout.own)].numpy()
    return {
        "moved": int((layout.owner != before).sum()),
        "same counts": np.array_equal(everything, original),
        "rows follow": engine.per_view["rows"].tolist() == layout.own.tolist(),
        "whole": whole,
        "carried": carried,
        "grown": (e.origin, e.extent),
        "holds": all(
            part.top + 2 <= y
            and y + e.window[0] + 2 <= part.bottom
            and part.left + 2 <= x
            and x + e.window[1] + 2 <= part.right
            for y, x in anchors
        ),
        "owner": layout.owner.tolist(),
        "shape": tuple(e.object.shape[-2:]) == part.shape,
    }


def _patterns(problem) -> torch.Tensor:  # type: ignore[no-untyped-def]
    return problem.loader.patterns.rows(torch.arange(len(problem.loader.patterns))).clone()


def _scattered(rows: torch.Tensor, own: np.ndarray, n: int) -> torch.Tensor:
    out = torch.zeros(n, *rows.shape[1:], dtype=rows.dtype)
    out[torch.as_tensor(own)] = rows
    return out


@pytest.mark.parametrize(("size", "by"), [(2, 0.0), (2, 6.0), (3, 20.0), (4, 20.0)])
def test_views_and_pixels_go_where_they_belong(ranks, size: int, by: float) -> None:  # type: ignore[no-untyped-def]
    got = ranks(size, moved, by)
    for one in got:
        assert one["same counts"] and one["rows follow"] and one["holds"] and one["shape"]
        assert (one["moved"] > 0) == (by > 0)
        assert one["owner"] == got[0]["owner"] and one["grown"] == got[0]["grown"]
        old = one["whole"].shape[-2:]
        top, left = (round(n) for n in one["grown"][0])  # the origin was (0, 0)
        assert np.array_equal(one["carried"][:, top : top + old[0], left : left + old[1]], one["whole"])
        assert one["carried"].shape[-2:] == tuple(one["grown"][1])


def test_a_rank_without_views_takes_part(ranks) -> None:  # type: ignore[no-untyped-def]
    expected = ranks(1, few, "replicated")[0]
    for one in ranks(4, few, "tiled"):
        assert np.allclose(one, expected, rtol=1e-12, atol=1e-12)


def few(world: World, layout: str) -> np.ndarray:
    from ptymesh.engines import RPIE
    from ptymesh.run.loop import Loop
    from ptymesh.run.state import RunState

    toy = make(views=3)
    problem = toy.problem(world, layout)
    state = RunState(share(toy.start(), problem))
    Loop(problem, state, [RPIE(epochs=3, batch=2, positions=True)], seed=1).run()
    e = state.estimate
    return problem.layout.gather_whole(e.object, e).numpy()


def test_blocks_are_views_of_the_part() -> None:
    toy = make(views=4)
    problem = toy.problem(layout="tiled")
    e = share(replace(toy.truth), problem)
    blocked(e.object)[:, 0, 0] = 3
    assert bool((e.object[:, :32, :32] == 3).all())
