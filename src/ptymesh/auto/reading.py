"""Comparison of other ways to read a scan (readings.py), each by first epochs from the start and held-out views."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from ptymesh.auto.candidates import Candidate, CandidateRunner, OverBudget, is_better
from ptymesh.auto.epoch_search import ADAM, BOLDER, OPENING, adam
from ptymesh.auto.readings import Question, best_reading, with_matrix
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
#: unless it is a rotation by so many radians, or another aspect or shear by so much, twice what noise makes of them:
#: then it just has to lower it.
CLEAR_ROTATION, CLEAR_ASPECT = 0.01, 0.01
#: Share by which another scale has to lower it: it makes good for a wrong defocus of the first probe. Of healthy scans,
#: scales that were wrong by up to 5 % took up to 1.1 % off; of a scan told 8 % too small, the right one 3 %.
SCALE_GAIN = 0.02
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
    if candidate.value <= question.near_floor * (runner.noise_floor or 0.0):
        return runner, candidate
    as_told: Candidate | None = None if question.settled else candidate
    make = question.readings
    while True:
        readings = list(make(search.recipe, search.scan))
        if not readings:
            break
        cost = (len(readings) + (as_told is None or question.consecutive)) * runner.cost(candidate, OPENING)
        if not search.budget.holds(cost, READING):
            search.note_skipped(f"Whether {question.what}")
            break
        held_out: np.ndarray | None = runner.held
        if question.consecutive and runner.views < search.scan.views:
            as_told, held_out = _read(search, search.recipe, question, None)
        try:
            as_told = search.run_settled(runner, READING) if as_told is None and question.settled else as_told
            candidates = [_read(search, one.recipe, question, held_out)[0] for one in readings]
        except OverBudget:
            search.note_skipped(f"Whether {question.what}")
            break
        best = None if as_told is None else best_reading(as_told, readings, candidates)
        if best is None or as_told is None:
            least = min((one.value for one in candidates if one is not None), default=math.inf)
            outcome = f"Whether {question.what} was tried {len(readings)} times: {least:.4g} at best"
            before = (as_told or candidate).formatted_residual
            search.add_reason(question.key, f"{outcome}, as told {before}, which is no clear gain.")
            break
        chosen = candidates[best]
        assert chosen is not None
        search.add_reason(
            question.key,
            f"{readings[best].what}: {chosen.formatted_residual}, as told {as_told.formatted_residual}, which helps.",
        )
        runner = search.replace_recipe(runner, readings[best].recipe)
        candidate = search.run_opening(runner)
        if question.further is None:
            break
        make, as_told = question.further, chosen if question.settled else candidate
    return runner, candidate


def _read(
    search: Search, recipe: Recipe, question: Question, held_out: np.ndarray | None
) -> tuple[Candidate | None, np.ndarray]:
    """Return where the first epochs of a recipe lead (None if it cannot start), and the held-out views.

    Args:
        search: the search so far.
        recipe: says how the scan is read.
        question: says which part of a large scan is taken, and after which epochs it is judged.
        held_out: (n,) int64, views to be held out; None: chosen here.
    """
    part = search.select_part(recipe, question.consecutive)
    try:
        runner = CandidateRunner(part, search.load(part), search.context, search.scan.views, held_out)
    except BadInput:
        return None, np.empty(0, dtype=np.int64)
    with closing(runner):
        run = search.run_settled if question.settled else search.run_opening
        return run(runner, READING), runner.held


def ask_scan_geometry(
    search: Search, runner: CandidateRunner, candidate: Candidate
) -> tuple[CandidateRunner, Candidate]:
    """Return runner and first epochs with positions stretched, sheared and turned if that helps. Collective.

    An object that was made with wrong positions agrees with them, so that refining them finds a part of the change
    only. So the refined numbers start another round, until they stay; then reconstructions from the start are compared:
    as told, only turned, and with scale, aspect and shear.

    Args:
        search: the search so far; its recipe and scan become those of the best geometry.
        runner: runs candidates as the recipe reads the scan.
        candidate: the candidate after the first epochs there.
    """
    if search.recipe.positions.subpixel == "none":
        return runner, candidate
    engine = GEOMETRY_ADAM | {"batch": min(64, 2 * search.opening["batch"])}
    told_recipe, opened, as_told = search.recipe, candidate, None
    # A round that cannot be finished would waste its sweeps.
    if not search.budget.holds(runner.cost(candidate.using(engine), GEOMETRY_SETTLE + GEOMETRY_EPOCHS), READING):
        search.note_skipped("Whether the scan is stretched, sheared or turned")
        return runner, candidate
    total_matrix = np.eye(2)
    try:
        for rounds_left in reversed(range(GEOMETRY_ROUNDS + 1)):
            settled = runner.run(opened.using(engine), GEOMETRY_SETTLE, READING)
            as_told = as_told or settled
            matrix = (
                _refined_geometry(runner, settled, LEAST_MOVES_PX[opened is not candidate]) if rounds_left else None
            )
            if matrix is None:
                break
            total_matrix = matrix @ total_matrix
            runner = search.replace_recipe(runner, with_matrix(search.recipe, matrix))
            opened = search.run_opening(runner, READING)
        if as_told is None or search.recipe == told_recipe:
            search.add_reason("positions.affine", "As told: the scan was allowed to be stretched, sheared and turned.")
            return runner, candidate
        chosen, tried = TriedGeometry(np.eye(2), told_recipe, candidate, as_told), []
        strained, angle = TriedGeometry(total_matrix, search.recipe, opened, settled), rotation_of(total_matrix)
        if _moves_px(runner, rotation_matrix(angle) - np.eye(2)) >= LEAST_MOVES_PX[0]:
            runner = search.replace_recipe(runner, with_matrix(told_recipe, rotation_matrix(angle)))
            opened = search.run_opening(runner, READING)
            settled = runner.run(opened.using(engine), GEOMETRY_SETTLE, READING)
            turned = TriedGeometry(rotation_matrix(angle), search.recipe, opened, settled)
            tried.append(turned)
            errors = 0.0 if abs(angle) > CLEAR_ROTATION else GEOMETRY_SURE
            chosen = turned if is_better(turned.settled, chosen.settled, errors=errors) else chosen
    except OverBudget:
        search.note_skipped("Whether the scan is stretched, sheared or turned")
        return (runner if opened is candidate else search.replace_recipe(runner, told_recipe)), candidate
    tried.append(strained)
    chosen = strained if strain_helps(total_matrix, strained.settled, chosen.settled) else chosen
    for one in tried:
        outcome = f"{one.formatted_matrix}: {one.settled.formatted_residual}, as told {as_told.formatted_residual}"
        search.add_reason("positions.affine", f"{outcome}, which {'helps' if one is chosen else 'is no clear gain'}.")
    return (runner if search.recipe == chosen.recipe else search.replace_recipe(runner, chosen.recipe)), chosen.begun


def strain_helps(matrix: np.ndarray, strained: Candidate, other: Candidate) -> bool:
    """Return True if scale, aspect and shear of the scan explain held-out views so much better that they are believed.

    Args:
        matrix: (2, 2) by which the told positions are multiplied.
        strained: the candidate with these positions.
        other: the candidate with positions as told, or only turned.
    """
    scale = math.sqrt(abs(np.linalg.det(matrix)))
    rest = rotation_matrix(rotation_of(matrix)).T @ matrix / scale - np.eye(2)
    aspect = float(np.abs(rest).max())
    if abs(scale - 1) > aspect:
        return is_better(strained, other, least=SCALE_GAIN, errors=GEOMETRY_SURE)
    return is_better(strained, other, errors=0.0 if aspect > CLEAR_ASPECT else GEOMETRY_SURE)


@dataclass(frozen=True)
class TriedGeometry:
    """TriedGeometry of the scan that was tried.

    Attributes:
        matrix: (2, 2) by which the told positions are multiplied.
        recipe: that says so.
        begun: the candidate after the first epochs.
        settled: the candidate whose held-out residual is compared.
    """

    matrix: np.ndarray
    recipe: Recipe
    begun: Candidate
    settled: Candidate

    @property
    def formatted_matrix(self) -> str:
        """The matrix in words of a recipe."""
        (a, b), (c, d) = self.matrix
        return f"[[{a:.4f}, {b:.4f}], [{c:.4f}, {d:.4f}]]"


def rotation_of(matrix: np.ndarray) -> float:
    """Return the angle in rad of the rotation that is nearest to a matrix (2, 2)."""
    return math.atan2(matrix[1, 0] - matrix[0, 1], matrix[0, 0] + matrix[1, 1])


def rotation_matrix(angle_rad: float) -> np.ndarray:
    """Return the matrix (2, 2) that turns (y, x) by an angle."""
    cosine, sine = math.cos(angle_rad), math.sin(angle_rad)
    return np.array([[cosine, -sine], [sine, cosine]])


def _moves_px(runner: CandidateRunner, change: np.ndarray) -> float:
    """Return by how many pixels (rms) a change (2, 2) of the matrix moves the positions."""
    moves = (runner.scan.positions - runner.scan.positions.mean(axis=0)) @ change.T
    return float(np.sqrt((moves**2).sum(axis=1).mean()))


def _refined_geometry(runner: CandidateRunner, settled: Candidate, least_px: float) -> np.ndarray | None:
    """Return the matrix (2, 2) by which positions should be multiplied; None if it moves them by less than this."""
    refined = runner.run(settled.sharing({"models": {"scan_geometry": {}}}), GEOMETRY_EPOCHS, READING)
    moves = refined.estimate.positions - settled.estimate.positions
    moves = moves - moves.mean(dim=0)
    if refined.judged is None or float(moves.square().sum(dim=1).mean().sqrt()) < least_px:
        return None
    return matrix_of(refined.estimate.parameters["scan_geometry"])
