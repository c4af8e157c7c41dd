"""Functions of arrays' elements, and sums over windows, whose last bit is decided by the values alone.

Torch's own products of complex numbers, atan2, phases and powers round by the element's place in the array, as the last
few are computed without the vector unit, and so by how many views there are and by how threads share them. Sums, real
products, quotients, roots, exponentials and `torch.polar` do not (tests/physics/test_elementwise.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

#: Terms of a sum that torch leaves to one thread.
TOGETHER = 1 << 14
#: What makes the same products on a CPU in less time, by dtype, where it can (kernels/products.py).
PRODUCTS: dict[torch.dtype, Callable[[Tensor, Tensor], Tensor | None]] = {}


def times(a: Tensor, b: Tensor) -> Tensor:
    """a b of complex numbers that broadcast."""
    if a.device.type != "cpu":  # where every element is computed by a thread of its own
        return a * b
    product = PRODUCTS.get(a.dtype)
    found = product(a, b) if product and a.dtype == b.dtype else None
    if found is not None:
        return found
    real = a.real * b.real - a.imag * b.imag
    return torch.complex(real, a.real * b.imag + a.imag * b.real)


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """Re conj(a) b of complex numbers that broadcast."""
    return a.real * b.real + a.imag * b.imag


def phase(x: Tensor) -> Tensor:
    """arg x of complex numbers, rad, in -pi to pi; 0 of 0, whose derivative is 0 as well."""
    steep = x.imag.abs() > x.real.abs()  # the quotient is then the other way about, so that it is 1 at most
    over, under = torch.where(steep, x.real, x.imag), torch.where(steep, x.imag, x.real)
    angle = torch.atan(over / torch.where(under == 0, math.inf, under))
    half = torch.where(x.imag < 0, -math.pi, angle.new_full((), math.pi))  # two numbers would be of single precision
    return torch.where(steep, half / 2 - angle, torch.where(x.real < 0, half + angle, angle))


def raised(x: Tensor, power: float) -> Tensor:
    """x^power of real x >= 0."""
    if power == 1:
        return x
    return torch.sqrt(x) if power == 0.5 else torch.exp(power * torch.log(x))


#: Sums that a GPU always takes in the same order, if there are so many at least.
MANY = 16


def over_window(x: Tensor) -> Tensor:
    """Sums (...) float64 over the windows of real x (..., h, w): of rows in x's own precision, then of all rows. Torch
    shares the terms of a single large sum between threads, but not those of one among many. A GPU adds in another order
    where there are few sums: of views that are few, too."""
    if x.device.type == "cpu":
        return x.sum(-1).sum(-1, dtype=torch.float64)
    rows = x.sum(-1) if x.shape[-2] >= MANY else in_pairs(x)
    return in_pairs(rows.to(torch.float64))


def over_few(x: Tensor) -> Tensor:
    """Sums (B,) over what each view has of few, (B, n): of modes, say."""
    return x.sum(1) if x.device.type == "cpu" else in_pairs(x)


def in_pairs(x: Tensor) -> Tensor:
    """Sums over the last axis in an order that depends on its length alone, not on how many sums there are."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        pairs = x[..., :half] + x[..., half : 2 * half]
        x = torch.cat((pairs, x[..., 2 * half :]), dim=-1) if x.shape[-1] % 2 else pairs
    return x[..., 0]


def means(x: Tensor) -> Tensor:
    """Means (...) over the first axis of real x (N, ...)."""
    pieces = [piece.sum(0) for piece in x.split(TOGETHER)]
    return (pieces[0] if len(pieces) == 1 else torch.stack(pieces).sum(0)) / len(x)
