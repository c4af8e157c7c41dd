"""A lens or its twin, which is the opposite one with the scan turned by half a turn.

A thin object of the opposite phase explains the same patterns with the other one. Two things tell them apart: atoms
advance the phase of electrons, so that their potential is nowhere negative, and a wave that has passed several slices
does not go back through them. So both are reconstructed as few slices of a potential that may not be negative, from
some views in the middle of the scan, and the right one explains views that were held out better.

The lens is opposite in the middle of the sample: at its first slice, d before that, C10 becomes -C10 - 2 d.
"""

from __future__ import annotations

import math
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch

from ptymesh.errors import PtymeshError
from ptymesh.io import load_measurement
from ptymesh.measurement import Measurement, central_views, select_views
from ptymesh.physics.detector.counting import expected_misfit
from ptymesh.recipe.schema import RawGroup, Recipe, default_stages, engine_of, put
from ptymesh.recipe.starts import ElectronStart, ObjectOptions
from ptymesh.run.trials.short_runs import judge_short_run
from ptymesh.verdict.held_out import Judged
from ptymesh.verdict.signs import Sign

#: Views, views of a batch, epochs and probe modes of a run that tells twins apart; the share of views it holds out.
VIEWS, BATCH, EPOCHS, MODES, HELD_OUT = 196, 16, 12, 2, 0.1
#: Slices of its potential, and their thickness together where the recipe has one slice, in depths of focus (wavelength
#: over the square of the semi-angle); the same of a second try.
SLICES, DEPTH = 3, 1.0
MORE_SLICES, MORE_DEPTH = 6, 4.0
#: Pixels of all patterns, beyond which fewer views are taken, but no fewer than so many.
MOST_PIXELS, FEWEST_VIEWS = VIEWS * 128 * 128, 100
#: Fraction of the pixels that lie below the zero of the potential.
BASELINE = 0.2
#: Residual of the better twin over that of the other, below which it is believed; standard errors of their difference,
#: over held-out views, above which it is.
BETTER, STANDARD_ERRORS = 0.97, 4.0
#: Share of the differences between views that the better one must explain. Of 4 nm of gold that such short runs do
#: not reach, the wrong twin explained 0.35, and more than the right one; 0.47 with eight slices and 24 epochs.
EXPLAINED = 0.6
#: The same share from which on a thicker sample is tried, too: less is what noise or a weak sample leaves.
SOME_EXPLAINED = 0.2
#: Ratio of these residuals below which the verdict on a run says so.
MUCH_BETTER = 0.9


@dataclass(frozen=True)
class TwinTrial:
    """Held-out residuals of two short reconstructions.

    Attributes:
        residual: with the lens and the orientation in question.
        of_twin: with the opposite lens, and the scan turned by half a turn.
        views: number of views of each.
        standard_errors: of the difference, by its scatter over held-out views; without a sign.
        explained: share of the differences between views, beyond counting, that the better one explains.
    """

    residual: float
    of_twin: float
    views: int
    standard_errors: float = math.inf
    explained: float = 1.0

    @property
    def differs(self) -> bool:
        """True if held-out views are explained better with one twin than with the other, beyond chance."""
        ratio = min(self.residual, self.of_twin) / max(self.residual, self.of_twin)
        return ratio < BETTER and self.standard_errors > STANDARD_ERRORS

    @property
    def is_clear(self) -> bool:
        """True if one twin explains held-out views better, and well enough to be believed."""
        return self.differs and self.explained > EXPLAINED


def twin_settings(recipe: Recipe) -> RawGroup | None:
    """Return the settings of the twin by the recipe's keys; None where there is no lens, or none to be told apart."""
    start = recipe.probe.start
    if recipe.scans or not isinstance(start, ElectronStart) or not any(start.parameters()["aberrations"].values()):
        return None
    settings: RawGroup = {"positions.rotation_deg": round((recipe.positions.rotation_deg + 360) % 360 - 180, 6)}
    opposite: RawGroup = {
        name: -size if isinstance(size, float | int) else [-size[0], size[1]]
        for name, size in start.aberrations_m.items()
    }
    through_m = 2 * recipe.object.middle_m
    if start.defocus_m:
        settings["probe.start.defocus_m"] = through_m - start.defocus_m
    elif through_m:
        opposite["C10"] = float(f"{opposite.get('C10', 0.0) - through_m:.8g}")
    if opposite:
        settings["probe.start.aberrations_m"] = opposite
    return settings


def compare_with_twin(recipe: Recipe, window: tuple[int, int]) -> TwinTrial | None:
    """Return what came of short runs with the recipe and its twin.

    Args:
        recipe: of one scan.
        window: (h, w) of its patterns.

    Returns:
        None where there is no twin to be told apart, the runs fail, or they would take more than seconds.
    """
    settings = twin_settings(recipe)
    if settings is None or FEWEST_VIEWS * math.prod(window) > MOST_PIXELS:
        return None
    raw = recipe.as_values()
    with suppress(PtymeshError, OSError, MemoryError, RuntimeError):  # torch's for memory and decompositions, too
        for key, value in settings.items():
            put(raw, key, deepcopy(value), "the twin")
        return compare_recipes_of_twins(recipe, Recipe.parse(raw))
    return None


def sign_of_twin(recipe: Recipe, window: tuple[int, int]) -> Sign | None:
    """Return the sign that the twin of a recipe's lens is the right one; None where short runs do not say so.

    Only of several slices: a film with holes looks like the twin of one with grains, if it is thin.
    """
    trial = compare_with_twin(recipe, window) if recipe.object.slices > 1 else None
    if trial is None or not trial.is_clear or trial.of_twin > MUCH_BETTER * trial.residual:
        return None
    sentence = (
        "with the opposite lens, and the scan turned by half a turn, a potential that is nowhere negative explains "
        f"held-out views to {trial.of_twin:.3g}, as given to {trial.residual:.3g}"
    )
    return Sign("twin", MUCH_BETTER * trial.residual / trial.of_twin, sentence)


def compare_recipes_of_twins(recipe: Recipe, twin: Recipe) -> TwinTrial:
    """Return how well a positive potential explains held-out views with either recipe.

    Args:
        recipe: of electrons behind a lens; its stages are not taken, and of its object the thickness.
        twin: the same with the other lens and orientation.

    Raises:
        PtymeshError: a scan cannot be read, or the residual left the numbers.
    """
    measurement, other = (load_measurement(one.data, one.positions) for one in (recipe, twin))
    h, w = measurement.window
    views = max(FEWEST_VIEWS, min(VIEWS, MOST_PIXELS // (h * w)))
    measurement, other = (select_views(scan, central_views(scan.positions, views)) for scan in (measurement, other))
    trial = _compare_potentials((measurement, recipe), (other, twin), SLICES, DEPTH)
    if trial.is_clear or trial.explained < SOME_EXPLAINED or recipe.object.slices > 1:
        return trial
    return _compare_potentials((measurement, recipe), (other, twin), MORE_SLICES, MORE_DEPTH)


def _compare_potentials(
    one: tuple[Measurement, Recipe], other: tuple[Measurement, Recipe], slices: int, depth: float
) -> TwinTrial:
    """Return how well so many slices, so many depths of focus thick, explain held-out views of either twin."""
    first, second = (_judge_positive_potential(*which, slices, depth) for which in (one, other))
    scan, gain = one[0], first.gain_over(second)
    explained = share_explained(scan, min(first.residual, second.residual))
    return TwinTrial(first.residual, second.residual, scan.views, abs(gain[1]), explained)


def share_explained(scan: Measurement, residual: float) -> float:
    """Return the share of the differences between views, beyond counting, that a fit explains.

    Differences are those of amplitudes sqrt y from their mean over views, as a residual.

    Args:
        scan: the views, all of which are read.
        residual: of the fit, sum (sqrt y - sqrt I)^2 / sum y.
    """
    stored = scan.patterns.read(np.arange(scan.views))
    y = torch.as_tensor(np.where(scan.mask & (stored >= 0), stored, 0).astype(np.float64))
    roots, counts = y.sqrt(), max(float(y.sum()), 1e-300)
    spread = float((roots - roots.mean(dim=0)).square().sum()) / counts
    is_counted = bool((y == y.round()).all())
    floor = float((expected_misfit(y) * torch.as_tensor(scan.mask)).sum()) / counts if is_counted else 0.0
    return (spread - residual) / (spread - floor) if spread > floor else 0.0


def _judge_positive_potential(scan: Measurement, recipe: Recipe, slices: int, depth: float) -> Judged:
    """Return how well a potential that is nowhere negative explains held-out views."""
    obj, start = _few_slices(scan, recipe, slices, depth), recipe.probe.start
    if isinstance(start, ElectronStart):  # the same lens in the middle of the sample
        start = start.at_depth(recipe.object.middle_m - obj.middle_m)
    probe = recipe.probe.model_copy(update={"modes": MODES, "start": start})
    stage = default_stages(obj, probe)[-1]
    constraints = {**stage.get("constraints", {}), "positivity": {"baseline": BASELINE}}
    return judge_short_run(
        scan,
        recipe.model_copy(update={"object": obj, "probe": probe}),
        engine_of("stages.0", {**stage, "epochs": EPOCHS, "batch": BATCH, "constraints": constraints}),
        HELD_OUT,
    )


def _few_slices(scan: Measurement, recipe: Recipe, slices: int, depth: float) -> ObjectOptions:
    """Return a potential of few slices, as thick as the recipe's several slices or so many depths of focus."""
    start, object_options, wavelength_m = recipe.probe.start, recipe.object, scan.geometry.wavelength_m
    if object_options.slice_spacing_m is not None:
        thickness_m = object_options.slices * object_options.slice_spacing_m
    elif isinstance(start, ElectronStart) and wavelength_m is not None:
        thickness_m = depth * wavelength_m / start.semiangle_rad**2
    else:
        return ObjectOptions(kind="potential")
    return ObjectOptions(kind="potential", slices=slices, slice_spacing_m=thickness_m / slices)
