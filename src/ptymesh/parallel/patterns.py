"""Where a rank's patterns live: on its device, in the host's memory, or in a file on a local disk.

n       this rank's patterns; a row is the place of one among `layout.own`
h, w    window pixels
slot    where a row lies; the row itself, until views have moved from rank to rank
piece   rows that are swept together

Every kind hands out the same bits, in the detector's own dtype, on the device that computes. What is not on that
device is brought there by a thread of its own while earlier pieces are being computed, as far as `prefetch` said what
comes next; the pieces last brought are kept while there is room, for engines that sweep a batch more than once.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.measurement import PatternSource
from ptymesh.parallel.devices import free_bytes
from ptymesh.parallel.scratch import Scratch
from ptymesh.physics.resample import corner_crop

Kind = Literal["device", "host", "disk"]

#: What is read from the source, or moved, at a time: so many bytes, but at most so many views.
SLAB_BYTES, SLAB_VIEWS = 16 << 20, 64
#: Share of a device's free memory that patterns may take; the rest is for the object, waves and FFT plans.
DEVICE_SHARE = 0.7
#: Pieces that are under way at a time, and what all those kept may take where patterns come from elsewhere.
LOOKAHEAD, KEPT_BYTES = 8, 1 << 30
_PLACES: dict[Kind, str] = {"device": "on the device", "host": "in host memory", "disk": "staged on disk"}
#: What pieces kept may take of a budget is a quarter: as much again is lost between them in the heap (measured), and
#: slabs on their way to the disk need room too.
KEPT_SHARE = 4
#: A budget must hold so many patterns at least.
LEAST_VIEWS = 16


@dataclass(frozen=True)
class Room:
    """What patterns may take.

    Fields:
        budget: bytes of memory for each rank's patterns, the device's or the host's; None: all that there is.
        scratch: folder for what does not fit; None: the system's folder for temporary files.
    """

    budget: int | None = None
    scratch: Path | None = None


def choose(needed: int, frame: int, device: torch.device, room: Room) -> Kind:
    """Where patterns of so many bytes go, `frame` each: the device, else the host, else, beyond the budget, the disk.

    A CPU is both device and host. Raises BadInput for a budget that does not hold a few patterns.
    """
    if room.budget is not None and room.budget < LEAST_VIEWS * frame:
        raise BadInput(
            f"memory_budget is {size(room.budget)}, and one pattern takes {size(frame)}; give {LEAST_VIEWS} patterns "
            f"of room at least, {size(LEAST_VIEWS * frame)}."
        )
    if room.budget is not None and needed > room.budget:
        return "disk"
    if device.type == "cpu" or needed > DEVICE_SHARE * free_bytes(device):
        return "host"
    return "device"


def stored(source: PatternSource, own: np.ndarray, most: int, device: torch.device, room: Room) -> Patterns:
    """The views `own` of a source, read slab by slab; `most` (views of the rank that has most) decides their kind.

    Raises BadInput for a budget or a scratch folder that does not do, and what the source raises.
    """
    frame = int(np.prod(source.shape[1:])) * source.dtype.itemsize
    kind = choose(most * frame, frame, device, room)
    shape, dtype = (len(own), *source.shape[1:]), _torch_dtype(source.dtype)
    made: Patterns
    if kind == "disk":
        assert room.budget is not None
        made = Staged(shape, dtype, device, min(room.budget // KEPT_SHARE, KEPT_BYTES), room.scratch)
    elif kind == "host" and device.type != "cpu":
        made = Hosted(shape, dtype, device, KEPT_BYTES)
    else:
        made = Resident(torch.empty(shape, dtype=dtype, device=device))
    try:
        made.fill(_slab(source.read(own[part])) for part in slabs(len(own), frame))
    except BaseException:
        made.close()
        raise
    return made


class Patterns(ABC):
    """This rank's patterns (n, h, w).

    Attributes:
        kind: device, host or disk.
        shape, dtype: (n, h, w), as the detector counts.
        indexed_on: the device on which `rows` wants its indices.
        waited_s, fetched_bytes: what the computation has waited for patterns, and how much was brought to it.
    """

    kind: Kind
    indexed_on = torch.device("cpu")

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.shape, self.dtype = tuple(shape), dtype
        self.waited_s, self.fetched_bytes = 0.0, 0
        self._capacity = shape[0]
        self._slots: Tensor | None = None

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def frame_bytes(self) -> int:
        """Of one pattern."""
        return self.shape[1] * self.shape[2] * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Of all patterns."""
        return len(self) * self.frame_bytes

    def where(self) -> str:
        """How much there is on this rank, and where it is kept: `Patterns: 640 MB per rank (uint16) in host memory`."""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"Patterns: {size(self.nbytes)} per rank ({dtype}) {_PLACES[self.kind]}"

    @abstractmethod
    def rows(self, rows: Tensor) -> Tensor:
        """Patterns (B, h, w) of these rows (B,), on the device that computes. Not to be written to."""

    def prefetch(self, pieces: Sequence[Tensor]) -> None:  # noqa: B027 - nothing to do where patterns are at hand
        """Says which pieces `rows` will be asked for next, in this order."""

    def sweep(self, rows: np.ndarray, size: int, coming: np.ndarray | None = None) -> Iterator[Tensor]:
        """Patterns of these rows (n,), a piece of at most `size` at a time; `coming`: rows that are swept after them.

        What comes next is on the way while a piece is being worked on.
        """
        pieces = torch.as_tensor(rows, device=self.indexed_on).split(size)
        later = () if coming is None else torch.as_tensor(coming).split(size)
        for k, piece in enumerate(pieces):
            self.prefetch((*pieces[k : k + LOOKAHEAD], *later)[:LOOKAHEAD])
            yield self.rows(piece)

    @abstractmethod
    def cropped(self, c: int) -> Patterns:
        """The inner 1/c of the detector, (n, h/c, w/c), DC at the corner; to be made anew after `replace`."""

    def fill(self, arrived: Iterable[Tensor]) -> None:
        """Takes all patterns, slabs (k, h, w) of the host in the order of the rows."""
        self._settle(torch.arange(len(self)), arrived)

    def take(self, rows: Tensor) -> Tensor:
        """Patterns (B, h, w) of these rows in the host's memory, to be sent to another rank."""
        return self._read(self._slot(rows.cpu()))

    def replace(self, source: Tensor, arrived: Iterable[Tensor]) -> None:
        """Holds other rows from here on: row i is what row source[i] was, or, where that is -1, the next that arrives.

        source: (n',) int64, n' any number. arrived: slabs (k, h, w) of the host that hold the rows marked -1, in order.
        What leaves is overwritten: `take` it first.
        """
        kept = source >= 0
        slots = torch.where(kept, self._slot(source.clamp(min=0)), -1)
        free = np.setdiff1d(np.arange(self._capacity), slots[kept].numpy())
        wanted = int((~kept).sum())
        if wanted > len(free):
            grown = self._capacity + wanted - len(free)
            free = np.concatenate((free, np.arange(self._capacity, grown)))
            self._grow(grown)
            self._capacity = grown
        slots[~kept] = torch.from_numpy(free[:wanted])
        self._slots, self.shape = slots, (len(source), *self.shape[1:])
        self._forget()
        self._settle(slots[~kept], arrived)

    def close(self) -> None:  # noqa: B027 - memory needs nothing
        """Lets go of threads and files; may be called again."""

    @abstractmethod
    def _grow(self, capacity: int) -> None:
        """Makes room for so many slots."""

    @abstractmethod
    def _read(self, slots: Tensor) -> Tensor:
        """What lies in these slots (B,), in the host's memory."""

    @abstractmethod
    def _write(self, slots: Tensor, slab: Tensor) -> None:
        """Puts a slab (k, h, w) of the host into slots (k,)."""

    def _slot(self, rows: Tensor) -> Tensor:
        return rows if self._slots is None else self._slots[rows]

    def _settle(self, slots: Tensor, arrived: Iterable[Tensor]) -> None:
        done = 0
        for slab in arrived:
            if len(slab):
                self._write(slots[done : done + len(slab)], slab)
            done += len(slab)
        assert done == len(slots), f"{done} patterns came for {len(slots)} places"

    def _forget(self) -> None:  # noqa: B027 - nothing is remembered where patterns are at hand
        """What was brought before is no longer what its rows are."""


class Resident(Patterns):
    """Patterns in the memory of the device that computes: a tensor (n, h, w) there."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(tensor.shape, tensor.dtype)
        self.tensor, self.indexed_on = tensor, tensor.device
        self.kind = "host" if tensor.device.type == "cpu" else "device"

    def rows(self, rows: Tensor) -> Tensor:
        """Patterns (B, h, w) of these rows (B,)."""
        slots = self._slot(rows)
        if self.tensor.device.type == "cpu":  # numpy copies whole patterns, torch pixel by pixel
            return torch.from_numpy(self.tensor.numpy()[slots.numpy()])
        return self.tensor.index_select(0, slots)

    def cropped(self, c: int) -> Patterns:
        """A copy of the inner 1/c of the detector."""
        every = torch.arange(len(self), device=self.indexed_on)
        made = self.tensor.new_empty((len(self), self.shape[1] // c, self.shape[2] // c))
        for part in slabs(len(self), self.frame_bytes):
            made[part] = corner_crop(self.rows(every[part]), c)
        return Resident(made)

    def replace(self, source: Tensor, arrived: Iterable[Tensor]) -> None:
        """See `Patterns.replace`."""
        self._slots = None if self._slots is None else self._slots.cpu()
        super().replace(source.cpu(), arrived)
        assert self._slots is not None
        self._slots = self._slots.to(self.indexed_on)

    def take(self, rows: Tensor) -> Tensor:
        """See `Patterns.take`."""
        return self.rows(rows.to(self.indexed_on)).cpu()

    def _grow(self, capacity: int) -> None:
        grown = self.tensor.new_empty((capacity, *self.shape[1:]))
        grown[: len(self.tensor)] = self.tensor
        self.tensor = grown

    def _read(self, slots: Tensor) -> Tensor:
        return self.tensor.index_select(0, slots.to(self.indexed_on)).cpu()

    def _write(self, slots: Tensor, slab: Tensor) -> None:
        _put(self.tensor, slots, slab)


class Fetched(Patterns):
    """Patterns elsewhere than on the device that computes, brought there piece by piece by a thread.

    device: the one that computes; capacity: bytes that the pieces under way and those kept may take together.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, capacity: int) -> None:
        super().__init__(shape, dtype)
        self.device, self._most = device, capacity
        self._pieces: OrderedDict[bytes, Future[_Piece]] = OrderedDict()
        self._held = 0
        self._pool = ThreadPoolExecutor(1, "ptymesh-patterns")
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def rows(self, rows: Tensor) -> Tensor:
        """Patterns (B, h, w) of these rows (B,), waited for where they are not here yet."""
        began = perf_counter()
        piece = self._start(rows).result()
        self.waited_s += perf_counter() - began
        return piece.arrived()

    def prefetch(self, pieces: Sequence[Tensor]) -> None:
        """Brings pieces that will be asked for next, in this order, at most half of what may be kept."""
        ahead = 0
        for rows in pieces:
            ahead += len(rows) * self.frame_bytes
            if ahead > self._most // 2:
                return
            self._start(rows)

    def cropped(self, c: int) -> Patterns:
        """The same patterns, cropped when they are asked for."""
        return Cropped(self, c)

    def close(self) -> None:
        """Ends the thread."""
        self._pool.shutdown(cancel_futures=True)
        self._forget()

    def _start(self, rows: Tensor) -> Future[_Piece]:
        key = rows.numpy().tobytes()
        if key not in self._pieces:
            self._pieces[key] = self._pool.submit(self._bring, rows)
            self._held += len(key) // 8 * self.frame_bytes
            while self._held > self._most and len(self._pieces) > 1:
                oldest, piece = self._pieces.popitem(last=False)
                piece.cancel()
                self._held -= len(oldest) // 8 * self.frame_bytes
        return self._pieces[key]

    def _bring(self, rows: Tensor) -> _Piece:
        """In the thread: reads a piece, and sends it to the device from page-locked memory."""
        here = self._read(self._slot(rows))
        self.fetched_bytes += here.numel() * here.element_size()
        if self._stream is None:
            return _Piece(here)
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            there = here.to(self.device, non_blocking=True)
            event = torch.cuda.Event()
            event.record(self._stream)
        return _Piece(there, event)

    def _forget(self) -> None:
        for piece in self._pieces.values():
            piece.cancel()
        self._pieces.clear()
        self._held = 0

    def _room_for(self, rows: int) -> Tensor:
        """A tensor (rows, h, w) of the host, page-locked where a device copies from it; as numpy can address it."""
        flat = torch.empty(rows * self.frame_bytes, dtype=torch.uint8, pin_memory=self._stream is not None)
        return flat.view(self.dtype).view(rows, *self.shape[1:])


class Hosted(Fetched):
    """Patterns in the host's memory, for a device that has no room for them.

    They are gathered into page-locked memory piece by piece: all of the host's memory locked would leave too little
    to everything else on the machine, and rows in any order must be gathered anyway.
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
        return torch.index_select(self._tensor, 0, slots, out=self._room_for(len(slots)))

    def _write(self, slots: Tensor, slab: Tensor) -> None:
        _put(self._tensor, slots, slab)


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
        """See `Patterns.where`; with the folder."""
        return f"{super().where()} in {self._file.folder}"

    def close(self) -> None:
        """Ends the thread and gives the disk's room back."""
        super().close()
        self._file.close()

    def fill(self, arrived: Iterable[Tensor]) -> None:
        """See `Patterns.fill`."""
        super().fill(arrived)
        self._file.flush()

    def _grow(self, capacity: int) -> None:
        self._file.grow(capacity)

    def _read(self, slots: Tensor) -> Tensor:
        out = self._room_for(len(slots))
        self._file.read(slots.numpy(), _frames(out))
        return out

    def _write(self, slots: Tensor, slab: Tensor) -> None:
        self._file.write(slots.numpy(), _frames(slab))


class Cropped(Patterns):
    """The inner 1/c of the detector of patterns that are fetched, cropped when they are asked for."""

    def __init__(self, whole: Fetched, c: int) -> None:
        super().__init__((len(whole), whole.shape[1] // c, whole.shape[2] // c), whole.dtype)
        self.kind, self._whole, self._c = whole.kind, whole, c

    def rows(self, rows: Tensor) -> Tensor:
        """Patterns (B, h/c, w/c) of these rows (B,)."""
        return corner_crop(self._whole.rows(rows), self._c)

    def prefetch(self, pieces: Sequence[Tensor]) -> None:
        """See `Patterns.prefetch`."""
        self._whole.prefetch(pieces)

    def cropped(self, c: int) -> Patterns:
        """Cropped further."""
        return Cropped(self._whole, self._c * c)

    def replace(self, source: Tensor, arrived: Iterable[Tensor]) -> None:
        """Not here: `replace` the whole patterns, and crop them anew."""
        raise NotImplementedError("replace the whole patterns, and crop them anew")

    def _grow(self, capacity: int) -> None:
        raise NotImplementedError

    def _read(self, slots: Tensor) -> Tensor:
        return corner_crop(self._whole._read(self._whole._slot(slots)), self._c)

    def _write(self, slots: Tensor, slab: Tensor) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class _Piece:
    """Patterns on the device, and when they are there (CUDA)."""

    patterns: Tensor
    event: Any = None

    def arrived(self) -> Tensor:
        """The patterns, for work that is queued from here on."""
        if self.event is not None:
            stream = torch.cuda.current_stream(self.patterns.device)
            stream.wait_event(self.event)
            self.patterns.record_stream(stream)
        return self.patterns


def slabs(count: int, frame: int) -> Iterator[slice]:
    """Consecutive views, a bounded number of bytes at a time."""
    step = _views(frame)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def size(count: float) -> str:
    """Bytes as people read them: 640 MB."""
    unit = 0
    while count >= 999.5 and unit < 5:
        count, unit = count / 1000, unit + 1
    return f"{count:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB', 'PB')[unit]}"


def _views(frame: int) -> int:
    return max(1, min(SLAB_VIEWS, SLAB_BYTES // max(1, frame)))


def _slab(read: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(read, dtype=read.dtype.newbyteorder("=")))


def _put(tensor: Tensor, slots: Tensor, slab: Tensor) -> None:
    """tensor[slots] = slab, which torch cannot do for every integer type at once."""
    first = int(slots[0])
    if torch.equal(slots, torch.arange(first, first + len(slots))):
        tensor[first : first + len(slots)] = slab
        return
    for slot, pattern in zip(slots.tolist(), slab, strict=True):
        tensor[slot] = pattern


def _frames(patterns: Tensor) -> np.ndarray:
    """Patterns (B, h, w) of the host as bytes, (B, frame), the same memory."""
    values = patterns.contiguous().numpy()
    return values.reshape(len(values), values.shape[1] * values.shape[2]).view(np.uint8)


def _torch_dtype(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype=dtype.newbyteorder("="))).dtype
