"""Causes that the counts alone show: saturation, hot pixels.

y       counts (B, h, w)
"""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from ptymesh.diagnosis.evidence import Evidence, Remedy
from ptymesh.diagnosis.shadows import upright
from ptymesh.diagnosis.view import ResultView
from ptymesh.io.options import MOST_BAD_PIXELS
from ptymesh.io.prepare.preprocess import PreparedSource

#: Mean counts of pixels that are looked at for zeros, and how many such pixels are needed.
LIT, MIN_LIT = 2.0, 20
#: Views from which on a pixel's variance is known; fewest modes of speckle, where light varies much between views.
MIN_SOUND, LEAST_MODES = 12, 0.2
#: Neighbours of a pixel, without itself.
RING = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1]], bool)
#: Fewest pixels with the largest count, and that count, for saturation.
MIN_SATURATED = 10
#: Counts in all views together that a pixel's neighbours have, if it is to be called dead.
MIN_EXPECTED = 25.0
#: Squares that are looked at, over the smallest; values that must be among them.
MAX_RATIO, MIN_LEVELS = 1000.0, 6


def find_saturation(view: ResultView) -> Evidence | None:
    """Return how many pixels hold the largest count, over how many hold each of the counts 20 % below it."""
    y = view.y[view.good]
    top = float(y.max())
    times = int(np.count_nonzero(y == top))
    below = int(np.count_nonzero((y >= 0.8 * top) & (y < top))) / max(1.0, 0.2 * top)
    number = times / (1 + below) if times >= MIN_SATURATED else 0.0
    sentence = f"{times} pixels hold the largest count, {top:g}, {number:.2g} times as many as hold one a little less"
    return Evidence(number, sentence, (Remedy({"data.saturation": top}),))


def find_over_subtraction(view: ResultView) -> Evidence | None:
    """Return how many pixels are without a count, over what speckle, or the model if that is more, leaves without one.

    Speckle of M modes, with counts of mean m and variance m + m^2 / M, has none with probability (1 + m / M)^-M by
    Mandel's formula (Goodman, Statistical Optics, section 9.2). M is taken from each pixel's mean and variance over
    the views, below 1 where light varies more than that of fully developed speckle. Beams that come and go leave more
    zeros, as a model says that has them. More than either come from what is subtracted.
    """
    if view.noise_level is None:
        return None
    totals = view.y.sum(axis=(1, 2))
    middle = np.median(totals)
    sound = (totals > 0.2 * middle) & (totals < 5 * middle)  # a lost beam leaves zeros, too
    usual = view.y[sound]
    mean = usual.mean(axis=0)
    illuminated = view.good.all(axis=0) & (mean > LIT)
    if illuminated.sum() < MIN_LIT or len(usual) < MIN_SOUND:
        return None
    m, variance = mean[illuminated], usual[:, illuminated].var(axis=0, ddof=1)
    # 1 at most: what cuts off small counts takes variance as well
    modes = np.clip(m**2 / np.maximum(variance - m, 1e-9), LEAST_MODES, 1.0)
    zeros, speckle = float((usual[:, illuminated] == 0).mean(axis=0).sum()), float(((1 + m / modes) ** -modes).sum())
    most = max(speckle, float(np.exp(-np.maximum(view.modelled[sound][:, illuminated], 0)).mean(axis=0).sum()))
    sentence = f"{zeros / most:.2g} times as many pixels are without a count as speckle and the model leave so"
    has_dark = view.recipe is not None and view.recipe.data.dark is not None
    source = (
        "data.dark, which the file may have had subtracted already" if has_dark else "a dark pattern subtracted twice"
    )
    return Evidence(zeros / most, sentence, (Remedy(advice=f"look for what was subtracted from the file: {source}"),))


def find_hot_pixels(view: ResultView) -> Evidence | None:
    """Return how many pixels never fall to what their neighbours fall to."""
    hot = np.argwhere(_hot_pixels(view))
    if not len(hot):
        return Evidence(0.0)
    count = f"{len(hot)} pixels stay" if len(hot) > 1 else "a pixel stays"
    place = f"row {hot[0][0]}, column {hot[0][1]} as the model has it"
    sentence = f"{count} far above all neighbours in nine views of ten, such as {place}"
    return Evidence(float(len(hot)), sentence, (mask_pixels(view, hot),))


def _hot_pixels(view: ResultView) -> np.ndarray:
    """Return the pixels (h, w) that stay far above their neighbours in nine views of ten."""
    low = np.quantile(view.y, 0.1, axis=0)
    neighbours = np.median([np.roll(low, shift, axis=(0, 1)) for shift in np.argwhere(RING) - 1], axis=0)
    best = ndimage.maximum_filter(low, footprint=RING, mode="wrap")
    good = view.good.all(axis=0)
    return np.asarray(good & (low > 5 + 3 * neighbours + 5 * np.sqrt(neighbours)) & (low > 2 * best))


def mask_pixels(view: ResultView, pixels: np.ndarray) -> Remedy:
    """Return the remedy that leaves out pixels (n, 2) of the model's window, as the file stores them."""
    scan = view.scan
    assert scan is not None
    mask = Remedy(advice="give a mask of them (data.mask, 1 where the detector is good)")
    if not isinstance(scan.patterns, PreparedSource):  # no file says how a detector stores them
        return mask
    far, (h, w) = scan.geometry.propagation == "far_field", scan.window
    places = (pixels + (np.array([h // 2, w // 2]) if far else 0)) % (h, w)
    stored = [[int(n) for n in one] for y, x in places for one in scan.patterns.window.stored(int(y), int(x))]
    masked = [list(one) for one in view.recipe.data.bad_pixels] if view.recipe is not None else []
    every = masked + [one for one in stored if one not in masked]
    return Remedy({"data.bad_pixels": every}) if len(every) <= MOST_BAD_PIXELS else mask


def find_dead_region(view: ResultView) -> Evidence | None:
    """Return how many pixels without counts in any view lie between bright ones, where the model expects counts."""
    shape = upright(view, view.y.mean(axis=0))
    expected = upright(view, view.modelled.mean(axis=0)) * len(view.views)
    good = upright(view, np.asarray(view.good.all(axis=0)))
    dead = good & (shape == 0)
    bright = good & (shape * len(view.views) > MIN_EXPECTED)
    between = np.zeros_like(dead)
    for axis in (0, 1):
        before = np.maximum.accumulate(bright, axis=axis)
        after = np.flip(np.maximum.accumulate(np.flip(bright, axis), axis=axis), axis)
        between |= before & after
    dark = dead & between
    labels, count = ndimage.label(dark, structure=np.ones((3, 3)))
    pixels = np.zeros_like(dark)
    for label in range(1, count + 1):
        region = labels == label
        rim = ndimage.binary_dilation(region, structure=np.ones((3, 3))) & ~region & good
        rim_counts = float(np.median(shape[rim])) * len(view.views) if rim.any() else 0.0
        if rim_counts > MIN_EXPECTED and float(np.median(expected[region])) > 1:
            pixels |= region
    places = np.argwhere(pixels)
    if not len(places):
        return Evidence(0.0)
    h, w = shape.shape
    rows = f"rows {places[:, 0].min()} to {places[:, 0].max()}, columns {places[:, 1].min()} to {places[:, 1].max()}"
    sentence = f"{len(places)} pixels beside bright ones never count ({rows} of the upright window of {h} x {w})"
    far = view.scan is not None and view.scan.geometry.propagation == "far_field"
    stored = (places - np.array([h // 2, w // 2])) % (h, w) if far else places
    return Evidence(float(len(places)), sentence, (mask_pixels(view, stored),))


def find_amplitudes(view: ResultView) -> Evidence | None:
    """Return how surely the patterns are square roots of counts: 1 if their squares are whole, else by their noise.

    Noise of counts grows with their mean, noise of their square roots does not.
    """
    y = view.y[view.good]
    if view.holds_counts or not (y > 0).any():
        return Evidence(0.0)
    squares = y[y > 0] ** 2
    unit = float(squares.min())
    ratio = squares / unit
    use = ratio < MAX_RATIO
    share_of_integers = float(np.mean(np.abs(ratio[use] - np.round(ratio[use])) < 1e-4 * np.maximum(ratio[use], 1)))
    levels = len(np.unique(np.round(ratio[use])))
    plain = y[y > 0] / float(y[y > 0].min())
    plain = plain[plain < MAX_RATIO]
    counts = float(np.mean(np.abs(plain - np.round(plain)) < 1e-4 * np.maximum(plain, 1)))
    number = share_of_integers if levels >= MIN_LEVELS and counts < 0.5 else 0.0
    sentence = (
        f"the squares of the patterns are whole multiples of {unit:.4g}: they are amplitudes, square roots of counts"
    )
    return Evidence(number, sentence, (Remedy(advice="square the patterns, and write them as counts"),))
