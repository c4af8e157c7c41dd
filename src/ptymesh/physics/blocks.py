"""Arithmetic on the blocks of an object that a batch touches: written down first, done in one go when it is needed.

L, H, W     slices, object pixels;  b = BLOCK, side of a block
n           blocks

An expression is a tree of fields, numbers and a few operations. Where its values go decides how it is worked out:
block by block while a block is in the cache (`ptymesh.kernels`), or with torch's operations over all blocks.
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
    """View (L, H/b, W/b, b, b) of a field (L, H, W)."""
    slices, height, width = field.shape
    return field.view(slices, height // BLOCK, BLOCK, width // BLOCK, BLOCK).permute(0, 1, 3, 2, 4)


def cut_blocks(field: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Values (L, n, b, b) of a field (L, H, W) on blocks (n,), copied. On a CPU numpy is several times faster at it."""
    if field.device.type == "cpu":
        return torch.from_numpy(blocked(field).numpy()[:, rows.numpy(), columns.numpy()])
    return blocked(field)[:, rows, columns]


def put_blocks(field: Tensor, rows: Tensor, columns: Tensor, values: Tensor, add: bool = False) -> None:
    """The field (L, H, W) has these values (L, n, b, b) on the blocks, or they are added to its own; no block twice."""
    given: tuple[Any, ...] = (blocked(field), rows, columns, values)
    whole, y, x, new = (tensor.numpy() for tensor in given) if field.device.type == "cpu" else given
    if add:
        whole[:, y, x] += new
    else:
        whole[:, y, x] = new


class Leaf:
    """Values of a field on n blocks: gathered, (L, n, b, b), or still where they are, in an array (L, H, W).

    rows, columns (n,): block coordinates in the array.
    """

    def __init__(self, rows: Tensor, columns: Tensor, *, whole: Tensor | None = None, values: Tensor | None = None):
        assert (whole is None) != (values is None)
        self.rows, self.columns, self._whole, self._values = rows, columns, whole, values
        #: How its largest value is found.
        self.largest: Callable[[Leaf], Tensor] = lambda leaf: top_of(leaf.values)

    @property
    def whole(self) -> Tensor | None:
        """(L, H, W); None of gathered values."""
        return self._whole

    @property
    def values(self) -> Tensor:
        """(L, n, b, b)."""
        if self._values is None:
            assert self.whole is not None
            self._values = cut_blocks(self.whole, self.rows, self.columns)
        return self._values

    @property
    def is_complex(self) -> bool:
        """Whether the values of this expression are complex."""
        kept = self._whole if self._values is None else self._values
        assert kept is not None
        return kept.is_complex()

    def leave(self) -> None:
        """Keeps values of its own: the array is about to be used for something else."""
        assert self.values is not None
        self._whole = None


def top_of(values: Tensor) -> Tensor:
    """The largest of values (L, n, b, b) in each slice, (L, 1, 1, 1); not below zero, which it is of no values."""
    if values.numel():
        return values.amax((1, 2, 3), keepdim=True).clamp(min=0)
    return values.new_zeros((len(values), 1, 1, 1))


@dataclass(frozen=True)
class Operation:
    """An operation on expressions; the second operand may be a number, or one number (L, 1, 1, 1) for each slice."""

    name: Name
    first: Expression
    second: Expression | float | Tensor | None = None

    @property
    def is_complex(self) -> bool:
        """Whether the values of this expression are complex."""
        second = self.second
        by_second = isinstance(second, Leaf | Operation) and second.is_complex
        return self.first.is_complex or by_second or (isinstance(second, Tensor) and second.is_complex())


Expression = Leaf | Operation

#: What weights that are divided by are raised by, for where nothing was seen.
TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Quotient:
    """times change / ((1 - blend) weight + blend top), which most engines write.

    top: of the weight, for each slice (L, 1, 1, 1), or one number for all.
    """

    change: Expression
    weight: Expression
    top: Tensor | float
    blend: float
    times: float

    @property
    def divisor(self) -> tuple[float, Tensor | float]:
        """What the weight is multiplied by, and what is added: rounded once, be the top a number or a tensor."""
        if isinstance(self.top, Tensor):
            return 1 - self.blend, (self.top.to(torch.float64) * self.blend + TINY).to(self.top.dtype)
        return 1 - self.blend, self.top * self.blend + TINY

    def spelled_out(self) -> Operation:
        """The same quotient as operations on leaves and numbers."""
        factor, summand = self.divisor
        divisor = Operation("add", Operation("multiply", self.weight, factor), summand)
        return Operation("divide", Operation("multiply", self.change, self.times), divisor)


def evaluate(expression: Expression | Quotient) -> Tensor:
    """Values (L, n, b, b)."""
    if isinstance(expression, Quotient):
        expression = expression.spelled_out()
    if isinstance(expression, Leaf):
        return expression.values
    first = evaluate(expression.first)
    if expression.name == "sqrt":
        return first.sqrt()
    second = expression.second
    assert second is not None
    other = evaluate(second) if isinstance(second, Leaf | Operation) else second
    if expression.name == "add":
        return first + other
    return first * other if expression.name == "multiply" else first / other
