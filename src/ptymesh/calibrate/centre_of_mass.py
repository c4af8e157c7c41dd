"""Rotation and transposition of the detector from the curl of the centres of mass.

R, C    rows and columns of the scan grid
c       (R, C, 2) centres of mass, y x: the mean gradient of the phase over 2 pi, in the detector's axes
q       (R, C, 2) frequencies of the scan, in cycles per metre

With the detector's axes exchanged or not, and the scan rotated by theta (`positions.rotation_deg`), R^T c is a gradient
in the scan's axes: its transform lies along q. The part across q has a power that is a quadratic form of (cos, sin) of
theta; its smallest eigenvalue is what no rotation explains. A half turn more changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import atan2, degrees, radians

import numpy as np
from scipy.signal.windows import tukey

from ptymesh.calibrate.scan_grid import ScanGrid

#: Highest frequency that is used, over the highest of the scan: beyond it noise is most of what there is.
SMOOTH = 0.5
#: Share of rows and columns at either end over which images fade out before they are transformed.
FADED = 0.15


@dataclass(frozen=True)
class CurlFit:
    """Orientation by the curl, modulo a half turn.

    Attributes:
        transpose: whether the detector's axes are exchanged.
        rotation_deg: of the scan, -90 to 90.
        curl: share of the power that is no gradient then.
        other_curl: the least share with the other transposition.
    """

    transpose: bool
    rotation_deg: float
    curl: float
    other_curl: float


def frequencies(grid: ScanGrid) -> np.ndarray:
    """Return the frequencies (R, C, 2), y x, of a grid in cycles per metre, DC at the corner."""
    axes = [np.fft.fftfreq(n, d) for n, d in zip(grid.shape, grid.step_m, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)


def tapered(images: np.ndarray) -> np.ndarray:
    """Return images (R, C, ...) less their means, faded out in the outermost parts (`FADED`) of rows and columns."""
    rows, columns = (tukey(n + 2, 2 * FADED)[1:-1] for n in images.shape[:2])
    window = (rows[:, None] * columns).reshape(*images.shape[:2], *(1,) * (images.ndim - 2))
    mean = (images * window).sum(axis=(0, 1)) / window.sum()
    return np.asarray((images - mean) * window)


def turned(c: np.ndarray, transpose: bool, rotation_deg: float) -> np.ndarray:
    """Return vectors (..., 2), y x, of the detector in the scan's axes, R^T c.

    Args:
        c: in the detector's axes.
        transpose: whether these are exchanged first.
        rotation_deg: of the scan.
    """
    y, x = (c[..., 1], c[..., 0]) if transpose else (c[..., 0], c[..., 1])
    cosine, sine = np.cos(radians(rotation_deg)), np.sin(radians(rotation_deg))
    return np.stack([cosine * y + sine * x, cosine * x - sine * y], axis=-1)


def fit_curl(c: np.ndarray, grid: ScanGrid) -> CurlFit:
    """Return the orientation in which centres of mass (R, C, 2) are closest to a gradient."""
    q = frequencies(grid)
    size = np.hypot(q[..., 0], q[..., 1])
    used = (size > 0) & (size < SMOOTH * 0.5 / max(grid.step_m))
    across = np.stack([-q[..., 1], q[..., 0]], axis=-1)[used] / size[used][:, None]
    waves = np.fft.fft2(tapered(c), axes=(0, 1))[used]
    power = max(float((np.abs(waves) ** 2).sum()), 1e-300)
    fits = []
    for transpose in (False, True):
        parts = [(turned(waves, transpose, angle) * across).sum(axis=-1) for angle in (0.0, 90.0)]
        form = np.array([[(a.conj() * b).real.sum() for b in parts] for a in parts]) / power
        values, vectors = np.linalg.eigh(form)
        angle = degrees(atan2(vectors[1, 0], vectors[0, 0]))
        fits.append((float(values[0]), transpose, (angle + 90) % 180 - 90))
    (curl, transpose, angle), (other, *_) = sorted(fits)
    return CurlFit(transpose, angle, curl, other)


def integrated(c: np.ndarray, grid: ScanGrid) -> np.ndarray:
    """Return the phase (R, C) in rad, without its mean ramp, whose gradient over 2 pi is closest to c (iCoM).

    Args:
        c: (R, C, 2) in cycles per metre, y x in the scan's axes.
        grid: of the scan.
    """
    # mirrored at its borders, where the image needs not be periodic
    rows, columns = grid.shape
    centred = c - c.mean(axis=(0, 1))
    wide = np.empty((2 * rows, 2 * columns, 2))
    wide[:rows, :columns] = centred
    wide[rows:, :columns] = centred[::-1] * (-1, 1)
    wide[:, columns:] = wide[:, :columns][:, ::-1] * (1, -1)
    axes = [np.fft.fftfreq(2 * n, d) for n, d in zip(grid.shape, grid.step_m, strict=True)]
    q = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    square = (q**2).sum(axis=-1)
    square[0, 0] = np.inf
    phase = np.fft.ifft2(-1j * (q * np.fft.fft2(wide, axes=(0, 1))).sum(axis=-1) / square).real
    return np.asarray(phase[:rows, :columns])
