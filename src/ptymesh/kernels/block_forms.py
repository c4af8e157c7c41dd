"""Forms of expressions on an object's blocks (physics/blocks.py) that engines write in every batch.

Backends write these in one pass over the blocks; torch evaluates all others.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ptymesh.physics.blocks import Expression, FieldView, Operation, RegularisedQuotient

#: `times field / ((1 - blend) weight + blend number)`, `field / sqrt(weight^2 + number)`, `number field`.
QUOTIENT, ROOT, SCALED = 0, 1, 2


@dataclass(frozen=True)
class BlockForm:
    """The fields and numbers of an expression of such a form.

    Attributes:
        kind: which form.
        leaves: the field; behind it the weight, which a scaled field has not.
        number: one for all slices, or one for each, (L, 1, 1, 1).
        times: factor of a quotient.
        blend: share of the number in a quotient's divisor.
    """

    kind: int
    leaves: tuple[FieldView, ...]
    number: Tensor | float
    times: float = 1.0
    blend: float = 0.0


def form_of(expression: Expression | RegularisedQuotient) -> BlockForm | None:
    """Return the form of an expression; None if it has another."""
    if isinstance(expression, RegularisedQuotient):
        leaves = expression.change, expression.weight
        if not (isinstance(leaves[0], FieldView) and isinstance(leaves[1], FieldView)):
            return None
        return BlockForm(QUOTIENT, (leaves[0], leaves[1]), expression.top, expression.times, expression.blend)
    if not isinstance(expression, Operation) or not isinstance(expression.first, FieldView):
        return None
    second = expression.second
    if expression.name == "multiply" and isinstance(second, Tensor | float):
        return BlockForm(SCALED, (expression.first,), second)
    if expression.name == "divide" and isinstance(second, Operation) and second.name == "sqrt":
        return _root(expression.first, second.first)
    return None


def _root(field: FieldView, total: Expression) -> BlockForm | None:
    """Return the form of a field over the root of a total, if that is the square of a field plus a number."""
    square = total.first if isinstance(total, Operation) and total.name == "add" else None
    if not isinstance(square, Operation) or square.name != "multiply" or square.first is not square.second:
        return None
    assert isinstance(total, Operation)
    if not isinstance(square.first, FieldView) or not isinstance(total.second, Tensor | float):
        return None
    return BlockForm(ROOT, (field, square.first), total.second)
