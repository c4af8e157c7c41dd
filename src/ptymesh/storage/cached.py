"""Patterns of a scan that are prepared once, and lent to one reconstruction of some of its views after the other.

h, w    window pixels
slot    where a pattern is kept
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from ptymesh.limits import free_memory
from ptymesh.measurement import PatternSource
from ptymesh.storage.patterns import Resident, native_tensor, put, slabs

#: Share of the free memory that patterns may take.
SHARE = 0.5
#: Slots that are allocated at first, where it is not known how many views there will be.
FIRST_SLOTS = 1024
#: Bytes whose memory is touched in advance, at most: what waits for it should not wait for seconds.
RESERVED_BYTES = 1 << 30


class PatternCache:
    """Patterns (n, h, w) in memory, each as long as there is room for it.

    Attributes:
        expected: number of views that there will be; None if that is not known.
    """

    def __init__(self, expected: int | None = None) -> None:
        self.expected = expected
        self._tensor: Tensor | None = None
        self._most_slots = 0
        #: Slot of each view, -1 where it has none; view in each slot, -1 where it is free; and its last use.
        self._slot_of, self._view_in = np.empty(0, np.int64), np.empty(0, np.int64)
        self._last_use, self._clock = np.empty(0, np.int64), 0

    def read(self, source: PatternSource, views: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return an array (m, h, w) with the patterns of some views, and the slots (n,) of these in it.

        Args:
            source: of all patterns; those that are kept here are not read from it.
            views: (n,) int64, each once.
        """
        unknown_views = int(views.max()) + 1 - len(self._slot_of)
        if unknown_views > 0:
            self._slot_of = np.concatenate((self._slot_of, np.full(unknown_views, -1)))
        self._clock += 1
        slots = self._slot_of[views]
        self._last_use[slots[slots >= 0]] = self._clock
        missing = views[slots < 0]
        tensor = self._find_slots(source, missing)
        frame = int(np.prod(source.shape[1:])) * source.dtype.itemsize
        for part in slabs(len(missing), frame):
            put(tensor, torch.from_numpy(self._slot_of[missing[part]]), native_tensor(source.read(missing[part])))
        return tensor, torch.from_numpy(self._slot_of[views])

    def reserve(self, source: PatternSource, share: int = 1) -> None:
        """Allocate slots for all views that are expected, and touch their memory, before patterns are read.

        Memory that is used for the first time may cost more time than preparing a pattern in it does: systems clear it,
        and virtual machines get it from their host page by page.

        Args:
            source: patterns of the shape and type that will be read.
            share: this process will keep one in so many of the views.
        """
        if self.expected and self._tensor is None:
            self._grow(source, 1)
            assert self._tensor is not None
            views = min(-(-self.expected // share), RESERVED_BYTES // max(1, self._tensor[0].nbytes))
            self._tensor[:views].zero_()

    def _find_slots(self, source: PatternSource, views: np.ndarray) -> Tensor:
        """Give slots to views that have none, also those of views that were not used for longest, and return all."""
        free = np.flatnonzero(self._view_in < 0)
        if len(free) < len(views):
            self._grow(source, len(self._view_in) + len(views) - len(free))
            free = np.flatnonzero(self._view_in < 0)
        if len(free) < len(views):
            oldest = np.argsort(np.where(self._view_in < 0, self._clock, self._last_use), kind="stable")
            freed = oldest[: len(views) - len(free)]
            self._slot_of[self._view_in[freed]] = -1
            free = np.concatenate((free, freed))
        slots = free[: len(views)]
        self._slot_of[views], self._view_in[slots], self._last_use[slots] = slots, views, self._clock
        assert self._tensor is not None
        return self._tensor

    def _grow(self, source: PatternSource, needed_slots: int) -> None:
        """Allocate slots, at least so many as are in use now, and `needed_slots` of them if memory allows."""
        frame, before = int(np.prod(source.shape[1:])) * source.dtype.itemsize, self._tensor
        if before is None:
            self._most_slots = max(needed_slots, int(SHARE * free_memory()) // max(1, frame))
        in_use = int((self._last_use == self._clock).sum()) + needed_slots - len(self._view_in)
        count = max(
            min(max(needed_slots, self.expected or max(FIRST_SLOTS, 2 * len(self._view_in))), self._most_slots), in_use
        )
        if count <= len(self._view_in):
            return
        grown = torch.empty((count, *source.shape[1:]), dtype=native_tensor(np.empty(0, source.dtype)).dtype)
        if before is not None:
            grown[: len(before)] = before
        added = np.full(count - len(self._view_in), -1)
        self._view_in, self._last_use = np.concatenate((self._view_in, added)), np.concatenate((self._last_use, added))
        self._tensor = grown


class CachedViews:
    """Patterns of some views, as a source that lends what a cache holds.

    Args:
        cache: of the scan's patterns.
        source: of all patterns.
        views: (n,) int64, the views.
    """

    def __init__(self, cache: PatternCache, source: PatternSource, views: np.ndarray) -> None:
        self._cache, self._source, self._views = cache, source, views
        self.shape: tuple[int, int, int] = (len(views), *source.shape[1:])
        self.dtype = source.dtype

    def read(self, views: np.ndarray) -> np.ndarray:
        """Return the patterns (n, h, w) of the views with these indices (n,)."""
        return self._source.read(self._views[views])

    def lend_patterns(self, local_views: np.ndarray) -> LentPatterns:
        """Return the patterns of the views with these indices (n,), without a copy."""
        return LentPatterns(*self._cache.read(self._source, self._views[local_views]))


class LentPatterns(Resident):
    """Patterns in an array that holds others, too, and is not written to.

    Args:
        tensor: (m, h, w).
        slots: (n,) int64, slot of each pattern.
    """

    def __init__(self, tensor: Tensor, slots: Tensor) -> None:
        super().__init__(tensor)
        self.shape, self._slots = (len(slots), *tensor.shape[1:]), slots

    def replace(self, source: Tensor, arrived: Iterable[Tensor]) -> None:
        """Replace rows as `Patterns.replace` says, in an array of its own."""
        self.tensor = self.rows(torch.arange(len(self)))
        self._slots, self._capacity = None, len(self.tensor)
        super().replace(source, arrived)
