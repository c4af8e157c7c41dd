"""Fourier ring correlation of two aligned images, with a threshold that also holds on few pixels.

FRC(q) = Re sum F1 conj(F2) / sqrt(sum |F1|^2 sum |F2|^2) over the pixels of a ring.
The 1/2-bit threshold is that of van Heel & Schatz, J. Struct. Biol. 151, 250 (2005), equation 17: at n independent
pixels

    T = (0.2071 + 1.9102 / sqrt n) / (1.2071 + 0.9102 / sqrt n).

It asks for a signal-to-noise ratio of 0.4142 in the mean of both images, log2(1 + 0.4142) = 1/2 bit a pixel. The 1-bit
threshold asks for a ratio of 1, by the same equation with 1/2 in each image:

    T = (1/2 + (1 + sqrt 2) / sqrt n) / (3/2 + sqrt 2 / sqrt n).

On few pixels chance alone reaches it: the correlation of images that have nothing in common has the standard deviation
1 / sqrt(2 n), and the images were aligned before, that is, of some thousand shifts the one that correlates best was
taken, which is sqrt(2 ln 1000) = 3.7 deviations above zero. So T is at least CHANCE of these deviations; rings where
that is 1 or more are not significant, and are left out.

Images are apodised from the edge of the region inwards, w(r), and their mean is subtracted, so that neither the edge
nor the mean correlates. Neighbouring Fourier pixels are then not independent: n is taken as a ring's pixels times
(sum w^2)^2 / (pixels sum w^4), a little low for rings one pixel wide, which makes the threshold a little high.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import fft

from ptymesh.errors import BadInput

#: Smallest side (pixels) of a region that is divided into rings.
SMALLEST = 8
#: Standard deviations of a chance correlation that a ring must exceed. Of 960 pairs of unrelated, flipped or flat
#: images of 24 to 128 pixels, aligned as results are, the 1/2-bit threshold called 380 resolved, this one 1.
CHANCE = 5.0
#: Fewest significant rings (threshold below 1) from which a resolution is derived.
FEWEST_RINGS = 3


@dataclass(frozen=True)
class RingCorrelation:
    """Fourier ring correlation.

    Attributes:
        frequency: of each ring, cycles per `unit`.
        correlation, threshold: one per ring, -1 to 1; a threshold of 1 or more: the ring has too few pixels.
        independent: independent pixels, one per ring.
        resolution: full period, in `unit`, at which the correlation falls below the threshold for good; the finest
            period of the grid where it never does; None where it does from the first significant ring on.
        at_limit: True if the correlation never falls below, so that the pixels limit the resolution.
        unit: "m", or "px" in pixel units.
        one_bit: 1-bit threshold, one per ring.
        one_bit_resolution, one_bit_at_limit: as `resolution` and `at_limit`, with that threshold.
    """

    frequency: np.ndarray
    correlation: np.ndarray
    threshold: np.ndarray
    independent: np.ndarray
    resolution: float | None
    at_limit: bool
    unit: str
    one_bit: np.ndarray
    one_bit_resolution: float | None
    one_bit_at_limit: bool

    @property
    def snr(self) -> np.ndarray:
        """Signal-to-noise ratio of the mean of both images, 2 FRC / (1 - FRC), one per ring; infinite where they agree.

        Frank & Al-Ali, Nature 256, 376 (1975), for the mean of two: their FRC / (1 - FRC) is that of one.
        """
        positive = np.clip(self.correlation, 0.0, 1.0)
        noise = 1 - positive
        return np.divide(2 * positive, noise, out=np.full(len(noise), np.inf), where=noise > 1e-12)

    @property
    def finest_agreement(self) -> float | None:
        """Finest full period, in `unit`, down to which three rings in a row exceed the 1/2-bit threshold, or None.

        It is finer than `resolution` where the correlation dips in between, as of an object with little at some
        frequency.
        """
        above = (self.correlation >= self.threshold) & (self.threshold < 1)
        last = np.flatnonzero(above[2:] & above[1:-1] & above[:-2])
        return float(1 / self.frequency[last[-1] + 2]) if last.size else None

    @property
    def is_too_small(self) -> bool:
        """True if too few rings have enough pixels to be significant."""
        return has_too_few_rings(self.threshold)


def half_bit(pixels: np.ndarray) -> np.ndarray:
    """Return the 1/2-bit threshold for rings of that many independent pixels."""
    root = np.sqrt(np.maximum(pixels, 1.0))
    return (0.2071 + 1.9102 / root) / (1.2071 + 0.9102 / root)


def one_bit(pixels: np.ndarray) -> np.ndarray:
    """Return the 1-bit threshold for rings of that many independent pixels."""
    root = np.sqrt(np.maximum(pixels, 1.0))
    return (0.5 + (1 + math.sqrt(2)) / root) / (1.5 + math.sqrt(2) / root)


def chance_threshold(pixels: np.ndarray) -> np.ndarray:
    """Return a bound on the correlation of unrelated, aligned images, for rings of that many independent pixels."""
    return CHANCE / np.sqrt(2 * np.maximum(pixels, 1.0))


def has_too_few_rings(threshold: np.ndarray) -> bool:
    """Return True if fewer than `FEWEST_RINGS` rings have a threshold below 1."""
    return int((threshold < 1).sum()) < FEWEST_RINGS


def ring_correlation(
    first: np.ndarray,
    second: np.ndarray,
    region: np.ndarray | None = None,
    pixel_size_m: tuple[float, float] | None = None,
) -> RingCorrelation:
    """Return the Fourier ring correlation of two aligned complex images over a region.

    Args:
        first: (H, W) complex.
        second: (H, W) complex, aligned with the first.
        region: (H, W) bool; None: all.
        pixel_size_m: (y, x); None: pixel units.

    Raises:
        BadInput: the region is narrower than 8 pixels.
    """
    region = np.ones(first.shape, dtype=bool) if region is None else region
    rows, columns = (np.flatnonzero(region.any(axis=axis)) for axis in (1, 0))
    sides = [int(np.ptp(line)) + 1 if line.size else 0 for line in (rows, columns)]
    if min(sides) < SMALLEST:
        raise BadInput(
            f"Only {sides[0]} x {sides[1]} pixels are common to both objects; {SMALLEST} each way are needed."
        )
    box = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    window = apodisation(region[box])
    spectra = [fft.fft2((image[box] - np.average(image[box], weights=window)) * window) for image in (first, second)]
    pixel = (1.0, 1.0) if pixel_size_m is None else pixel_size_m
    ring, frequency = fourier_rings(tuple(sides), pixel)
    count = len(frequency)

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(ring.ravel(), weights=values.ravel(), minlength=count + 1)[:count]

    cross = total((spectra[0] * np.conj(spectra[1])).real)
    norm = np.sqrt(total(np.abs(spectra[0]) ** 2) * total(np.abs(spectra[1]) ** 2))
    correlation = np.divide(cross, norm, out=np.zeros(count), where=norm > 0)
    share = (window**2).sum() ** 2 / (window.size * (window**4).sum())
    independent = total(np.ones(ring.shape)) * share
    # Leave out ring 0, the mean, which was subtracted.
    frequency, correlation, independent = (of_rings[1:] for of_rings in (frequency, correlation, independent))
    chance = chance_threshold(independent)
    thresholds = [np.maximum(bits(independent), chance) for bits in (half_bit, one_bit)]
    (resolution, at_limit), (one_bit_resolution, one_bit_at_limit) = (
        _resolution(frequency, correlation, threshold, float(2 * max(pixel))) for threshold in thresholds
    )
    return RingCorrelation(
        frequency=frequency,
        correlation=correlation,
        threshold=thresholds[0],
        independent=independent,
        resolution=resolution,
        at_limit=at_limit,
        unit="px" if pixel_size_m is None else "m",
        one_bit=thresholds[1],
        one_bit_resolution=one_bit_resolution,
        one_bit_at_limit=one_bit_at_limit,
    )


def _resolution(
    frequency: np.ndarray, correlation: np.ndarray, threshold: np.ndarray, finest: float
) -> tuple[float | None, bool]:
    """Return the full period at which the correlation falls below a threshold, and True if it never does.

    Args:
        frequency: of each ring.
        correlation: of each ring.
        threshold: of each ring.
        finest: full period of the pixel grid.
    """
    if has_too_few_rings(threshold):
        return None, False
    telling = threshold < 1
    crossing = _crossing(frequency[telling], (correlation - threshold)[telling])
    if crossing is None:
        return None, False
    if not np.isfinite(crossing):
        return finest, True
    return max(1 / crossing, finest), False


def apodisation(region: np.ndarray, share: float = 1 / 8) -> np.ndarray:
    """Return a cosine taper from 0 outside a region to 1 inside it, over this share of its smaller side."""
    from scipy import ndimage

    edge = max(min(region.shape) * share, 2.0)
    depth = ndimage.distance_transform_edt(np.pad(region, 1))[1:-1, 1:-1]
    return np.sin(np.minimum(depth / edge, 1.0) * np.pi / 2) ** 2


def fourier_rings(shape: tuple[int, ...], pixel: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Return the ring number of every Fourier pixel, and the rings' frequencies.

    Pixels beyond the last ring get the next number.
    """
    axes = [fft.fftfreq(n, d) for n, d in zip(shape, pixel, strict=True)]
    q = np.hypot(axes[0][:, None], axes[1][None, :])
    width = 1 / min(n * d for n, d in zip(shape, pixel, strict=True))
    count = int(np.floor(0.5 / max(pixel) / width + 1e-9)) + 1
    return np.minimum(np.rint(q / width).astype(np.int64), count), np.arange(count) * width


def _crossing(frequency: np.ndarray, margin: np.ndarray) -> float | None:
    """Return the frequency where `margin` turns negative for two rings in a row.

    Infinite where it never does; None where it does from the first ring on.
    """
    below = margin < 0
    fallen = np.flatnonzero(below & np.append(below[1:], below[-1]))
    if fallen.size == 0:
        return float("inf")
    i = int(fallen[0])
    if i == 0:
        return None
    share = margin[i - 1] / (margin[i - 1] - margin[i])
    return float(frequency[i - 1] + share * (frequency[i] - frequency[i - 1]))
