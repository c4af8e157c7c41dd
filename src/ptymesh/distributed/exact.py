"""Sums of numbers whose bits do not depend on the order of their terms: in integers.

v        a term, float

Numbers, of which there are few, are summed exactly, whatever their size:

    v = sum_k q_k 2^(32 k),   |q_k| < 2^32 integer, k = -12 ... 11;   sum_j v_j has the limbs sum_j q_jk

A term that is not finite, or beyond the range, makes the whole sum NaN. Arrays, and the elements of arrays, are summed
in rounded terms instead (physics/rounding.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed.world import World
from ptymesh.physics.elementwise import over_window
from ptymesh.physics.fidelity import Data

#: Bits of a limb, and the exponents of 2^BITS of the lowest limb and of the one above the highest.
BITS, LOWEST, HIGHEST = 32, -12, 12
#: Elements that are split into limbs together, so that they stay in the cache.
PIECE = 1 << 18
MASK = 2**BITS - 1
#: Sums of up to so many numbers are read with Python's integers on the host.
FEW = 64


#: Function that runs repeated work on the given tensors, on a GPU as one captured graph (Backend.repeat).
Repeat = Callable[..., Tensor]


def _run_directly(name: tuple[object, ...], work: Callable[..., Tensor], *, brought: tuple[Tensor, ...]) -> Tensor:
    return work(*brought)


class Reduction:
    """Exact sum over views of numbers or arrays of one shape, accumulated chunk by chunk.

    Args:
        shape: of one view's value.
        device: of the values.
        repeat: runs small repeated work on a device.
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device, repeat: Repeat = _run_directly) -> None:
        #: (1 + limbs, *shape) int64; row 0 counts terms that are not finite.
        self._limbs = torch.zeros((1 + HIGHEST - LOWEST, *shape), dtype=torch.int64, device=device)
        self._repeat = repeat

    def add(self, values: Tensor) -> None:
        """Add the values (B, *shape) of some views, of any real dtype."""
        if values.device.type != "cpu":  # without reading their size, for which the host would have to wait
            few = self._limbs[0].numel() <= FEW
            name = ("terms of exact sums",)
            self._limbs += self._repeat(name, _digits, brought=(values,)) if few else _digits(values)
            return
        for piece in values.split(max(1, PIECE // max(1, values[:1].numel()))):
            self._add(piece)  # pieces are read a dozen times, and stay in the cache

    def _add(self, values: Tensor) -> None:
        """Add values on the host, in numpy, which takes a third of torch's time for few numbers and for many."""
        limbs, rest = self._limbs.numpy(), values.numpy().astype(np.float64)
        unknown = ~(np.abs(rest) < 2.0 ** (BITS * HIGHEST))
        if unknown.any():
            limbs[0] += unknown.sum(0)
            rest[unknown] = 0
        largest = float(np.abs(rest).max(initial=0.0))
        top = min(HIGHEST - 1, math.frexp(largest)[1] // BITS)
        for k in range(top, LOWEST - 1, -1):
            step = 2.0 ** (BITS * k)
            limb = np.trunc(rest / step)
            rest -= limb * step  # both are exact: step is a power of two, and the difference is what trunc cut off
            limbs[1 + k - LOWEST] += limb.astype(np.int64).sum(0)
            if not rest.any():
                break

    @property
    def local(self) -> Tensor:
        """This rank's limbs (1 + limbs, *shape) float64, integers, to be summed over ranks together with other tensors.

        Carries are propagated, so that doubles hold the sums of a million ranks exactly.
        """
        return self._small(("parts of exact sums",), _carried, self._limbs)

    def read(self, total: Tensor) -> Tensor:
        """Return the sums over all ranks as float64, rounded once.

        Args:
            total: (1 + limbs, *shape) float64, sum of `local` over the ranks.
        """
        if total.device.type == "cpu" and total[0].numel() <= FEW:
            return _read_few(total)
        return self._small(("exact sums",), _read, total)

    def _small(self, name: tuple[object, ...], work: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
        """Run work on a few numbers through `repeat`; not on large arrays, whose memory that would take twice."""
        if values.device.type == "cpu" or self._limbs[0].numel() > FEW:
            return work(values)
        return self._repeat(name, work, brought=(values,)).clone()


def _finite(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the values as float64, 0 where they are not finite or beyond the range, and the mask of those."""
    rest = values.to(torch.float64, copy=True)
    unknown = ~(rest.isfinite() & (rest.abs() < 2.0 ** (BITS * HIGHEST)))
    return rest.masked_fill_(unknown, 0), unknown


def _digits(values: Tensor) -> Tensor:
    """Return the limbs (1 + limbs, *shape) int64 of the sum of values (B, *shape), in few kernel launches.

    Each number has 53 bits, and so at most three limbs.
    """
    values, unknown = _finite(values)
    limbs = torch.zeros((1 + HIGHEST - LOWEST, *values.shape[1:]), dtype=torch.int64, device=values.device)
    limbs[0] += unknown.sum(0)
    mantissa, exponent = torch.frexp(values.abs())
    integers = (mantissa * 2.0**53).to(torch.int64)
    place = exponent.to(torch.int64) - (53 + BITS * LOWEST)
    row, shift = place >> 5, place & (BITS - 1)
    low = (integers & MASK) << shift
    high = ((integers >> BITS) << shift) + (low >> BITS)
    digits = torch.stack((low & MASK, high & MASK, high >> BITS)) * values.sign().to(torch.int64)
    rows = torch.stack((row, row + 1, row + 2))
    digits = torch.where((rows >= 0) & (rows < HIGHEST - LOWEST), digits, 0)
    columns = torch.arange(values[:1].numel(), device=values.device).view(values.shape[1:])
    places = (rows.clamp(0, HIGHEST - LOWEST - 1) + 1) * columns.numel() + columns
    limbs.view(-1).scatter_add_(0, places.view(-1), digits.view(-1))
    return limbs


def _carried(given: Tensor) -> Tensor:
    """Return the limbs as float64 after carrying what exceeds BITS bits into the next limb."""
    limbs = given.clone()
    carry = limbs[1:-1] >> BITS
    limbs[1:-1] -= carry << BITS
    limbs[2:] += carry
    return limbs.to(torch.float64)


def _read(total: Tensor) -> Tensor:
    """Return the values (*shape) float64 of limbs (1 + limbs, *shape), NaN where a term was not finite."""
    digits, carry = [], torch.zeros_like(total[0], dtype=torch.int64)
    for limb in total[1:].to(torch.int64):
        limb = limb + carry
        digits.append(limb & MASK)
        carry = limb >> BITS
    value, *lower = torch.stack((carry, *digits[::-1])).to(torch.float64).unbind()
    for digit in lower:
        value = torch.add(digit, value, alpha=2.0**BITS)
    return torch.where(total[0] > 0, math.nan, value * 2.0 ** (BITS * LOWEST))


def _read_few(total: Tensor) -> Tensor:
    """Return the same as `_read`, with Python's integers, which takes a tenth of the time for few numbers."""
    odd, *limbs = total.reshape(len(total), -1).tolist()
    sums = [sum(int(limb) << BITS * k for k, limb in enumerate(column)) for column in zip(*limbs, strict=True)]
    values = [
        math.nan if is_odd else carried / (1 << -BITS * LOWEST) for is_odd, carried in zip(odd, sums, strict=True)
    ]
    return torch.tensor(values, dtype=torch.float64).view(total.shape[1:])


def _largest_of_views(counts: Tensor, mask: Tensor) -> Tensor:
    """Return the largest sum of a view's counts, and the largest count, (2,) float64.

    Args:
        counts: (k, h, w) patterns, k > 0.
        mask: (h, w) bool, valid pixels.
    """
    if counts.device.type == "cpu" and not counts.dtype.is_floating_point:  # without a copy in double precision
        values = counts.numpy() if bool(mask.all()) else counts.numpy() * mask.numpy()
        values = values if values.dtype.kind in "bu" else values.clip(0)
        sums = values.reshape(len(values), -1).sum(axis=1, dtype=np.uint64)
        return torch.tensor([float(sums.max()), float(values.max())], dtype=torch.float64)
    y = Data.of(counts, mask, None, torch.float64).y
    return torch.stack((over_window(y).amax(), y.amax()))


def brightest(counts: Iterable[Tensor], mask: Tensor, world: World) -> tuple[float, float]:
    """Return the amplitude of the brightest view and the largest count, over all ranks. Collective.

    Args:
        counts: patterns of this rank's views, (k, h, w) each.
        mask: (h, w) bool, valid pixels.
        world: the ranks.

    Returns:
        Square root of the sum of counts of the brightest view, and the largest count of a pixel.
    """
    most = torch.zeros(2, dtype=torch.float64, device=world.device)
    for part in counts:
        if not len(part):
            continue
        most = torch.maximum(most, _largest_of_views(part, mask))
    largest = world.max(most)[0].tolist()
    return math.sqrt(largest[0]), largest[1]
