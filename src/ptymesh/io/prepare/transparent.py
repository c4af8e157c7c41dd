"""Search for regions of the detector that get a fixed share of the light: semi-transparent beam stops, filters.

The mean pattern is cut into connected parts wherever neighbouring pixels differ by much. A part all of whose edges are
steps of the same height is weakened by one factor; the borders of features of a pattern differ from place to place.
Light varies there from view to view as it does around; in a hole of the beam, as that of a zone plate, it is light that
the sample has scattered, which varies more.

h, w    window pixels; arrays have DC in the middle of far-field patterns
t       share of the light that a region gets
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy

#: Counts over all views from which on a pixel's mean is known.
LEAST_COUNTS = 100.0
#: Logarithm of the ratio of two neighbouring pixels from which on they are not of one part.
STEP = 0.35
#: Fewest pixels of a region, and largest share of all that are lit.
LEAST_PIXELS, LARGEST_SHARE = 9, 0.25
#: Ratio of the largest count of a view to the mean one, over that around the region, up to which it is of the same
#: light, before counting noise adds to it; the least mean count from which it is known.
MOST_CONTRAST, LEAST_MEAN = 1.2, 1.0
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


def find_weakened_regions(mean: np.ndarray, most: np.ndarray, views: int, mask: np.ndarray) -> list[WeakenedRegion]:
    """Return the regions that get a fixed share of the light, the largest first.

    Args:
        mean: (h, w) mean pattern, counts.
        most: (h, w) largest count of any view.
        views: patterns of which it is the mean.
        mask: (h, w) bool, True where good.
    """
    lit = (mask & (mean * views >= LEAST_COUNTS)).ravel()
    logarithm = np.log(np.where(lit, mean.ravel(), 1.0))
    index = np.arange(mean.size).reshape(mean.shape)
    first = np.concatenate([index[:, :-1].ravel(), index[:-1].ravel()])
    second = np.concatenate([index[:, 1:].ravel(), index[1:].ravel()])
    rise = logarithm[second] - logarithm[first]
    both_lit = lit[first] & lit[second]
    joined = both_lit & (np.abs(rise) < STEP)
    graph = scipy.sparse.coo_matrix(
        (np.ones(int(joined.sum())), (first[joined], second[joined])), shape=(mean.size, mean.size)
    )
    part = scipy.sparse.csgraph.connected_components(graph, directed=False)[1]
    sizes = np.bincount(part[lit], minlength=1)
    regions = []
    for label in np.flatnonzero((sizes >= LEAST_PIXELS) & (sizes <= LARGEST_SHARE * lit.sum())):
        inside = part == label
        leaving, entering = inside[first] & ~inside[second], inside[second] & ~inside[first]
        steps = np.concatenate([rise[leaving & both_lit], -rise[entering & both_lit]])
        if len(steps) < max(1.0, LIT_EDGES * float((leaving | entering).sum())):
            continue
        height = float(np.median(steps))
        scatter = NORMAL * float(np.median(np.abs(steps - height)))
        outside = np.concatenate([second[leaving & both_lit], first[entering & both_lit]])
        same_light = _has_light_of(mean.ravel(), most.ravel(), np.flatnonzero(inside), outside, views)
        if scatter < MOST_SCATTER and float((steps > STEP).mean()) > STEEP_EDGES and same_light:
            regions.append(WeakenedRegion(inside.reshape(mean.shape), float(np.exp(-height))))
    return sorted(regions, key=lambda region: -int(region.pixels.sum()))


def _has_light_of(mean: np.ndarray, most: np.ndarray, inside: np.ndarray, outside: np.ndarray, views: int) -> bool:
    """Return True if light varies in a region as it does around it.

    The brightest of n views is some sqrt(2 log n) standard deviations of its counts above its light. Of simulated stops
    (8 to 300 views, 1.2 to 200 counts behind them, light that stays or has speckles) one in 12,000 varies by more, and
    holes of the beams of simulated scans do by 1.1 times that and more.

    Args:
        mean: mean count of each pixel.
        most: largest count of each pixel.
        inside: indices of the region's pixels.
        outside: indices of pixels around it.
        views: patterns of which these are.
    """
    level = float(np.median(mean[inside]))
    if level < LEAST_MEAN:
        return False
    contrast_inside, contrast_outside = (float(np.median(most[pixels] / mean[pixels])) for pixels in (inside, outside))
    noise = (2 * math.log(max(views, 2)) * contrast_outside / level) ** 0.5
    return contrast_inside < MOST_CONTRAST * contrast_outside + noise
