"""Assignment of views to ranks.

N, R   views, ranks
"""

from __future__ import annotations

import numpy as np


def owners(nominal: np.ndarray, ranks: int, compact: bool = False, among: np.ndarray | None = None) -> np.ndarray:
    """Return the owner of each view, so that ranks have equal shares of each batch as far as views divide.

    A batch that covers the scan has one view of each run of neighbours along the space-filling curve
    (planning/batches.py): each rank then owns one piece of the curve. A compact batch is a piece of the curve: ranks
    then own views in turn along it.

    Args:
        nominal: (N, 2) positions in pixels.
        ranks: R.
        compact: True if batches are clusters of neighbours.
        among: indices of the views that take part (default: all). The others fill up the ranks to equal numbers of
            views, in a way that does not depend on `compact`.

    Returns:
        (N,) int64, rank of each view.
    """
    views = np.arange(len(nominal)) if among is None else among
    further_views = np.setdiff1d(np.arange(len(nominal)), views)
    owner, part = np.empty(len(nominal), dtype=np.int64), _shares(len(views), ranks)
    curve = views[along_curve(nominal[views])]
    owner[curve] = np.arange(len(views)) % ranks if compact else np.repeat(np.arange(ranks), part)
    if len(further_views):
        rest = further_views[along_curve(nominal[further_views])]
        owner[rest] = np.repeat(np.arange(ranks), _shares(len(nominal), ranks) - part)
    return owner


def _shares(views: int, ranks: int) -> np.ndarray:
    """Return how many of the views each rank owns, (R,) int64; with more views no rank has fewer."""
    return (views + np.arange(ranks)[::-1]) // ranks


def along_curve(positions: np.ndarray, order: int = 10) -> np.ndarray:
    """Return the views in the order of a Hilbert curve over their bounding square of 2^order cells a side.

    Args:
        positions: (N, 2), in any unit.
        order: of the curve.

    Returns:
        (N,) int64, indices of the views; views in the same cell keep their order.

    Source:
        Skilling 2004.
    """
    low = positions.min(axis=0)
    extent = max(float((positions.max(axis=0) - low).max()), 1e-12)
    cells = np.minimum(((positions - low) / extent * 2**order).astype(np.int64), 2**order - 1)
    y, x = cells[:, 0].copy(), cells[:, 1].copy()
    distance = np.zeros(len(positions), dtype=np.int64)
    side = 2 ** (order - 1)
    while side:
        upper_y, upper_x = (y & side) > 0, (x & side) > 0
        distance += side * side * ((3 * upper_x.astype(np.int64)) ^ upper_y)
        flip = ~upper_y & upper_x
        x = np.where(flip, side - 1 - (x & (side - 1)), x & (side - 1))
        y = np.where(flip, side - 1 - (y & (side - 1)), y & (side - 1))
        x, y = np.where(~upper_y, y, x), np.where(~upper_y, x, y)
        side //= 2
    return np.argsort(distance, kind="stable")
