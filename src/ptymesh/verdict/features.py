"""Map from positions to moves of the patterns' features, to a fraction of a degree (idea: io/prepare/shadows.py).

s       move of a pattern's features from one view to the next, s = A (p_j - p_i), detector pixels
p       position of a view, object pixels
k       pairs of views

A is found on a grid of rotations first, then by Newton steps of the mean correlation C(A) over all pairs. Behind a lens
with any aberrations A is symmetric, as the spread of rays is the gradient of a phase: its antisymmetric part is a
rotation between scan and detector, which no beam can explain, and which a fit may well hide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptymesh.io.prepare.shadows import Shadows, find_shadows, neighbour_pairs, pattern_waves
from ptymesh.measurement import Measurement, central_views
from ptymesh.verdict.scan_pass import bin_patterns, read_upright

#: Views that are looked at, those in the middle of the scan; numbers in their patterns, at most; fewest views.
MOST_VIEWS, MOST_NUMBERS, LEAST_VIEWS = 160, 1 << 23, 16
#: Side to which patterns are binned, at most.
SIDE = 96
#: Detector pixels per object pixel that are tried; angles (degrees).
SIZES, ANGLES = np.geomspace(0.3, 8, 30), np.arange(-180, 180, 10)
#: Distance of two views that are not at the same place, object pixels.
LEAST_STEP = 0.3
#: Standard deviation, in detector pixels, by which correlations are smoothed for Newton steps; their number, at most.
SMOOTH_PX, NEWTON_STEPS = 0.7, 12


@dataclass(frozen=True)
class FeatureMap:
    """The map A of a scan.

    Attributes:
        shadows: the best map on the grid.
        rotation_deg: of A, -90 to 90, as half a turn is a matter of the defocus' sign; of mirrored maps beyond the
            exchange of the axes.
        error_deg: its standard error, by the scatter of the pairs.
        stretch: (A_yy - A_xx) / (A_yy + A_xx), which an astigmatic beam makes, too.
    """

    shadows: Shadows
    rotation_deg: float
    error_deg: float
    stretch: float


def find_feature_map(scan: Measurement, positions: np.ndarray) -> FeatureMap | None:
    """Return how features move in the middle of a scan; None where that cannot be told.

    Args:
        scan: whose patterns are read.
        positions: (N, 2) object pixels, as the scan has them.
    """
    h, w = scan.window
    most = min(MOST_VIEWS, max(LEAST_VIEWS, MOST_NUMBERS // (h * w)))
    views = central_views(positions, most)
    pairs = neighbour_pairs(positions[views], LEAST_STEP)
    patterns, bins = bin_patterns(read_upright(scan, views), SIDE)
    pixels = np.array(bins, float)
    if bins[0] != bins[1]:
        return None
    shadows = find_shadows(patterns, positions[views], pairs, SIZES / pixels[0], ANGLES)
    if shadows is None or not shadows.is_clear:
        return None
    steps = positions[views][pairs[:, 1]] - positions[views][pairs[:, 0]]
    waves = pattern_waves(patterns)
    cross = waves[pairs[:, 0]].conj() * waves[pairs[:, 1]]
    A, covariance = _refined(cross, patterns.shape[1], patterns.shape[2], steps, _matrix(shadows))
    mirror = np.array([[0.0, 1.0], [1.0, 0.0]]) if shadows.mirrored else np.eye(2)
    upright = A @ mirror
    angle = float(np.arctan2(upright[1, 0] - upright[0, 1], upright[0, 0] + upright[1, 1]))
    c, s = np.cos(angle), np.sin(angle)
    turned = np.array([[c, s], [-s, c]]) @ upright
    trace = turned[0, 0] + turned[1, 1]
    slope = np.array([[-s, -c], [c, -s]]) @ mirror / trace  # d angle / d A
    error = float(np.sqrt(max(0.0, slope.ravel() @ covariance @ slope.ravel())))
    degrees = float(np.rad2deg(angle))
    degrees = (degrees + 90) % 180 - 90
    return FeatureMap(shadows, degrees, float(np.rad2deg(error)), float((turned[0, 0] - turned[1, 1]) / trace))


def _matrix(shadows: Shadows) -> np.ndarray:
    """Return A (2, 2) of the best map on the grid."""
    c, s = np.cos(np.deg2rad(shadows.angle_deg)), np.sin(np.deg2rad(shadows.angle_deg))
    turn = shadows.size * np.array([[c, -s], [s, c]])
    return turn[:, ::-1] if shadows.mirrored else turn


def _refined(cross: np.ndarray, h: int, w: int, steps: np.ndarray, A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return A (2, 2) at the maximum of C(A) near the given one, and the covariance (4, 4) of its numbers.

    Args:
        cross: (k, h, w // 2 + 1) cross spectra of the pairs' patterns.
        h: rows of a pattern.
        w: columns of a pattern.
        steps: (k, 2) p_j - p_i.
        A: the start.
    """
    v, u = np.fft.fftfreq(h), np.fft.rfftfreq(w)
    twice = np.where((u == 0) | (u == 0.5), 1.0, 2.0) / (h * w)
    soft = np.exp(-2 * (np.pi * SMOOTH_PX) ** 2 * (v[:, None] ** 2 + u**2)) * twice
    weighted = cross * soft
    reach = float(np.linalg.norm(steps, axis=1).max())
    for _ in range(NEWTON_STEPS):
        gradients, hessian = _derivatives(weighted, v, u, steps, A)
        sizes, axes = np.linalg.eigh(hessian)
        sizes = -np.maximum(np.abs(sizes), 1e-6 * np.abs(sizes).max() + 1e-300)  # uphill, whatever the curvature
        change = (-axes @ ((axes.T @ gradients.mean(axis=0)) / sizes)).reshape(2, 2)
        length = float(np.linalg.norm(change)) * reach
        A = A + change * min(1.0, 1.0 / max(length, 1e-12))  # by a detector pixel at most
        if length < 1e-4:
            break
    gradients, hessian = _derivatives(weighted, v, u, steps, A)
    inverse = np.linalg.pinv(hessian)
    return A, inverse @ (gradients.T @ gradients / len(gradients) ** 2) @ inverse


def _derivatives(
    weighted: np.ndarray, v: np.ndarray, u: np.ndarray, steps: np.ndarray, A: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return d C_k / d A (k, 4) of each pair, and the second derivatives (4, 4) of their mean."""
    moves = steps @ A.T
    down, along = np.exp(2j * np.pi * moves[:, :1] * v), np.exp(2j * np.pi * moves[:, 1:] * u)
    iv, iu = 2j * np.pi * v, 2j * np.pi * u
    rows = weighted @ np.stack([along, along * iu, along * iu**2], axis=2)  # (k, h, 3)
    columns = np.stack([down, down * iv, down * iv**2], axis=1)  # (k, 3, h)
    derivatives = (columns @ rows).real  # (k, 3, 3): derivatives by the move along y, along x
    first = np.stack([derivatives[:, 1, 0], derivatives[:, 0, 1]], axis=1)
    second = np.stack(
        [derivatives[:, 2, 0], derivatives[:, 1, 1], derivatives[:, 1, 1], derivatives[:, 0, 2]], axis=1
    ).reshape(-1, 2, 2)
    gradients = np.einsum("ka,kb->kab", first, steps).reshape(-1, 4)
    hessian = np.einsum("kac,kb,kd->abcd", second, steps, steps).reshape(4, 4) / len(steps)
    return gradients, hessian
