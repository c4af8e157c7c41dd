"""How far each unknown has moved in an epoch.

a, b    an unknown before and after

object, probe, opr   sqrt(1 - |<a, b>|^2 / (<a, a> <b, b>)), the sine of the angle between them: relative, and blind to
                     the factor that object and probe may trade
positions            root mean square of the moves, in pixels
others               |b - a| / |b|

Of an object, pixels of a fixed draw under the scan are looked at, as many as MOST: every rank learns these and works
out the same number from them, so that it does not depend on ranks or layout, and costs nothing beside an epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ptymesh.estimate import Estimate
from ptymesh.problem import Problem

#: Values of an unknown that are looked at, at most; torch sums so many with one thread.
MOST = 1 << 13
#: Irrational shares whose multiples fill a window evenly (Roberts' R2 sequence).
SHARES = 0.7548776662466927, 0.5698402909980532

#: An unknown, as every rank has it or learns it; arrays are on the host.
Snapshot = dict[str, Tensor]


def snapshot(problem: Problem, estimate: Estimate) -> Snapshot:
    """The unknowns as they are now, thinned out. Collective, between epochs, where all ranks have all positions."""
    found = {
        "object": _of_object(problem, estimate),
        "probe": _thinned(estimate.probe),
        "opr": _thinned(estimate.opr),
        "positions": estimate.positions.detach().cpu().clone(),
        "weights": _thinned(estimate.weights),
        "background": _thinned(estimate.background),
    }
    found["slices"] = torch.tensor([estimate.slice_spacing_m, *estimate.tilt_rad], dtype=torch.float64)
    return found


def changes(before: Snapshot, after: Snapshot) -> dict[str, float]:
    """The change of each unknown, under the names of the history's columns; NaN where there is no such snapshot."""
    found = {}
    for name, (column, measure) in CHANGES.items():
        a, b = before.get(name), after.get(name)
        known = a is not None and b is not None and a.shape == b.shape
        found[column] = measure(a, b) if known else math.nan  # type: ignore[arg-type]
    return found


def _of_object(problem: Problem, estimate: Estimate) -> Tensor:
    """Pixels of the object in the middle of views' windows, where these stood at the start of the stage, (n,)."""
    slices, (height, width) = len(estimate.object), estimate.extent
    window = np.array(estimate.window)
    n = min(MOST, slices * height * width)
    k = np.arange(n)
    inside = np.stack([np.modf((k + 0.5) * share)[0] for share in SHARES], axis=1)
    corners = estimate.nominal.detach().cpu().numpy()[k % len(estimate.nominal)]
    pixels = np.floor(corners + window / 4 + inside * window / 2).astype(np.int64)
    y, x = (np.clip(pixels[:, axis], 0, side - 1) for axis, side in enumerate((height, width)))
    tile = problem.layout.tile(estimate)
    own = (y >= tile.top) & (y < tile.bottom) & (x >= tile.left) & (x < tile.right)
    top, left = estimate.corner
    places = (k % slices * estimate.object.shape[-2] + y - top) * estimate.object.shape[-1] + x - left
    values = torch.zeros(n, dtype=estimate.object.dtype, device=estimate.object.device)
    rows = problem.sent(np.flatnonzero(own))
    values[rows] = estimate.object.reshape(-1)[problem.sent(places[own])]
    (gathered,) = problem.world.sum(torch.view_as_real(values))
    return torch.view_as_complex(gathered).cpu()


def _thinned(array: Tensor) -> Tensor:
    """At most MOST of its values, evenly, (n,)."""
    flat = array.detach().reshape(-1)
    return flat[:: max(1, -(-len(flat) // MOST))].cpu().clone()


def _angle(a: Tensor, b: Tensor) -> float:
    a, b = a.to(torch.complex128), b.to(torch.complex128)
    powers = _sum(_squares(a)) * _sum(_squares(b))
    if powers == 0:
        return 0.0
    real = _sum(a.real * b.real + a.imag * b.imag)
    imaginary = _sum(a.real * b.imag - a.imag * b.real)
    return _root(1 - (real**2 + imaginary**2) / powers)


def _relative(a: Tensor, b: Tensor) -> float:
    whole, moved = _sum(b.to(torch.float64) ** 2), _sum((b.to(torch.float64) - a) ** 2)
    return float(moved > 0) if whole == 0 else _root(moved / whole)


def _distance(a: Tensor, b: Tensor) -> float:
    return _root(_sum((b - a) ** 2) / max(1, len(a)))


def _squares(x: Tensor) -> Tensor:
    return x.real**2 + x.imag**2


def _root(x: float) -> float:
    return math.sqrt(x) if x > 0 else x * 0  # NaN stays NaN


def _sum(terms: Tensor) -> float:
    """Of so few terms, by one thread and in their order."""
    return float(terms.sum())


#: Unknown -> column of the history, and how its change is measured.
CHANGES: dict[str, tuple[str, Callable[[Tensor, Tensor], float]]] = {
    "object": ("change_object", _angle),
    "probe": ("change_probe", _angle),
    "opr": ("change_opr", _angle),
    "positions": ("change_positions_px", _distance),
    "weights": ("change_weights", _relative),
    "background": ("change_background", _relative),
    "slices": ("change_slices", _relative),
}
COLUMNS = tuple(column for column, _ in CHANGES.values())
