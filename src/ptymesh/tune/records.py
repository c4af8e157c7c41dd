"""Records of a study's trials, and the files that it leaves: trials.jsonl, best.yaml and best/result.h5."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from optuna import Study
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from ptymesh.files import replacing, writing
from ptymesh.printable import finite
from ptymesh.recipe.schema import Recipe
from ptymesh.tune.options import Tuning
from ptymesh.tune.places import RETRY_OF, is_given_up, reason, trials_that_count
from ptymesh.tune.space import Space, composed

TRIALS, BEST = "trials.jsonl", "best.yaml"


@dataclass(frozen=True)
class Record:
    """One trial.

    Fields:
        number: Optuna's. state: done, pruned, failed, running, waiting, or released (given up, and tried again).
        value: of the objective, None where there is none; of a pruned trial the last one that was reported.
        settings: recipe key -> value, as the recipe says it. recipe: the whole of it, plain dicts.
        seed: the recipe's. device, seconds: where it ran, and how long. why: it was pruned, failed or released.
        retry_of: number of the trial whose values these are. values_by_epoch: what the pruner saw.
    """

    number: int
    state: str
    value: float | None
    settings: dict[str, Any]
    recipe: dict[str, Any]
    seed: int
    device: str
    seconds: float | None
    why: str
    retry_of: int | None
    values_by_epoch: dict[int, float]
    worker: str

    def line(self) -> str:
        """Return the record as JSON; numbers that are not finite are null."""
        return json.dumps(finite(vars(self)), default=str)


_STATES = {
    TrialState.COMPLETE: "done",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
}


def record(trial: FrozenTrial, tuning: Tuning, space: Space) -> Record:
    """Return the record of a trial.

    Args:
        trial: Optuna's.
        tuning: the tune file.
        space: its search space.
    """
    notes = trial.user_attrs
    recipe = composed(tuning, space, trial.params)
    worker = notes.get("worker") or {}
    return Record(
        number=trial.number,
        state="released" if is_given_up(trial) else _STATES[trial.state],
        value=trial.value if trial.values else None,
        settings={key: space.meaning(key, value) for key, value in trial.params.items()},
        recipe=recipe,
        seed=recipe.get("seed", 0),
        device=str(notes.get("device", "")),
        seconds=notes.get("seconds"),
        why=reason(trial),
        retry_of=notes.get(RETRY_OF),
        values_by_epoch=dict(trial.intermediate_values),
        worker=f"{worker['machine'].split()[0]} {worker['pid']}" if worker else "",
    )


def records(study: Study, total: int, tuning: Tuning, space: Space) -> list[Record]:
    """Return all trials that have begun, those that were given up too, by number.

    Args:
        study: Optuna's.
        total: number of trials that there are to be.
        tuning: the tune file.
        space: its search space.
    """
    counting_trials = trials_that_count(study.get_trials(deepcopy=False), total)
    return [record(trial, tuning, space) for trial in counting_trials if trial.state != TrialState.WAITING]


def write_trials(folder: Path, trials: list[Record]) -> None:
    """Write OUT/trials.jsonl, which is whole at every moment."""
    _write(folder / TRIALS, "".join(f"{one.line()}\n" for one in trials))


def best_of(study: Study, trials: list[Record]) -> Record | None:
    """Return the best trial that was done to its end, the first of equals; None where there is none."""
    finished = [one for one in trials if one.state == "done" and one.value is not None]
    sign = 1 if study.direction == StudyDirection.MINIMIZE else -1
    return min(finished, key=lambda one: sign * (one.value or 0.0), default=None)


def best_recipe(one: Record, folder: Path) -> Recipe:
    """Return the recipe of a trial, with the study's folder `best` as its output."""
    return Recipe.parse(one.recipe).with_output(folder / "best")


def write_best(folder: Path, one: Record, objective: str) -> Recipe:
    """Write OUT/best.yaml, a recipe with all keys, and return it.

    Args:
        folder: of the study.
        one: the best trial.
        objective: its name, for a comment.
    """
    recipe = best_recipe(one, folder)
    changed = yaml.safe_dump(one.settings, sort_keys=False, allow_unicode=True).rstrip().splitlines()
    head = [f"Trial {one.number}, {objective} {one.value:.6g}, with", *changed]
    text = "".join(f"# {line}\n" for line in head) + recipe.to_yaml()
    _write(folder / BEST, text)
    return recipe


def _write(path: Path, text: str) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    with replacing(path, len(data)) as temporary:
        temporary.write_bytes(data)
