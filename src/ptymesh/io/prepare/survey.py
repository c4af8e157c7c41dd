"""Survey of a scan: statistics of detector, beam and positions from one pass over all patterns, slab by slab.

N       views
h, w    window pixels; arrays here have DC in the middle of far-field patterns, as people look at them
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from ptymesh.io.source import slabs
from ptymesh.measurement import Measurement, evenly_spread

#: Number of patterns whose correlations are averaged to estimate the size of the probe.
SPECKLE_VIEWS = 256
#: Largest relative spread of the areas of Voronoi cells of an evenly spread scan, motor errors included.
EVEN = 0.1
#: Diameter of a uniform disc over the rms radius of the square root of its autocorrelation, times sqrt(2).
DISC = 2.422


@dataclass(frozen=True)
class Survey:
    """Statistics of all patterns of a scan.

    Attributes:
        totals: (N,) counts per view on good pixels.
        mean: (h, w) mean count, over the views that have data in a pixel.
        least: (h, w) smallest count, likewise.
        most: (h, w) largest count, likewise.
        missing: share of pixel values without data (below zero).
        zeros: share of good pixel values that are zero.
        peak: largest count.
        at_peak: number of values that equal it.
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


class Gathering:
    """Accumulator of a survey, slab by slab of patterns, in any order; each view is added once, by one rank.

    All numbers that ranks combine are whole numbers, maxima, or those of a single view, so that neither the order nor
    the number of ranks changes a bit.

    Args:
        measurement: the scan; its patterns are not read here.
        with_sum: whether patterns are added up, too; False if the mean pattern is known from elsewhere.
    """

    def __init__(self, measurement: Measurement, *, with_sum: bool) -> None:
        h, w = measurement.window
        self.measurement = measurement
        self.totals = np.zeros(measurement.views)
        self.least, self.most = np.full((h, w), np.inf), np.zeros((h, w))
        self.seen = np.zeros((h, w), np.int64)
        self.total = np.zeros((h, w)) if with_sum else None
        self.zeros = self.at_peak = 0
        self.peak, self.whole = 0.0, True
        self._masked = not bool(measurement.mask.all())

    def add(self, views: np.ndarray, counts: np.ndarray) -> None:
        """Add patterns (n, h, w) of views (n,)."""
        if not len(views):
            return
        mask = self.measurement.mask
        low = counts.min(axis=0)
        if low.min() < 0:  # somewhere there is no data
            self._add(views, counts, (counts >= 0) & mask)
            return
        if self._masked:
            counts = np.where(mask, counts, 0)
            low = np.where(mask, low, 0)
        wide_dtype = np.float64 if counts.dtype.kind == "f" else np.int64
        self.totals[views] = counts.reshape(len(views), -1).sum(axis=1, dtype=wide_dtype)
        if self.total is not None:
            self.total += counts.sum(axis=0, dtype=wide_dtype)
        self.seen += np.where(mask, len(views), 0)
        self.least = np.minimum(self.least, np.where(mask, low, np.inf))
        self.zeros += int(mask.sum()) * len(views) - int(np.count_nonzero(counts))
        self._note_peak(counts, counts.max(axis=0))
        self.whole = self.whole and (wide_dtype is np.int64 or bool((counts == np.rint(counts)).all()))

    def _add(self, views: np.ndarray, counts: np.ndarray, present: np.ndarray) -> None:
        """Add patterns of which some values are no data; `present` (n, h, w) bool: where they are."""
        values = np.where(present, counts, 0).astype(np.float64)
        self.totals[views] = values.reshape(len(views), -1).sum(axis=1)
        if self.total is not None:
            self.total += values.sum(axis=0)
        self.seen += present.sum(axis=0)
        self.least = np.minimum(self.least, np.where(present, values, np.inf).min(axis=0))
        self.zeros += int((present & (values == 0)).sum())
        self._note_peak(values, values.max(axis=0))
        self.whole = self.whole and bool((values == np.rint(values)).all())

    def _note_peak(self, values: np.ndarray, most: np.ndarray) -> None:
        self.most = np.maximum(self.most, most)
        top = float(most.max())
        if top < self.peak:
            return
        at_top = int((values[:, most == top] == top).sum())
        self.at_peak = at_top + (self.at_peak if top == self.peak else 0)
        self.peak = top

    def survey(self, mean: np.ndarray | None = None) -> Survey:
        """Return the survey of all views.

        Args:
            mean: (h, w) mean of all views, laid out as the patterns, in which values without data count as zero; None
                if the patterns were added up.
        """
        m, counted_views = self.measurement, np.maximum(self.seen, 1)
        total = self.total if self.total is not None else np.asarray(mean) * m.views
        counted = int(self.seen.sum())
        return Survey(
            totals=self.totals,
            mean=upright(m, total / counted_views),
            least=upright(m, np.where(np.isfinite(self.least), self.least, 0)),
            most=upright(m, self.most),
            missing=1 - counted / (int(m.mask.sum()) * m.views),
            zeros=self.zeros / max(counted, 1),
            peak=self.peak,
            at_peak=self.at_peak,
            whole=self.whole,
            example=int(np.argsort(self.totals, kind="stable")[m.views // 2]),
        )


def survey(measurement: Measurement) -> Survey:
    """Return the survey of a scan, whose patterns are read once; raise BadInput for values that are no counts."""
    gathering = Gathering(measurement, with_sum=True)
    h, w = measurement.window
    for views in slabs(measurement.views, h * w * 16):
        gathering.add(views, measurement.patterns.read(views))
    return gathering.survey()


def upright(measurement: Measurement, pattern: np.ndarray) -> np.ndarray:
    """Return an array (..., h, w) with DC in the middle (far field), or as it is (near field)."""
    if measurement.geometry.propagation != "far_field":
        return pattern
    return np.fft.fftshift(pattern, axes=(-2, -1))


def odd_pixels(measurement: Measurement, pattern_survey: Survey) -> dict[str, np.ndarray]:
    """Return the unmasked pixels (n, 2), y x, that are "hot", "dead" or "stuck", with DC in the middle.

    A hot pixel is five times brighter on average than all but one of its eight neighbours, by more than chance; or it
    is never darker than a fifth of its mean while all of them are far darker at times. A dead one never has a count
    though its surroundings make 25 expected. A stuck one holds the same non-zero count in every view. Hot pixels in the
    middle of far-field patterns are left out, because the direct beam may be that sharp.
    """
    mask = upright(measurement, measurement.mask)
    mean, views = _filled(pattern_survey.mean, mask), measurement.views
    ring = np.ones((3, 3), bool)
    ring[1, 1] = False
    second = scipy.ndimage.rank_filter(mean, -2, footprint=ring, mode="nearest")
    median = scipy.ndimage.median_filter(mean, size=5, mode="nearest")
    hot = mask & (mean > 5 * second) & (mean * views > 5 * second * views + 20)
    least = np.where(mask, pattern_survey.least, 0)
    darkest = scipy.ndimage.maximum_filter(least, footprint=ring, mode="nearest")
    hot |= mask & (views >= 40) & (least > 0.2 * mean) & (least > 3 * darkest + 5 * np.sqrt(darkest) + 5)
    dead = mask & (pattern_survey.most == 0) & (median * views >= 25)
    stuck = mask & (pattern_survey.least == pattern_survey.most) & (pattern_survey.most > 0) & (views >= 10)
    if has_one_pattern(measurement, pattern_survey):
        hot, dead, stuck = (np.zeros_like(mask) for _ in range(3))
    if measurement.geometry.propagation == "far_field":
        h, w = measurement.window
        hot[h // 2 - 2 : h // 2 + 3, w // 2 - 2 : w // 2 + 3] = False
    return {name: np.argwhere(pixels) for name, pixels in (("hot", hot), ("dead", dead), ("stuck", stuck))}


def has_one_pattern(measurement: Measurement, pattern_survey: Survey) -> bool:
    """Return True if most pixels that have counts hold the same number in all views."""
    lit = upright(measurement, measurement.mask) & (pattern_survey.most > 0)
    return measurement.views > 1 and 2 * int((lit & (pattern_survey.least == pattern_survey.most)).sum()) > int(
        lit.sum()
    )


def _filled(mean: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return a mean pattern (h, w) with masked pixels set to the mean of the good ones in 5 x 5 around, or 0."""
    if mask.all():
        return mean
    weight = scipy.ndimage.uniform_filter(mask.astype(np.float64), 5, mode="constant")
    local_mean = scipy.ndimage.uniform_filter(np.where(mask, mean, 0.0), 5, mode="constant")
    return np.where(mask, mean, np.where(weight > 1e-9, local_mean / np.maximum(weight, 1e-9), 0.0))


def probe_diameter_px(measurement: Measurement) -> tuple[float, str]:
    """Return the diameter of the probe in object pixels, and its source.

    The diameter is the D4-sigma width, which is a uniform disc's own. Its source is "file" for the probe in the file,
    without pixels dimmer than 5 % of the brightest; "window" for a near field without a probe, in which the whole
    window is lit; or "speckle" for the patterns: their fluctuations around the mean are correlated as far as the exit
    waves reach, over the autocorrelation of the illuminated area, and white shot noise is subtracted.
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
    """Return the diameter of the probe in object pixels from far-field patterns alone; 0 if they have no speckles."""
    h, w = measurement.window
    chosen = evenly_spread(measurement.views, SPECKLE_VIEWS)
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
class ScanStatistics:
    """Statistics of the positions of a scan, in object pixels.

    Attributes:
        extent: (y, x) from the first to the last position.
        hull_area: area of the convex hull.
        hull_length: length of its border.
        area_per_view: area of a cell of evenly spread views (a raster's step squared); of others, the hull's area over
            the number of views; 0 if all lie on a line.
        step: median distance to the nearest neighbour.
        duplicates: number of positions that repeat another one (to a hundredth of a pixel).
        stray: (k,) views further than `far`, and than three steps, from every other.
    """

    extent: tuple[float, float]
    hull_area: float
    hull_length: float
    area_per_view: float
    step: float
    duplicates: int
    stray: np.ndarray


def scan_statistics(positions: np.ndarray, far: float) -> ScanStatistics:
    """Return statistics of positions (N, 2); `far`: distance in pixels beyond which a view is stray."""
    y, x = (float(one) for one in np.ptp(positions, axis=0))
    distinct = _distinct(positions)
    duplicates = len(positions) - len(distinct)
    if len(distinct) < 2:
        return ScanStatistics((y, x), 0.0, 0.0, 0.0, 0.0, duplicates, np.empty(0, int))
    step = step_of(positions)
    is_stray = scipy.spatial.cKDTree(positions).query(positions, k=2)[0][:, 1] > max(far, 3 * step)
    area, length = _hull(distinct)
    per_view = (even_cell(distinct) or area / len(distinct)) * len(distinct) / len(positions)
    return ScanStatistics((y, x), area, length, per_view, step, duplicates, np.flatnonzero(is_stray))


def even_cell(positions: np.ndarray) -> float | None:
    """Return the area that each view has to itself in an evenly spread scan: a raster, a lattice, an even spiral.

    This is the area of the Voronoi cells of views inside the scan, which is the same for all, however the axes lie.

    Args:
        positions: (N, 2) distinct positions, y x.

    Returns:
        The median area in square pixels; None if the cells' areas vary by more than `EVEN`, or if none is bounded.
    """
    if len(positions) < 9 or not _hull(positions)[0] > 0:
        return None
    size = np.ptp(positions, axis=0).max()
    cells = scipy.spatial.Voronoi((positions - positions.mean(axis=0)) / size)
    border = set(scipy.spatial.ConvexHull(cells.points).vertices)
    closed_cells = [
        cells.regions[region]
        for view, region in enumerate(cells.point_region)
        if view not in border and cells.regions[region] and -1 not in cells.regions[region]
    ]
    inside = np.abs(cells.vertices).max(axis=1) < 1
    areas = np.array(
        [scipy.spatial.ConvexHull(cells.vertices[corners]).volume for corners in closed_cells if inside[corners].all()]
    )
    if not len(areas):
        return None
    middle = float(np.median(areas))
    spread = 1.4826 * float(np.median(np.abs(areas - middle)))
    return middle * float(size) ** 2 if spread < EVEN * middle else None


def step_of(positions: np.ndarray) -> float:
    """Return the median distance from one of the positions (N, 2) to its nearest neighbour; 0 if all are the same."""
    distinct = _distinct(positions)
    return float(np.median(scipy.spatial.cKDTree(distinct).query(distinct, k=2)[0][:, 1])) if len(distinct) > 1 else 0.0


def too_far_apart(positions: np.ndarray, window: tuple[int, int]) -> str:
    """Return a sentence if neighbouring views lie further from each other than the window is wide; else empty."""
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
    """Return area and border length of the convex hull; a line has no area, and both its sides are border."""
    centred = points - points.mean(axis=0)
    along = np.linalg.svd(centred, full_matrices=False)[2][0]
    across = centred @ np.array([-along[1], along[0]])
    if len(points) < 3 or np.abs(across).max() < 1e-6 * np.abs(centred).max():
        return 0.0, 2 * float(np.ptp(centred @ along))
    size = np.abs(centred).max()
    try:
        hull = scipy.spatial.ConvexHull(centred / size)
    except scipy.spatial.QhullError:  # so nearly on a line that Qhull cannot tell
        return 0.0, 2 * float(np.ptp(centred @ along))
    return float(hull.volume * size**2), float(hull.area * size)  # Qhull's names for two dimensions
