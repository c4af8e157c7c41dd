"""Detector counts for each photon or electron, told from the noise of far-field patterns.

A pattern is the square of a wave that is no wider than the beam, so that its Fourier transform (the autocorrelation of
that wave) ends at twice the beam's radius. What lies further out is noise alone. That of counting is white, and its
power is the sum of the pattern times the detector counts of a quantum: for counts y = g n with n of a Poisson
distribution, var y = g mean y.

h, w    window pixels
"""

from __future__ import annotations

import numpy as np

from ptymesh.measurement import Measurement, evenly_spread

#: Views that are looked at.
VIEWS = 32
#: Shares of the largest lag between which, along both axes, noise is measured: further in, and further out.
INNER, OUTER = (0.7, 0.85), (0.85, 1.0)
#: Noise is white if both measurements agree to this share, and known if their error is smaller than that.
SAME, KNOWN = 0.1, 0.05
#: Least and most quanta of a pattern; more have no noise that could be seen, and fewer none of their own.
LEAST_QUANTA, MOST_QUANTA = 300.0, 1e10
#: Least window, and most of it that the beam may fill.
LEAST_WINDOW, MOST_DIAMETER = 32, 0.45
#: Gains that are told from one.
UNUSUAL = 1.5


def noise_gain(measurement: Measurement, diameter: float) -> float | None:
    """Return the detector counts of each quantum; None where the patterns do not tell.

    They do not if pixels are masked or missing, if the beam fills the window so that no lag is free of it, or if the
    detector blurs. Noise of the readout counts as that of quanta, and what leaks of the signal makes it up to 15 % too
    large.

    Args:
        measurement: the scan.
        diameter: of the beam, px.
    """
    h, w = measurement.window
    if measurement.geometry.propagation != "far_field" or not measurement.mask.all() or min(h, w) < LEAST_WINDOW:
        return None
    if not 0 < diameter < MOST_DIAMETER * min(h, w):
        return None
    counts = measurement.patterns.read(evenly_spread(measurement.views, VIEWS)).astype(np.float64)
    if (counts < 0).any():
        return None
    counts = np.fft.fftshift(counts, axes=(1, 2))
    soft = np.outer(np.hanning(h), np.hanning(w))  # patterns end at the border, and their transform would not
    power = np.abs(np.fft.fft2(counts * soft)) ** 2
    sums = (counts * soft**2).sum(axis=(1, 2))
    if not (sums > 0).all():
        return None
    lags = np.minimum(*np.meshgrid(*(2 * np.abs(np.fft.fftfreq(n)) for n in (h, w)), indexing="ij"))
    inner, outer = ((lags >= low) & (lags <= high) for low, high in (INNER, OUTER))
    gains = [power[:, region].mean(axis=1) / sums for region in (inner, outer)]
    first, second = (float(one.mean()) for one in gains)
    if second <= 0 or abs(first / second - 1) > SAME:
        return None
    error = second / np.sqrt(len(counts) * outer.sum() / 2)
    quanta = counts.sum(axis=(1, 2)).mean() / second
    return second if error < KNOWN * second and LEAST_QUANTA < quanta < MOST_QUANTA else None
