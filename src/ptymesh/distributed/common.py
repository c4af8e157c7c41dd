"""Sums over a batch where ranks of one machine keep the whole object: in memory that all of them see.

L, H, W   slices, object pixels;  b = BLOCK, side of a block;  n  touched blocks;  R  ranks

Each rank adds up its own views in an array of its own, as ever; but others can read it. Once all have, each rank adds
all arrays on its share of the touched blocks, n/R of them, and puts what comes of it, in the estimate's precision, into
an array that all ranks read: sums are copied nowhere, and added once. They are exact, so it is the same to the last bit
who adds them, and in which order.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed import shared_memory
from ptymesh.estimate import BLOCK

#: What completes sums: arrays in the estimate's precision become what two in double are together, on some blocks
#: (Backend.combine).
Pair = tuple[Tensor, Tensor]
Combine = Callable[[Pair, Pair | None, Tensor, Tensor, int, Pair], None]
#: Blocks (n,), and the ranks whose views reach into them.
Shares = tuple[tuple[tuple[int, ...], Tensor, Tensor], ...]
#: Arrays of this dtype, and how many.
Kind = tuple[torch.dtype, int]


@dataclass(frozen=True)
class Means:
    """How ranks work together: what is done once is on record, should a step start anew; other tensors are summed, and
    when that is over all have come there; all meet, and bytes that were handed over are counted."""

    recorded: Callable[[Callable[[], list[Tensor]]], list[Tensor]]
    summed: Callable[[tuple[Tensor, ...]], list[Tensor]]
    meet: Callable[[int], None]


@dataclass(frozen=True)
class Common:
    """Arrays for sums of the object and of its weight, complex and real.

    sums: of each rank, (parts L, H, W) in double precision; found: of all, (L, H, W) in the estimate's, where each rank
    needs them of the whole object.
    """

    means: Means
    rank: int
    sums: list[Pair]
    found: Pair | None

    @property
    def own(self) -> Pair:
        """To which this rank adds."""
        return self.sums[self.rank]

    def sum(self, rows: Tensor, columns: Tensor, combine: Combine, *others: Tensor) -> list[Tensor]:
        """`found`, with the sums over ranks on touched blocks (n,), and those of other tensors. Collective.

        What is found lasts until the next sums.
        """
        assert self.found is not None
        count, size = len(rows), len(self.sums)
        some = slice(count * self.rank // size, count * (self.rank + 1) // size)  # in the order of rows
        shares = ((tuple(range(size)), rows[some], columns[some]),) if some.start < some.stop else ()
        return self._sum(shares, 0, self.found, combine, count, others)

    def sum_panel(self, top: int, shares: Shares, found: Pair, combine: Combine, *others: Tensor) -> list[Tensor]:
        """`found` (L, h, W), with sums over ranks on blocks (n,) of a panel, which begins in this row of blocks, and
        those of other tensors. Collective."""
        return self._sum(shares, top, found, combine, sum(len(rows) for _, rows, _ in shares), others)

    def _sum(
        self,
        shares: Shares,
        top: int,
        found: Pair,
        combine: Combine,
        count: int,
        others: tuple[Tensor, ...],
    ) -> list[Tensor]:
        """The same, where this rank finds these blocks; count: of those that it counts as handed over."""

        def act() -> list[Tensor]:
            summed = self.means.summed(others)
            for ranks, rows, columns in shares:
                # nobody else reads or writes these blocks now, whoever has added to them
                first, *more = [self.sums[rank] for rank in ranks]
                self._add(first, more[1:], rows + top, columns)
                combine(first, more[0] if more else None, rows, columns, top, found)
            # nobody adds to sums any more before all have read them
            self.means.meet(count * BLOCK**2 * sum(len(field) * field.element_size() for field in self.own))
            return [*found, *summed]

        return self.means.recorded(act)

    @staticmethod
    def _add(sums: Pair, more: list[Pair], rows: Tensor, columns: Tensor) -> None:
        """What others have on these blocks (n,) is added to sums."""
        own = [field.numpy() for field in sums]
        theirs = [[field.numpy() for field in pair] for pair in more]
        for top, bottom, left, right in rectangles(rows.numpy(), columns.numpy()) if more else ():
            for pair in theirs:
                for total, other in zip(own, pair, strict=True):
                    here = total[:, top:bottom, left:right]
                    np.add(here, other[:, top:bottom, left:right], out=here)


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
    """What is kept for objects of one shape, made when it is first asked for."""

    def __init__(self) -> None:
        self.kept: dict[tuple[Any, ...], Common | None] = {}

    def of(
        self, world: Speakers, means: Means, shape: tuple[int, ...], parts: int, dtype: torch.dtype, all_found: bool
    ) -> Common | None:
        """See `make`."""
        key = (shape, parts, dtype, all_found)
        if key not in self.kept:
            self.kept = {known: kept for known, kept in self.kept.items() if known[0] == shape}
            with unnoted(world):
                self.kept[key] = make(world, means, shape, parts, dtype, all_found)
        return self.kept[key]


@contextmanager
def unnoted(world: Speakers) -> Iterator[None]:
    """Messages within it are none of the run's, nor of the step's, should that start anew."""
    noted, world.record = (world.record, world.collectives, world.bytes_reduced), None
    try:
        yield
    finally:
        world.record, world.collectives, world.bytes_reduced = noted


def make(
    world: Speakers, means: Means, shape: tuple[int, ...], parts: int, dtype: torch.dtype, all_found: bool = True
) -> Common | None:
    """Arrays for objects (L, H, W) of this dtype; None on all ranks where one of them has no room. Collective.

    all_found: whether each rank needs the sums of the whole object in its dtype.
    """
    wide = [(torch.complex128, parts), (torch.float64, parts)]
    narrow = [(dtype, 1), (dtype.to_real(), 1)] if all_found else []
    arrays = _of_all(world, [[*wide, *narrow], *[wide] * (world.size - 1)], shape)
    if arrays is None:
        return None
    found = (arrays[0][2], arrays[0][3]) if all_found else None
    return Common(means, world.rank, [(first, second) for first, second, *_ in arrays], found)


def one_for_all(world: Speakers, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
    """An array (L, H, W) that there is once, for all ranks to see; None on all of them where there is no room.
    Collective."""
    nothing: list[Kind] = []
    with unnoted(world):
        arrays = _of_all(world, [[(dtype, 1)], *[nothing] * (world.size - 1)], shape)
    return None if arrays is None else arrays[0][0]


def _of_all(world: Speakers, kinds: list[list[Kind]], shape: tuple[int, ...]) -> list[list[Tensor]] | None:
    """What each rank has made of its kinds, seen by all; None on all ranks where that cannot be. Collective."""
    memory, where = None, ""
    with suppress(OSError):
        if kinds[world.rank]:
            memory = _memory(-1, kinds[world.rank], shape)
            where = f"{shared_memory.pid_space()} /proc/{os.getpid()}/fd/{memory[0]}"
    found: list[list[Tensor]] = []
    for rank, place in enumerate(world.words(where)):
        with suppress(OSError):
            if rank == world.rank and memory is not None:
                found.append(memory[1])
            elif place:
                found.append(_memory(shared_memory.find(place), kinds[rank], shape)[1])
            elif not kinds[rank]:
                found.append([])
    everybody = not world.agree(len(found) < world.size)  # from here on nobody needs to find it
    if memory is not None:
        os.close(memory[0])
    return found if everybody else None


def _memory(handle: int, kinds: list[Kind], shape: tuple[int, ...]) -> tuple[int, list[Tensor]]:
    """Arrays (count L, H, W) of these dtypes and counts one after the other in a file of memory, or in a new one (-1)
    which stays open; its handle."""
    pixels = math.prod(shape)
    sizes = [-(-pixels * count * dtype.itemsize // mmap.PAGESIZE) * mmap.PAGESIZE for dtype, count in kinds]
    new = handle < 0
    if new:
        handle = os.memfd_create("ptymesh")
    try:
        if new:
            os.posix_fallocate(handle, 0, sum(sizes))  # now, for to run out of it later is fatal
        whole = torch.frombuffer(mmap.mmap(handle, sum(sizes)), dtype=torch.uint8)
    except OSError:
        os.close(handle)
        raise
    if not new:
        os.close(handle)
    places = np.cumsum([0, *sizes]).tolist()
    arrays = [
        whole[at : at + pixels * count * dtype.itemsize].view(dtype).view(count * shape[0], *shape[1:])
        for at, (dtype, count) in zip(places, kinds, strict=False)
    ]
    return handle, arrays
