"""Windows of the object, one for each view: cutting them out, adding them back, and sub-pixel shifts.

B, L, M     views of a chunk, slices, modes
n_j, f_j    anchor (integer) and fraction of position p_j = n_j + f_j, y x
S_j         cut:  (S_j O)[r] = O[n_j + r];  S_j^H adds a window back
T_f         shift of a window by f:  T_f P = F^H [exp(-2 pi i k.f) F P], adjoint T_{-f}

Sub-pixel positions: `fourier` shifts the probe by f_j, `bilinear` interpolates the object at n_j + f_j,
`none` uses n_j alone.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ptymesh.physics.elementwise import times
from ptymesh.physics.propagate import derivatives, fft, frequencies, ifft


def cut(obj: Tensor, anchors: Tensor, window: tuple[int, int]) -> Tensor:
    """Cut the window of every view, S_j O, (B, L, h, w).

    Args:
        obj: (L, H, W).
        anchors: (B, 2) int64, corners of the windows in object pixels.
        window: (h, w).
    """
    sliding = obj.unfold(-2, window[0], 1).unfold(-2, window[1], 1)
    return sliding[:, anchors[:, 0], anchors[:, 1]].transpose(0, 1)


def add_back(out: Tensor, windows: Tensor, anchors: Tensor) -> None:
    """Add windows to an object in place: out += sum_j S_j^H windows_j.

    Args:
        out: (L, H, W), contiguous.
        windows: (B, L, h, w).
        anchors: (B, 2) int64, corners of the windows in object pixels.
    """
    index = flat_index(anchors, windows.shape[-2:], out.shape[-1]).reshape(-1)
    for slice_, window in zip(out, windows.unbind(1), strict=True):
        slice_.view(-1).index_add_(0, index, window.reshape(-1))


def flat_index(anchors: Tensor, window: tuple[int, ...], width: int) -> Tensor:
    """Return the index into the flattened slice of every pixel of every window, (B, h, w) int64.

    Args:
        anchors: (B, 2) int64, corners of the windows in object pixels.
        window: (h, w).
        width: W of the object.
    """
    rows = (anchors[:, 0, None] + torch.arange(window[0], device=anchors.device)) * width
    columns = anchors[:, 1, None] + torch.arange(window[1], device=anchors.device)
    return rows[:, :, None] + columns[:, None, :]


# --- Fourier sub-pixel: the probe moves -----------------------------------------------------------------------------


def ramps(fractions: Tensor, window: tuple[int, int], factors: Tensor | None = None) -> Tensor:
    """Return exp(-2 pi i k.f_j), times real factors (B,) if there are some.

    Args:
        fractions: (B, 2) real, y x, pixels.
        window: (h, w).
        factors: (B,) real.

    Returns:
        (B, h, w) complex.
    """
    ky, kx = frequencies(window, (1.0, 1.0), fractions.device)
    f = -2 * math.pi * fractions.to(torch.float64)
    phase_y, phase_x = f[:, 0, None] * ky[:, 0], f[:, 1, None] * kx[0]
    one = torch.ones((), dtype=torch.float64, device=fractions.device)
    dtype = torch.complex64 if fractions.dtype == torch.float32 else torch.complex128
    y, x = torch.polar(one.expand_as(phase_y), phase_y), torch.polar(one.expand_as(phase_x), phase_x)
    if factors is not None:
        y = y * factors[:, None]
    # Of equal shapes, which have a faster product on a CPU.
    return times(y.to(dtype)[:, :, None].expand(-1, -1, window[1]), x.to(dtype)[:, None, :].expand(-1, window[0], -1))


def shift(probe: Tensor, fractions: Tensor) -> Tensor:
    """Shift the probe, T_f P: probe (M, h, w) or (B, M, h, w), fractions (B, 2) in pixels -> (B, M, h, w)."""
    return ifft(times(fft(probe), ramps(fractions, _window(probe))[:, None]))


def derivative(waves: Tensor, axis: int) -> Tensor:
    """Return the spectral derivative d_a of waves (..., h, w), per pixel; axis 0 = y, 1 = x.

    With it, d(T_f P)/d f_a = -d_a T_f P.
    """
    return ifft(times(fft(waves), derivatives(_window(waves), waves.dtype, waves.device)[axis]))


def _window(waves: Tensor) -> tuple[int, int]:
    return waves.shape[-2], waves.shape[-1]


# --- bilinear sub-pixel: the object is interpolated -----------------------------------------------------------------


def _corners(anchors: Tensor, fractions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the top-left pixel of the interpolation (B, 2) and the weight t in [0, 1) of the next one (B, 2)."""
    below = torch.floor(fractions)
    return anchors + below.to(anchors.dtype), fractions - below


def _bilinear_weights(t: Tensor, order: tuple[int, int] = (0, 0)) -> Tensor:
    """Return the weights of the four neighbours, (B, 2, 2): [y, x].

    With an order of 1 along an axis, their derivatives by the shift along it.
    """
    edge = (2 * torch.arange(2, dtype=t.dtype, device=t.device) - 1).expand(len(t), 2)
    y, x = (edge if order[axis] else torch.stack((1 - t[:, axis], t[:, axis]), dim=1) for axis in (0, 1))
    return y[:, :, None] * x[:, None, :]


def _blend(cuts: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of the four neighbours: cuts (B, L, h + 1, w + 1) -> (B, L, h, w)."""
    h, w = cuts.shape[-2] - 1, cuts.shape[-1] - 1
    c = weights[:, :, :, None, None, None]
    total = c[:, 0, 0] * cuts[..., :h, :w]
    for dy, dx in ((0, 1), (1, 0), (1, 1)):
        total = total + c[:, dy, dx] * cuts[..., dy : dy + h, dx : dx + w]
    return total


def cut_bilinear(
    obj: Tensor, anchors: Tensor, fractions: Tensor, window: tuple[int, int], order: tuple[int, int] = (0, 0)
) -> Tensor:
    """Return the object interpolated at n_j + f_j + r, (B, L, h, w).

    Args:
        obj: (L, H, W).
        anchors: (B, 2) int64, corners of the windows in object pixels.
        fractions: (B, 2) sub-pixel parts of the positions, in pixels.
        window: (h, w).
        order: 1 along an axis for the derivative with respect to f_a instead; second ones of a single axis are zero.
    """
    corner, t = _corners(anchors, fractions)
    return _blend(cut(obj, corner, (window[0] + 1, window[1] + 1)), _bilinear_weights(t, order))


def spread_bilinear(windows: Tensor, anchors: Tensor, fractions: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `add_back` adds for the adjoint of `cut_bilinear`.

    Args:
        windows: (B, L, h, w).
        anchors: (B, 2) int64, corners of the windows in object pixels.
        fractions: (B, 2) sub-pixel parts of the positions, in pixels.

    Returns:
        Windows (B, L, h + 1, w + 1), and the object pixels (B, 2) under their corners.
    """
    corner, t = _corners(anchors, fractions)
    weights = _bilinear_weights(t)
    b, slices, h, w = windows.shape
    spread = windows.new_zeros((b, slices, h + 1, w + 1))
    for dy in (0, 1):
        for dx in (0, 1):
            spread[..., dy : dy + h, dx : dx + w] += weights[:, dy, dx, None, None, None] * windows
    return spread, corner


def cut_bilinear_derivative(
    obj: Tensor, anchors: Tensor, fractions: Tensor, window: tuple[int, int], axis: int
) -> Tensor:
    """Return the derivative of `cut_bilinear` with respect to f_a, (B, L, h, w), per pixel.

    Args:
        obj: (L, H, W).
        anchors: (B, 2) int64, corners of the windows in object pixels.
        fractions: (B, 2) sub-pixel parts of the positions, in pixels.
        window: (h, w).
        axis: 0 for y, 1 for x.
    """
    return cut_bilinear(obj, anchors, fractions, window, (1, 0) if axis == 0 else (0, 1))
