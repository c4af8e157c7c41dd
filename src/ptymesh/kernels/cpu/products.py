"""Products of complex numbers on a CPU, with the bits of physics/elementwise.py, several times faster; and those and
convolutions with separable factors (physics/separable.py)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ptymesh.kernels.arrays import ComplexArray, IntArray
from ptymesh.kernels.cpu.arguments import array_of, arrays_of, numpy_dtype, threads_for, transform_for
from ptymesh.kernels.cpu.caches import Kernels, Workspace
from ptymesh.kernels.cpu.compiled import signals as compiled_signals
from ptymesh.kernels.cpu.compiled import windows as compiled
from ptymesh.kernels.cpu.compiled.column_panels import WIDTH, work_size
from ptymesh.kernels.cpu.ready import share_threads
from ptymesh.physics import elementwise, separable

#: Smallest number of products for which this is faster than torch.
FEW = 1 << 12


def offer(dtype: torch.dtype) -> None:
    """Compute products of this dtype, and convolutions of its real one, here from now on."""
    elementwise.PRODUCTS[dtype] = product
    separable.TURNS[dtype] = turn_waves
    separable.CONVOLUTIONS[dtype.to_real()] = convolve_windows


def product(a: Tensor, b: Tensor) -> Tensor | None:
    """Return a b of stacks (..., h, w) that broadcast; None if torch computes them as fast."""
    if not (type(a) is type(b) is Tensor) or a.requires_grad or b.requires_grad:
        return None
    if min(a.ndim, b.ndim) < 2 or a.shape[-2:] != b.shape[-2:]:
        return None
    # torch.broadcast_shapes imports modules for half a second, which are not used here
    stack, window = np.broadcast_shapes(tuple(a.shape[:-2]), tuple(b.shape[:-2])), a.shape[-2:]
    if math.prod(stack) * math.prod(window) < FEW:
        return None
    share_threads()
    out = torch.empty((*stack, *window), dtype=a.dtype)
    compiled.products(*_planes(a, stack), *_planes(b, stack), out.view(-1, math.prod(window)).numpy())
    return out


def turn_waves(waves: Tensor, rows: Tensor, columns: Tensor) -> Tensor | None:
    """Return waves times factors of rows and of columns; None if torch is to compute them.

    Args:
        waves: (B, M, h, w) complex.
        rows: (B, h) complex.
        columns: (B, w) complex.
    """
    if waves.requires_grad or rows.requires_grad or columns.requires_grad or waves.is_conj():
        return None
    if rows.dtype != waves.dtype or columns.dtype != waves.dtype or not waves.numel():
        return None
    share_threads()
    modes, h, w = waves.shape[1:]
    out = torch.empty(waves.shape, dtype=waves.dtype)
    one = numpy_dtype(waves.dtype.to_real()).type(1)
    planes = array_of(waves).reshape(-1, h * w)
    compiled.turned(planes, modes, *arrays_of(rows, columns), one, out.numpy().reshape(-1, h * w))
    return out


def convolve_windows(S: Tensor, down: Tensor, across: Tensor) -> Tensor | None:
    """Return windows convolved with symmetric kernels; None if torch is to compute them.

    Args:
        S: (..., h, w) real.
        down: (n,) real, the middle of the kernel along y and what follows.
        across: (n,) real, the same along x.
    """
    if S.requires_grad or down.requires_grad or across.requires_grad or not S.numel() or min(S.shape[-2:]) < WIDTH:
        return None
    share_threads()
    h, w = S.shape[-2:]
    out, many = torch.empty(S.shape, dtype=S.dtype), S.numel() // (h * w)
    work = np.empty((threads_for(many), w + 2 * len(across)), numpy_dtype(S.dtype))
    kernel_inputs = array_of(S).reshape(many, h * w), (h, w), *arrays_of(down.to(S.dtype), across.to(S.dtype))
    compiled_signals.convolved(work, *kernel_inputs, out.numpy().reshape(many, h * w))
    return out


#: Transfer functions as the kernel reads them, and what it works in.
_transfers, _workspace = Kernels(), Workspace()


@contextmanager
def filtering() -> Iterator[None]:
    """Filter windows by the kernel while this lasts: it rounds otherwise than torch, so elsewhere torch always does."""
    separable.FILTERS.update(dict.fromkeys((torch.float32, torch.float64), filter_windows))
    try:
        yield
    finally:
        separable.FILTERS.clear()


def filter_windows(S: Tensor, transfer: Tensor) -> Tensor | None:
    """Return F^H [T F S]; None if torch is to compute it.

    Args:
        S: (..., h, w) real.
        transfer: T (h, w) float64.
    """
    h, w = S.shape[-2:]
    transform = transform_for((h, w), torch.float64)
    if S.requires_grad or transfer.requires_grad or not S.numel() or not transform.known or h % 2 or h < 2 * WIDTH:
        return None
    share_threads()
    out, many = torch.empty(S.shape, dtype=S.dtype), S.numel() // (h * w)
    work = _workspace("filter", threads_for(many), (work_size(1, h, w),), torch.float64)
    kernel = _transfers("T", transfer, torch.float64)
    kernel_inputs = array_of(S).reshape(many, h * w), (h, w), kernel, transform.tables
    compiled_signals.filtered(work, *kernel_inputs, out.numpy().reshape(many, h * w))
    return out


def _planes(x: Tensor, stack: tuple[int, ...]) -> tuple[ComplexArray, IntArray, np.floating]:
    """Return the planes of a stack, the index of each among them, and the sign of imaginary parts."""
    sign = -1.0 if x.is_conj() else 1.0
    planes = (x.conj() if x.is_conj() else x).reshape(-1, x.shape[-2] * x.shape[-1]).resolve_neg()
    real = numpy_dtype(x.dtype.to_real())
    return planes.detach().contiguous().numpy(), _index_planes(x.shape[:-2], stack), real.type(sign)


@lru_cache(maxsize=256)
def _index_planes(shape: torch.Size, stack: tuple[int, ...]) -> IntArray:
    """Return the index among its own planes of each plane of a stack; not to be written to."""
    return np.broadcast_to(np.arange(math.prod(shape)).reshape(shape), stack).flatten()
