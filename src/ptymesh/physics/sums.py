"""Sums of adjoints over a batch, and arithmetic on the blocks of the object that it covers, in plain torch.

L, M     slices, modes;  K  OPR modes
h, w     window pixels
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ptymesh.estimate import BLOCK
from ptymesh.physics.background import BackgroundSums
from ptymesh.physics.blocks import (
    TINY,
    Expression,
    FieldView,
    RegularisedQuotient,
    blocked,
    cut_blocks,
    evaluate,
    put_blocks,
    top_of,
)
from ptymesh.physics.rounding import largest, narrowed, rounded


@dataclass
class Adjoints:
    """Sums over a batch on this rank, in double precision, to which adjoints of chunks add rounded terms (rounding.py).

    Attributes:
        object: (parts L, H, W) complex, or None if the object's sums are not wanted.
        object_weight: (parts L, H, W) real, illumination; or None.
        probe: (parts M, h, w) complex, sum of `Model.unshifted_terms` if `shifted`; or None.
        probe_weight: (parts, h, w) real.
        opr: (parts K, h, w) complex.
        opr_weight: (parts K, h, w) real.
        shifts: (6, 2) float64, rounding shifts by kind of sum (kinds.py) and part.
        reached: (6,) float64, largest terms so far by kind of sum.
        parts: of each sum, 1 or 2.
        shifted: True if the probe's sums are of shifted waves.
        views: number of views of the batch if no other rank has any, so that waves of a chunk with all of them need not
            be copied; else None.
        kept: buffers that a backend holds until `finish`.
        background: sums of the background; None if it stays as it is.
    """

    object: Tensor | None
    object_weight: Tensor | None
    probe: Tensor | None
    probe_weight: Tensor
    opr: Tensor
    opr_weight: Tensor
    shifts: Tensor
    reached: Tensor
    parts: int = 1
    shifted: bool = False
    views: int | None = None
    kept: tuple[Any, ...] = ()
    background: BackgroundSums | None = None

    def rounded(self, kind: int, terms: Tensor) -> Tensor:
        """Return terms (B, C, ...) rounded, in parts (B, parts C, ...), and record their largest magnitude."""
        self.record_largest(kind, largest(terms))
        return rounded(terms, self.shifts[kind], self.parts)

    def record_largest(self, kind: int, reached: Tensor) -> None:
        """Record the largest magnitude (0-d) of terms of a kind."""
        torch.maximum(self.reached[kind], reached, out=self.reached[kind])


@dataclass(frozen=True)
class RankSums:
    """The object's sums of several ranks, and their weights, in memory that all of them map.

    Attributes:
        memory: (m,) float64, sums and weights of all ranks.
        ranks: (k, 6) int64, for each rank: offsets of its first sum and of its first weight in `memory`; height and
            width of its arrays; and the block (y, x) of them at which the field begins in which sums are combined.
        parts: of each sum, 1 or 2.
    """

    memory: Tensor
    ranks: np.ndarray
    parts: int

    def of(self, rank: int, slices: int) -> tuple[Tensor, Tensor]:
        """Return a rank's sums and weights, (parts L, H, W) each."""
        first, weight, height, width = self.ranks[rank, :4].tolist()
        shape = (self.parts * slices, height, width)
        count = math.prod(shape)
        pairs = self.memory[first : first + 2 * count].view(*shape, 2)
        return torch.view_as_complex(pairs), self.memory[weight : weight + count].view(shape)


class BlockOperations:
    """Operations on the object's sums, and on fields of the object, limited to the blocks of a batch."""

    def clear(self, field: Tensor, weight: Tensor, rows: Tensor, columns: Tensor) -> None:
        """Set blocks of two fields to 0.

        Args:
            field: (L, H, W) complex.
            weight: (L, H, W) real.
            rows: (n,) int64, block coordinates along y.
            columns: (n,) int64, block coordinates along x.
        """
        for array in (field, weight):
            blocked(array)[:, rows, columns] = 0

    def narrow(self, sums: tuple[Tensor, Tensor], rows: Tensor, columns: Tensor, found: tuple[Tensor, Tensor]) -> None:
        """Write the object's sums and their weights to fields of the model's precision, on some blocks.

        Args:
            sums: sums and weights, (parts L, H, W) each.
            rows: (n,) int64, block coordinates along y.
            columns: (n,) int64, block coordinates along x.
            found: (L, H, W) complex and (L, H, W) real, written to.
        """
        for parts, target in zip(sums, found, strict=True):
            values = narrowed(cut_blocks(parts, rows, columns), target.dtype, len(target))
            put_blocks(target, rows, columns, values)

    def combine(
        self, sums: RankSums, reached: Tensor, rows: Tensor, columns: Tensor, found: tuple[Tensor, Tensor]
    ) -> None:
        """Add the object's sums and weights of several ranks, and write them to fields, on some blocks.

        Args:
            sums: of all ranks.
            reached: (n,) int64, ranks that contribute to each block, as bits of a number that is not 0; -1 for all.
            rows: (n,) int64, block coordinates along y.
            columns: (n,) int64, block coordinates along x.
            found: (L, H, W) complex and (L, H, W) real, written to.
        """
        for place, target in enumerate(found):
            total: Any = 0
            for rank in range(len(sums.ranks)):
                contributing = ((reached >> rank) & 1 > 0).nonzero()[:, 0]
                values, (y, x) = sums.of(rank, len(target))[place], sums.ranks[rank, 4:].tolist()
                if rank == 0:
                    total = values.new_zeros((len(values), len(rows), BLOCK, BLOCK))
                total[:, contributing] += cut_blocks(values, rows[contributing] + y, columns[contributing] + x)
            put_blocks(target, rows, columns, narrowed(total, target.dtype, len(target)))

    def largest(self, leaf: FieldView) -> Tensor:
        """Return the largest value of a real field on its blocks in each slice, (L, 1, 1, 1); 0 without blocks."""
        return top_of(leaf.values)

    def write(
        self,
        target: Tensor,
        expression: Expression | RegularisedQuotient,
        rows: Tensor,
        columns: Tensor,
        add: bool = False,
    ) -> None:
        """Evaluate an expression, and write it to blocks of a field or add it.

        Args:
            target: (L, H, W), changed in place.
            expression: values of the blocks.
            rows: (n,) int64, block coordinates along y.
            columns: (n,) int64, block coordinates along x.
            add: True to add.
        """
        values = evaluate(expression).to(target.dtype)
        if add:
            blocked(target)[:, rows, columns] += values
        else:
            blocked(target)[:, rows, columns] = values

    def add_quotient(self, target: Tensor, change: Tensor, weight: Tensor, blend: float, times: float) -> None:
        """Add times change / ((1 - blend) weight + blend max weight) to a probe.

        For an object, `write` does so with a `RegularisedQuotient`.

        Args:
            target: (M, h, w) complex, changed in place.
            change: (M, h, w) complex.
            weight: (h, w) real.
            blend: share of the largest weight in the divisor.
            times: factor.
        """
        target += change * (times / (weight.lerp(weight.max(), blend) + TINY))

    def finish(self, into: Adjoints) -> None:
        """Complete the sums after the last chunk.

        The object's are left alone: they may already be on their way to other ranks.
        """
