"""Sums whose bits do not depend on the order of their terms: each is rounded to a common step before it is added.

t, N   a term, and how many there are at most
s      step, a power of two that everybody knows before the first term;  S = 1.5 x 2^52 s

    q = (t + S) - S

is t rounded to a multiple of s where |t| <= 2^51 s. Sums of such numbers in double precision are exact while the sum of
their magnitudes stays within 2^53 s, partial sums included; so they are free of order (Demmel & Nguyen, "Fast
reproducible floating-point summation", ARITH 2013). N terms within 2^(52 - ceil(log2 N)) s keep to that. Where single
precision's noise is coarser than the step, one such sum is enough; a second part may add up what is left, t - q, which
is at most s / 2, in steps that are finer by as many bits.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Powers of two beyond which no limit lies.
FARTHEST = 900


def bits_for(terms: int) -> int:
    """Bits that each of so many terms may have above the step."""
    return 52 - max(terms - 1, 1).bit_length()


def shifts_for(bounds: Tensor, terms: int) -> tuple[Tensor, Tensor]:
    """Shifts S (n, 2) float64 of the two parts of n sums of so many terms, which are about to stay within the bounds
    (n,), and limits (n,) within which they must stay: powers of two, not below the bounds.

    A bound that is no positive number counts as 1.
    """
    bits = bits_for(terms)
    if bounds.device.type == "cpu":  # of a handful of numbers Python makes less ado than torch
        powers = [2.0 ** _exponent(bound) for bound in bounds.tolist()]
        limits = torch.tensor(powers, dtype=torch.float64)
    else:
        sound = (bounds > 0) & bounds.isfinite()
        exponents = torch.frexp(torch.where(sound, bounds.to(torch.float64), 1.0))[1].clamp(-FARTHEST, FARTHEST)
        limits = torch.ldexp(torch.ones_like(bounds, dtype=torch.float64), exponents)
    first = limits * (1.5 * 2.0 ** (52 - bits))
    return torch.stack((first, first * 2.0 ** (-1 - bits)), dim=1), limits


def _exponent(bound: float) -> int:
    sound = bound > 0 and math.isfinite(bound)
    return max(-FARTHEST, min(FARTHEST, math.frexp(bound if sound else 1.0)[1]))


def rounded(values: Tensor, shift: Tensor, parts: int) -> Tensor:
    """Terms (B, C, ...), real or complex, in so many parts (B, parts C, ...) of double precision; shift (2,)."""
    pairs = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
    rest, found = pairs.to(torch.float64), []
    for part in range(parts):
        found.append((rest + shift[part]).sub_(shift[part]))
        if part + 1 < parts:
            rest = rest - found[-1]
    whole = torch.cat(found, dim=1) if parts > 1 else found[0]
    return torch.view_as_complex(whole) if values.is_complex() else whole


def empty_sums(like: Tensor, parts: int) -> Tensor:
    """Sums of arrays like this (C, ...), in parts (parts C, ...) of double precision, 0."""
    return like.new_zeros((parts * len(like), *like.shape[1:]), dtype=wide(like.dtype))


def wide(dtype: torch.dtype) -> torch.dtype:
    """The kind of number in double precision."""
    return torch.complex128 if dtype.is_complex else torch.float64


def largest(values: Tensor) -> Tensor:
    """The largest magnitude among real numbers, or real and imaginary parts; 0-d float64."""
    if not values.numel():
        return torch.zeros((), dtype=torch.float64, device=values.device)
    pairs = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
    low, high = torch.aminmax(pairs)
    return torch.maximum(-low, high).to(torch.float64)


def total_of(values: Tensor) -> Tensor:
    """Sum of all real numbers, 0-d float64, free of their order and of threads."""
    return elements(values, shifts_for(largest(values)[None], values.numel())[0][0]).sum()


def elements(values: Tensor, shift: Tensor) -> Tensor:
    """Sums (parts,) float64 of the parts of all real numbers: of single precision one, of double two; shift (2,)."""
    rest = values.to(torch.float64, copy=True)  # in place: to ask for memory takes longer than to add
    if values.dtype == torch.float32:
        return rest.add_(shift[0]).sub_(shift[0]).sum()[None]
    first = (rest + shift[0]).sub_(shift[0])
    second = rest.sub_(first).add_(shift[1]).sub_(shift[1])
    return torch.stack((first.sum(), second.sum()))


def narrowed(sums: Tensor, dtype: torch.dtype, count: int) -> Tensor:
    """`count` sums (C, ...) of the given dtype from their parts (parts C, ...)."""
    total = sums if len(sums) == count else sums[:count] + sums[count:]
    return total.to(dtype)
