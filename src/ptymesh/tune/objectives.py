"""Objectives of trials: a number after every few epochs, for the pruner, and the last one for the study.

Everything here is done by all ranks of a trial alike, and every rank gets the same numbers.

O       product of the object's slices, (H, W) complex
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ptymesh.compare import compare_results, illuminated, illumination
from ptymesh.distributed.world import World
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.io.results import Result
from ptymesh.planning.batches import hold_out
from ptymesh.recipe.schema import Recipe
from ptymesh.run.loop import Loop
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.run.session import reconstruction
from ptymesh.run_folder.reports import EpochReport
from ptymesh.tune.options import FourierRings, Function, Goal, HeldOut

#: The number after so many epochs. The last one is the trial's value.
Values = Iterator[tuple[int, float]]
Stop = Callable[[], bool]


def direction(goal: Goal) -> Literal["minimize", "maximize"]:
    """Return whether the number is to be made small (minimize) or large (maximize)."""
    if isinstance(goal, Function):
        return goal.direction
    return "minimize" if isinstance(goal, HeldOut) else "maximize"


def values(goal: Goal, recipe: Recipe, world: World, stop: Stop) -> Values:
    """Return an iterator that reconstructs what the recipe says and yields the objective. Collective.

    Args:
        goal: the objective.
        recipe: recipe of the trial.
        world: ranks that run it together.
        stop: asked between two batches; True ends the trial.

    Raises:
        Interrupted: `stop` returned True.
        Diverged: the reconstruction diverged.
        BadInput: the recipe does not fit its data.
    """
    if isinstance(goal, FourierRings):
        return _halves(goal, recipe, world, stop)
    return _one(goal, recipe, world, stop)


def _one(goal: Goal, recipe: Recipe, world: World, stop: Stop) -> Values:
    recon = reconstruction(recipe, world)
    call = metric_entry(goal.call) if isinstance(goal, Function) else None
    loop = recon.loop(hold_out=recipe.hold_out, stop=stop)

    def value(held_out: float | None) -> float:
        if isinstance(goal, HeldOut):
            assert held_out is not None, "a tune file's recipes hold views out"
            return held_out
        return (
            object_contrast(CurrentResult.of(recon)) if call is None else function(call, recon.result(recipe.to_yaml()))
        )

    report = None
    for report in loop.epochs():
        if _due(goal.every, report, recipe):
            yield report.done_epochs, value(report.held_out)
    assert report is not None, "a recipe has at least one epoch"
    yield report.done_epochs, value(report.held_out)


def _due(every: int | None, report: EpochReport, recipe: Recipe) -> bool:
    """Return True if a value is wanted after this epoch, which is neither the last nor of coarser object pixels."""
    last, fine = report.done_epochs == report.total_epochs, recipe.stages[report.stage].coarsen == 1
    return fine and not last and every is not None and report.done_epochs % every == 0


def _halves(goal: FourierRings, recipe: Recipe, world: World, stop: Stop) -> Values:
    """Yield the Fourier ring correlation of two reconstructions, an epoch each in turn.

    One has one view of each pair of neighbours, the other one the others.
    """
    recons = [reconstruction(recipe, world) for _ in range(2)]
    first = hold_out(recons[0].problem.unturned, 0.5, recipe.seed)
    second = np.setdiff1d(np.arange(recons[0].scan.views), first)
    loops = [_of(recon, half, stop) for recon, half in zip(recons, (first, second), strict=True)]
    epochs_done = 0
    for report, _ in zip_longest(*(loop.epochs() for loop in loops)):
        epochs_done = report.done_epochs
        if _due(goal.every, report, recipe):
            yield epochs_done, ring_mean(*map(CurrentResult.of, recons))
    yield epochs_done, ring_mean(*map(CurrentResult.of, recons))


def _of(recon: Reconstruction, views: np.ndarray, stop: Stop) -> Loop:
    """Return a loop over these views alone."""
    loop = recon.loop(stop=stop)
    loop.training = views
    return loop


@dataclass
class CurrentResult:
    """Reconstruction as it is now, without the pass over all views that a Result takes; fields as there."""

    object: np.ndarray
    probe: np.ndarray
    positions_px: np.ndarray
    pixel_size_m: tuple[float, float] | None
    weights: np.ndarray | None

    @classmethod
    def of(cls, recon: Reconstruction) -> CurrentResult:
        """Return a reconstruction as it is now."""
        estimate = recon.state.estimate
        positions, weights = (tensor.detach().cpu().numpy() for tensor in (estimate.positions, estimate.weights))
        return cls(recon.object, recon.probe, positions, recon.scan.geometry.object_pixel_m, weights)


def ring_mean(a: CurrentResult, b: CurrentResult) -> float:
    """Return the mean Fourier ring correlation of two reconstructions over all rings; 1 if they are equal.

    They are aligned before (`ptymesh.compare`). Each ring counts alike, as in the area under the usual curve.
    """
    return float(np.mean(compare_results(a, b).rings.correlation))


def object_contrast(result: CurrentResult | Result) -> float:
    """Return sqrt(1 - |<O>|^2 / <|O|^2>) over the illuminated pixels without their phase ramp; from 0 to 1.

    0 for an object of ones; what shows neither in amplitude nor in phase adds nothing. Does not depend on what
    ptychography leaves open: scale, phase and ramp.
    """
    obj = np.prod(result.object, axis=0).astype(np.complex128)
    light = illumination((obj.shape[0], obj.shape[1]), result.probe, result.positions_px, result.weights)
    illuminated_mask = illuminated(light)
    for axis, count in enumerate(obj.shape):
        neighbours = np.roll(obj, -1, axis) * obj.conj()
        slope = np.angle(neighbours[illuminated_mask & np.roll(illuminated_mask, -1, axis)].sum())
        ramp = np.exp(-1j * slope * np.arange(count))
        obj = obj * (ramp[:, None] if axis == 0 else ramp)
    power = float((np.abs(obj[illuminated_mask]) ** 2).mean())
    return float(np.sqrt(max(0.0, 1 - np.abs(obj[illuminated_mask].mean()) ** 2 / power))) if power else 0.0


def function(call: Callable[[Result], Any], result: Result) -> float:
    """Return the number that a user's function gives a result. Raises PtymeshError if it returns anything else."""
    value = call(result)
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise PtymeshError(f"The objective {call.__name__} returned {value!r}; it should return a number.") from error


def metric_entry(call: str) -> Callable[[Result], Any]:
    """Return the function that `module:name` or `file.py:name` names. Raises BadInput where there is none."""
    module_name, _, name = call.rpartition(":")
    try:
        if module_name.endswith(".py"):
            spec = importlib.util.spec_from_file_location(f"ptymesh_objective_{Path(module_name).stem}", module_name)
            if spec is None or spec.loader is None:
                raise ImportError(f"no module in {module_name}")
            module: Any = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(module_name)
        for part in name.split("."):
            module = getattr(module, part)
    except (ImportError, AttributeError, FileNotFoundError) as error:
        raise BadInput(
            f"objective.call {call} cannot be imported ({error}); give module:name or file.py:name."
        ) from error
    if not callable(module):
        raise BadInput(f"objective.call {call} is no function; give module:name or file.py:name.")
    return module
