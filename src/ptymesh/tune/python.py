"""Tuning from Python."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ptymesh.errors import BadInput
from ptymesh.io.results import Result
from ptymesh.recipe.schema import Recipe
from ptymesh.tune.options import Goal, Tuning, load_tuning, tuning
from ptymesh.tune.session import StudyOutcome, run_study

Objective = str | dict[str, Any] | Goal | Callable[[Result], float]


def tune(
    what: str | Path | dict[str, Any] | Recipe | Tuning,
    space: dict[str, Any] | None = None,
    *,
    objective: Objective | None = None,
    out: str | Path | None = None,
    workers: int | None = None,
    device: str = "auto",
    force: bool = False,
    quiet: bool = True,
    reconstruct: bool = True,
    **keys: Any,
) -> StudyOutcome:
    """Search for the recipe that suits best, or go on with a search that is in the folder already.

    Args:
        what: a tune file; or, with a `space`, a recipe: its path, a dict, or a Recipe.
        space: recipe key -> {low, high, ...} or a list of choices, as in a tune file.
        objective: as in a tune file; or a function Result -> number of a module or script (not a lambda), which is
            minimised.
        out: folder of the study (default: the tune file's, or `tune`).
        workers: processes on this machine; default one per GPU (or group of `ranks_per_trial`), 1 on CPUs. With
            several, a script must guard its call by `if __name__ == "__main__"` where its objective is in the same
            file.
        device: auto, cpu, cuda or cuda:N.
        force: forget a study that is in the folder.
        quiet: show nothing.
        reconstruct: run the best recipe at the end.
        keys: other keys of a tune file: trials, seed, sampler, pruner, storage, ranks_per_trial, heartbeat_s.

    Raises:
        BadInput: an argument is wrong, or the folder holds another study.
        Interrupted: the user stopped it; the same call goes on.
        PtymeshError: every trial failed.
    """
    if objective is not None:
        keys["objective"] = _entry(objective) if callable(objective) else objective
    folder = None if out is None else Path(out)
    if isinstance(what, Tuning):
        if space is not None or keys:
            raise BadInput("A Tuning is complete; give its space and keys when it is made.")
        tuning_options = what if folder is None else what.model_copy(update={"output": {"dir": folder}})
    elif space is None and isinstance(what, str | Path):
        tuning_options = load_tuning(Path(what), out=folder, **keys)
    else:
        recipe: Any = what.model_dump(mode="json") if isinstance(what, Recipe) else what
        if isinstance(what, Recipe):
            recipe["stages"] = [{"engine": stage.name, **stage.model_dump(mode="json")} for stage in what.stages]
        raw = {"recipe": recipe, "space": space, "output": {"dir": str(folder or "tune")}, **keys}
        tuning_options = tuning(raw, Path())
    outcome = run_study(
        tuning_options, workers=workers, device=device, force=force, quiet=quiet, reconstruct=reconstruct
    )
    assert outcome is not None, "only those who join get nothing"
    return outcome


def _entry(function: Callable[[Result], float]) -> dict[str, str]:
    """Return the keys by which another process finds a function. Raises BadInput for one that it could not find."""
    name, module = getattr(function, "__qualname__", ""), inspect.getmodule(function)
    if not name or "<" in name or module is None:
        raise BadInput(f"The objective {function!r} cannot be imported; define it with def, in a module or a script.")
    if module.__name__ == "__main__":
        return {"kind": "function", "call": f"{Path(inspect.getfile(function)).absolute()}:{name}"}
    return {"kind": "function", "call": f"{module.__name__}:{name}"}
