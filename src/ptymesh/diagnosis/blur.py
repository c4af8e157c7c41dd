"""Causes that blur the patterns: motion within an exposure, lost contrast, too few slices.

m       misfit sqrt y - sqrt I (B, h, w)
J       how sqrt I changes with a cause, to first order: m = x J, x by least squares

A fit with the wrong model has adapted, so that x falls short of the truth. Its sign and the share of m that J explains
remain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import ndimage

from ptymesh.diagnosis.evidence import Evidence, Remedy
from ptymesh.diagnosis.view import ResultView

#: Pixels by which views are moved for second derivatives.
STEP_PX = 0.5
#: Mean count from which on fringes stand out of counting noise, and pixels of which there must be so many.
BRIGHT, MIN_BRIGHT_PIXELS = 5.0, 1000
#: Spacings of slices that are tried, in units of pixel^2 / wavelength.
SPACINGS = (12, 30)
#: Share of the misfit that a blur must explain if contrast is said to be lost; noise of few counts takes contrast, too.
LEAST_SHARE = 0.002
#: A blur along the motion explains so many times what one across it does, and what one over the detector's pixels does;
#: partial coherence may have a direction, too.
ACROSS, DETECTOR = 1.25, 1.75


@dataclass(frozen=True)
class Explained:
    """Shares of the misfit that some changes of the model explain together.

    Attributes:
        x: by name, by least squares. share: by name, of the misfit's power that each explains alone, signed as x.
    """

    x: dict[str, float]
    share: dict[str, float]


def explained_blur(view: ResultView) -> Explained:
    """Return how well blurs along the scan's motion, across it, and over the detector explain the misfit."""
    if "blur" not in view.memo:
        view.memo["blur"] = _explained_blur(view)
    stored = view.memo["blur"]
    assert isinstance(stored, Explained)
    return stored


def _explained_blur(view: ResultView) -> Explained:
    root = np.sqrt(view.modelled)
    safe = 2 * np.maximum(root, 0.1 * root.mean() + 1e-12)
    along = _directions(view)
    across = np.stack([-along[:, 1], along[:, 0]], axis=1)
    basis = {name: _second_derivative(view, ways) / safe for name, ways in (("along", along), ("across", across))}
    laplacian = ndimage.laplace(view.modelled, mode="wrap") - _time_laplacian(view.modelled)
    basis["detector"] = np.where(view.good, laplacian, 0) / safe
    names = list(basis)
    gram = np.array([[float((basis[a] * basis[b]).sum()) for b in names] for a in names])
    right = np.array([float((basis[a] * view.misfit).sum()) for a in names])
    power = max(float((view.misfit**2).sum()), 1e-30)
    x = np.linalg.lstsq(gram, right, rcond=1e-6)[0]
    share_alone = right * np.abs(right) / np.maximum(np.diag(gram), 1e-30) / power
    return Explained(dict(zip(names, x.tolist(), strict=True)), dict(zip(names, share_alone.tolist(), strict=True)))


def _time_laplacian(patterns: np.ndarray) -> np.ndarray:
    """Return the part of scipy's three-dimensional Laplacian of (B, h, w) that lies along the views."""
    return np.asarray(ndimage.convolve1d(patterns, [1.0, -2.0, 1.0], axis=0, mode="wrap"))


def _directions(view: ResultView) -> np.ndarray:
    """Return the unit vectors (B, 2) along which the scan moves at each view that is looked at."""
    p = view.result_positions
    steps = np.gradient(p, axis=0)
    before, after = np.diff(p, axis=0, prepend=p[:1]), np.diff(p, axis=0, append=p[-1:])
    shorter = np.linalg.norm(before, axis=1) < np.linalg.norm(after, axis=1)
    shorter &= np.linalg.norm(before, axis=1) > 0
    jumps = np.maximum(np.linalg.norm(before, axis=1), np.linalg.norm(after, axis=1)) > 2.5 * np.median(
        np.linalg.norm(after, axis=1)
    )
    ways = np.where(jumps[:, None], np.where(shorter[:, None], before, after), steps)[view.views]
    return np.asarray(ways / np.maximum(np.linalg.norm(ways, axis=1, keepdims=True), 1e-12))


def _second_derivative(view: ResultView, ways: np.ndarray) -> np.ndarray:
    """Return the second derivative of I by the position along unit vectors (B, 2), (B, h, w)."""
    derivatives = []
    for sign in (1, -1):
        positions = view.result.positions_px.copy()
        positions[view.views] += sign * STEP_PX * ways
        most = np.array(view.result.object.shape[-2:]) - view.result.probe.shape[-2:]
        derivatives.append(view.model(replace(view.result, positions_px=np.clip(positions, 0, most - 1e-9))))
    return np.asarray((derivatives[0] - 2 * view.modelled + derivatives[1]) / STEP_PX**2)


def find_fly_scan(view: ResultView) -> Evidence | None:
    """Return the share of the misfit that a blur along the scan's motion explains, where it is more than one across."""
    blur = explained_blur(view)
    along, across = blur.share["along"], blur.share["across"]
    number = along if along > max(ACROSS * across, DETECTOR * blur.share["detector"]) else 0.0
    sentence = f"patterns are blurred along the scan's motion, which explains {100 * along:.2g} % of the misfit"
    return Evidence(number, sentence, (Remedy({"optics.fly_scan": True}), more_modes(view, 4)))


def more_modes(view: ResultView, more: int) -> Remedy:
    """Return the remedy that gives the probe so many further modes."""
    return Remedy({"probe.modes": len(view.result.probe) + more})


def find_few_slices(view: ResultView) -> Evidence | None:
    """Return the residual in multiples of the noise floor; a trial of more slices has to bear it out.

    A fit with few slices adapts to a thick sample until nothing in what is left tells of the thickness: only more
    slices do. Those of several are tried half as thick, and in a sample that is half as thick again.
    """
    scan, slices, spacing_m = view.scan, len(view.result.object), view.result.slice_spacing_m
    assert scan is not None
    geometry = scan.geometry
    if geometry.wavelength_m is None or geometry.object_pixel_m is None:
        return None
    if slices == 1:
        depth = float(np.prod(geometry.object_pixel_m)) / geometry.wavelength_m
        tried = [(2, factor * depth) for factor in SPACINGS]
        sentence = "two slices explain the patterns better than one"
    elif spacing_m:
        tried = [(2 * slices, spacing_m / 2), (slices + (slices + 1) // 2, spacing_m)]
        sentence = f"more slices explain the patterns better than {slices}"
    else:
        return None
    remedies = [
        Remedy(
            {"object.slices": count, "object.slice_spacing_m": float(f"{spacing:.2g}")},
            advice="or other spacings",
        )
        for count, spacing in tried
    ]
    return Evidence(min(view.misfit_times, 100.0), sentence, tuple(remedies))


def find_lost_contrast(view: ResultView) -> Evidence | None:
    """Return 1 - contrast of y / contrast of I, over 5 x 5 pixels."""
    mean = ndimage.uniform_filter(view.y, (0, 5, 5), mode="wrap")
    bright = mean > BRIGHT
    if np.count_nonzero(bright) < MIN_BRIGHT_PIXELS:
        return None
    number = 1 - fringe_contrast(view.y, view.y, bright) / max(fringe_contrast(view.modelled, None, bright), 1e-30)
    if max(explained_blur(view).share.values()) < LEAST_SHARE:
        number = min(number, 0.0)
    sentence = f"fringes have {100 * number:.2g} % less contrast than those of the model"
    if number > 0 and explained_blur(view).share["detector"] > 0:
        share = explained_blur(view).share["detector"]
        sentence += f"; a blur over the detector's pixels explains {100 * share:.2g} % of the misfit"
    return Evidence(number, sentence, (more_modes(view, 2), more_modes(view, 4)))


def fringe_contrast(patterns: np.ndarray, noise: np.ndarray | None, mask: np.ndarray) -> float:
    """Return the variance of patterns about their local means, over those means squared, without that of counting.

    Args:
        patterns: (B, h, w) counts or intensities; means are over 5 x 5 pixels.
        noise: (B, h, w) variance of counting, or None for none.
        mask: (B, h, w) bool, pixels that count.
    """
    mean = ndimage.uniform_filter(patterns, (0, 5, 5), mode="wrap")
    square = (patterns - mean) ** 2
    if noise is not None:
        square = square - noise * (1 - 1 / 25)
    weight = mask / (mean + 1e-3 * mean.mean() + 1e-30)
    return float((square * weight).sum() / (mean**2 * weight).sum())
