"""Figure of the scaling of a reconstruction with the number of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter

from ptymesh.plot.style import BLUE, GREEN, GREY, ORANGE, PURPLE, legend, logarithmic, new_figure, plain_axes

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, GREY)
#: Labels of the kinds of lost time, by their names in run/speed/scaling.py.
_LOST = {"repeated": "repeated work", "messages": "messages", "imbalance": "unequal shares", "waiting": "waiting"}
_LOST_COLOURS = (ORANGE, PURPLE, GREEN, GREY)


def scaling_figure(
    rows: Sequence[Mapping[str, Any]], trials: Sequence[Mapping[str, Any]], title: str | None = None
) -> Figure:
    """Return a figure of speed-up, use of the ranks' time, loss against time, and memory of a rank.

    Args:
        rows: `kind`, `ranks`, `threads`, `seconds`, `deviation`, `speed_up`, `efficiency`, `lost`, `peak_bytes` of each
            configuration (run/speed/scaling.py).
        trials: `kind`, `ranks`, `epoch_s`, `loss`, `seconds` of each run.
        title: of the figure.
    """
    figure = new_figure(9.0, 7.0, title)
    (speed, share), (curves, memory) = figure.subplots(2, 2)
    threads, weak = ([row for row in rows if row["kind"] == kind] for kind in ("threads", "weak"))
    rows, trials = ([one for one in every if one["kind"] == "ranks"] for every in (rows, trials))
    ranks = np.array([row["ranks"] for row in rows], dtype=float)
    for axes, name in ((speed, "speed-up"), (share, "share of the ranks' time"), (memory, "peak memory / MiB")):
        plain_axes(axes, "ranks", name)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(ranks.tolist()))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(ranks, [f"{n:.0f}" for n in ranks])
    base = rows[0]["seconds"]
    runs = np.array([(trial["ranks"], base / trial["seconds"]) for trial in trials], dtype=float)
    speed.plot(ranks, ranks / ranks[0], "--", color=GREY, linewidth=1, label="ideal")
    spread = [row["speed_up"] * row["deviation"] / row["seconds"] for row in rows]
    values = [row["speed_up"] for row in rows]
    speed.errorbar(ranks, values, spread, color=BLUE, marker="o", capsize=3, label="mean and deviation")
    speed.plot(runs[:, 0], runs[:, 1], ".", color=ORANGE, markersize=4, label="trials")
    if threads:
        cores = [row["threads"] / rows[0]["threads"] for row in threads]
        speed.plot(cores, [row["speed_up"] for row in threads], "s", color=GREEN, label="threads of one rank")
    speed.set_ylim(bottom=0)
    legend(speed, loc="upper left")
    _shares(share, rows, weak)
    memory.plot(ranks, [row["peak_bytes"] / 2**20 for row in rows], "o-", color=BLUE)
    memory.set_ylim(0, 1.1 * max(row["peak_bytes"] for row in rows) / 2**20)
    _loss(curves, trials, [int(n) for n in ranks])
    return figure


def _shares(axes: Axes, rows: Sequence[Mapping[str, Any]], weak: Sequence[Mapping[str, Any]]) -> None:
    """Draw the shares of the ranks' time that are useful work and the kinds of loss, stacked."""
    ranks = np.array([row["ranks"] for row in rows], dtype=float)
    below = np.array([row["efficiency"] for row in rows])
    axes.bar(ranks, below, ranks / 3, color=BLUE, label="useful")
    for (name, label), colour in zip(_LOST.items(), _LOST_COLOURS, strict=True):
        lost = np.array([max(0.0, row["lost"].get(name, 0.0)) for row in rows])
        if (lost > 0.005).any():
            axes.bar(ranks, lost, ranks / 3, bottom=below, color=colour, label=label)
        below = below + lost
    if weak:
        at, efficiency = ([row[key] for row in weak] for key in ("ranks", "efficiency"))
        axes.plot(at, efficiency, "D--", color="black", markersize=4, linewidth=1, label="weak: efficiency")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylim(0, max(1.45, 1.4 * float(below.max())))
    legend(axes, loc="upper right", ncols=2)


def _loss(axes: Axes, trials: Sequence[Mapping[str, Any]], counts: Sequence[int]) -> None:
    """Draw the loss of every trial against its own time."""
    plain_axes(axes, "seconds", "loss")
    every: list[float] = []
    for index, count in enumerate(counts):
        trials_of_count = [trial for trial in trials if trial["ranks"] == count]
        for number, trial in enumerate(trials_of_count):
            label = f"{count} rank{'s' * (count > 1)}" if number == 0 else None
            colour = _COLOURS[index % len(_COLOURS)]
            axes.plot(np.cumsum(trial["epoch_s"]), trial["loss"], color=colour, linewidth=1, label=label)
            every += trial["loss"]
    if every and min(every) > 0 and max(every) > 5 * min(every):
        logarithmic(axes)
    legend(axes, loc="upper right")
