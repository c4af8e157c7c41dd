"""Arithmetic on the blocks of an object that a batch touches, written down as an expression and evaluated at once.

L, H, W     slices, object pixels;  b = BLOCK, side of a block
n           blocks

An expression is a tree of fields, numbers and a few operations. It is evaluated block by block while a block is in the
cache (`ptymesh.kernels`), or with torch's operations over all blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ptymesh.estimate import BLOCK

Name = Literal["add", "multiply", "divide", "sqrt"]


def blocked(field: Tensor) -> Tensor:
    """Return a view (L, H/b, W/b, b, b) of a field (L, H, W)."""
    slices, height, width = field.shape
    return field.view(slices, height // BLOCK, BLOCK, width // BLOCK, BLOCK).permute(0, 1, 3, 2, 4)


def cut_blocks(field: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return a copy of a field's values on some blocks, (L, n, b, b).

    On a CPU numpy is several times faster at it than torch.

    Args:
        field: (L, H, W).
        rows: (n,) int64, block coordinates along y.
        columns: (n,) int64, block coordinates along x.
    """
    if field.device.type == "cpu":
        return torch.from_numpy(blocked(field).numpy()[:, rows.numpy(), columns.numpy()])
    return blocked(field)[:, rows, columns]


def put_blocks(field: Tensor, rows: Tensor, columns: Tensor, values: Tensor, add: bool = False) -> None:
    """Write values to blocks of a field, or add them.

    Args:
        field: (L, H, W), changed in place.
        rows: (n,) int64, block coordinates along y; no block twice.
        columns: (n,) int64, block coordinates along x.
        values: (L, n, b, b).
        add: True to add.
    """
    tensors: tuple[Any, ...] = (blocked(field), rows, columns, values)
    target, y, x, new = (tensor.numpy() for tensor in tensors) if field.device.type == "cpu" else tensors
    if add:
        target[:, y, x] += new
    else:
        target[:, y, x] = new


class FieldView:
    """Values of a field on n blocks: gathered, (L, n, b, b), or not yet, in an array (L, H, W).

    Attributes:
        rows: (n,) int64, block coordinates in the array along y.
        columns: (n,) int64, along x.
        largest: function that finds the largest value.
    """

    def __init__(self, rows: Tensor, columns: Tensor, *, array: Tensor | None = None, values: Tensor | None = None):
        assert (array is None) != (values is None)
        self.rows, self.columns, self._array, self._values = rows, columns, array, values
        #: Finds the largest value.
        self.largest: Callable[[FieldView], Tensor] = lambda leaf: top_of(leaf.values)

    @property
    def array(self) -> Tensor | None:
        """Array (L, H, W) that holds the values; None if they are gathered."""
        return self._array

    @property
    def values(self) -> Tensor:
        """Values (L, n, b, b), gathered at the first use."""
        if self._values is None:
            assert self.array is not None
            self._values = cut_blocks(self.array, self.rows, self.columns)
        return self._values

    @property
    def is_complex(self) -> bool:
        """True if the values are complex."""
        tensor = self._array if self._values is None else self._values
        assert tensor is not None
        return tensor.is_complex()

    def copy_out(self) -> None:
        """Copy the values: the array is about to be overwritten."""
        assert self.values is not None
        self._array = None


def top_of(values: Tensor) -> Tensor:
    """Return the largest of values (L, n, b, b) in each slice, (L, 1, 1, 1); at least 0, and 0 without values."""
    if values.numel():
        return values.amax((1, 2, 3), keepdim=True).clamp(min=0)
    return values.new_zeros((len(values), 1, 1, 1))


@dataclass(frozen=True)
class Operation:
    """An operation on expressions.

    Attributes:
        name: which one.
        first: first operand.
        second: second operand: an expression, a number, or one number (L, 1, 1, 1) for each slice; None for "sqrt".
    """

    name: Name
    first: Expression
    second: Expression | float | Tensor | None = None

    @property
    def is_complex(self) -> bool:
        """True if the values are complex."""
        second = self.second
        by_second = isinstance(second, FieldView | Operation) and second.is_complex
        return self.first.is_complex or by_second or (isinstance(second, Tensor) and second.is_complex())


Expression = FieldView | Operation

#: Added to weights before a division, for pixels without illumination.
TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class RegularisedQuotient:
    """The regularised quotient times change / ((1 - blend) weight + blend top), which most engines write.

    Attributes:
        change: numerator.
        weight: weight of each pixel, real.
        top: largest weight of each slice, (L, 1, 1, 1), or one number for all.
        blend: share of `top` in the divisor.
        times: factor.
    """

    change: Expression
    weight: Expression
    top: Tensor | float
    blend: float
    times: float

    @property
    def divisor(self) -> tuple[float, Tensor | float]:
        """Factor and summand that turn the weight into the divisor; rounded once, be `top` a number or a tensor."""
        if isinstance(self.top, Tensor):
            return 1 - self.blend, (self.top.to(torch.float64) * self.blend + TINY).to(self.top.dtype)
        return 1 - self.blend, self.top * self.blend + TINY

    def spelled_out(self) -> Operation:
        """Return the same quotient as operations on leaves and numbers."""
        factor, summand = self.divisor
        divisor = Operation("add", Operation("multiply", self.weight, factor), summand)
        return Operation("divide", Operation("multiply", self.change, self.times), divisor)


def evaluate(expression: Expression | RegularisedQuotient) -> Tensor:
    """Return the values of an expression, (L, n, b, b)."""
    if isinstance(expression, RegularisedQuotient):
        expression = expression.spelled_out()
    if isinstance(expression, FieldView):
        return expression.values
    first = evaluate(expression.first)
    if expression.name == "sqrt":
        return first.sqrt()
    second = expression.second
    assert second is not None
    other = evaluate(second) if isinstance(second, FieldView | Operation) else second
    if expression.name == "add":
        return first + other
    if expression.name == "divide" and first.is_complex() and isinstance(other, Tensor) and not other.is_complex():
        return first * other.reciprocal()  # several times faster than to divide complex numbers
    return first * other if expression.name == "multiply" else first / other
