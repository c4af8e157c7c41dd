"""The queue of trials that workers share, on nothing but what every Optuna storage can do.

Workers on any number of machines may come, go and be killed. No lock is needed: what counts is decided by rules that
every worker evaluates alike on the list of trials.

Tickets     A trial begins as a ticket (state WAITING) and is claimed by becoming RUNNING, which a storage grants once.
Total       Only the first `total` tickets are valid, by their numbers. Two workers may both add the last one; the
            second is then never claimed, unless the study is made larger.
Retries     A trial that was given up (state FAIL, attribute `released`) is followed by a ticket with its values, which
            names it (`retry_of`). That ticket is added first, and is valid once the trial is given up; of several, the
            first. So a crash between the two steps loses nothing, and two workers that do it at once do it once.
Drawing     Values are drawn in the order of the trials' numbers: each waits until those before it have theirs
            (attribute `drawn`), so that no two workers draw the same.
Life        A worker counts up `beat` of its trial. On its own machine it is given up when its process is gone; from
            another one, when the beat has stood still for SILENT times its interval, by the observer's own clock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import psutil
from optuna import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from ptymesh.files import machine
from ptymesh.tune.offered import quiet

#: User attributes of trials.
RETRY_OF, RELEASED, DRAWN, WORKER, BEAT, DEATHS, INDEX = (
    "retry_of",
    "released",
    "drawn",
    "worker",
    "beat",
    "deaths",
    "index",
)
#: Intervals of silence after which a worker elsewhere counts as dead.
SILENT = 6
#: How often a trial whose worker died is tried again.
RETRIES = 1


def myself() -> dict[str, Any]:
    """This worker, so that others on its machine can see whether it lives."""
    return {"machine": machine(), "pid": os.getpid(), "started": psutil.Process().create_time()}


def lives(worker: Mapping[str, Any]) -> bool | None:
    """Whether a worker's process is there; None where that cannot be seen from this machine."""
    if worker["machine"] != machine():
        return None
    try:
        process = psutil.Process(worker["pid"])
        return bool(process.create_time() == worker["started"] and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Queue:
    """The trials of a study, as one worker sees them.

    total: how many tickets are valid. heartbeat_s: interval of the beats.
    """

    def __init__(self, study: Study, total: int, heartbeat_s: float) -> None:
        self.study, self.total, self.heartbeat_s = study, total, heartbeat_s
        self._storage = study._storage
        #: Of running trials elsewhere: the last beat seen, and when it was new.
        self._beats: dict[int, tuple[Any, float]] = {}

    def trials(self) -> list[FrozenTrial]:
        """All trials, tickets too, by number."""
        return self.study.get_trials(deepcopy=False)

    def valid(self, trials: list[FrozenTrial]) -> list[FrozenTrial]:
        """Those that count: the first `total` tickets, and the first retry of each that was given up."""
        by_number = {trial.number: trial for trial in trials}
        tickets = [trial for trial in trials if RETRY_OF not in trial.user_attrs]
        found = tickets[: self.total]
        counted = {trial.number for trial in found}
        followed: set[int] = set()
        for trial in trials:
            first = trial.user_attrs.get(RETRY_OF)
            if first is None or first in followed or first not in counted or not self._released(by_number[first]):
                continue
            followed.add(first)
            counted.add(trial.number)
            found.append(trial)
        return sorted(found, key=lambda trial: trial.number)

    def finished(self) -> bool:
        """Whether every valid ticket has come to its end."""
        trials = self.trials()
        tickets = sum(RETRY_OF not in trial.user_attrs for trial in trials)
        return tickets >= self.total and all(trial.state.is_finished() for trial in self.valid(trials))

    def done(self) -> list[FrozenTrial]:
        """Valid trials that came to an end of their own."""
        return [t for t in self.valid(self.trials()) if t.state.is_finished() and not self._released(t)]

    def claim(self) -> FrozenTrial | None:
        """A ticket for this worker, now RUNNING; None where all are taken. Retries come first."""
        trials = self.trials()
        tickets = sum(RETRY_OF not in trial.user_attrs for trial in trials)
        waiting = self._waiting(trials)
        if not waiting and tickets < self.total:
            self._add({}, {})
            waiting = self._waiting(self.trials())
        for trial in waiting:
            if self._take(trial):
                for name, value in ((WORKER, myself()), (BEAT, 0)):
                    self._storage.set_trial_user_attr(trial._trial_id, name, value)
                return trial
        return None

    def index(self, trial: FrozenTrial) -> int:
        """The how manieth ticket this is; a retry has that of its first."""
        if INDEX in trial.user_attrs:
            return int(trial.user_attrs[INDEX])
        return sum(t.number < trial.number and RETRY_OF not in t.user_attrs for t in self.trials())

    def before(self, number: int) -> list[FrozenTrial]:
        """Running trials with lower numbers that have not drawn their values yet."""
        return [
            trial
            for trial in self.valid(self.trials())
            if trial.number < number and trial.state == TrialState.RUNNING and DRAWN not in trial.user_attrs
        ]

    def release(self, trial: FrozenTrial, why: str, *, death: bool) -> None:
        """Give up a running trial; its values are tried again, but only RETRIES times if workers die of it."""
        deaths = int(trial.user_attrs.get(DEATHS, 0)) + death
        if deaths > RETRIES:
            self.fail(trial, f"{why}; the worker that tried it before has died, too")
            return
        following = {RETRY_OF: trial.number, DEATHS: deaths, INDEX: self.index(trial)}
        fixed = {"fixed_params": dict(trial.params)} if DRAWN in trial.user_attrs else {}
        if not any(other.user_attrs.get(RETRY_OF) == trial.number for other in self.trials()):
            self._add(following, fixed)
        self._end(trial, RELEASED, why)

    def fail(self, trial: FrozenTrial, why: str) -> None:
        """End a running trial without a value; it is not tried again."""
        self._end(trial, "error", why)

    def release_dead(self) -> list[FrozenTrial]:
        """Gives up the trials of workers that have died; returns them as they were."""
        dead = [trial for trial in self.valid(self.trials()) if trial.state == TrialState.RUNNING]
        dead = [trial for trial in dead if self._is_dead(trial)]
        for trial in dead:
            self.release(trial, "its worker died", death=True)
        return dead

    def _is_dead(self, trial: FrozenTrial) -> bool:
        worker = trial.user_attrs.get(WORKER)
        alive = None if worker is None else lives(worker)
        if alive is not None:
            return not alive
        now, beat = time.monotonic(), trial.user_attrs.get(BEAT)
        last, since = self._beats.get(trial.number, (None, now))
        if trial.number not in self._beats or last != beat:
            self._beats[trial.number] = (beat, now)
            return False
        return now - since > SILENT * self.heartbeat_s

    def _waiting(self, trials: list[FrozenTrial]) -> list[FrozenTrial]:
        """Valid tickets that nobody has, retries first."""
        waiting = [trial for trial in self.valid(trials) if trial.state == TrialState.WAITING]
        return sorted(waiting, key=lambda trial: RETRY_OF not in trial.user_attrs)

    def _add(self, user: Mapping[str, Any], system: Mapping[str, Any]) -> None:
        with quiet():
            self.study.add_trial(create_trial(state=TrialState.WAITING, user_attrs={**user}, system_attrs={**system}))

    def _take(self, trial: FrozenTrial) -> bool:
        try:
            return bool(self._storage.set_trial_state_values(trial._trial_id, state=TrialState.RUNNING))
        except RuntimeError:  # another worker has taken it, and finished
            return False

    def _end(self, trial: FrozenTrial, attribute: str, why: str) -> None:
        """State FAIL; nothing where the trial came to an end of its own meanwhile."""
        try:
            self._storage.set_trial_user_attr(trial._trial_id, attribute, why)
            self._storage.set_trial_state_values(trial._trial_id, state=TrialState.FAIL)
        except RuntimeError:
            pass

    def _released(self, trial: FrozenTrial) -> bool:
        return trial.state == TrialState.FAIL and RELEASED in trial.user_attrs
