"""Short runs on a part of a scan, by whose held-out residuals two recipes are compared."""

from __future__ import annotations

from contextlib import closing

from ptymesh.distributed.world import World
from ptymesh.engines import Engine
from ptymesh.measurement import Measurement
from ptymesh.recipe.schema import Recipe
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.verdict.held_out import Judged


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
    # whoever compares recipes has said what there is to say of the scan
    how = {**recipe.reconstruction_options, "scratch": recipe.scratch}
    with closing(Reconstruction(scan, **how, device=World("cpu"), say=lambda _: None)) as recon:
        return recon.judge_stage(stage, hold_out)
