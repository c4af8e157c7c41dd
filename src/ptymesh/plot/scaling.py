"""Figure of how a reconstruction scales with the number of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter

from ptymesh.plot.style import BLUE, GREEN, GREY, ORANGE, PURPLE, legend, logarithmic, new_figure, plain_axes

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, GREY)


def scaling_figure(
    rows: Sequence[Mapping[str, Any]], trials: Sequence[Mapping[str, Any]], title: str | None = None
) -> Figure:
    """Speed-up, efficiency and time in collectives, loss against time, memory of a rank.

    Args:
        rows: `ranks`, `seconds`, `deviation`, `speed_up`, `efficiency`, `communication`, `peak_bytes` of each number of
            ranks.
        trials: `ranks`, `epoch_s`, `loss`, `seconds` of each run.
    """
    figure = new_figure(9.0, 7.0, title)
    (speed, share), (curves, memory) = figure.subplots(2, 2)
    ranks = np.array([row["ranks"] for row in rows], dtype=float)
    for axes, name in ((speed, "speed-up"), (share, "fraction"), (memory, "peak memory of a rank / MiB")):
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
    speed.set_ylim(bottom=0)
    legend(speed, loc="upper left")
    share.plot(ranks, [row["efficiency"] for row in rows], "o-", color=BLUE, label="efficiency")
    share.plot(ranks, [row["communication"] for row in rows], "s-", color=ORANGE, label="time in collectives")
    share.yaxis.set_major_formatter(PercentFormatter(1.0))
    share.set_ylim(0, max(1.05, *(row["efficiency"] * 1.1 for row in rows)))
    legend(share, loc="best")
    memory.plot(ranks, [row["peak_bytes"] / 2**20 for row in rows], "o-", color=BLUE)
    memory.set_ylim(0, 1.1 * max(row["peak_bytes"] for row in rows) / 2**20)
    _loss(curves, trials, [int(n) for n in ranks])
    return figure


def _loss(axes: Any, trials: Sequence[Mapping[str, Any]], counts: Sequence[int]) -> None:
    """Loss of every trial against its own time."""
    plain_axes(axes, "seconds", "loss")
    every: list[float] = []
    for index, count in enumerate(counts):
        own = [trial for trial in trials if trial["ranks"] == count]
        for number, trial in enumerate(own):
            label = f"{count} rank{'s' * (count > 1)}" if number == 0 else None
            colour = _COLOURS[index % len(_COLOURS)]
            axes.plot(np.cumsum(trial["epoch_s"]), trial["loss"], color=colour, linewidth=1, label=label)
            every += trial["loss"]
    if every and min(every) > 0 and max(every) > 5 * min(every):
        logarithmic(axes)
    legend(axes, loc="upper right")
