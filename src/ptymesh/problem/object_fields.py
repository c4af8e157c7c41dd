"""Operations on fields of the object: arithmetic on the blocks that a batch covers, and sums over all ranks.

L, H, W    slices, object pixels of this rank's part
b          side of an object block
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch import Tensor

from ptymesh.distributed.exact import Reduction
from ptymesh.distributed.layouts.layout import BlockSparseField
from ptymesh.estimate import Estimate
from ptymesh.physics.blocks import Expression, FieldView, RegularisedQuotient
from ptymesh.problem.setup import Setup


class Fields:
    """Operations on fields of the object, whole arrays (L, H, W) or `BlockSparseField`, as if one rank had all of it.

    Args:
        setup: layout, backend and precision of the problem.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup, self.layout = setup, setup.layout
        self._buffers: dict[str, Tensor] = {}
        self._lent: list[weakref.ref[FieldView]] = []

    def add(self, target: Tensor, change: BlockSparseField | Tensor) -> None:
        """Add a change in place: to the touched blocks of an object (L, H, W), or to a whole tensor."""
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
        """Add times change / ((1 - blend) w + blend max w) in place, which is rPIE's step (eq. 10).

        For an object, touched blocks are changed, and maxima are those of its slices. A small number keeps the divisor
        above zero where there is no illumination.

        Args:
            target: object (L, H, W), or probe (M, h, w).
            change: numerator: touched blocks, or (M, h, w).
            weight: w, real: touched blocks, or (h, w).
            blend: share of the largest weight in the divisor.
            times: factor.
        """
        if isinstance(change, BlockSparseField) and isinstance(weight, BlockSparseField):
            top = weight.max()  # first, as it evaluates the weight if that is an expression
            quotient = RegularisedQuotient(change.expression, weight.expression, top, blend, times)
            self._write(target, quotient, change, add=True)
        else:
            assert isinstance(change, Tensor) and isinstance(weight, Tensor), "of one kind"
            self.setup.backend.add_quotient(target, change, weight, blend, times)

    def put(self, target: Tensor, field: BlockSparseField) -> None:
        """Copy the touched blocks of `field` to an array (L, H, W), in place."""
        self._write(target, field.expression, field)

    def _write(
        self, target: Tensor, values: Expression | RegularisedQuotient, like: BlockSparseField, add: bool = False
    ) -> None:
        """Write an expression to the blocks of `like`, and tell the layout that they have changed."""
        version = target._version
        self.setup.backend.write(target, values, like.rows, like.columns, add=add)
        self.layout.mark_written(target, version, like.rows, like.columns)

    def touched(self, everywhere: Tensor, like: BlockSparseField) -> BlockSparseField:
        """Return the blocks of `like` out of an array (L, H, W), gathered when they are used.

        The array may be one from `fill_field_halo`.
        """
        return like.of(FieldView(like.rows, like.columns, array=self.layout.local_part(everywhere)))

    def window_array(self, field: BlockSparseField, estimate: Estimate, name: str = "spread") -> Tensor:
        """Return the touched field as an array (L, H, W) from which the batch's windows can be cut. Collective.

        Other blocks are stale. The array is valid until the next one of the same name.

        Args:
            field: touched blocks.
            estimate: gives the shape.
            name: name of the buffer.
        """
        buffer = self.buffer(
            name, estimate.object, self.setup.dtype if field.expression.is_complex else self.setup.real
        )
        self.put(buffer, field)
        return self.layout.fill_field_halo(buffer, name)

    def dot(self, a: Tensor | BlockSparseField, b: Tensor | BlockSparseField, estimate: Estimate) -> Tensor:
        """Return Re sum conj(a) b, each pixel counted once, 0-d float64. Collective.

        Args:
            a: field of the object's shape.
            b: field of the object's shape.
            estimate: gives the object's place.
        """
        return self.layout.dot(a, b, estimate)

    def dots(self, pairs: Iterable[tuple[Tensor, Tensor]], estimate: Estimate) -> Tensor:
        """Return Re sum conj(a) b of several pairs of fields, (n,) float64, in one message. Collective."""
        return self.layout.dots(pairs, estimate)

    def max(self, field: Tensor) -> Tensor:
        """Return the largest value over all pixels of a field of the object's shape, 0-d. Collective."""
        return self.layout.max(field.max())

    def mean(self, field: Tensor, mask: Tensor, estimate: Estimate) -> Tensor:
        """Return the mean of a field over some pixels, each counted once, 0-d float64. Collective.

        Args:
            field: (..., H, W) real.
            mask: (H, W) bool, pixels that count.
            estimate: gives the object's place.
        """
        mask = (mask & self.layout.owned(estimate)).expand(field.shape)
        total, count = self.layout.totals(estimate, torch.where(mask, field, field.new_zeros(())), mask.to(field.dtype))
        return total / count

    def is_of_object(self, array: Tensor, estimate: Estimate) -> bool:
        """Return True if an array has the shape of this rank's part of the object, or of a tiled unknown."""
        tiled = (estimate.others[one.name] for one in self.setup.model.tiled)
        return any(array.shape == part.shape for part in (estimate.object, *tiled))

    def reduction(self, *shape: int) -> Reduction:
        """Return an empty sum over views of numbers or arrays of this shape."""
        return Reduction(shape, self.setup.device, self.setup.backend.repeat)

    def totals(self, *reductions: Reduction) -> list[Tensor]:
        """Return the sums over all ranks, float64, in one message. Collective."""
        summed = self.setup.world.sum(*(reduction.local for reduction in reductions))
        return [reduction.read(total) for reduction, total in zip(reductions, summed, strict=True)]

    def buffer(
        self, name: str, like: Tensor, dtype: torch.dtype, copies: int = 1, shape: tuple[int, ...] | None = None
    ) -> Tensor:
        """Return a tensor that is allocated once per name; its content is left from its last use.

        Args:
            name: key of the buffer.
            like: (L, ...) tensor that gives shape and device.
            dtype: of the buffer.
            copies: the first axis has copies L entries.
            shape: instead of the shape of `like`.
        """
        first, *rest = like.shape if shape is None else shape
        shape = (copies * first, *rest)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != shape or buffer.dtype != dtype:
            buffer = self._buffers[name] = like.new_zeros(shape, dtype=dtype)
        return buffer

    def take_buffers(self, other: Fields) -> None:
        """Use the buffers of another problem, which is not used any more, and so spare the memory of new ones."""
        other.copy_out_of_buffers()
        self._buffers = other._buffers

    def track_buffers(self, *fields: BlockSparseField) -> None:
        """Remember that these fields may still lie in buffers, and let the backend find their largest values."""
        leaves = [f.expression for f in fields if isinstance(f.expression, FieldView)]
        for leaf in leaves:
            leaf.largest = self.setup.backend.largest
        self._lent = [weakref.ref(leaf) for leaf in leaves]

    def copy_out_of_buffers(self) -> None:
        """Copy fields that are still referenced out of the buffers, which are about to be used again."""
        for reference in self._lent:
            leaf = reference()
            if leaf is not None:
                leaf.copy_out()
        self._lent = []
