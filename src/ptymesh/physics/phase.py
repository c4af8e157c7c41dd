"""Phase of an object for display: unwrapped, without the arbitrary linear ramp.

H, W    object pixels
"""

from __future__ import annotations

import numpy as np
from scipy import fft
from skimage.restoration import unwrap_phase


def unwrapped_phase(image: np.ndarray, region: np.ndarray | None = None) -> np.ndarray:
    """Return the phase of a complex image, unwrapped over a region, without its linear ramp.

    The strongest plane wave is removed before unwrapping, the remaining tilt (the median slope) after; the median is
    zero.

    Args:
        image: (H, W) complex.
        region: (H, W) bool; None: all.

    Returns:
        (H, W) float64 in rad, NaN outside the region.

    Source:
        Unwrapping: Herraez et al., Appl. Opt. 41, 7437 (2002).
    """
    region = np.ones(image.shape, dtype=bool) if region is None else region
    phase = np.full(image.shape, np.nan)
    if not region.any():
        return phase
    rows, columns = (np.flatnonzero(region.any(axis=axis)) for axis in (1, 0))
    box = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    inside = region[box]
    flat = image[box].astype(np.complex128) * np.conj(_plane_wave(np.where(inside, image[box], 0)))
    wrapped = np.ma.masked_array(np.angle(flat), ~inside)
    # A single row or column is unwrapped along one axis.
    narrow = min(inside.shape) < 2
    unwrapped = np.unwrap(np.angle(flat).ravel()).reshape(inside.shape) if narrow else unwrap_phase(wrapped, rng=0)
    phase[box] = without_ramp(np.asarray(unwrapped), inside)
    return phase


def without_ramp(phase: np.ndarray, region: np.ndarray) -> np.ndarray:
    """Return a phase without wraps less its tilt, which is the median slope, and less its median.

    Args:
        phase: (H, W) rad.
        region: (H, W) bool, where tilt and median are taken; not empty.

    Returns:
        (H, W) float64 in rad, NaN outside the region.
    """
    flat = phase - _plane(phase, region)
    return np.where(region, flat - np.median(flat[region]), np.nan)


def _plane(phase: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return the phase of the median slope, which edges and islands of structure do not affect, at every pixel."""
    tilt = np.zeros(phase.shape)
    for axis in (0, 1):
        lag = max(1, phase.shape[axis] // 50)
        first = [slice(None), slice(None)]
        second = list(first)
        first[axis], second[axis] = slice(None, -lag), slice(lag, None)
        both_inside = inside[tuple(first)] & inside[tuple(second)]
        slope = np.median((phase[tuple(second)] - phase[tuple(first)])[both_inside]) / lag if both_inside.any() else 0.0
        tilt = tilt + slope * np.arange(phase.shape[axis]).reshape((-1, 1) if axis == 0 else (1, -1))
    return tilt


def _plane_wave(image: np.ndarray) -> np.ndarray:
    """Return exp(i k.r) with the strongest spatial frequency of `image`."""
    size = [fft.next_fast_len(2 * n) for n in image.shape]
    spectrum = np.abs(fft.fft2(image, s=size))
    peak = np.unravel_index(np.argmax(spectrum), spectrum.shape)
    waves = [np.exp(2j * np.pi * i / n * np.arange(m)) for i, n, m in zip(peak, size, image.shape, strict=True)]
    return waves[0][:, None] * waves[1][None, :]
