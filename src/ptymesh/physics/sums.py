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
    Leaf,
    Quotient,
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

    Each has so many parts: object (parts L, H, W) or None; probe (parts M, h, w) or None, of `Model.unshifted_terms` if
    `shifted`; opr (parts K, h, w); with their weights, real, probe_weight (parts, h, w). shifts (6, 2): by kind of sum
    and part. reached: (6,) the largest terms so far.
    views: how many the batch has, if no other rank has any: waves of a chunk with all of them need not be copied.
    kept: what else a pass keeps until `finish`. background: what its sums are, where it is told of views.
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
        """Terms (B, C, ...) in parts (B, parts C, ...); how large they are is noted."""
        self.note(kind, largest(terms))
        return rounded(terms, self.shifts[kind], self.parts)

    def note(self, kind: int, reached: Tensor) -> None:
        """Terms were as large as this, 0-d."""
        torch.maximum(self.reached[kind], reached, out=self.reached[kind])


@dataclass(frozen=True)
class SharedSums:
    """The object's sums of several ranks, and their weights, in memory that all of them see.

    memory: (m,) float64; ranks: (k, 6) int64, of each rank the place of its first sum and of its first weight, in
    numbers, the sides of its arrays (parts L, H, W), and the block of these, y x, at which the field begins in which
    sums are to come together; parts: of each sum.
    """

    memory: Tensor
    ranks: np.ndarray[Any, Any]
    parts: int

    def of(self, rank: int, slices: int) -> tuple[Tensor, Tensor]:
        """A rank's sums and weights (parts L, H, W)."""
        first, weight, height, width = self.ranks[rank, :4].tolist()
        shape = (self.parts * slices, height, width)
        count = math.prod(shape)
        pairs = self.memory[first : first + 2 * count].view(*shape, 2)
        return torch.view_as_complex(pairs), self.memory[weight : weight + count].view(shape)


class BlockOperations:
    """What is done to the object's sums, and to fields of the object, on the blocks of a batch."""

    def clear(self, field: Tensor, weight: Tensor, rows: Tensor, columns: Tensor) -> None:
        """A complex and a real field (L, H, W) become 0 on these blocks (n,)."""
        for array in (field, weight):
            blocked(array)[:, rows, columns] = 0

    def narrow(self, sums: tuple[Tensor, Tensor], rows: Tensor, columns: Tensor, found: tuple[Tensor, Tensor]) -> None:
        """Fields (L, H, W) become what the object's sums are, and their weight, on these blocks (n,)."""
        for parts, target in zip(sums, found, strict=True):
            values = narrowed(cut_blocks(parts, rows, columns), target.dtype, len(target))
            put_blocks(target, rows, columns, values)

    def combine(
        self, sums: SharedSums, reached: Tensor, rows: Tensor, columns: Tensor, found: tuple[Tensor, Tensor]
    ) -> None:
        """Fields (L, H, W) become what the object's sums of several ranks are together, and their weights, on these
        blocks (n,).

        reached: (n,) int64, whose sums, as bits of a number that is not 0; -1: everybody's.
        """
        for place, target in enumerate(found):
            total: Any = 0
            for rank in range(len(sums.ranks)):
                here = ((reached >> rank) & 1 > 0).nonzero()[:, 0]
                values, (y, x) = sums.of(rank, len(target))[place], sums.ranks[rank, 4:].tolist()
                if rank == 0:
                    total = values.new_zeros((len(values), len(rows), BLOCK, BLOCK))
                total[:, here] += cut_blocks(values, rows[here] + y, columns[here] + x)
            put_blocks(target, rows, columns, narrowed(total, target.dtype, len(target)))

    def largest(self, leaf: Leaf) -> Tensor:
        """The largest value of a real field on its blocks in each slice, (L, 1, 1, 1); of no blocks, 0."""
        return top_of(leaf.values)

    def write(
        self, target: Tensor, expression: Expression | Quotient, rows: Tensor, columns: Tensor, add: bool = False
    ) -> None:
        """target (L, H, W) = or += the expression on these blocks (n,)."""
        values = evaluate(expression).to(target.dtype)
        if add:
            blocked(target)[:, rows, columns] += values
        else:
            blocked(target)[:, rows, columns] = values

    def add_quotient(self, target: Tensor, change: Tensor, weight: Tensor, blend: float, times: float) -> None:
        """target (M, h, w) += times change / ((1 - blend) weight + blend max weight); weight (h, w), real.

        Of a probe what `write` does with a `Quotient` of an object.
        """
        target += change * (times / (weight.lerp(weight.max(), blend) + TINY))

    def finish(self, into: Adjoints) -> None:
        """Completes the sums after the last chunk; not the object's, which may be travelling by then."""
