"""Products of complex numbers on a CPU, with the bits of physics/elementwise.py, several times faster."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ptymesh.kernels.arrays import ComplexArray, IntArray
from ptymesh.kernels.cpu.arguments import numpy_dtype
from ptymesh.kernels.cpu.compiled import windows as compiled
from ptymesh.kernels.cpu.ready import share_threads
from ptymesh.physics import elementwise

#: Smallest number of products for which this is faster than torch.
FEW = 1 << 12


def offer(dtype: torch.dtype) -> None:
    """Compute products of this dtype here from now on."""
    elementwise.PRODUCTS[dtype] = product


def product(a: Tensor, b: Tensor) -> Tensor | None:
    """Return a b of stacks (..., h, w) that broadcast; None if torch computes them as fast."""
    if not (type(a) is type(b) is Tensor) or a.requires_grad or b.requires_grad:
        return None
    if min(a.ndim, b.ndim) < 2 or a.shape[-2:] != b.shape[-2:]:
        return None
    # torch.broadcast_shapes imports modules for half a second, which are not used here
    stack, window = np.broadcast_shapes(tuple(a.shape[:-2]), tuple(b.shape[:-2])), a.shape[-2:]
    if math.prod(stack) * math.prod(window) < FEW:
        return None
    share_threads()
    out = torch.empty((*stack, *window), dtype=a.dtype)
    compiled.products(*_planes(a, stack), *_planes(b, stack), out.view(-1, math.prod(window)).numpy())
    return out


def _planes(x: Tensor, stack: tuple[int, ...]) -> tuple[ComplexArray, IntArray, np.floating]:
    """Return the planes of a stack, the index of each among them, and the sign of imaginary parts."""
    sign = -1.0 if x.is_conj() else 1.0
    planes = (x.conj() if x.is_conj() else x).reshape(-1, x.shape[-2] * x.shape[-1]).resolve_neg()
    real = numpy_dtype(x.dtype.to_real())
    return planes.detach().contiguous().numpy(), _of_stack(x.shape[:-2], stack), real.type(sign)


@lru_cache(maxsize=256)
def _of_stack(own: torch.Size, stack: tuple[int, ...]) -> IntArray:
    """Return the index among its own planes of each plane of a stack; not to be written to."""
    return np.broadcast_to(np.arange(math.prod(own)).reshape(own), stack).flatten()
