"""The lens that was found or its twin, which is the opposite one with the scan turned by half a turn.

A thin object of the opposite phase explains the same patterns with the other one. But atoms advance the phase of
electrons: both are reconstructed from some views, as a potential that may not be negative, and the right one explains
held-out views better (`ptymesh.run.trials.twins`).
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Literal

import numpy as np
from scipy import ndimage

from ptymesh.calibrate.calibration import Calibration
from ptymesh.calibrate.parallax import Lens
from ptymesh.calibrate.recipe import recipe_of
from ptymesh.run.trials.twins import TwinTrial, compare_recipes_of_twins

#: Share of the images' borders that is left out where their sign is judged.
BORDER = 0.12
#: Skewness of a phase image from which on its sign is believed, and in its standard errors.
SKEWED, SKEWED_ERRORS = 0.15, 3.0

DefocusSign = Literal["negative", "positive", "unknown"]
PhaseSign = Literal["bright", "dark"]


def choose_twin(calibration: Calibration, image: np.ndarray, c10: DefocusSign, phase: PhaseSign) -> tuple[Lens, str]:
    """Return the lens or its twin, and what tells them apart; empty where nothing does.

    Args:
        calibration: the calibration, of one of the two.
        image: (R, C) phase with this lens, which is looked at where reconstructions do not tell.
        c10: known sign of C10.
        phase: sign of the phase of features; where C10 is unknown.
    """
    lens = calibration.lens
    if c10 != "unknown" and lens.c10_m:
        right = (lens.c10_m < 0) == (c10 == "negative")
        return (lens if right else lens.twin), f"C10, said to be {c10}"
    if calibration.orientation_from != "nothing":
        trial = compare_twins(calibration)
        if trial.is_clear:
            right = (trial.residual < trial.of_twin) == (phase == "bright")
            low, high = sorted((trial.residual, trial.of_twin))
            return (lens if right else lens.twin), (
                f"features that are {phase} in the phase (a potential that is nowhere negative explains {trial.views} "
                f"patterns to {low:.3g} with the one, to {high:.3g} with the other)"
            )
        if trial.differs:  # of a sample too strong for short runs, and the more so for the image of a weak one
            return lens, ""
    skewness, error = skewness_of(image)
    if abs(skewness) < max(SKEWED, SKEWED_ERRORS * error):
        return lens, ""
    right = (skewness > 0) == (phase == "bright")
    return (lens if right else lens.twin), f"features that are {phase} in the phase (skewness {abs(skewness):.2g})"


def compare_twins(calibration: Calibration) -> TwinTrial:
    """Return how well a positive potential explains held-out views with the lens that was found, and with its twin."""
    as_measured, twin = (
        recipe_of(replace(calibration, lens=lens), Path())[0] for lens in (calibration.lens, calibration.lens.twin)
    )
    return compare_recipes_of_twins(as_measured, twin)


def skewness_of(image: np.ndarray) -> tuple[float, float]:
    """Return the skewness of the features of an image (R, C) away from its borders, and its standard error in noise."""
    rows, columns = (max(1, int(BORDER * n)) for n in image.shape)
    smooth = ndimage.gaussian_filter(image, 0.7) - ndimage.gaussian_filter(image, min(image.shape) / 8)
    inner = smooth[rows:-rows, columns:-columns]
    spread = float(inner.std())
    return float(((inner - inner.mean()) ** 3).mean()) / spread**3 if spread else 0.0, sqrt(6 / inner.size)
