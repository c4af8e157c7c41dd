"""Expressions on an object's blocks (physics/blocks.py) turned into programs for compiled/blocks.py.

A program works on registers like a pocket calculator: operands are loaded, an operation replaces the last two by its
result. It is run block by block, so that what lies between is never written to memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ptymesh.estimate import BLOCK
from ptymesh.kernels.arrays import IntArray, NumberArray
from ptymesh.kernels.cpu.arguments import places_of
from ptymesh.kernels.cpu.compiled import blocks as c
from ptymesh.physics.blocks import Expression, FieldView, Operation, RegularisedQuotient

assert c.SIDE == BLOCK, "the compiled loops know the side of a block"


#: Operations of the kernel, by name and by True for complex operands.
OPERATIONS = {
    ("add", True, True): c.C_AND_C,
    ("add", False, False): c.R_AND_R,
    ("multiply", False, False): c.R_BY_R,
    ("divide", False, False): c.R_OVER_R,
    ("multiply", True, False): c.C_BY_R,
    ("divide", True, False): c.C_OVER_R,
}

#: The program of a quotient of two fields, each times a number and plus another.
QUOTIENT = np.array([(c.LOAD_C, 0, 0), (c.LOAD_R, 0, 0), (c.C_OVER_R, 0, 0)], dtype=np.int64)

#: Fields that a program loads, by their place among the kernel's fields; None if it does not load that one.
FieldViews = list[FieldView | None]
#: Steps, the two numbers that each uses in each slice, and the fields that they load.
Compiled = tuple[IntArray, list[list[tuple[float, float]]], FieldViews]
#: Number of fields that the kernel may load, and of the target.
FIELDS = c.COMPLEX_FIELDS + c.REAL_FIELDS + 1


class TooMuchError(Exception):
    """An expression needs more registers than there are, or an operation that there is not."""


@dataclass
class Program:
    """Steps, the two numbers that each uses in each slice, and the fields that they load."""

    slices: int
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    numbers: list[list[tuple[float, float]]] = field(default_factory=list)
    complex_fields: list[FieldView] = field(default_factory=list)
    real_fields: list[FieldView] = field(default_factory=list)

    def add(self, expression: Expression, complex_at: int = 0, real_at: int = 0) -> bool:
        """Append steps that leave the expression in the first free register of its kind.

        Args:
            expression: what to evaluate.
            complex_at: first free complex register.
            real_at: first free real register.

        Returns:
            True if the register is a complex one.

        Raises:
            TooMuchError: the expression does not fit.
        """
        if max(complex_at, real_at) >= c.REGISTERS:
            raise TooMuchError
        if isinstance(expression, FieldView):
            return self._load(expression, complex_at, real_at)
        first, second = expression.first, expression.second
        if isinstance(second, FieldView | Operation) and second.is_complex and not first.is_complex:
            if expression.name == "divide":
                raise TooMuchError
            first, second = second, first
        is_complex = self.add(first, complex_at, real_at)
        if expression.name == "sqrt":
            if is_complex:
                raise TooMuchError
            self._append(c.ROOT_R, real_at, 0)
        elif isinstance(second, FieldView | Operation):
            by_complex = self.add(second, complex_at + is_complex, real_at + (not is_complex))
            self._combine(expression.name, is_complex, by_complex, complex_at, real_at)
        else:
            assert second is not None
            self._number(expression.name, is_complex, second, complex_at, real_at)
        return is_complex

    def _load(self, leaf: FieldView, complex_at: int, real_at: int) -> bool:
        fields, most = (self.complex_fields, c.COMPLEX_FIELDS) if leaf.is_complex else (self.real_fields, c.REAL_FIELDS)
        if leaf not in fields:
            fields.append(leaf)
        if len(fields) > most:
            raise TooMuchError
        place = fields.index(leaf)
        self._append(c.LOAD_C, complex_at, place) if leaf.is_complex else self._append(c.LOAD_R, real_at, place)
        return leaf.is_complex

    def _combine(self, name: str, is_complex: bool, by_complex: bool, complex_at: int, real_at: int) -> None:
        op = OPERATIONS.get((name, is_complex, by_complex))
        if op is None:
            raise TooMuchError
        first = complex_at if is_complex else real_at
        second = complex_at + 1 if by_complex else real_at + (not is_complex)
        self._append(op, first, second)

    def _number(self, name: str, is_complex: bool, number: float | Tensor, complex_at: int, real_at: int) -> None:
        if name == "add" and is_complex:
            raise TooMuchError
        values = self._values(number)
        if name == "divide":
            values = [1 / v if v else math.inf for v in values]
        at = complex_at if is_complex else real_at
        if self.steps[-1][:2] == (c.LOAD_C if is_complex else c.LOAD_R, at):
            self._along(name, values)
        elif name == "add":
            self._append(c.R_AND_NUMBER, at, 0, values)
        else:
            self._append(c.C_BY_NUMBER if is_complex else c.R_BY_NUMBER, at, 0, values)

    def _values(self, number: float | Tensor) -> list[float]:
        """Return the number in each slice."""
        if not isinstance(number, Tensor):
            return [float(number)] * self.slices
        if number.is_complex() or number.numel() not in (1, self.slices):
            raise TooMuchError
        values = [number.item()] if number.numel() == 1 else number.detach().reshape(-1).tolist()
        return values if len(values) == self.slices else values * self.slices

    def _along(self, name: str, values: Sequence[float]) -> None:
        """Let the last step, a load, apply numbers: no pass over the register is made for them."""
        # a factor may be infinite, for a division by 0: a summand of 0 stays 0, and does not become NaN
        pairs = zip(self.numbers[-1], values, strict=True)
        self.numbers[-1] = [(f, s + v) if name == "add" else (f * v, s and s * v) for (f, s), v in pairs]

    def _append(self, op: int, first: int, second: int, numbers: Sequence[float] | None = None) -> None:
        self.steps.append((op, first, second))
        self.numbers.append([(1.0, 0.0)] * self.slices if numbers is None else [(v, 0.0) for v in numbers])


def write(
    target: Tensor, expression: Expression | RegularisedQuotient, rows: Tensor, columns: Tensor, add: bool, bands: int
) -> bool:
    """Write an expression to blocks of a field, or add it, by the compiled kernel.

    Args:
        target: (L, H, W) complex, changed in place.
        expression: values of the blocks.
        rows: (n,) int64, block coordinates along y.
        columns: (n,) int64, block coordinates along x.
        add: True to add.
        bands: number of bands that threads share.

    Returns:
        False, with nothing written, if the kernel cannot evaluate the expression.
    """
    if not target.is_complex() or not target.is_contiguous() or target.is_conj():
        return False
    found = _compile(expression, target.shape[0])
    if found is None:
        return False
    steps, numbers, leaves = found
    fields, common = [], places_of(rows, columns)
    where = common
    real = target.dtype.to_real()
    for place, leaf in enumerate(leaves):
        dtype = target.dtype if place < c.COMPLEX_FIELDS else real
        if leaf is None:
            fields.append(_nothing(dtype))
            continue
        array, y, x = _field(leaf)
        if array.dtype != dtype or not array.is_contiguous():
            return False
        fields.append(array.numpy())
        if y is not rows or x is not columns:
            where = np.repeat(common, FIELDS, axis=0) if where is common else where
            where[place] = y.numpy(), x.numpy()
    c.write(steps, np.array(numbers, dtype=fields[-1].dtype), tuple(fields), where, add, bands, target.numpy())
    return True


def _compile(expression: Expression | RegularisedQuotient, slices: int) -> Compiled | None:
    """Return steps, numbers and fields for the kernel; None if there are none."""
    if isinstance(expression, RegularisedQuotient):
        return _quotient(expression, slices) or _compile(expression.spelled_out(), slices)
    program = Program(slices)
    try:
        if not program.add(expression):
            return None
    except TooMuchError:
        return None
    leaves = [*_filled(program.complex_fields, c.COMPLEX_FIELDS), *_filled(program.real_fields, c.REAL_FIELDS)]
    return np.array(program.steps, dtype=np.int64), program.numbers, leaves


def _quotient(quotient: RegularisedQuotient, slices: int) -> Compiled | None:
    """Return the program of a quotient of fields, without building it: most engines write nothing else, batch after
    batch."""
    change, weight = quotient.change, quotient.weight
    if not (isinstance(change, FieldView) and isinstance(weight, FieldView)):
        return None
    factor, summand = quotient.divisor
    summands = summand.flatten().tolist() if isinstance(summand, Tensor) else [summand] * slices
    numbers = [[(quotient.times, 0.0)] * slices, [(factor, s) for s in summands], [(1.0, 0.0)] * slices]
    return QUOTIENT, numbers, [*_filled([change], c.COMPLEX_FIELDS), *_filled([weight], c.REAL_FIELDS)]


@lru_cache
def _nothing(dtype: torch.dtype) -> NumberArray:
    return torch.empty((0, 0, 0), dtype=dtype).numpy()


def _field(leaf: FieldView) -> tuple[Tensor, Tensor, Tensor]:
    """Return the array (L, H', W') that holds the leaf, and its blocks there."""
    if leaf.array is not None:
        return leaf.array, leaf.rows, leaf.columns
    values = leaf.values.contiguous()
    slices, n = values.shape[:2]
    return values.view(slices, n * BLOCK, BLOCK), torch.arange(n), torch.zeros(n, dtype=torch.int64)


def _filled(leaves: list[FieldView], most: int) -> list[FieldView | None]:
    return [*leaves, *[None] * (most - len(leaves))]
