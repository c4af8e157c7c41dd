"""Products, convolutions and filters of windows, whose bits depend on the values alone.

B, h, w   views of a chunk, window pixels
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ptymesh.physics.elementwise import times
from ptymesh.physics.propagate import fft, ifft

#: Faster functions for the same on a CPU, by dtype (kernels/cpu/products.py); None where not applicable.
TURNS: dict[torch.dtype, Callable[[Tensor, Tensor, Tensor], Tensor | None]] = {}
CONVOLUTIONS: dict[torch.dtype, Callable[[Tensor, Tensor, Tensor], Tensor | None]] = {}
#: The same for filters, while kernels take views to the detector and back.
FILTERS: dict[torch.dtype, Callable[[Tensor, Tensor], Tensor | None]] = {}


def turn_waves(waves: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return waves times a factor of each row and one of each column.

    Args:
        waves: (B, M, h, w) complex.
        rows: (B, h) complex.
        columns: (B, w) complex.
    """
    turn = TURNS.get(waves.dtype) if waves.device.type == "cpu" else None
    by_kernel = turn(waves, rows, columns) if turn else None
    if by_kernel is not None:
        return by_kernel
    window = waves.shape[-2:]
    factors = times(rows[:, :, None].expand(-1, *window), columns[:, None].expand(-1, *window))
    return times(factors[:, None], waves)


def convolve_windows(S: Tensor, down: Tensor, across: Tensor) -> Tensor:
    """Return windows convolved with a symmetric kernel along y and with one along x, around their edges.

    Args:
        S: (..., h, w) real.
        down: (n,) real, kernel along y from its middle on, n <= h.
        across: (n,) real, kernel along x from its middle on, n <= w.
    """
    convolve = CONVOLUTIONS.get(S.dtype) if S.device.type == "cpu" else None
    by_kernel = convolve(S, down, across) if convolve else None
    if by_kernel is not None:
        return by_kernel
    for taps, axis in ((down, -2), (across, -1)):
        total = taps[0] * S
        for k in range(1, len(taps)):
            total = total + taps[k] * (S.roll(k, axis) + S.roll(-k, axis))
        S = total
    return S


def filter_windows(S: Tensor, transfer: Tensor) -> Tensor:
    """Return F^H [T F S], computed in double precision: bright pixels may be 10^7 times as bright as those beside them.

    Args:
        S: (..., h, w) real.
        transfer: T (h, w) float64, even in k.
    """
    filtered = FILTERS.get(S.dtype) if S.device.type == "cpu" else None
    by_kernel = filtered(S, transfer) if filtered else None
    if by_kernel is not None:
        return by_kernel
    spectrum = fft(S.to(torch.complex128))
    return ifft(torch.complex(spectrum.real * transfer, spectrum.imag * transfer)).real.to(S.dtype)
