"""Where windows stand is looked up while nothing moves, and worked out again once something has."""

from __future__ import annotations

import pytest
import torch

from ptymesh.distributed.layouts.layout import Replicated
from ptymesh.distributed.world import Solo
from ptymesh.estimate import Estimate
from ptymesh.problem.anchor_cache import AnchorCache


def estimate(corner: tuple[int, int] = (0, 0)) -> Estimate:
    positions = torch.rand(7, 2, dtype=torch.float64) * 20 + 40
    return Estimate(
        object=torch.ones(1, 96, 96, dtype=torch.complex64),
        probe=torch.ones(1, 16, 16, dtype=torch.complex64),
        positions=positions,
        anchors=positions.round().long(),
        nominal=positions.clone(),
        weights=torch.ones(7, 1),
        background=torch.zeros(16, 16),
        corner=corner,
    )


def layout(e: Estimate) -> Replicated:
    return Replicated(Solo(), e.nominal.numpy())


def check(cached: AnchorCache, e: Estimate) -> None:
    views = torch.tensor([5, 0, 3])
    anchors, fractions = cached.places(e, views)
    assert torch.equal(anchors, e.anchors[views] - torch.tensor(e.corner)) and fractions.dtype == torch.float32
    torch.testing.assert_close(fractions, (e.positions - e.anchors)[views].float())
    assert cached.integer_positions(e) == bool((e.positions == e.anchors).all())


@pytest.mark.parametrize("corner", [(0, 0), (32, 0)])
def test_what_has_moved_is_worked_out_again(corner: tuple[int, int]) -> None:
    e = estimate(corner)
    cached = AnchorCache(e, torch.float32, layout(e))
    assert cached.holds(e)
    check(cached, e)
    e.positions[3] += 0.25
    assert cached.known(e) and not cached.holds(e)
    check(cached, e)
    e.positions.copy_(e.anchors)
    check(cached, e)


def test_another_corner_and_other_tensors_are_seen() -> None:
    e = estimate()
    cached = AnchorCache(e, torch.float32, layout(e))
    e.corner = (32, 32)
    assert not cached.holds(e)
    check(cached, e)
    other = estimate()
    assert not cached.known(other)
    check(cached, other)
