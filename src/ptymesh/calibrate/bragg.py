"""Size of a detector pixel by the Bragg discs of a lattice whose spacing is known.

h, w    detector pixels
P       Bragg discs, the direct beam among them
g       reciprocal vector of the lattice: its disc lies at lambda / d from the direct beam, d the spacing of its planes

Discs are where the mean pattern correlates with the direct beam's: a disc of the fitted radius and edge, less a ring
around it, so that diffuse light does not count. Of all pairs of them the one is taken as a basis by which most others
have whole indices; then basis and origin are fitted to all.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import ndimage, signal, special

from ptymesh.calibrate.disc import Disc
from ptymesh.errors import BadInput

#: Outer radius of the ring around a disc that is subtracted, over the disc's.
RING = 1.5
#: Coefficient of correlation of a disc with the direct beam's from which on it is one; that of noise is below 0.4.
LEAST_CORRELATION = 0.55
#: Most discs that a basis is looked for among, the nearest ones.
MOST_CANDIDATES = 16
#: Largest distance from the lattice, over the length of its shorter vector, with which a disc belongs to it.
OFF_LATTICE = 0.12
#: Fewest discs of the lattice, with the direct beam, and least share of all that are found.
FEWEST, LEAST_SHARE = 5, 0.6
#: Vectors that are longer than the shortest by no more than this are of the same planes, but for the lens's distortion.
ALIKE = 0.04


@dataclass(frozen=True)
class BraggLattice:
    """Lattice of the Bragg discs, in detector pixels.

    Attributes:
        places: (P, 2) of the discs that belong to it, y x.
        vectors: (2, 2) its two shortest vectors, y x.
        spacing: mean length of the vectors of the innermost discs.
        error: standard error of that, by the scatter of the discs about the lattice.
    """

    places: np.ndarray
    vectors: np.ndarray
    spacing: float
    error: float


@dataclass(frozen=True)
class KnownLattice:
    """Lattice whose innermost discs are of planes of a known spacing.

    Attributes:
        discs: on the detector.
        spacing_m: d of these planes.
    """

    discs: BraggLattice
    spacing_m: float

    def pixel_m(self, window: tuple[int, int]) -> tuple[float, float]:
        """Return the object pixel (y, x) of a window of so many detector pixels: d |g| / n."""
        h, w = window
        return self.spacing_m * self.discs.spacing / h, self.spacing_m * self.discs.spacing / w

    def angle_rad(self, pixels: float, wavelength_m: float) -> float:
        """Return the angle of so many detector pixels (rad)."""
        return pixels * wavelength_m / (self.spacing_m * self.discs.spacing)


def find_lattice(mean: np.ndarray, mask: np.ndarray, disc: Disc) -> BraggLattice:
    """Return the lattice of the Bragg discs of a mean pattern.

    Args:
        mean: (h, w) counts, with the direct beam at the disc.
        mask: (h, w) bool, True where the detector is good.
        disc: the direct beam's.

    Raises:
        BadInput: there are too few discs, or they lie on no lattice.
    """
    places, heights = _find_discs(mean, mask, disc)
    order = np.argsort(np.hypot(*(places - disc.centre).T), kind="stable")
    nearest, heights = places[order], heights[order]
    if len(nearest) < FEWEST:
        raise BadInput(_none(f"{len(nearest)} discs are found"))
    origin = nearest[0]
    best: tuple[int, float, np.ndarray] = (0, 0.0, np.zeros((2, 2)))
    for a, b in combinations(nearest[1 : MOST_CANDIDATES + 1] - origin, 2):
        basis = np.stack((a, b))
        if abs(np.linalg.det(basis)) < 0.4 * np.hypot(*a) * np.hypot(*b):
            continue
        count = int(_on_lattice(nearest - origin, basis)[1].sum())
        size = float(np.hypot(*a) + np.hypot(*b))
        if count > best[0] or (count == best[0] and size < best[1]):
            best = count, size, basis
    count, _, basis = best
    if count < max(FEWEST, LEAST_SHARE * len(nearest)):
        raise BadInput(_none(f"of {len(nearest)} discs no more than {count} lie on a lattice"))
    return _fit(nearest, heights, origin, _reduced(basis))


def _find_discs(mean: np.ndarray, mask: np.ndarray, disc: Disc) -> tuple[np.ndarray, np.ndarray]:
    """Return the places (P, 2), y x, where a pattern correlates with a disc, and how bright (P,) each disc is."""
    # roots of counts, in which faint discs count for more, and noise for the same everywhere
    image = np.where(mask, np.sqrt(np.maximum(mean, 0)), 0)
    reach = int(np.ceil(RING * disc.radius)) + 1
    centred = Disc((reach, reach), disc.radius, disc.stretch, disc.blur, 1.0, 0.0, 0.0)
    distance = centred.distance((2 * reach + 1, 2 * reach + 1))
    inside = special.erfc((distance - 1) * disc.radius / (np.sqrt(2) * disc.blur)) / 2
    ring = (distance <= RING) & (distance > 1)
    kernel = np.where(distance <= RING, inside, 0)
    kernel = kernel / kernel.sum() - ring / ring.sum()
    field = (distance <= RING).astype(float)
    match = signal.fftconvolve(image, kernel[::-1, ::-1], mode="same")
    first, second = (signal.fftconvolve(one, field, mode="same") for one in (image, image**2))
    spread = np.maximum(second - first**2 / field.sum(), 1e-12 * float(second.max()))
    correlation = match / np.sqrt(spread * (kernel**2).sum())
    is_inside = ndimage.uniform_filter(mask.astype(float), 2 * reach + 1, mode="constant") > 0.99
    side = max(3, 2 * int(0.8 * disc.radius) + 1)
    top = (match == ndimage.maximum_filter(match, side)) & is_inside & (correlation > LEAST_CORRELATION)
    places = np.array([_refine(match, *place) for place in np.argwhere(top)]).reshape(-1, 2)
    return places, match[top]


def _refine(match: np.ndarray, row: int, column: int) -> np.ndarray:
    """Return the maximum (2,) of a paraboloid through the 3 x 3 values around a pixel inside the image."""
    part = match[row - 1 : row + 2, column - 1 : column + 2]
    y, x = (one.ravel() for one in np.mgrid[-1:2, -1:2])
    design = np.stack((np.ones(9), y, x, y * y, x * x, y * x), axis=1)
    _, gy, gx, yy, xx, yx = np.linalg.lstsq(design, part.ravel(), rcond=None)[0]
    curvature = np.array([[2 * yy, yx], [yx, 2 * xx]])
    if np.linalg.det(curvature) <= 0:
        return np.array([row, column], float)
    return np.array([row, column]) + np.clip(np.linalg.solve(curvature, [-gy, -gx]), -1, 1)


def _on_lattice(places: np.ndarray, basis: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest indices (P, 2) of places, and which of these lie on the lattice."""
    index = np.rint(places @ np.linalg.inv(basis))
    off = np.hypot(*(places - index @ basis).T)
    return index, off < OFF_LATTICE * min(np.hypot(*basis[0]), np.hypot(*basis[1]))


def _reduced(basis: np.ndarray) -> np.ndarray:
    """Return the two shortest vectors (2, 2) of a lattice (Lagrange's reduction), the shorter one first."""
    a, b = sorted(basis, key=lambda one: float(np.hypot(*one)))
    while True:
        b = b - np.rint(a @ b / (a @ a)) * a
        if b @ b >= a @ a:
            return np.stack((a, b))
        a, b = b, a


def _fit(places: np.ndarray, heights: np.ndarray, origin: np.ndarray, basis: np.ndarray) -> BraggLattice:
    """Return the lattice that lies closest to discs.

    Args:
        places: (P, 2), y x.
        heights: (P,) weights of their distances.
        origin: (2,) of the lattice, from which the fit starts.
        basis: (2, 2) likewise.
    """
    for _ in range(3):  # places further out have their index once the basis is better known
        index, on = _on_lattice(places - origin, basis)
        weight = heights[on, None] / heights[on].max()
        design = weight * np.concatenate((np.ones((int(on.sum()), 1)), index[on]), axis=1)
        solution = np.linalg.lstsq(design, weight * places[on], rcond=None)[0]
        origin, basis = solution[0], solution[1:]
    residuals = weight * places[on] - design @ solution
    variance = float((residuals**2).sum()) / max(1, 2 * (len(design) - 3))
    covariance = np.linalg.inv(design.T @ design)[1:, 1:] * variance
    sums = np.array([[1, 0], [0, 1], [1, 1], [1, -1]])
    lengths = np.hypot(*(sums @ basis).T)
    of_same_length = lengths < (1 + ALIKE) * lengths.min()
    error = float(
        np.sqrt(np.diag(sums[of_same_length] @ covariance @ sums[of_same_length].T).mean() / of_same_length.sum())
    )
    return BraggLattice(places[on], basis, float(lengths[of_same_length].mean()), error)


def _none(why: str) -> str:
    return (
        f"--lattice needs Bragg discs beside the direct beam that lie on a lattice, apart from each other ({why}); "
        "give --semiangle instead, or a scan of a crystal with a smaller one."
    )
