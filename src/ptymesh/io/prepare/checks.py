"""Checks of data before a reconstruction: what looks wrong is left out, masked, refused, or reported.

N       views
h, w    window pixels, laid out as the patterns

Checks come one after the other, so that a fault found by one does not hide what the next one would see: of positions
and units; of a few patterns, for pixels that never hold data and for a near field that nobody says; and of all
patterns, as they are read (survey.py). Decisions depend on the data alone. Measurement.checks says which checks
are wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import scipy

from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.io.options import MOST_REGIONS
from ptymesh.io.prepare.findings import Findings, SelectedSource, apply_findings, stored_regions, stored_views
from ptymesh.io.prepare.near_field import near_field_doubt
from ptymesh.io.prepare.outliers import dark_regions, odd_views
from ptymesh.io.prepare.preprocess import PreparedSource
from ptymesh.io.prepare.survey import Survey, has_one_pattern, odd_pixels, step_of, survey, too_far_apart, upright
from ptymesh.io.prepare.transparent import find_weakened_regions
from ptymesh.measurement import Measurement, PatternSource, evenly_spread, select_views

#: Least step in object pixels; positions with a smaller one are in another unit than they are taken for.
LEAST_STEP_PX = 0.1
#: Largest share of views apart from the rest that are taken for wrong readings, and not for a second area.
MOST_STRAY = 0.05
#: Largest number of patterns in the first look.
SAMPLED_VIEWS = 24
#: Largest size in bytes of these patterns.
SAMPLED_BYTES = 64 << 20
#: A pixel that holds the same number in this many views does not count,
LEAST_SAMPLED = 8
#: if the number is at least this large.
LEAST_STUCK = 50.0
#: Number of views in which features are looked for.
FEATURELESS_VIEWS = 16
#: Remedy for patterns without features.
WRONG_DATASET = "check which dataset is read (data.keys.patterns), and the mask"
#: Share of a view's counts in one pixel that hides how many counts the view has.
HOT_SHARE = 0.1
#: Least number of values from which it is told whether patterns are roots of counts.
LEAST_ROOTS = 100
#: Most counts of which it is asked whether they are multiples of one number.
MOST_TRIED = 200_000
#: Largest count of which it is asked; floating-point numbers beyond it are all whole.
LARGEST_WHOLE = 2.0**53
#: Counts below which values are used to tell roots.
MOST_ROOT = 500.0
#: Least share of these values whose root is no whole number.
LEAST_SHARE = 0.1
#: Standard errors from which on something is left of patterns without their dark.
LIGHT_ERRORS = 5.0
#: Rank correlation of a dark with the scatter of patterns from which on it is light: 0.93 of the mean or median
#: of a simulated scan, 0.02 of what a detector writes anyway.
DARK_IS_LIGHT = 0.8
#: Values that detectors write in place of a missing count.
MARKERS = (2.0**16 - 1, 2.0**31 - 1, 2.0**32 - 1)
#: A detector may have saturated if so many values equal the largest count, and this is above that.
LEAST_AT_PEAK, LEAST_PEAK = 20, 20.0
#: Usual photon energies in eV; a person is asked first about what lies outside.
USUAL_EV = (50.0, 2e5)
#: Usual sides of detector pixels in metres, likewise.
USUAL_PIXEL_M = (1e-6, 1e-3)


def refuse_featureless(scan: Measurement) -> None:
    """Raise BadInput if a sample of patterns holds nothing from which an object can be found.

    Such patterns have no counts, or the same count on every pixel, or are all equal. What is reconstructed from them
    fits perfectly, and means nothing.
    """
    views = evenly_spread(scan.views, FEATURELESS_VIEWS)
    counts = scan.patterns.read(views)[:, scan.mask]
    which = f"{'All' if len(views) == scan.views else 'The'} {len(views)} patterns"
    if len(views) < scan.views:
        which += f" that were looked at, of {scan.views},"
    if not (counts > 0).any():
        raise BadInput(f"{which} of {scan.name} have no counts on the detector's good pixels; {WRONG_DATASET}.")
    is_counted = counts >= 0
    least = np.where(is_counted, counts, counts.max()).min(axis=1)
    most = np.where(is_counted, counts, counts.min()).max(axis=1)
    if counts.shape[1] > 1 and (least >= most).all():
        raise BadInput(
            f"{which} of {scan.name} have the same count on every pixel, as no diffraction has; {WRONG_DATASET}."
        )
    if len(views) > 1 and (counts == counts[:1]).all():
        raise BadInput(
            f"{which} of {scan.name} are one and the same, as those of no scan are, nor of counts; "
            "check which dataset is read (data.keys.patterns)."
        )


def check_scan(measurement: Measurement) -> Findings:
    """Check positions and units; raise BadInput if they cannot be right and `checks.scan` is auto."""
    m = measurement
    doubts: list[str] = []
    if m.checks.scan != "off" and m.views > 1:
        wrong = scan_fault(m)
        if wrong and m.checks.scan == "auto":
            raise BadInput(near_field_doubt(m) or wrong)
        doubts += [wrong] if wrong else []
        if not wrong and _is_line(m.positions):
            doubts.append("All positions lie on a line: only a stripe of the object is seen, and across it badly.")
    stray = stray_views(m.positions, m.window) if m.checks.views != "off" else np.empty(0, np.int64)
    if not len(stray):
        return Findings(doubts=tuple(doubts))
    problem = f"{_count(len(stray), 'view')} further from all others than the window is wide"
    return _leaving_out(m, [(stray, problem, "their positions cannot be right")], tuple(doubts))


def scan_fault(measurement: Measurement) -> str:
    """Return a sentence that says why positions or units cannot be right; empty if they can."""
    m = measurement
    extent = float(np.ptp(m.positions, axis=0).max())
    if extent == 0:
        return (
            f"All {m.views} positions of {m.name} are the same, and views of one place do not make an image: check "
            f"which dataset is read (data.keys.positions), or give positions.raster."
        )
    along = max(m.views - 1, 1) if _is_line(m.positions) else max(np.sqrt(m.views) - 1, 1)
    step = extent / along
    if step >= LEAST_STEP_PX:
        return too_far_apart(m.positions, m.window)
    return (
        f"Views of {m.name} are {step:.2g} object pixels apart{_words_for_pixel(m.geometry)}: "
        f"{_keys_to_check(m.geometry)}."
    )


def check_near_field(measurement: Measurement) -> Findings:
    """Check a few patterns for a near field that is taken for a far field, which is reported only."""
    doubt = "" if measurement.checks.scan == "off" else near_field_doubt(measurement)
    return Findings(doubts=(doubt,) if doubt else ())


def _words_for_pixel(geometry: Geometry) -> str:
    pixel = geometry.object_pixel_m
    return "" if pixel is None else f", which have {max(pixel):.3g} m"


def _keys_to_check(geometry: Geometry) -> str:
    """Return words for the keys to check, those with unusual values first."""
    g = geometry
    unusual_keys: list[str] = []
    usual_keys: list[str] = []
    energy = g.energy_eV
    if energy is not None:
        limits = USUAL_EV if g.radiation == "photon" else (1e4, 2e6)
        usual = limits[0] <= energy <= limits[1]
        (usual_keys if usual else unusual_keys).append(f"data.energy_eV ({energy:.4g})")
    if g.detector_pixel_m is not None:
        usual = all(USUAL_PIXEL_M[0] <= side <= USUAL_PIXEL_M[1] for side in g.detector_pixel_m)
        (usual_keys if usual else unusual_keys).append(f"data.detector_pixel_m ({g.detector_pixel_m[0]:.4g})")
    if g.distance_m is not None:
        (usual_keys if 1e-3 <= g.distance_m <= 100 else unusual_keys).append(f"data.distance_m ({g.distance_m:.4g})")
    usual_keys.append("positions.unit")
    if unusual_keys:
        return f"check {', '.join(unusual_keys)} first, then {', '.join(usual_keys)}"
    return f"check {', '.join(usual_keys)}"


def _is_line(positions: np.ndarray) -> bool:
    """Return True if three or more distinct positions (N, 2) lie on one line, to a hundredth of a pixel."""
    if len(positions) < 3:
        return False
    centred = positions - positions.mean(axis=0)
    along = np.linalg.svd(centred, full_matrices=False)[2][0]
    across = np.abs(centred @ np.array([-along[1], along[0]])).max()
    return bool(across < max(0.01, 1e-6 * np.abs(centred).max()))


def stray_views(positions: np.ndarray, window: tuple[int, int]) -> np.ndarray:
    """Return the views (k,) at positions (N, 2) that overlap with none of the rest, if they are few."""
    if len(positions) < 4:
        return np.empty(0, np.int64)
    reach = max(*window, 3 * step_of(positions))
    pairs = (
        scipy.spatial.cKDTree(positions).query_pairs(reach, output_type="ndarray") if len(positions) <= 2000 else None
    )
    if pairs is None:  # all pairs within reach would be too many: take the nearest ones
        nearest = min(len(positions), 9)
        neighbours = scipy.spatial.cKDTree(positions).query(positions, k=nearest, distance_upper_bound=reach)[1]
        rows = np.repeat(np.arange(len(positions)), neighbours.shape[1])
        is_neighbour = neighbours.ravel() < len(positions)
        pairs = np.stack([rows[is_neighbour], neighbours.ravel()[is_neighbour]], axis=1)
    shape = len(positions), len(positions)
    links = scipy.sparse.coo_matrix((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=shape)
    group = scipy.sparse.csgraph.connected_components(links, directed=False)[1]
    stray = np.flatnonzero(group != np.bincount(group).argmax())
    return stray if len(stray) <= max(1, MOST_STRAY * len(positions)) else np.empty(0, np.int64)


def check_marks(measurement: Measurement) -> Findings:
    """Check a few patterns for pixels that never hold data: markers, NaN, negative values, and very hot ones.

    Such pixels would hide odd views from the check of all patterns, so they are masked before.
    """
    m = measurement
    if m.checks.pixels == "off":
        return Findings(masked=np.zeros(m.window, bool))
    frame = 4 * int(np.prod(m.window))
    count = min(m.views, SAMPLED_VIEWS, max(4, SAMPLED_BYTES // frame))
    views = evenly_spread(m.views, count)
    source = m.patterns
    forgiving = isinstance(source, PreparedSource) and source.invalid == "refuse"
    if isinstance(source, PreparedSource):
        source = replace(source, invalid="missing")
    sample = SelectedSource(source, views)
    sampled_scan = replace(select_views(_drop_scan_labels(m), views, sample), intensity=None)
    sample_survey = survey(sampled_scan)
    least, most = _laid_out(m, sample_survey.least), _laid_out(m, sample_survey.most)
    never = np.zeros(m.window, bool)
    if forgiving:
        never = m.mask & (_count_views_with_data(sampled_scan) == 0)
    constant = m.mask & (least == most) & (most > 0)
    marks = constant & np.isin(most, MARKERS) if len(views) > 1 else np.zeros(m.window, bool)
    if len(views) >= LEAST_SAMPLED:
        marks |= constant & (most >= LEAST_STUCK)
    if len(views) > 1 and has_one_pattern(sampled_scan, sample_survey):  # which says nothing of the detector
        marks = np.zeros(m.window, bool)
    hot = np.zeros(m.window, bool)
    if len(views) >= LEAST_SAMPLED:
        unmarked_scan = replace(sampled_scan, mask=m.mask & ~(never | marks))
        if unmarked_scan.mask.any():
            bright = np.zeros(m.window, bool)
            bright[tuple(odd_pixels(unmarked_scan, sample_survey)["hot"].T)] = True
            light = float(np.median(sample_survey.totals)) - float((sample_survey.mean * upright(m, marks)).sum())
            hot = _laid_out(m, bright & (sample_survey.mean > HOT_SHARE * light))
    findings = _mask_pixels(
        m,
        [
            (never, "without a count in any view (negative, or not a number)"),
            (marks, "with the same number in all views"),
            (hot, "far brighter than all around"),
        ],
    )
    counts = sample.read(np.arange(len(views)))
    doubts = [_hidden_light(m.mask, source, views)]
    if m.checks.scan != "off":
        dark_doubt = _dark_of_light(m.mask, source, views)
        if dark_doubt and m.checks.scan == "auto":
            raise BadInput(dark_doubt)
        doubts += [dark_doubt, _amplitudes(counts) or _multiples(counts[counts > 0])]
    return replace(findings, doubts=(*findings.doubts, *filter(None, doubts)))


def _dark_of_light(mask: np.ndarray, source: PatternSource, views: np.ndarray) -> str:
    """Return a sentence if the dark is light: the mean of the patterns themselves, their median, or an open shutter.

    Then nothing is left of them on average but for what is cut off at zero, or the dark is brighter wherever patterns
    vary more, as light does; what a detector writes without a beam knows nothing of the sample's speckle.

    Args:
        mask: (h, w) bool, good pixels.
        source: of all patterns.
        views: (n,) views that are looked at.
    """
    if not isinstance(source, PreparedSource) or source.dark is None or len(views) < LEAST_SAMPLED:
        return ""
    raw, corrected = replace(source, dark=None).read(views), source.read(views)
    good = mask & ((raw >= 0) & (corrected >= 0)).all(axis=0)
    scale = 1.0 if source.scale is None else source.scale
    dark = source.window.binned((source.dark * scale).astype(np.float64), np.dtype(np.float64))
    if not corrected[:, good].any() or not np.ptp(dark[good]):
        return ""
    values = raw[:, good].astype(np.float64)
    sums = (values - dark[good]).sum(axis=1)
    nothing_left = float(sums.mean()) < LIGHT_ERRORS * float(sums.std(ddof=1)) / len(views) ** 0.5
    follows_light = scipy.stats.spearmanr(dark[good], values.std(axis=0)).statistic > DARK_IS_LIGHT
    if not (nothing_left or follows_light):
        return ""
    return (
        "The dark is light: it has been made of the patterns themselves, or with the beam on; give data.dark what the "
        "detector writes without a beam, or leave it out."
    )


def _multiples(positive: np.ndarray) -> str:
    """Return a sentence if all counts (n,) above zero are multiples of one number other than 1, a wrong gain."""
    positive = positive[:: max(1, positive.size // MOST_TRIED)]
    if positive.size < LEAST_ROOTS or len(set(positive[:LEAST_ROOTS].tolist())) < 2 or positive.max() > LARGEST_WHOLE:
        return ""
    if (positive == np.rint(positive)).all():
        unit = float(np.gcd.reduce(positive.astype(np.int64)))
    else:
        unit = float(positive.min())
        multiples = positive[positive < MOST_ROOT * unit] / unit
        unit = unit if len(multiples) >= LEAST_ROOTS and (np.abs(multiples - np.rint(multiples)) < 1e-3).all() else 1.0
    if abs(unit - 1) < 1e-3:
        return ""
    return (
        f"All counts are multiples of {unit:.6g}, which is then what the detector writes for a single one: data.gain "
        f"should be {unit:.6g} times what it is ({unit:.6g} where it is not given)."
    )


def _hidden_light(mask: np.ndarray, source: PatternSource, views: np.ndarray) -> str:
    """Return a question if a mask leaves out most of the pixels and most of the light, as one does that is inverted.

    Args:
        mask: (h, w) bool, good pixels.
        source: of all patterns.
        views: (n,) views that are looked at.
    """
    hidden = 1 - float(mask.mean())
    if hidden <= 0.5:
        return ""
    if isinstance(source, PreparedSource):  # which reads masked pixels as 0
        source = replace(source, good=np.ones_like(source.good), mask=np.ones_like(source.mask))
    counts = source.read(views)
    changing = counts.min(axis=0) < counts.max(axis=0)  # markers and stuck pixels are no light
    light = np.where(changing, counts.clip(min=0).mean(axis=0), 0.0)
    light = np.minimum(light, np.quantile(light, 0.99))  # a few hot pixels, which masks are made for, are no light
    if not light[~mask].sum() > 0.5 * light.sum():
        return ""
    return (
        f"The mask excludes {hidden:.0%} of the window and {light[~mask].sum() / light.sum():.0%} of the counts: check "
        "whether it is inverted (data.mask_true)."
    )


def _drop_scan_labels(measurement: Measurement) -> Measurement:
    """Return the measurement as that of one scan: of a few views, some scans may have none."""
    return replace(
        measurement,
        background=measurement.mean_background,
        efficiency=None,
        scan_index=None,
        scan_names=(),
        scan_probes=(),
        displaced_px=None,
        interaction_ratios=None,
    )


def _amplitudes(counts: np.ndarray) -> str:
    """Return a sentence if patterns (n, h, w) are roots of counts: their squares are multiples of one number."""
    positive = counts[counts > 0]
    if counts.dtype.kind != "f" or positive.size < LEAST_ROOTS or np.array_equal(positive, np.rint(positive)):
        return ""
    squares = np.square(positive.astype(np.float64))
    for unit in (1.0, float(squares.min())):
        multiples = squares[squares < MOST_ROOT * unit] / unit
        are_whole = np.abs(multiples - np.rint(multiples)) <= 1e-5 * MOST_ROOT
        roots = np.sqrt(multiples)  # of scaled counts, these are whole numbers, too
        share = float((np.abs(roots - np.rint(roots)) > 1e-3).mean()) if len(multiples) else 0.0
        if len(multiples) >= LEAST_ROOTS and share > LEAST_SHARE and are_whole.all():
            gain = "" if abs(unit - 1) < 1e-3 else f" and data.gain={unit:.6g}"
            return (
                f"Patterns hold square roots of counts (their squares are multiples of {unit:.4g}, they are not): set "
                f"data.amplitudes=true{gain}."
            )
    return ""


def without_marks(measurement: Measurement) -> Measurement:
    """Return the measurement with pixels masked that never hold data, as far as `checks.pixels` allows."""
    return apply_findings(measurement, check_marks(measurement))


def _count_views_with_data(measurement: Measurement) -> np.ndarray:
    """Return the number of views (h, w) that have data in each pixel."""
    counts = measurement.patterns.read(np.arange(measurement.views))
    return np.asarray((counts >= 0).sum(axis=0))


def check_patterns(measurement: Measurement, pattern_survey: Survey, *, related: bool = True) -> Findings:
    """Check views and pixels by what one pass over all patterns has gathered.

    Args:
        measurement: the scan.
        pattern_survey: survey of all of its views.
        related: False if neighbouring positions do not share a part of the sample (single exposures).
    """
    m = measurement
    pixels = _mask_pixels(m, [] if m.checks.pixels == "off" else odd_kinds(m, pattern_survey))
    if m.checks.pixels != "off":
        pixels = replace(
            pixels, doubts=pixels.doubts + _weak_gain_doubts(m, pattern_survey) + _saturation_doubts(m, pattern_survey)
        )
    if m.checks.views == "off":
        return pixels
    totals = pattern_survey.totals if m.intensity is None else pattern_survey.totals / m.intensity
    odd = odd_views(totals, m.positions, related=related)
    kinds = (
        (odd.empty, "without counts", "the beam or the detector was off"),
        (odd.lost, "with less than 3 % of the counts of their neighbours", "the beam was lost"),
        (odd.bright, "with over 5 times the counts of their neighbours", "the beam or the detector failed"),
    )
    same = ("All views hold nearly the same pattern: check which dataset is read (data.keys.patterns).",)
    views = _leaving_out(
        m,
        [(odd_ones, f"{_count(len(odd_ones), 'view')} {problem}", why) for odd_ones, problem, why in kinds],
        same if has_one_pattern(m, pattern_survey) else (),
    )
    return replace(
        pixels,
        left_out=views.left_out,
        done=views.done + pixels.done,
        would=views.would + pixels.would,
        doubts=views.doubts + pixels.doubts,
    )


def odd_kinds(measurement: Measurement, pattern_survey: Survey) -> list[tuple[np.ndarray, str]]:
    """Return pixels (h, w) bool that look wrong, each with words for what is wrong with them."""
    m = measurement
    far = m.geometry.propagation == "far_field"
    dark = _laid_out(m, dark_regions(pattern_survey.mean * m.views, pattern_survey.most, upright(m, m.mask), far=far))
    kinds = [(dark, "without counts between bright ones")]
    if has_one_pattern(m, pattern_survey):
        return []
    pixels_of_kind = odd_pixels(
        replace(m, mask=m.mask & ~dark) if dark.any() and (m.mask & ~dark).any() else m, pattern_survey
    )
    for kind, problem in (
        ("dead", "dark beside bright ones"),
        ("stuck", "with the same number in all views"),
        ("hot", "far brighter than all around"),
    ):
        pixels = np.zeros(m.window, bool)
        pixels[tuple(pixels_of_kind[kind].T)] = True
        kinds.append((_laid_out(m, pixels), problem))
    return kinds


def _weak_gain_doubts(measurement: Measurement, pattern_survey: Survey) -> tuple[str, ...]:
    """Return a question for each region of the detector that gets a fixed share of the light."""
    m = measurement
    regions = (
        []
        if has_one_pattern(m, pattern_survey)
        else find_weakened_regions(pattern_survey.mean, pattern_survey.most, m.views, upright(m, m.mask))
    )
    return tuple(
        f"{_count(int(region.pixels.sum()), 'pixel')} ({_list_regions(m, _laid_out(m, region.pixels))}) count "
        f"{region.share:.2g} times what all around them do: is this a semi-transparent beam stop? Give data.flat, "
        f"{region.share:.2g} there and 1 elsewhere, or leave them out by data.mask."
        for region in regions
    )


def _saturation_doubts(measurement: Measurement, pattern_survey: Survey) -> tuple[str, ...]:
    """Return a sentence if many values equal the largest count, which is then the most that the detector can say."""
    if pattern_survey.at_peak < max(LEAST_AT_PEAK, measurement.views // 20) or pattern_survey.peak <= LEAST_PEAK:
        return ()
    return (
        f"{pattern_survey.at_peak} pixel values equal the largest count, {pattern_survey.peak:.6g}: the detector may "
        "have saturated; set data.saturation to it.",
    )


def _leaving_out(
    measurement: Measurement, kinds: Sequence[tuple[np.ndarray, str, str]], doubts: tuple[str, ...] = ()
) -> Findings:
    """Return which views are left out; only a report if `checks.views` is warn or no view would be left.

    Args:
        measurement: the scan.
        kinds: views (k,), words for how many of what kind they are, and the likely cause.
        doubts: further sentences of the report.
    """
    kinds_present = [kind for kind in kinds if len(kind[0])]
    left_out = (
        np.sort(np.concatenate([views for views, _, _ in kinds_present])) if kinds_present else np.empty(0, np.int64)
    )
    parts = [
        (f"{problem} ({_list_views(measurement, views)}) of {measurement.views}", why)
        for views, problem, why in kinds_present
    ]
    if measurement.checks.views == "warn" or len(left_out) == measurement.views:
        reports = tuple(
            f"There are {problem}: {why}; data.checks.views=auto leaves them out." for problem, why in parts
        )
        return Findings(doubts=doubts + reports)
    return Findings(
        left_out=left_out,
        done=tuple(f"Left out {problem}: {why}; data.checks.views=warn keeps them." for problem, why in parts),
        would=tuple(
            f"{problem} would be left out: {why}; data.checks.views=warn keeps them." for problem, why in parts
        ),
        doubts=doubts,
    )


def _mask_pixels(measurement: Measurement, kinds: Sequence[tuple[np.ndarray, str]]) -> Findings:
    """Return which pixels are masked.

    None are, and they are reported only, if `checks.pixels` is warn, if they need more than MOST_REGIONS regions, or if
    no pixel would be left.

    Args:
        measurement: the scan.
        kinds: pixels (h, w) bool, and words for what is wrong with them.
    """
    masked, parts = np.zeros(measurement.window, bool), []
    for pixels, problem in kinds:
        new = pixels & measurement.mask & ~masked
        if new.any():
            masked |= new
            parts.append(f"{_count(int(new.sum()), 'pixel')} {problem} ({_list_regions(measurement, new)})")
    if not parts:
        return Findings(masked=masked)
    many = len(stored_regions(measurement, masked)) > MOST_REGIONS
    if measurement.checks.pixels == "warn" or many or not (measurement.mask & ~masked).any():
        remedy = "give data.mask" if many else "data.checks.pixels=auto masks them"
        reports = tuple(f"There are {problem}; {remedy}." for problem in parts)
        return Findings(masked=np.zeros_like(masked), doubts=reports)
    return Findings(
        masked=masked,
        done=tuple(f"Masked {problem}; data.checks.pixels=warn keeps them." for problem in parts),
        would=tuple(f"{problem} would be masked; data.checks.pixels=warn keeps them." for problem in parts),
    )


def _list_views(measurement: Measurement, views: np.ndarray) -> str:
    names = stored_views(measurement, views)
    return ", ".join(str(view) for view in names[:6]) + (" ..." if len(names) > 6 else "")


def _list_regions(measurement: Measurement, pixels: np.ndarray) -> str:
    """Return words for the largest regions of pixels (h, w), as stored."""
    regions = sorted(stored_regions(measurement, pixels), key=lambda r: -(r[1] - r[0]) * (r[3] - r[2]))
    texts = [
        f"[{top}, {left}]" if (bottom - top, right - left) == (1, 1) else f"[{top}:{bottom}, {left}:{right}]"
        for top, bottom, left, right in regions[:4]
    ]
    return ", ".join(texts) + (" ..." if len(regions) > 4 else "")


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _laid_out(measurement: Measurement, pixels: np.ndarray) -> np.ndarray:
    """Return an array (h, w) with DC in the middle in the layout of the patterns."""
    far = measurement.geometry.propagation == "far_field"
    return np.fft.ifftshift(pixels, axes=(-2, -1)) if far else pixels
