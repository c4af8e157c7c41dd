"""Patterns that lie elsewhere than on the computing device: in the host's memory, or in a file on a local disk.

A thread reads them piece by piece while earlier pieces are being computed, as far ahead as `prefetch` has announced;
the latest pieces are kept within a limit of memory, for engines that sweep a batch more than once.
"""

from __future__ import annotations

import mmap
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed.devices import KINDS
from ptymesh.physics.resample import corner_crop
from ptymesh.storage.patterns import Patterns, Slotted, put
from ptymesh.storage.scratch import Scratch


class Fetched(Slotted):
    """Patterns elsewhere than on the computing device, brought there piece by piece by a thread.

    Args:
        shape: (n, h, w).
        dtype: of the counts.
        device: the computing device.
        capacity: bytes that pieces under way and kept may take together.
    """

    fetched = True

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, capacity: int) -> None:
        super().__init__(shape, dtype)
        self.device, self._most_bytes = device, capacity
        self._pieces: OrderedDict[bytes, Future[_Piece]] = OrderedDict()
        self._kept_bytes, self._memory = 0, BufferPool()
        self._pool = ThreadPoolExecutor(1, "ptymesh-patterns")
        self._module = torch.get_device_module(device) if device.type in KINDS else None
        self._stream = self._module.Stream(device) if self._module else None

    def rows(self, rows: Tensor) -> Tensor:
        """Return the patterns (B, h, w) of these rows (B,), waiting for them if needed."""
        began = perf_counter()
        piece = self._start(rows).result()
        self.waited_s += perf_counter() - began
        return piece.arrived()

    def prefetch(self, pieces: Sequence[Tensor]) -> None:
        """Start reading the pieces that will be used next, in this order, up to half the capacity."""
        ahead = 0
        for rows in pieces:
            ahead += len(rows) * self.frame_bytes
            if ahead > self._most_bytes // 2:
                return
            self._start(rows)

    def cropped(self, c: int) -> Patterns:
        """Return the inner 1/c of the detector, cropped when it is read."""
        return Cropped(self, c)

    def close(self) -> None:
        """Stop the thread that reads ahead."""
        self._pool.shutdown(cancel_futures=True)
        self._drop_copies()

    def _start(self, rows: Tensor) -> Future[_Piece]:
        """Return the future of a piece, and drop the oldest pieces beyond the capacity."""
        key = rows.numpy().tobytes()
        if key not in self._pieces:
            self._pieces[key] = self._pool.submit(self._bring, rows)
            self._kept_bytes += len(key) // 8 * self.frame_bytes
            while self._kept_bytes > self._most_bytes and len(self._pieces) > 1:
                oldest, piece = self._pieces.popitem(last=False)
                piece.cancel()
                self._kept_bytes -= len(oldest) // 8 * self.frame_bytes
        return self._pieces[key]

    def _bring(self, rows: Tensor) -> _Piece:
        """Read a piece, and send it to the device from page-locked memory; runs in the thread."""
        on_host = self._read(self._slot(rows))
        self.fetched_bytes += on_host.numel() * on_host.element_size()
        if self._module is None:
            return _Piece(on_host)
        with self._module.device(self.device), self._module.stream(self._stream):
            on_device = on_host.to(self.device, non_blocking=True)
            event = self._module.Event()
            event.record(self._stream)
        return _Piece(on_device, event)

    def _drop_copies(self) -> None:
        """Drop all pieces."""
        for piece in self._pieces.values():
            piece.cancel()
        self._pieces.clear()
        self._kept_bytes = 0

    def _host_buffer(self, rows: int) -> Tensor:
        """Return a host buffer (rows, h, w) that numpy can address, page-locked if a device copies from it."""
        count = rows * self.frame_bytes
        if self._stream is None:
            flat = self._memory.take_buffer(count)
        else:
            flat = torch.empty(count, dtype=torch.uint8, pin_memory=True)
        return flat.view(self.dtype).view(rows, *self.shape[1:])


class BufferPool:
    """Pool of buffers for pieces, used again for later ones when nobody references them any more.

    Buffers are mapped, not taken from the heap: there, pieces of many sizes between other arrays would fragment the
    memory.
    """

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []
        self._taking = Lock()

    def take_buffer(self, count: int) -> Tensor:
        """Return a buffer of so many bytes, (count,) uint8, with any content."""
        with self._taking:  # buffers that are freed meanwhile are appended
            fitting = [k for k, memory in enumerate(self._free) if count <= len(memory) <= 2 * count]
            if fitting:
                memory = self._free.pop(fitting[-1])
            else:  # free buffers have other sizes than those needed now
                self._free.clear()
                memory = np.frombuffer(mmap.mmap(-1, max(count, 1)), np.uint8)
        lent = memory[:count]  # torch drops its reference with the last tensor in this memory
        weakref.finalize(lent, self._free.append, memory).atexit = False
        return torch.from_numpy(lent)


class Hosted(Fetched):
    """Patterns in the host's memory, for a device with too little memory for them.

    They are gathered into page-locked memory piece by piece: locking all of them would leave too little of the host's
    memory to other programs, and rows in any order must be gathered anyway.
    """

    kind = "host"

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, capacity: int) -> None:
        super().__init__(shape, dtype, device, capacity)
        self._tensor = torch.empty(shape, dtype=dtype)

    def _grow(self, capacity: int) -> None:
        grown = self._tensor.new_empty((capacity, *self.shape[1:]))
        grown[: len(self._tensor)] = self._tensor
        self._tensor = grown

    def _read(self, slots: Tensor) -> Tensor:
        return torch.index_select(self._tensor, 0, slots, out=self._host_buffer(len(slots)))

    def _write(self, slots: Tensor, slab: Tensor) -> None:
        put(self._tensor, slots, slab)


class Staged(Fetched):
    """Patterns in a file on a local disk, uncompressed, in the order of the rows; see `Scratch`."""

    kind = "disk"

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, capacity: int, folder: Path | None
    ) -> None:
        self._file = Scratch(folder, shape[0], shape[1] * shape[2] * dtype.itemsize)
        super().__init__(shape, dtype, device, capacity)
        weakref.finalize(self, self._file.close)

    def where(self) -> str:
        """Return a sentence that says how large the patterns are and in which folder they are staged."""
        return f"{super().where()} in {self._file.folder}"

    def close(self) -> None:
        """Stop the thread, and delete the file."""
        super().close()
        self._file.close()

    def fill(self, arrived: Iterable[Tensor]) -> None:
        """Write all patterns, slabs (k, h, w) of the host in the order of the rows, to the file."""
        super().fill(arrived)
        self._file.flush()

    def _grow(self, capacity: int) -> None:
        self._file.grow(capacity)

    def _read(self, slots: Tensor) -> Tensor:
        out = self._host_buffer(len(slots))
        self._file.read(slots.numpy(), _frames(out))
        return out

    def _write(self, slots: Tensor, slab: Tensor) -> None:
        self._file.write(slots.numpy(), _frames(slab))


class Cropped(Patterns):
    """The inner 1/c of the detector of fetched patterns, cropped when they are read.

    Rows that are added by `replace` are kept on the computing device: they are few, and small.
    """

    fetched = True

    def __init__(self, patterns: Fetched, c: int) -> None:
        super().__init__((len(patterns), patterns.shape[1] // c, patterns.shape[2] // c), patterns.dtype)
        self.kind, self._whole, self._c = patterns.kind, patterns, c
        #: For each row, its row among the whole patterns, or -1 - k for added row k.
        self._origin = torch.arange(len(patterns))
        self._guests = torch.empty((0, *self.shape[1:]), dtype=self.dtype, device=patterns.device)

    def rows(self, rows: Tensor) -> Tensor:
        """Return the patterns (B, h/c, w/c) of these rows (B,)."""
        origin = self._origin[rows]
        cropped = corner_crop(self._whole.rows(origin[origin >= 0]), self._c)
        if bool((origin >= 0).all()):
            return cropped
        guests = self._guests.index_select(0, (-1 - origin[origin < 0]).to(self._guests.device))
        order = torch.cat(((origin >= 0).nonzero(), (origin < 0).nonzero())).argsort(dim=0)[:, 0]
        return torch.cat((cropped, guests)).index_select(0, order.to(cropped.device))

    def prefetch(self, pieces: Sequence[Tensor]) -> None:
        """Start reading the pieces that will be used next, in this order."""
        origins = [self._origin[rows] for rows in pieces]
        self._whole.prefetch([origin[origin >= 0] for origin in origins])

    def cropped(self, c: int) -> Patterns:
        """Return a smaller crop; not possible after rows were added."""
        assert not len(self._guests), "crop the whole patterns instead"
        return Cropped(self._whole, self._c * c)

    def take(self, rows: Tensor) -> Tensor:
        """Return the patterns (B, h/c, w/c) of these rows in the host's memory."""
        return self.rows(rows.cpu()).cpu()

    def replace(self, source: Tensor, arrived: Iterable[Tensor]) -> None:
        """Replace rows as `Patterns.replace` says; the whole patterns do not change."""
        source = source.cpu()
        origin = torch.where(source >= 0, self._origin[source.clamp(min=0)], 0) if len(self) else source.clone()
        stay = (source >= 0) & (origin < 0)
        guests = [self._guests.index_select(0, (-1 - origin[stay]).to(self._guests.device))]
        guests += [slab.to(self._guests.device) for slab in arrived]
        join = source < 0
        came = sum(len(slab) for slab in guests[1:])
        assert came == int(join.sum()), f"{came} patterns came for {int(join.sum())} places"
        self._guests = torch.cat(guests)
        for places, first in ((stay, 0), (join, int(stay.sum()))):
            origin[places] = -1 - first - torch.arange(int(places.sum()))
        self._origin, self.shape = origin, (len(source), *self.shape[1:])


@dataclass(frozen=True)
class _Piece:
    """Patterns on the device.

    Attributes:
        patterns: (B, h, w).
        event: recorded by a GPU when the copy is complete; None on a CPU.
    """

    patterns: Tensor
    event: torch.Event | None = None

    def arrived(self) -> Tensor:
        """Return the patterns; work that is queued later on this stream waits for the copy."""
        if self.event is not None:
            stream = torch.get_device_module(self.patterns.device).current_stream(self.patterns.device)
            stream.wait_event(self.event)
            self.patterns.record_stream(stream)
        return self.patterns


def _frames(patterns: Tensor) -> np.ndarray:
    """Return patterns (B, h, w) of the host as bytes, (B, frame), in the same memory."""
    values = patterns.contiguous().numpy()
    return values.reshape(len(values), values.shape[1] * values.shape[2]).view(np.uint8)
