"""Sums whose bits do not depend on the order of their terms: in integers, for `deterministic: true`.

B, N     views of a chunk; all terms of a sum
v        a term, float;  u  unit: a size that terms of its kind are about to have, or stay below

Numbers, of which there are few, are summed exactly, whatever their size:

    v = sum_k q_k 2^(32 k),   |q_k| < 2^32 integer, k = -12 ... 11;   sum_j v_j has the limbs sum_j q_jk

Arrays are summed in fixed point with two limbs about a unit that all ranks know beforehand (`Grid`):

    v s = a + b 2^-m,   a = round(v s),  b = round((v s - a) 2^m);   s = 2^(m - HEADROOM) / u,   m = 62 - log2 N

|a| <= 2^m is checked, so that N terms cannot overflow 63 bits. The smallest step is u 2^(HEADROOM - 2 m), u rounded
up to a power of two: at most 2^-71 u for sums of 64 views, 2^-51 u for 65,536. A float32 that is larger than 2^24 steps
is held without any rounding.

Integers that count up to more than one rank's are added by the same all-reduce as floats. What is not finite, or beyond
the range, makes the whole sum NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ptymesh.parallel.world import World
from ptymesh.physics.fidelity import Data
from ptymesh.physics.model import Model, Scene, power
from ptymesh.physics.passes import Passes

#: Bits of a limb, and powers of 2^BITS of the lowest limb and of the one above the highest, for exact sums.
BITS, LOWEST, HIGHEST = 32, -12, 12
#: Powers of two by which a term of an array may exceed its unit.
HEADROOM = 40


class ExactSum:
    """Exact sums of (B, *shape) over the first axis, call after call.

    `local` (1 + limbs, *shape) int64 is to be summed over ranks and then read by `value`; row 0 counts terms that are
    no finite numbers.
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.local = torch.zeros((1 + HIGHEST - LOWEST, *shape), dtype=torch.int64, device=device)

    def add(self, values: Tensor) -> None:
        """Adds values (B, *shape), of any real dtype."""
        rest = values.to(torch.float64, copy=True)
        known = rest.isfinite() & (rest.abs() < 2.0 ** (BITS * HIGHEST))
        self.local[0] += (~known).sum(0)
        rest.masked_fill_(~known, 0)
        top, at_hand = HIGHEST - 1, rest.device.type == "cpu"
        if at_hand:  # a device is not asked how large they are, which would be waiting for it: it does all limbs
            largest = float(rest.abs().amax()) if rest.numel() else 0.0
            top = min(top, math.frexp(largest)[1] // BITS)
        for k in range(top, LOWEST - 1, -1):
            step = 2.0 ** (BITS * k)
            limb = torch.trunc(rest / step)
            rest -= limb * step  # both exact: powers of two, and the difference is what was cut off
            self.local[1 + k - LOWEST] += limb.to(torch.int64).sum(0)
            if at_hand and not bool(rest.any()):
                break

    @staticmethod
    def value(total: Tensor) -> Tensor:
        """Sums (*shape) float64 from limbs that were summed over ranks."""
        digits, carry = [], torch.zeros_like(total[0])
        for limb in total[1:]:
            limb = limb + carry
            digits.append((limb & (2**BITS - 1)).to(torch.float64))
            carry = limb >> BITS
        value = carry.to(torch.float64)
        for digit in digits[::-1]:
            value = value * 2.0**BITS + digit
        return torch.where(total[0] > 0, math.nan, value * 2.0 ** (BITS * LOWEST))


class Tally:
    """A sum over views of numbers or arrays of this shape, exact or in floats, to which chunk after chunk adds."""

    def __init__(self, shape: tuple[int, ...], device: torch.device, *, exact: bool) -> None:
        self._exact = ExactSum(shape, device) if exact else None
        self._float = torch.zeros(shape, dtype=torch.float64, device=device)

    def add(self, values: Tensor) -> None:
        """Adds what views have, (B, *shape), each its own."""
        if self._exact:
            self._exact.add(values)
        else:
            self._float += values.sum(0)

    @property
    def local(self) -> Tensor:
        """This rank's part, as it travels."""
        return self._exact.local if self._exact else self._float

    def read(self, total: Tensor) -> Tensor:
        """The sum, from that of all ranks' parts; (*shape) of a float dtype."""
        return ExactSum.value(total) if self._exact else total


def largest_wave(counts: Iterable[Tensor], mask: Tensor, world: World) -> float:
    """Norm of the exit wave of the view with the most counts, over all ranks; counts (k, h, w) each, mask (h, w)."""
    largest = torch.ones((), dtype=torch.float64, device=world.device)
    for some in counts:
        totals = Data.of(some, mask, None, torch.float64).y.sum((1, 2))
        largest = torch.cat((totals, largest[None])).amax()
    return math.sqrt(float(world.max(largest)[0]))


class Grid:
    """Fixed point about a unit, for sums of up to `terms` terms."""

    def __init__(self, unit: float, terms: int) -> None:
        self.bits = 62 - max(terms - 1, 0).bit_length()
        exponent = math.frexp(unit)[1] if unit > 0 and math.isfinite(unit) else 0
        # in float32 the scale must be a number too
        self.exponent = max(-100, min(100, self.bits - HEADROOM - exponent))

    def decode(self, whole: Tensor, rest: Tensor) -> Tensor:
        """Sums as float64."""
        value = whole.to(torch.float64) + rest.to(torch.float64) * 2.0**-self.bits
        return value * 2.0**-self.exponent


class FixedSum:
    """A sum of arrays (C, h, w) over views, or of windows into an object (C, H, W), in fixed point.

    `out` (2 limbs x 2 parts x C, H, W) int64, without parts where values are real; what it holds is added to.
    `spoilt` counts values out of range.
    """

    def __init__(self, out: Tensor, grid: Grid, passes: Passes) -> None:
        self.out, self.grid, self.passes = out, grid, passes
        self.spoilt = torch.zeros((), dtype=torch.int64, device=out.device)

    @classmethod
    def over(cls, like: Tensor, unit: float, terms: int, passes: Passes) -> FixedSum:
        """An empty sum of arrays like this (C, H, W), real or complex."""
        shape = (len(like) * (4 if like.is_complex() else 2), *like.shape[1:])
        return cls(torch.zeros(shape, dtype=torch.int64, device=like.device), Grid(unit, terms), passes)

    def add(self, values: Tensor, corners: Tensor | None = None) -> None:
        """Adds values (B, C, h, w), real or complex; each at its corner (B, 2) of `out`, or over all of it."""
        pairs = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values[..., None]
        if corners is None:
            corners = torch.zeros(len(values), 2, dtype=torch.int64, device=values.device)
        into = self.out.view(2, pairs.shape[-1], pairs.shape[1], *self.out.shape[-2:])
        grid = self.grid
        fits = self.passes.add_fixed(pairs, corners, grid.exponent, grid.bits, into)
        self.spoilt += ~fits if isinstance(fits, Tensor) else not fits

    def decode(self, total: Tensor, spoilt: Tensor, dtype: torch.dtype) -> Tensor:
        """Sums (C, ...) of this dtype from limbs (2 x parts x C, ...) that were summed over ranks."""
        parts = 2 if dtype.is_complex else 1
        whole, rest = total.view(2, parts, len(total) // (2 * parts), *total.shape[1:])
        values = torch.where(spoilt > 0, math.nan, self.grid.decode(whole, rest))
        return (torch.complex(values[0], values[1]) if parts == 2 else values[0]).to(dtype)


class ExactAdjoints:
    """Sums over a batch of the adjoints of waves, in fixed point; what is added does not depend on chunks or ranks.

    Args:
        wave: norm that exit waves have, sqrt of the largest sum of counts; probe: norm of the probe. Objects are then
            about wave / probe, and the units of all sums follow.
        views: of the batch.
        fields: buffers (4 L, H, W) and (2 L, H, W) int64 of the object and its weight, zero where they will be read.
        probe (M, h, w), opr (K, h, w): what the sums are to look like.
        with_object, with_probe: what is wanted.  passes: who adds.
    """

    def __init__(
        self,
        wave: float,
        views: int,
        fields: tuple[Tensor, Tensor],
        probe: Tensor,
        opr: Tensor,
        with_object: bool,
        with_probe: bool,
        passes: Passes,
    ) -> None:
        norm = float(torch.linalg.vector_norm(probe, dtype=torch.complex128)) or 1.0
        obj = wave / norm
        self.with_object, self.with_probe, self.probe, self.opr = with_object, with_probe, probe, opr
        self.object = FixedSum(fields[0], Grid(norm * wave, views), passes)
        self.object_weight = FixedSum(fields[1], Grid(norm**2, views), passes)
        self.others = [
            FixedSum.over(probe, obj * wave, views, passes),
            FixedSum.over(probe.real[:1], obj**2, views, passes),
            FixedSum.over(opr, obj * wave, views, passes),
            FixedSum.over(opr.real, obj**2, views, passes),
        ]

    def add(
        self, model: Model, scene: Scene, waves: Tensor, anchors: Tensor, fractions: Tensor, weights: Tensor
    ) -> None:
        """Adds what waves (B, M, h, w) at the exit give; anchors and fractions (B, 2), weights (B, 1 + K)."""
        to_windows, to_probes = model.scene_adjoint(scene, waves)
        if self.with_object:
            self.object.add(*model.placed(to_windows, anchors, fractions))
            illumination = torch.stack([power(wave) for wave in scene.incoming], dim=1)
            self.object_weight.add(*model.placed(illumination, anchors, fractions))
        if not self.with_probe:
            return
        probe, probe_weight, opr, opr_weight = self.others
        lit = power(scene.windows[:, :1])[:, None]
        probe.add(model.unshifted_terms(to_probes, fractions, weights[:, 0]))
        probe_weight.add(lit * weights[:, :1, None, None] ** 2)
        if len(self.opr):
            terms = [model.unshifted_terms(to_probes[:, :1], fractions, w) for w in weights[:, 1:].unbind(1)]
            opr.add(torch.cat(terms, dim=1))
            opr_weight.add(lit * weights[:, 1:, None, None] ** 2)

    def message(self) -> list[Tensor]:
        """What is to be summed over ranks besides the touched parts of the object's fields."""
        spoilt = torch.stack([s.spoilt for s in (self.object, self.object_weight, *self.others)])
        return [spoilt, *(s.out for s in self.others)]

    def decoded(self, model: Model, summed: Sequence[Any]) -> list[Tensor]:
        """Object, its weight (values on blocks), probe, its weight, OPR modes, their weights; from what was summed:
        both fields' values, then the message."""
        by_object, by_weight, spoilt, *others = summed
        dtype, real = self.probe.dtype, self.probe.real.dtype
        found = [
            self.object.decode(by_object, spoilt[0], dtype),
            self.object_weight.decode(by_weight, spoilt[1], real),
            *(
                s.decode(total, count, dtype if index % 2 == 0 else real)
                for index, (s, total, count) in enumerate(zip(self.others, others, spoilt[2:], strict=True))
            ),
        ]
        found[2], found[4] = model.unshifted(found[2]), model.unshifted(found[4])
        found[3] = found[3][0]
        return found
