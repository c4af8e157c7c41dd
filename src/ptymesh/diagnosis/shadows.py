"""Moves of the patterns' features with the position, and the causes that they show.

Behind a lens out of focus, and in a near field, a pattern is a shadow image of the sample: from one view to the next it
moves by s = A (p_j - p_i), A = a R: R is a rotation if scan and detector lie to each other as given, and a mirrored one
if one of them is reversed or transposed. The pairs of patterns are correlated at what each A predicts; no fit has a
part in this.

s       move of the features, in detector pixels
p       position of a view, in object pixels
a       minus one in a near field; minus the inverse of the probe's spread (`probe_spread`) in the far field
"""

from __future__ import annotations

import numpy as np

from ptymesh.diagnosis.evidence import Evidence, Remedy
from ptymesh.diagnosis.frames import WANDERS, find_descan
from ptymesh.diagnosis.view import ResultView
from ptymesh.io.prepare.near_field import SURELY_WIDE, NearFieldSigns, near_field_signs
from ptymesh.io.prepare.shadows import Shadows, find_shadows, neighbour_pairs

#: Detector pixels per object pixel that are tried; angles (degrees) of R.
SIZES, ANGLES = np.geomspace(0.3, 8, 45), np.arange(-180, 180, 10)
#: Views closer than this are at the same place, object pixels.
LEAST_STEP_PX = 0.3
#: Magnification of the sample's moves below which a near field is likelier than a beam out of focus.
MAGNIFIED = 100.0
#: Number for a sample that is a little wider than far-field patterns can show, which may have other causes.
DOUBTFUL = 1.05


def shadow_map(view: ResultView) -> Shadows | None:
    """Return how features of the measured patterns move; None where too few views have neighbours."""
    if "shadow_map" not in view.memo:
        view.memo["shadow_map"] = _shadow_map(view)
    stored = view.memo["shadow_map"]
    assert stored is None or isinstance(stored, Shadows)
    return stored


def _shadow_map(view: ResultView) -> Shadows | None:
    positions = view.result_positions[view.views]
    return find_shadows(upright(view, view.y), positions, neighbour_pairs(positions, LEAST_STEP_PX), SIZES, ANGLES)


def upright(view: ResultView, patterns: np.ndarray) -> np.ndarray:
    """Return patterns (..., h, w) with DC in the middle, if they are of the far field."""
    far = view.scan is not None and view.scan.geometry.propagation == "far_field"
    return np.fft.fftshift(patterns, axes=(-2, -1)) if far else patterns


def probe_spread(probe: np.ndarray) -> float:
    """Return the slope of place by frequency in a probe (h, w), object pixels per detector pixel; 0 for a focus.

    That is <r m> / <m^2>: a lens out of focus spreads its rays by it.
    """
    probe = probe.astype(np.complex128)
    wave = np.fft.fft2(np.fft.ifftshift(probe))
    inside, outside = np.abs(probe) ** 2, np.abs(wave) ** 2
    product, square = 0.0, 0.0
    for axis, n in enumerate(probe.shape):
        shape = [1, 1]
        shape[axis] = n
        r = (np.arange(n) - n // 2).reshape(shape)
        m = (np.fft.fftfreq(n) * n).reshape(shape)
        r = r - (r * inside).sum() / inside.sum()
        m = m - (m * outside).sum() / outside.sum()
        slope = np.fft.fftshift(np.fft.ifft2(m * wave))
        product += float((r * probe.conj() * slope).real.sum() / inside.sum())
        square += float((m**2 * outside).sum() / outside.sum())
    return product / max(square, 1e-30)


def find_hidden_near_field(view: ResultView) -> Evidence | None:
    """Return the surer of two signs of a near field, above 1 where there is one.

    These are how much of the sample the patterns show at once, over the most that far-field patterns can, which a beam
    that does not fit into its window exceeds a little; and how little the sample's moves are magnified. Beams out of
    focus magnify them thousands of times, near fields up to some hundred.
    """
    scan = view.scan
    assert scan is not None
    if scan.geometry.propagation != "far_field" or view.is_of_electrons:
        return None  # the disc of a convergent beam of electrons shows the sample at any defocus
    descan = find_descan(view)
    if descan is not None and descan.number > WANDERS:  # patterns that wander move with the sample, too
        return None
    if "near_field" not in view.memo:
        view.memo["near_field"] = near_field_signs(scan, binning=view.result.probe.shape[-1] // scan.mask.shape[-1])
    signs = view.memo["near_field"]
    if not isinstance(signs, NearFieldSigns):
        return None
    number = max(min(signs.width, DOUBTFUL), signs.width / SURELY_WIDE, (MAGNIFIED / signs.magnification) ** 0.5)
    sentence = (
        f"patterns are images that move with the sample, magnified {signs.magnification:.3g} times, and show "
        f"{signs.width:.2g} times as much of it at once as far-field patterns of this size can"
    )
    distance = scan.geometry.distance_m
    focus = None if distance is None else signs.focus_distance_m(distance)
    focus_settings = {} if focus is None else {"data.focus_distance_m": float(f"{focus:.4g}")}
    remedies = (
        Remedy({"data.propagation": "angular_spectrum"} | focus_settings, unless="data.focus_distance_m"),
        Remedy({"stages": "auto"}, advice="which looks for the distance"),
    )
    return Evidence(number, sentence, remedies)


def find_defocus_sign(view: ResultView) -> Evidence | None:
    """Return the lesser of the ratios of the defocus that shadows tell and the probe's, where their signs differ."""
    scan, shadows = view.scan, shadow_map(view)
    assert scan is not None
    if scan.geometry.propagation != "far_field" or shadows is None or not shadows.is_clear or not shadows.is_as_given:
        return None
    spread, expected = probe_spread(view.result.probe[0]), -1 / shadows.a
    ratio = abs(spread / expected)
    number = min(ratio, 1 / max(ratio, 1e-12)) if spread * expected < 0 else 0.0
    sentence = (
        f"the sample's shadows move as behind a lens that spreads by {expected:+.2g} object pixels per detector pixel, "
        f"and the probe spreads by {spread:+.2g}"
    )
    defocus = _start_defocus(view)
    reverse = (Remedy({"probe.start.defocus_m": -defocus}),) if defocus else ()
    turn = Remedy(
        advice="reverse the sign of the start's defocus, or turn the scan by half a turn against the detector"
    )
    return Evidence(number, sentence, (*reverse, turn))


def _start_defocus(view: ResultView) -> float:
    """Return the defocus of the start in metres, 0 where the recipe does not give one."""
    start = None if view.recipe is None else view.recipe.probe.start
    defocus_m = getattr(start, "defocus_m", 0.0)
    return float(defocus_m) if isinstance(defocus_m, int | float) else 0.0
