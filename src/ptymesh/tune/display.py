"""A study while it runs: a table on a terminal, a plain line per finished trial elsewhere."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import TextIO

from rich.live import Live
from rich.table import Table

from ptymesh.run_folder.progress import runs_in_notebook
from ptymesh.run_folder.terminal import Terminal
from ptymesh.tune.options import label
from ptymesh.tune.records import Record

#: Rows of the table: the best trials, and those that run or ended last.
BEST, LAST = 5, 8
ENDED = ("done", "pruned", "failed", "released")


class StudyDisplay:
    """Display of a study's records as they change.

    Args:
        total: number of trials that there are to be.
        objective: its name.
        minimize: True if small values are good.
        stream: where to write; None for standard output.
    """

    def __init__(self, total: int, objective: str, *, minimize: bool, stream: TextIO | None = None) -> None:
        self.total, self.objective, self.sign = total, objective, 1 if minimize else -1
        stream = stream or sys.stdout
        self._console = Terminal(stream, force_jupyter=False)
        self._lives = stream.isatty() and not self._console.is_dumb_terminal and not runs_in_notebook(os.environ)
        self._shown_numbers: set[int] = set()
        self._live: Live | None = None

    def start(self, trials: list[Record]) -> None:
        """Show the study at its start; trials of an earlier run get no line of their own."""
        self._shown_numbers = {one.number for one in trials if one.state in ENDED}
        ended_count = sum(one.state != "released" for one in trials if one.state in ENDED)
        before = f", {ended_count} of them done before" if ended_count else ""
        self._console.out(f"{self.total} trials by {self.objective}{before}", highlight=False)
        if self._lives:
            self._live = Live(self.table(trials), console=self._console, auto_refresh=False)
            self._live.start()

    def show(self, trials: list[Record]) -> None:
        """Show the study as it stands."""
        new = [one for one in trials if one.state in ENDED and one.number not in self._shown_numbers]
        self._shown_numbers |= {one.number for one in new}
        if self._live:
            self._live.update(self.table(trials), refresh=True)
            return
        for one in new:
            self._console.out(self.line(one), highlight=False)
        self._console.file.flush()

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live:
            self._live.stop()
            self._live = None

    def line(self, one: Record) -> str:
        """Return one line about a finished trial."""
        seconds = "" if one.seconds is None else f"  {one.seconds:.1f} s"
        why = f"  ({one.why})" if one.why else ""
        device = f"  {one.device}" if one.device else ""
        value, settings = _number(one.value), settings_line(one.settings)
        return f"trial {one.number}  {one.state}  {value}{seconds}{device}  {settings}{why}"

    def table(self, trials: list[Record]) -> Table:
        """Return a table of the best and the latest trials."""
        ended = [one for one in trials if one.state in ENDED and one.state != "released"]
        seconds = [one.seconds for one in ended if one.seconds is not None]
        running = [one for one in trials if one.state == "running"]
        time_left = ""
        if seconds and running:
            remaining = sum(seconds) / len(seconds) * (self.total - len(ended)) / len(running)
            time_left = f", about {timedelta(seconds=math.ceil(remaining))} left"
        table = Table(title=f"{len(ended)} of {self.total} trials by {self.objective}{time_left}")
        for column in ("trial", "state", "value", "seconds", "device", "settings"):
            table.add_column(column)
        best_first = sorted(
            (one for one in ended if one.state == "done"), key=lambda one: self.sign * (one.value or 0.0)
        )
        for place, one in enumerate(best_first[:BEST]):
            table.add_row(
                *_row(one), style="bold" if place == 0 else None, end_section=place == len(best_first[:BEST]) - 1
            )
        for one in [*ended[-LAST:], *running]:
            table.add_row(*_row(one))
        return table


def settings_line(settings: Mapping[str, object]) -> str:
    """Return settings on one line, keys by their last part where that is enough."""
    short = {key: key.rpartition(".")[2] for key in settings}
    names = {
        key: last if list(short.values()).count(last) == 1 and not last.isdigit() else key
        for key, last in short.items()
    }
    return "  ".join(f"{names[key]} {_value(value)}" for key, value in settings.items())


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else label(value)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _row(one: Record) -> tuple[str, ...]:
    value = one.value
    if one.state == "running" and one.values_by_epoch:
        value = one.values_by_epoch[max(one.values_by_epoch)]
    seconds = "" if one.seconds is None else f"{one.seconds:.1f}"
    return str(one.number), one.state, _number(value), seconds, one.device, settings_line(one.settings)
