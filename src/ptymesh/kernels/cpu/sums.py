"""Sums of a batch on a CPU, from its first view to what is written to object and probe, by numba's loops.

L, H, W      slices, object pixels;  n  blocks
M, h, w      modes, window pixels
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ptymesh.kernels.arrays import BackgroundArrays, ComplexArray, IntArray, RealArray
from ptymesh.kernels.cpu import blocks, panels
from ptymesh.kernels.cpu.arguments import array_of, arrays_of, bands_of_rows, constants_of, numpy_dtype, places_of
from ptymesh.kernels.cpu.caches import Arrays, Workspace
from ptymesh.kernels.cpu.compiled import blocks as compiled_blocks
from ptymesh.kernels.cpu.compiled import column_panels
from ptymesh.kernels.cpu.compiled import object as compiled_object
from ptymesh.kernels.cpu.compiled import probes as compiled_probes
from ptymesh.kernels.cpu.ready import share_threads
from ptymesh.physics.background import PARTS, QUANTITIES, BackgroundSums
from ptymesh.physics.blocks import TINY, Expression, FieldView, RegularisedQuotient
from ptymesh.physics.sums import Adjoints, BlockOperations, RankSums


class CpuSums(BlockOperations):
    """Operations on sums and blocks, by numba; those on views are `CpuBackend`'s.

    Args:
        dtype: complex64 or complex128.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.real = dtype, dtype.to_real()
        self.arrays, self.workspace = Arrays(), Workspace()
        none, no_numbers = np.zeros((0, 1)), np.zeros(0, numpy_dtype(self.real))
        #: Arrays of a background that stays as it is.
        self.no_background: BackgroundArrays = none, none, no_numbers

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
        placed, constants = (windows, light, corners, between, amplitudes), constants_of(self.real, 1.0)
        compiled_object.add_windows(placed, into.shifts.numpy(), bands_of_rows(), constants, sums, weight)

    def bands_of(self, into: Adjoints) -> tuple[RealArray, ...]:
        """Return the probe's sums of each thread's views, panel after panel, and their lights; the same of OPR modes; 0
        at first."""
        if not into.kept:
            assert into.probe is not None
            bands = torch.get_num_threads()
            shapes = [
                shape
                for (modes, h, w), lights in ((into.probe.shape, into.parts), (into.opr.shape, len(into.opr)))
                for shape in ((bands, modes * column_panels.panel_pixels(h, w) * 2), (bands, lights * h * w))
            ]
            into.kept = self.workspace.take("bands", tuple(shapes), torch.float64)
            for array in into.kept:
                array.fill(0)
        return into.kept

    def background_arrays(self, background_sums: BackgroundSums | None) -> BackgroundArrays:
        """Return the background's sums of each thread's views, panel after panel, 0 at first; rounding shifts; and
        limits."""
        if background_sums is None:
            return self.no_background
        if not background_sums.kept:
            h, w = background_sums.sums.shape[-2:]
            shape = torch.get_num_threads(), PARTS * QUANTITIES * column_panels.panel_pixels(h, w)
            background_sums.kept = self.workspace.take("background", (shape,), torch.float64)
            background_sums.kept[0].fill(0)
        return *background_sums.kept, background_sums.shifts.numpy(), background_sums.limits.to(self.real).numpy()

    def finish(self, into: Adjoints) -> None:
        """Add up the bands of views, and complete the sums."""
        if into.background is not None and into.background.kept:
            background_sums, sums = into.background, into.background.sums
            bands = background_sums.kept[0].sum(axis=0).reshape(len(sums), -1)
            sums += torch.from_numpy(panels.from_panels(bands, sums.shape[-2], sums.shape[-1]))
            self.workspace.give_back("background", background_sums.kept)
            background_sums.kept = ()
        if into.kept and into.probe is not None:
            of_probe, of_opr = into.kept[:2], into.kept[2:]
            gathered = [(of_probe, into.probe, into.probe_weight)]
            if len(into.opr):
                gathered.append((of_opr, into.opr, into.opr_weight))
            for of_bands, out, weight in gathered:
                kernel_inputs = array_of(out), array_of(weight).reshape(-1)
                compiled_probes.gather(torch.get_num_threads(), *of_bands, *kernel_inputs)
            self.workspace.give_back("bands", into.kept)
            into.kept = ()
        super().finish(into)

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
        blocks, (memory, *out) = (places_of(rows, columns), reached.numpy()), arrays_of(sums.memory, *found)
        compiled_blocks.add_shared(blocks, sums.ranks, sums.parts, bands_of_rows(), memory, tuple(out))

    def largest(self, leaf: FieldView) -> Tensor:
        """Return the largest value of a real field on its blocks in each slice, (L, 1, 1, 1)."""
        if leaf.array is None or not leaf.rows.shape[0] or leaf.array.dtype != self.real:
            return super().largest(leaf)
        bands = bands_of_rows()
        tops = leaf.array.new_empty((bands, leaf.array.shape[0]))
        compiled_blocks.largest(places_of(leaf.rows, leaf.columns), bands, *arrays_of(leaf.array, tops))
        return tops.amax(0)[:, None, None, None]

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
        same_types = target.dtype == change.dtype == self.real.to_complex() and weight.dtype == self.real
        if same_types and target.is_contiguous() and target.shape == change.shape and weight.shape == change.shape[1:]:
            share_threads()
            x, w = arrays_of(change, weight)
            numbers = np.array([times, 1 - blend, float(w.max()) * blend + TINY], dtype=w.dtype)
            compiled_probes.add_quotient(x, w, numbers, bands_of_rows(), target.numpy())
        else:
            super().add_quotient(target, change, weight, blend, times)


def record_largest(into: Adjoints, reached: RealArray) -> None:
    """Record the largest terms of views or bands (n, 6) by kind of sum."""
    if len(reached):
        torch.maximum(into.reached, torch.from_numpy(reached.max(axis=0)), out=into.reached)
