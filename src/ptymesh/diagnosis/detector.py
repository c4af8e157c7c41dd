"""Causes that the counts alone betray: saturation, hot pixels.

y       counts (B, h, w)
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from scipy import ndimage

from ptymesh.diagnosis.base import Cause
from ptymesh.diagnosis.look import Look
from ptymesh.io.preprocess import PreparedSource

#: Hot pixels that are named, at most.
LISTED = 12
#: Neighbours of a pixel, without itself.
RING = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1]], bool)


class Saturation(Cause):
    """The largest number comes far more often than those a little below it."""

    name: ClassVar[str] = "saturation"
    title: ClassVar[str] = "The detector saturates"
    threshold: ClassVar[float] = 3.0
    weight: ClassVar[float] = 3.0

    def number(self, look: Look) -> float:
        """How often the largest count comes, over how often the 20 % below it do; 0 where it comes ten times only."""
        y = look.y[look.good]
        top = y.max()
        most = np.count_nonzero(y == top)
        return most / (1 + np.count_nonzero((y >= 0.8 * top) & (y < top))) if most >= 10 else 0.0

    def sentence(self, look: Look, number: float) -> str:
        top = look.y.max()
        times = np.count_nonzero(look.y == top)
        return f"{times} pixels hold the largest count, {top:g}, {number:.2g} times as many as the 20 % below it"

    def recipe(self, look: Look) -> str:
        return f"data: {{saturation: {look.y.max():g}}}"


class HotPixels(Cause):
    """Pixels that never fall to what their neighbours fall to."""

    name: ClassVar[str] = "hot_pixels"
    title: ClassVar[str] = "Hot pixels"
    threshold: ClassVar[float] = 0.5
    weight: ClassVar[float] = 2.0

    def number(self, look: Look) -> float:
        """How many pixels are hot."""
        return float(self._hot(look).sum())

    @staticmethod
    def _hot(look: Look) -> np.ndarray:
        low = np.quantile(look.y, 0.1, axis=0)
        around = ndimage.generic_filter(low, np.median, footprint=RING, mode="wrap")
        best = ndimage.maximum_filter(low, footprint=RING, mode="wrap")
        known = look.good.all(axis=0)
        return np.asarray(known & (low > 5 + 3 * around + 5 * np.sqrt(around)) & (low > 2 * best))

    def sentence(self, look: Look, number: float) -> str:
        y, x = (int(index[0]) for index in np.nonzero(self._hot(look)))
        count = f"{number:.0f} pixels stay" if number > 1 else "a pixel stays"
        return f"{count} far above all neighbours in nine views of ten, such as row {y}, column {x} as the model has it"

    def recipe(self, look: Look) -> str:
        scan = look.scan
        assert scan is not None
        if not isinstance(scan.patterns, PreparedSource):  # no file says how a detector stores them
            return "data: {mask: hot.npy, mask_true: bad}"
        far, (h, w) = scan.geometry.propagation == "far_field", scan.window
        places = np.argwhere(self._hot(look)) + (np.array([h // 2, w // 2]) if far else 0)
        pixels = [list(one) for y, x in places % (h, w) for one in scan.patterns.window.stored(int(y), int(x))]
        return f"data: {{bad_pixels: {pixels[:LISTED]}}}" + ("  # and others" if len(pixels) > LISTED else "")
