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
