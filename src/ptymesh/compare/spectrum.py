"""Power spectrum of the phase of an object, and its information limit.

phi     phase (rad), summed over slices;  w  taper from 0 outside the illuminated region to 1 inside
S       = |F w (phi - its mean)|^2 / sum w^2, rad^2 for each pixel of the Fourier plane; white noise of variance v has
        S = v at every frequency
s(q)    mean of S over the rings of the Fourier plane, each one pixel wide

Noise is taken to be white: its level is the median of s over the outer tenth of the rings. A ring holds n independent
values, half of its pixels as the phase is real, less what the taper makes alike, and S of noise is distributed as
exponentials are, so that s of a ring scatters about the level as a gamma variate of shape n. A ring stands above noise
where s exceeds `SIGNAL` times the level, and what one of a thousand spectra of white noise would reach in any ring. The
information limit is the highest frequency of such a ring.

Where something of the object reaches the outer rings, it counts as noise, and where the reconstruction damps high
frequencies, the noise is lower there than further in: two halves of the scan (`ptymesh resolution`) tell more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import fft, special

from ptymesh.compare.rings import SMALLEST, apodisation, fourier_rings
from ptymesh.errors import BadInput

#: Share of the region's smaller side over which it is tapered: to its middle, as a steep taper spreads strong low
#: frequencies over weak high ones.
TAPER = 0.5
#: Share of the rings, the outer ones, that tell the noise.
OUTER = 0.1
#: Least multiple of the noise that is a signal: as much of the object as of noise.
SIGNAL = 2.0
#: Chance that a spectrum of white noise has a ring above the threshold.
FALSE_ALARM = 1e-3


@dataclass(frozen=True)
class PowerSpectrum:
    """Power spectrum of a phase.

    Attributes:
        power: (h, w) of each pixel of the Fourier plane, rad^2, with zero frequency at (h//2, w//2).
        step: frequency (y, x) from one of its pixels to the next, cycles per `unit`.
        frequency: of each ring, cycles per `unit`, without that of the mean.
        radial: mean power of each ring.
        noise: level of the noise; 0 where there is none.
        threshold: power of each ring above which it counts as signal.
        limit: frequency of the information limit, cycles per `unit`; None where no ring stands above noise.
        at_edge: True if the limit lies among the rings that tell the noise, so that pixels may limit it.
        unit: "m", or "px" in pixel units.
    """

    power: np.ndarray
    step: tuple[float, float]
    frequency: np.ndarray
    radial: np.ndarray
    noise: float
    threshold: np.ndarray
    limit: float | None
    at_edge: bool
    unit: str


def power_spectrum(
    phase: np.ndarray, region: np.ndarray | None = None, pixel_size_m: tuple[float, float] | None = None
) -> PowerSpectrum:
    """Return the power spectrum of a phase over a region, and its information limit.

    Args:
        phase: (H, W) rad, unwrapped; what lies outside the region is not looked at.
        region: (H, W) bool; None: all finite pixels.
        pixel_size_m: (y, x); None: pixel units.

    Raises:
        BadInput: the region is narrower than 8 pixels, or pixels are so elongated that there is no ring.
    """
    region = np.isfinite(phase) if region is None else region & np.isfinite(phase)
    rows, columns = (np.flatnonzero(region.any(axis=axis)) for axis in (1, 0))
    sides = [int(np.ptp(line)) + 1 if line.size else 0 for line in (rows, columns)]
    if min(sides) < SMALLEST:
        raise BadInput(
            f"The phase has a region of {sides[0]} x {sides[1]} pixels; {SMALLEST} each way are needed for a spectrum."
        )
    box = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    taper = apodisation(region[box], TAPER)
    inside = np.where(region[box], phase[box], 0.0)
    power = np.abs(fft.fft2((inside - np.average(inside, weights=taper)) * taper)) ** 2 / (taper**2).sum()
    pixel = (1.0, 1.0) if pixel_size_m is None else pixel_size_m
    ring, frequency = fourier_rings(power.shape, pixel)
    count = len(frequency)
    if count < 2:
        raise BadInput(
            f"Object pixels of {pixel[0]:g} x {pixel[1]:g} m leave no ring around the mean in the spectrum of "
            f"{power.shape[0]} x {power.shape[1]} pixels; check the pixel size."
        )
    pixels, total = (
        np.bincount(ring.ravel(), weights=weights, minlength=count + 1)[1:count] for weights in (None, power.ravel())
    )
    radial = total / np.maximum(pixels, 1)
    frequency = frequency[1:]
    outer = min(max(round((1 - OUTER) * len(radial)), 0), len(radial) - 1)
    noise = float(np.median(radial[outer:]))
    share = (taper**2).sum() ** 2 / (taper.size * (taper**4).sum())
    independent = np.maximum(pixels * share / 2, 1.0)
    chance = special.gammainccinv(independent, FALSE_ALARM / len(radial)) / independent
    threshold = noise * np.maximum(SIGNAL, chance)
    above = np.flatnonzero((radial > threshold) & (radial > 0))
    return PowerSpectrum(
        power=fft.fftshift(power),
        step=(1 / (power.shape[0] * pixel[0]), 1 / (power.shape[1] * pixel[1])),
        frequency=frequency,
        radial=radial,
        noise=noise,
        threshold=threshold,
        limit=float(frequency[above[-1]]) if above.size else None,
        at_edge=bool(above.size and above[-1] >= outer),
        unit="px" if pixel_size_m is None else "m",
    )
