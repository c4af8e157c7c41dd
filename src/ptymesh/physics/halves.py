"""Waves in half the memory of single precision: pairs of float16 with a power of two for each view.

B, M, h, w   views, modes, window pixels

A view's power of two brings its largest part, real or imaginary, to 2^14 ... 2^15, near the largest half there is
(65504). Parts down to 2^-28 of it then keep 11 bits, so that each is off by 4.9e-4 of itself at most: the wave's shape
is kept where it is faint, too, which a common scale of all views would not do. Nothing depends on which other views
there are. Waves that are halves already come back as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: Bits of a float32 that hold its sign and exponent, and the exponent of the least scale, whose inverse is a number.
_EXPONENT, _LEAST = 0x7F800000, 2.0**-100


@dataclass(frozen=True)
class Halves:
    """pairs (B, M, h, w, 2) float16, real and imaginary; scale (B,) float32, powers of two."""

    pairs: Tensor
    scale: Tensor

    @classmethod
    def of(cls, waves: Tensor) -> Halves:
        """Of waves (B, M, h, w) complex64, each part rounded to the nearest half, ties to even."""
        parts = torch.view_as_real(waves.resolve_conj())
        largest = parts.abs().amax((1, 2, 3, 4)) if waves.shape[0] else parts.new_zeros(0)
        power = (largest.view(torch.int32) & _EXPONENT).view(torch.float32)  # its own power of two
        scale = (power * 2.0**-14).clamp(min=_LEAST)
        return cls((parts * _by_view(scale.reciprocal())).to(torch.float16), scale)

    @property
    def waves(self) -> Tensor:
        """(B, M, h, w) complex64."""
        return torch.view_as_complex(self.pairs.to(torch.float32) * _by_view(self.scale))


def _by_view(values: Tensor) -> Tensor:
    return values[:, None, None, None, None]
