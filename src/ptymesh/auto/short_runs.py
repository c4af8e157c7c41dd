"""Short runs on a part of a scan, by whose held-out residuals two recipes are compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptymesh.engines import Engine
from ptymesh.io import load_measurement
from ptymesh.measurement import Measurement, select_views
from ptymesh.recipe.schema import Recipe, default_stages, engine_of
from ptymesh.recipe.starts import ObjectOptions
from ptymesh.run.reconstruction import Reconstruction

#: Views, views of a batch, epochs and probe modes of a run that tells twins apart; the share of views it holds out.
VIEWS, BATCH, EPOCHS, MODES, HELD_OUT = 196, 16, 12, 2, 0.1
#: Pixels of all patterns, beyond which fewer views are taken, but no fewer than so many.
MOST_PIXELS, FEWEST_VIEWS = VIEWS * 128 * 128, 100
#: Fraction of the pixels that lie below the zero of the potential.
BASELINE = 0.2
#: Residual of the better twin over that of the other, below which it is believed.
BETTER = 0.97


@dataclass(frozen=True)
class TwinTrial:
    """Held-out residuals of two short reconstructions.

    Attributes:
        residual: with the lens and the orientation in question.
        of_twin: with the opposite lens, and the scan turned by half a turn.
        views: number of views of each.
    """

    residual: float
    of_twin: float
    views: int

    @property
    def is_clear(self) -> bool:
        """True if one twin explains held-out views clearly better."""
        return min(self.residual, self.of_twin) < BETTER * max(self.residual, self.of_twin)


def compare_recipes_of_twins(recipe: Recipe, twin: Recipe) -> TwinTrial:
    """Return how well a positive potential explains held-out views with either recipe.

    Args:
        recipe: of electrons behind a lens; its stages are not taken, and of its object nothing.
        twin: the same with the other lens and orientation.

    Raises:
        PtymeshError: a scan cannot be read, or the residual left the numbers.
    """
    given, other = (load_measurement(one.data, one.positions) for one in (recipe, twin))
    h, w = given.window
    views = max(FEWEST_VIEWS, min(VIEWS, MOST_PIXELS // (h * w)))
    residual, of_twin = (_positive_residual(*one, views) for one in ((given, recipe), (other, twin)))
    return TwinTrial(residual, of_twin, min(views, given.views))


def _positive_residual(scan: Measurement, recipe: Recipe, views: int) -> float:
    """Return the residual of held-out views with which a potential ends that is nowhere negative."""
    obj, probe = ObjectOptions(kind="potential"), recipe.probe.model_copy(update={"modes": MODES})
    size = {"epochs": EPOCHS, "batch": BATCH, "constraints": {"positivity": {"baseline": BASELINE}}}
    return held_out_residual(
        select_views(scan, central_views(scan.positions, views)),
        recipe.model_copy(update={"object": obj, "probe": probe}),
        engine_of("stages.0", {**default_stages(obj, probe)[-1], **size}),
        HELD_OUT,
    )


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
