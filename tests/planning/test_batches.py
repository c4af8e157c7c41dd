"""Batches depend on seed, epoch, nominal positions and size alone; they are even in size and in space."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptymesh.planning.batches import draw, hold_out


def scan(views: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((views, 2)) * 300


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 200), st.integers(1, 250), st.integers(0, 5))
def test_every_view_once_in_batches_of_nearly_equal_size(views: int, size: int, epoch: int) -> None:
    batches = draw(scan(views), size, seed=1, epoch=epoch)
    assert np.array_equal(np.sort(np.concatenate(batches)), np.arange(views))
    sizes = [len(batch) for batch in batches]
    assert max(sizes) <= size and max(sizes) - min(sizes) <= 1


def test_the_star_s_batches() -> None:
    assert sorted(len(batch) for batch in draw(scan(516), 64, 0, 0)) == [57] * 6 + [58] * 3


def test_seed_and_epoch_matter_and_nothing_else() -> None:
    def members(seed: int, epoch: int) -> list[list[int]]:
        return [batch.tolist() for batch in draw(scan(100), 10, seed, epoch)]

    np.random.seed(1)
    first = members(0, 0)
    np.random.seed(2)
    assert members(0, 0) == first != members(0, 1) != members(1, 0)


@pytest.mark.parametrize("size", [16, 64])
def test_each_batch_covers_the_scan(size: int) -> None:
    """Stratified: the share of each quadrant in a batch stays close to its share of the scan."""
    positions = scan(1024)
    quadrant = (positions[:, 0] > 150).astype(int) * 2 + (positions[:, 1] > 150)
    share = np.bincount(quadrant, minlength=4) / 1024
    for batch in draw(positions, size, 0, 0):
        assert np.abs(np.bincount(quadrant[batch], minlength=4) / len(batch) - share).max() < 2.5 / size


def neighbourhood(positions: np.ndarray, batches: list[np.ndarray]) -> float:
    """Mean distance of a batch's views from their centre."""
    return float(np.mean([np.linalg.norm(positions[b] - positions[b].mean(0), axis=1).mean() for b in batches]))


def test_orders() -> None:
    positions = scan(512)
    random, uniform, compact = (
        [draw(positions, 32, 0, epoch, order) for epoch in (0, 1)] for order in ("random", "uniform", "compact")
    )

    def members(batches: list[np.ndarray]) -> set[tuple[int, ...]]:
        return {tuple(b) for b in batches}

    assert members(random[0]) != members(random[1])
    assert members(uniform[0]) == members(uniform[1]) and members(compact[0]) == members(compact[1])
    assert [b[0] for b in compact[0]] != [b[0] for b in compact[1]]
    assert neighbourhood(positions, compact[0]) < 0.4 * neighbourhood(positions, uniform[0])


def test_all_views_in_one_batch() -> None:
    (batch,) = draw(scan(50), None, 0, 0)
    assert np.array_equal(batch, np.arange(50))


def test_held_out_views_are_spread_and_never_drawn() -> None:
    positions = scan(1000)
    held = hold_out(positions, 0.05, seed=1)
    assert len(held) == 50 and np.array_equal(held, hold_out(positions, 0.05, seed=1))
    assert not np.array_equal(held, hold_out(positions, 0.05, seed=2)) and len(hold_out(positions, 0, 1)) == 0
    quadrant = (positions[held, 0] > 150).astype(int) * 2 + (positions[held, 1] > 150)
    assert (np.bincount(quadrant, minlength=4) > 8).all()
    training = np.setdiff1d(np.arange(1000), held)
    for order in ("random", "uniform", "compact"):
        drawn = np.concatenate(draw(positions, 64, 0, 0, order, training))
        assert np.array_equal(np.sort(drawn), training)
