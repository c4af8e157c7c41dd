"""Choice of the views that a segment updates, and of how many make a batch.

N       frames so far
"""

from __future__ import annotations

import numpy as np

#: Views of a segment; of these, at most so many that are new, as long as all are used as often as is asked.
SEGMENT = 448
#: Views of a segment where so many new ones wait that old ones have to, and after the last frame.
LARGEST = 2048
#: Beside new views, one in so many is from anywhere in the scan.
MIXED = 8
#: Views are left alone that updates have seen so many times more often than is asked, until the stream has ended.
MOST_USES = 4

#: Views of a batch, at least, where so many new ones wait: what a batch costs beside its views is then little.
BATCH_BEHIND = 256


def choose_views(uses: np.ndarray, uses_wanted: int, seed: int, segment: int, *, ended: bool) -> np.ndarray:
    """Return the views of the next segment: new ones, then those that fewest updates have seen, and some of all others.

    Rings of a scan that are only joined to the one before drift apart, so a part of each segment is from anywhere; time
    in which no other view waits goes to these, too.

    Args:
        uses: (N,) int64, updates that have seen each view.
        uses_wanted: number of updates that are to see each view.
        seed: of the random choice among equals.
        segment: number of the segment.
        ended: True where no more frames come: segments may be long, and have no view that was used often enough.

    Returns:
        (n,) int64, ascending; none where all views have been used often enough.
    """
    new, size = np.flatnonzero(uses == 0), LARGEST if ended else SEGMENT
    if len(new) >= SEGMENT:
        return new[:LARGEST]
    rng = np.random.default_rng([seed, segment, 1])
    room, due = size - len(new), np.flatnonzero((uses > 0) & (uses < uses_wanted))
    due = due[np.lexsort((rng.random(len(due)), uses[due]))]
    if ended:
        return np.sort(np.concatenate((new, due[:room])))
    due = due[: room - room // MIXED]
    used_less = np.setdiff1d(np.flatnonzero((uses > 0) & (uses < MOST_USES * uses_wanted)), due)
    filling = rng.permutation(used_less)[: room - len(due)]
    return np.sort(np.concatenate((new, due, filling)))


def choose_batch(positions: np.ndarray, window: tuple[int, int], most: int) -> int:
    """Return how many views of a segment make a batch: fewer where they lie over each other, at least half of `most`.

    Views that have just come are neighbours. A batch takes one step of all its views together, so that those over the
    same place bring little more than one of them. There are no more views in a batch than halves of windows that the
    segment's positions lie in: each place is then seen by about two.

    Args:
        positions: (n, 2) float, of the segment's views, in pixels.
        window: (h, w).
        most: batch size of the recipe.
    """
    quarters = np.unique(np.floor(2 * positions / np.array(window)), axis=0)
    return int(np.clip(len(quarters) // 2, (most + 1) // 2, most))
