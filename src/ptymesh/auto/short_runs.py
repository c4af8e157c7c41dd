"""Short runs on a part of a scan, by whose held-out residuals two recipes are compared."""

from __future__ import annotations

import numpy as np

from ptymesh.engines import Engine
from ptymesh.measurement import Measurement
from ptymesh.recipe.schema import Recipe
from ptymesh.run.reconstruction import Reconstruction


def central_views(positions: np.ndarray, count: int) -> np.ndarray:
    """Return the views (n,) nearest to the middle of a scan, in their order.

    Args:
        positions: (N, 2) y x, in any unit.
        count: of views, at most.
    """
    middle = (positions.min(axis=0) + positions.max(axis=0)) / 2
    return np.sort(np.argsort(((positions - middle) ** 2).sum(axis=1), kind="stable")[:count])


def held_out_residual(scan: Measurement, recipe: Recipe, stage: Engine, hold_out: float) -> float:
    """Return the residual of held-out views with which a stage ends that starts as a recipe does.

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
        device="cpu",
    )
    recon.stages = [stage]
    recon.loop(hold_out=hold_out).run()
    return float(recon.state.history["held_out"][-1])
