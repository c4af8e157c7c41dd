"""Sums whose bits do not depend on the order of their terms: each is rounded to a common step before it is added.

t, N   a term, and the largest number of terms
s      step, a power of two that all ranks know before the first term;  S = 1.5 x 2^52 s

    q = (t + S) - S

is t rounded to a multiple of s where |t| <= 2^51 s. Sums of such numbers in double precision are exact while the sum of
their magnitudes stays within 2^53 s, partial sums included; so they are free of order (Demmel & Nguyen, "Fast
reproducible floating-point summation", ARITH 2013). N terms within 2^(52 - ceil(log2 N)) s keep to that. Where single
precision's noise is coarser than the step, one such sum is enough; a second part may add up the remainders t - q, each
at most s / 2, in steps that are finer by as many bits.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Largest exponent of a limit.
FARTHEST = 900


def bits_for(terms: int) -> int:
    """Return how many bits each of so many terms may have above the step."""
    return 52 - max(terms - 1, 1).bit_length()


def shifts_for(bounds: Tensor, terms: int) -> tuple[Tensor, Tensor]:
    """Return the rounding shifts of n sums, and the limits within which their terms must stay.

    Args:
        bounds: (n,) largest magnitude expected of the terms of each sum; one that is no positive number counts as 1.
        terms: largest number of terms of each sum.

    Returns:
        Shifts S (n, 2) float64 of the two parts of each sum; and limits (n,) float64, powers of two not below the
        bounds.
    """
    bits = bits_for(terms)
    if bounds.device.type == "cpu":  # for a handful of numbers Python is faster than torch
        powers = [2.0 ** _exponent(bound) for bound in bounds.tolist()]
        limits = torch.tensor(powers, dtype=torch.float64)
    else:
        sound = (bounds > 0) & bounds.isfinite()
        exponents = torch.frexp(torch.where(sound, bounds.to(torch.float64), 1.0))[1].clamp(-FARTHEST, FARTHEST)
        limits = torch.ldexp(torch.ones_like(bounds, dtype=torch.float64), exponents)
    first = limits * (1.5 * 2.0 ** (52 - bits))
    return torch.stack((first, first * 2.0 ** (-1 - bits)), dim=1), limits


def _exponent(bound: float) -> int:
    """Return the exponent of the least power of two above a bound, as `math.frexp` counts it."""
    sound = bound > 0 and math.isfinite(bound)
    return max(-FARTHEST, min(FARTHEST, math.frexp(bound if sound else 1.0)[1]))


def rounded(values: Tensor, shift: Tensor, parts: int) -> Tensor:
    """Round terms to multiples of the step, and return them in parts.

    Args:
        values: (B, C, ...) real or complex.
        shift: (2,) float64, of the first and second part.
        parts: 1 or 2.

    Returns:
        (B, parts C, ...) of double precision.
    """
    pairs = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
    rest, steps_taken = pairs.to(torch.float64), []
    for part in range(parts):
        steps_taken.append((rest + shift[part]).sub_(shift[part]))
        if part + 1 < parts:
            rest = rest - steps_taken[-1]
    multiples = torch.cat(steps_taken, dim=1) if parts > 1 else steps_taken[0]
    return torch.view_as_complex(multiples) if values.is_complex() else multiples


def empty_sums(like: Tensor, parts: int) -> Tensor:
    """Return zeros for sums of arrays like this (C, ...), in parts (parts C, ...) of double precision."""
    return like.new_zeros((parts * len(like), *like.shape[1:]), dtype=wide(like.dtype))


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of double precision, real or complex as the given one."""
    return torch.complex128 if dtype.is_complex else torch.float64


def largest(values: Tensor) -> Tensor:
    """Return the largest magnitude among real numbers, or real and imaginary parts, 0-d float64."""
    if not values.numel():
        return torch.zeros((), dtype=torch.float64, device=values.device)
    pairs = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
    low, high = torch.aminmax(pairs)
    return torch.maximum(-low, high).to(torch.float64)


def total_of(values: Tensor) -> Tensor:
    """Return the sum of all real numbers, 0-d float64; it does not depend on their order or on threads."""
    return elements(values, shifts_for(largest(values)[None], values.numel())[0][0]).sum()


def elements(values: Tensor, shift: Tensor) -> Tensor:
    """Return the sums (parts,) float64 of the rounded parts of all real numbers: one part for float32, else two.

    Args:
        values: real, of any shape.
        shift: (2,) float64, of the first and second part.
    """
    rest = values.to(torch.float64, copy=True)  # changed in place: allocating memory takes longer than adding
    if values.dtype == torch.float32:
        return rest.add_(shift[0]).sub_(shift[0]).sum()[None]
    first = (rest + shift[0]).sub_(shift[0])
    second = rest.sub_(first).add_(shift[1]).sub_(shift[1])
    return torch.stack((first.sum(), second.sum()))


def narrowed(sums: Tensor, dtype: torch.dtype, count: int) -> Tensor:
    """Return sums in a given precision from their parts.

    Args:
        sums: (parts C, ...) of double precision.
        dtype: dtype of the result.
        count: C.
    """
    total = sums if len(sums) == count else sums[:count] + sums[count:]
    return total.to(dtype)
