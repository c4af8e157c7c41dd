"""Free-space propagation of windows; every operator beside its adjoint.

F         orthonormal FFT over the last two axes, F^H its inverse
k         spatial frequency (1/m), at the true FFT frequencies: no half-bin offset, which would be a tilt
lambda_m  wavelength;  z  distance (m);  d  pixel (m), y first
K(k)      transfer function, |K| = 1 inside its band

Sampling: the angular spectrum is exact up to the band limit of Matsushima & Shimobaba, Opt. Express 17, 19662 (2009);
the Fresnel transfer function needs z <= n d^2 / lambda (Goodman, Introduction to Fourier Optics, ch. 5).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from ptymesh.physics.elementwise import times

Pair = tuple[float, float]


def fft(x: Tensor, norm: str = "ortho") -> Tensor:
    """Return F x, orthonormal, over the last two axes.

    Norm "backward" gives sqrt(h w) times that, which on a GPU saves a pass over the waves.
    """
    return torch.fft.fft2(x, norm=norm) if _even(x) else _transform_in_groups(torch.fft.fft2, x, norm)


def ifft(x: Tensor, norm: str = "ortho") -> Tensor:
    """Return F^H x, orthonormal, over the last two axes; with norm "forward", sqrt(h w) times that."""
    return torch.fft.ifft2(x, norm=norm) if _even(x) else _transform_in_groups(torch.fft.ifft2, x, norm)


#: Number of waves that are transformed together if a wave's bits would otherwise depend on how many there are.
GROUP = 16
_uneven: set[tuple[torch.device, torch.dtype, tuple[int, int]]] = set()


def try_transforms(device: torch.device, dtype: torch.dtype, window: tuple[int, int]) -> bool:
    """Return True if a wave's transform has the same bits however many are transformed together, tried once.

    If it has not, waves of this kind are transformed in groups of one size from then on. GPU libraries may use another
    algorithm for few waves.

    Args:
        device: where waves are transformed.
        dtype: complex dtype of the waves.
        window: (h, w).
    """
    key = device, dtype, window
    if key in _uneven:
        return False
    real = torch.float64 if dtype == torch.complex128 else torch.float32
    places = torch.arange(2 * GROUP * window[0] * window[1] * 2, dtype=real, device=device)
    waves = torch.view_as_complex((places * 0.7548776662466927 % 1).view(2 * GROUP, *window, 2))
    for transform in (torch.fft.fft2, torch.fft.ifft2):
        all_at_once = transform(waves)
        for count in (1, 2, 3, GROUP // 2, GROUP + 1):
            if not bool(
                (torch.view_as_real(transform(waves[:count])) == torch.view_as_real(all_at_once[:count])).all()
            ):
                _uneven.add(key)
                return False
    return True


def _even(x: Tensor) -> bool:
    """Return True unless waves of this kind must be transformed in groups."""
    return not _uneven or (x.device, x.dtype, (x.shape[-2], x.shape[-1])) not in _uneven


def _transform_in_groups(transform: Callable[..., Tensor], x: Tensor, norm: str) -> Tensor:
    """Transform waves (..., h, w), GROUP at a time; the last group is filled up with zeros."""
    waves = x.reshape(-1, *x.shape[-2:])
    lacking = -len(waves) % GROUP
    if lacking:
        waves = torch.cat((waves, waves.new_zeros(lacking, *waves.shape[1:])))
    transformed = torch.cat([transform(group, norm=norm) for group in waves.split(GROUP)])
    return transformed[: len(transformed) - lacking].view(x.shape)


def frequencies(shape: tuple[int, int], pixel_m: Pair, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Return k_y as (h, 1) and k_x as (1, w), float64, in FFT order.

    Args:
        shape: (h, w).
        pixel_m: pixel (y, x) in metres, for cycles per metre; (1, 1) for cycles per pixel.
        device: where the arrays are kept.
    """
    ky = torch.fft.fftfreq(shape[0], pixel_m[0], dtype=torch.float64, device=device)
    kx = torch.fft.fftfreq(shape[1], pixel_m[1], dtype=torch.float64, device=device)
    return ky[:, None], kx[None, :]


def derivatives(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return 2 pi i k_y and 2 pi i k_x, which turn a spectrum into that of the derivatives per pixel.

    Args:
        shape: (h, w).
        dtype: complex dtype of the result.
        device: where the result is kept.

    Returns:
        (2, h, w) complex; shared between callers, so it must not be written to.
    """
    if device.type == "cpu":
        return _derivatives_of(shape, dtype)
    return _derivatives(shape, dtype, device)


def _derivatives(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    pair = torch.stack([k.expand(shape) for k in frequencies(shape, (1.0, 1.0), device)])
    return torch.complex(torch.zeros_like(pair), 2 * math.pi * pair).to(dtype)


@lru_cache(maxsize=2)
def _derivatives_of(shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    return _derivatives(shape, dtype, torch.device("cpu"))


def angular_spectrum_kernel(
    shape: tuple[int, int], pixel_m: Pair, wavelength_m: float, distance_m: float, tilt_rad: Pair = (0.0, 0.0)
) -> Tensor:
    """Return the band-limited angular-spectrum transfer function, without the constant phase 2 pi z / lambda.

    Evanescent waves and frequencies beyond the band limit are zero. A tilt multiplies by
    exp(i z (K_y tan t_y + K_x tan t_x)), K = 2 pi k: the image moves by -z tan t.

    Args:
        shape: (h, w).
        pixel_m: pixel (y, x).
        wavelength_m: wavelength.
        distance_m: z.
        tilt_rad: t (y, x).

    Returns:
        (h, w) complex128, in FFT order.

    Source: Matsushima & Shimobaba 2009, eq. 13, for the band limit.
    """
    ky, kx = frequencies(shape, pixel_m)
    k2 = ky**2 + kx**2
    inverse = 1.0 / wavelength_m
    phase = distance_m * phase_rate(shape, pixel_m, wavelength_m, tilt_rad)
    inside = k2 < inverse**2
    for k, n, d in ((ky, shape[0], pixel_m[0]), (kx, shape[1], pixel_m[1])):
        limit = inverse / math.sqrt((2 * distance_m / (n * d)) ** 2 + 1)
        inside = inside & (k.abs() <= limit)
    return torch.polar(inside.to(torch.float64), phase)


def phase_rate(shape: tuple[int, int], pixel_m: Pair, wavelength_m: float, tilt_rad: Pair = (0.0, 0.0)) -> Tensor:
    """Return 2 pi (k_z - 1/lambda + k_y tan t_y + k_x tan t_x), (h, w) float64 in rad/m.

    The angular spectrum is exp(i z phase_rate) within its band.

    Args:
        shape: (h, w).
        pixel_m: pixel (y, x).
        wavelength_m: wavelength.
        tilt_rad: t (y, x).
    """
    ky, kx = frequencies(shape, pixel_m)
    k2 = ky**2 + kx**2
    inverse = 1.0 / wavelength_m
    longitudinal = torch.sqrt(torch.clamp(inverse**2 - k2, min=0.0))
    straight = -2 * math.pi * k2 / (longitudinal + inverse)  # k_z - 1/lambda without cancellation
    return straight + _tilt(ky, kx, 1.0, tilt_rad)


def turn_phases(z: Tensor, rate: Tensor) -> Tensor:
    """Return exp(i z r), (n, h, w) complex, the transfer functions of some distances.

    Phases are reduced to one turn in double precision, so that single precision holds them.

    Args:
        z: (n,), distances in metres.
        rate: r (h, w), rad/m.
    """
    turns = z.to(torch.float64)[:, None, None] * (rate.to(torch.float64) / (2 * math.pi))
    phase = (turns - turns.round()).to(rate.dtype) * (2 * math.pi)
    return torch.complex(phase.cos(), phase.sin())  # torch.polar takes twice as long


def tilt_rates(shape: tuple[int, int], pixel_m: Pair, distance_m: float, tilt_rad: Pair) -> tuple[Tensor, Tensor]:
    """Return the phase of a tilted transfer function per radian of tilt along y, (h, 1), and x, (1, w), float64.

    2 pi z k_a / cos^2 t_a, for the derivative of tan t_a is 1 / cos^2 t_a.

    Args:
        shape: (h, w).
        pixel_m: pixel (y, x).
        distance_m: z.
        tilt_rad: t (y, x).
    """
    ky, kx = frequencies(shape, pixel_m)
    y, x = (2 * math.pi * distance_m / math.cos(t) ** 2 for t in tilt_rad)
    return y * ky, x * kx


def fresnel_kernel(
    shape: tuple[int, int], pixel_m: Pair, wavelength_m: float, distance_m: float, tilt_rad: Pair = (0.0, 0.0)
) -> Tensor:
    """Return the Fresnel transfer function exp(-i pi lambda z k^2), (h, w) complex128, in FFT order.

    Args:
        shape: (h, w).
        pixel_m: pixel (y, x).
        wavelength_m: wavelength.
        distance_m: z.
        tilt_rad: tilt (y, x), which acts as in `angular_spectrum_kernel`.

    Source: Goodman, Introduction to Fourier Optics, eq. 4-21.
    """
    ky, kx = frequencies(shape, pixel_m)
    phase = -math.pi * wavelength_m * distance_m * (ky**2 + kx**2) + _tilt(ky, kx, distance_m, tilt_rad)
    return torch.polar(torch.ones_like(phase), phase)


def _tilt(ky: Tensor, kx: Tensor, distance_m: float, tilt_rad: Pair) -> Tensor:
    """Return 2 pi z (k_y tan t_y + k_x tan t_x), (h, w)."""
    return 2 * math.pi * distance_m * (ky * math.tan(tilt_rad[0]) + kx * math.tan(tilt_rad[1]))


def apply_kernel(psi: Tensor, kernel: Tensor) -> Tensor:
    """Return F^H [K F psi]; K is (h, w), or has leading axes that broadcast against psi's."""
    if psi.device.type == "cpu":
        return ifft(times(kernel, fft(psi)))
    # On a GPU an orthonormal transform costs one more pass over the waves.
    return ifft(times(kernel / (psi.shape[-2] * psi.shape[-1]), fft(psi, "backward")), "forward")


def apply_kernel_adjoint(psi: Tensor, kernel: Tensor) -> Tensor:
    """Return F^H [conj(K) F psi], the adjoint of `apply_kernel`."""
    return apply_kernel(psi, kernel.conj())
