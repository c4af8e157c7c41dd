"""What a batch sums up on a CPU, from its first view to what is written to object and probe, by numba's loops.

L, H, W      slices, object pixels;  n  blocks
M, h, w      modes, window pixels
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ptymesh.estimate import BLOCK
from ptymesh.kernels import blocks, compiled_blocks, compiled_fixed, compiled_probes
from ptymesh.kernels.arguments import arrays_of, bands_of_rows, numpy_dtype, places_of
from ptymesh.kernels.fused import FusedPasses
from ptymesh.kernels.kept import Arrays
from ptymesh.kernels.ready import share_threads
from ptymesh.physics.blocks import TINY, Expression, Leaf, Quotient
from ptymesh.physics.passes import Adjoints

#: Numbers that a band keeps of what it has added to, in a line of the cache of its own.
TOPS = 16


class CpuSums(FusedPasses):
    """Passes over sums; those over views are `CpuPasses`.

    Args:
        dtype: complex64 or complex128.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.real = torch.float32 if dtype == torch.complex64 else torch.float64
        self.arrays = Arrays()
        self._none_stale = np.zeros((0, 0), np.uint8)
        #: Of the object's weight in this batch: those of the last one have been read, or left (`Problem.reclaim`).
        self._tops = torch.empty((0, TOPS), dtype=self.real)

    def begin(self, into: Adjoints, rows: Tensor, columns: Tensor) -> None:
        """As the twin's; what can wait is cleared when it is first added to, as it is in the cache then.

        That is the probe's sums, and the blocks of an object of one slice with two rows of blocks or more for each band
        of rows: bands must not share a block. Others are cleared now. Of one slice, tops are found on the way.
        """
        into.blank = True
        if into.object is None or into.object_weight is None:
            return
        slices, height, width = into.object.shape
        if slices > 1:
            self.clear(into.object, into.object_weight, rows, columns)
            return
        if self._tops.shape[0] != bands_of_rows():
            self._tops = torch.empty((bands_of_rows(), TOPS), dtype=self.real)
        into.top = self._tops
        into.top.numpy().fill(0)
        if height < 2 * bands_of_rows() * BLOCK:
            self.clear(into.object, into.object_weight, rows, columns)
            return
        into.stale = torch.zeros(height // BLOCK, width // BLOCK, dtype=torch.uint8)
        into.stale.numpy()[rows.numpy(), columns.numpy()] = 1

    def settle(self, into: Adjoints) -> None:
        """As the twin's."""
        if into.stale is None:
            return
        assert into.object is not None and into.object_weight is not None
        stale = into.stale.numpy()
        if stale.view(bool).any():  # of numbers, numpy takes ten times longer
            self.clear(into.object, into.object_weight, *map(torch.from_numpy, stale.nonzero()))
        into.stale = None

    def object_sums(self, into: Adjoints) -> tuple[np.ndarray[Any, Any], ...]:
        """For kernels that add to the object: stale blocks, sums and weight (H, W), tops of the weight."""
        assert into.object is not None and into.object_weight is not None
        stale = self._none_stale if into.stale is None else into.stale.numpy()
        top = into.object_weight.new_empty((bands_of_rows(), TOPS)) if into.top is None else into.top
        sums, weight = self.arrays("object sum", into.object)[0], self.arrays("object weight", into.object_weight)[0]
        return stale, sums, weight, top.numpy()

    def clear(self, field: Tensor, weight: Tensor, rows: Tensor, columns: Tensor) -> None:
        """As the twin's."""
        sums = self.arrays("object sum", field), self.arrays("object weight", weight)
        compiled_blocks.clear(places_of(rows, columns), bands_of_rows(), *sums)

    def largest(self, leaf: Leaf) -> Tensor:
        """As the twin's."""
        if leaf.whole is None or not leaf.rows.shape[0] or leaf.whole.dtype != self.real:
            return super().largest(leaf)
        bands = bands_of_rows()
        found = leaf.whole.new_empty((bands, leaf.whole.shape[0]))
        compiled_blocks.largest(places_of(leaf.rows, leaf.columns), bands, *arrays_of(leaf.whole, found))
        return found.amax(0)[:, None, None, None]

    def write(
        self, target: Tensor, expression: Expression | Quotient, rows: Tensor, columns: Tensor, add: bool = False
    ) -> None:
        """As the twin's, block by block while they are in the cache, for expressions of up to four fields."""
        if not blocks.write(target, expression, rows, columns, add, bands_of_rows()):
            super().write(target, expression, rows, columns, add)

    def add_quotient(self, target: Tensor, change: Tensor, weight: Tensor, blend: float, times: float) -> None:
        """As the twin's, in one pass."""
        alike = target.dtype == change.dtype == self.real.to_complex() and weight.dtype == self.real
        if alike and target.is_contiguous() and target.shape == change.shape and weight.shape == change.shape[1:]:
            share_threads()
            x, w = arrays_of(change, weight)
            numbers = np.array([times, 1 - blend, float(w.max()) * blend + TINY], dtype=w.dtype)
            compiled_probes.add_quotient(x, w, numbers, bands_of_rows(), target.numpy())
        else:
            super().add_quotient(target, change, weight, blend, times)

    def add_fixed(self, values: Tensor, corners: Tensor, exponent: int, bits: int, out: Tensor) -> bool:
        """As the twin's, in one pass."""
        share_threads()
        numbers = np.array([2.0**exponent, 2.0**bits, 2.0**bits], dtype=numpy_dtype(values.dtype))
        beyond = np.empty(values.shape[1] * values.shape[4], dtype=np.int64)
        compiled_fixed.add_fixed(*arrays_of(values, corners), numbers, out.numpy(), beyond)
        return not beyond.any()


def fill(into: Adjoints) -> None:
    """The probe's sums are zero, if nothing has been added to them."""
    if into.blank and into.probe is not None:
        into.probe.zero_()
    if into.blank:
        into.probe_weight.zero_()
    into.blank = False
