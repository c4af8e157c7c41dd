"""The twin of a scan behind a lens: the opposite lens, and the scan turned by half a turn.

A thin object of the opposite phase explains the same patterns with it; one of several slices does not, and leaves much
unexplained. Atoms advance the phase of electrons: in the wrong twin they are dark.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from ptymesh.auto.short_runs import FEWEST_VIEWS, MOST_PIXELS, TwinTrial, compare_recipes_of_twins
from ptymesh.diagnosis.evidence import Evidence, Remedy
from ptymesh.diagnosis.remedies import changed_recipe
from ptymesh.diagnosis.view import ResultView
from ptymesh.errors import PtymeshError
from ptymesh.recipe.schema import Recipe
from ptymesh.recipe.starts import ElectronStart

#: Skewness of the phase, with the opposite sign, from which on atoms are dark; share of the most light from which on
#: pixels are looked at.
DARK, LIT = 0.5, 0.3
#: Share by which a twin must lower the residual in a trial. Of 4 nm of gold the wrong one lowers it by 0.05, of silicon
#: and strontium titanate of 6 to 8 nm the right one by 0.25 to 0.36.
GAIN = 0.1


def find_twin(view: ResultView) -> Evidence | None:
    """Return how dark atoms are in the object's phase, over what is remarkable; None without electrons and a lens."""
    remedy = _remedy(view)
    if remedy is None:
        return None
    phase = np.angle(view.result.object).sum(axis=0, dtype=np.float64)
    skewness = float(stats.skew(phase[view.light > LIT * view.light.max()]))
    sentence = f"atoms advance the phase of electrons, and are dark in that of the object (skewness {skewness:.2g})"
    return Evidence(max(0.0, -skewness / DARK), sentence, (remedy,))


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
    if gain < GAIN:
        is_refuted = 1 - trial.residual / trial.of_twin > GAIN
        return replace(seen, number=0.0) if is_refuted else seen
    sentence = (
        f"tried on {trial.views} views: with the opposite lens, and the scan turned by half a turn, a potential that "
        f"is nowhere negative explains held-out patterns to {trial.of_twin:.3g}, as given to {trial.residual:.3g}"
    )
    return Evidence(gain / GAIN, sentence, seen.remedies)


def _trial(view: ResultView) -> TwinTrial | None:
    """Return what came of short runs with both twins; None where they fail, or take more than seconds."""
    recipe, remedy, scan = view.recipe, _remedy(view), view.scan
    twin = None if recipe is None or remedy is None else changed_recipe(recipe, remedy)
    if recipe is None or twin is None or scan is None or FEWEST_VIEWS * math.prod(scan.window) > MOST_PIXELS:
        return None
    with suppress(PtymeshError):
        return compare_recipes_of_twins(*(_moved(one, scan.path) for one in (recipe, twin)))
    return None


def _moved(recipe: Recipe, path: str | Path | None) -> Recipe:
    """Return the recipe with the data set where it is now."""
    if path is None:
        return recipe
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"path": Path(path)})})


def _remedy(view: ResultView) -> Remedy | None:
    """Return the settings of the twin; None where there is none to be told apart."""
    recipe = view.recipe
    if not view.is_of_electrons or recipe is None or recipe.scans:
        return None
    start = recipe.probe.start
    if not isinstance(start, ElectronStart) or not any(start.parameters()["aberrations"].values()):
        return None
    settings: dict[str, Any] = {"positions.rotation_deg": round((recipe.positions.rotation_deg + 360) % 360 - 180, 6)}
    if start.defocus_m:
        settings["probe.start.defocus_m"] = -start.defocus_m
    if start.aberrations_m:
        opposite = {
            name: -size if isinstance(size, float | int) else [-size[0], size[1]]
            for name, size in start.aberrations_m.items()
        }
        settings["probe.start.aberrations_m"] = opposite
    return Remedy(settings)
