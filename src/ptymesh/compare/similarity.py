"""Structural similarity of the phases of two aligned objects.

SSIM, of local means m, variances v and covariance c under a Gaussian of 1.5 pixels, with the range R of the reference:

    SSIM = (2 m_1 m_2 + C_1) (2 c + C_2) / ((m_1^2 + m_2^2 + C_1) (v_1 + v_2 + C_2))
    C_1  = (0.01 R)^2,  C_2 = (0.03 R)^2

Source: Wang et al., IEEE Trans. Image Process. 13, 600 (2004).
"""

from __future__ import annotations

import numpy as np
from scipy import ndimage
from skimage.metrics import structural_similarity

from ptymesh.physics.phase import unwrapped_phase

#: Standard deviation of the local window (px), and the pixels to either side that it reaches.
SIGMA, REACH = 1.5, 5


def phase_similarity(aligned: np.ndarray, reference: np.ndarray, region: np.ndarray) -> float | None:
    """Return the mean structural similarity of two phases over the pixels whose local window lies within a region.

    The phase of the reference is unwrapped and loses its ramp; the other is that and the difference within a turn.

    Args:
        aligned: (H, W) complex, aligned with the reference.
        reference: (H, W) complex.
        region: (H, W) bool.

    Returns:
        A number up to 1; None where no window lies within the region, or the phase of the reference is flat.
    """
    inner = ndimage.binary_erosion(region, np.ones((2 * REACH + 1, 2 * REACH + 1), dtype=bool))
    if not inner.any():
        return None
    rows, columns = (np.flatnonzero(region.any(axis=axis)) for axis in (1, 0))
    box = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    phase = unwrapped_phase(reference[box], region[box])
    extent = float(np.nanmax(phase) - np.nanmin(phase))
    if extent < 1e-9:
        return None
    other = phase + np.angle(aligned[box] * np.conj(reference[box]))
    _, local = structural_similarity(
        np.nan_to_num(other), np.nan_to_num(phase), data_range=extent, gaussian_weights=True, sigma=SIGMA,
        use_sample_covariance=False, full=True,
    )  # fmt: skip
    return float(local[inner[box]].mean())
