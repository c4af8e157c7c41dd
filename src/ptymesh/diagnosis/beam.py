"""Causes in the light: fluctuating intensity, background.

I, y    modelled intensities, counts (B, h, w)
"""

from __future__ import annotations

import numpy as np

from ptymesh.diagnosis.evidence import Evidence, Remedy
from ptymesh.diagnosis.view import ResultView


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

    Light m = s + b with speckle of s alone has the variance s^2 + m, if it is counted; None of what are no counts.
    """
    if view.noise_level is None:
        return None
    good = view.good.all(axis=0)
    background = view.result.background
    modelled = 0.0 if background is None else background.reshape(-1, *good.shape).mean(axis=0)[good]
    patterns = view.y[:, good]
    mean = patterns.mean(axis=0)
    dark = mean <= np.quantile(mean, 0.2)
    m = patterns[:, dark].mean()
    speckle = np.sqrt(max(0.0, patterns[:, dark].var() - m))
    even = m - speckle - np.broadcast_to(modelled, mean.shape)[dark].mean()
    number = float(even / max(mean.mean(), 1e-30))
    sentence = f"the darkest fifth of the detector has light without speckle, {100 * number:.2g} % of all if it is even"
    moved = Remedy({"stage.unknowns.background": True}, unless="stage.unknowns.background")
    added = {"engine": "adam", "epochs": 30, "unknowns": {"object": True, "probe": True, "background": True}}
    fitted = Remedy({"stages.+": added}, unless="stage.unknowns.background")
    measured = Remedy(advice="record a background without beam, and name it as data.background")
    return Evidence(number, sentence, (moved, fitted, measured))
