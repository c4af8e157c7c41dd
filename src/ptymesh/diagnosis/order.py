"""Causes in the order of the views: positions that lag the patterns, rows that run the other way.

Patterns of neighbouring views are alike. Where positions are assigned to the wrong patterns, those of views that are
said to be neighbours are not, and another order makes them so. This does not depend on how well the model fits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree

from ptymesh.diagnosis.cause import Evidence, Remedy
from ptymesh.diagnosis.view import ResultView
from ptymesh.io.shadows import correlation_at, correlations

#: Frames by which positions may lag, at most; views that are looked at, at most; nearest views that are compared.
MAX_LAG, MAX_VIEWS, NEAREST = 12, 4000, 6
#: Fewest pairs that two orders must differ in, and fewest views.
MIN_PAIRS, MIN_VIEWS = 8, 25
#: Jump to the next row, in steps along it; fewest views of a row.
ROW_JUMP, MIN_ROW = 2.5, 3
#: So many times more alike are patterns of true neighbours than those of others.
MORE_ALIKE = 1.5
#: Detector pixels per object pixel by which features may move.
TRIED = np.concatenate([-np.geomspace(8, 0.3, 20), [0.0], np.geomspace(0.3, 8, 20)])


@dataclass(frozen=True)
class Order:
    """Which view's position belongs to each pattern: positions[source] for the patterns `use`."""

    source: np.ndarray
    use: np.ndarray


def find_lag(view: ResultView) -> Evidence | None:
    """Return the standard errors by which patterns of neighbours are more alike if positions lag by whole frames."""
    n = _views(view)
    if n < MIN_VIEWS:
        return None
    gains = {}
    for lag in [k for k in range(-MAX_LAG, MAX_LAG + 1) if k and abs(k) < n // 4]:
        use = np.arange(max(0, -lag), min(n, n - lag))
        gains[lag] = order_gain(view, Order(use + lag, use))
    if not gains:
        return None
    best = max(gains, key=lambda lag: gains[lag])
    frames = f"{abs(best)} frame{'s' * (abs(best) > 1)}"
    way = "behind" if best > 0 else "ahead of"
    sentence = f"patterns of neighbouring views are alike only if the positions are {frames} {way} the patterns"
    present = 0 if view.recipe is None else view.recipe.positions.lag
    return Evidence(gains[best], sentence, (Remedy({"positions.lag": present - best}),))


def find_serpentine(view: ResultView) -> Evidence | None:
    """Return the standard errors by which patterns of neighbours are more alike with every second row reversed."""
    n = _views(view)
    rows = scan_rows(view.result_positions[:n])
    if rows is None:
        return None
    source = np.arange(n)
    for row in rows[1::2]:
        source[row] = source[row][::-1]
    gain = order_gain(view, Order(source, np.arange(n)))
    sentence = "patterns of neighbouring rows are alike only if every second row is reversed"
    present = view.recipe is not None and view.recipe.positions.serpentine
    return Evidence(gain, sentence, (Remedy({"positions.serpentine": not present}),))


def _views(view: ResultView) -> int:
    return min(len(view.result.positions_px), MAX_VIEWS)


def order_gain(view: ResultView, order: Order) -> float:
    """Return the standard errors by which pairs that only this order makes neighbours are more alike than others.

    The others are pairs that only the given order makes neighbours. Each order may move the patterns' features by what
    suits it best, A (p_j - p_i) with A = a or 0.
    """
    given, other = view.result_positions[order.use], view.result_positions[order.source]
    here, there = _neighbours(given), _neighbours(other)
    if min(len(there - here), len(here - there)) < MIN_PAIRS:
        return 0.0
    alike = []
    for positions, pairs, only in ((other, there, there - here), (given, here, here - there)):
        listed = np.array(sorted(pairs))
        found = correlations(view.thumbnail_shapes, order.use[listed])
        steps = (positions[listed[:, 1]] - positions[listed[:, 0]]) / view.thumbnail_pixels
        values = correlation_at(found, TRIED[:, None, None] * steps)
        best = int(values.mean(axis=1).argmax())
        alike.append(values[best, [tuple(pair) in only for pair in listed.tolist()]])
    if alike[0].mean() < MORE_ALIKE * alike[1].mean():
        return 0.0
    error = np.sqrt(sum(values.var() / len(values) for values in alike))
    return float((alike[0].mean() - alike[1].mean()) / max(float(error), 1e-12))


def _neighbours(positions: np.ndarray) -> set[tuple[int, int]]:
    """Return pairs (i, j), i < j, of views among each other's nearest, not further than 1.6 steps apart."""
    near = min(NEAREST, len(positions) - 1)
    distances, others = cKDTree(positions).query(positions, k=near + 1)
    i, k = np.nonzero(distances[:, 1:] <= 1.6 * np.median(distances[:, 1]) + 1e-9)
    j = others[i, k + 1]
    return {(int(min(p)), int(max(p))) for p in zip(i, j, strict=True)}


def scan_rows(positions: np.ndarray) -> list[np.ndarray] | None:
    """Return the views of each row of a raster (N, 2), in time order; None where the scan has no rows."""
    steps = np.diff(positions, axis=0)
    fast = int(np.median(np.abs(steps[:, 1])) > np.median(np.abs(steps[:, 0])))
    slow, length = np.abs(steps[:, 1 - fast]), np.abs(steps[:, fast])
    step = float(np.median(length))
    turns = np.flatnonzero((length > ROW_JUMP * step) | (slow > 0.6 * step)) + 1
    rows = np.split(np.arange(len(positions)), turns)
    long = [row for row in rows if len(row) >= MIN_ROW]
    if step <= 0 or len(long) < MIN_ROW or sum(map(len, long)) < 0.8 * len(positions):
        return None
    return long
