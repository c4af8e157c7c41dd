"""Illumination of the object.

N       views
M       incoherent probe modes
H, W    object pixels
h, w    window pixels
"""

from __future__ import annotations

from typing import Protocol

import numpy as np


class WithProbes(Protocol):
    """The arrays of a result by which light falls on its object (`ptymesh.io.results.Result`)."""

    object: np.ndarray
    probe: np.ndarray
    positions_px: np.ndarray
    weights: np.ndarray | None
    scan_index: np.ndarray | None
    scan_probes: np.ndarray | None


def illumination(
    shape: tuple[int, int], probe: np.ndarray, positions_px: np.ndarray, weights: np.ndarray | None = None
) -> np.ndarray:
    """Return the counts on each object pixel, sum_j w_j^2 sum_m |P_m(r - p_j)|^2 at the nearest whole pixel.

    Args:
        shape: (H, W) of the object.
        probe: (M, h, w) complex.
        positions_px: (N, 2) y x, object pixel under the window's top-left corner.
        weights: (N, 1 + K) or (N,), amplitude of the incident beam per view first; None: 1.

    Returns:
        (H, W) float64.
    """
    height, width = probe.shape[-2:]
    corners = np.rint(positions_px).astype(np.int64)
    power = np.ones(len(corners)) if weights is None else np.abs(weights.reshape(len(corners), -1)[:, 0]) ** 2
    intensity = (np.abs(probe.astype(np.complex128)) ** 2).sum(axis=0)
    light = np.zeros(shape)
    for (y, x), of_view in zip(corners, power, strict=True):
        top, left = max(-y, 0), max(-x, 0)  # windows are cut off at the object's border
        covered = light[max(y, 0) : max(y + height, 0), max(x, 0) : max(x + width, 0)]
        covered += of_view * intensity[top : top + covered.shape[0], left : left + covered.shape[1]]
    return light


def illumination_of_result(result: WithProbes) -> np.ndarray:
    """Return the `illumination` of a result by the probe, or by that of each of its scans, (H, W) float64."""
    shape = result.object.shape[-2], result.object.shape[-1]
    if result.scan_probes is None or result.scan_index is None:
        return illumination(shape, result.probe, result.positions_px, result.weights)
    light = np.zeros(shape)
    for number, probe in enumerate(result.scan_probes):
        of_scan = result.scan_index == number
        weights = None if result.weights is None else result.weights[of_scan]
        light += illumination(shape, probe, result.positions_px[of_scan], weights)
    return light


def illuminated(light: np.ndarray, fraction: float = 0.1) -> np.ndarray:
    """Return the pixels (H, W) bool of an `illumination` above this fraction of its maximum."""
    return light > fraction * light.max()
