"""Figures of a study, drawn by Optuna: as HTML (plotly) to look into, and as PNG (matplotlib)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna import Study
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.study import StudyDirection
from optuna.trial import TrialState

from ptymesh.errors import BadInput
from ptymesh.files import target_of, writing
from ptymesh.plot import save_figure
from ptymesh.plot.fonts import own_font
from ptymesh.tune import storage
from ptymesh.tune.display import settings_line
from ptymesh.tune.offered import quiet
from ptymesh.tune.places import finished_trials
from ptymesh.tune.records import best_of, records, write_best, write_trials
from ptymesh.tune.session import named
from ptymesh.tune.space import Space
from ptymesh.tune.worker import total


@dataclass(frozen=True)
class StudyReport:
    """Report on a study.

    Attributes:
        lines: text for a terminal.
        paths: of the figures.
        importance: share of each parameter.
    """

    lines: list[str]
    paths: list[Path]
    importance: dict[str, float]


def write_report(folder: Path) -> StudyReport:
    """Draw the study in a folder, finished or not, into folder/report; write trials.jsonl and best.yaml anew.

    Importance is PED-ANOVA's (Watanabe et al., IJCAI 2023): how much each parameter has to do with being among the
    best tenth of the trials. Raises BadInput where there is no study, or no trial is done.
    """
    study = storage.reopen_study(folder)
    tuning = storage.tuning_of(study, folder)
    space = Space(tuning.space)
    trial_count = total(tuning, space)
    trials = records(study, trial_count, tuning, space)
    best = best_of(study, trials)
    if best is None:
        raise BadInput(f"No trial of {folder} is done yet; report it later.")
    write_trials(folder, trials)
    write_best(folder, best, named(tuning))
    clean = _finished(study, trial_count)
    importance = _importance(clean)
    counts = {state: sum(one.state == state for one in trials) for state in dict.fromkeys(one.state for one in trials)}
    lines = [
        f"{trial_count} trials by {named(tuning)}: {', '.join(f'{n} {state}' for state, n in counts.items())}",
        f"Best: trial {best.number}, {best.value:.6g}: {settings_line(best.settings)}",
    ]
    if importance:
        lines.append("Importance: " + ", ".join(f"{key} {share:.2f}" for key, share in importance.items()))
    else:
        lines.append("Importance needs at least two trials that differ in their values.")
    target = folder / "report"
    with writing(target):
        target.mkdir(parents=True, exist_ok=True)
    paths = [
        path for name, draw in _plots(bool(importance)) for path in _drawn(clean, name, draw, target, named(tuning))
    ]
    return StudyReport(lines, paths, importance)


def _finished(study: Study, total: int) -> Study:
    """Return the study in memory, without trials that run, were given up, or are too many."""
    with quiet():
        clean = optuna.create_study(
            direction="minimize" if study.direction == StudyDirection.MINIMIZE else "maximize",
            study_name=study.study_name,
        )
        for trial in finished_trials(study.get_trials(deepcopy=False), total):
            clean.add_trial(trial)
    return clean


def _importance(study: Study) -> dict[str, float]:
    values = {trial.value for trial in study.get_trials(states=(TrialState.COMPLETE,))}
    if len(values) < 2:
        return {}
    with quiet():
        return dict(get_param_importances(study, evaluator=PedAnovaImportanceEvaluator()))


def _plots(important: bool) -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield the name of each figure, and a function by which one of Optuna's modules draws it."""
    yield "history", lambda module, study, name: module.plot_optimization_history(study, target_name=name)
    yield "parallel_coordinate", lambda module, study, name: module.plot_parallel_coordinate(study, target_name=name)
    if important:
        yield (
            "importance",
            lambda module, study, name: module.plot_param_importances(study, evaluator=PedAnovaImportanceEvaluator()),
        )


def _drawn(study: Study, name: str, draw: Callable[..., Any], target: Path, objective: str) -> list[Path]:
    """Write a figure as HTML and as PNG; return their paths."""
    import matplotlib

    matplotlib.use("agg")
    import optuna.visualization
    import optuna.visualization.matplotlib
    from matplotlib import pyplot

    html, png = target / f"{name}.html", target / f"{name}.png"
    with quiet(), own_font():
        drawn = draw(optuna.visualization, study, objective)
        with writing(html):
            target_of(html)
            drawn.write_html(html, include_plotlyjs="directory")
        axes = draw(optuna.visualization.matplotlib, study, objective)
    figure = axes.figure if hasattr(axes, "figure") else axes[0].figure
    figure.set_size_inches(10, 6)
    with own_font():
        save_figure(figure, png, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
    return [html, png]
