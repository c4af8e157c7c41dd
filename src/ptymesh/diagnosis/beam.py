"""Causes in the beam: fluctuating intensity, background, partial coherence.

I, y    modelled intensities, counts (B, h, w)
G       mean over 5 x 5 pixels
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from scipy import ndimage

from ptymesh.diagnosis.base import Cause
from ptymesh.diagnosis.look import Look

#: Mean count from which on fringes stand out of counting noise, and pixels of which there must be so many.
BRIGHT, FEWEST = 5.0, 1000
#: Times what counting leaves that a misfit must be for contrast to say anything.
UNEXPLAINED = 1.5


class Intensity(Cause):
    """Views are brighter and darker than the model has them."""

    name: ClassVar[str] = "intensity"
    title: ClassVar[str] = "The beam's intensity fluctuates"
    threshold: ClassVar[float] = 0.02

    def number(self, look: Look) -> float:
        """Standard deviation of sum y / sum I over views, beyond three times what counting makes."""
        y, model = look.y.sum(axis=(1, 2)), look.modelled.sum(axis=(1, 2))
        ratio = y / np.maximum(model, 1e-30)
        spread = 1.4826 * float(np.median(np.abs(ratio - np.median(ratio))))
        counted = float((1 / np.maximum(y, 1)).mean()) ** 0.5
        return max(0.0, max(0.0, spread**2 - counted**2) ** 0.5 - 3 * counted)

    def sentence(self, look: Look, number: float) -> str:
        much, most = f"{100 * number:.2g} %", f"{100 * self.threshold:g} %"
        return f"views are brighter and darker than their models by {much} (more than {most})"

    def recipe(self, look: Look) -> str:
        return "stages: [{..., probe: {intensity: true}}]"


class Background(Cause):
    """Where the patterns are darkest, there is light without speckle: it has counting noise alone."""

    name: ClassVar[str] = "background"
    title: ClassVar[str] = "An unknown background"
    threshold: ClassVar[float] = 0.02

    def number(self, look: Look) -> float:
        """Even part of the light in the darkest fifth of the detector, beyond the known background, spread over the
        whole, as a share of all light. Light m = s + b with speckle of s alone has the variance s^2 + m."""
        known = look.good.all(axis=0)
        told = 0.0 if look.result.background is None else look.result.background[known]
        patterns = look.y[:, known]
        mean = patterns.mean(axis=0)
        dark = mean <= np.quantile(mean, 0.2)
        m = patterns[:, dark].mean()
        speckle = np.sqrt(max(0.0, patterns[:, dark].var() - m))
        even = m - speckle - np.broadcast_to(told, mean.shape)[dark].mean()
        return float(even / max(mean.mean(), 1e-30))

    def sentence(self, look: Look, number: float) -> str:
        return f"the darkest fifth of the detector has light without speckle, {100 * number:.2g} % of all if it is even"

    def recipe(self, look: Look) -> str:
        return "data: {background: background.npy}"


class FewModes(Cause):
    """Fringes of the data have less contrast than those of the model."""

    name: ClassVar[str] = "few_modes"
    title: ClassVar[str] = "Partial coherence, or too few modes"
    threshold: ClassVar[float] = 0.003
    weight: ClassVar[float] = 0.6

    def number(self, look: Look) -> float:
        """1 - contrast of y / contrast of I, over 5 x 5 pixels; 0 where counting explains the misfit."""
        mean = ndimage.uniform_filter(look.y, (0, 5, 5), mode="wrap")
        bright = mean > BRIGHT
        if np.count_nonzero(bright) < FEWEST:
            return float("nan")
        if look.excess < UNEXPLAINED:
            return 0.0
        data = contrast(look.y, look.y, bright)
        return 1 - data / max(contrast(look.modelled, None, bright), 1e-30)

    def sentence(self, look: Look, number: float) -> str:
        return f"fringes have {100 * number:.2g} % less contrast than those of the model"

    def recipe(self, look: Look) -> str:
        return f"probe: {{modes: {len(look.result.probe) + 2}}}"


def contrast(patterns: np.ndarray, noise: np.ndarray | None, where: np.ndarray) -> float:
    """Variance of patterns (B, h, w) about their means over 5 x 5 pixels, over those means squared; less counting."""
    mean = ndimage.uniform_filter(patterns, (0, 5, 5), mode="wrap")
    square = (patterns - mean) ** 2
    if noise is not None:
        square = square - noise * (1 - 1 / 25)
    weight = where / (mean + 1e-3 * mean.mean() + 1e-30)
    return float((square * weight).sum() / (mean**2 * weight).sum())
