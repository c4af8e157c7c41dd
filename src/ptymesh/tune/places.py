"""The places of a study: how many trials count, which of them are to be tried again, and what is left to do.

A study has `total` places. Each is filled by a trial, and by its retries where trials were given up: a trial whose
worker died, or was told to stop, ends as FAIL, and its values are queued anew with `retry_of`. Every worker applies
the rules below to the same list of trials, so that they agree without a lock; what was not done, because a worker died
between two steps, the next one does.
"""

from __future__ import annotations

from collections.abc import Sequence

from optuna import Study
from optuna.trial import FrozenTrial, TrialState

from ptymesh.tune.offered import quiet
from ptymesh.tune.space import Space

#: User attributes of trials: number of the trial that this one repeats; how many workers have died of these values; why
#: the trial was given up; why it was never run; why it failed; its worker (see `Worker.identity`).
RETRY_OF, DEATHS, RELEASED, UNUSED, ERROR, WORKER = "retry_of", "deaths", "released", "unused", "error", "worker"
#: How often a trial whose worker died is tried again.
RETRIES = 1


def is_given_up(trial: FrozenTrial) -> bool:
    """Return True for a trial that is to be tried again: it ended with neither a value nor an error of its own."""
    if trial.state != TrialState.FAIL or ERROR in trial.user_attrs or UNUSED in trial.user_attrs:
        return False
    return RELEASED in trial.user_attrs or trial.user_attrs.get(DEATHS, 0) < RETRIES


def reason(trial: FrozenTrial) -> str:
    """Return why a trial was pruned, failed or given up; empty where nothing went wrong."""
    notes = trial.user_attrs
    note = next((notes[name] for name in ("pruned", ERROR, RELEASED, UNUSED) if notes.get(name)), None)
    if note or trial.state != TrialState.FAIL:
        return str(note or "")
    return "its worker died" + ("" if is_given_up(trial) else "; the worker that tried it before has died, too")


def trials_that_count(trials: Sequence[FrozenTrial], total: int) -> list[FrozenTrial]:
    """Return the trials of the first `total` places by number.

    Each place has its first trial, and the first retry of each trial that was given up.
    """
    by_number = {trial.number: trial for trial in trials}
    first = [trial for trial in trials if RETRY_OF not in trial.user_attrs and UNUSED not in trial.user_attrs]
    counting = {trial.number: trial for trial in first[:total]}
    followed: set[int] = set()
    for trial in trials:
        before = trial.user_attrs.get(RETRY_OF)
        if before in counting and before not in followed and is_given_up(by_number[before]):
            followed.add(before)
            counting[trial.number] = trial
    return sorted(counting.values(), key=lambda trial: trial.number)


def finished_trials(trials: Sequence[FrozenTrial], total: int) -> list[FrozenTrial]:
    """Return the trials that count and came to an end of their own, one for each place at most."""
    return [t for t in trials_that_count(trials, total) if t.state.is_finished() and not is_given_up(t)]


def has_open_place(trials: Sequence[FrozenTrial], total: int) -> bool:
    """Return True if a worker can take a trial: a retry that nobody has, or a place that is still empty."""
    places = sum(RETRY_OF not in trial.user_attrs and UNUSED not in trial.user_attrs for trial in trials)
    return places < total or any(t.state == TrialState.WAITING for t in trials_that_count(trials, total))


def enqueue_retries(study: Study, space: Space) -> None:
    """Queue the values of each trial that was given up, unless that was done already.

    A trial that died before it had all its values is repeated with new ones. Two workers that do it at once queue two
    retries, of which the first counts.
    """
    trials = study.get_trials(deepcopy=False)
    followed = {trial.user_attrs.get(RETRY_OF) for trial in trials}
    for trial in trials:
        if is_given_up(trial) and trial.number not in followed:
            deaths = int(trial.user_attrs.get(DEATHS, 0)) + (RELEASED not in trial.user_attrs)
            values = trial.params if space.is_complete(trial.params) else {}
            with quiet():
                study.enqueue_trial(values, user_attrs={RETRY_OF: trial.number, DEATHS: deaths})
