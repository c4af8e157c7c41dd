"""Sums of numbers whose bits do not depend on the order of their terms: in integers.

v        a term, float

Numbers, of which there are few, are summed exactly, whatever their size:

    v = sum_k q_k 2^(32 k),   |q_k| < 2^32 integer, k = -12 ... 11;   sum_j v_j has the limbs sum_j q_jk

What is not finite, or beyond the range, makes the whole sum NaN. Arrays, and the elements of arrays, are summed in
rounded terms instead (physics/rounding.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from ptymesh.distributed.world import World
from ptymesh.physics.elementwise import over_window
from ptymesh.physics.fidelity import Data

#: Bits of a limb, and powers of 2^BITS of the lowest limb and of the one above the highest, for exact sums.
BITS, LOWEST, HIGHEST = 32, -12, 12
#: Terms of arrays that are gone through together.
PIECE = 1 << 18
#: Numbers at hand, of which Python is told one by one.
FEW = 64


class Reduction:
    """Exact sums of numbers or arrays of this shape over views, to which chunk after chunk adds."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        #: (1 + limbs, *shape); row 0 counts terms that are no finite numbers.
        self._limbs = torch.zeros((1 + HIGHEST - LOWEST, *shape), dtype=torch.int64, device=device)

    def add(self, values: Tensor) -> None:
        """Adds what views have, (B, *shape) of any real dtype, each its own."""
        together = max(1, PIECE // max(1, values[:1].numel())) if values.device.type == "cpu" else max(1, len(values))
        for some in values.split(together):  # what is gone through a dozen times stays in the cache
            self._add(some)

    def _add(self, values: Tensor) -> None:
        rest = values.to(torch.float64, copy=True)
        known = rest.isfinite() & (rest.abs() < 2.0 ** (BITS * HIGHEST))
        self._limbs[0] += (~known).sum(0)
        rest.masked_fill_(~known, 0)
        top, at_hand = HIGHEST - 1, rest.device.type == "cpu"
        if at_hand:  # a device is not asked how large they are, which would be waiting for it: it does all limbs
            largest = float(rest.abs().amax()) if rest.numel() else 0.0
            top = min(top, math.frexp(largest)[1] // BITS)
        for k in range(top, LOWEST - 1, -1):
            step = 2.0 ** (BITS * k)
            limb = torch.trunc(rest / step)
            rest -= limb * step  # both exact: powers of two, and the difference is what was cut off
            self._limbs[1 + k - LOWEST] += limb.to(torch.int64).sum(0)
            if at_hand and not bool(rest.any()):
                break

    @property
    def local(self) -> Tensor:
        """This rank's part, as it travels in one message with other sums: (1 + limbs, *shape) float64, whole numbers.

        What limbs have beyond their bits is carried on, so that doubles hold the sums of a million ranks.
        """
        limbs = self._limbs.clone()
        carry = limbs[1:-1] >> BITS
        limbs[1:-1] -= carry << BITS
        limbs[2:] += carry
        return limbs.to(torch.float64)

    @staticmethod
    def read(total: Tensor) -> Tensor:
        """The sums (*shape) float64, from those of all ranks' parts."""
        if total.device.type == "cpu" and total[0].numel() <= FEW:
            return _read_few(total)
        digits, carry = [], torch.zeros_like(total[0], dtype=torch.int64)
        for limb in total[1:].to(torch.int64):
            limb = limb + carry
            digits.append((limb & (2**BITS - 1)).to(torch.float64))
            carry = limb >> BITS
        value = carry.to(torch.float64)
        for digit in digits[::-1]:
            value = value * 2.0**BITS + digit
        return torch.where(total[0] > 0, math.nan, value * 2.0 ** (BITS * LOWEST))


def _read_few(total: Tensor) -> Tensor:
    """The same in Python's whole numbers, which takes a tenth of the time."""
    odd, *limbs = total.reshape(len(total), -1).tolist()
    sums = [sum(int(limb) << BITS * k for k, limb in enumerate(column)) for column in zip(*limbs, strict=True)]
    values = [math.nan if some else whole / (1 << -BITS * LOWEST) for some, whole in zip(odd, sums, strict=True)]
    return torch.tensor(values, dtype=torch.float64).view(total.shape[1:])


def brightest(counts: Iterable[Tensor], mask: Tensor, world: World) -> tuple[float, float]:
    """Root of the sum of counts of the view that has the most, and the largest count of a pixel, over all ranks; counts
    (k, h, w) each, mask (h, w)."""
    most = torch.zeros(2, dtype=torch.float64, device=world.device)
    for some in counts:
        if not len(some):
            continue
        y = Data.of(some, mask, None, torch.float64).y
        most = torch.maximum(most, torch.stack((over_window(y).amax(), y.amax())))
    found = world.max(most)[0].tolist()
    return math.sqrt(found[0]), found[1]
