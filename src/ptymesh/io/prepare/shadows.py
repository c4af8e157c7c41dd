"""Motion of the patterns' features with the position, found from patterns and positions alone.

Behind a lens out of focus, and in a near field, a pattern is a shadow image of the sample: from one view to the next it
moves by s = A (p_j - p_i), A = a R: R is a rotation if scan and detector lie to each other as given, and a mirrored one
if one of them is reversed or transposed. The pairs of patterns are correlated at what each A predicts; no fit has a
part in this.

s       move of the features, in detector pixels
p       position of a view, in any unit
n, h, w number of patterns, and their sides
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from ptymesh.measurement import evenly_spread

#: Largest number of pairs of neighbouring views whose patterns are correlated.
MAX_PAIRS = 160
#: Least number of pairs.
MIN_PAIRS = 8
#: Standard errors by which the correlation must stand out.
STANDARD_ERRORS = 8.0
#: Degrees within which an orientation is as given.
AS_GIVEN_DEG = 10


@dataclass(frozen=True)
class Shadows:
    """The map A that explains best how features move.

    Attributes:
        size: |a|, detector pixels per unit of the positions; angle_deg: of R, 180 for a negative a; mirrored: x and y
            exchanged before R.
        score: mean correlation of the pairs; error: its standard error.
        score_as_given: the best mean correlation of maps that leave scan and detector as given.
        is_bounded: True if the size is at either end of those that were tried.
    """

    size: float
    angle_deg: float
    mirrored: bool
    score: float
    error: float
    score_as_given: float
    is_bounded: bool = False

    @property
    def is_clear(self) -> bool:
        """True if the features' moves stand out of chance, and the size is not at the end of what was tried."""
        return self.score > STANDARD_ERRORS * self.error and not self.is_bounded

    @property
    def is_as_given(self) -> bool:
        """True if scan and detector lie to each other as given, or turned by half a turn."""
        return not self.mirrored and min(abs(self.angle_deg), 180 - abs(self.angle_deg)) <= AS_GIVEN_DEG

    @property
    def a(self) -> float:
        """Signed size, for maps as given."""
        return self.size if abs(self.angle_deg) < 90 else -self.size


def pattern_waves(patterns: np.ndarray) -> np.ndarray:
    """Return the spectra (n, h, w // 2 + 1) of upright patterns (n, h, w) about their mean pattern, normalised."""
    mean = patterns.mean(axis=0)
    scale = (patterns * mean).sum(axis=(1, 2), keepdims=True) / max(float((mean**2).sum()), 1e-30)
    shapes = (patterns - scale * mean) / np.sqrt(mean + 0.01 * mean.mean() + 1e-30)
    shapes = shapes / (np.linalg.norm(shapes, axis=(1, 2), keepdims=True) + 1e-30)
    return np.asarray(scipy.fft.rfft2(shapes))


def correlations(waves: np.ndarray, pairs: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Return the cross-correlations of patterns about their mean pattern, (k, h, w), zero in the middle.

    Args:
        waves: (n, h, w // 2 + 1) complex spectra of the patterns (`pattern_waves`).
        pairs: (k, 2) indices of patterns.
        shape: (h, w).
    """
    images = scipy.fft.irfft2(waves[pairs[:, 0]].conj() * waves[pairs[:, 1]], s=shape)
    return np.asarray(scipy.fft.fftshift(images, axes=(1, 2)))


def correlation_at(images: np.ndarray, moves: np.ndarray, pairs: np.ndarray | None = None) -> np.ndarray:
    """Return the correlations of pairs at predicted moves, linearly interpolated, (..., k); 0 outside the window.

    Args:
        images: (K, h, w) correlations, zero move in the middle.
        moves: (..., k, 2) in detector pixels.
        pairs: (k,) which of the correlations; all of them by default.
    """
    _, h, w = images.shape
    y, x = moves[..., 0] + h // 2, moves[..., 1] + w // 2
    inside = (y >= 0) & (y <= h - 1) & (x >= 0) & (x <= w - 1)
    top, left = np.clip(y, 0, h - 2).astype(np.int64), np.clip(x, 0, w - 2).astype(np.int64)
    y, x = y - top, x - left
    first = np.arange(len(images)) if pairs is None else pairs
    flat, place = images.reshape(-1), (first * h + top) * w + left
    values = (1 - y) * ((1 - x) * flat[place] + x * flat[place + 1])
    values += y * ((1 - x) * flat[place + w] + x * flat[place + w + 1])
    return np.where(inside, values, 0.0)


def matrices(angles_deg: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return orthogonal matrices R (m, 2, 2) with their angles in degrees (m,) and whether they mirror (m,)."""
    angles = np.deg2rad(np.concatenate([angles_deg, angles_deg]))
    mirrors = np.repeat([False, True], len(angles_deg))
    c, s = np.cos(angles), np.sin(angles)
    turn = np.stack([np.stack([c, -s], axis=-1), np.stack([s, c], axis=-1)], axis=-2)
    return np.where(mirrors[:, None, None], turn[:, :, ::-1], turn), np.rad2deg(angles), mirrors


def find_shadows(
    patterns: np.ndarray,
    positions: np.ndarray,
    pairs: np.ndarray,
    sizes: np.ndarray,
    angles_deg: np.ndarray,
    moves_px: tuple[float, float] = (0.0, np.inf),
) -> Shadows | None:
    """Return by which matrix a R steps of the scan move features of the patterns; None where there are too few pairs.

    The size `a` is in detector pixels per unit of the positions, and R is a rotation, with or without a mirror. Each
    size is tried with each R.

    Args:
        patterns: (n, h, w) upright.
        positions: (n, 2) of their views.
        pairs: (k, 2) indices of views that are compared.
        sizes: a that are tried, ascending; above zero.
        angles_deg: angles of R that are tried.
        moves_px: a size is judged by the pairs whose features it moves by so much. What does not move with the
            sample, and no mean pattern explains, looks like short moves.
    """
    if len(pairs) < MIN_PAIRS:
        return None
    images = correlations(pattern_waves(patterns), pairs, patterns.shape[1:])
    steps = positions[pairs[:, 1]] - positions[pairs[:, 0]]
    distances = np.linalg.norm(steps, axis=1)
    turns, angles, mirrors = matrices(angles_deg)
    turned = np.einsum("mab,kb->mka", turns, steps)
    scores, sums = np.full((len(sizes), len(turns)), -1.0), np.full((len(sizes), len(turns)), -np.inf)
    used = [np.flatnonzero((size * distances > moves_px[0]) & (size * distances < moves_px[1])) for size in sizes]
    for index, (size, used_pairs) in enumerate(zip(sizes, used, strict=True)):
        if len(used_pairs) >= MIN_PAIRS:
            used_pairs = used[index] = evenly(used_pairs)
            scores[index] = correlation_at(images, size * turned[:, used_pairs], used_pairs).mean(axis=-1)
            sums[index] = scores[index] * np.sqrt(len(used_pairs))  # of chance all are as large
    best, turn = np.unravel_index(int(sums.argmax()), sums.shape)
    if not np.isfinite(sums[best, turn]):
        return None
    used_pairs = used[best]
    is_as_given = ~mirrors & (np.minimum(np.abs(angles), 180 - np.abs(angles)) <= AS_GIVEN_DEG)
    error = float(
        correlation_at(images, sizes[best] * turned[turn, used_pairs], used_pairs).std() / np.sqrt(len(used_pairs))
    )
    tried = np.flatnonzero(np.isfinite(sums[:, 0]))
    return Shadows(
        size=float(sizes[best]),
        angle_deg=(float(angles[turn]) + 180) % 360 - 180,
        mirrored=bool(mirrors[turn]),
        score=float(scores[best, turn]),
        error=error,
        score_as_given=float(scores[:, is_as_given].max()) if is_as_given.any() else float(scores[best, turn]),
        is_bounded=bool(best in (tried[0], tried[-1])),
    )


def neighbour_pairs(positions: np.ndarray, least_step: float) -> np.ndarray:
    """Return pairs (k, 2) of indices into positions (n, 2) of views next to each other, not at the same place."""
    if len(positions) < 4:
        return np.empty((0, 2), int)
    distances, nearest = scipy.spatial.cKDTree(positions).query(positions, k=4)
    i, k = np.nonzero(distances[:, 1:] > least_step)
    return evenly(distinct_pairs(i, nearest[i, k + 1], len(positions)))


def distinct_pairs(one: np.ndarray, other: np.ndarray, count: int) -> np.ndarray:
    """Return the pairs (k, 2), smaller index first, that pairs of indices are, each once and in ascending order.

    Args:
        one: (n,) indices.
        other: (n,) indices of what they are paired with.
        count: number above all indices.
    """
    numbers = np.unique(np.minimum(one, other) * count + np.maximum(one, other))  # rows would be sorted as bytes
    return np.stack(np.divmod(numbers, count), axis=1)


def spread_pairs(positions: np.ndarray, most: int) -> np.ndarray:
    """Return at most so many pairs (k, 2) of indices into positions (n, 2), of all distances, by distance."""
    i, k = np.triu_indices(len(positions), 1)
    distances = np.linalg.norm(positions[k] - positions[i], axis=1)
    order = np.argsort(distances, kind="stable")
    return evenly(np.stack([i, k], axis=1)[order], most)


def evenly(values: np.ndarray, most: int = MAX_PAIRS) -> np.ndarray:
    """Return at most so many of some values, evenly chosen."""
    if not len(values):
        return values
    return np.asarray(values[evenly_spread(len(values), most)])
