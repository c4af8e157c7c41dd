"""Signs of a near field in patterns that are taken for far-field ones.

In a near field features move on the detector by Mag times the sample's motion, whatever the distances, so the
magnification is known before anything is reconstructed. In the far field of a beam out of focus they move as well; but
the sample that is seen at once, the image's width over Mag, is narrower than the window lambda z / p that far-field
patterns can sample.

p       detector pixel (m), lambda wavelength, z sample to detector
z1      focus to sample: Mag = (z1 + z) / z1
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ptymesh.io.prepare.preprocess import PreparedSource
from ptymesh.io.prepare.shadows import Shadows, find_shadows, spread_pairs
from ptymesh.io.prepare.survey import upright
from ptymesh.measurement import Measurement, central_views

#: Share of the window beyond which the sample region seen at once is too wide for far-field patterns.
WIDE = 0.55
#: Factor of that width beyond which no far field is possible; a beam out of focus may be nearly as wide as the window.
SURELY_WIDE = 1.45
#: Magnification below which no far field is possible; a beam out of focus magnifies images hundreds of times.
SURELY_MAGNIFIED = 10.0
#: Largest number of views that are looked at, in the middle of the scan.
VIEWS = 80
#: Largest size in bytes of their patterns.
BYTES = 128 << 20
#: Number of views that are looked at in any case.
FEWEST = 16
#: Number of views that the check before a reconstruction looks at.
CHECKED_VIEWS = 16
#: Largest side in pixels of patterns, which are binned to that.
SIDE = 96
#: Factor between sizes that are tried.
GROWTH = 1.05
#: Angles in degrees that are tried.
ANGLES = np.arange(-180, 180, 5)
#: Number of pairs of views.
PAIRS = 400
#: Least move in pixels by which a size is judged.
LEAST_MOVE_PX = 4.0
#: Least and largest move, as shares of the window, by which sizes are judged at first.
MOVES = (0.08, 0.45)
#: The same once the size is known to 5 %.
FINE_MOVES = (0.2, 0.55)
#: Factors of the first size that are tried then.
FINE_SIZES = np.geomspace(0.94, 1.06, 49)
#: Degrees about the first angle that are tried then.
FINE_ANGLES = np.arange(-5.0, 5.5, 0.5)
#: Standard errors by which moving images must stand out; a few far-field patterns may agree by chance.
STANDARD_ERRORS = 10.0
#: Degrees from a quarter turn within which a scan is taken to lie at it.
SMALL_DEG = 3.0
#: Keys of `positions` and `data` that say how a scan and its detector lie to each other.
SCAN_LIES = frozenset({"rotation_deg", "transpose", "flip_y", "flip_x", "affine"})
DETECTOR_LIES = frozenset({"transpose", "flip_y", "flip_x"})
#: A beam whose magnification differs by less from 1 is parallel as far as features tell.
PARALLEL = 0.03


@dataclass(frozen=True)
class NearFieldSigns:
    """Signs of a near field in patterns that are taken for far-field ones.

    Attributes:
        magnification: of sample motion on the detector.
        shadows: how features move, in detector pixels per detector pixel of scan motion.
        width: how much of the sample is seen at once over the most that far-field patterns can sample.
        filled: share of the detector's side that is lit.
    """

    magnification: float
    shadows: Shadows
    width: float
    filled: float

    @property
    def is_certain(self) -> bool:
        """True if no far field can look so: the sample seen at once is too wide, or its image hardly magnified."""
        return self.width > SURELY_WIDE or self.magnification < SURELY_MAGNIFIED

    def orientation(self) -> dict[str, Any]:
        """Return the keys of `positions` with which images move against the scan by Mag; none if they do so.

        A = -Mag Q: Q is what the keys do to the scan. Small angles are left to those who refine them.
        """
        angle = self.shadows.angle_deg % 360 - 180
        keys: dict[str, Any] = {"transpose": True} if self.shadows.mirrored else {}
        nearest = round(angle / 90)
        if abs(angle - 90 * nearest) > SMALL_DEG:
            return {**keys, "rotation_deg": round(angle, 1)}
        quarter = nearest % 4
        if quarter == 2:
            return {**keys, "flip_y": True, "flip_x": True}
        if quarter:  # y' = -x, x' = y, or the other way: axes exchanged, one reversed
            exchanged = {} if self.shadows.mirrored else {"transpose": True}
            return {**exchanged, "flip_y" if quarter == 1 else "flip_x": True}
        return keys

    def focus_distance_m(self, distance_m: float) -> float | None:
        """Return z1 for this distance from sample to detector; None for a parallel beam."""
        beyond = self.magnification - 1
        return None if beyond < PARALLEL else distance_m / beyond


def effective_width(mean: np.ndarray) -> float:
    """Return the side in pixels of an even square that is as wide as a mean pattern (h, w)."""
    return float(np.sqrt(mean.sum() ** 2 / max(float((mean**2).sum()), 1e-30)))


def near_field_signs(measurement: Measurement, most: int = VIEWS, binning: int = 1) -> NearFieldSigns | None:
    """Return what far-field patterns tell of a near field; None where features do not clearly move with the sample.

    Args:
        measurement: the scan.
        most: views that are looked at.
        binning: pixels of the model along a side of one of the detector's, whose windows are so many times as wide.
    """
    m, g = measurement, measurement.geometry
    if g.propagation != "far_field" or g.detector_pixel_m is None or g.object_pixel_m is None or m.views < 4:
        return None
    frame = 8 * int(np.prod(m.window))
    views = central_views(m.positions, min(most, max(FEWEST, BYTES // frame)))
    patterns, summed = _binned(upright(m, _nonnegative_counts(m, views)))
    # in detector pixels of the binned patterns, so that a size is a magnification
    positions = m.positions[views] * np.array(g.object_pixel_m) / (summed * np.array(g.detector_pixel_m))
    shadows = _find_moves(patterns, positions)
    if shadows is None or not shadows.is_clear or shadows.score < STANDARD_ERRORS * shadows.error:
        return None
    pattern_width = effective_width(patterns.mean(axis=0))
    width_m = pattern_width * summed * np.sqrt(np.prod(g.detector_pixel_m)) / shadows.size
    window_m = binning * float(np.sqrt(np.prod(np.array(m.window) * g.object_pixel_m)))
    filled_share = pattern_width / float(np.sqrt(np.prod(patterns.shape[1:])))
    return NearFieldSigns(shadows.size, shadows, float(width_m / (WIDE * window_m)), filled_share)


def _find_moves(patterns: np.ndarray, positions: np.ndarray) -> Shadows | None:
    """Return how features of patterns (n, h, w) move with positions (n, 2)."""
    side, pairs = min(patterns.shape[1:]), spread_pairs(positions, PAIRS)
    step, most = _typical_step(positions), float(np.ptp(positions, axis=0).max())
    if step <= 0 or side < 8:
        return None
    moves = max(MOVES[0] * side, LEAST_MOVE_PX), MOVES[1] * side
    low, high = moves[0] / most, moves[1] / step
    sizes = np.geomspace(low, high, 2 + int(np.log(high / low) / np.log(GROWTH)))
    shadows = find_shadows(patterns, positions, pairs, sizes, ANGLES, moves)
    if shadows is None or not shadows.is_clear:
        return shadows
    turns = shadows.angle_deg + FINE_ANGLES
    fine = find_shadows(
        patterns, positions, pairs, shadows.size * FINE_SIZES, turns, (FINE_MOVES[0] * side, FINE_MOVES[1] * side)
    )
    if fine is None or fine.mirrored != shadows.mirrored:
        return shadows
    return replace(shadows, size=fine.size, angle_deg=fine.angle_deg)


def near_field_doubt(measurement: Measurement) -> str:
    """Return a sentence if patterns that are taken for a far field can only be of a near field; else empty."""
    signs = near_field_signs(measurement, CHECKED_VIEWS)
    if signs is None or not signs.is_certain or signs.magnification < 1 - PARALLEL:
        return ""
    distance = measurement.geometry.distance_m
    focus = None if distance is None else signs.focus_distance_m(distance)
    focus_key = f" and data.focus_distance_m={focus:.4g}" if focus is not None else ""
    is_wide = signs.width > SURELY_WIDE
    excess = f", and show {signs.width:.2g} times what far-field patterns can at once" if is_wide else ""
    return (
        "A near field is suspected, not a far field: patterns are images that move with the sample, magnified "
        f"{signs.magnification:.3g} times{excess}: set data.propagation=angular_spectrum{focus_key}, or stages=auto, "
        "which tries this and the distance."
    )


def _nonnegative_counts(measurement: Measurement, views: np.ndarray) -> np.ndarray:
    """Return patterns (n, h, w) of these views, nothing where there are no data."""
    source = measurement.patterns
    if isinstance(source, PreparedSource):
        source = replace(source, invalid="missing")
    counts = source.read(views)
    return np.where((counts > 0) & measurement.mask, counts, 0).astype(np.float32)


def _binned(patterns: np.ndarray) -> tuple[np.ndarray, int]:
    """Return patterns (n, h, w) of at most SIDE pixels on a side, sums of b x b, and b."""
    n, h, w = patterns.shape
    b = -(-max(h, w) // SIDE)
    cut = patterns[:, : h // b * b, : w // b * b]
    return cut.reshape(n, h // b, b, w // b, b).sum(axis=(2, 4)), b


def _typical_step(positions: np.ndarray) -> float:
    """Return the median distance of a view (n, 2) to its nearest other one; 0 where most repeat others."""
    between = np.linalg.norm(positions[:, None] - positions[None], axis=2)
    np.fill_diagonal(between, np.inf)
    return float(np.median(between.min(axis=1)))
