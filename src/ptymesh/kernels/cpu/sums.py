"""Sums of a batch on a CPU, from its first view to what is written to object and probe, by numba's loops.

L, H, W      slices, object pixels;  n  blocks
M, h, w      modes, window pixels
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ptymesh.kernels.arrays import ComplexArray, IntArray, RealArray
from ptymesh.kernels.cpu import blocks
from ptymesh.kernels.cpu.arguments import arrays_of, bands_of_rows, constants_of, places_of
from ptymesh.kernels.cpu.compiled import blocks as compiled_blocks
from ptymesh.kernels.cpu.compiled import object as compiled_object
from ptymesh.kernels.cpu.compiled import probes as compiled_probes
from ptymesh.kernels.cpu.compiled import shared as compiled_shared
from ptymesh.kernels.cpu.kept import Arrays, Workspace
from ptymesh.kernels.cpu.ready import share_threads
from ptymesh.kernels.fused import FusedBackend
from ptymesh.physics.backend import Adjoints
from ptymesh.physics.blocks import TINY, Expression, FieldView, RegularisedQuotient
from ptymesh.physics.sums import RankSums


class CpuSums(FusedBackend):
    """Passes over sums; those over views are `CpuBackend`.

    Args:
        dtype: complex64 or complex128.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.real = torch.float32 if dtype == torch.complex64 else torch.float64
        self.arrays, self.workspace = Arrays(), Workspace()

    def clear_caches(self) -> None:
        """Free the workspace."""
        self.workspace.free()

    def add_windows(
        self,
        into: Adjoints,
        windows: ComplexArray,
        light: RealArray,
        corners: IntArray,
        amplitudes: RealArray,
        between: RealArray | None = None,
    ) -> None:
        """Add windows of views to the object's sums, and their light to the weight.

        Args:
            into: sums of a batch, whose object and weight (parts L, H, W) have arrays.
            windows: (k, h, w) complex, sum_m conj(P_jm) chi_jm of a view and slice.
            light: (1 or k, h, w) real, sum_m |P_jm|^2, of all alike or of each.
            corners: (k, 2) int, pixel of each window's corner where slices lie one below the other.
            amplitudes: (k,) real, by which light and windows of a view were scaled.
            between: (k, 2) real, weights of the next pixel down and right; None: zero.
        """
        assert into.object is not None and into.object_weight is not None
        named = (("object sum", into.object), ("object weight", into.object_weight))
        shape = into.parts, -1, into.object.shape[2]
        sums, weight = (self.arrays(name, field).reshape(shape) for name, field in named)
        if between is None:
            between = np.zeros((len(corners), 2), amplitudes.dtype)
        given = (windows, light, corners, between, amplitudes, into.shifts.numpy(), bands_of_rows())
        compiled_object.add_windows(*given, constants_of(self.real, 1.0), sums, weight)

    def clear(self, field: Tensor, weight: Tensor, rows: Tensor, columns: Tensor) -> None:
        """Set blocks of two fields to 0.

        Args:
            field: (L, H, W) complex, changed in place.
            weight: (L, H, W) real, changed in place.
            rows: (n,) int64, block coordinates along y.
            columns: (n,) int64, block coordinates along x.
        """
        sums = self.arrays("object sum", field), self.arrays("object weight", weight)
        compiled_blocks.clear(places_of(rows, columns), bands_of_rows(), *sums)

    def narrow(self, sums: tuple[Tensor, Tensor], rows: Tensor, columns: Tensor, found: tuple[Tensor, Tensor]) -> None:
        """Write the object's sums and their weights to fields of the model's precision, on some blocks.

        Args:
            sums: sums and weights, (parts L, H, W) each.
            rows: (n,) int64, block coordinates along y.
            columns: (n,) int64, block coordinates along x.
            found: (L, H, W) complex and (L, H, W) real, written.
        """
        arrays = (*arrays_of(*sums), *arrays_of(*found))
        compiled_blocks.narrow(places_of(rows, columns), bands_of_rows(), *arrays)

    def combine(
        self, sums: RankSums, reached: Tensor, rows: Tensor, columns: Tensor, found: tuple[Tensor, Tensor]
    ) -> None:
        """Add the object's sums and weights of several ranks, and write them to fields, on some blocks.

        Args:
            sums: of all ranks.
            reached: (n,) int64, ranks that contribute to each block, as bits of a number that is not 0; -1 for all.
            rows: (n,) int64, block coordinates along y.
            columns: (n,) int64, block coordinates along x.
            found: (L, H, W) complex and (L, H, W) real, written.
        """
        given = places_of(rows, columns), reached.numpy(), sums.ranks, sums.parts, bands_of_rows()
        compiled_shared.add_shared(*given, *arrays_of(sums.memory, *found))

    def largest(self, leaf: FieldView) -> Tensor:
        """Return the largest value of a real field on its blocks in each slice, (L, 1, 1, 1)."""
        if leaf.array is None or not leaf.rows.shape[0] or leaf.array.dtype != self.real:
            return super().largest(leaf)
        bands = bands_of_rows()
        found = leaf.array.new_empty((bands, leaf.array.shape[0]))
        compiled_blocks.largest(places_of(leaf.rows, leaf.columns), bands, *arrays_of(leaf.array, found))
        return found.amax(0)[:, None, None, None]

    def write(
        self,
        target: Tensor,
        expression: Expression | RegularisedQuotient,
        rows: Tensor,
        columns: Tensor,
        add: bool = False,
    ) -> None:
        """Write an expression to blocks of a field, or add it: block by block in the cache, for expressions of up to
        four fields.

        Args:
            target: (L, H, W) complex, changed in place.
            expression: values of the blocks.
            rows: (n,) int64, block coordinates along y.
            columns: (n,) int64, block coordinates along x.
            add: True to add.
        """
        if not blocks.write(target, expression, rows, columns, add, bands_of_rows()):
            super().write(target, expression, rows, columns, add)

    def add_quotient(self, target: Tensor, change: Tensor, weight: Tensor, blend: float, times: float) -> None:
        """Add times change / ((1 - blend) weight + blend max weight) to a probe, in one pass.

        Args:
            target: (M, h, w) complex, changed in place.
            change: (M, h, w) complex.
            weight: (h, w) real.
            blend: share of the largest weight in the divisor.
            times: factor.
        """
        alike = target.dtype == change.dtype == self.real.to_complex() and weight.dtype == self.real
        if alike and target.is_contiguous() and target.shape == change.shape and weight.shape == change.shape[1:]:
            share_threads()
            x, w = arrays_of(change, weight)
            numbers = np.array([times, 1 - blend, float(w.max()) * blend + TINY], dtype=w.dtype)
            compiled_probes.add_quotient(x, w, numbers, bands_of_rows(), target.numpy())
        else:
            super().add_quotient(target, change, weight, blend, times)
