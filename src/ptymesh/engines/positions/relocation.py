"""Views that went astray: left out for some epochs, then looked for anew on the object of all others.

q_j      residual of view j: its misfit over its counts
p0_j     nominal position;  d_j = p_j - p0_j
a_j      p0_j + the affine function that fits the d of all other views
s        standard deviation of the others' d about it along an axis, by MAD

    astray      q_j > median q + WORSE (standard deviation of q by MAD)
    p_j <- the best, by misfit, of p_j and of a grid around a_j to REACH s, in steps of a pixel at most

A view that is told wrong by more than steps can follow makes a part of the object of its own, which agrees with it:
from there no slope leads back. After ALONE epochs without it, what it made is gone wherever others see the object.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ptymesh.engines.base import Engine
from ptymesh.engines.positions.moving import DEVIATION, affine_part
from ptymesh.engines.positions.search import try_moves
from ptymesh.estimate import Estimate
from ptymesh.problem import Problem

#: Epochs in which all views take part; then, in which those astray are left out.
TOGETHER, ALONE = 8, 4
#: Standard deviations by which a residual is worse than the median; half side of the grid in those of the moves.
WORSE, REACH = 3.0, 3.0
#: Largest half side of the grid, in pixels.
FARTHEST_PX = 8.0
#: Key of the engine's memory: (N,) bool, views that are left out.
KEY = "positions_astray"


def drop_astray(engine: Engine, views: np.ndarray) -> np.ndarray:
    """Return those of these views (n,) int64 that are not left out in this epoch, in the same order."""
    astray = engine.state.get(KEY)
    return views if astray is None else views[~astray.cpu().numpy()[views]]


def relocate(engine: Engine, problem: Problem, estimate: Estimate, views: np.ndarray, epoch: int) -> None:
    """Name the views that are astray, or look for those that were left out, where one of them is due. Collective.

    Args:
        engine: of the stage; its options and memory.
        problem: the problem that is solved.
        estimate: the unknowns, changed in place.
        views: global indices of the views that are reconstructed from.
        epoch: of the stage, from 1.
    """
    options = engine.positions
    assert options is not None
    phase = (epoch - options.start + 1) % (TOGETHER + ALONE)
    last = min(options.stop or engine.epochs, engine.epochs)
    if phase == TOGETHER and epoch + ALONE + TOGETHER <= last:
        engine.state[KEY] = _are_astray(problem, estimate, views)
    elif phase == 0 and KEY in engine.state:
        astray = engine.state.pop(KEY)
        _look_for(problem, estimate, views, astray)
        if "position_velocity" in engine.state:
            engine.state["position_velocity"] = engine.state["position_velocity"] * ~astray[:, None]


def _are_astray(problem: Problem, estimate: Estimate, views: np.ndarray) -> Tensor:
    """Return which views fit far worse than the others, (N,) bool. Collective."""
    sums = torch.zeros(problem.views, 2, dtype=torch.float64, device=problem.device)
    problem.evaluator.residual(estimate, views, sums)
    misfit, counts = problem.layout.merge(sums).unbind(1)
    residual = misfit / counts.clamp(min=1.0)
    of_views = residual[torch.as_tensor(views, device=problem.device)]
    median = of_views.median()
    return residual > median + WORSE * DEVIATION * (of_views - median).abs().median()


def _look_for(problem: Problem, estimate: Estimate, views: np.ndarray, astray: Tensor) -> None:
    """Set the positions of the views that are astray (N,) bool to the best of their grids. Collective."""
    moves = estimate.positions - estimate.nominal
    reference_views = torch.zeros_like(astray)
    reference_views[torch.as_tensor(views, device=problem.device)] = True
    reference_views &= ~astray
    affine = affine_part(estimate.nominal, moves, fitted=reference_views)
    away = (moves - affine)[reference_views]
    spread = float((away - away.median(0).values).abs().median(0).values.max())
    half = min(REACH * DEVIATION * spread, FARTHEST_PX)
    line = torch.linspace(-half, half, 2 * math.ceil(half) + 1, dtype=torch.float64, device=problem.device)
    grid = torch.cartesian_prod(line, line)
    lost = views[astray.cpu().numpy()[views]]
    try_moves(problem, estimate, lost, (affine - moves + trial for trial in grid))  # together they may be large
    estimate.positions.copy_(problem.layout.merge(estimate.positions))
