"""Waves in half the memory of single precision: pairs of float16 with a power of two for each view.

B, M, h, w   views, modes, window pixels

A view's power of two brings its largest part, real or imaginary, to 2^14 ... 2^15, near the largest float16 there is
(65504). Parts down to 2^-28 of it then keep 11 bits, so that each is off by 4.9e-4 of itself at most: the wave's shape
is kept where it is faint, too, which a common scale of all views would not do. Nothing depends on the other views of
the chunk. Waves that are float16 already come back as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: Bits of a float32 that hold its exponent; and the least scale, whose inverse is finite.
_EXPONENT, _LEAST = 0x7F800000, 2.0**-100


@dataclass(frozen=True)
class Halves:
    """Waves in half precision.

    Attributes:
        pairs: (B, M, h, w, 2) float16, real and imaginary parts, divided by the scale.
        scale: (B,) float32, powers of two.
    """

    pairs: Tensor
    scale: Tensor

    @classmethod
    def of(cls, waves: Tensor) -> Halves:
        """Convert waves (B, M, h, w) complex64; each part is rounded to the nearest float16, ties to even."""
        parts = torch.view_as_real(waves.resolve_conj())
        largest = parts.abs().amax((1, 2, 3, 4)) if waves.shape[0] else parts.new_zeros(0)
        power = (largest.view(torch.int32) & _EXPONENT).view(torch.float32)  # largest power of two that is not above it
        scale = (power * 2.0**-14).clamp(min=_LEAST)
        return cls((parts * _broadcast_over_pixels(scale.reciprocal())).to(torch.float16), scale)

    @property
    def waves(self) -> Tensor:
        """The waves, (B, M, h, w) complex64."""
        return torch.view_as_complex(self.pairs.to(torch.float32) * _broadcast_over_pixels(self.scale))


def _broadcast_over_pixels(values: Tensor) -> Tensor:
    return values[:, None, None, None, None]
