"""Display of a study in a notebook: its best trials, and the value of every trial."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ptymesh.notebook.fragment import HEIGHT, fragment, table
from ptymesh.plot.style import BLUE, ORANGE, legend, new_figure, plain_axes
from ptymesh.tune.display import settings_line
from ptymesh.tune.records import Record
from ptymesh.tune.session import StudyOutcome

#: Number of best trials that are listed.
SHOWN = 5


def html(outcome: StudyOutcome) -> str:
    """Return the HTML of the study."""
    best_first = ranked(outcome)
    states = dict.fromkeys(one.state for one in outcome.trials)
    facts = {
        "folder": str(outcome.folder),
        "trials": ", ".join(f"{sum(one.state == state for one in outcome.trials)} {state}" for state in states),
        "best": f"trial {outcome.best.number}, {outcome.best.value:.6g}",
        "with": settings_line(outcome.best.settings),
        "result": "" if outcome.path is None else str(outcome.path),
        "notes": " ".join(outcome.notes),
    }
    rows = [(str(one.number), f"{one.value:.6g}", settings_line(one.settings)) for one in best_first[:SHOWN]]
    return fragment("Study", facts, figure(outcome), table(("trial", "value", "settings"), rows))


def ranked(outcome: StudyOutcome) -> list[Record]:
    """Return the completed trials, the best first.

    The best trial shows whether small or large values are good.
    """
    trials = finished(outcome)
    values = [one.value for one in trials if one.value is not None]
    sign = 1 if outcome.best.value == min(values) else -1
    return sorted(trials, key=lambda one: sign * (one.value or 0.0))


def finished(outcome: StudyOutcome) -> list[Record]:
    """Return the trials that were completed and have a value."""
    return [one for one in outcome.trials if one.state == "done" and one.value is not None]


def figure(outcome: StudyOutcome) -> Figure:
    """Return a figure of the value of each completed trial, with the best one marked."""
    trials = finished(outcome)
    chart = new_figure(1.9 * HEIGHT, HEIGHT)
    axes = chart.subplots()
    values = np.array([one.value for one in trials], dtype=float)
    plain_axes(axes, "trial", "value")
    axes.plot([one.number for one in trials], values, "o", color=BLUE, markersize=3)
    axes.plot([outcome.best.number], [outcome.best.value or 0.0], "D", color=ORANGE, markersize=5, label="best")
    if values.min() > 0 and values.max() > 5 * values.min():
        axes.set_yscale("log")
    legend(axes)
    return chart
