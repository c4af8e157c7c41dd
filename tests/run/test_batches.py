"""Batches depend on seed, epoch, nominal positions and size alone; they are even in size and in space."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptymesh.run.batches import draw


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
