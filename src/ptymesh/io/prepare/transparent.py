"""Search for regions of the detector that get a fixed share of the light: semi-transparent beam stops, filters.

The mean pattern is cut into connected parts wherever neighbouring pixels differ by much. A part all of whose edges are
steps of the same height is weakened by one factor; the borders of features of a pattern differ from place to place.

h, w    window pixels; arrays have DC in the middle of far-field patterns
t       share of the light that a region gets
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

#: Counts over all views from which on a pixel's mean is known.
LEAST_COUNTS = 100.0
#: Logarithm of the ratio of two neighbouring pixels from which on they are not of one part.
STEP = 0.35
#: Fewest pixels of a region, and largest share of all that are lit.
LEAST_PIXELS, LARGEST_SHARE = 9, 0.25
#: Scatter of the logarithms of the steps, above which they are not of one height; features of 100 simulated scans of
#: 20 kinds scatter by 0.158 and more.
MOST_SCATTER = 0.12
#: Share of a region's edges beyond which there must be light, and share of these that must be steps.
LIT_EDGES, STEEP_EDGES = 0.75, 0.95
#: Standard deviation of a normal distribution in units of its median absolute deviation.
NORMAL = 1.4826


@dataclass(frozen=True)
class WeakenedRegion:
    """A region of the detector that gets a fixed share of the light.

    Attributes:
        pixels: (h, w) bool.
        share: t.
    """

    pixels: np.ndarray
    share: float


def find_weakened_regions(mean: np.ndarray, views: int, mask: np.ndarray) -> list[WeakenedRegion]:
    """Return the regions that get a fixed share of the light, the largest first.

    Args:
        mean: (h, w) mean pattern, counts.
        views: patterns of which it is the mean.
        mask: (h, w) bool, True where good.
    """
    lit = (mask & (mean * views >= LEAST_COUNTS)).ravel()
    logarithm = np.log(np.where(lit, mean.ravel(), 1.0))
    index = np.arange(mean.size).reshape(mean.shape)
    first = np.concatenate([index[:, :-1].ravel(), index[:-1].ravel()])
    second = np.concatenate([index[:, 1:].ravel(), index[1:].ravel()])
    rise = logarithm[second] - logarithm[first]
    both = lit[first] & lit[second]
    joined = both & (np.abs(rise) < STEP)
    graph = coo_matrix((np.ones(int(joined.sum())), (first[joined], second[joined])), shape=(mean.size, mean.size))
    part = connected_components(graph, directed=False)[1]
    sizes = np.bincount(part[lit], minlength=1)
    regions = []
    for label in np.flatnonzero((sizes >= LEAST_PIXELS) & (sizes <= LARGEST_SHARE * lit.sum())):
        inside = part == label
        leaving, entering = inside[first] & ~inside[second], inside[second] & ~inside[first]
        steps = np.concatenate([rise[leaving & both], -rise[entering & both]])
        if len(steps) < max(1.0, LIT_EDGES * float((leaving | entering).sum())):
            continue
        height = float(np.median(steps))
        scatter = NORMAL * float(np.median(np.abs(steps - height)))
        if scatter < MOST_SCATTER and float((steps > STEP).mean()) > STEEP_EDGES:
            regions.append(WeakenedRegion(inside.reshape(mean.shape), float(np.exp(-height))))
    return sorted(regions, key=lambda region: -int(region.pixels.sum()))
