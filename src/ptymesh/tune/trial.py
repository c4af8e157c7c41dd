"""One trial: its recipe reconstructed on this worker's device, or on several ranks; values told to the pruner.

`python -m ptymesh.tune.trial FOLDER ID NUMBER DEVICE` is what each of several ranks runs: rank 0 speaks to the storage.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna import Trial
from optuna.trial import FrozenTrial

from ptymesh.distributed.child import prepare_process
from ptymesh.distributed.joining import join
from ptymesh.distributed.program import account_for
from ptymesh.distributed.world import World
from ptymesh.errors import Diverged, Interrupted, PtymeshError
from ptymesh.files import replacing, writing
from ptymesh.launcher.rank_processes import launch
from ptymesh.recipe.schema import Recipe
from ptymesh.run_folder.signals import StopSignal
from ptymesh.tune import objectives, storage
from ptymesh.tune.offered import pruner
from ptymesh.tune.options import Goal, Tuning

#: What came of a trial, for the other ranks' worker.
OUTCOME = "outcome.json"


@dataclass(frozen=True)
class TrialOutcome:
    """End of a trial.

    Attributes:
        value: of the objective, None where it was pruned or failed.
        pruned: why it was ended early (hopeless, diverged).
        error: why it has no value.
    """

    value: float | None = None
    pruned: str = ""
    error: str = ""


def run(
    goal: Goal, recipe: Recipe, world: World, stop: Callable[[], bool], report: Callable[[int, float], bool]
) -> TrialOutcome:
    """Run a trial on this world's ranks. Collective.

    Args:
        goal: the objective.
        recipe: recipe of the trial.
        world: the ranks.
        stop: asked between two batches; True interrupts the trial.
        report: called on rank 0 with epoch and value; returns True if the trial is to be pruned.

    Raises:
        Interrupted: `stop` returned True.
    """
    value, epochs = math.nan, sum(stage.epochs for stage in recipe.stages)
    try:
        for epoch, value in objectives.values(goal, recipe, world, stop):
            hopeless = world.rank == 0 and report(epoch, value)
            if world.agree(hopeless and epoch < epochs):
                return TrialOutcome(pruned=f"hopeless after {epoch} epochs")
    except Diverged as error:
        return TrialOutcome(pruned=f"diverged: {error}")
    except Interrupted:
        raise
    except PtymeshError as error:
        return TrialOutcome(error=str(error))
    if math.isnan(value):
        return TrialOutcome(error="The objective is not a number.")
    return TrialOutcome(value)


def on_ranks(tuning: Tuning, trial: FrozenTrial, recipe: Recipe, device: str) -> TrialOutcome:
    """Run a trial on `ranks_per_trial` ranks of this machine.

    Args:
        tuning: the tune file.
        trial: Optuna's.
        recipe: recipe of the trial.
        device: auto, cpu, cuda or cuda:N.

    Raises:
        Interrupted: the ranks were told to stop.
    """
    folder = trial_folder(tuning.output.dir, trial.number)
    with writing(folder / "recipe.yaml"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / OUTCOME).unlink(missing_ok=True)
    with replacing(folder / "recipe.yaml") as temporary:
        temporary.write_text(recipe.to_yaml(), encoding="utf-8")
    status = launch(
        [str(tuning.output.dir), str(trial._trial_id), str(trial.number), device],
        tuning.ranks_per_trial,
        log_dir=folder / "ranks",
        program=("-m", "ptymesh.tune.trial"),
    )
    if status == Interrupted.exit_status:
        raise Interrupted("Stopped between two batches.")
    outcome = None
    if (folder / OUTCOME).exists():
        outcome = TrialOutcome(**json.loads((folder / OUTCOME).read_text(encoding="utf-8")))
    if outcome is None or (status and not outcome.error):
        return TrialOutcome(error=f"Its ranks ended with status {status}; what they said is in {folder / 'ranks'}.")
    return outcome


def reporter(trial: Trial) -> Callable[[int, float], bool]:
    """Return a function that reports a value to the study and returns True if its pruner sees no hope."""

    def report(epoch: int, value: float) -> bool:
        trial.report(value, epoch)
        return trial.should_prune()

    return report


def trial_folder(folder: Path, number: int) -> Path:
    """Return the folder into which a trial may write."""
    return folder / "trials" / f"{number:05d}"


def main(arguments: list[str]) -> int:
    """Run one rank of a trial; return its exit status."""
    folder, trial_id, number, device = Path(arguments[0]), int(arguments[1]), int(arguments[2]), arguments[3]
    place = trial_folder(folder, number)
    try:
        with join(device) as world, StopSignal() as stop:
            recipe = Recipe.from_yaml((place / "recipe.yaml").read_text(encoding="utf-8"))
            study = storage.reopen_study(folder)
            tuning = storage.tuning_of(study, folder)
            report: Any = None
            if world.rank == 0:
                study.pruner = pruner(tuning.pruner.name, tuning.pruner.options)
                report = reporter(Trial(study, trial_id))
            outcome = run(tuning.objective, recipe, world, lambda: stop.requested, report)
            if world.rank == 0:
                with replacing(place / OUTCOME) as temporary:
                    temporary.write_text(json.dumps(vars(outcome)), encoding="utf-8")
            if outcome.error:  # perhaps on this rank alone, for which others wait
                raise PtymeshError(outcome.error)
    except PtymeshError as error:
        account_for(error)
        print(f"ptymesh: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    prepare_process()
    sys.exit(main(sys.argv[1:]))
