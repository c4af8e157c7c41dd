"""Signs of a wrong model that do not need a high residual.

A fit hides part of a wrong model: a scan turned by 60 degrees was fitted to 1.1 times what counting leaves, with an
error nine times that of the right one. What is left then is small, but it asks for the mistake: views ask for moves
that are a rotation of the scan. And patterns alone tell some mistakes before any fit: their features move with the scan
in another direction, neighbours are alike in another order only.

Each sign carries the name of the cause in the table of `ptymesh diagnose`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy

from ptymesh.io.prepare.survey import speckle_diameter_px
from ptymesh.measurement import Measurement
from ptymesh.verdict.features import FeatureMap
from ptymesh.verdict.misfits import BB, MISFIT, XX, YX, YY, B, Misfits, X, Y
from ptymesh.verdict.order import OrderedViews, lag_gain, serpentine_gain
from ptymesh.verdict.scan_pass import scan_pass, thumbnail_pixels

#: Views, and numbers in their patterns, that are read for the order of views, at most.
MOST_VIEWS, MOST_NUMBERS = 600, 1 << 24
#: Views of a scan from which on its order tells anything.
LEAST_VIEWS = 25
#: Standard errors and degrees from which on a rotation of features is one of the scan.
ROTATION_ERRORS, ROTATION_DEG = 6.0, 1.5
#: Standard errors, and ratio of correlations, by which another orientation is better than the given one.
ORIENTATION_ERRORS, ORIENTATION_RATIO = 6.0, 1.3
#: Standard errors by which patterns are more alike in another order.
LAG_ERRORS, SERPENTINE_ERRORS = 4.0, 5.0
#: Views from which on their moves tell anything; times of the median beyond which a move is left out.
LEAST_MOVES, FAR = 20, 5.0
#: Share of the variance of time that is no map of the positions, below which time is left to these.
LEAST_APART = 0.3
#: F, and pixels, from which on moves are a drift.
DRIFT_RATIO, DRIFT_PX = 6.0, 0.03
#: Median over views of the fall of the misfit by a move from which on no right model asks for it; noise makes 0.35.
MOST_GAIN = 1.15
#: Median over views of the size of these moves, in pixels, from which on they are worth a word. Of a crystal with 1e5
#: counts a view, whose atoms vibrate, they are 0.018 pixels, more than counting makes them; of wrong models above 0.04.
MOST_PX = 0.03
#: Share of the misfit that a blur of the modelled patterns explains, and its standard errors, from which on it is one.
BLUR_SHARE, BLUR_ERRORS = 0.002, 8.0
#: Standard errors and pixels (of the views at one standard deviation from the middle) from which on moves are one map.
#: A scale is asked for by a wrong defocus, too, and an aspect by astigmatism, as long as the fit is on its way.
MAP_ERRORS = {"rotation": 5.0, "shear": 5.0, "aspect": 8.0, "scale": 10.0}
MAP_PX = {"rotation": 0.015, "shear": 0.015, "aspect": 0.08, "scale": 0.08}
#: Causes whose signs are not seen in what a fit leaves: in patterns, positions and beam alone, or in short runs.
WITHOUT_FIT = frozenset({"lag", "serpentine", "orientation", "twin", "overlap"})
#: Distance of the four nearest views, median, over the beam's diameter from which on a picture is not believed, however
#: well it fits, as too few views see the same place. NRMSE of simulated scans (80 views, 8e5 photons each, 60 epochs of
#: rPIE from the true probe): 0.027 at 0.37, 0.067 at 0.51, 0.11 at 0.60, 0.13 at 0.69, 0.19 at 0.78, 0.26 at 0.87.
MOST_APART = 0.6
#: Number of nearest views whose distance counts: along a path they lie closer than across it.
NEIGHBOURS = 4
#: Width by the patterns' speckles over that of a disc of the same effective area: at least so much for the beams that
#: are known (1.1 to 1.8 where these were found, 5.4 to 6.2 where they stayed in focus, simulated).
SPECKLES = 2.0
IN_WORDS = {
    "rotation": "a rotation of the whole scan",
    "shear": "scan axes that are not at right angles",
    "aspect": "another ratio of the scan's steps along y and x",
    "scale": "another scale of the positions, the distance or the pixels",
}


@dataclass(frozen=True)
class Sign:
    """One sign of a wrong model.

    Attributes:
        cause: its name in the table of causes; empty where many could be.
        strength: number over the threshold, above 1.
        sentence: what was seen, a clause without a full stop.
    """

    cause: str
    strength: float
    sentence: str

    @property
    def is_of_fit(self) -> bool:
        """True if it was seen in what a fit leaves."""
        return self.cause not in WITHOUT_FIT


def signs_of_order(scan: Measurement, positions: np.ndarray) -> list[Sign]:
    """Return signs that patterns belong to other positions, the strongest first.

    Args:
        scan: whose patterns are read, some hundred of them.
        positions: (N, 2) as the scan has them, object pixels.
    """
    h, w = scan.window
    if scan.views < LEAST_VIEWS:
        return []
    most = min(MOST_VIEWS, MOST_NUMBERS // (h * w), scan.views)
    statistics = scan_pass(scan, most)
    views = OrderedViews(positions[:most], statistics.shapes, thumbnail_pixels(scan.window))
    signs = []
    lag = lag_gain(views)
    if lag is not None and lag[0] > LAG_ERRORS:
        frames = f"{abs(lag[1])} frame{'s' * (abs(lag[1]) > 1)}"
        way = "behind" if lag[1] > 0 else "ahead of"
        sentence = f"neighbouring views are alike only if the positions are {frames} {way} the patterns"
        signs.append(Sign("lag", lag[0] / LAG_ERRORS, sentence))
    serpentine = serpentine_gain(views)
    if serpentine is not None and serpentine > SERPENTINE_ERRORS:
        sentence = "neighbouring rows are alike only if every second one is reversed"
        signs.append(Sign("serpentine", serpentine / SERPENTINE_ERRORS, sentence))
    return sorted(signs, key=lambda sign: -sign.strength)


def signs_of_overlap(scan: Measurement, positions: np.ndarray, power: np.ndarray) -> list[Sign]:
    """Return a sign that neighbouring views have too little of the object in common.

    Args:
        scan: whose patterns are read where the probe alone would be a sign, as one that was not found may be too small.
        positions: (N, 2) of the estimate, object pixels.
        power: (h, w) power of the probe, all modes together.
    """
    if len(positions) <= NEIGHBOURS:
        return []
    near, _ = scipy.spatial.cKDTree(positions).query(positions, k=NEIGHBOURS + 1)
    step, diameter = float(np.median(near[:, 1:])), disc_diameter(power)
    if step > MOST_APART * diameter and scan.geometry.propagation == "far_field":
        diameter = max(diameter, speckle_diameter_px(scan) / SPECKLES)
    apart = step / diameter
    if not apart > MOST_APART:
        return []
    sentence = f"neighbouring views are {apart:.2g} of the beam's width apart, which leaves much of the object open"
    return [Sign("overlap", apart / MOST_APART, sentence)]


def disc_diameter(power: np.ndarray) -> float:
    """Return the diameter, in pixels, of a disc of the effective area of this (h, w) light."""
    area = power.sum() ** 2 / max((power**2).sum(), 1e-30)
    return float(2 * np.sqrt(area / np.pi))


def signs_of_features(features: FeatureMap | None) -> list[Sign]:
    """Return signs that scan and detector lie to each other otherwise than given."""
    if features is None:
        return []
    shadows, degrees = features.shadows, features.rotation_deg
    errors = (shadows.score - shadows.score_as_given) / max(shadows.error, 1e-12)
    if not shadows.is_as_given and errors > ORIENTATION_ERRORS:
        ratio = shadows.score / max(shadows.score_as_given, 1e-12)
        if ratio > ORIENTATION_RATIO:
            turn = f"mirrored and {degrees:+.0f} degrees" if shadows.mirrored else f"{degrees:+.0f} degrees"
            sentence = f"the patterns' features move in another direction than the scan ({turn} from it)"
            return [Sign("orientation", min(errors / ORIENTATION_ERRORS, 20.0), sentence)]
    errors = abs(degrees) / max(features.error_deg, 1e-12)
    if shadows.mirrored or abs(degrees) < ROTATION_DEG or errors < ROTATION_ERRORS:
        return []
    sentence = f"the patterns' features move in a direction turned by {degrees:+.2g} degrees from the scan's"
    return [Sign("orientation", min(errors / ROTATION_ERRORS, 20.0), sentence)]


@dataclass(frozen=True)
class LinearMoves:
    """The linear map of the positions that views ask for, d = E p.

    Attributes:
        sizes: of rotation, scale, aspect and shear, in pixels for views at one standard deviation from the middle.
        errors: the same in standard errors, by the scatter of the views.
    """

    sizes: dict[str, float]
    errors: dict[str, float]


def linear_moves(moves: np.ndarray, positions: np.ndarray) -> LinearMoves | None:
    """Return the linear map that moves (B, 2) of views at positions (B, 2) amount to; None where there are too few.

    Curves in time are fitted beside it: a drift along a raster is no map. A steady one is, as rows follow each other.
    """
    size = np.linalg.norm(moves, axis=1)
    use = size <= FAR * np.median(size) + 1e-12
    if int(use.sum()) < LEAST_MOVES:
        return None
    d, p = moves[use] - moves[use].mean(axis=0), positions[use] - positions[use].mean(axis=0)
    p = p / max(float(p.std()), 1e-12)
    y, x = p.T
    terms = {"rotation": (-x, y), "scale": (y, x), "aspect": (y, -x), "shear": (x, y)}
    t = np.linspace(-1, 1, len(use))[use]
    none = np.zeros_like(t)
    curves = [
        pair
        for curve in (t**2 - (t**2).mean(), t**3 - t * (t**4).mean() / (t**2).mean())
        for pair in ((curve, none), (none, curve))
    ]
    basis = np.stack([np.stack(along, axis=1).ravel() for along in (*terms.values(), *curves)], axis=1)
    inverse = np.linalg.pinv(basis.T @ basis)
    sizes = inverse @ basis.T @ d.ravel()
    residuals = d.ravel() - basis @ sizes
    errors = np.sqrt(np.maximum(np.diag(inverse), 0) * (residuals**2).sum() / max(1, residuals.size - 10))
    ratios = sizes / np.maximum(errors, 1e-12)
    return LinearMoves(
        dict(zip(terms, sizes.tolist(), strict=False)), dict(zip(terms, np.abs(ratios).tolist(), strict=False))
    )


def asked_moves(misfits: Misfits) -> np.ndarray:
    """Return what each view asks of its position, (B, 2) pixels: one Gauss-Newton step of its misfit."""
    sums = misfits.slopes
    if not len(sums):
        return np.zeros((0, 2))
    yy, yx, xx = sums[:, YY], sums[:, YX], sums[:, XX]
    ridge = 1e-9 * (yy + xx) + 1e-30
    yy, xx = yy + ridge, xx + ridge
    determinant = yy * xx - yx**2
    step = np.stack([xx * sums[:, Y] - yx * sums[:, X], yy * sums[:, X] - yx * sums[:, Y]], axis=1)
    return np.asarray(step / determinant[:, None])


def signs_of_misfits(misfits: Misfits, *, are_counts: bool, are_refined: bool, near_field: bool) -> list[Sign]:
    """Return signs in what is left of the patterns, the strongest first.

    Args:
        misfits: of the final estimate.
        are_counts: the patterns are counts, of which the noise is known.
        are_refined: positions were, so that what views ask of them is what refinement still had to do.
        near_field: the detector is in the near field, where another distance is another scale.
    """
    if not np.isfinite(misfits.slopes).all():
        return []
    signs = signs_of_blur(misfits) if are_counts else []
    if misfits.slopes[:, : X + 1].any():
        moves = signs_of_moves(misfits, near_field=near_field)
        signs += [sign for sign in moves if not (are_refined and sign.cause == "drift")]
        size = float(np.median(np.linalg.norm(asked_moves(misfits), axis=1)))
        strength = min(float(np.median(move_gains(misfits))) / MOST_GAIN, size / MOST_PX)
        if are_counts and not are_refined and strength > 1:
            sentence = f"views ask to be moved by {size:.2g} pixels, more than noise and a right model make them"
            signs.append(Sign("", strength, sentence))
    return sorted(signs, key=lambda sign: -sign.strength)


def signs_of_moves(misfits: Misfits, *, near_field: bool) -> list[Sign]:
    """Return signs that moves which views ask for are one map of all positions, or a drift."""
    moves = asked_moves(misfits)
    mapped = linear_moves(moves, misfits.positions)
    if mapped is None:
        return []
    signs = []
    for name, limit in MAP_ERRORS.items():
        strength = min(mapped.errors[name] / limit, abs(mapped.sizes[name]) / MAP_PX[name])
        if strength > 1:
            cause = "distance" if near_field and name == "scale" else "geometry"
            signs.append(Sign(cause, strength, f"views ask to be moved as by {IN_WORDS[name]}"))
    ratio, size = smooth_moves(moves, misfits)
    strength = min(ratio / DRIFT_RATIO, size / DRIFT_PX)
    if strength > 1:
        signs.append(Sign("drift", strength, f"views ask to be moved by {size:.2g} pixels smoothly with time"))
    return signs


def move_gains(misfits: Misfits) -> np.ndarray:
    """Return by how much each view's misfit would fall by its move, (B,); the median of noise alone is 0.35."""
    moves = asked_moves(misfits)
    return np.asarray((moves * misfits.slopes[:, [Y, X]]).sum(axis=1))


def smooth_moves(moves: np.ndarray, misfits: Misfits) -> tuple[float, float]:
    """Return how much of the moves (B, 2) is a curve in time beyond a linear map of the positions: F, and its size.

    F is the variance that a cubic in time explains, for each of its numbers, over that which is left. Along a raster
    time itself is a map of the positions but for their errors, which views ask to be moved by: it is no curve then.
    """
    size = np.linalg.norm(moves, axis=1)
    use = size <= FAR * np.median(size) + 1e-12
    d, p = moves[use], misfits.positions[use] - misfits.positions[use].mean(axis=0)
    t = np.linspace(-1, 1, len(use))[use]
    plain = np.column_stack([np.ones(len(d)), p])
    curve = np.stack([t, t**2, t**3], axis=1)
    apart = t - plain @ np.linalg.lstsq(plain, t, rcond=None)[0]
    if apart.var() < LEAST_APART * t.var():
        plain, curve = np.column_stack([plain, t]), curve[:, 1:]
    rest = d - plain @ np.linalg.lstsq(plain, d, rcond=None)[0]
    curve = curve - plain @ np.linalg.lstsq(plain, curve, rcond=None)[0]
    fitted = curve @ np.linalg.lstsq(curve, rest, rcond=None)[0]
    variance = float(((rest - fitted) ** 2).sum()) / max(1, 2 * len(d) - 12)
    return float((fitted**2).sum()) / (2 * curve.shape[1]) / max(variance, 1e-30), float(
        np.sqrt((fitted**2).sum(axis=1).mean())
    )


def signs_of_blur(misfits: Misfits) -> list[Sign]:
    """Return the sign that patterns are softer than their models: too few modes, a blur, a background."""
    bb, bm = float(misfits.slopes[:, BB].sum()), float(misfits.slopes[:, B].sum())
    share = bm * abs(bm) / max(bb * float(misfits.by_view[:, MISFIT].sum()), 1e-300)
    errors = 2 * bm / max(math.sqrt(bb), 1e-150)
    if share < BLUR_SHARE or errors < BLUR_ERRORS:
        return []
    return [Sign("", share / BLUR_SHARE, "patterns are softer than their models")]  # of many causes
