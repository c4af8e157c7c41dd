"""Sums over a batch of ranks of one machine: in memory that all of them see.

L, H, W   slices, object pixels;  b = BLOCK, side of a block;  n  touched blocks;  R  ranks

Each rank adds up its own views in an array of its own, as ever; but others can read it. Once all have, each rank adds
the arrays of those that have reached them on the blocks that it needs, and puts what comes of it, in the estimate's
precision, where it is to be: of the object in tiles all of its part, of one in panels its panel, and of a whole one a
share, n/R of the blocks, in an array that all ranks read. Sums are copied nowhere, and added once. They are exact, so
it is the same to the last bit who adds them, and in which order.
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
from ptymesh.physics.sums import SharedSums

#: Sums and their weight, complex and real.
Pair = tuple[Tensor, Tensor]
#: What completes sums of several ranks on some blocks (Backend.combine).
Combine = Callable[[SharedSums, Tensor, Tensor, Tensor, Pair], None]
#: Ranks that have reached a block are bits of a number.
MOST_RANKS = 63


@dataclass(frozen=True)
class Means:
    """How ranks work together: what is done once is on record, should a step start anew; other tensors are summed, and
    when that is over all have come there; all meet, and bytes that were handed over are counted."""

    recorded: Callable[[Callable[[], list[Tensor]]], list[Tensor]]
    summed: Callable[[tuple[Tensor, ...]], list[Tensor]]
    meet: Callable[[int], None]


@dataclass(frozen=True)
class Areas:
    """What arrays of ranks cover, and what is to be found of their sums, all in whole blocks of an object of so many
    slices; found: None where each rank finds a share of the whole, for all to see."""

    slices: int
    sums: tuple[Rect, ...]
    found: Rect | None = None


@dataclass(frozen=True)
class Common:
    """Arrays for sums of the object and of its weight, complex and real.

    sums: of all ranks; own: that of this rank, (parts L, H, W) in double precision, to which it adds; found: of the
    whole object (L, H, W) in the estimate's precision, where all ranks need it.
    """

    means: Means
    rank: int
    sums: SharedSums
    own: Pair
    found: Pair | None

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
        """`found` (L, H, W), with the sums over ranks on touched blocks (n,), and those of other tensors. Collective.

        reached: (n,) the ranks whose views reach into each block, as bits; None: it is not known, and of what all need
        this rank finds a share. count: of the blocks that it counts as handed over. What is found lasts until the next
        sums.
        """
        if reached is None:
            ranks, n = len(self.sums.ranks), len(rows)
            some = slice(n * self.rank // ranks, n * (self.rank + 1) // ranks)  # in the order of rows
            rows, columns = rows[some], columns[some]
            reached = rows.new_full(rows.shape, -1)

        def act() -> list[Tensor]:
            summed = self.means.summed(others)
            combine(self.sums, reached, rows, columns, found)
            # nobody adds to sums any more before all have read them
            pixels = len(found[0]) * self.sums.parts * BLOCK**2
            self.means.meet(count * pixels * sum(field.element_size() for field in self.own))
            return [*found, *summed]

        return self.means.recorded(act)


def rectangles(rows: np.ndarray, columns: np.ndarray) -> list[tuple[int, int, int, int]]:
    """First and last rows and columns of pixels, the last ones not included, of rectangles that make up blocks (n,) in
    the order of rows and columns."""
    found: list[tuple[int, int, int, int]] = []
    if not len(rows):
        return found
    breaks = np.flatnonzero((np.diff(rows) != 0) | (np.diff(columns) != 1)) + 1
    first, last = np.concatenate(([0], breaks)), np.concatenate((breaks, [len(rows)])) - 1
    for y, left, right in zip(rows[first].tolist(), columns[first].tolist(), (columns[last] + 1).tolist(), strict=True):
        if found and found[-1][1:] == (y, left, right):
            found[-1] = (found[-1][0], y + 1, left, right)
        else:
            found.append((y, y + 1, left, right))
    return [(BLOCK * top, BLOCK * bottom, BLOCK * left, BLOCK * right) for top, bottom, left, right in found]


class Speakers(Protocol):
    """Ranks, as far as they speak to each other (world.Ranks); what they have noted of it."""

    rank: int
    size: int
    record: Any
    collectives: int
    bytes_reduced: int

    def words(self, text: str) -> list[str]:
        """What each rank says, in order of rank; collective."""

    def agree(self, flag: bool) -> bool:
        """True if any rank says True; collective."""


class Commons:
    """What is kept for areas of one object, made when it is first asked for."""

    def __init__(self) -> None:
        self.kept: dict[tuple[Any, ...], Common | None] = {}

    def of(self, world: Speakers, means: Means, areas: Areas, parts: int, dtype: torch.dtype) -> Common | None:
        """See `make`."""
        key = (areas, parts, dtype)
        if key not in self.kept:
            self.kept = {known: kept for known, kept in self.kept.items() if known[0] == areas}
            with unnoted(world):
                self.kept[key] = make(world, means, areas, parts, dtype)
        return self.kept[key]


@contextmanager
def unnoted(world: Speakers) -> Iterator[None]:
    """Messages within it are none of the run's, nor of the step's, should that start anew."""
    noted, world.record = (world.record, world.collectives, world.bytes_reduced), None
    try:
        yield
    finally:
        world.record, world.collectives, world.bytes_reduced = noted


def make(world: Speakers, means: Means, areas: Areas, parts: int, dtype: torch.dtype) -> Common | None:
    """Arrays for sums in so many parts of objects of this dtype; None on all ranks where one of them has no room.
    Collective."""
    slices, pixels = areas.slices, [math.prod(area.shape) for area in areas.sums]
    numbers = [parts * slices * count for count in pixels]  # of the weight; sums have twice as many
    memory = _of_all(world, [3 * torch.float64.itemsize * count for count in numbers])
    if memory is None:
        return None
    whole, places = memory
    into = areas.sums[0] if areas.found is None else areas.found
    ranks = [
        (at // 8, at // 8 + 2 * count, *area.shape, (into.top - area.top) // BLOCK, (into.left - area.left) // BLOCK)
        for at, count, area in zip(places, numbers, areas.sums, strict=True)
    ]
    sums = SharedSums(whole.view(torch.float64), np.array(ranks, dtype=np.int64), parts)
    found = None
    if areas.found is None:
        both = [one_for_all(world, (slices, *into.shape), kind) for kind in (dtype, dtype.to_real())]
        if both[0] is None or both[1] is None:
            return None
        found = both[0], both[1]
    return Common(means, world.rank, sums, sums.of(world.rank, slices), found)


def one_for_all(world: Speakers, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
    """An array (L, H, W) that there is once, for all ranks to see; None on all of them where there is no room.
    Collective."""
    bytes_ = math.prod(shape) * dtype.itemsize
    with unnoted(world):
        found = _of_all(world, [bytes_, *[0] * (world.size - 1)])
    return None if found is None else found[0][:bytes_].view(dtype).view(shape)


def _of_all(world: Speakers, sizes: Sequence[int]) -> tuple[Tensor, list[int]] | None:
    """Memory (bytes,) that all ranks see, and where in it those begin that each has found room for, in its own part of
    the machine; None on all ranks where one of them has no room. Collective."""
    places = np.cumsum([0, *(-(-size // mmap.PAGESIZE) * mmap.PAGESIZE for size in sizes)]).tolist()
    handle, where, whole = -1, "", None
    if world.rank == 0:
        with suppress(OSError):
            handle = os.memfd_create("ptymesh")
            os.ftruncate(handle, places[-1])
            where = f"{shared_memory.pid_space()} /proc/{os.getpid()}/fd/{handle}"
    where = world.words(where)[0]
    with suppress(OSError):
        if where:
            handle = shared_memory.find(where) if world.rank else handle
            if sizes[world.rank]:  # now, for to run out of it later is fatal
                os.posix_fallocate(handle, places[world.rank], sizes[world.rank])
            whole = torch.frombuffer(mmap.mmap(handle, places[-1]), dtype=torch.uint8)
    everybody = not world.agree(whole is None)  # from here on nobody needs to find it
    if handle >= 0:
        os.close(handle)
    return (whole, places[:-1]) if everybody and whole is not None else None
