"""Causes that the counts alone show: saturation, hot pixels.

y       counts (B, h, w)
"""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from ptymesh.diagnosis.cause import Evidence, Remedy
from ptymesh.diagnosis.view import ResultView
from ptymesh.io.options import MOST_BAD_PIXELS
from ptymesh.io.preprocess import PreparedSource

#: Neighbours of a pixel, without itself.
RING = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1]], bool)
#: Fewest pixels with the largest count, and that count, for saturation.
MIN_SATURATED = 10


def find_saturation(view: ResultView) -> Evidence | None:
    """Return the number of pixels with the largest count, over the number of those with the 20 % below it."""
    y = view.y[view.good]
    top = float(y.max())
    times = int(np.count_nonzero(y == top))
    below = int(np.count_nonzero((y >= 0.8 * top) & (y < top)))
    number = times / (1 + below) if times >= MIN_SATURATED else 0.0
    sentence = f"{times} pixels hold the largest count, {top:g}, {number:.2g} times as many as the 20 % below it"
    return Evidence(number, sentence, (Remedy({"data.saturation": top}),))


def find_hot_pixels(view: ResultView) -> Evidence | None:
    """Return how many pixels never fall to what their neighbours fall to."""
    hot = np.argwhere(_hot_pixels(view))
    if not len(hot):
        return Evidence(0.0)
    count = f"{len(hot)} pixels stay" if len(hot) > 1 else "a pixel stays"
    where = f"row {hot[0][0]}, column {hot[0][1]} as the model has it"
    sentence = f"{count} far above all neighbours in nine views of ten, such as {where}"
    return Evidence(float(len(hot)), sentence, (mask_pixels(view, hot),))


def _hot_pixels(view: ResultView) -> np.ndarray:
    """Return the pixels (h, w) that stay far above their neighbours in nine views of ten."""
    low = np.quantile(view.y, 0.1, axis=0)
    around = ndimage.generic_filter(low, np.median, footprint=RING, mode="wrap")
    best = ndimage.maximum_filter(low, footprint=RING, mode="wrap")
    known = view.good.all(axis=0)
    return np.asarray(known & (low > 5 + 3 * around + 5 * np.sqrt(around)) & (low > 2 * best))


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
    known = [list(one) for one in view.recipe.data.bad_pixels] if view.recipe is not None else []
    every = known + [one for one in stored if one not in known]
    return Remedy({"data.bad_pixels": every}) if len(every) <= MOST_BAD_PIXELS else mask
