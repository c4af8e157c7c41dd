"""A worker: runs one trial after the other, until the study is finished or it is told to stop.

`python -m ptymesh.tune.worker FOLDER DEVICE NAME` is one process of several; in a study with a single worker it runs
in the process that was asked to tune.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from optuna import Trial, TrialPruned
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import JournalStorage

from ptymesh.distributed.child import prepare_process
from ptymesh.distributed.joining import join
from ptymesh.distributed.world import Solo, World
from ptymesh.errors import Interrupted, PtymeshError
from ptymesh.files import machine
from ptymesh.recipe.schema import Recipe
from ptymesh.run_folder.signals import StopSignal
from ptymesh.tune import places, storage
from ptymesh.tune.dead_workers import DeadWorkers, WorkerLease
from ptymesh.tune.offered import pruner, quiet
from ptymesh.tune.options import Tuning
from ptymesh.tune.places import ERROR, RELEASED, RETRY_OF, UNUSED, WORKER
from ptymesh.tune.sampling import TrialSampler, is_drawn_twice, suggest
from ptymesh.tune.space import Space, recipe_of
from ptymesh.tune.trial import TrialOutcome, on_ranks, reporter, run

#: Between two looks at the study, for a worker that waits for others.
POLL_S = 0.2


class NoValue(Exception):
    """A trial has ended without a value; why is among its attributes."""


class Worker:
    """One worker of a study.

    Args:
        folder: of the study.
        device: auto, cpu, cuda or cuda:N. name: how it is called in the records.
        stop: asked between batches and trials.
    """

    def __init__(self, folder: Path, device: str, name: str, stop: Callable[[], bool]) -> None:
        self.folder, self.device, self.name, self.stop = folder, device, name, stop
        self.study = storage.reopen_study(folder)
        #: Called when a trial has ended.
        self.between: Callable[[], None] = lambda: None
        self._settings: object = None
        self._read_settings()
        journal = isinstance(self.study._storage, JournalStorage)
        self._lease = WorkerLease(folder, self.tuning.heartbeat_s) if journal else None

    @property
    def identity(self) -> dict[str, object]:
        """Attributes by which this worker's trials name it."""
        return {"machine": machine(), "pid": os.getpid(), **(self._lease.notes if self._lease else {})}

    def run(self) -> None:
        """Work until every trial of the study is finished, by whomever. Raises Interrupted when told to stop."""
        try:
            while self._take_turn():
                pass
        finally:
            if self._lease:
                self._lease.release()

    def _take_turn(self) -> bool:
        """Run a trial, or wait a moment where others run the last ones; return False when all are finished."""
        self._read_settings()
        if self.stop():
            raise Interrupted("The worker was told to stop between two trials.")
        self._dead.fail_trials()
        places.enqueue_retries(self.study, self.space)
        trials = self.study.get_trials(deepcopy=False)
        if places.has_open_place(trials, self.total):
            self._run_trial()
            self.between()
        elif len(places.finished_trials(trials, self.total)) == self.total:
            return False
        else:
            time.sleep(POLL_S)
        return True

    def _read_settings(self) -> None:
        """Take over what the newest command asks for, where that has changed."""
        settings = self.study.user_attrs.get(storage.SETTINGS)
        if settings is not None and settings == self._settings:
            return
        self._settings = settings
        self.tuning = storage.tuning_of(self.study, self.folder)
        self.space = Space(self.tuning.space)
        self.total = total(self.tuning, self.space)
        self._dead = DeadWorkers(self.study, self.folder, self.tuning.heartbeat_s)

    def _run_trial(self) -> None:
        """Run a retry that waits, or else a new trial."""
        tuning = self.tuning
        if self._lease:
            self._lease.hold()
        self.study.pruner = pruner(tuning.pruner.name, tuning.pruner.options)
        self._sampler = self.study.sampler = TrialSampler(self.space, tuning.sampler, tuning.seed)
        with suppress(UpdateFinishedTrialError):  # it stood still for so long that another worker was given its trial
            self.study.optimize(self._evaluate, n_trials=1, catch=(NoValue,))

    def _evaluate(self, trial: Trial) -> float:
        """Return the objective of a trial. Raises TrialPruned, NoValue, Interrupted."""
        began = time.perf_counter()
        trial.set_user_attr(WORKER, self.identity)
        trial.set_user_attr("device", self.name)
        try:
            outcome = self._outcome(trial, self._draw(trial))
        except Interrupted:
            trial.set_user_attr(RELEASED, "its worker was told to stop")
            raise
        except (NoValue, UpdateFinishedTrialError):
            raise
        except PtymeshError as error:
            outcome = TrialOutcome(error=str(error))
        except Exception as error:
            traceback.print_exc()
            outcome = TrialOutcome(error=f"unexpected {type(error).__name__}: {' '.join(str(error).split())[:300]}")
        trial.set_user_attr("seconds", time.perf_counter() - began)
        if outcome.error:
            trial.set_user_attr(ERROR, outcome.error)
            raise NoValue(outcome.error)
        if outcome.value is None:
            trial.set_user_attr("pruned", outcome.pruned)
            raise TrialPruned(outcome.pruned)
        return outcome.value

    def _draw(self, trial: Trial) -> Recipe:
        """Return a trial's recipe. Raises NoValue where it is one too many, BadInput where its values make none.

        Workers draw side by side. Of two that took the last place the second one gives it up; those that drew the same
        values at the same moment draw again.
        """
        if trial.number not in self._counting():
            self._give_back(trial, "other workers have filled the study")
        with quiet():
            values = suggest(trial, self.space)
        is_new = RETRY_OF not in trial.user_attrs and not self._sampler.repeats
        if is_new and is_drawn_twice(self.study.get_trials(deepcopy=False), trial.number):
            self._give_back(trial, "another worker has drawn the same values")
        return recipe_of(self.tuning, self.space, values)

    def _counting(self) -> set[int]:
        return {t.number for t in places.trials_that_count(self.study.get_trials(deepcopy=False), self.total)}

    def _give_back(self, trial: Trial, why: str) -> None:
        trial.set_user_attr(UNUSED, why)
        raise NoValue(why)

    def _outcome(self, trial: Trial, recipe: Recipe) -> TrialOutcome:
        if self.tuning.ranks_per_trial > 1:
            return on_ranks(self.tuning, self.study._storage.get_trial(trial._trial_id), recipe, self.device)
        world: World = Solo(join(self.device).device)
        return run(self.tuning.objective, recipe, world, self.stop, reporter(trial))


def total(tuning: Tuning, space: Space) -> int:
    """Return the number of trials that there are to be: as asked for, or as many as a finite space has."""
    count = space.count()
    return tuning.trials if count is None else min(count, tuning.trials)


def main(arguments: list[str]) -> int:
    """Run one worker process; return its exit status."""
    folder, device, name = Path(arguments[0]), arguments[1], arguments[2]
    try:
        with StopSignal() as stop:
            Worker(folder, device, name, lambda: stop.requested).run()
    except PtymeshError as error:
        print(f"ptymesh: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    prepare_process()
    sys.exit(main(sys.argv[1:]))
