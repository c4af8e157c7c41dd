"""This rank's patterns, wherever they live: what the rest of the program may ask of them.

n       this rank's patterns; a row is the place of one among `layout.own`
h, w    window pixels
slot    where a row lies; the row itself, until views have moved from rank to rank
piece   rows that are swept together

Every kind hands out the same bits, in the detector's own dtype, on the device that computes (room.py says which kind
there is when, fetched.py holds those that live elsewhere than on that device).
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

#: What is read from the source, or moved, at a time: so many bytes, but at most so many views.
SLAB_BYTES, SLAB_VIEWS = 16 << 20, 64
#: Pieces that are asked for ahead.
LOOKAHEAD = 8
_PLACES: dict[Kind, str] = {"device": "on the device", "host": "in host memory", "disk": "staged on disk"}


class Patterns(ABC):
    """This rank's patterns (n, h, w).

    Attributes:
        kind: device, host or disk.
        shape, dtype: (n, h, w), as the detector counts.
        indexed_on: the device on which `rows` wants its indices.
        fetched: whether patterns are brought from elsewhere, so that it helps to know which come next.
        waited_s, fetched_bytes: what the computation has waited for patterns, and how much was brought to it.
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

    def lying(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """The same where they lie, not copied: an array (m, h, w) and the places (B,) of these rows in it.

        No places: the array is the patterns.
        """
        return self.rows(rows), None

    def sweep(self, rows: np.ndarray, size: int | list[int], coming: np.ndarray | None = None) -> Iterator[Tensor]:
        """Patterns of these rows (n,), piece by piece; see `pieces`."""
        for array, places in self.pieces(rows, size, coming):
            yield array if places is None else array.index_select(0, places)

    def pieces(
        self,
        rows: np.ndarray,
        size: int | list[int],
        coming: np.ndarray | None = None,
        coming_sizes: list[int] | None = None,
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """What is `lying` for these rows (n,), at most `size` of them at a time, or so many; `coming`: rows that are
        swept after them, likewise.

        What comes next is on the way while a piece is being worked on.
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
        """The inner 1/c of the detector, (n, h/c, w/c), DC at the corner; to be made anew after `replace`."""

    @abstractmethod
    def take(self, rows: Tensor) -> Tensor:
        """Patterns (B, h, w) of these rows in the host's memory, to be sent to another rank."""

    @abstractmethod
    def replace(self, source: Tensor, arrived: Iterable[Tensor]) -> None:
        """Holds other rows from here on: row i is what row source[i] was, or, where that is -1, the next that arrives.

        source: (n',) int64, n' any number. arrived: slabs (k, h, w) of the host that hold the rows marked -1, in order.
        What leaves may be overwritten: `take` it first.
        """

    def reserve(self, rows: int) -> None:  # noqa: B027 - those that keep no slots need nothing
        """Makes room for so many rows, for `replace` to make it once."""

    def close(self) -> None:  # noqa: B027 - memory needs nothing
        """Lets go of threads and files; may be called again."""


class Slotted(Patterns):
    """Patterns in slots of something that keeps them; a row that leaves makes room for one that joins."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__(shape, dtype)
        self._capacity = shape[0]
        self._slots: Tensor | None = None

    def fill(self, arrived: Iterable[Tensor]) -> None:
        """Takes all patterns, slabs (k, h, w) of the host in the order of the rows."""
        self._settle(torch.arange(len(self)), arrived)

    def take(self, rows: Tensor) -> Tensor:
        """See `Patterns.take`."""
        return self._read(self._slot(rows.cpu()))

    def reserve(self, rows: int) -> None:
        """See `Patterns.reserve`."""
        if rows > self._capacity:
            self._grow(rows)
            self._capacity = rows

    def replace(self, source: Tensor, arrived: Iterable[Tensor]) -> None:
        """See `Patterns.replace`."""
        source = source.cpu()
        kept = source >= 0
        slots = torch.where(kept, self._slot(source.clamp(min=0)), -1)
        free = np.setdiff1d(np.arange(self._capacity), slots[kept].numpy())
        wanted = int((~kept).sum())
        if wanted > len(free):
            grown = self._capacity + wanted - len(free)
            free = np.concatenate((free, np.arange(self._capacity, grown)))
            self.reserve(grown)
        slots[~kept] = torch.from_numpy(free[:wanted])
        self._slots, self.shape = slots, (len(source), *self.shape[1:])
        self._forget()
        self._settle(slots[~kept], arrived)

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

    def _forget(self) -> None:
        """What was brought before is no longer what its rows are."""


class Resident(Slotted):
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

    def lying(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """See `Patterns.lying`."""
        return self.tensor, self._slot(rows)

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
        super().replace(source, arrived)
        assert self._slots is not None
        self._slots = self._slots.to(self.indexed_on)

    def take(self, rows: Tensor) -> Tensor:
        """See `Patterns.take`."""
        return self.rows(rows.to(self.indexed_on)).cpu()

    def _grow(self, capacity: int) -> None:
        # a device may have no room for both, its host has
        kept = self.tensor.cpu()
        self.tensor = kept
        grown = kept.new_empty((capacity, *self.shape[1:]), device=self.indexed_on)
        grown[: len(kept)] = kept
        self.tensor = grown

    def _read(self, slots: Tensor) -> Tensor:
        return self.tensor.index_select(0, slots.to(self.indexed_on)).cpu()

    def _write(self, slots: Tensor, slab: Tensor) -> None:
        put(self.tensor, slots, slab)


def slabs(count: int, frame: int) -> Iterator[slice]:
    """Consecutive views, a bounded number of bytes at a time."""
    step = _views(frame)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def _views(frame: int) -> int:
    return max(1, min(SLAB_VIEWS, SLAB_BYTES // max(1, frame)))


def put(tensor: Tensor, slots: Tensor, slab: Tensor) -> None:
    """tensor[slots] = slab, which torch cannot do for every integer type at once."""
    first = int(slots[0])
    if torch.equal(slots, torch.arange(first, first + len(slots))):
        tensor[first : first + len(slots)] = slab
        return
    for slot, pattern in zip(slots.tolist(), slab, strict=True):
        tensor[slot] = pattern
