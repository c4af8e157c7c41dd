"""A study from its tune file to its best reconstruction: what `ptymesh tune` and `ptymesh.tune(...)` do."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import yaml
from optuna import Study

from ptymesh.displayed import Displayed
from ptymesh.distributed.rank_info import world
from ptymesh.errors import BadInput, Interrupted, PtymeshError
from ptymesh.io import load_measurement
from ptymesh.io.prepare.checks import refuse_featureless, without_marks
from ptymesh.io.results import Result
from ptymesh.launcher.device_shares import Share, share_devices
from ptymesh.launcher.rank_processes import launch
from ptymesh.recipe.schema import Recipe
from ptymesh.run.session import run_recipe
from ptymesh.run_folder.callbacks import FreshStart, LogFile, MetricsFile
from ptymesh.run_folder.signals import StopSignal
from ptymesh.tune import objectives, storage
from ptymesh.tune.display import StudyDisplay, settings_line
from ptymesh.tune.offered import pruner
from ptymesh.tune.options import Function, Tuning
from ptymesh.tune.places import finished_trials
from ptymesh.tune.records import Record, best_of, records, write_best, write_trials
from ptymesh.tune.sampling import TrialSampler
from ptymesh.tune.space import Space, recipe_of
from ptymesh.tune.worker import Worker, total
from ptymesh.tune.workers import WorkerProcesses

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Random points of the space whose recipes are checked before any trial begins.
CHECKED = 24
POLL_S = 0.25


@dataclass(frozen=True)
class StudyOutcome(Displayed):
    """Result of a study.

    Fields:
        folder: where everything was written.
        best: the best trial. trials: all of them.
        recipe: the best recipe (in folder/best.yaml too); path: of its reconstruction, None if none was wanted.
        notes: what the user should know, one sentence each.
    """

    displayed_by: ClassVar[str] = "ptymesh.notebook.studies"

    folder: Path
    best: Record
    trials: list[Record]
    recipe: Recipe
    path: Path | None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return (
            f"<Outcome of {self.folder}: {len(self.trials)} trials, the best is {self.best.number} "
            f"with {self.best.value:.6g}: {settings_line(self.best.settings)}>"
        )

    def plot(self) -> Figure:
        """Return a figure of the value of every trial, which a notebook shows."""
        return self._figure()


def run_study(
    tuning: Tuning,
    *,
    workers: int | None = None,
    device: str = "auto",
    join: bool = False,
    force: bool = False,
    quiet: bool = False,
    reconstruct: bool = True,
) -> StudyOutcome | None:
    """Run a study, or go on with it, until it has as many trials as the tune file says.

    Args:
        tuning: the tune file.
        workers: processes on this machine; default one per GPU (or group of `ranks_per_trial`), 1 on CPUs. A single
            one works in this process.
        device: auto, cpu, cuda or cuda:N.
        join: help with a study that another command has started, and write no results; returns None.
        force: forget a study that is in the folder.
        quiet: show nothing.
        reconstruct: run the best recipe at the end.

    Raises:
        BadInput: the tune file is wrong; nothing has been written then.
        Interrupted: the user stopped it; the same call goes on.
        PtymeshError: every trial failed.
    """
    if world().size > 1:
        raise BadInput("ptymesh tune starts its own processes; run it without torchrun, and see ranks_per_trial.")
    space = Space(tuning.space)
    notes = checked(tuning, space)
    refuse_featureless_data(tuning, space)
    devices = share_devices(device, workers, tuning.ranks_per_trial, ("--workers", "ranks_per_trial"))
    if force and not join:
        storage.remove_study(tuning)
    study = storage.open_study(tuning, objectives.direction(tuning.objective), join=join)
    tuning = storage.tuning_of(study, tuning.output.dir)
    trial_count = total(tuning, space)
    if trial_count < tuning.trials:
        notes.append(
            f"The space has {trial_count} different points: so many trials are run instead of {tuning.trials}."
        )
    watch = _Watch(tuning, space, study, trial_count, quiet=quiet or join)
    with StopSignal() as stop:
        try:
            watch.start()
            _work(tuning.output.dir, devices, device, watch, lambda: stop.requested)
        finally:
            watch.close()
        if join:
            return None
        return _conclude(tuning, study, watch.found, device, tuple(notes), reconstruct)


def checked(tuning: Tuning, space: Space) -> list[str]:
    """Check recipes from all over the space, and return notes about those that are not sound.

    Raises:
        BadInput: none is sound.
    """
    TrialSampler(space, tuning.sampler, tuning.seed)
    pruner(tuning.pruner.name, tuning.pruner.options)
    if isinstance(tuning.objective, Function):
        objectives.metric_entry(tuning.objective.call)
    refused: list[BadInput] = []
    points = [_random_point(space, random.Random(number)) for number in range(CHECKED)]
    for values in points:
        try:
            recipe_of(tuning, space, values)
        except BadInput as error:
            refused.append(error)
    if len(refused) == len(points):
        raise refused[0]
    if refused:
        share = f"{len(refused)} of {len(points)} random points of the space"
        return [f"{share} make no sound recipe and would fail ({refused[0]}); conditions (when) can leave them out."]
    return []


def refuse_featureless_data(tuning: Tuning, space: Space) -> None:
    """Raise BadInput where the patterns of the first sound recipe show no object: every trial would end in fog."""
    for number in range(CHECKED):
        try:
            recipe = recipe_of(tuning, space, _random_point(space, random.Random(number)))
        except BadInput:
            continue
        refuse_featureless(without_marks(load_measurement(recipe.data, recipe.positions)))
        return


def _random_point(space: Space, rng: random.Random) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, distribution in space.distributions.items():
        if space.active(key, values):
            sampled_from: Any = distribution
            if hasattr(sampled_from, "choices"):
                values[key] = rng.choice(sampled_from.choices)
            else:
                values[key] = rng.choice([sampled_from.low, sampled_from.high])
    return values


class _Watch:
    """Display and trials.jsonl of a study, brought up to date while workers work."""

    def __init__(self, tuning: Tuning, space: Space, study: Study, total: int, *, quiet: bool) -> None:
        self.tuning, self.space, self.study, self.total = tuning, space, study, total
        minimize = objectives.direction(tuning.objective) == "minimize"
        self._display = None if quiet else StudyDisplay(total, named(tuning), minimize=minimize)
        self.found: list[Record] = []
        self._written: list[Record] | None = None

    def start(self) -> None:
        """Read the study's records before the first trial."""
        self.found = records(self.study, self.total, self.tuning, self.space)
        if self._display:
            self._display.start(self.found)

    def finished(self) -> int:
        """Return how many trials have come to an end of their own."""
        return len(finished_trials(self.study.get_trials(deepcopy=False), self.total))

    def update(self) -> None:
        """Read the study's records again, and show and write them."""
        self.found = records(self.study, self.total, self.tuning, self.space)
        if self._display:
            self._display.show(self.found)
        ended = [one for one in self.found if one.state != "running"]
        if ended != self._written:
            write_trials(self.tuning.output.dir, self.found)
            self._written = ended

    def close(self) -> None:
        """Show the study's end and leave the terminal as it was."""
        self.update()
        if self._display:
            self._display.close()


def named(tuning: Tuning) -> str:
    """Return the objective's name, as it is shown."""
    goal = tuning.objective
    return goal.call.rpartition(":")[2] if isinstance(goal, Function) else goal.kind.replace("_", " ")


def _work(folder: Path, devices: list[Share], device: str, watch: _Watch, stop: Callable[[], bool]) -> None:
    """Run workers until the study is finished. Raises Interrupted if stopped, PtymeshError if workers failed."""
    if len(devices) == 1:
        worker = Worker(folder, device, devices[0].name, stop)
        worker.between = watch.update
        try:
            worker.run()
        except Interrupted as error:
            raise _interrupted(watch) from error
        return
    workers = WorkerProcesses(folder, devices)
    try:
        while not stop() and workers.any_running():
            watch.update()
            time.sleep(POLL_S)
    finally:
        workers.close()
    if stop():
        raise _interrupted(watch)
    workers.raise_if_any_failed()
    if watch.finished() < watch.total:
        raise PtymeshError(
            f"All workers have ended before the study did; see {workers.logs}, and run it again to go on."
        )


def _interrupted(watch: _Watch) -> Interrupted:
    return Interrupted(f"Stopped after {watch.finished()} of {watch.total} trials; the same command runs the others.")


def _conclude(
    tuning: Tuning, study: Study, trials: list[Record], device: str, notes: tuple[str, ...], reconstruct: bool
) -> StudyOutcome:
    folder = tuning.output.dir
    best = best_of(study, trials)
    if best is None:
        why = next((one.why for one in trials if one.why), "none has a value")
        raise PtymeshError(f"None of the {len(trials)} trials came to a value; the first says: {why}")
    recipe = write_best(folder, best, named(tuning))
    path = _reconstructed(recipe, tuning.ranks_per_trial, device) if reconstruct else None
    return StudyOutcome(folder, best, trials, recipe, path, notes)


def without_checks(text: str) -> dict[str, Any]:
    """Return a recipe's keys without what checks of the data have found, which a run adds to its own."""
    raw: dict[str, Any] = yaml.safe_load(text)
    raw.get("data", {}).pop("checked", None)
    return raw


def _reconstructed(recipe: Recipe, ranks: int, device: str) -> Path:
    """Run the best recipe, unless its result is there already; return the result's path."""
    out = recipe.output.dir
    path = out / "result.h5"
    if path.exists() and without_checks(Result.load(path).recipe) == without_checks(recipe.to_yaml()):
        return path
    if ranks > 1:
        arguments = ["run", str(out.parent / "best.yaml"), "--device", device, "--out", str(out), "--force"]
        status = launch(arguments, ranks, log_dir=out / "ranks")
        if status:
            raise PtymeshError(
                f"The best recipe, {out.parent / 'best.yaml'}, ended with status {status} when it was run."
            )
        return path
    return run_recipe(recipe, device=device, callbacks=[FreshStart(), LogFile(), MetricsFile()]).path
