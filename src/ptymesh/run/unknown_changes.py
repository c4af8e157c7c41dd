"""Distances that unknowns have moved in an epoch.

a, b    an unknown before and after

complex ones    sqrt(1 - |<a, b>|^2 / (<a, a> <b, b>)), the sine of the angle between them: relative, and blind to the
                factor that object and probe may trade
positions       root mean square of the moves, in pixels
others          |b - a| / |b|

Of an object and of tiled unknowns, pixels of a fixed draw under the scan are looked at, as many as MOST: every rank
learns these and works out the same number from them, so that it does not depend on ranks or layout, and costs nothing
beside an epoch.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ptymesh.distributed.devices import sent
from ptymesh.estimate import Estimate
from ptymesh.problem import Problem
from ptymesh.unknowns import DECLARED

#: Most values of an unknown that are compared; torch sums so many with one thread.
MOST = 1 << 13
#: Irrational shares whose multiples fill a window evenly (Roberts' R2 sequence).
SHARES = 0.7548776662466927, 0.5698402909980532

#: Values of each unknown, by name, on the host; the same on every rank.
UnknownSamples = dict[str, Tensor]

#: Name under which distance and tilt of the slices, which are numbers, are compared together.
SLICES = "slices"


def change_column(name: str) -> str:
    """Return the name of the history's column for the change of an unknown."""
    pixels = name in DECLARED and DECLARED[name].unit == "px"
    return f"change_{name}_px" if pixels else f"change_{name}"


#: Columns for the changes of unknowns that every history has.
COLUMNS = tuple(change_column(name) for name in (*DECLARED, SLICES))


def sample_unknowns(problem: Problem, estimate: Estimate) -> UnknownSamples:
    """Return the unknowns as they are now, thinned out.

    Collective, between epochs, where all ranks have all positions.
    """
    tiled = ("object", *(one.name for one in problem.model.tiled))
    samples = {name: _thin_out(estimate[name]) for name in estimate if name not in (*tiled, "positions")}
    samples |= {name: _sample_tiled(problem, estimate, estimate[name]) for name in tiled}
    samples["positions"] = estimate.positions.detach().cpu().clone()
    samples[SLICES] = torch.tensor([estimate.slice_spacing_m, *estimate.tilt_rad], dtype=torch.float64)
    return samples


def measure_changes(before: UnknownSamples, after: UnknownSamples) -> dict[str, float]:
    """Return the change of each unknown by the name of the history's column; NaN where there is no such snapshot."""
    changes = dict.fromkeys(COLUMNS, math.nan)
    for name, b in after.items():
        a = before.get(name)
        is_comparable = a is not None and a.shape == b.shape and a.is_complex() == b.is_complex()
        measure = _sine_of_angle if b.is_complex() else _root_mean_square if name == "positions" else _relative_change
        changes[change_column(name)] = measure(a, b) if is_comparable and a is not None else math.nan
    return changes


def _sample_tiled(problem: Problem, estimate: Estimate, part: Tensor) -> Tensor:
    """Return pixels (n,) in the middle of views' windows, where these stood at the start of the stage.

    Args:
        problem: the problem that is solved.
        estimate: the unknowns.
        part: (C, H, W), this rank's part of the object or of a tiled unknown.
    """
    slices, (height, width) = len(part), estimate.extent
    window = np.array(estimate.window)
    n = min(MOST, slices * height * width)
    k = np.arange(n)
    inside = np.stack([np.modf((k + 0.5) * share)[0] for share in SHARES], axis=1)
    corners = estimate.nominal.detach().cpu().numpy()[k % len(estimate.nominal)]
    pixels = np.floor(corners + window / 4 + inside * window / 2).astype(np.int64)
    y, x = (np.clip(pixels[:, axis], 0, side - 1) for axis, side in enumerate((height, width)))
    tile = problem.layout.tile(estimate)
    in_own_tile = (y >= tile.top) & (y < tile.bottom) & (x >= tile.left) & (x < tile.right)
    top, left = estimate.corner
    places = (k % slices * part.shape[-2] + y - top) * part.shape[-1] + x - left
    values = torch.zeros(n, dtype=part.dtype, device=part.device)
    rows = sent(np.flatnonzero(in_own_tile), problem.device)
    values[rows] = part.reshape(-1)[sent(places[in_own_tile], problem.device)]
    (gathered,) = problem.world.sum(torch.view_as_real(values) if part.is_complex() else values)
    return (torch.view_as_complex(gathered) if part.is_complex() else gathered).cpu()


def _thin_out(array: Tensor) -> Tensor:
    """Return at most MOST of an array's values, evenly spaced, as (n,)."""
    flat = array.detach().reshape(-1)
    return flat[:: max(1, -(-len(flat) // MOST))].cpu().clone()


def _sine_of_angle(a: Tensor, b: Tensor) -> float:
    """Return the sine of the angle between two complex arrays."""
    a, b = a.to(torch.complex128), b.to(torch.complex128)
    powers = _sum_in_order(_squared_magnitude(a)) * _sum_in_order(_squared_magnitude(b))
    if powers == 0:
        return 0.0
    real = _sum_in_order(a.real * b.real + a.imag * b.imag)
    imaginary = _sum_in_order(a.real * b.imag - a.imag * b.real)
    return _square_root(1 - (real**2 + imaginary**2) / powers)


def _relative_change(a: Tensor, b: Tensor) -> float:
    """Return |b - a| / |b|."""
    size, moved = _sum_in_order(b.to(torch.float64) ** 2), _sum_in_order((b.to(torch.float64) - a) ** 2)
    return float(moved > 0) if size == 0 else _square_root(moved / size)


def _root_mean_square(a: Tensor, b: Tensor) -> float:
    """Return the root mean square of the moves from positions a to b."""
    return _square_root(_sum_in_order((b - a) ** 2) / max(1, len(a)))


def _squared_magnitude(x: Tensor) -> Tensor:
    return x.real**2 + x.imag**2


def _square_root(x: float) -> float:
    return math.sqrt(x) if x > 0 else x * 0  # NaN stays NaN


def _sum_in_order(terms: Tensor) -> float:
    """Return the sum of terms so few that one thread adds them, in their order."""
    return float(terms.sum())
