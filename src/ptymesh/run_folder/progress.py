"""Display of `ptymesh.reconstruct`: a bar in a notebook, plain lines elsewhere where they are wanted."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from html import escape
from typing import TYPE_CHECKING, Any

from ptymesh.engines import Engine
from ptymesh.run_folder.reports import BatchReport, Callback, EpochReport

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

#: Seconds between two drawings of a bar.
EVERY_S = 0.2


@contextmanager
def show_progress(engines: Sequence[Engine], is_wanted: bool | None) -> Iterator[tuple[Callback, ...]]:
    """Show the progress of stages: give the callbacks that do, and show in the end how they ended.

    Args:
        engines: of the stages.
        is_wanted: None: a bar in notebooks alone; True: plain lines elsewhere, too; False: nothing.
    """
    if is_wanted is False or not (is_wanted or in_notebook()):
        yield ()
        return
    watcher = NotebookBar(engines) if in_notebook() else EpochLines()
    outcome = "stopped"
    try:
        yield (watcher,)
        outcome = "done"
    finally:
        watcher.finish(outcome)


def in_notebook() -> bool:
    """Return True if this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


def runs_in_notebook(environment: Any) -> bool:
    """Return True if a cell of a notebook has started this process; what looks like a terminal there cannot go back."""
    return "JPY_PARENT_PID" in environment


class EpochLines(Callback):
    """Plain lines on standard output, one for each epoch."""

    def epoch(self, report: EpochReport) -> None:
        """Print the report."""
        print(report, flush=True)


class NotebookBar(Callback):
    """Bar over all epochs and a line of numbers, in one output that is replaced; it needs IPython alone, no widgets.

    Args:
        engines: of the stages that are going to be run.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._epochs = [engine.epochs for engine in engines]
        self._names = [engine.name for engine in engines]
        self._numbers, self._done = "", 0.0
        self._began, self._drawn_at = time.monotonic(), 0.0
        self._output: DisplayHandle | None = None
        self._draw("", at_once=True)

    def batch(self, report: BatchReport) -> None:
        """Move the bar."""
        before = sum(self._epochs[: report.stage]) + report.epoch - 1
        self._done = before + report.batch / report.batches
        self._draw(f"{self._names[report.stage]}, epoch {report.epoch} of {self._epochs[report.stage]}")

    def epoch(self, report: EpochReport) -> None:
        """Keep the numbers for the line."""
        self._numbers = f"residual {report.residual:.4g}"
        last = report.done_epochs == sum(self._epochs)
        self._draw(f"{report.engine}, epoch {report.epoch} of {report.epochs}", at_once=last)

    def finish(self, outcome: str) -> None:
        """Show how it ended, and how long it took."""
        took = timedelta(seconds=round(time.monotonic() - self._began))
        self._draw(
            f"{outcome} after {self._done:.4g} of {sum(self._epochs)} epochs in {took}", at_once=True, time_left=False
        )

    def _draw(self, place: str, *, at_once: bool = False, time_left: bool = True) -> None:
        now, total = time.monotonic(), sum(self._epochs)
        if not at_once and now - self._drawn_at < EVERY_S:
            return
        self._drawn_at = now
        words = [place, self._numbers]
        if time_left and 0 < self._done < total:
            remaining = (now - self._began) / self._done * (total - self._done)
            words.append(f"{timedelta(seconds=round(remaining))} left")
        text = ", ".join(word for word in words if word)
        bar = f'<progress value="{self._done:.4f}" max="{total}" style="width:16em;vertical-align:middle"></progress>'
        content = {"text/html": f'<div style="font-size:90%">{bar} {escape(text)}</div>', "text/plain": text}
        from IPython.display import display

        if self._output is None:
            self._output = display(content, raw=True, display_id=True)
        else:
            self._output.update(content, raw=True)
