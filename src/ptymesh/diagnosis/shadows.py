"""How features of the patterns move with the position, and the causes that this shows.

Behind a lens out of focus, and in a near field, a pattern is a shadow image of the sample: from one view to the next it
moves by s = A (p_j - p_i), A = a R: R is a rotation if scan and detector lie to each other as given, and a mirrored one
if one of them is reversed or transposed. The pairs of patterns are correlated at what each A predicts; no fit has a
part in this.

s       move of the features, in detector pixels
p       position of a view, in object pixels
a       minus one in a near field; minus the inverse of the probe's spread (`probe_spread`) in the far field
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import ndimage
from scipy.spatial import cKDTree

from ptymesh.diagnosis.cause import Evidence, Remedy
from ptymesh.diagnosis.view import ResultView

#: Pairs of neighbouring views whose patterns are correlated, at most; and fewest.
MAX_PAIRS, MIN_PAIRS = 160, 8
#: Detector pixels per object pixel that are tried; angles (degrees) of R.
SIZES, ANGLES = np.geomspace(0.3, 8, 45), np.arange(-180, 180, 10)
#: Standard errors by which the correlation must stand out.
STANDARD_ERRORS = 8.0
#: Part of the window beyond which the sample that is seen at once is too wide for far-field patterns.
WIDE = 0.55
#: ... and how many times that before a near field is thought of: widths of a few views are known to 5 %.
NEAR_FIELD = 1.05
#: Degrees within which an orientation is as given.
AS_GIVEN_DEG = 10


@dataclass(frozen=True)
class Shadows:
    """The map A that explains best how features move.

    Attributes:
        size: |a|, detector pixels per object pixel; angle_deg: of R, 180 for a negative a; mirrored: x and y exchanged
            before R.
        score: mean correlation of the pairs; error: its standard error.
        score_as_given: the best mean correlation of maps that leave scan and detector as given.
    """

    size: float
    angle_deg: float
    mirrored: bool
    score: float
    error: float
    score_as_given: float

    @property
    def is_clear(self) -> bool:
        """True if the features' moves stand out of chance, and the size is not at the end of what was tried."""
        return self.score > STANDARD_ERRORS * self.error and SIZES[0] < self.size < SIZES[-1]

    @property
    def is_as_given(self) -> bool:
        """True if scan and detector lie to each other as given, or turned by half a turn."""
        return not self.mirrored and min(abs(self.angle_deg), 180 - abs(self.angle_deg)) <= AS_GIVEN_DEG

    @property
    def a(self) -> float:
        """Signed size, for maps as given."""
        return self.size if abs(self.angle_deg) < 90 else -self.size


def correlations(patterns: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Return the cross-correlations of patterns (n, h, w) about their mean pattern, (k, h, w), zero in the middle.

    Args:
        patterns: upright, of any brightness.
        pairs: (k, 2) indices of patterns.
    """
    mean = patterns.mean(axis=0)
    scale = (patterns * mean).sum(axis=(1, 2), keepdims=True) / max(float((mean**2).sum()), 1e-30)
    shapes = (patterns - scale * mean) / np.sqrt(mean + 0.01 * mean.mean() + 1e-30)
    shapes = shapes / (np.linalg.norm(shapes, axis=(1, 2), keepdims=True) + 1e-30)
    waves = np.fft.rfft2(shapes)
    found = np.fft.irfft2(waves[pairs[:, 0]].conj() * waves[pairs[:, 1]], s=mean.shape)
    return np.asarray(np.fft.fftshift(found, axes=(1, 2)))


def correlation_at(found: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """Return the correlations (k, h, w) of pairs at predicted moves (..., k, 2), linearly interpolated, (..., k)."""
    k, h, w = found.shape
    pair = np.broadcast_to(np.arange(k, dtype=float), moves.shape[:-1])
    where = np.stack([pair, moves[..., 0] + h // 2, moves[..., 1] + w // 2])
    return np.asarray(ndimage.map_coordinates(found, where, order=1, mode="constant"))


def matrices() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return orthogonal matrices R (m, 2, 2) with their angles in degrees (m,) and whether they mirror (m,)."""
    angles = np.deg2rad(np.concatenate([ANGLES, ANGLES]))
    mirrors = np.repeat([False, True], len(ANGLES))
    c, s = np.cos(angles), np.sin(angles)
    turn = np.stack([np.stack([c, -s], axis=-1), np.stack([s, c], axis=-1)], axis=-2)
    return np.where(mirrors[:, None, None], turn[:, :, ::-1], turn), np.rad2deg(angles), mirrors


def shadow_map(view: ResultView) -> Shadows | None:
    """Return how features of the measured patterns move; None where too few views have neighbours."""
    if "shadow_map" not in view.memo:
        view.memo["shadow_map"] = _shadow_map(view)
    found = view.memo["shadow_map"]
    assert found is None or isinstance(found, Shadows)
    return found


def _shadow_map(view: ResultView) -> Shadows | None:
    positions = view.result_positions[view.views]
    pairs = neighbour_pairs(positions)
    if len(pairs) < MIN_PAIRS:
        return None
    found = correlations(upright(view, view.y), pairs)
    steps = positions[pairs[:, 1]] - positions[pairs[:, 0]]
    turns, angles, mirrors = matrices()
    turned = np.einsum("mab,kb->mka", turns, steps)
    values = correlation_at(found, SIZES[:, None, None, None] * turned)
    scores = values.mean(axis=-1)
    size, turn = np.unravel_index(int(scores.argmax()), scores.shape)
    given = ~mirrors & (np.minimum(np.abs(angles), 180 - np.abs(angles)) <= AS_GIVEN_DEG)
    error = float(values[size, turn].std() / np.sqrt(len(pairs)))
    best = (float(SIZES[size]), float(angles[turn]), bool(mirrors[turn]))
    return Shadows(*best, float(scores[size, turn]), error, float(scores[:, given].max()))


def neighbour_pairs(positions: np.ndarray) -> np.ndarray:
    """Return pairs (k, 2) of indices into positions (n, 2) of views next to each other, not at the same place."""
    if len(positions) < 4:
        return np.empty((0, 2), int)
    distances, others = cKDTree(positions).query(positions, k=4)
    i, k = np.nonzero(distances[:, 1:] > 0.3)
    pairs = np.unique(np.sort(np.stack([i, others[i, k + 1]], axis=1), axis=1), axis=0)
    return np.asarray(pairs[np.unique(np.linspace(0, len(pairs) - 1, MAX_PAIRS).round().astype(int))])


def upright(view: ResultView, patterns: np.ndarray) -> np.ndarray:
    """Return patterns (..., h, w) with DC in the middle, if they are of the far field."""
    far = view.scan is not None and view.scan.geometry.propagation == "far_field"
    return np.fft.fftshift(patterns, axes=(-2, -1)) if far else patterns


def probe_spread(view: ResultView) -> float:
    """Return the slope of place by frequency in the probe, object pixels per detector pixel; 0 for a focus.

    That is <r m> / <m^2> of the strongest mode: a lens out of focus spreads its rays by it.
    """
    probe = view.result.probe[0].astype(np.complex128)
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


def find_near_field(view: ResultView) -> Evidence | None:
    """Return how much of the sample the patterns show at once, over the most that far-field patterns can sample.

    The ratio cannot be large, as the window bounds both, but nothing else brings about one above 1.
    """
    scan, shadows = view.scan, shadow_map(view)
    assert scan is not None
    if scan.geometry.propagation != "far_field" or shadows is None or not shadows.is_clear:
        return None
    mean = view.y.mean(axis=0)
    seen = float(np.sqrt(mean.sum() ** 2 / max(float((mean**2).sum()), 1e-30))) / shadows.size
    number = seen / (WIDE * float(np.sqrt(mean.size)))
    if number < NEAR_FIELD:
        return None
    sentence = (
        f"patterns are images that move with the sample, {shadows.size:.2g} px for each object pixel, and show "
        f"{seen:.0f} object pixels of it at once, more than far-field patterns of this size can"
    )
    advice = "set data.propagation to angular_spectrum or fresnel, with data.distance_m (and data.focus_distance_m)"
    return Evidence(number, sentence, (Remedy(advice=advice),))


def find_defocus_sign(view: ResultView) -> Evidence | None:
    """Return the lesser of the ratios of the defocus that shadows tell and the probe's, where their signs differ."""
    scan, shadows = view.scan, shadow_map(view)
    assert scan is not None
    if scan.geometry.propagation != "far_field" or shadows is None or not shadows.is_clear or not shadows.is_as_given:
        return None
    spread, expected = probe_spread(view), -1 / shadows.a
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
    found = getattr(start, "defocus_m", 0.0)
    return float(found) if isinstance(found, int | float) else 0.0
