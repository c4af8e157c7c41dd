"""Patterns that are prepared once, and lent to one reconstruction after the other."""

import numpy as np
import pytest
import torch

from ptymesh.measurement import ArraySource
from ptymesh.storage import cached
from ptymesh.storage.cached import CachedViews, PatternCache
from ptymesh.storage.memory_budget import MemoryBudget, stored

RNG = np.random.default_rng(7)
PATTERNS = RNG.integers(0, 1000, (40, 4, 6)).astype(np.uint16)


class Counted(ArraySource):
    """Patterns that say which of them were read."""

    def read(self, views: np.ndarray) -> np.ndarray:
        self.__dict__.setdefault("views_read", []).extend(views.tolist())
        return super().read(views)


def lend(cache: PatternCache, source: ArraySource, views: list[int]) -> torch.Tensor:
    """Return the patterns of some views by way of the cache, as a problem would read them."""
    wanted = np.array(views)
    every = np.arange(len(wanted))
    lent = stored(CachedViews(cache, source, wanted), every, len(wanted), torch.device("cpu"), MemoryBudget())
    array, places = lent.lying(torch.from_numpy(every))
    assert places is not None
    return array[places]


@pytest.mark.parametrize("expected", [None, 40, 3])
def test_each_is_read_once(expected: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached, "FIRST_SLOTS", 4)
    source, cache = Counted(PATTERNS), PatternCache(expected)
    for views in ([0, 3, 1], [2, 3, 7, 5], [39, 0], [10, 11, 12, 13, 14, 15, 16]):
        assert np.array_equal(lend(cache, source, views).numpy(), PATTERNS[views])
    read = source.__dict__["views_read"]
    assert len(read) == len(set(read)) == 14


@pytest.mark.parametrize(("expected", "share", "touched"), [(None, 1, 0), (12, 3, 4), (12, 1, 12), (40, 1, 20)])
def test_memory_is_touched_before_patterns_are_read(
    expected: int | None, share: int, touched: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        allocated.append(torch.full(shape, 7, dtype=dtype))
        return allocated[-1]

    allocated: list[torch.Tensor] = []
    monkeypatch.setattr(cached, "RESERVED_BYTES", 20 * PATTERNS[0].nbytes)
    source, cache = Counted(PATTERNS), PatternCache(expected)
    with monkeypatch.context() as patched:
        patched.setattr(torch, "empty", allocate)
        cache.reserve(source, share)
        cache.reserve(source)  # which is there already
    assert "views_read" not in source.__dict__
    assert [len(one) for one in allocated] == ([expected] if expected else [])
    assert sum(int((one.numpy() == 0).all(axis=(1, 2)).sum()) for one in allocated) == touched
    views = np.array([39, 0, 5])
    array, slots = cache.read(source, views)
    assert np.array_equal(array[slots].numpy(), PATTERNS[views])
    assert not allocated or array.data_ptr() == allocated[0].data_ptr()


def test_where_memory_ends_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached, "free_memory", lambda: 8 * PATTERNS[0].nbytes)  # half of it: four patterns
    source, cache = Counted(PATTERNS), PatternCache(40)
    for views in ([0, 1], [2, 3], [1, 4], [0], [1, 4, 5, 6], [7, 8, 9, 10, 11, 12], [1, 12]):
        assert np.array_equal(lend(cache, source, views).numpy(), PATTERNS[views])
    read = source.__dict__["views_read"]
    assert read[:5] == [0, 1, 2, 3, 4], "1 was there still"
    assert read[5:8] == [0, 5, 6] and len(read) == 15, "and the last six had room, though more than is asked for"


def test_lent_patterns_are_not_written_to() -> None:
    source, cache = Counted(PATTERNS), PatternCache(40)
    every = np.arange(3)
    lent = CachedViews(cache, source, np.array([4, 5, 6])).lend_patterns(every)
    arrived = torch.from_numpy(PATTERNS[[9]])
    lent.replace(torch.tensor([2, -1, 0, -1]), [arrived, arrived])
    assert np.array_equal(lent.rows(torch.arange(4)).numpy(), PATTERNS[[6, 9, 4, 9]])
    assert np.array_equal(lend(cache, source, [4, 5, 6]).numpy(), PATTERNS[[4, 5, 6]])
