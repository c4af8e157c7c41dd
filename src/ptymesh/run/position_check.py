"""Refined positions judged by held-out views, halfway through the epochs that refine them.

p_j, p0_j    refined, recorded position of view j
m            mean of p_j - p0_j over the views that updates see: a move of all together, which nothing determines

No update has seen a held-out view. It is fitted on one half of its pixels and judged on the other half, at a position
of its own; and it is judged on all of its pixels at p0_j + m. If positions were wrong, the first explains it better. If
they were right, the first follows the noise of the fitted half, and of an object that noisy positions have made.

An object that is stretched agrees with positions that are stretched as much, so that such moves are not refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from ptymesh.engines import Engine
from ptymesh.engines.base import PositionRefinement
from ptymesh.estimate import Estimate
from ptymesh.measurement import evenly_spread
from ptymesh.physics.elementwise import means
from ptymesh.problem import Problem
from ptymesh.verdict.held_out import judge_held_out

#: Held-out views below which nothing is judged, and of which more are not looked at.
FEWEST_VIEWS, MOST_VIEWS = 5, 64
#: Largest number of standard errors that is told, as a checkpoint holds finite numbers alone.
LARGEST_ERRORS = 1e6


@dataclass(frozen=True)
class PositionCheck:
    """Outcome of a judgement of refined positions.

    Right positions of simulated scans, refined, lose 0.4 to 2 % in 3 to 4 standard errors; wrong ones gain 1.5 to 30 %.

    Attributes:
        epochs: done over all stages, including the one after which positions were judged.
        gain: share by which the held-out residual at positions of the views' own is below that at recorded ones.
        errors: the same in standard errors.
    """

    epochs: int
    gain: float
    errors: float

    @property
    def is_refused(self) -> bool:
        """True if positions went back to where they were recorded, for the rest of the run."""
        return self.gain <= 0

    def sentence(self) -> str:
        """Return the outcome as a clause without a full stop."""
        if self.is_refused:
            return (
                f"refined positions were given up after epoch {self.epochs}, as they do not explain held-out pixels "
                f"better than the recorded ones ({self.gain:+.1%})"
            )
        return f"refined positions explain held-out pixels better than the recorded ones by {self.gain:.1%}"


def check_epoch(options: PositionRefinement, epochs: int) -> int:
    """Return the epoch of a stage (from 1) after which its positions are judged, 0 if they are not.

    Args:
        options: of the refinement.
        epochs: of the stage.
    """
    last = min(epochs, epochs if options.stop is None else options.stop)
    if not options.judge or options.affine or last <= options.start:
        return 0
    return (options.start + last) // 2


def needs_position_check(engine: Engine, epoch: int, held_out: np.ndarray, before: list[Engine]) -> bool:
    """Return True if positions are to be judged after this epoch of a stage.

    Args:
        engine: of the stage.
        epoch: of the stage, from 1.
        held_out: (n,) int64, views that no update sees.
        before: engines of the stages up to this one.
    """
    if engine.positions is None or engine.coarsen > 1 or len(held_out) < FEWEST_VIEWS:
        return False
    if any(model.of == "positions" for stage in before for model in stage.models.values()):
        return False  # moves of all views alike are kept elsewhere, and held-out views are moved along
    return check_epoch(engine.positions, engine.epochs) == epoch


def judge_positions(
    problem: Problem, estimate: Estimate, held_out: np.ndarray, unknowns: frozenset[str], epochs: int
) -> PositionCheck:
    """Return by how much refined positions explain held-out views better than recorded ones. Collective.

    Args:
        problem: the data and the model.
        estimate: the unknowns; it is not changed.
        held_out: (n,) int64, views that no update sees.
        unknowns: what each view has for itself, "positions" among it.
        epochs: done over all stages, including the running one.
    """
    views = held_out[evenly_spread(len(held_out), MOST_VIEWS)]
    training = np.setdiff1d(np.arange(problem.views), held_out)
    rows = torch.as_tensor(training, device=problem.device)
    move = means((estimate.positions - estimate.nominal)[rows])
    recorded = replace(estimate, positions=estimate.nominal + move)
    # positions of single views change nothing of the others: windows of training views are not looked at
    refined = judge_held_out(problem, recorded, views, unknowns)
    at_recorded = judge_held_out(problem, recorded, views, unknowns - {"positions"})
    gain, errors = refined.gain_over(at_recorded)
    return PositionCheck(epochs, max(gain, -LARGEST_ERRORS), min(max(errors, -LARGEST_ERRORS), LARGEST_ERRORS))


def reset_positions(estimate: Estimate) -> None:
    """Set positions to where they were recorded."""
    estimate.positions.copy_(estimate.nominal)
