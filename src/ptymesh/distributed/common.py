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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed import shared_memory
from ptymesh.estimate import BLOCK

#: What completes sums: makes arrays in the estimate's precision of those in double, on some blocks (Passes.narrow).
Narrow = Callable[[tuple[Tensor, Tensor], Tensor, Tensor, tuple[Tensor, Tensor]], None]


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

    sums: of each rank, (parts L, H, W) in double precision; found: of all, (L, H, W) in the estimate's.
    """

    means: Means
    rank: int
    sums: list[tuple[Tensor, Tensor]]
    found: tuple[Tensor, Tensor]

    @property
    def own(self) -> tuple[Tensor, Tensor]:
        """To which this rank adds."""
        return self.sums[self.rank]

    def sum(self, rows: Tensor, columns: Tensor, narrow: Narrow, *others: Tensor) -> list[Tensor]:
        """`found`, with the sums over ranks on touched blocks (n,), and those of other tensors. Collective.

        What is found lasts until the next sums.
        """

        def act() -> list[Tensor]:
            summed = self.means.summed(others)
            self._add_share(rows, columns, narrow)
            self.means.meet(len(rows) * BLOCK**2 * sum(len(field) * field.element_size() for field in self.own))
            return [*self.found, *summed]

        return self.means.recorded(act)

    def _add_share(self, rows: Tensor, columns: Tensor, narrow: Narrow) -> None:
        """This rank's share of the touched blocks (n,), in the order of rows, is added up and found."""
        count, size = len(rows), len(self.sums)
        some = slice(count * self.rank // size, count * (self.rank + 1) // size)
        rows, columns = rows[some], columns[some]
        own = [field.numpy() for field in self.own]
        theirs = [[field.numpy() for field in pair] for r, pair in enumerate(self.sums) if r != self.rank]
        for top, bottom, left, right in rectangles(rows.numpy(), columns.numpy()):
            for pair in theirs:
                for total, other in zip(own, pair, strict=True):
                    here = total[:, top:bottom, left:right]
                    np.add(here, other[:, top:bottom, left:right], out=here)
        if len(rows):
            narrow(self.own, rows, columns, self.found)


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
        self, world: Speakers, means: Means, shape: tuple[int, ...], parts: int, dtype: torch.dtype
    ) -> Common | None:
        """See `make`."""
        key = (shape, parts, dtype)
        if key not in self.kept:
            self.kept = {known: kept for known, kept in self.kept.items() if known[0] == shape}
            # its messages are none of the run's, nor of the step's, should that start anew
            noted, world.record = (world.record, world.collectives, world.bytes_reduced), None
            self.kept[key] = make(world, means, shape, parts, dtype)
            world.record, world.collectives, world.bytes_reduced = noted
        return self.kept[key]


def make(world: Speakers, means: Means, shape: tuple[int, ...], parts: int, dtype: torch.dtype) -> Common | None:
    """Arrays for objects (L, H, W) of this dtype; None on all ranks where one of them has no room. Collective."""
    wide = [(torch.complex128, parts), (torch.float64, parts)]
    narrow = [(dtype, 1), (dtype.to_real(), 1)] if world.rank == 0 else []
    memory = None
    with suppress(OSError):
        memory = _memory(-1, [*wide, *narrow], shape)
    where = "" if memory is None else f"{shared_memory.pid_space()} /proc/{os.getpid()}/fd/{memory[0]}"
    sums, found, well = [], None, True
    for rank, place in enumerate(world.words(where)):
        dtypes = [*wide, (dtype, 1), (dtype.to_real(), 1)] if rank == 0 else wide
        arrays = None if memory is None or rank != world.rank else memory[1]
        if arrays is None and place:
            with suppress(OSError):
                arrays = _memory(shared_memory.find(place), dtypes, shape)[1]
        if arrays is None:
            well = False
            continue
        sums.append((arrays[0], arrays[1]))
        found = (arrays[2], arrays[3]) if rank == 0 else found
    everybody = not world.agree(not well)  # from here on nobody needs to find it
    if memory is not None:
        os.close(memory[0])
    return Common(means, world.rank, sums, found) if everybody and found is not None else None


def _memory(handle: int, kinds: list[tuple[torch.dtype, int]], shape: tuple[int, ...]) -> tuple[int, list[Tensor]]:
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
