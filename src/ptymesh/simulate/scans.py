"""Scan patterns with a fixed number of views.

N       views
step    mean distance between neighbours (pixels): one view per step^2 of area when the density is even

Positions are (N, 2) float64, y x, in pixels, centred on zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from ptymesh.errors import BadInput
from ptymesh.models.scan_shift import UNITS, ScanShift

ScanPattern = Literal["fermat", "raster", "jitter"]


def scan(kind: ScanPattern, views: int, step_px: float, *, density_ratio: float = 1.0, seed: int = 0) -> np.ndarray:
    """Return the positions of a scan pattern.

    Args:
        kind: `fermat` (spiral clipped to a square), `raster` (rows, left to right), or `jitter` (a raster whose points
            move at random by up to half a step, which breaks its period).
        views: N.
        step_px: mean distance between neighbours.
        density_ratio: views per area at the right edge over those at the left edge; 1 is even. The area is unchanged.
        seed: of the jitter.

    Returns:
        (N, 2) float64, y x pixels, centred on zero.

    Raises:
        BadInput: no views, a step or ratio that is not positive.

    Source:
        Fermat spiral: Huang et al., Opt. Express 22, 12634 (2014).
    """
    for name, value in (("number of views", views), ("scan step in pixels", step_px), ("density ratio", density_ratio)):
        if not (math.isfinite(value) and value > 0):
            raise BadInput(f"The {name} is {value}; give a positive number.")
    if kind == "fermat":
        positions = _fermat(views) * step_px
    else:
        columns = math.ceil(math.sqrt(views))
        positions = step_px * np.stack(np.divmod(np.arange(views), columns), axis=1).astype(np.float64)
        if kind == "jitter":
            positions += step_px * np.random.default_rng([seed, 1]).uniform(-0.5, 0.5, positions.shape)
    if density_ratio != 1 and views > 1:
        positions[:, 1] = _crowded(positions[:, 1], density_ratio)
    return positions - (positions.min(axis=0) + positions.max(axis=0)) / 2


def place_scans(positions: Sequence[np.ndarray], moves: Sequence[Sequence[float]]) -> list[np.ndarray]:
    """Return where the scans of one object lie, (N, 2) each, from where their positions say.

    Args:
        positions: (N, 2) pixels of each scan.
        moves: shift (y, x) in pixels, rotation (rad) and scale about its middle of each scan but the first, as
            `models.scan_shift` refines them.
    """
    if not moves:
        return list(positions)
    piece, numbers = ScanShift(scans=len(positions), terms=list(UNITS)), torch.tensor(moves, dtype=torch.float64)
    nominal, counts = torch.from_numpy(np.concatenate(positions)), [len(one) for one in positions]
    index = torch.arange(len(positions)).repeat_interleave(torch.tensor(counts))
    placed = piece.place_scans(nominal, nominal, index, torch.zeros_like(numbers), numbers)
    return [one.numpy() for one in placed.split(counts)]


def _fermat(views: int) -> np.ndarray:
    """Return the N points of the spiral nearest to the centre in the maximum norm: a square field, in spiral order."""
    index = np.arange(2 * views + 8)
    radius, angle = np.sqrt((index + 0.5) / np.pi), index * np.pi * (3 - math.sqrt(5))
    points = np.stack((radius * np.sin(angle), radius * np.cos(angle)), axis=1)
    innermost = np.argsort(np.abs(points).max(axis=1), kind="stable")[:views]
    return np.asarray(points[np.sort(innermost)])


def _crowded(x: np.ndarray, ratio: float) -> np.ndarray:
    """Return x moved so that an even density becomes one rising linearly from 1 to `ratio` on the same interval."""
    low, span = x.min(), np.ptp(x)
    u = (x - low) / (span or 1.0)
    # inverse of the cumulative density u = (v + (ratio - 1) v^2 / 2) / (1 + (ratio - 1) / 2)
    v = (np.sqrt(1 + (ratio**2 - 1) * u) - 1) / (ratio - 1)
    return np.asarray(low + span * v)
