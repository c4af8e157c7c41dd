"""Short runs on a part of a scan, by whose held-out residuals two recipes are compared."""

from __future__ import annotations

import numpy as np

from ptymesh.distributed.world import World
from ptymesh.engines import Engine
from ptymesh.measurement import Measurement
from ptymesh.recipe.schema import Recipe
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.verdict.held_out import Judged, judge_held_out, own_unknowns


def central_views(positions: np.ndarray, count: int) -> np.ndarray:
    """Return the views (n,) nearest to the middle of a scan, in their order.

    Args:
        positions: (N, 2) y x, in any unit.
        count: of views, at most.
    """
    middle = (positions.min(axis=0) + positions.max(axis=0)) / 2
    return np.sort(np.argsort(((positions - middle) ** 2).sum(axis=1), kind="stable")[:count])


def judge_short_run(scan: Measurement, recipe: Recipe, stage: Engine, hold_out: float) -> Judged:
    """Return how well held-out views are explained by a stage that starts as a recipe does, on this rank alone.

    Args:
        scan: the views.
        recipe: whose object, probe and optics are taken; not its stages.
        stage: the engine, with its epochs.
        hold_out: share of the views that is held out.

    Raises:
        BadInput: the recipe does not fit the scan.
        Diverged: the residual left the numbers.
    """
    recon = Reconstruction(
        scan,
        object=recipe.object,
        probe=recipe.probe,
        subpixel=recipe.positions.subpixel,
        optics=recipe.optics,
        precision=recipe.precision,
        seed=recipe.seed,
        device=World("cpu"),
    )
    recon.stages = [stage]
    loop = recon.loop(hold_out=hold_out)
    loop.run()
    own = own_unknowns([stage], recon.problem.model.unknowns, len(recon.state.estimate.opr))
    own -= {"positions"} if recon.state.refused_positions else set()
    return judge_held_out(recon.problem, recon.state.estimate, loop.held_out, own)
