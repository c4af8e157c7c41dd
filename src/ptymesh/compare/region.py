"""Where the object was seen.

N       views
M       incoherent probe modes
H, W    object pixels
h, w    window pixels
"""

from __future__ import annotations

import numpy as np


def illumination(
    shape: tuple[int, int], probe: np.ndarray, positions_px: np.ndarray, weights: np.ndarray | None = None
) -> np.ndarray:
    """Counts that fell on each object pixel, sum_j w_j^2 sum_m |P_m(r - p_j)|^2 at the nearest whole pixel.

    Args:
        shape: (H, W) of the object.
        probe: (M, h, w) complex.
        positions_px: (N, 2) y x, object pixel under the window's top-left corner.
        weights: (N, 1) or (N,) amplitude of the incident beam per view; None: 1.

    Returns (H, W) float64.
    """
    from scipy.signal import oaconvolve  # here, for it takes longer to import than to use

    height, width = probe.shape[-2:]
    corners = np.rint(positions_px).astype(np.int64)
    low = np.minimum(corners.min(axis=0), 0)
    high = np.maximum(corners.max(axis=0) + 1, np.array(shape) - (height, width) + 1)
    views = np.zeros(tuple(high - low))
    power = 1.0 if weights is None else np.abs(np.asarray(weights).reshape(len(corners), -1)[:, 0]) ** 2
    np.add.at(views, tuple((corners - low).T), power)
    intensity = (np.abs(probe.astype(np.complex128)) ** 2).sum(axis=0)
    whole = np.maximum(oaconvolve(views, intensity, mode="full"), 0)
    return whole[-low[0] : -low[0] + shape[0], -low[1] : -low[1] + shape[1]]


def illuminated(light: np.ndarray, fraction: float = 0.1) -> np.ndarray:
    """(H, W) bool: pixels of an `illumination` above this fraction of its maximum."""
    return light > fraction * light.max()
