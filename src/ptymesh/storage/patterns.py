"""This rank's patterns, wherever they are kept: the common interface.

n       this rank's patterns; a row is the index of one in `layout.own`
h, w    window pixels
slot    where a row is stored; the row itself, until views have moved from rank to rank
piece   rows that are swept together

Every kind returns the same bits, in the detector's own dtype, on the computing device (memory_budget.py chooses the
kind, fetched.py holds those that are kept elsewhere than on that device).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed.devices import sent
from ptymesh.files import size
from ptymesh.physics.resample import corner_crop

Kind = Literal["device", "host", "disk"]

#: Largest number of bytes, and of views, that are read from the source, or moved, at a time.
SLAB_BYTES, SLAB_VIEWS = 16 << 20, 64
#: Number of pieces that are announced ahead.
LOOKAHEAD = 8
_PLACES: dict[Kind, str] = {"device": "on the device", "host": "in host memory", "disk": "staged on disk"}


class Patterns(ABC):
    """This rank's patterns (n, h, w).

    Attributes:
        kind: device, host or disk.
        shape: (n, h, w).
        dtype: of the counts, as the detector has them.
        indexed_on: device of the indices that `rows` takes.
        fetched: True if patterns are brought from elsewhere, so that it helps to announce which come next.
        waited_s: time that the computation has waited for patterns.
        fetched_bytes: bytes that were brought to it.
    """

    kind: Kind
    indexed_on = torch.device("cpu")
    fetched = False

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.shape, self.dtype = tuple(shape), dtype
        self.waited_s, self.fetched_bytes = 0.0, 0

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def frame_bytes(self) -> int:
        """Bytes of one pattern."""
        return self.shape[1] * self.shape[2] * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all patterns."""
        return len(self) * self.frame_bytes

    def where(self) -> str:
        """Return how large the patterns are and where they are kept.

        For example: `Patterns: 640 MB per rank (uint16) in host memory`.
        """
        dtype = str(self.dtype).removeprefix("torch.")
        return f"Patterns: {size(self.nbytes)} per rank ({dtype}) {_PLACES[self.kind]}"

    @abstractmethod
    def rows(self, rows: Tensor) -> Tensor:
        """Return the patterns (B, h, w) of these rows (B,), on the computing device; they must not be written to."""

    def prefetch(self, pieces: Sequence[Tensor]) -> None:  # noqa: B027 - nothing to do if patterns are on the device
        """Announce the pieces for which `rows` will be called next, in this order."""

    def lying(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return an array (m, h, w) that holds these patterns, and their indices (B,) in it.

        No copy is made if that can be avoided. Without indices (None), the array is the patterns of these rows.
        """
        return self.rows(rows), None

    def sweep(self, rows: np.ndarray, size: int | list[int], coming: np.ndarray | None = None) -> Iterator[Tensor]:
        """Yield the patterns of these rows, piece by piece.

        Args:
            rows: (n,) int64.
            size: largest number of rows in a piece, or the number in each piece.
            coming: (k,) rows that are swept after these.
        """
        for array, places in self.pieces(rows, size, coming):
            yield array if places is None else array.index_select(0, places)

    def pieces(
        self,
        rows: np.ndarray,
        size: int | list[int],
        coming: np.ndarray | None = None,
        coming_sizes: list[int] | None = None,
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield what `lying` returns for these rows, piece by piece, while the next pieces are being read.

        Args:
            rows: (n,) int64.
            size: largest number of rows in a piece, or the number in each piece.
            coming: (k,) rows that are swept after these.
            coming_sizes: number in each piece of these; None for `size`.
        """
        pieces = sent(rows, self.indexed_on).split(size)
        later: Sequence[Tensor] = ()
        if self.fetched and coming is not None:
            later = torch.as_tensor(coming).split(size if coming_sizes is None else coming_sizes)
        for k, piece in enumerate(pieces):
            if self.fetched:
                self.prefetch((*pieces[k : k + LOOKAHEAD], *later)[:LOOKAHEAD])
            yield self.lying(piece)

    @abstractmethod
    def cropped(self, c: int) -> Patterns:
        """Return the inner 1/c of the detector, (n, h/c, w/c), DC at the corner; it is stale after `replace`."""

    @abstractmethod
    def take(self, rows: Tensor) -> Tensor:
        """Return the patterns (B, h, w) of these rows in the host's memory, to be sent to another rank."""

    @abstractmethod
    def replace(self, source: Tensor, arrived: Iterable[Tensor]) -> None:
        """Hold other rows: row i becomes row source[i], or, where that is -1, the next pattern that arrives.

        Rows that leave may be overwritten, so `take` them first.

        Args:
            source: (n',) int64, n' any number.
            arrived: slabs (k, h, w) of the host with the rows marked -1, in order.
        """

    def reserve(self, rows: int) -> None:  # noqa: B027 - those that keep no slots need nothing
        """Allocate space for so many rows at once, before `replace`."""

    def close(self) -> None:  # noqa: B027 - memory needs nothing
        """Release threads and files; may be called again."""


class Slotted(Patterns):
    """Patterns in slots; a row that leaves frees its slot for one that joins."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__(shape, dtype)
        self._capacity = shape[0]
        self._slots: Tensor | None = None

    def fill(self, arrived: Iterable[Tensor]) -> None:
        """Store all patterns, slabs (k, h, w) of the host in the order of the rows."""
        self._store(torch.arange(len(self)), arrived)

    def take(self, rows: Tensor) -> Tensor:
        """Return the patterns (B, h, w) of these rows in the host's memory."""
        return self._read(self._slot(rows.cpu()))

    def reserve(self, rows: int) -> None:
        """Allocate slots for so many rows."""
        if rows > self._capacity:
            self._grow(rows)
            self._capacity = rows

    def replace(self, source: Tensor, arrived: Iterable[Tensor]) -> None:
        """Replace rows as `Patterns.replace` says; rows that stay keep their slots."""
        source = source.cpu()
        stays = source >= 0
        slots = torch.where(stays, self._slot(source.clamp(min=0)), -1)
        free = np.setdiff1d(np.arange(self._capacity), slots[stays].numpy())
        needed = int((~stays).sum())
        if needed > len(free):
            grown = self._capacity + needed - len(free)
            free = np.concatenate((free, np.arange(self._capacity, grown)))
            self.reserve(grown)
        slots[~stays] = torch.from_numpy(free[:needed])
        self._slots, self.shape = slots, (len(source), *self.shape[1:])
        self._drop_copies()
        self._store(slots[~stays], arrived)

    @abstractmethod
    def _grow(self, capacity: int) -> None:
        """Allocate so many slots, and keep what they hold."""

    @abstractmethod
    def _read(self, slots: Tensor) -> Tensor:
        """Return the patterns in these slots (B,), in the host's memory."""

    @abstractmethod
    def _write(self, slots: Tensor, slab: Tensor) -> None:
        """Write a slab (k, h, w) of the host to slots (k,)."""

    def _slot(self, rows: Tensor) -> Tensor:
        return rows if self._slots is None else self._slots[rows]

    def _store(self, slots: Tensor, arrived: Iterable[Tensor]) -> None:
        """Write the patterns that arrive to these slots, in order."""
        stored = 0
        for slab in arrived:
            if len(slab):
                self._write(slots[stored : stored + len(slab)], slab)
            stored += len(slab)
        assert stored == len(slots), f"{stored} patterns came for {len(slots)} places"

    def _drop_copies(self) -> None:
        """Drop copies of rows, which are stale."""


class Resident(Slotted):
    """Patterns in the memory of the computing device: a tensor (n, h, w) there."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(tensor.shape, tensor.dtype)
        self.tensor, self.indexed_on = tensor, tensor.device
        self.kind = "host" if tensor.device.type == "cpu" else "device"

    def rows(self, rows: Tensor) -> Tensor:
        """Return the patterns (B, h, w) of these rows (B,)."""
        slots = self._slot(rows)
        if self.tensor.device.type == "cpu":  # numpy copies whole patterns, torch pixel by pixel
            return torch.from_numpy(self.tensor.numpy()[slots.numpy()])
        return self.tensor.index_select(0, slots)

    def lying(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the whole tensor, and the slots of these rows in it."""
        return self.tensor, self._slot(rows)

    def cropped(self, c: int) -> Patterns:
        """Return a copy of the inner 1/c of the detector."""
        every = torch.arange(len(self), device=self.indexed_on)
        cropped = self.tensor.new_empty((len(self), self.shape[1] // c, self.shape[2] // c))
        for part in slabs(len(self), self.frame_bytes):
            cropped[part] = corner_crop(self.rows(every[part]), c)
        return Resident(cropped)

    def replace(self, source: Tensor, arrived: Iterable[Tensor]) -> None:
        """Replace rows as `Patterns.replace` says, with slots on the device."""
        self._slots = None if self._slots is None else self._slots.cpu()
        super().replace(source, arrived)
        assert self._slots is not None
        self._slots = self._slots.to(self.indexed_on)

    def take(self, rows: Tensor) -> Tensor:
        """Return the patterns (B, h, w) of these rows in the host's memory."""
        return self.rows(rows.to(self.indexed_on)).cpu()

    def _grow(self, capacity: int) -> None:
        # By way of the host, as both tensors may not fit in the device's memory.
        on_host = self.tensor.cpu()
        self.tensor = on_host
        grown = on_host.new_empty((capacity, *self.shape[1:]), device=self.indexed_on)
        grown[: len(on_host)] = on_host
        self.tensor = grown

    def _read(self, slots: Tensor) -> Tensor:
        return self.tensor.index_select(0, slots.to(self.indexed_on)).cpu()

    def _write(self, slots: Tensor, slab: Tensor) -> None:
        put(self.tensor, slots, slab)


def slabs(count: int, frame: int) -> Iterator[slice]:
    """Yield slices of consecutive views, of a bounded number of bytes each."""
    step = _views(frame)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def _views(frame: int) -> int:
    """Return how many views a slab holds."""
    return max(1, min(SLAB_VIEWS, SLAB_BYTES // max(1, frame)))


def native_tensor(array: np.ndarray) -> Tensor:
    """Return an array as a tensor in native byte order."""
    return torch.from_numpy(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")))


def put(tensor: Tensor, slots: Tensor, slab: Tensor) -> None:
    """Assign tensor[slots] = slab, which torch cannot do at once for every integer type.

    Args:
        tensor: (n, h, w), changed in place.
        slots: (k,) int64.
        slab: (k, h, w).
    """
    first = int(slots[0])
    if torch.equal(slots, torch.arange(first, first + len(slots))):
        tensor[first : first + len(slots)] = slab
        return
    for slot, pattern in zip(slots.tolist(), slab, strict=True):
        tensor[slot] = pattern
