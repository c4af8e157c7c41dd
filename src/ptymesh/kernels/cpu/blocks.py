"""Expressions on an object's blocks whose forms (kernels/block_forms.py) the loops of compiled/blocks.py write."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ptymesh.estimate import BLOCK
from ptymesh.kernels.block_forms import ROOT, form_of
from ptymesh.kernels.cpu.arguments import numpy_dtype, places_of
from ptymesh.kernels.cpu.compiled import blocks as compiled_blocks
from ptymesh.physics.blocks import Expression, FieldView, RegularisedQuotient

assert compiled_blocks.SIDE == BLOCK, "the compiled loops know the side of a block"


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
    form = form_of(expression)
    if form is None or not target.is_complex() or not target.is_contiguous() or target.is_conj():
        return False
    factor, summand = expression.divisor if isinstance(expression, RegularisedQuotient) else (1.0, form.number)
    summands = torch.as_tensor(summand, dtype=torch.float64 if isinstance(summand, float) else None).detach().flatten()
    if summands.is_complex() or len(summands) not in (1, len(target)):
        return False
    numbers = np.empty((len(target), 3), numpy_dtype(target.dtype.to_real()))
    numbers[:, 0], numbers[:, 1], numbers[:, 2] = form.times, factor, summands.numpy()
    arrays, blocks = [], np.repeat(places_of(rows, columns), 3, axis=0)
    for place, (leaf, dtype) in enumerate(zip(form.leaves, (target.dtype, target.dtype.to_real()), strict=False)):
        array, y, x = _field(leaf)
        if array.dtype != dtype or not array.is_contiguous():
            return False
        arrays.append(array.numpy())
        blocks[place] = y.numpy(), x.numpy()
    weight = arrays[1] if len(arrays) > 1 else np.empty((0, 0, 0), numbers.dtype)
    kernel_inputs = numbers, arrays[0], weight, blocks
    compiled_blocks.write(form.kind == ROOT, kernel_inputs, add, bands, target.numpy())
    return True


def _field(leaf: FieldView) -> tuple[Tensor, Tensor, Tensor]:
    """Return the array (L, H', W') that holds the leaf, and its blocks there."""
    if leaf.array is not None:
        return leaf.array, leaf.rows, leaf.columns
    values = leaf.values.contiguous()
    slices, n = values.shape[:2]
    return values.view(slices, n * BLOCK, BLOCK), torch.arange(n), torch.zeros(n, dtype=torch.int64)
