"""Margins and Gaussian filters of the object, which layout and ranks do not change.

Everything is computed by sums and products of real numbers, in an order that does not depend on the array's size.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.problem import Problem


def with_neighbours(
    problem: Problem, estimate: Estimate, reach: int, change: Callable[[Tensor, tuple[int, int]], Tensor]
) -> Tensor:
    """Return the object after a change that needs pixels around each one. Collective.

    Args:
        problem: its layout knows who has these pixels.
        estimate: the unknowns.
        reach: pixels on each side that a pixel's value may depend on; there are none beyond the whole object.
        change: function of real planes (L, 2, H', W'), real and imaginary part, and of the (y, x) of their first pixel
            in the whole object, that returns as many.

    Returns:
        (L, H, W) complex, this rank's part.
    """
    padded, place = problem.layout.with_margin(estimate.object, estimate, reach)
    top, left = (c - w for c, w in zip(estimate.corner, place.corner, strict=True))
    height, width = estimate.object.shape[-2:]
    planes = torch.view_as_real(padded).permute(0, 3, 1, 2).contiguous()
    changed = change(planes, place.corner)[..., top : top + height, left : left + width]
    return torch.view_as_complex(changed.permute(0, 2, 3, 1).contiguous())


def gaussian_reach(sigma_px: float) -> int:
    """Return by how many pixels a Gaussian reaches to each side: four standard deviations."""
    return max(1, math.ceil(4 * sigma_px))


def blurred(planes: Tensor, sigma_px: float) -> Tensor:
    """Return real planes (..., H, W) filtered by a Gaussian of finite length, edges repeated."""
    reach = gaussian_reach(sigma_px)
    weights = [math.exp(-0.5 * (r / sigma_px) ** 2) for r in range(reach + 1)]
    total = weights[0] + 2 * sum(weights[1:])
    for axis in (-2, -1):
        n = planes.shape[axis]
        index = torch.arange(-reach, n + reach, device=planes.device).clamp(0, n - 1)
        padded = planes.index_select(axis, index)
        out = planes * (weights[0] / total)
        for r in range(1, reach + 1):
            pair = padded.narrow(axis, reach - r, n) + padded.narrow(axis, reach + r, n)
            out = out + pair * (weights[r] / total)
        planes = out
    return planes


def smoothed_over_views(problem: Problem, values: Tensor, sigma: float, places: Tensor | None = None) -> Tensor:
    """Return values (N, ...) of views as means over those taken before and after, or around, each scan by itself.

    Args:
        problem: its held-out views count for no other one.
        values: (N, ...) real or complex, in the order in which the views were taken.
        sigma: standard deviation of the Gaussian, in views, or in steps of the scan.
        places: (N, 2) positions, for means over the views around each; None for those before and after.
    """
    parts = torch.view_as_real(values) if values.is_complex() else values
    rows, weights = parts.reshape(len(parts), -1), parts.new_zeros(len(parts))
    weights[torch.from_numpy(problem.training).to(weights.device)] = 1
    index = torch.zeros(len(rows)) if problem.scan_index is None else torch.from_numpy(problem.scan_index)
    out = torch.empty_like(rows)
    for scan in index.unique():
        of_scan = (index == scan).to(rows.device)
        of_this_scan = rows[of_scan], weights[of_scan]
        out[of_scan] = (
            smoothed_in_time(*of_this_scan, sigma)
            if places is None
            else smoothed_in_plane(*of_this_scan, places[of_scan], sigma)
        )
    out = out.view(parts.shape)
    return torch.view_as_complex(out) if values.is_complex() else out


def smoothed_in_time(rows: Tensor, weights: Tensor, sigma: float) -> Tensor:
    """Return the means of rows over neighbours in time, weighted by a Gaussian; as they are where none is known.

    Args:
        rows: (N, K) real, in the order in which the views were taken.
        weights: (N,) 1 for views whose rows count, 0 for others.
        sigma: standard deviation of the Gaussian, in views.
    """
    total, weight = torch.zeros_like(rows), torch.zeros_like(weights)
    count = len(rows)
    reach = min(count - 1, gaussian_reach(sigma))
    for step in range(-reach, reach + 1):
        factor = math.exp(-0.5 * (step / sigma) ** 2)
        target, source = slice(max(0, -step), count - max(0, step)), slice(max(0, step), count - max(0, -step))
        total[target] += factor * weights[source, None] * rows[source]
        weight[target] += factor * weights[source]
    return torch.where(weight[:, None] > 0, total / weight[:, None].clamp(min=torch.finfo(weight.dtype).tiny), rows)


def smoothed_in_plane(rows: Tensor, weights: Tensor, places: Tensor, sigma: float) -> Tensor:
    """Return the means of rows over neighbours in the plane, weighted by a Gaussian; as they are where none is known.

    Args:
        rows: (N, K) real.
        weights: (N,) 1 for views whose rows count, 0 for others.
        places: (N, 2) positions; each counts at the nearest point of a lattice of their median distance.
        sigma: standard deviation of the Gaussian, in these distances.
    """
    at = places.to("cpu", torch.float64).numpy()
    distinct, extent = np.unique(at, axis=0), np.ptp(at, axis=0)
    if len(distinct) == 1:
        distinct = np.vstack((distinct, distinct + 1))
    step = float(np.median(cKDTree(distinct).query(distinct, k=2)[0][:, 1]))
    step = max(step, float(extent.max()) / (4 * len(at)), math.sqrt(float(extent.prod()) / (4 * len(at))))
    cells = np.floor((at - at.min(axis=0)) / step + 0.5).astype(np.int64)
    height, width = (int(n) + 1 for n in cells.max(axis=0))
    flat = torch.from_numpy(cells[:, 0] * width + cells[:, 1])
    weighted = torch.cat((rows * weights[:, None], weights[:, None]), dim=1).to("cpu", torch.float64)
    # on the host, where sums have an order
    grid = torch.zeros(height * width, weighted.shape[1], dtype=torch.float64).index_add_(0, flat, weighted)
    edge = min(gaussian_reach(sigma), max(height, width))  # nothing lies beyond it
    planes = torch.nn.functional.pad(grid.T.reshape(-1, height, width), (edge,) * 4)
    smooth = blurred(planes, sigma)[:, edge:-edge, edge:-edge].reshape(len(planes), -1).T[flat].to(rows.device)
    means = smooth[:, :-1] / smooth[:, -1:].clamp(min=torch.finfo(smooth.dtype).tiny)
    return torch.where(smooth[:, -1:] > 0, means.to(rows.dtype), rows)


def check_several_slices(name: str, problem: Problem) -> None:
    """Raise BadInput if the object is a single slice."""
    if problem.model.slice_kernel is None:
        raise BadInput(f"constraints.{name} acts between slices, and there is one; set object.slices, or remove it.")
