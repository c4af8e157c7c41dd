"""What ranks do together, on a pool of gloo ranks."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from ptymesh.distributed.devices import device_for
from ptymesh.distributed.layouts.boxes import Blocks, Boxes
from ptymesh.distributed.layouts.layout import Replicated
from ptymesh.distributed.layouts.owners import along_curve
from ptymesh.distributed.world import Solo, World
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.physics import window_shifts
from ptymesh.physics.blocks import blocked
from ptymesh.physics.model import Subpixel, reach_of
from toy import make


def reductions(world: World) -> dict:
    r = world.rank + 1
    complex_, real, double, integer = world.sum(
        torch.full((2, 3), r * (1 + 2j), dtype=torch.complex64),
        torch.full((4,), float(r)),
        torch.tensor(float(r), dtype=torch.float64),
        torch.tensor([r]),
    )
    mine = torch.tensor([float(r), -float(r)])
    return {
        "complex": complex_.numpy(),
        "real": real.numpy(),
        "double": float(double),
        "integer": int(integer),
        "max": world.max(mine)[0].tolist(),
        "mine": mine.tolist(),
        "first": world.broadcast(torch.tensor([1j * r, r]))[0].tolist(),
        "dot": float(world.dot(torch.tensor([1j * r]), torch.tensor([1j * r]))),
        "any": world.agree(world.rank == 1),
        "none": world.agree(False),
        "collectives": world.collectives,
    }


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_reductions(ranks, size: int) -> None:  # type: ignore[no-untyped-def]
    total = size * (size + 1) / 2
    for rank, got in enumerate(ranks(size, reductions)):
        assert np.allclose(got["complex"], total * (1 + 2j)) and got["complex"].shape == (2, 3)
        assert np.allclose(got["real"], total) and got["double"] == total and got["integer"] == total
        assert got["max"] == [size, -1] and got["mine"] == [rank + 1, -rank - 1]
        assert got["first"] == [1j, 1]
        assert got["dot"] == sum((r + 1) ** 2 for r in range(size))
        assert got["any"] == (size > 1) and not got["none"]


def one_bucket(world: World) -> int:
    world.sum(torch.ones(3), torch.ones(2, dtype=torch.complex64), torch.ones((), dtype=torch.float32))
    return world.collectives


def test_a_sum_of_one_dtype_is_one_message(ranks) -> None:  # type: ignore[no-untyped-def]
    assert ranks(2, one_bucket) == [1, 1]


def failing(world: World) -> str:
    try:
        world.raise_if_any_failed(BadInput("rank 1's own") if world.rank == 1 else None, "reading")
    except PtymeshError as error:
        return str(error)
    return "well"


def test_a_failure_of_one_is_everybody_s(ranks) -> None:  # type: ignore[no-untyped-def]
    first, second, third = ranks(3, failing)
    assert second == "rank 1's own" and first == third == "Rank 1 failed while reading: rank 1's own"


def test_devices() -> None:
    assert device_for("cpu", 3) == torch.device("cpu")
    with pytest.raises(BadInput, match="abacus"):
        device_for("abacus", 0)
    if not torch.cuda.is_available():
        with pytest.raises(BadInput, match="--device cpu"):
            device_for("cuda:1", 0)


def test_curve_visits_neighbours() -> None:
    grid = np.stack(np.meshgrid(np.arange(16.0), np.arange(16.0), indexing="ij"), -1).reshape(-1, 2)
    steps = np.abs(np.diff(grid[along_curve(grid, order=4)], axis=0)).sum(1)
    assert (steps == 1).all()


def test_every_view_has_one_owner_and_of_compact_batches_every_region_all_of_them() -> None:
    rng = np.random.default_rng(0)
    positions = rng.random((1000, 2)) ** 2 * 500
    layouts = [Replicated(fake(rank, 3), positions, compact=True) for rank in range(3)]
    owned = np.concatenate([layout.own for layout in layouts])
    assert np.array_equal(np.sort(owned), np.arange(1000))
    corner = (positions < 100).all(1)
    shares = [np.isin(layout.own, np.flatnonzero(corner)).sum() / corner.sum() for layout in layouts]
    assert max(shares) - min(shares) < 0.05
    assert np.array_equal(layouts[1].local(layouts[1].own), np.arange(len(layouts[1].own)))


def fake(rank: int, size: int) -> World:
    world = Solo()
    world.rank, world.size = rank, size
    return world


def test_touched_blocks_cover_windows_and_nothing_far() -> None:
    anchors = torch.tensor([[1, 1], [40, 90], [-90, 4], [500, 4]])
    covered = Boxes.of(anchors, (24, 28), (1, 128, 160), reach=2).cover(np.arange(4))
    found = {tuple(place) for place in np.argwhere(covered).tolist()}
    assert found == {(0, 0), (1, 2), (1, 3), (2, 2), (2, 3)}


def test_several_batches_cover_what_each_does(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    anchors = torch.from_numpy(rng.integers(-60, 190, (40, 2)))  # some windows are outside, altogether or in part
    boxes = Boxes.of(anchors, (24, 70), (1, 128, 160), reach=2)
    batches = [*np.split(rng.permutation(40), [1, 8, 20, 20]), (boxes.edges[:, 0] == boxes.edges[:, 2]).nonzero()[0]]
    wanted = [boxes.cover(views) for views in batches]
    assert np.array_equal(boxes.covers(batches), wanted) and not wanted[-1].any() and len(batches[-1])
    layout = Replicated(Solo(), anchors.double().numpy())
    for covered in (1, 41, 1 << 20):  # one batch at a time, two, all
        monkeypatch.setattr("ptymesh.distributed.layouts.boxes.COVERED", covered)
        found = layout.touched_blocks_of(boxes, batches)
        each = [layout.touched_blocks(boxes, views) for views in batches]
        for name in ("rows", "columns"):
            assert [getattr(b, name).tolist() for b in found] == [getattr(b, name).tolist() for b in each]


@pytest.mark.parametrize("subpixel", ["none", "fourier", "bilinear"])
def test_touched_blocks_are_those_that_sums_reach_and_no_others(subpixel: Subpixel) -> None:
    window, obj = (24, 28), torch.zeros(1, 128, 160)
    for y, x in ((32, 32), (40, 36), (41, 37), (63, 60), (8, 4)):
        anchors, reached = torch.tensor([[y, x]]), torch.zeros(1, 128, 160)
        if subpixel == "bilinear":
            for moved in ((-2.0, -2.0), (2.0, 2.0)):
                spread = window_shifts.spread_bilinear(torch.ones(1, 1, *window), anchors, torch.tensor([moved]))
                window_shifts.add_back(reached, *spread)
        else:
            window_shifts.add_back(reached, torch.ones(1, 1, *window), anchors)
        blocks = blocked(reached).amax((0, 3, 4)) > 0
        covered = Boxes.of(anchors, window, obj.shape, reach_of(subpixel)).cover(np.arange(1))
        assert np.array_equal(covered, blocks.numpy())


def test_sums_reach_touched_blocks_alone() -> None:
    toy = make(views=4)
    layout = toy.problem().layout
    field = torch.ones(1, 96, 96)
    (touched,) = layout.reduce([field], Blocks(torch.tensor([0, 2]), torch.tensor([1, 2])))
    assert touched.values.shape == (1, 2, 32, 32)
    blocked(field)[:, touched.rows, touched.columns] = 5
    assert field[0, 0:32, 32:64].eq(5).all() and field[0, 64:, 64:].eq(5).all() and field.eq(5).sum() == 2 * 32 * 32


def test_touched_arithmetic() -> None:
    layout = Replicated(Solo(), np.zeros((1, 2)))
    blocks = Blocks(torch.tensor([0]), torch.tensor([0]))
    a, b = layout.reduce([torch.full((1, 32, 32), 6.0), torch.full((1, 32, 32), 2.0)], blocks)
    assert (2 * (a / b + 1) * b).values.eq(16).all() and (a * 0.5 + b).max().item() == 5


def swapped(world: World, device: str) -> tuple[list[float], bool]:
    """What two ranks send each other, and whether gloo was given the tensors themselves."""
    mine, theirs = torch.full((3,), float(world.rank)), torch.zeros(3)
    given, start = [], dist.batch_isend_irecv

    def watched(operations: list[dist.P2POp]) -> list[dist.Work]:
        given.extend(one.tensor.untyped_storage().data_ptr() for one in operations)
        return start(operations)

    before, world.device = world.device, torch.device(device)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world, "_shared", None)
            patch.setattr(dist, "batch_isend_irecv", watched)
            world.start_messages({1 - world.rank: mine}, {1 - world.rank: theirs})()
    finally:
        world.device = before
    own = {mine.untyped_storage().data_ptr(), theirs.untyped_storage().data_ptr()}
    return theirs.tolist(), bool(own & set(given))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_gloo_sends_from_the_host(ranks: Any, device: str) -> None:
    """Of a device it cannot send single messages; that is only pretended to be one here."""
    assert ranks(2, swapped, device) == [([1.0] * 3, device == "cpu"), ([0.0] * 3, device == "cpu")]
