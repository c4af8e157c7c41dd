"""Elementwise functions, and sums over windows, whose last bit depends on the values alone.

Torch's own products of complex numbers, atan2, phases and powers round by the element's place in the array, as the last
few are computed without the vector unit: so the result depends on how many views there are and how threads share them.
Sums, real products, quotients, roots, exponentials and `torch.polar` do not (tests/physics/test_elementwise.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

#: Number of terms up to which torch computes a sum in one thread.
TOGETHER = 1 << 14
#: Faster functions for the same products on a CPU, by dtype (kernels/cpu/products.py); None where not applicable.
PRODUCTS: dict[torch.dtype, Callable[[Tensor, Tensor], Tensor | None]] = {}


def times(a: Tensor, b: Tensor) -> Tensor:
    """Return a b of complex numbers that broadcast."""
    if a.device.type != "cpu":  # where every element is computed by a thread of its own
        return a * b
    product = PRODUCTS.get(a.dtype)
    by_kernel = product(a, b) if product and a.dtype == b.dtype else None
    if by_kernel is not None:
        return by_kernel
    real = a.real * b.real - a.imag * b.imag
    return torch.complex(real, a.real * b.imag + a.imag * b.real)


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """Return Re conj(a) b of complex numbers that broadcast."""
    return a.real * b.real + a.imag * b.imag


def phase(x: Tensor) -> Tensor:
    """Return arg x of complex numbers, in rad, from -pi to pi; 0 at x = 0, with derivative 0."""
    steep = x.imag.abs() > x.real.abs()  # the quotient is then inverted, so that it is 1 at most
    over, under = torch.where(steep, x.real, x.imag), torch.where(steep, x.imag, x.real)
    angle = torch.atan(over / torch.where(under == 0, math.inf, under))
    half = torch.where(x.imag < 0, -math.pi, angle.new_full((), math.pi))  # two Python numbers would give float32
    return torch.where(steep, half / 2 - angle, torch.where(x.real < 0, half + angle, angle))


def raised(x: Tensor, power: float) -> Tensor:
    """Return x^power of real x >= 0."""
    if power == 1:
        return x
    return torch.sqrt(x) if power == 0.5 else torch.exp(power * torch.log(x))


#: Number of sums from which on a GPU always adds in the same order.
MANY = 16


def over_window(x: Tensor) -> Tensor:
    """Return the sums (...) float64 over the windows of real x (..., h, w).

    Rows are summed in x's own precision, then all rows. Torch shares the terms of a single large sum between threads,
    but not the terms of one sum among many. A GPU adds in another order if there are few sums, and so if there are few
    views; `in_pairs` does not.
    """
    if x.device.type == "cpu":
        return x.sum(-1).sum(-1, dtype=torch.float64)
    rows = x.sum(-1) if x.shape[-2] >= MANY else in_pairs(x)
    return in_pairs(rows.to(torch.float64))


def over_few(x: Tensor) -> Tensor:
    """Return the sums (B,) over the second axis of (B, n), for instance over modes."""
    return x.sum(1) if x.device.type == "cpu" else in_pairs(x)


def in_pairs(x: Tensor) -> Tensor:
    """Return the sums over the last axis, in an order that depends on its length alone.

    It does not depend on how many sums there are.
    """
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        pairs = x[..., :half] + x[..., half : 2 * half]
        x = torch.cat((pairs, x[..., 2 * half :]), dim=-1) if x.shape[-1] % 2 else pairs
    return x[..., 0]


def means(x: Tensor) -> Tensor:
    """Return the means (...) over the first axis of real x (N, ...)."""
    pieces = [piece.sum(0) for piece in x.split(TOGETHER)]
    return (pieces[0] if len(pieces) == 1 else torch.stack(pieces).sum(0)) / len(x)
