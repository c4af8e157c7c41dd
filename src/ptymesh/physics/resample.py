"""Coarser and finer grids over the same field of view, by cropping and padding spectra.

c       coarsening: a coarse pixel is c fine ones wide, and lies on the first of them
h, w    window pixels; both divisible by 2 c

With orthonormal FFTs, F'(P' O') is the centre of F(P O) where P' is the cropped spectrum of P and O' the cropped
spectrum of O divided by c: the far field of the coarse problem is the inner part of the detector.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ptymesh.physics.propagate import fft, ifft


def inner(c: int, n: int, device: torch.device | None = None) -> Tensor:
    """Return the indices, in FFT order, of the n/c lowest frequencies of n.

    Args:
        c: coarsening.
        n: number of frequencies, divisible by 2 c.
        device: where the result is kept.
    """
    half = n // c // 2
    return torch.cat((torch.arange(half, device=device), torch.arange(n - half, n, device=device)))


def corner_crop(images: Tensor, c: int) -> Tensor:
    """Return the lowest frequencies of (..., h, w) with DC at the corner: (..., h/c, w/c)."""
    rows, columns = (inner(c, n, images.device) for n in images.shape[-2:])
    return images[..., rows[:, None], columns]


def coarser(field: Tensor, c: int) -> Tensor:
    """Return a band-limited field (..., h, w) on the coarse grid, (..., h/c, w/c), with the same norm in its band."""
    return ifft(corner_crop(fft(field), c))


def finer(field: Tensor, c: int) -> Tensor:
    """Return a field on the fine grid, (..., h/c, w/c) -> (..., h, w): adjoint of `coarser`.

    Its spectrum is padded with zeros.
    """
    shape = (*field.shape[:-2], field.shape[-2] * c, field.shape[-1] * c)
    spectrum = field.new_zeros(shape)
    rows, columns = (inner(c, n, field.device) for n in shape[-2:])
    spectrum[..., rows[:, None], columns] = fft(field)
    return ifft(spectrum)
