"""A worker: claims one trial after the other, until the study is finished or it is told to stop.

`python -m ptymesh.tune.worker FOLDER DEVICE NAME` is one process of several; in a study with a single worker it runs
in the process that was asked to tune.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optuna import Trial
from optuna.trial import FrozenTrial, TrialState

from ptymesh.distributed.child import settle
from ptymesh.distributed.joining import join
from ptymesh.distributed.world import Solo, World
from ptymesh.errors import Interrupted, PtymeshError
from ptymesh.run.recipe import Recipe
from ptymesh.run.signals import StopSignal
from ptymesh.tune import storage
from ptymesh.tune.offered import pruner, quiet
from ptymesh.tune.options import Tuning
from ptymesh.tune.queue import BEAT, DRAWN, Queue
from ptymesh.tune.sampling import Drawing, suggest
from ptymesh.tune.space import Space, recipe_of
from ptymesh.tune.trial import Outcome, on_ranks, reporter, run

#: Between two looks at the queue, for a worker that waits for others.
POLL_S = 0.2


class Worker:
    """One worker of a study.

    Args:
        folder: of the study.
        device: auto, cpu, cuda or cuda:N. name: how it is called in the records.
        stop: asked between batches and trials.
    """

    def __init__(self, folder: Path, device: str, name: str, stop: Callable[[], bool]) -> None:
        self.folder, self.device, self.name, self.stop = folder, device, name, stop
        self.study = storage.reopened(folder)
        #: Called when a trial has ended.
        self.between: Callable[[], None] = lambda: None
        self._asked: Any = None
        self._settle()

    def _settle(self) -> None:
        """What the newest command asks for, where that has changed."""
        asked = self.study.user_attrs.get(storage.SETTINGS)
        if asked is not None and asked == self._asked:
            return
        self._asked = asked
        self.tuning = storage.tuning_of(self.study, self.folder)
        self.space = Space(self.tuning.space)
        self.queue = Queue(self.study, total(self.tuning, self.space), self.tuning.heartbeat_s)

    def run(self) -> None:
        """Works until every trial of the study is finished, by whomever. Raises Interrupted when told to stop."""
        while True:
            self._settle()
            if self.stop():
                raise Interrupted("The worker was told to stop between two trials.")
            self.queue.release_dead()
            claimed = self.queue.claim()
            if claimed is not None:
                self._trial(claimed)
                self.between()
            elif self.queue.finished():
                return
            else:
                time.sleep(POLL_S)

    def _trial(self, claimed: FrozenTrial) -> None:
        began = time.perf_counter()
        with self._beating(claimed):
            try:
                trial, recipe = self._drawn(claimed)
                outcome = self._outcome(trial, recipe)
            except Interrupted:
                self.queue.release(self._now(claimed), "its worker was told to stop", death=False)
                raise
            except PtymeshError as error:
                outcome = Outcome(error=str(error))
            except Exception as error:
                traceback.print_exc()
                outcome = Outcome(error=f"unexpected {type(error).__name__}: {' '.join(str(error).split())[:300]}")
            self._tell(claimed, outcome, time.perf_counter() - began)

    def _drawn(self, claimed: FrozenTrial) -> tuple[Trial, Recipe]:
        """Draws values when it is this trial's turn. Raises BadInput where they make no sound recipe."""
        while self.queue.before(claimed.number):
            if self.stop():
                raise Interrupted("The worker was told to stop.")
            self.queue.release_dead()
            time.sleep(POLL_S / 4)
        tuning, study = self.tuning, self.study
        study.pruner = pruner(tuning.pruner.name, tuning.pruner.options)
        study.sampler = Drawing(self.space, tuning.sampler, tuning.seed, self.queue.index(claimed))
        trial = Trial(study, claimed._trial_id)
        with quiet():
            values = suggest(trial, self.space)
        for name, value in (("device", self.name), (DRAWN, True)):
            trial.set_user_attr(name, value)
        return trial, recipe_of(tuning, self.space, values)

    def _outcome(self, trial: Trial, recipe: Recipe) -> Outcome:
        if self.tuning.ranks_per_trial > 1:
            return on_ranks(self.tuning, self._now(trial), recipe, self.device)
        world: World = Solo(join(self.device).device)
        return run(self.tuning.objective, recipe, world, self.stop, reporter(trial))

    def _tell(self, claimed: FrozenTrial, outcome: Outcome, seconds: float) -> None:
        """Stores how it ended; nothing where the trial was given to another worker meanwhile."""
        study, trial_id = self.study, claimed._trial_id
        state = TrialState.COMPLETE if outcome.value is not None else TrialState.PRUNED
        try:
            notes = {"seconds": seconds, "pruned": outcome.pruned, "error": outcome.error}
            for name, value in notes.items():
                if value:
                    study._storage.set_trial_user_attr(trial_id, name, value)
            if outcome.error:
                self.queue.fail(self._now(claimed), outcome.error)
            else:
                study.tell(claimed.number, outcome.value, state)
        except (RuntimeError, ValueError):
            if not self._now(claimed).state.is_finished():
                raise

    def _now(self, trial: FrozenTrial | Trial) -> FrozenTrial:
        return self.study._storage.get_trial(trial._trial_id)

    @contextmanager
    def _beating(self, claimed: FrozenTrial) -> Iterator[None]:
        """Counts up the trial's beat, beside whatever this thread does."""
        over = threading.Event()

        def beat() -> None:
            count = 0
            while not over.wait(self.tuning.heartbeat_s):
                count += 1
                try:
                    self.study._storage.set_trial_user_attr(claimed._trial_id, BEAT, count)
                except RuntimeError:  # the trial is over, or another's
                    return

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def total(tuning: Tuning, space: Space) -> int:
    """How many trials there are to be: as asked for, or as many as a finite space has."""
    count = space.count()
    return tuning.trials if count is None else min(count, tuning.trials)


def main(arguments: list[str]) -> int:
    """One worker process."""
    folder, device, name = Path(arguments[0]), arguments[1], arguments[2]
    try:
        with StopSignal() as stop:
            Worker(folder, device, name, lambda: stop.requested).run()
    except PtymeshError as error:
        print(f"ptymesh: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    settle()
    sys.exit(main(sys.argv[1:]))
