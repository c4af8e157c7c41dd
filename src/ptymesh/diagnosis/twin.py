"""The twin of a scan behind a lens: the opposite lens, and the scan turned by half a turn.

A thin object of the opposite phase explains the same patterns with it; one of several slices does not, and leaves much
unexplained. Atoms advance the phase of electrons: in the wrong twin they are dark.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy import stats

from ptymesh.diagnosis.evidence import Evidence, Remedy
from ptymesh.diagnosis.view import ResultView
from ptymesh.run.trials.twins import TwinTrial, compare_with_twin, twin_settings

#: Skewness of the phase, with the opposite sign, from which on atoms are dark; share of the most light from which on
#: pixels are looked at.
DARK, LIT = 0.5, 0.3
#: Share by which a clearly better twin lowers the residual in a trial, at least, to be named.
GAIN = 0.1


def find_twin(view: ResultView) -> Evidence | None:
    """Return how dark atoms are in the object's phase, over what is remarkable; None without electrons and a lens."""
    settings = None if view.recipe is None or not view.is_of_electrons else twin_settings(view.recipe)
    if settings is None:
        return None
    phase = np.angle(view.result.object).sum(axis=0, dtype=np.float64)
    skewness = float(stats.skew(phase[view.light > LIT * view.light.max()]))
    sentence = f"atoms advance the phase of electrons, and are dark in that of the object (skewness {skewness:.2g})"
    return Evidence(max(0.0, -skewness / DARK), sentence, (Remedy(settings),))


def try_twin(view: ResultView, seen: Evidence | None) -> Evidence | None:
    """Return how much better the twin explains patterns in a short trial, over what is remarkable.

    Args:
        view: the result.
        seen: what its object shows, which stays where the trial tells nothing.
    """
    trial = None if seen is None else _trial(view)
    if seen is None or trial is None:
        return seen
    gain = 1 - trial.of_twin / trial.residual
    if gain < GAIN or not trial.is_clear:
        is_refuted = trial.is_clear and 1 - trial.residual / trial.of_twin > GAIN
        return replace(seen, number=0.0) if is_refuted else seen
    sentence = (
        f"tried on {trial.views} views: with the opposite lens, and the scan turned by half a turn, a potential that "
        f"is nowhere negative explains held-out patterns to {trial.of_twin:.3g}, as given to {trial.residual:.3g}"
    )
    return Evidence(gain / GAIN, sentence, seen.remedies)


def _trial(view: ResultView) -> TwinTrial | None:
    """Return what came of short runs with both twins; None where they fail, or take more than seconds."""
    recipe, scan = view.recipe, view.scan
    if recipe is None or scan is None:
        return None
    if scan.path is not None:  # where the data set is now
        recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"path": Path(scan.path)})})
    return compare_with_twin(recipe, scan.window)
