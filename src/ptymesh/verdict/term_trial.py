"""Terms of the scan's geometry and of the lens, each judged by short runs: with it, and as it was told.

An object that was made with wrong terms agrees with them, so that nothing in a run tells whether they help. Some views
in the middle of the scan are reconstructed anew from nothing: with all terms as they are refined, and with each of them
put back to where it began. A term stays if held-out views are explained better with it, beyond chance; the others go
back, and stay there.

A probe that has been refined beside a wrong term speaks for it, as does one that stays wrong: of two twisted crystals
with the scan told turned and the lens out of focus, a scale of -3 % gained 13 % by 11 standard errors behind the probe
as it was, 5 % by 3 where that moved on for 12 epochs, and lost 1.6 % where it began as told and moved for 25. So terms
of the scan are judged with a probe that begins as the recipe says, those of the lens with the probe that they make.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ptymesh.engines import Engine
from ptymesh.errors import PtymeshError
from ptymesh.estimate import Estimate
from ptymesh.geometry import Geometry
from ptymesh.measurement import NO_CHECKS, Measurement, central_views, select_views
from ptymesh.models import Parametrisation
from ptymesh.verdict.held_out import Judged

#: Epochs and views of a batch of a short run.
EPOCHS, BATCH = 25, 16
#: Pixels of all patterns of a short run, beyond which fewer views are taken, but no fewer than so many.
MOST_PIXELS, FEWEST_VIEWS = 196 * 128 * 128, 60
#: Standard errors by which held-out views must be explained better with a term, for it to stay.
STANDARD_ERRORS = 2.0
#: Largest number of standard errors that is told, as a checkpoint holds finite numbers alone.
LARGEST_ERRORS = 1e6

#: Reconstructs some views by a stage, from a probe (M, h, w) or, if None, from the recipe's, and returns how well
#: held-out ones are explained.
JudgePart = Callable[[Measurement, Engine, np.ndarray | None], Judged]


@dataclass(frozen=True)
class TermCheck:
    """Outcome of a judgement of one term.

    Attributes:
        epochs: done over all stages, including the one after which it was judged.
        model: name of the parametrisation.
        term: of it.
        gain: share by which the held-out residual with the term is below that without.
        errors: the same in standard errors.
    """

    epochs: int
    model: str
    term: str
    gain: float
    errors: float

    @property
    def is_refused(self) -> bool:
        """True if the term went back to where it began, for the rest of the run."""
        return not (self.gain > 0 and self.errors > STANDARD_ERRORS)

    def sentence(self) -> str:
        """Return the outcome as a clause without a full stop."""
        name = f"{self.model}.{self.term}"
        gain = f"held-out pixels by {self.gain:+.1%}, {self.errors:.1f} standard errors"
        if self.is_refused:
            return f"{name} was put back after epoch {self.epochs}, as it does not help ({gain})"
        return f"{name} helps ({gain})"


#: Judges the terms of a model: unknowns, model, engine of the stage and epochs done; as `judge_terms` of a scan.
JudgeTerms = Callable[[Estimate, Parametrisation, Engine, int], list[TermCheck]]


def needs_term_check(model: Parametrisation, engine: Engine, epoch: int) -> bool:
    """Return True if a model's terms are to be judged after this epoch (from 1): halfway through those that move them.

    Args:
        model: of the stage.
        engine: of the stage.
        epoch: of the stage.
    """
    last = min(engine.epochs, engine.epochs if model.stop is None else model.stop)
    return model.is_judged and engine.coarsen == 1 and max((model.start + last) // 2, model.start) == epoch < last


def judge_terms(
    scan: Measurement, judge_part: JudgePart, estimate: Estimate, model: Parametrisation, engine: Engine, epochs: int
) -> list[TermCheck]:
    """Return what came of short runs with and without each term, on this rank alone.

    Args:
        scan: of the run.
        judge_part: runs a stage on some views.
        estimate: the unknowns; it is not changed.
        model: whose terms are judged.
        engine: of the stage.
        epochs: done over all stages, including the running one.

    Returns:
        Nothing where the scan is too small, its windows are so large that short runs would take minutes, or one fails.
    """
    views = min(scan.views, MOST_PIXELS // math.prod(scan.window))
    if views < FEWEST_VIEWS or scan.paths is not None:
        return []
    part_views, stage = central_views(scan.positions, views), stage_of_trial(engine, model)
    terms = list(dict.fromkeys(map(model.term_of, model.units())))

    def judged(part: Measurement, estimate: Estimate) -> Judged:
        positions = estimate.positions.cpu().numpy()[part_views] - np.asarray(estimate.origin)
        nominal = part.positions if part.stored_positions is None else part.stored_positions  # which views are held out
        tried = replace(part, positions=positions, stored_positions=nominal, checks=NO_CHECKS)
        return judge_part(tried, stage, estimate.probe.cpu().numpy() if model.of == "probe" else None)

    try:
        part = select_views(scan, part_views)
        with_all = judged(part, estimate)
        without_term = {term: judged(part, put_back(scan.geometry, estimate, model, [term])) for term in terms}
    except (PtymeshError, OSError, MemoryError):
        return []
    gains = {term: with_all.gain_over(other) for term, other in without_term.items()}
    return [
        TermCheck(epochs, model.name, term, _finite(gain), _finite(errors)) for term, (gain, errors) in gains.items()
    ]


def stage_of_trial(engine: Engine, model: Parametrisation) -> Engine:
    """Return the stage of short runs: a run's engine, which moves no position, nor a probe that the model makes up."""
    options: dict[str, object] = {"epochs": EPOCHS, "batch": BATCH, "models": {}, "positions": None, "coarsen": 1}
    as_told = engine.model_dump()
    if model.of == "probe":
        options["probe"] = {**as_told["probe"], "frozen": EPOCHS}
    return type(engine).parse({**as_told, **options})


def put_back(geometry: Geometry, estimate: Estimate, model: Parametrisation, terms: Sequence[str]) -> Estimate:
    """Return the estimate with some terms as they began, and with the positions or the probe that follow from them.

    Args:
        geometry: of the measurement.
        estimate: the unknowns; arrays that change are new ones.
        model: whose terms they are.
        terms: that go back.
    """
    numbers, initial = estimate.parameters.get(model.name, {}), estimate.initial_parameters.get(model.name, {})
    before = {name: numbers.get(name, 0.0) for name in model.units()}
    after = {name: initial.get(name, 0.0) if model.term_of(name) in terms else value for name, value in before.items()}
    changed = replace(estimate, parameters=estimate.parameters | {model.name: numbers | after})

    def moved(x: Tensor) -> Tensor:
        old, new = (torch.tensor(list(one.values()), dtype=torch.float64) for one in (before, after))
        return model.moved(geometry, estimate, x, old, new)

    if model.of == "probe":
        return replace(changed, probe=moved(estimate.probe))
    return replace(changed, positions=moved(estimate.positions), nominal=moved(estimate.nominal))


def _finite(number: float) -> float:
    return min(max(number, -LARGEST_ERRORS), LARGEST_ERRORS)
