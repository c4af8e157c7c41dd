"""Shared memory of the ranks of one machine, instead of messages through sockets.

R   ranks;  n  numbers of a message

Through sockets, two processes of one machine take milliseconds for what copying takes microseconds.

sums      Each rank copies its numbers to its own place, which all can read; all places are added up in the order of
          ranks, so that every rank has the same bits. Two halves of the memory alternate, so that no rank writes where
          others may still read.
letters   (Point-to-point messages.) Each rank has an outbox, a ring buffer in which letters lie until the receiver has
          copied them. A letter that does not fit is sent through sockets; the sender decides, and says so in the
          directory where the receiver looks for the letter.

Ranks publish their progress in counters, each written by one rank. This requires that other processors see writes in
the order in which they were made: only x86 guarantees that, elsewhere ranks use sockets. Each rank holds a file lock,
which the system releases when the process ends, however it ends: ranks that wait for it detect that.
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
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ptymesh.files import pid_space

if TYPE_CHECKING:
    from torch.distributed import Work

if sys.platform != "win32":
    import fcntl

#: Bytes for the sums of all ranks; for one rank's outbox; for all outboxes.
SUMS_BYTES, OUTBOX_BYTES, OUTBOXES_BYTES = 8 << 20, 8 << 20, 32 << 20
#: Bytes of a cache line and the next, which the processor fetches with it: counters so far apart share no line.
LINE = 128
#: Each rank adds up all of a sum of fewer bytes than these, which takes one barrier instead of two.
SMALL_BYTES = 1 << 18
#: Letters from one rank to another that may be in transit.
SLOTS = 2
#: Seconds for which a waiting rank spins; for which it then sleeps at a time; between two checks that others live.
AWAKE_S, SLEEP_S, LOOK_S = 1e-3, 1e-4, 0.1

Combine = Callable[..., Tensor]


@dataclass(frozen=True)
class MemoryLayout:
    """Offsets in the shared file: counters, directory of letters, places of sums, outboxes; sizes in bytes.

    Attributes:
        size: number of ranks.
    """

    size: int

    @property
    def directory(self) -> int:
        """Offset of the directory of letters: after a cache line for each rank's counter."""
        return self.size * LINE

    @property
    def sums(self) -> int:
        """Offset of the sums, after the directory: for each pair of ranks, letters sent, letters taken, offsets."""
        return _lines(self.directory + self.size**2 * (2 + SLOTS) * 8)

    @property
    def place(self) -> int:
        """Bytes of one rank's place in one half."""
        return SUMS_BYTES // (2 * self.size) // LINE * LINE

    @property
    def outboxes(self) -> int:
        """Offset of the outboxes."""
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
    """Return True if this system has such memory, and a processor that keeps the order of writes."""
    x86_linux = sys.platform == "linux" and platform.machine() == "x86_64"
    return x86_linux and hasattr(os, "memfd_create") and bool(pid_space())  # Pythons built for old systems lack memfd


def create(size: int) -> tuple[int, str]:
    """Create the shared file.

    It has no name that could be left behind: other processes open it through this one, while it is open here.

    Args:
        size: number of ranks.

    Returns:
        File descriptor, and the text by which `find` opens it.

    Raises:
        OSError: there is not enough memory.
    """
    handle = os.memfd_create("ptymesh")
    try:
        os.posix_fallocate(handle, 0, MemoryLayout(size).end)  # now: a page fault without memory would kill the process
    except OSError:
        os.close(handle)
        raise
    return handle, f"{pid_space()} /proc/{os.getpid()}/fd/{handle}"


def find(where: str) -> int:
    """Open the file that another process has created, and return its descriptor.

    Raises:
        OSError: that process runs on another machine or in another pid namespace, or has ended.
    """
    space, _, path = where.rpartition(" ")
    if space != pid_space():
        raise FileNotFoundError(path)
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


class SharedMemory:
    """Shared memory as one rank uses it.

    Args:
        rank: this rank.
        size: number of ranks.
        handle: descriptor of the file that `create` has made, opened by this process.
    """

    def __init__(self, rank: int, size: int, handle: int) -> None:
        self.rank, self.size, self._handle = rank, size, handle
        plan = MemoryLayout(size)
        memory = mmap.mmap(handle, plan.end)
        self._counters = np.frombuffer(memory, np.int64, size * LINE // 8)[:: LINE // 8]
        self._steps, self._half = 0, 0
        bytes_of_memory = torch.frombuffer(memory, dtype=torch.uint8)
        self._places = bytes_of_memory[plan.sums : plan.outboxes].view(2, size, plan.place)
        self._outboxes = bytes_of_memory[plan.outboxes : plan.end].view(size, plan.outbox)
        pairs = np.frombuffer(memory, np.int64, size**2 * (2 + SLOTS), plan.directory).reshape(2 + SLOTS, size, size)
        #: (size, size) by sender and receiver: letters sent, letters taken, and the outbox offsets of the last ones.
        self._sent, self._taken, self._where = pairs[0], pairs[1], pairs[2:]
        #: This rank's letters that may not have been taken: receiver, number, first byte, byte after the last.
        self._out: deque[tuple[int, int, int, int]] = deque()
        self._awaited = [0] * size
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        #: Releases the lock, and the memory once no view of it exists; called at the latest when this object is freed.
        self.close = weakref.finalize(self, os.close, handle)

    # --- sums ---

    def reduce(self, flat: Tensor, combine: Combine) -> None:
        """Combine each element over ranks, in place. Collective.

        Args:
            flat: (n,), replaced by the result.
            combine: torch.add or torch.maximum.

        Raises:
            RuntimeError: a rank that others wait for has ended.
        """
        for piece in flat.split(self._places.shape[-1] // flat.element_size()):
            self._reduce(piece, combine)

    def _reduce(self, piece: Tensor, combine: Combine) -> None:
        """Combine a piece that fits into a rank's place.

        Of a large piece each rank combines a share, and then copies the shares of the others.
        """
        self._half = 1 - self._half
        places = self._places[self._half].view(piece.dtype)[:, : len(piece)]
        own_place = places[self.rank]
        own_place.copy_(piece)
        self.barrier()
        if piece.numel() * piece.element_size() < SMALL_BYTES:
            _combined(places, combine, piece)
            return
        shares = [slice(len(piece) * r // self.size, len(piece) * (r + 1) // self.size) for r in range(self.size)]
        mine = shares[self.rank]  # no other rank reads this share of the inputs
        _combined(places[:, mine], combine, piece[mine])
        own_place[mine] = piece[mine]
        self.barrier()
        for place, share in zip(places, shares, strict=True):
            piece[share] = place[share]

    def barrier(self) -> None:
        """Wait at a barrier of all ranks. Collective."""
        self._steps += 1
        self._counters[self.rank] = self._steps
        self._wait_for(self._counters, self._steps)

    @property
    def barriers(self) -> int:
        """Number of barriers so far."""
        return self._steps

    # --- letters ---

    def send(self, letter: Tensor, rank: int, by_socket: Callable[[], Work | None]) -> Work | None:
        """Send a letter to another rank; waits while SLOTS earlier ones to that rank have not been taken.

        Args:
            letter: (n,) uint8.
            rank: receiver.
            by_socket: sends it through a socket, called if the outbox has no space.

        Returns:
            Result of `by_socket` if that was called, else None.
        """
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
        """Return the offset of `size` free bytes in the outbox, a ring buffer; -1 if there are none."""
        room = self._outboxes.shape[1]
        if not self._out:
            return 0 if size <= room else -1
        first, last = self._out[0][2], _lines(self._out[-1][3])
        if last > first:  # its content does not wrap around
            return last if last + size <= room else 0 if size < first else -1
        return last if last + size < first else -1

    def awaited(self, letter: Tensor, rank: int, by_socket: Callable[[], object]) -> Callable[[], None]:
        """Return a function that waits for the next letter from a rank and receives it.

        Args:
            letter: (n,) uint8, filled when the function is called.
            rank: sender.
            by_socket: receives it through a socket, called if the sender did so.
        """
        self._awaited[rank] += 1
        return lambda number=self._awaited[rank]: self._receive(letter, rank, number, by_socket)  # type: ignore[misc]

    def _receive(self, letter: Tensor, rank: int, number: int, by_socket: Callable[[], object]) -> None:
        self._wait_for(self._sent[rank, self.rank : self.rank + 1], number, rank)
        at = int(self._where[number % SLOTS, rank, self.rank])
        if at < 0:
            by_socket()
        else:
            letter.copy_(self._outboxes[rank, at : at + len(letter)])
        self._taken[rank, self.rank] = number

    # --- waiting ---

    def _wait_for(self, counters: np.ndarray, number: int, first: int = 0) -> None:
        """Wait until all of the counters, of the ranks from `first` on, have reached `number`."""
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
                self._raise_if_ended(counters, number, first)
                looked = now

    def _raise_if_ended(self, counters: np.ndarray, number: int, first: int) -> None:
        """Raise RuntimeError if a rank that is waited for has ended, so that its lock is free."""
        for place in np.flatnonzero(counters < number):
            rank = first + int(place)
            try:
                fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
            except OSError:
                continue
            fcntl.lockf(self._handle, fcntl.LOCK_UN, 1, rank)
            if counters[place] < number:  # else it had reached the number before it ended
                raise RuntimeError(f"Connection closed: rank {rank} has ended")


def _combined(places: Tensor, combine: Combine, out: Tensor) -> None:
    """Combine the rows of places (R, n), in order of rank, into out (n,)."""
    combine(places[0], places[1], out=out)
    for place in places[2:]:
        combine(out, place, out=out)


def _lines(count: int) -> int:
    """Return a number of bytes rounded up to whole cache lines."""
    return -(-count // LINE) * LINE
