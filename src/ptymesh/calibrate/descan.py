"""Place of the disc in each view: a smooth field over the scan, fitted to the discs of its blocks.

B       blocks of the scan
N       views
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from ptymesh.calibrate.disc import Disc, shifted_centre
from ptymesh.calibrate.pattern_sums import PatternSums

#: Powers (y, x) of the polynomials of degree 0, 1 and 2.
POWERS = (((0, 0),), ((0, 0), (1, 0), (0, 1)), ((0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (0, 2)))


@dataclass(frozen=True)
class DescanField:
    """Centre of the disc over the scan, in detector pixels.

    Attributes:
        places: (B, 2) mean positions of the blocks, as shares of the scan.
        measured: (B, 2) centres of their discs, y x, less that of the mean pattern.
        smooth: (B, 2) the polynomial there.
        centres: (N, 2) smooth centre of each view.
        degree: of the polynomial, chosen by Bayes' information criterion; 0 where the disc stays.
        wander_px: length of the way between the centres that lie furthest apart, along y and x together.
        scatter_px: standard deviation of the blocks' discs about the polynomial.
    """

    places: np.ndarray
    measured: np.ndarray
    smooth: np.ndarray
    centres: np.ndarray
    degree: int
    wander_px: float
    scatter_px: float


def fit_descan(sums: PatternSums, disc: Disc, mask: np.ndarray, places: np.ndarray) -> DescanField:
    """Return the smooth field of the disc's centres.

    Args:
        sums: of the patterns.
        disc: of the mean pattern.
        mask: (h, w) bool, True where the detector is good.
        places: (N, 2) positions of the views as shares of the scan.
    """
    offsets = np.array([shifted_centre(disc, block, mask) for block in sums.blocks]) - disc.centre
    n = 2 * len(offsets)
    best, least = 0, np.inf
    fits = []
    for degree, powers in enumerate(POWERS):
        if len(offsets) <= 2 * len(powers) and degree:
            break
        solution = np.linalg.lstsq(_monomials(sums.places, powers), offsets, rcond=None)[0]
        residual = float(((offsets - _monomials(sums.places, powers) @ solution) ** 2).sum())
        fits.append((solution, residual, powers))
        criterion = n * np.log(max(residual, 1e-12) / n) + 2 * len(powers) * np.log(n)
        if criterion < least:
            best, least = degree, criterion
    solution, residual, powers = fits[best]
    field = _monomials(places, powers) @ solution
    wander = float(np.hypot(*np.ptp(field, axis=0)))
    scatter = float(np.sqrt(residual / max(1, n - 2 * len(powers))))
    return DescanField(
        sums.places, offsets, _monomials(sums.places, powers) @ solution, disc.centre + field, best, wander, scatter
    )


def aligned_mean(sums: PatternSums, descan: DescanField) -> np.ndarray:
    """Return the mean pattern (h, w) whose disc has been moved back in each block of the scan."""
    moved = [
        ndimage.shift(block, -move, order=1, mode="nearest")
        for block, move in zip(sums.blocks, descan.smooth, strict=True)
    ]
    return np.asarray(np.mean(moved, axis=0))


def _monomials(places: np.ndarray, powers: tuple[tuple[int, int], ...]) -> np.ndarray:
    """Return the monomials (n, k) of places (n, 2) in the scan, about its middle."""
    centred = places - 0.5
    return np.stack([centred[:, 0] ** a * centred[:, 1] ** b for a, b in powers], axis=1)
