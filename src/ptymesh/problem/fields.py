"""What can be done with fields of the object: arithmetic on the blocks that a batch covers, and sums over all ranks.

L, H, W    slices, object pixels of this rank's part
b          side of an object block
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch import Tensor

from ptymesh.distributed.exact import Reduction
from ptymesh.distributed.layout import BlockSparseField
from ptymesh.estimate import Estimate
from ptymesh.physics.blocks import Expression, Leaf, Quotient
from ptymesh.problem.setup import Setup


class Fields:
    """Operations on fields of the object, whole arrays (L, H, W) or `BlockSparseField`, as if one rank had all of it.

    Args:
        setup: who owns which pixels, what writes blocks, and precision.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup, self.layout = setup, setup.layout
        self._buffers: dict[str, Tensor] = {}
        self._lent: list[weakref.ref[Leaf]] = []

    def add(self, target: Tensor, change: BlockSparseField | Tensor) -> None:
        """target += change, in place: the touched blocks of an object (L, H, W), or a whole tensor."""
        if isinstance(change, BlockSparseField):
            self._write(target, change.expression, change, add=True)
        else:
            target += change

    def add_weighted(
        self,
        target: Tensor,
        change: BlockSparseField | Tensor,
        weight: BlockSparseField | Tensor,
        *,
        blend: float,
        times: float = 1.0,
    ) -> None:
        """target += times change / ((1 - blend) w + blend max w), in place, which is rPIE's step (eq. 10).

        Of an object (L, H, W) the touched blocks, with weights w that are touched, too, and maxima of slices; or of a
        probe (M, h, w), with real weights (h, w). What is divided by is kept above zero where nothing was seen.
        """
        if isinstance(change, BlockSparseField) and isinstance(weight, BlockSparseField):
            top = weight.max()  # first: it works the weight out, if that is an expression
            quotient = Quotient(change.expression, weight.expression, top, blend, times)
            self._write(target, quotient, change, add=True)
        else:
            assert isinstance(change, Tensor) and isinstance(weight, Tensor), "of one kind"
            self.setup.backend.add_quotient(target, change, weight, blend, times)

    def put(self, target: Tensor, field: BlockSparseField) -> None:
        """The touched blocks of an array (L, H, W) become those of `field`, in place."""
        self._write(target, field.expression, field)

    def _write(self, target: Tensor, values: Expression | Quotient, like: BlockSparseField, add: bool = False) -> None:
        version = target._version
        self.setup.backend.write(target, values, like.rows, like.columns, add=add)
        self.layout.wrote(target, version, like.rows, like.columns)

    def touched(self, whole: Tensor, like: BlockSparseField) -> BlockSparseField:
        """The blocks of `like` out of an array (L, H, W), as it is when they are used; also one that was spread."""
        return like.of(Leaf(like.rows, like.columns, whole=self.layout.part(whole)))

    def spread(self, field: BlockSparseField, estimate: Estimate, name: str = "spread") -> Tensor:
        """The touched field as an array (L, H, W) from which the batch's windows can be cut; stale elsewhere.

        It lasts until the next of the same name. Collective.
        """
        whole = self.buffer(name, estimate.object, self.setup.dtype if field.expression.is_complex else self.setup.real)
        self.put(whole, field)
        return self.layout.spread(whole, name)

    def dot(self, a: Tensor | BlockSparseField, b: Tensor | BlockSparseField, estimate: Estimate) -> Tensor:
        """Re sum conj(a) b of two fields of the object's shape, each pixel once; 0-d float64."""
        return self.layout.dot(a, b, estimate)

    def dots(self, pairs: Iterable[tuple[Tensor, Tensor]], estimate: Estimate) -> Tensor:
        """The same of several pairs, (n,), together."""
        return self.layout.dots(pairs, estimate)

    def max(self, field: Tensor) -> Tensor:
        """Largest value over all pixels of a field of the object's shape, 0-d."""
        return self.layout.max(field.max())

    def mean(self, field: Tensor, where: Tensor, estimate: Estimate) -> Tensor:
        """Mean over the pixels `where` (H, W) bool of a real field (..., H, W), each pixel once; 0-d float64."""
        where = (where & self.layout.owned(estimate)).expand(field.shape)
        total, count = self.layout.totals(
            estimate, torch.where(where, field, field.new_zeros(())), where.to(field.dtype)
        )
        return total / count

    def reduction(self, *shape: int) -> Reduction:
        """A sum over views of numbers or arrays of this shape."""
        return Reduction(shape, self.setup.device, self.setup.backend.repeat)

    def totals(self, *reductions: Reduction) -> list[Tensor]:
        """Sums over all ranks, float64."""
        summed = self.setup.world.sum(*(reduction.local for reduction in reductions))
        return [reduction.read(total) for reduction, total in zip(reductions, summed, strict=True)]

    def buffer(
        self, name: str, like: Tensor, dtype: torch.dtype, copies: int = 1, shape: tuple[int, ...] | None = None
    ) -> Tensor:
        """A tensor of `like`'s shape (L, ...), or that shape, or with copies (copies L, ...), that is allocated once.

        What it holds is left from its last use.
        """
        first, *rest = like.shape if shape is None else shape
        shape = (copies * first, *rest)
        kept = self._buffers.get(name)
        if kept is None or kept.shape != shape or kept.dtype != dtype:
            kept = self._buffers[name] = like.new_zeros(shape, dtype=dtype)
        return kept

    def lend(self, *fields: BlockSparseField) -> None:
        """Notes that these fields may still be in buffers."""
        leaves = [f.expression for f in fields if isinstance(f.expression, Leaf)]
        for leaf in leaves:
            leaf.largest = self.setup.backend.largest
        self._lent = [weakref.ref(leaf) for leaf in leaves]

    def reclaim(self) -> None:
        """Fields that somebody still holds leave the buffers, which are about to be used again."""
        for reference in self._lent:
            leaf = reference()
            if leaf is not None:
                leaf.leave()
        self._lent = []
