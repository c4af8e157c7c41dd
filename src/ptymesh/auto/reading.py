"""Comparison of other ways to read a scan (readings.py), each by first epochs from the start and held-out views."""

from __future__ import annotations

import math
from contextlib import closing

import numpy as np

from ptymesh.auto.candidates import Candidate, CandidateRunner, OverBudget, is_better
from ptymesh.auto.epoch_search import ADAM, BOLDER, OPENING, adam
from ptymesh.auto.readings import NEAR_FLOOR, Question, best_reading, with_matrix
from ptymesh.auto.search import READING, Search
from ptymesh.errors import BadInput
from ptymesh.models.scan_geometry import matrix_of
from ptymesh.recipe.schema import Recipe

#: Epochs before the scan's geometry is refined.
GEOMETRY_SETTLE = 12
#: Epochs in which it is refined.
GEOMETRY_EPOCHS = 24
#: Largest number of rounds of both.
GEOMETRY_ROUNDS = 4
#: Positions that move by less (rms pixels) in the first round, and in later ones, stay as they are.
LEAST_MOVES_PX = (0.05, 0.02)
#: Standard errors by which another geometry has to lower the held-out residual,
GEOMETRY_SURE = 2.0
#: unless an entry of its matrix is off by this much, twice what noise makes of it: then it just has to lower it.
CLEAR_STRAIN = 0.01
#: The engine of these epochs.
GEOMETRY_ADAM = adam(BOLDER * ADAM["lr"])


def ask_reading(
    search: Search, runner: CandidateRunner, candidate: Candidate, question: Question
) -> tuple[CandidateRunner, Candidate]:
    """Return runner and first epochs of the way to read the scan that explains held-out views best. Collective.

    Args:
        search: the search so far; its recipe and scan become those of the best reading.
        runner: runs candidates as the recipe reads the scan.
        candidate: the candidate after the first epochs there.
        question: the readings that are tried.
    """
    if candidate.value <= NEAR_FLOOR * (runner.noise_floor or 0.0):
        return runner, candidate
    told: Candidate | None = candidate
    for make in (question.readings, question.further):
        readings = list(make(search.recipe, search.scan)) if make is not None else []
        if not readings:
            break
        cost = (len(readings) + question.consecutive) * runner.cost(candidate, OPENING)
        if not search.budget.holds(cost, READING):
            search.note_skipped(f"Whether {question.what}")
            break
        held: np.ndarray | None = runner.held
        if question.consecutive and runner.views < search.scan.views:
            told, held = _read(search, search.recipe, True, None)
        candidates = [_read(search, one.recipe, question.consecutive, held)[0] for one in readings]
        best = None if told is None else best_reading(told, readings, candidates)
        if best is None or told is None:
            least = min((one.value for one in candidates if one is not None), default=math.inf)
            said = f"Whether {question.what} was tried {len(readings)} times: {least:.4g} at best"
            search.add_reason(question.key, f"{said}, as told {candidate.formatted_residual}, which is no clear gain.")
            break
        kept = candidates[best]
        assert kept is not None
        search.add_reason(
            question.key,
            f"{readings[best].what}: {kept.formatted_residual}, as told {told.formatted_residual}, which helps.",
        )
        runner = search.replace_recipe(runner, readings[best].recipe)
        told = candidate = search.run_opening(runner)
    return runner, candidate


def _read(
    search: Search, recipe: Recipe, consecutive: bool, held: np.ndarray | None
) -> tuple[Candidate | None, np.ndarray]:
    """Return where the first epochs of a recipe lead (None if it cannot start), and the held-out views.

    Args:
        search: the search so far.
        recipe: says how the scan is read.
        consecutive: whether a part of a large scan is taken as its first views instead of its middle.
        held: (n,) int64, views to be held out; None: chosen here.
    """
    part = search.select_part(recipe, consecutive)
    try:
        runner = CandidateRunner(part, search.load(part), search.context, search.scan.views, held)
    except BadInput:
        return None, np.empty(0, dtype=np.int64)
    with closing(runner):
        return search.run_opening(runner, READING), runner.held


def ask_scan_geometry(
    search: Search, runner: CandidateRunner, candidate: Candidate
) -> tuple[CandidateRunner, Candidate]:
    """Return runner and first epochs with positions stretched, sheared and turned if that helps. Collective.

    An object that was made with wrong positions agrees with them, so that refining them finds a part of the change
    only. So the refined numbers start another round, until they stay; then two reconstructions from the start, with
    and without them, are compared.

    Args:
        search: the search so far; its recipe and scan become those of the best geometry.
        runner: runs candidates as the recipe reads the scan.
        candidate: the candidate after the first epochs there.
    """
    if search.recipe.positions.subpixel == "none":
        return runner, candidate
    engine = GEOMETRY_ADAM | {"batch": min(64, 2 * search.opening["batch"])}
    told_recipe, begun = search.recipe, candidate
    told: Candidate | None = None
    # A round that cannot be finished would waste its sweeps.
    if not search.budget.holds(runner.cost(candidate.using(engine), GEOMETRY_SETTLE + GEOMETRY_EPOCHS), READING):
        search.note_skipped("Whether the scan is stretched, sheared or turned")
        return runner, candidate
    try:
        for left in reversed(range(GEOMETRY_ROUNDS + 1)):
            settled = runner.run(begun.using(engine), GEOMETRY_SETTLE, READING)
            told = told or settled
            matrix = _refined_geometry(runner, settled, LEAST_MOVES_PX[begun is not candidate]) if left else None
            if matrix is None:
                break
            runner = search.replace_recipe(runner, with_matrix(search.recipe, matrix))
            begun = search.run_opening(runner, READING)
    except OverBudget:
        search.note_skipped("Whether the scan is stretched, sheared or turned")
        return (runner if begun is candidate else search.replace_recipe(runner, told_recipe)), candidate
    if told is None or search.recipe == told_recipe:
        search.add_reason("positions.affine", "As told: the scan was allowed to be stretched, sheared and turned.")
        return runner, candidate
    (a, b), (c, d) = search.recipe.positions.affine
    strain = float(np.abs(np.array([[a, b], [c, d]]) - np.array(told_recipe.positions.affine)).max())
    enough = is_better(settled, told, errors=0.0 if strain > CLEAR_STRAIN else GEOMETRY_SURE)
    said = f"[[{a:.4f}, {b:.4f}], [{c:.4f}, {d:.4f}]]: {settled.formatted_residual}, as told {told.formatted_residual}"
    search.add_reason("positions.affine", f"{said}, which {'helps' if enough else 'is no clear gain'}.")
    return (runner, begun) if enough else (search.replace_recipe(runner, told_recipe), candidate)


def _refined_geometry(runner: CandidateRunner, settled: Candidate, least_px: float) -> np.ndarray | None:
    """Return the matrix (2, 2) by which positions should be multiplied; None if it moves them by less than this."""
    refined = runner.run(settled.sharing({"models": {"scan_geometry": {}}}), GEOMETRY_EPOCHS, READING)
    moves = refined.estimate.positions - settled.estimate.positions
    moves = moves - moves.mean(dim=0)
    if refined.judged is None or float(moves.square().sum(dim=1).mean().sqrt()) < least_px:
        return None
    return matrix_of(refined.estimate.parameters["scan_geometry"])
