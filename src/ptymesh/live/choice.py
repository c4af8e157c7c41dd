"""Choice of the views that a segment updates.

N       frames so far
"""

from __future__ import annotations

import numpy as np

#: Views of a segment; of these, at most so many that are new, as long as all are used as often as is asked.
SEGMENT = 512
#: Views of a segment where so many new ones wait that old ones have to.
LARGEST = 2048


def choose_views(uses: np.ndarray, wanted: int, seed: int, segment: int) -> np.ndarray:
    """Return the views of the next segment: new ones, then those that fewest updates have seen.

    Args:
        uses: (N,) int64, updates that have seen each view.
        wanted: number of updates that are to see each view.
        seed: of the random choice among equals.
        segment: number of the segment.

    Returns:
        (n,) int64, ascending; none where all views have been used often enough.
    """
    new = np.flatnonzero(uses == 0)
    if len(new) >= SEGMENT:
        return new[:LARGEST]
    old = np.flatnonzero((uses > 0) & (uses < wanted))
    order = np.lexsort((np.random.default_rng([seed, segment, 1]).random(len(old)), uses[old]))
    return np.sort(np.concatenate((new, old[order[: SEGMENT - len(new)]])))
