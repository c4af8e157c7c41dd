"""Causes in the beam: fluctuating intensity, background, partial coherence.

I, y    modelled intensities, counts (B, h, w)
"""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from ptymesh.diagnosis.cause import Evidence, Remedy
from ptymesh.diagnosis.view import ResultView

#: Mean count from which on fringes stand out of counting noise, and pixels of which there must be so many.
BRIGHT, MIN_BRIGHT_PIXELS = 5.0, 1000


def find_intensity(view: ResultView) -> Evidence | None:
    """Return the standard deviation of sum y / sum I over views, beyond three times what counting makes."""
    y, model = view.y.sum(axis=(1, 2)), view.modelled.sum(axis=(1, 2))
    ratio = y / np.maximum(model, 1e-30)
    spread = 1.4826 * float(np.median(np.abs(ratio - np.median(ratio))))
    counting = float((1 / np.maximum(y, 1)).mean()) ** 0.5
    number = max(0.0, max(0.0, spread**2 - counting**2) ** 0.5 - 3 * counting)
    sentence = f"views are brighter and darker than their models by {100 * number:.2g} %"
    return Evidence(number, sentence, (Remedy({"stage.probe.intensity": True}, unless="stage.probe.intensity"),))


def find_background(view: ResultView) -> Evidence | None:
    """Return the even light in the darkest fifth of the detector beyond the known background, as a share of all.

    Light m = s + b with speckle of s alone has the variance s^2 + m.
    """
    good = view.good.all(axis=0)
    known = 0.0 if view.result.background is None else view.result.background[good]
    patterns = view.y[:, good]
    mean = patterns.mean(axis=0)
    dark = mean <= np.quantile(mean, 0.2)
    m = patterns[:, dark].mean()
    speckle = np.sqrt(max(0.0, patterns[:, dark].var() - m))
    even = m - speckle - np.broadcast_to(known, mean.shape)[dark].mean()
    number = float(even / max(mean.mean(), 1e-30))
    sentence = f"the darkest fifth of the detector has light without speckle, {100 * number:.2g} % of all if it is even"
    moved = Remedy({"stage.unknowns.background": True}, unless="stage.unknowns.background")
    added = {"engine": "adam", "epochs": 30, "unknowns": {"object": True, "probe": True, "background": True}}
    fitted = Remedy({"stages.+": added}, unless="stage.unknowns.background")
    measured = Remedy(advice="record a background without beam, and name it as data.background")
    return Evidence(number, sentence, (moved, fitted, measured))


def find_lost_contrast(view: ResultView) -> Evidence | None:
    """Return 1 - contrast of y / contrast of I, over 5 x 5 pixels."""
    mean = ndimage.uniform_filter(view.y, (0, 5, 5), mode="wrap")
    bright = mean > BRIGHT
    if np.count_nonzero(bright) < MIN_BRIGHT_PIXELS:
        return None
    number = 1 - contrast(view.y, view.y, bright) / max(contrast(view.modelled, None, bright), 1e-30)
    modes = len(view.result.probe)
    sentence = f"fringes have {100 * number:.2g} % less contrast than those of the model"
    return Evidence(number, sentence, (Remedy({"probe.modes": modes + 2}),))


def contrast(patterns: np.ndarray, noise: np.ndarray | None, where: np.ndarray) -> float:
    """Return the variance of patterns about their local means, over those means squared, without that of counting.

    Args:
        patterns: (B, h, w) counts or intensities; means are over 5 x 5 pixels.
        noise: (B, h, w) variance of counting, or None for none.
        where: (B, h, w) bool, pixels that count.
    """
    mean = ndimage.uniform_filter(patterns, (0, 5, 5), mode="wrap")
    square = (patterns - mean) ** 2
    if noise is not None:
        square = square - noise * (1 - 1 / 25)
    weight = where / (mean + 1e-3 * mean.mean() + 1e-30)
    return float((square * weight).sum() / (mean**2 * weight).sum())
