"""One pass over all patterns of a scan: what each view looks like in short.

N       views
h, w    window pixels
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptymesh.measurement import Measurement

#: Side of a thumbnail, at most; lags of a pattern's autocorrelation that are looked at, in thumbnails' pixels.
SIDE = 24
#: Patterns that are read at a time.
CHUNK = 64


@dataclass(frozen=True)
class ScanPass:
    """Results of a pass over a scan, DC in the middle of far-field patterns.

    Attributes:
        totals: (N,) counts of each view on good pixels.
        centres: (N, 2) centre of mass of each pattern, y x, in detector pixels from the middle.
        thumbnails: (N, a, b) float32, square roots of patterns with pixels summed to at most SIDE a side.
        speckles: (N, c) float32, modulus of each pattern's Fourier transform over its total, at short lags.
    """

    totals: np.ndarray
    centres: np.ndarray
    thumbnails: np.ndarray
    speckles: np.ndarray

    @property
    def shapes(self) -> np.ndarray:
        """Thumbnails, each of norm 1, (N, a, b) float64."""
        thumbnails = self.thumbnails.astype(np.float64)
        return np.asarray(thumbnails / (np.linalg.norm(thumbnails, axis=(1, 2), keepdims=True) + 1e-30))


def read_upright(scan: Measurement, views: np.ndarray) -> np.ndarray:
    """Return patterns (n, h, w) float64 with DC in the middle, 0 where there are no data."""
    stored = scan.patterns.read(views)
    y = np.where(scan.mask & (stored >= 0), stored, 0).astype(np.float64)
    return np.fft.fftshift(y, axes=(1, 2)) if scan.geometry.propagation == "far_field" else y


def bin_patterns(patterns: np.ndarray, most: int) -> tuple[np.ndarray, tuple[int, int]]:
    """Return patterns (n, h, w) summed to at most so many pixels a side, what is over at the rims left out.

    Returns:
        (n, a, b), and the detector pixels that were summed along y and along x.
    """
    n, h, w = patterns.shape
    rows, columns = -(-h // most), -(-w // most)
    a, b = h // rows, w // columns
    top, left = (h - a * rows) // 2, (w - b * columns) // 2
    inner = patterns[:, top : top + a * rows, left : left + b * columns]
    return inner.reshape(n, a, rows, b, columns).sum(axis=(2, 4)), (rows, columns)


def thumbnail_pixels(window: tuple[int, int]) -> np.ndarray:
    """Return the detector pixels that a thumbnail's pixel is wide, (2,) y x."""
    return np.array([-(-n // SIDE) for n in window], float)


def scan_pass(scan: Measurement, views: int | None = None) -> ScanPass:
    """Return what a pass over the first views gathers, or over all; pixels without data count as zero."""
    h, w = scan.window
    rows, columns = (np.arange(n) - n // 2 for n in (h, w))
    lags = [min(n // 2, SIDE // 2) for n in (h, w)]
    parts: list[tuple[np.ndarray, ...]] = []
    most = scan.views if views is None else min(views, scan.views)
    for start in range(0, most, CHUNK):
        y = read_upright(scan, np.arange(start, min(start + CHUNK, most)))
        totals = y.sum(axis=(1, 2))
        scale = np.maximum(totals, 1e-30)
        centres = np.stack([y.sum(axis=2) @ rows / scale, y.sum(axis=1) @ columns / scale], axis=1)
        binned, _ = bin_patterns(y, SIDE)
        lag = np.abs(np.fft.rfft2(y))[:, : lags[0], : lags[1]] / scale[:, None, None]
        parts.append((totals, centres, np.sqrt(binned).astype(np.float32), lag.reshape(len(y), -1).astype(np.float32)))
    return ScanPass(*(np.concatenate(column) for column in zip(*parts, strict=True)))
