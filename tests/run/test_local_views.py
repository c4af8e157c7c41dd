"""What batches need of a rank's own views is worked out for several at once, and anew for one once something moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from ptymesh.distributed.world import Solo, World
from ptymesh.estimate import Estimate
from ptymesh.problem import Problem, local_views
from ptymesh.problem.local_views import LocalViewIndex
from toy import make, share


def dealt(world: World, layout: str) -> list[bool]:
    """Whether batches worked out three at a time are what each is by itself."""
    toy = make(views=60, blocks=8, varying=True)
    problem = toy.problem(world, layout)
    e = share(toy.start(position_error=0.4), problem)
    problem.begin_epoch(e)
    batches = np.array_split(np.random.default_rng(0).permutation(60), 7)
    index = problem.loader.local_views
    expected = [(index.of(e, b), index.blocks(e, b), index.border(e, b)) for b in batches]
    with patch.object(local_views, "TOGETHER", 27):  # on every rank, hence not the caller's monkeypatch
        return compared(problem, e, batches, expected)


def compared(problem: Problem, e: Estimate, batches: list[Any], expected: list[Any]) -> list[bool]:
    """Whether these are what batches are found to be after a deal."""
    index, same = problem.loader.local_views, []
    index.announce_batches(batches)
    for batch, (alone, blocks, border) in zip(batches, expected, strict=True):
        found, covered = index.of(e, batch), index.blocks(e, batch)
        same.append(np.array_equal(found.views, alone.views) and found.border == border == index.border(e, batch))
        same.extend(torch.equal(*pair) for pair in zip(found.values, alone.values, strict=True))
        same.append(torch.equal(covered.rows, blocks.rows) and torch.equal(covered.columns, blocks.columns))
        for name in ("sums_sent", "sums_received", "totals_sent", "totals_received"):
            travelling, expected_ones = getattr(covered, name), getattr(blocks, name)
            same.append(travelling.keys() == expected_ones.keys())
            same.extend(torch.equal(places, expected_ones[rank]) for rank, places in travelling.items())
    return same


@pytest.mark.parametrize("layout", ["replicated", "tiled"])
def test_several_batches_at_once_are_what_each_is_by_itself(ranks: Any, layout: str) -> None:
    assert all(dealt(Solo(), layout))
    assert all(all(same) for same in ranks(3, dealt, layout))


def worked_out(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches are worked out together, each time."""
    counts: list[int] = []
    found = LocalViewIndex._prepare
    monkeypatch.setattr(
        LocalViewIndex, "_prepare", lambda self, e, batches: counts.append(len(batches)) or found(self, e, batches)
    )
    return counts


def test_so_many_views_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_views, "TOGETHER", 27)
    counts, toy = worked_out(monkeypatch), make(views=60, blocks=5)
    problem, e = toy.problem(), toy.start()
    problem.begin_epoch(e)
    views = np.arange(60)
    batches = [views[:9], views[9:18], views[18:27], views[27:58], views[58:]]
    problem.loader.local_views.announce_batches(batches)
    for batch in batches:
        assert np.array_equal(problem.loader.local_views.of(e, batch).views, batch)
    assert counts == [3, 1, 1], "no more than 27 views together, but for a batch that has more"


@pytest.mark.parametrize(
    "move",
    [
        lambda e: e.positions.__setitem__(3, e.positions[3] + 0.25),
        lambda e: e.weights.mul_(1.5),
        lambda e: setattr(e, "weights", e.weights * 1.5),
    ],
    ids=["a position", "weights", "other weights"],
)
def test_what_has_moved_is_worked_out_again(move: Callable[[Estimate], Any]) -> None:
    toy = make(views=60, blocks=5)
    problem, e = toy.problem(), toy.start()
    problem.begin_epoch(e)
    batches = np.array_split(np.arange(60), 6)
    problem.loader.local_views.announce_batches(batches)
    problem.loader.local_views.of(e, batches[0])
    move(e)
    views, _, anchors, fractions, weights = problem.loader.local_views.of(e, batches[0]).values
    assert torch.equal(weights, e.weights[views])
    torch.testing.assert_close(anchors + fractions, e.positions[views])
