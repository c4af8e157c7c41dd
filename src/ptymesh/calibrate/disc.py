"""Bright disc of a mean pattern: the image of the condenser aperture, fitted at its edge.

h, w    detector pixels
S       (2, 2) symmetric with determinant 1: |S (x - centre)| = radius is the edge, an ellipse

Model: I(x) = outside + (inside - outside) (1 - erf((|S (x - centre)| - radius) / (sqrt(2) blur))) / 2, fitted over a
ring on either side of the edge by least squares with a loss that outliers hardly move.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import atan2, degrees, exp, hypot, pi

import numpy as np
from scipy import ndimage, special
from scipy.optimize import least_squares

from ptymesh.errors import BadInput

#: Least radius in pixels of a disc whose edge can be fitted.
SMALLEST_PX = 3.0
#: Inner and outer radius of the ring that is fitted, over that of the disc.
RING = (0.6, 1.4)
#: Least contrast of the disc's edge, (inside - outside) / inside.
CONTRAST = 0.3
#: Largest blur of the edge, over the radius.
BLURRED = 0.4
#: Least share of the circle of the edge that lies on the detector.
ON_DETECTOR = 0.6


@dataclass(frozen=True)
class Disc:
    """Disc on the detector, in its pixels.

    Attributes:
        centre: (y, x).
        radius: geometric mean of the half axes.
        stretch: (a, b): S = exp([[a, b], [b, -a]]), b between the axes.
        blur: standard deviation of the edge.
        inside, outside: counts on either side of the edge.
        error: standard error of the radius, by the scatter of the fit.
    """

    centre: tuple[float, float]
    radius: float
    stretch: tuple[float, float]
    blur: float
    inside: float
    outside: float
    error: float

    @property
    def ellipticity(self) -> float:
        """Long half axis over the short one, minus 1."""
        return exp(2 * hypot(*self.stretch)) - 1

    @property
    def long_axis_deg(self) -> float:
        """Direction of the long axis, from x towards y, 0 to 180 degrees."""
        # S shrinks distances along the long axis: it is the eigenvector of the negative eigenvalue
        return degrees(atan2(-self.stretch[1], self.stretch[0]) / 2) % 180

    def distance(self, shape: tuple[int, int]) -> np.ndarray:
        """Return |S (x - centre)| over the radius, (h, w): 1 at the edge."""
        y, x = np.indices(shape)
        return _distance(y - self.centre[0], x - self.centre[1], self.stretch) / self.radius


def _distance(y: np.ndarray, x: np.ndarray, stretch: tuple[float, float]) -> np.ndarray:
    """Return |S (y, x)|."""
    size = hypot(*stretch)
    cosh, slope = np.cosh(size), np.sinh(size) / size if size > 1e-12 else 1.0
    a, b = slope * stretch[0], slope * stretch[1]
    return np.asarray(np.hypot((cosh + a) * y + b * x, b * y + (cosh - a) * x))


def fit_disc(mean: np.ndarray, mask: np.ndarray) -> Disc:
    """Return the disc of a mean pattern.

    Args:
        mean: (h, w) counts, with the direct beam anywhere.
        mask: (h, w) bool, True where the detector is good.

    Raises:
        BadInput: there is no disc with an edge.
    """
    guess = _guess(mean, mask)
    distance = guess.distance(mean.shape)
    ring = mask & (distance > RING[0]) & (distance < RING[1])
    y, x = np.nonzero(ring)
    counts = mean[ring]
    scale = guess.inside - guess.outside

    def model(p: np.ndarray) -> np.ndarray:
        r = _distance(y - p[0], x - p[1], (p[3], p[4]))
        edge = special.erfc((r - p[2]) / (np.sqrt(2) * p[5])) / 2
        return np.asarray(p[7] + (p[6] - p[7]) * edge)

    start = np.array([*guess.centre, guess.radius, 0.0, 0.0, guess.blur, 1.0, guess.outside / guess.inside])
    lowest = [-np.inf, -np.inf, 0.5 * guess.radius, -0.3, -0.3, 0.1, 0.0, -1.0]
    highest = [np.inf, np.inf, 1.6 * guess.radius, 0.3, 0.3, guess.radius, 5.0, 5.0]
    unit = guess.inside
    fit = least_squares(
        lambda p: model(p) - counts / unit, start, bounds=(lowest, highest), loss="soft_l1", f_scale=0.1 * scale / unit
    )
    p = fit.x
    inverse = np.linalg.pinv(fit.jac.T @ fit.jac)
    error = float(np.sqrt(inverse[2, 2] * 2 * fit.cost / max(1, len(counts) - len(p))))
    disc = Disc(
        (float(p[0]), float(p[1])), float(p[2]), (float(p[3]), float(p[4])), float(p[5]), float(p[6] * unit),
        float(p[7] * unit), error,
    )  # fmt: skip
    _refuse_edgeless(disc, mean.shape)
    return disc


def shifted_centre(disc: Disc, mean: np.ndarray, mask: np.ndarray) -> tuple[float, float]:
    """Return the centre (y, x) of a disc of known shape in the mean of some patterns.

    Args:
        disc: of the mean of all patterns.
        mean: (h, w) counts.
        mask: (h, w) bool, True where the detector is good.
    """
    distance = disc.distance(mean.shape)
    ring = mask & (distance > RING[0]) & (distance < RING[1])
    y, x = np.nonzero(ring)
    counts = mean[ring]
    reach = 0.35 * disc.radius

    def left(p: np.ndarray) -> np.ndarray:
        r = _distance(y - disc.centre[0] - p[0], x - disc.centre[1] - p[1], disc.stretch)
        edge = special.erfc((r - disc.radius) / (np.sqrt(2) * disc.blur)) / 2
        # levels on both sides are linear, and solved for
        design = np.stack([edge, np.ones_like(edge)], axis=1)
        return np.asarray(design @ np.linalg.lstsq(design, counts, rcond=None)[0] - counts)

    fit = least_squares(left, np.zeros(2), bounds=(-reach, reach), x_scale=0.1)
    return disc.centre[0] + float(fit.x[0]), disc.centre[1] + float(fit.x[1])


def _guess(mean: np.ndarray, mask: np.ndarray) -> Disc:
    """Return a disc with as many pixels as there are in the largest bright patch."""
    filled = np.where(mask, mean, 0)
    top = np.sort(filled[mask])[-max(4, int(0.002 * mask.sum())) :].mean()
    if not top > 0:
        raise BadInput("The patterns have no counts, so there is no disc; check which dataset is read.")
    middle = np.median(filled[mask & (filled > 0.5 * top)])  # of the disc: the brightest pixels may be a spot in it
    patches, count = ndimage.label(ndimage.median_filter(filled, size=3) > 0.5 * middle)
    if not count:
        raise BadInput(_no_disc("its bright pixels are scattered"))
    sizes = ndimage.sum_labels(np.ones(mean.shape), patches, np.arange(1, count + 1))
    patch = ndimage.binary_fill_holes(patches == 1 + int(np.argmax(sizes)))
    y, x = np.nonzero(patch)
    radius = float(np.sqrt(len(y) / pi))
    if radius < SMALLEST_PX:
        raise BadInput(
            _no_disc(f"its bright patch has a radius of {radius:.2g} pixels, and {SMALLEST_PX:g} are needed")
        )
    outside = mask & ~ndimage.binary_dilation(patch, iterations=max(1, int(0.3 * radius)))
    if not outside.any():
        raise BadInput(_no_disc("it is bright up to the detector's edge, or the detector ends in the disc"))
    level = float(np.median(filled[outside & (ndimage.binary_dilation(patch, iterations=int(radius)))]))
    return Disc((y.mean(), x.mean()), radius, (0.0, 0.0), max(0.3, 0.05 * radius), float(middle), level, 0.0)


def _refuse_edgeless(disc: Disc, shape: tuple[int, ...]) -> None:
    """Raise BadInput if what was fitted is no disc with an edge."""
    if not disc.inside > 0 or disc.inside - disc.outside < CONTRAST * disc.inside:
        raise BadInput(_no_disc(f"counts are {disc.inside:.3g} within and {disc.outside:.3g} without"))
    if disc.blur > BLURRED * disc.radius:
        raise BadInput(
            _no_disc(f"what is bright fades over {disc.blur:.3g} pixels, at {disc.radius:.3g} from its middle")
        )
    if max(map(abs, disc.stretch)) > 0.29:
        raise BadInput(_no_disc(f"what is bright is {1 + disc.ellipticity:.2g} times as long as wide"))
    angle = np.linspace(0, 2 * pi, 256, endpoint=False)
    y, x = disc.centre[0] + disc.radius * np.sin(angle), disc.centre[1] + disc.radius * np.cos(angle)
    share = float(((y >= 0) & (y <= shape[0] - 1) & (x >= 0) & (x <= shape[1] - 1)).mean())
    if share < ON_DETECTOR:
        raise BadInput(
            f"Only {share:.0%} of the disc's edge lies on the detector; calibrate needs at least {ON_DETECTOR:.0%}: "
            "record with a shorter camera length."
        )


def _no_disc(why: str) -> str:
    return (
        f"The mean pattern has no bright disc with an edge ({why}); calibrate needs the direct beam of a convergent "
        "electron probe: check the dataset and its axes (data.keys), or write the recipe by hand."
    )
