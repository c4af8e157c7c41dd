"""Windows of a batch's views that all ranks of a machine see, from which each works out its own panel of the object.

B, R   views of the batch, ranks;  h, w  window pixels

What a batch asks of the object are windows at the corners of its views, with their light. Where nobody needs their
sums, but what an engine makes of them, ranks hand over windows: to write, send and add up sums takes longer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed.world import World

#: Windows, light, corners, weights of the next pixel, amplitudes: as kernels/object_sums.py keeps them.
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
#: Memory is made for a multiple of so many views, as batches differ by one.
STEP = 8


@dataclass(frozen=True)
class SharedWindows:
    """Of one batch.

    arrays: windows (B, h, w), light (B or R, h, w), corners (B, 2) in the whole object, weights of the next pixel
    (B, 2), amplitudes (B, 1); first, count: of this rank's views among them; lit: the row of light that holds for all
    views, None where each has its own; rank: of this process, whose row of light is the one that it may write; top: row
    of the object in which its panel begins; again: whether others have what this rank is about to write.
    """

    arrays: tuple[Tensor, ...]
    first: int
    count: int
    lit: int | None
    rank: int
    top: int
    again: Callable[[], bool]

    @property
    def handed_over(self) -> int:
        """Bytes of windows and light that this rank writes."""
        windows, light, *_ = self.arrays
        sizes = [windows[:1].numel() * windows.element_size()]
        sizes += [] if self.lit is not None else [light[:1].numel() * light.element_size()]
        return self.count * sum(sizes)

    def own(self, start: int, count: int) -> Arrays:
        """Room for `count` of this rank's views after the first `start`."""
        windows, light, corners, between, amplitudes = self.arrays
        some = slice(self.first + start, self.first + start + count)
        rows = some if self.lit is None else slice(self.rank, self.rank + 1)
        room = (windows[some], light[rows], corners[some], between[some], amplitudes[some, 0])
        if self.again():  # ranks may be reading
            room = tuple(torch.empty_like(array) for array in room)  # type: ignore[assignment]
        return tuple(array.numpy() for array in room)  # type: ignore[return-value]

    def all(self) -> Arrays:
        """What all ranks have written, with corners in this rank's panel."""
        windows, light, corners, between, amplitudes = (array.numpy() for array in self.arrays)
        moved = corners - np.array([self.top, 0])
        light = light if self.lit is None else light[self.lit : self.lit + 1]
        return windows, light, moved, between, np.ascontiguousarray(amplitudes[:, 0])


class WindowMemory:
    """Memory for them, made when it is first asked for.

    Args:
        world: the ranks, which share memory.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._kept: dict[tuple[tuple[int, int], torch.dtype, bool], tuple[Tensor, ...] | None] = {}

    def of(
        self, counts: np.ndarray, window: tuple[int, int], dtype: torch.dtype, each: bool, top: int
    ) -> SharedWindows | None:
        """For a batch of which ranks have so many views (R,), with windows of this dtype; each: whether each view has
        its own light; top: see SharedWindows. None where there is no room. Collective."""
        key, views = (window, dtype, each), int(counts.sum())
        if key not in self._kept or (self._kept[key] is not None and len(self._arrays(key)[0]) < views):
            self._kept = {key: self._made(-(-views // STEP) * STEP, window, dtype, each)}
        if self._kept[key] is None:
            return None
        windows, light, *others = self._arrays(key)
        rank, world = self.world.rank, self.world
        lit = None if each else int(np.flatnonzero(counts)[0]) if views else 0

        def again() -> bool:
            return world.record is not None and world.record.place < len(world.record.results)

        arrays = (windows[:views], light[:views] if each else light, *(other[:views] for other in others))
        return SharedWindows(arrays, int(counts[:rank].sum()), int(counts[rank]), lit, rank, top, again)

    def _arrays(self, key: tuple[tuple[int, int], torch.dtype, bool]) -> tuple[Tensor, ...]:
        found = self._kept[key]
        assert found is not None
        return found

    def _made(self, views: int, window: tuple[int, int], dtype: torch.dtype, each: bool) -> tuple[Tensor, ...] | None:
        real, rows = dtype.to_real(), views if each else self.world.size
        kinds = (((views, *window), dtype), ((rows, *window), real), ((views, 2), torch.int64), ((views, 2), real))
        found = [self.world.one_for_all(shape, kind) for shape, kind in (*kinds, ((views, 1), real))]
        there = [array for array in found if array is not None]
        return tuple(there) if len(there) == len(found) else None
