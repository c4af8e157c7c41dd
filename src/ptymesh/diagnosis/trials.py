"""Short trials of what would help: some views, a few epochs, with and without it.

Both start as the recipe does, so that what is held against each other differs in the remedy alone.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ptymesh.diagnosis.remedies import UsableRemedy, assumed_recipe
from ptymesh.diagnosis.view import ResultView
from ptymesh.errors import PtymeshError
from ptymesh.io import load_measurement
from ptymesh.io.options import DataOptions
from ptymesh.measurement import Measurement, central_views, select_views
from ptymesh.recipe.schema import Recipe
from ptymesh.run.trials.short_runs import judge_short_run

#: Views, epochs and views of a batch of a trial, at most.
VIEWS, EPOCHS, BATCH = 64, 15, 16
#: Share of the views that is held out of a trial, whose remedy may fit more numbers.
HELD_OUT = 0.1
#: A remedy helps if the residual ends below this share of what it is without it.
HELPS = 0.95
#: Pixels of all patterns of a trial, beyond which it takes more than seconds.
MOST_PIXELS = VIEWS * 128 * 128


@dataclass(frozen=True)
class RemedyTrial:
    """Result of a trial.

    Attributes:
        without, with_remedy: residuals of held-out views, after so many `epochs` of `views` views.
    """

    without: float
    with_remedy: float
    epochs: int
    views: int

    @property
    def helps(self) -> bool:
        """True if the remedy lowers the residual."""
        return self.with_remedy < HELPS * self.without

    def __str__(self) -> str:
        change = f"{self.without:.3g} to {self.with_remedy:.3g}"
        return f"tried: held-out residual {change} in {self.epochs} epochs of {self.views} views"


class Trials:
    """Trials on one result, within a limit of time.

    Attributes:
        view: the result and its scan.
        limit_s: seconds after which no further trial begins.
    """

    def __init__(self, view: ResultView, limit_s: float) -> None:
        self.view, self.limit_s = view, limit_s
        self.start = time.monotonic()
        self._without: float | None = None

    def run(self, remedy: UsableRemedy) -> RemedyTrial | None:
        """Return what came of a trial; None where none can be made in seconds."""
        scan, changed = self.view.scan, remedy.recipe
        if scan is None or changed is None or changed.auto is not None or time.monotonic() - self.start > self.limit_s:
            return None
        if scan.scan_index is not None:  # the changed recipe would read the first scan alone
            return None
        if min(VIEWS, scan.views) * math.prod(scan.window) * (changed.probe.modes or 1) > MOST_PIXELS:
            return None
        recipe = self.view.recipe or assumed_recipe(self.view)
        try:
            chosen = central_views(self.view.result_positions, VIEWS)
            if self._without is None:
                self._without = _residual(scan, chosen, recipe)
            other = self._changed_scan(recipe, changed)
            residual_after = _residual(other, chosen, changed)
        except PtymeshError:
            return None
        return RemedyTrial(self._without, residual_after, EPOCHS, len(chosen))

    def _changed_scan(self, recipe: Recipe, changed: Recipe) -> Measurement:
        """Return the scan as the changed recipe reads it. Raises BadInput."""
        scan = self.view.scan
        assert scan is not None
        if changed.data == recipe.data and changed.positions == recipe.positions:
            return scan
        options: DataOptions = changed.data.model_copy(update={"path": Path(scan.path or changed.data.path)})
        return load_measurement(options, changed.positions)


def _residual(scan: Measurement, views: np.ndarray, recipe: Recipe) -> float:
    """Return the residual of held-out views that the last stage ends with; views that a scan lacks are left out.

    Raises:
        BadInput: the recipe does not fit the scan.
    """
    stage = recipe.stages[-1]
    size = {"epochs": EPOCHS, "batch": min(stage.batch or BATCH, BATCH)}
    part = select_views(scan, views[views < scan.views])
    return judge_short_run(part, recipe, type(stage).parse({**stage.model_dump(), **size}), HELD_OUT).residual
