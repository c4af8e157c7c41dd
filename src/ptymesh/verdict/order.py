"""Order of patterns and positions: signs of positions that lag, or of rows that run the other way.

Patterns of neighbouring views are alike. Where positions are assigned to the wrong patterns, those of views that are
said to be neighbours are not, and another order makes them so. This does not depend on how well a model fits.

N       views that are looked at
p       their positions (N, 2), object pixels
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy

from ptymesh.io.prepare.shadows import correlation_at, correlations, distinct_pairs, pattern_waves

#: Frames by which positions may lag, at most; nearest views that are compared.
MAX_LAG, NEAREST = 12, 6
#: Fewest pairs that two orders must differ in, and fewest views.
MIN_PAIRS, MIN_VIEWS = 8, 25
#: Jump to the next row, in steps along it; fewest views of a row.
ROW_JUMP, MIN_ROW = 2.5, 3
#: So many times more alike are patterns of true neighbours than those of others.
MORE_ALIKE = 1.5
#: Detector pixels per object pixel by which features may move.
TRIED = np.concatenate([-np.geomspace(8, 0.3, 20), [0.0], np.geomspace(0.3, 8, 20)])


@dataclass(frozen=True)
class OrderEvidence:
    """Order in which positions belong to patterns: positions[source] for the patterns `use`."""

    source: np.ndarray
    use: np.ndarray


@dataclass(frozen=True)
class OrderedViews:
    """Views in the order in which they were taken.

    Attributes:
        positions: (N, 2) as the scan has them, object pixels.
        shapes: (N, a, b) thumbnails of their patterns, each of norm 1.
        pixels: (2,) detector pixels that a thumbnail's pixel is wide, y x.
    """

    positions: np.ndarray
    shapes: np.ndarray
    pixels: np.ndarray

    @cached_property
    def waves(self) -> np.ndarray:
        """Spectra of the thumbnails, (N, a, b // 2 + 1) complex."""
        return pattern_waves(self.shapes)

    @cached_property
    def neighbours(self) -> np.ndarray:
        """Pairs (P, 2) of views that are neighbours by the positions as the scan has them."""
        return neighbour_pairs(self.positions)

    @cached_property
    def likeness(self) -> np.ndarray:
        """Correlation of the patterns of these pairs for each tried move of features, (len(TRIED), P)."""
        return self.likeness_of(self.neighbours, self.positions, self.neighbours)

    def likeness_of(self, patterns: np.ndarray, positions: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return how alike patterns are where features have moved along with the position, (len(TRIED), k).

        Args:
            patterns: (k, 2) indices of patterns.
            positions: (n, 2) object pixels.
            places: (k, 2) indices of their positions among these.
        """
        likeness = correlations(self.waves, patterns, self.shapes.shape[1:])
        steps = (positions[places[:, 1]] - positions[places[:, 0]]) / self.pixels
        return correlation_at(likeness, TRIED[:, None, None] * steps)


def lag_gain(views: OrderedViews) -> tuple[float, int] | None:
    """Return the standard errors by which patterns of neighbours are more alike if positions lag, and by what.

    Returns:
        The gain of the best lag, and that lag in frames, positive if positions are behind the patterns; None where
        there are too few views.
    """
    n = len(views.positions)
    if n < MIN_VIEWS:
        return None
    gains = {}
    for lag in [k for k in range(-MAX_LAG, MAX_LAG + 1) if k and abs(k) < n // 4]:
        use = np.arange(max(0, -lag), min(n, n - lag))
        gains[lag] = order_gain(views, OrderEvidence(use + lag, use))
    best = max(gains, key=lambda lag: gains[lag])
    return gains[best], best


def serpentine_gain(views: OrderedViews) -> float | None:
    """Return the standard errors by which patterns of neighbours are more alike with every second row reversed.

    None where the scan has no rows, or too few views.
    """
    rows = scan_rows(views.positions) if len(views.positions) >= MIN_VIEWS else None
    if rows is None:
        return None
    source = np.arange(len(views.positions))
    for row in rows[1::2]:
        source[row] = source[row][::-1]
    return order_gain(views, OrderEvidence(source, np.arange(len(source))))


def order_gain(views: OrderedViews, order: OrderEvidence) -> float:
    """Return the standard errors by which pairs that only this order makes neighbours are more alike than others.

    The others are pairs that only the given order makes neighbours. Each order may move the patterns' features by what
    suits it best, A (p_j - p_i) with A = a or 0.
    """
    other = views.positions[order.source]
    places = neighbour_pairs(other)
    tried, nominal = np.sort(order.use[places], axis=1), views.neighbours
    used = np.zeros(len(views.positions), dtype=bool)
    used[order.use] = True
    complete = used[nominal].all(axis=1)
    nominal = nominal[complete]
    as_tried, as_given = (pairs @ (len(views.positions), 1) for pairs in (tried, nominal))  # one number for each pair
    tried_only, given_only = ~np.isin(as_tried, as_given), ~np.isin(as_given, as_tried)
    if min(tried_only.sum(), given_only.sum()) < MIN_PAIRS:
        return 0.0
    likenesses = []
    for values, only in (
        (views.likeness_of(order.use[places], other, places), tried_only),
        (views.likeness[:, complete], given_only),
    ):
        best = int(values.mean(axis=1).argmax())
        likenesses.append(values[best, only])
    if likenesses[0].mean() < MORE_ALIKE * likenesses[1].mean():
        return 0.0
    error = np.sqrt(sum(values.var() / len(values) for values in likenesses))
    return float((likenesses[0].mean() - likenesses[1].mean()) / max(float(error), 1e-12))


def neighbour_pairs(positions: np.ndarray) -> np.ndarray:
    """Return pairs (k, 2), i < j, of views among each other's nearest, not further than 1.6 steps apart."""
    near = min(NEAREST, len(positions) - 1)
    distances, neighbours = scipy.spatial.cKDTree(positions).query(positions, k=near + 1)
    i, k = np.nonzero(distances[:, 1:] <= 1.6 * np.median(distances[:, 1]) + 1e-9)
    return distinct_pairs(i, neighbours[i, k + 1], len(positions))


def scan_rows(positions: np.ndarray) -> list[np.ndarray] | None:
    """Return the views of each row of a raster (N, 2), in time order; None where the scan has no rows."""
    steps = np.diff(positions, axis=0)
    fast = int(np.median(np.abs(steps[:, 1])) > np.median(np.abs(steps[:, 0])))
    slow, length = np.abs(steps[:, 1 - fast]), np.abs(steps[:, fast])
    step = float(np.median(length))
    jumps = length > ROW_JUMP * step
    if int(jumps.sum()) < MIN_ROW - 1:  # rows that turn back: a jittered row may take a step to the side as well
        jumps |= slow > 0.6 * step
    rows = np.split(np.arange(len(positions)), np.flatnonzero(jumps) + 1)
    long = [row for row in rows if len(row) >= MIN_ROW]
    if step <= 0 or len(long) < MIN_ROW or sum(map(len, long)) < 0.8 * len(positions):
        return None
    return long
