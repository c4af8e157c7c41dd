"""Memory that the ranks of one machine share, for what they would otherwise send each other through sockets.

R   ranks;  n  numbers of a message

Through sockets, two processes of one machine take milliseconds for what copying takes microseconds.

sums      Each rank copies its numbers to a place of its own, which all can read, and all are added up in the order of
          ranks: every rank has the same bits. Two halves of the memory take turns, so that nobody writes where others
          may still read.
letters   Each rank has an outbox, in which letters lie until they have been taken. What does not fit goes by sockets;
          the sender decides, and says so where the receiver looks for the letter.

Ranks tell each other how far they are in counters, each written by one rank. On processors that may show two writes in
another order than they were made (all but x86) that does not do, and ranks keep to sockets. Each rank holds a lock,
which the system lets go of when the process ends, however it ends: so those that wait for it learn of it.
"""

from __future__ import annotations

import mmap
import os
import platform
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ptymesh.files import pid_space

if sys.platform != "win32":
    import fcntl

#: Bytes that sums take, of all ranks; of outboxes, of one rank and of all.
SUMS_BYTES, OUTBOX_BYTES, OUTBOXES_BYTES = 8 << 20, 8 << 20, 32 << 20
#: Bytes of a line of the cache, and of the next, which the processor fetches with it.
LINE = 128
#: A sum of fewer bytes than these is added up by every rank by itself, which takes one meeting, not two.
SMALL_BYTES = 1 << 18
#: Letters from one rank to another that may be on their way.
SLOTS = 2
#: Seconds in which a rank that waits does not sleep, that it then sleeps at a time, and from one look at whether the
#: others are still there to the next.
AWAKE_S, SLEEP_S, LOOK_S = 1e-3, 1e-4, 0.1

Combine = Callable[..., Tensor]


@dataclass(frozen=True)
class Plan:
    """Where in the file is what: counters, directory of letters, places of sums, outboxes; sizes in bytes."""

    size: int

    @property
    def directory(self) -> int:
        """Where it begins: after a line for each rank."""
        return self.size * LINE

    @property
    def sums(self) -> int:
        """Where they begin: after what has been sent and taken of each pair, and the places of it."""
        return _lines(self.directory + self.size**2 * (2 + SLOTS) * 8)

    @property
    def place(self) -> int:
        """Size of a rank's place in one half."""
        return SUMS_BYTES // (2 * self.size) // LINE * LINE

    @property
    def outboxes(self) -> int:
        """Byte at which the outboxes begin."""
        return self.sums + 2 * self.size * self.place

    @property
    def outbox(self) -> int:
        """Bytes of one rank's outbox."""
        return min(OUTBOX_BYTES, OUTBOXES_BYTES // self.size) // LINE * LINE

    @property
    def end(self) -> int:
        """Bytes of the whole memory."""
        return self.outboxes + self.size * self.outbox


def possible() -> bool:
    """Whether this system has such memory, and a processor that keeps the order of writes."""
    x86_linux = sys.platform == "linux" and platform.machine() == "x86_64"
    return x86_linux and hasattr(os, "memfd_create") and bool(pid_space())  # a Python for old systems lacks the call


def create(size: int) -> tuple[int, str]:
    """A new file of memory for so many ranks, open, and where `find` finds it; raises OSError where there is no room.

    It has no name that anybody could leave behind: others open it through this process, for as long as it is open here.
    """
    handle = os.memfd_create("ptymesh")
    try:
        os.posix_fallocate(handle, 0, Plan(size).end)  # now, for to run out of it later is fatal
    except OSError:
        os.close(handle)
        raise
    return handle, f"{pid_space()} /proc/{os.getpid()}/fd/{handle}"


def find(where: str) -> int:
    """The file that another process has made, opened by this one; raises OSError where that is on another machine."""
    space, _, path = where.rpartition(" ")
    if space != pid_space():
        raise FileNotFoundError(path)
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


class SharedMemory:
    """The memory as one rank sees it.

    Args:
        rank, size: of this process, and how many there are.
        handle: the file that `create` has made, opened by this process.
    """

    def __init__(self, rank: int, size: int, handle: int) -> None:
        self.rank, self.size, self._handle = rank, size, handle
        plan = Plan(size)
        memory = mmap.mmap(handle, plan.end)
        self._counters = np.frombuffer(memory, np.int64, size * LINE // 8)[:: LINE // 8]
        self._steps, self._half = 0, 0
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        self._places = whole[plan.sums : plan.outboxes].view(2, size, plan.place)
        self._outboxes = whole[plan.outboxes : plan.end].view(size, plan.outbox)
        pairs = np.frombuffer(memory, np.int64, size**2 * (2 + SLOTS), plan.directory).reshape(2 + SLOTS, size, size)
        #: By sender and receiver: letters that were sent, that were taken, and where in the outbox the last ones are.
        self._sent, self._taken, self._where = pairs[0], pairs[1], pairs[2:]
        #: Letters of mine that may not have been taken: whose, their number, and where they begin and end.
        self._out: deque[tuple[int, int, int, int]] = deque()
        self._awaited = [0] * size
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        #: Lets go of the lock, and of the memory once nobody holds a view of it: at the latest when this is forgotten.
        self.close = weakref.finalize(self, os.close, handle)

    # --- sums ---

    def reduce(self, flat: Tensor, combine: Combine) -> None:
        """Each element of flat (n,) becomes that of all ranks, combined (torch.add, torch.maximum); all take part.

        Raises RuntimeError where a rank has ended that others wait for.
        """
        for piece in flat.split(self._places.shape[-1] // flat.element_size()):
            self._reduce(piece, combine)

    def _reduce(self, piece: Tensor, combine: Combine) -> None:
        self._half = 1 - self._half
        places = self._places[self._half].view(piece.dtype)[:, : len(piece)]
        own = places[self.rank]
        own.copy_(piece)
        self.meet()
        if piece.numel() * piece.element_size() < SMALL_BYTES:
            _combined(places, combine, piece)
            return
        shares = [slice(len(piece) * r // self.size, len(piece) * (r + 1) // self.size) for r in range(self.size)]
        mine = shares[self.rank]  # of everybody's numbers, which nobody else reads
        _combined(places[:, mine], combine, piece[mine])
        own[mine] = piece[mine]
        self.meet()
        for place, share in zip(places, shares, strict=True):
            piece[share] = place[share]

    def meet(self) -> None:
        """Returns when all ranks have come here."""
        self._steps += 1
        self._counters[self.rank] = self._steps
        self._wait_for(self._counters, self._steps)

    @property
    def meetings(self) -> int:
        """How often all ranks have met."""
        return self._steps

    # --- letters ---

    def send(self, letter: Tensor, rank: int, by_socket: Callable[[], Any]) -> Any:
        """Bytes (n,) to another rank; what `by_socket` returned if that had to be called, else None."""
        number = int(self._sent[self.rank, rank]) + 1
        taken = self._taken[self.rank]
        self._wait_for(taken[rank : rank + 1], number - SLOTS, rank)
        while self._out and taken[self._out[0][0]] >= self._out[0][1]:
            self._out.popleft()
        at = self._free(len(letter))
        work = None
        if at < 0:
            work = by_socket()
        else:
            self._outboxes[self.rank, at : at + len(letter)] = letter
            self._out.append((rank, number, at, at + len(letter)))
        self._where[number % SLOTS, self.rank, rank] = at
        self._sent[self.rank, rank] = number
        return work

    def _free(self, size: int) -> int:
        """Where in the outbox, which is filled round and round, there is so much room; -1 where there is none."""
        room = self._outboxes.shape[1]
        if not self._out:
            return 0 if size <= room else -1
        first, last = self._out[0][2], _lines(self._out[-1][3])
        if last > first:  # what is in it does not go round
            return last if last + size <= room else 0 if size < first else -1
        return last if last + size < first else -1

    def awaited(self, letter: Tensor, rank: int, by_socket: Callable[[], Any]) -> Callable[[], None]:
        """What waits for the next letter from a rank, and copies it to bytes (n,) or has it received by socket."""
        self._awaited[rank] += 1
        return lambda number=self._awaited[rank]: self._receive(letter, rank, number, by_socket)  # type: ignore[misc]

    def _receive(self, letter: Tensor, rank: int, number: int, by_socket: Callable[[], Any]) -> None:
        self._wait_for(self._sent[rank, self.rank : self.rank + 1], number, rank)
        at = int(self._where[number % SLOTS, rank, self.rank])
        if at < 0:
            by_socket()
        else:
            letter.copy_(self._outboxes[rank, at : at + len(letter)])
        self._taken[rank, self.rank] = number

    # --- waiting ---

    def _wait_for(self, counters: np.ndarray, number: int, first: int = 0) -> None:
        """Returns when counters of all ranks, or of some from the first on, have come so far."""
        if counters.min() >= number:
            return
        began = looked = time.perf_counter()
        while counters.min() < number:
            now = time.perf_counter()
            if now - began < AWAKE_S:
                os.sched_yield()
                continue
            time.sleep(SLEEP_S)
            if now - looked > LOOK_S:
                self._look(counters, number, first)
                looked = now

    def _look(self, counters: np.ndarray, number: int, first: int) -> None:
        """Raises RuntimeError where a rank that is waited for has ended: nobody holds its lock."""
        for place in np.flatnonzero(counters < number):
            rank = first + int(place)
            try:
                fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
            except OSError:
                continue
            fcntl.lockf(self._handle, fcntl.LOCK_UN, 1, rank)
            if counters[place] < number:  # it has not come meanwhile and ended then
                raise RuntimeError(f"Connection closed: rank {rank} has ended")


def _combined(places: Tensor, combine: Combine, out: Tensor) -> None:
    """Rows of places (R, n) combined, into out (n,)."""
    combine(places[0], places[1], out=out)
    for place in places[2:]:
        combine(out, place, out=out)


def _lines(count: int) -> int:
    """Bytes, rounded up to whole lines."""
    return -(-count // LINE) * LINE
