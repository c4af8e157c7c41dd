"""Shifts between pairs of windows, from the maximum of the power of their cross-correlation.

a, b     pairs of windows (B, L, h, w), with their transforms F a, F b
C(e)     = sum_lk conj(F b)_lk (F a)_lk exp(2 pi i k.e),  for b that is a moved by e:  b[r] = a[r + e]

    e <- the pixel with the largest |C|^2, then Newton's steps on |C|^2 from there
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ptymesh.physics.elementwise import in_pairs, over_window, times
from ptymesh.physics.propagate import fft, frequencies, ifft

#: Steps of Newton's method, and the largest of them along an axis, in pixels.
STEPS, LARGEST_PX = 4, 0.5


def find_shifts(a: Tensor, b: Tensor) -> Tensor:
    """Return by how much each b is moved from its a: b[r] = a[r + e].

    Args:
        a: (B, L, h, w) complex, of which the L lie alike.
        b: (B, L, h, w) complex.

    Returns:
        e, (B, 2) float64 in pixels, y before x; 0 where one of a pair is empty.
    """
    products = times(fft(b).conj().resolve_conj(), fft(a))
    product = torch.complex(in_pairs(products.real.movedim(1, -1)), in_pairs(products.imag.movedim(1, -1)))
    h, w = product.shape[-2:]
    correlation = ifft(product)
    highest = (correlation.real.square() + correlation.imag.square()).flatten(1).argmax(1)
    y, x = highest // w, highest % w
    e = torch.stack((y - h * (y > h // 2), x - w * (x > w // 2)), dim=1).to(torch.float64)
    # In double precision, as the maximum is flat; relative to the strongest of a view, so that squares do not vanish.
    product = product.to(torch.complex128)
    scale = torch.view_as_real(product).abs().amax((-3, -2, -1))
    product = product / scale.clamp(min=torch.finfo(torch.float64).tiny)[:, None, None]
    for _ in range(STEPS):
        e = e + _newton_step(product, e)
    return e * (scale > 0)[:, None]


def _newton_step(product: Tensor, e: Tensor) -> Tensor:
    """Return Newton's step (B, 2) towards the maximum of |C|^2 from e; 0 where |C|^2 is not curved like one.

    Args:
        product: (B, h, w) complex128, sum_l conj(F b)_l (F a)_l.
        e: (B, 2) float64, pixels.
    """
    ky, kx = (2 * math.pi * k for k in frequencies((product.shape[-2], product.shape[-1]), (1.0, 1.0), e.device))
    phase = e[:, 0, None, None] * ky + e[:, 1, None, None] * kx
    turned = times(product, torch.polar(torch.ones_like(phase), phase))
    C, Cy, Cx = _total(turned), _total(turned, ky), _total(turned, kx)  # of the derivatives, without their factors i
    Cyy, Cxx, Cyx = -_total(turned, ky * ky), -_total(turned, kx * kx), -_total(turned, ky * kx)
    gy, gx = -2 * _cross(C, Cy), -2 * _cross(C, Cx)
    hyy, hxx = 2 * (_dot(Cy, Cy) + _dot(C, Cyy)), 2 * (_dot(Cx, Cx) + _dot(C, Cxx))
    hyx = 2 * (_dot(Cy, Cx) + _dot(C, Cyx))
    determinant = hyy * hxx - hyx * hyx
    is_peak = (hyy < 0) & (determinant > 0)
    safe = torch.where(is_peak, determinant, 1.0)
    step = torch.stack(((hyx * gx - hxx * gy) / safe, (hyx * gy - hyy * gx) / safe), dim=1)
    return torch.where(is_peak[:, None], step, 0.0).clamp(-LARGEST_PX, LARGEST_PX)


def _total(waves: Tensor, by: Tensor | float = 1.0) -> Tensor:
    """Return the sums of waves (B, h, w) times real numbers (h, w), as (B, 2) float64: real and imaginary parts."""
    return torch.stack((over_window(waves.real * by), over_window(waves.imag * by)), dim=1)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Return Re conj(a) b of complex numbers as (B, 2)."""
    return a[:, 0] * b[:, 0] + a[:, 1] * b[:, 1]


def _cross(a: Tensor, b: Tensor) -> Tensor:
    """Return Im conj(a) b of complex numbers as (B, 2)."""
    return a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]
