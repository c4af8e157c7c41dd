"""One pass over all patterns, slab by slab, and what it tells about detector and beam.

N       views
h, w    window pixels; arrays here have DC in the middle of far-field patterns, as people look at them
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import ndimage
from scipy.spatial import ConvexHull, QhullError, Voronoi, cKDTree

from ptymesh.io.source import slabs
from ptymesh.measurement import Measurement

#: Patterns whose correlations are averaged to estimate the size of the probe.
SPECKLE_VIEWS = 256
#: Relative spread of the areas of Voronoi cells up to which a scan is evenly spread, with motor errors.
EVEN = 0.1
#: Diameter of a uniform disc over the rms radius of the square root of its autocorrelation, times sqrt(2).
DISC = 2.422


@dataclass(frozen=True)
class Survey:
    """What one pass over the patterns gathers.

    Fields:
        totals: (N,) counts per view on good pixels.
        mean, least, most: (h, w) over the views that have data there.
        missing: share of pixel values without data (below zero).
        zeros: share of good pixel values that are zero.
        peak: largest count; at_peak: how many values equal it.
        whole: whether all counts are whole numbers.
        example: a view whose total is the median.
    """

    totals: np.ndarray
    mean: np.ndarray
    least: np.ndarray
    most: np.ndarray
    missing: float
    zeros: float
    peak: float
    at_peak: int
    whole: bool
    example: int


def survey(measurement: Measurement) -> Survey:
    """Read every pattern once. Raises BadInput where a pattern holds what is not a count."""
    m, source = measurement, measurement.patterns
    h, w = m.window
    total, seen = np.zeros((h, w)), np.zeros((h, w), np.int64)
    least, most = np.full((h, w), np.inf), np.zeros((h, w))
    totals = np.zeros(m.views)
    zeros = at_peak = 0
    peak, whole = 0.0, True
    for views in slabs(m.views, h * w * 16):
        counts = source.read(views)
        there = (counts >= 0) & m.mask
        values = np.where(there, counts, 0).astype(np.float64)
        totals[views] = values.sum(axis=(1, 2))
        total += values.sum(axis=0)
        seen += there.sum(axis=0)
        least = np.minimum(least, np.where(there, values, np.inf).min(axis=0))
        most = np.maximum(most, values.max(axis=0))
        zeros += int((there & (values == 0)).sum())
        top = float(values.max())
        if top >= peak:
            at_peak = int((values == top).sum()) + (at_peak if top == peak else 0)
            peak = top
        whole = whole and bool((values == np.rint(values)).all())
    good = int(m.mask.sum()) * m.views
    valid = max(int(seen.sum()), 1)
    return Survey(
        totals=totals,
        mean=upright(m, total / np.maximum(seen, 1)),
        least=upright(m, np.where(np.isfinite(least), least, 0)),
        most=upright(m, most),
        missing=1 - int(seen.sum()) / good,
        zeros=zeros / valid,
        peak=peak,
        at_peak=at_peak,
        whole=whole,
        example=int(np.argsort(totals, kind="stable")[m.views // 2]),
    )


def upright(measurement: Measurement, pattern: np.ndarray) -> np.ndarray:
    """(..., h, w) with DC in the middle (far field), or as it is."""
    if measurement.geometry.propagation != "far_field":
        return pattern
    return np.fft.fftshift(pattern, axes=(-2, -1))


def odd_pixels(measurement: Measurement, found: Survey) -> dict[str, np.ndarray]:
    """(n, 2) y x of unmasked pixels that are hot, dead or stuck, in the upright frame.

    hot: five times brighter on average than all but one of the eight neighbours, by more than chance; or never darker
    than a fifth of its mean, where all of them are far darker at times.
    dead: never a count where the neighbours together make 25 expected. stuck: the same non-zero count in every view.
    The middle of far-field patterns, where the direct beam may be that sharp, is left out.
    """
    mask = upright(measurement, measurement.mask)
    mean, views = np.where(mask, found.mean, 0), measurement.views
    ring = np.ones((3, 3), bool)
    ring[1, 1] = False
    second = ndimage.rank_filter(mean, -2, footprint=ring, mode="nearest")
    around = ndimage.median_filter(mean, size=5, mode="nearest")
    hot = mask & (mean > 5 * second) & (mean * views > 5 * second * views + 20)
    least = np.where(mask, found.least, 0)
    darkest = ndimage.maximum_filter(least, footprint=ring, mode="nearest")
    hot |= mask & (views >= 40) & (least > 0.2 * mean) & (least > 3 * darkest + 5 * np.sqrt(darkest) + 5)
    dead = mask & (found.most == 0) & (around * views >= 25)
    stuck = mask & (found.least == found.most) & (found.most > 0) & (views >= 10)
    if measurement.geometry.propagation == "far_field":
        h, w = measurement.window
        hot[h // 2 - 2 : h // 2 + 3, w // 2 - 2 : w // 2 + 3] = False
    return {name: np.argwhere(pixels) for name, pixels in (("hot", hot), ("dead", dead), ("stuck", stuck))}


def probe_diameter_px(measurement: Measurement) -> tuple[float, str]:
    """Diameter of the probe in object pixels (the D4-sigma width: a uniform disc has its own), and where it is from.

    `file`: from the probe in the file, its pixels dimmer than 5 % of the brightest left out.
    `window`: near field without a probe: the whole window is lit.
    `speckle`: from the patterns: their fluctuations around the mean are correlated as far as the exit waves reach,
    that is, over the autocorrelation of the illuminated area; the shot noise, white, is subtracted.
    """
    if measurement.probe is not None:
        power = (np.abs(measurement.probe) ** 2).sum(axis=0)
        power = np.where(power > 0.05 * power.max(), power, 0)
        y, x = np.indices(power.shape)
        total = power.sum()
        cy, cx = (power * y).sum() / total, (power * x).sum() / total
        return float(4 * np.sqrt((power * ((y - cy) ** 2 + (x - cx) ** 2)).sum() / total / 2)), "file"
    if measurement.geometry.propagation != "far_field":
        return float(min(measurement.window)), "window"
    return speckle_diameter_px(measurement), "speckle"


def speckle_diameter_px(measurement: Measurement) -> float:
    """Diameter of the probe in object pixels by the far-field patterns alone; 0 where they have no speckles."""
    h, w = measurement.window
    n = measurement.views
    chosen = np.unique(np.linspace(0, n - 1, min(n, SPECKLE_VIEWS)).round().astype(int))
    power, spectrum = np.zeros((h, w)), np.zeros((h, w), complex)
    count = weight = 0.0
    for part in slabs(len(chosen), h * w * 64):
        patterns = np.maximum(measurement.patterns.read(chosen[part]), 0).astype(np.float64)
        sums = patterns.sum(axis=(1, 2))
        waves = np.fft.fft2(patterns)
        power += (np.abs(waves) ** 2).sum(axis=0)
        spectrum += (waves * sums[:, None, None]).sum(axis=0)
        weight += float((sums**2).sum())
        count += float(sums.sum())
    if weight == 0:
        return 0.0
    # Least-squares removal of the common pattern, scaled to each view: |F|^2 - |sum s F|^2 / sum s^2.
    power = (power - np.abs(spectrum) ** 2 / weight - count) / len(chosen)
    noise = count / len(chosen) / np.sqrt(len(chosen))
    power[0, 0] = 0
    reach = np.sqrt(np.where(power > 3 * noise, power, 0))
    if not reach.any():
        return 0.0
    y, x = np.fft.fftfreq(h, 1 / h)[:, None], np.fft.fftfreq(w, 1 / w)
    return float(DISC * np.sqrt((reach * (y**2 + x**2)).sum() / reach.sum() / 2))


@dataclass(frozen=True)
class Scan:
    """How the positions lie, in object pixels.

    Fields:
        extent: (y, x). hull_area, hull_length: of the convex hull and its border.
        area_per_view: of evenly spread views, the area of a cell (a raster's step squared); of others, the hull's area
            over the number of views; 0 where all lie on a line.
        step: median distance to the nearest neighbour.
        duplicates: positions that repeat another one (to a hundredth of a pixel).
        stray: views further than `far`, and than three steps, from every other.
    """

    extent: tuple[float, float]
    hull_area: float
    hull_length: float
    area_per_view: float
    step: float
    duplicates: int
    stray: np.ndarray


def scan_of(positions: np.ndarray, far: float) -> Scan:
    """Neighbour distances of (N, 2) positions."""
    y, x = (float(one) for one in np.ptp(positions, axis=0))
    distinct = _distinct(positions)
    duplicates = len(positions) - len(distinct)
    if len(distinct) < 2:
        return Scan((y, x), 0.0, 0.0, 0.0, 0.0, duplicates, np.empty(0, int))
    step = step_of(positions)
    alone = cKDTree(positions).query(positions, k=2)[0][:, 1] > max(far, 3 * step)
    area, length = _hull(distinct)
    per_view = (even_cell(distinct) or area / len(distinct)) * len(distinct) / len(positions)
    return Scan((y, x), area, length, per_view, step, duplicates, np.flatnonzero(alone))


def even_cell(positions: np.ndarray) -> float | None:
    """Return the area that each view has to itself in an evenly spread scan: a raster, a lattice, an even spiral.

    It is that of the Voronoi cells of the views within the scan, which are alike there, however the axes lie.

    Args:
        positions: (N, 2) distinct positions, y x.

    Returns:
        The median area in square pixels; None where the cells' areas vary by more than `EVEN`, or none is whole.
    """
    if len(positions) < 9 or not _hull(positions)[0] > 0:
        return None
    size = np.ptp(positions, axis=0).max()
    cells = Voronoi((positions - positions.mean(axis=0)) / size)
    border = set(ConvexHull(cells.points).vertices)
    whole = [
        cells.regions[region]
        for view, region in enumerate(cells.point_region)
        if view not in border and cells.regions[region] and -1 not in cells.regions[region]
    ]
    inside = np.abs(cells.vertices).max(axis=1) < 1
    areas = np.array([ConvexHull(cells.vertices[corners]).volume for corners in whole if inside[corners].all()])
    if not len(areas):
        return None
    middle = float(np.median(areas))
    spread = 1.4826 * float(np.median(np.abs(areas - middle)))
    return middle * float(size) ** 2 if spread < EVEN * middle else None


def step_of(positions: np.ndarray) -> float:
    """Median distance from one of the (N, 2) positions to its nearest neighbour; 0 where all are the same."""
    distinct = _distinct(positions)
    return float(np.median(cKDTree(distinct).query(distinct, k=2)[0][:, 1])) if len(distinct) > 1 else 0.0


def too_far_apart(positions: np.ndarray, window: tuple[int, int]) -> str:
    """A sentence where neighbouring views lie further from each other than the window is wide; else empty."""
    step = step_of(positions)
    if step <= max(window):
        return ""
    return (
        f"Neighbouring views are {step:.3g} object pixels apart, more than the window of {window[0]} x {window[1]}: "
        f"check the unit of the positions (positions.unit), data.distance_m and data.detector_pixel_m."
    )


def _distinct(positions: np.ndarray) -> np.ndarray:
    return positions[np.unique(np.round(positions, 2), axis=0, return_index=True)[1]]


def _hull(points: np.ndarray) -> tuple[float, float]:
    """Area and border length of the convex hull; a line has no area, and both its sides are border."""
    centred = points - points.mean(axis=0)
    along = np.linalg.svd(centred, full_matrices=False)[2][0]
    across = centred @ np.array([-along[1], along[0]])
    if len(points) < 3 or np.abs(across).max() < 1e-6 * np.abs(centred).max():
        return 0.0, 2 * float(np.ptp(centred @ along))
    size = np.abs(centred).max()
    try:
        hull = ConvexHull(centred / size)
    except QhullError:  # so nearly on a line that Qhull cannot tell
        return 0.0, 2 * float(np.ptp(centred @ along))
    return float(hull.volume * size**2), float(hull.area * size)  # Qhull's names for two dimensions
