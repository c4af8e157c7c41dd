"""Sums over a batch in shared memory, for ranks of one machine.

L, H, W   slices, object pixels;  b = BLOCK, side of a block;  n  touched blocks;  R  ranks

Each rank adds up its own views in an accumulator of its own, which the other ranks can read. After a barrier, each rank
adds, on the blocks that it needs, the accumulators of the ranks whose views reach them, and writes the sum in the
estimate's precision: for an object in tiles on all of its part, for one in panels on its panel, and for a replicated
one on a share, n/R of the blocks, of an array that all ranks read. Sums are never copied, and added once. They are
exact, so that the result has the same bits whichever rank adds them, in whichever order.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed import shared_memory
from ptymesh.distributed.tiles import Rect
from ptymesh.estimate import BLOCK
from ptymesh.physics.sums import RankSums

#: The object's sums (complex) and their weight (real).
Pair = tuple[Tensor, Tensor]
#: Function that adds the sums of several ranks on some blocks (Backend.combine).
Combine = Callable[[RankSums, Tensor, Tensor, Tensor, Pair], None]
#: The ranks whose views reach a block are the bits of an int64, so there can be no more than these.
MOST_RANKS = 63


@dataclass(frozen=True)
class WorldFunctions:
    """Functions of the world that sums in shared memory need.

    Attributes:
        recorded: runs a function and records its result, or returns the recorded result when a step is replayed.
        summed: returns the sums over ranks of some tensors; it is a barrier too. Collective.
        barrier: barrier of the ranks, which also counts the given number of bytes as traffic. Collective.
    """

    recorded: Callable[[Callable[[], list[Tensor]]], list[Tensor]]
    summed: Callable[[tuple[Tensor, ...]], list[Tensor]]
    barrier: Callable[[int], None]


@dataclass(frozen=True)
class SumAreas:
    """Rectangles of the object that the ranks' accumulators cover, in whole blocks.

    Attributes:
        slices: L, slices of the object.
        sums: the rectangle of each rank's accumulator, in order of rank.
        result: the rectangle on which this rank needs the sums; None where each rank adds a share of the whole object,
            in an array that all ranks read.
    """

    slices: int
    sums: tuple[Rect, ...]
    result: Rect | None = None


@dataclass(frozen=True)
class SharedSums:
    """Accumulators in shared memory for the object's sums and their weight.

    Attributes:
        means: functions of the world.
        rank: this rank.
        sums: the accumulators of all ranks.
        own: this rank's accumulators, (parts L, H, W) complex128 and float64, to which it adds.
        result: (L, H, W) for the whole object in the estimate's precision, which all ranks read; None where each
            rank keeps the result of its own part.
    """

    means: WorldFunctions
    rank: int
    sums: RankSums
    own: Pair
    result: Pair | None

    def sum(
        self,
        rows: Tensor,
        columns: Tensor,
        reached: Tensor | None,
        count: int,
        found: Pair,
        combine: Combine,
        *others: Tensor,
    ) -> list[Tensor]:
        """Return the object's sums over ranks on touched blocks, and those of other tensors. Collective.

        Args:
            rows: (n,) int64, rows of the touched blocks, counted in blocks.
            columns: (n,) int64, their columns.
            reached: (n,) int64, the ranks whose views reach each block, as bits; None where that is not known: this
                rank then adds all ranks on its share, n/R of the blocks.
            count: number of blocks that this rank counts as traffic.
            found: (L, H, W) sums and weight in the estimate's precision, written on the touched blocks.
            combine: function that adds the accumulators of the ranks.
            others: tensors of any shape, summed over ranks.

        Returns:
            The two arrays of `found`, valid until the next sums, and the sums of the other tensors.
        """
        if reached is None:
            ranks, n = len(self.sums.ranks), len(rows)
            local_blocks = slice(n * self.rank // ranks, n * (self.rank + 1) // ranks)  # blocks are ordered by row
            rows, columns = rows[local_blocks], columns[local_blocks]
            reached = rows.new_full(rows.shape, -1)

        def act() -> list[Tensor]:
            summed = self.means.summed(others)
            combine(self.sums, reached, rows, columns, found)
            # barrier: no rank may add to its accumulator again before all have read it
            pixels = len(found[0]) * self.sums.parts * BLOCK**2
            self.means.barrier(count * pixels * sum(field.element_size() for field in self.own))
            return [*found, *summed]

        return self.means.recorded(act)


def rectangles(rows: np.ndarray, columns: np.ndarray) -> list[tuple[int, int, int, int]]:
    """Return rectangles of pixels that together cover the blocks.

    Args:
        rows: (n,) int64, rows of the blocks, counted in blocks; ordered by row, then column.
        columns: (n,) int64, their columns.

    Returns:
        Top, bottom, left and right of each rectangle; bottom and right are excluded.
    """
    stacked: list[tuple[int, int, int, int]] = []
    if not len(rows):
        return stacked
    breaks = np.flatnonzero((np.diff(rows) != 0) | (np.diff(columns) != 1)) + 1
    first, last = np.concatenate(([0], breaks)), np.concatenate((breaks, [len(rows)])) - 1
    for y, left, right in zip(rows[first].tolist(), columns[first].tolist(), (columns[last] + 1).tolist(), strict=True):
        if stacked and stacked[-1][1:] == (y, left, right):
            stacked[-1] = (stacked[-1][0], y + 1, left, right)
        else:
            stacked.append((y, y + 1, left, right))
    return [(BLOCK * top, BLOCK * bottom, BLOCK * left, BLOCK * right) for top, bottom, left, right in stacked]


class MessagingWorld(Protocol):
    """Part of `world.Ranks` that shared memory needs: messages between ranks and their counters."""

    rank: int
    size: int
    record: Any
    collectives: int
    bytes_reduced: int

    def gather_strings(self, text: str) -> list[str]:
        """Return the text of each rank, in order of rank. Collective."""

    def agree(self, flag: bool) -> bool:
        """Return True if any rank passes True. Collective."""


class SharedSumsCache:
    """Cache of the shared accumulators of one object, which are made when first needed."""

    def __init__(self) -> None:
        self.kept: dict[tuple[object, ...], SharedSums | None] = {}

    def of(
        self, world: MessagingWorld, means: WorldFunctions, areas: SumAreas, parts: int, dtype: torch.dtype
    ) -> SharedSums | None:
        """Return the cached accumulators of these areas, or make them. Collective.

        Args:
            world: the ranks.
            means: functions of the world.
            areas: rectangles that the accumulators cover.
            parts: number of separate sums of the object.
            dtype: complex dtype of the estimate.

        Returns:
            The accumulators; None on all ranks where one of them has no memory for its own.
        """
        key = (areas, parts, dtype)
        if key not in self.kept:
            self.kept = {stored_key: sums for stored_key, sums in self.kept.items() if stored_key[0] == areas}
            with without_counting(world):
                self.kept[key] = make_shared_sums(world, means, areas, parts, dtype)
        return self.kept[key]


@contextmanager
def without_counting(world: MessagingWorld) -> Iterator[None]:
    """Leave messages sent within this context out of the run's counters and of the step's replay log."""
    noted, world.record = (world.record, world.collectives, world.bytes_reduced), None
    try:
        yield
    finally:
        world.record, world.collectives, world.bytes_reduced = noted


def make_shared_sums(
    world: MessagingWorld, means: WorldFunctions, areas: SumAreas, parts: int, dtype: torch.dtype
) -> SharedSums | None:
    """Return new accumulators in shared memory. Collective.

    Args:
        world: the ranks.
        means: functions of the world.
        areas: rectangles that the accumulators cover.
        parts: number of separate sums of the object.
        dtype: complex dtype of the estimate.

    Returns:
        The accumulators; None on all ranks where one of them has no memory for its own.
    """
    slices, pixels = areas.slices, [math.prod(area.shape) for area in areas.sums]
    numbers = [parts * slices * count for count in pixels]  # elements of the weight; sums have twice as many reals
    memory = _allocate(world, [3 * torch.float64.itemsize * count for count in numbers])
    if memory is None:
        return None
    shared, places = memory
    into = areas.sums[0] if areas.result is None else areas.result
    ranks = [
        (at // 8, at // 8 + 2 * count, *area.shape, (into.top - area.top) // BLOCK, (into.left - area.left) // BLOCK)
        for at, count, area in zip(places, numbers, areas.sums, strict=True)
    ]
    sums = RankSums(shared.view(torch.float64), np.array(ranks, dtype=np.int64), parts)
    pair = None
    if areas.result is None:
        arrays = [allocate_shared_array(world, (slices, *into.shape), kind) for kind in (dtype, dtype.to_real())]
        if arrays[0] is None or arrays[1] is None:
            return None
        pair = arrays[0], arrays[1]
    return SharedSums(means, world.rank, sums, sums.of(world.rank, slices), pair)


def allocate_shared_array(world: MessagingWorld, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
    """Return one array in shared memory that all ranks read and write. Collective.

    Args:
        world: the ranks.
        shape: (L, H, W).
        dtype: of the array.

    Returns:
        The array (L, H, W); None on all ranks where there is no memory for it.
    """
    bytes_ = math.prod(shape) * dtype.itemsize
    with without_counting(world):
        allocated = _allocate(world, [bytes_, *[0] * (world.size - 1)])
    return None if allocated is None else allocated[0][:bytes_].view(dtype).view(shape)


def _allocate(world: MessagingWorld, sizes: Sequence[int]) -> tuple[Tensor, list[int]] | None:
    """Return memory (bytes,) uint8 that all ranks share, and the offset of each rank's part. Collective.

    Each rank allocates its own part, so that the pages lie on its own NUMA node. None on all ranks where one fails.
    """
    places = np.cumsum([0, *(-(-size // mmap.PAGESIZE) * mmap.PAGESIZE for size in sizes)]).tolist()
    handle, place, shared = -1, "", None
    if world.rank == 0:
        with suppress(OSError):
            handle = os.memfd_create("ptymesh")
            os.ftruncate(handle, places[-1])
            place = f"{shared_memory.pid_space()} /proc/{os.getpid()}/fd/{handle}"
    place = world.gather_strings(place)[0]
    with suppress(OSError):
        if place:
            handle = shared_memory.find(place) if world.rank else handle
            if sizes[world.rank]:  # allocate now: a page fault without memory would kill the process
                os.posix_fallocate(handle, places[world.rank], sizes[world.rank])
            shared = torch.frombuffer(mmap.mmap(handle, places[-1]), dtype=torch.uint8)
    everybody = not world.agree(shared is None)  # afterwards no rank needs to open the file any more
    if handle >= 0:
        os.close(handle)
    return (shared, places[:-1]) if everybody and shared is not None else None
