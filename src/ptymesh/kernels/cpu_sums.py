"""What a batch sums up on a CPU, from its first view to what is written to object and probe, by numba's loops.

L, H, W      slices, object pixels;  n  blocks
M, h, w      modes, window pixels
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import ref

import numpy as np
import torch
from torch import Tensor

from ptymesh.kernels import blocks, compiled_blocks, compiled_probes, compiled_shared
from ptymesh.kernels.arguments import arrays_of, bands_of_rows, places_of
from ptymesh.kernels.fused import FusedBackend
from ptymesh.kernels.kept import Arrays, Rooms
from ptymesh.kernels.object_sums import ObjectSums
from ptymesh.kernels.ready import share_threads
from ptymesh.physics.backend import Adjoints
from ptymesh.physics.blocks import TINY, Expression, Leaf, Quotient
from ptymesh.physics.sums import SharedSums


class CpuSums(FusedBackend):
    """Passes over sums; those over views are `CpuBackend`.

    Args:
        dtype: complex64 or complex128.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.real = torch.float32 if dtype == torch.complex64 else torch.float64
        self.arrays, self.room = Arrays(), Rooms()
        #: To whose sums views were added last.
        self._last: Callable[[], ObjectSums | None] = lambda: None

    def begin(self, into: Adjoints, rows: Tensor, columns: Tensor, found: tuple[Tensor, Tensor]) -> None:
        """As `Backend.begin`; blocks are cleared when they are first added to, as they are in the cache then."""
        if into.object is not None:
            into.late = ObjectSums(into, (rows, columns), found, self, self.arrays, self.room)

    def settle(self, into: Adjoints) -> None:
        """As `Backend.settle`."""
        if isinstance(into.late, ObjectSums):
            into.late.complete()

    def gathered(self, into: Adjoints) -> None:
        """As `Backend.gathered`."""
        if isinstance(into.late, ObjectSums):
            into.late.gather()

    def forget(self) -> None:
        """See the base."""
        self.room.forget()

    def object_sums(self, into: Adjoints) -> ObjectSums:
        """The object's, of a batch that was begun; or plain arrays to which everything is added at once."""
        late = into.late
        sums = late if isinstance(late, ObjectSums) else ObjectSums(into, None, None, self, self.arrays, self.room)
        last = self._last()
        if last is not None and last is not sums:  # views of both would wait in the same room
            last.complete()
        self._last = ref(sums)
        return sums

    def clear(self, field: Tensor, weight: Tensor, rows: Tensor, columns: Tensor) -> None:
        """As `Backend.clear`."""
        sums = self.arrays("object sum", field), self.arrays("object weight", weight)
        compiled_blocks.clear(places_of(rows, columns), bands_of_rows(), *sums)

    def narrow(self, sums: tuple[Tensor, Tensor], rows: Tensor, columns: Tensor, found: tuple[Tensor, Tensor]) -> None:
        """As `Backend.narrow`."""
        arrays = (*arrays_of(*sums), *arrays_of(*found))
        compiled_blocks.narrow(places_of(rows, columns), bands_of_rows(), *arrays)

    def combine(
        self, sums: SharedSums, reached: Tensor, rows: Tensor, columns: Tensor, found: tuple[Tensor, Tensor]
    ) -> None:
        """As `Backend.combine`."""
        given = places_of(rows, columns), reached.numpy(), sums.ranks, sums.parts, bands_of_rows()
        compiled_shared.add_shared(*given, *arrays_of(sums.memory, *found))

    def largest(self, leaf: Leaf) -> Tensor:
        """As `Backend.largest`."""
        if leaf.whole is None or not leaf.rows.shape[0] or leaf.whole.dtype != self.real:
            return super().largest(leaf)
        bands = bands_of_rows()
        found = leaf.whole.new_empty((bands, leaf.whole.shape[0]))
        compiled_blocks.largest(places_of(leaf.rows, leaf.columns), bands, *arrays_of(leaf.whole, found))
        return found.amax(0)[:, None, None, None]

    def write(
        self, target: Tensor, expression: Expression | Quotient, rows: Tensor, columns: Tensor, add: bool = False
    ) -> None:
        """As `Backend.write`, block by block while they are in the cache, for expressions of up to four fields."""
        if add and isinstance(expression, Quotient) and _undivided(target, expression, rows, columns):
            return
        if not blocks.write(target, expression, rows, columns, add, bands_of_rows()):
            super().write(target, expression, rows, columns, add)

    def add_quotient(self, target: Tensor, change: Tensor, weight: Tensor, blend: float, times: float) -> None:
        """As `Backend.add_quotient`, in one pass."""
        alike = target.dtype == change.dtype == self.real.to_complex() and weight.dtype == self.real
        if alike and target.is_contiguous() and target.shape == change.shape and weight.shape == change.shape[1:]:
            share_threads()
            x, w = arrays_of(change, weight)
            numbers = np.array([times, 1 - blend, float(w.max()) * blend + TINY], dtype=w.dtype)
            compiled_probes.add_quotient(x, w, numbers, bands_of_rows(), target.numpy())
        else:
            super().add_quotient(target, change, weight, blend, times)


def _undivided(target: Tensor, quotient: Quotient, rows: Tensor, columns: Tensor) -> bool:
    """Adds a quotient of sums that nobody has read yet; False where that is something else."""
    late = quotient.change.late if isinstance(quotient.change, Leaf) else None
    return isinstance(late, ObjectSums) and late.divide(target, quotient, rows, columns)
