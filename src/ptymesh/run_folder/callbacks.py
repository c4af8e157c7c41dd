"""Watchers of a run on rank 0: the live display, out/log.txt, out/metrics.jsonl (and out/status.json: status.py).

Nothing happens before `start`, so that every rank may make them; the loop calls them on rank 0 alone.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import torch
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.text import Text

from ptymesh.distributed.devices import memory_nodes, say_cpus
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.files import target_of
from ptymesh.io.checkpoint import manifests
from ptymesh.printable import finite, printable
from ptymesh.run_folder import start_record
from ptymesh.run_folder.clock import Clock
from ptymesh.run_folder.progress import runs_in_notebook
from ptymesh.run_folder.pyramid import write_pyramid
from ptymesh.run_folder.reports import BatchReport, EpochReport, RunInfo, Watcher
from ptymesh.run_folder.status import StatusFile
from ptymesh.run_folder.terminal import Terminal
from ptymesh.verdict.convergence import Curve

#: Runs with more epochs than this print a plain line at most every so many seconds.
LONG_RUN_EPOCHS, LINE_EVERY_S = 100, 10.0


def make_watchers() -> list[Watcher]:
    """Return the watchers of `ptymesh run`: an earlier run's files go first, then come display and files."""
    return [FreshStart(), ProgressDisplay(), LogFile(), MetricsFile(), StatusFile(), PyramidFile()]


def size_line(run: RunInfo) -> str:
    """Return one line about the size of a run."""
    slices, height, width = run.object_shape
    sliced = f"{slices} slices of " if slices > 1 else ""
    return (
        f"{_counted(run.views, 'view')} of {run.window[0]} x {run.window[1]}, object {sliced}{height} x {width}, "
        f"{_counted(run.modes, 'mode')}, {_counted(run.ranks, 'rank')} on {run.device}, {run.precision} precision"
    )


def opening_lines(run: RunInfo) -> list[str]:
    """Return the lines with which a run begins.

    They tell its size, its stages, the object's layout, how evenly ranks share batches, where the patterns are kept,
    and what checks of the data have led to.
    """
    layout = [f"Object: {run.layout}"] if run.layout else []
    shares = "; then ".join(f"{share:.2f}" for share in run.balance)
    balance = [f"Balance: {shares} of the speed of equal shares at most"] if shares else []
    return [size_line(run), stages_line(run), *layout, *balance, *filter(None, (run.patterns,)), *run.findings]


def stages_line(run: RunInfo) -> str:
    """Return one line about the stages of a run."""
    stages = "; then ".join(f"{e}, {_counted(n, 'epoch')} of {_counted(b, 'batch', 'es')}" for e, n, b in run.stages)
    return stages + (f" (resumed after {_counted(run.done_epochs, 'epoch')})" if run.resumed else "")


class PyramidFile(Watcher):
    """The file out/pyramid.h5 beside the result of a large object; a disk that refuses costs this file alone."""

    def saved(self, path: Path) -> None:
        """Write it, if the object is large, after the result."""
        if path.name != "result.h5":
            return
        try:
            write_pyramid(path)
        except (OSError, PtymeshError) as error:
            print(f"ptymesh: there is no pyramid of {path} ({error}).", file=sys.stderr)


class FreshStart(Watcher):
    """Removes an earlier run's result and checkpoint when a new run starts, so that neither is taken for the new one's.

    Only when it starts: a run that is refused has touched nothing.
    """

    _out: Path | None = None

    def start(self, run: RunInfo) -> None:
        """Remove the files, unless this run goes on with that checkpoint."""
        self._out = run.out
        if run.out is None or run.resumed:
            return
        (run.out / "result.h5").unlink(missing_ok=True)
        checkpoint = run.out / "checkpoint"
        if checkpoint.exists():
            if not checkpoint.is_symlink() and manifests.exists(checkpoint):
                # the manifest goes first: a kill in between then leaves no checkpoint, rather than a damaged one
                (checkpoint / manifests.MANIFEST).unlink()
            shutil.rmtree(checkpoint)

    def saved(self, path: Path) -> None:
        """Forget that the run must start anew, as there is a checkpoint to go on from now, or the result itself."""
        start_record.remove_record(path.parent)

    def finish(self, outcome: str) -> None:
        """Forget that the run must start anew if it has diverged, as it would do so again."""
        if outcome == "diverged" and self._out is not None:
            start_record.remove_record(self._out)


def progress_words(report: EpochReport) -> list[str]:
    """Return in words, where known, the residual of held-out views and how far object and positions have moved."""
    words = [] if report.held_out is None else [f"held out {report.held_out:.6f}"]
    if change := report.changes.get("change_object"):
        words.append(f"object moved {100 * change:.2g} %")
    if change := report.changes.get("change_positions_px"):
        words.append(f"positions {change:.2g} px")
    return words


class ProgressDisplay(Watcher):
    """Live progress on a terminal; plain lines otherwise, one per epoch, fewer in long runs.

    stream: where to write, standard output unless given.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._live: _Bars | None = None

    def start(self, run: RunInfo) -> None:
        """Say what is going to be done."""
        stream = self._stream or sys.stdout
        self._console = Terminal(stream, force_jupyter=False)
        self._run, self._clock = run, Clock(run)
        self._last_line, self._curve = -math.inf, Curve()
        self._print(*opening_lines(run))
        if stream.isatty() and not self._console.is_dumb_terminal and not runs_in_notebook(os.environ):
            self._live = _Bars(self._console)
            self._task = self._live.add_task(self._stage(0, 0), total=self._clock.total, completed=self._clock.done)
            self._live.start()

    def batch(self, report: BatchReport) -> None:
        """Move the bar."""
        self._clock.at(report.stage, report.epoch, report.batch)
        if self._live:
            time_left = _time_left(self._clock)
            name = self._stage(report.stage, report.epoch)
            self._live.update(self._task, completed=self._clock.done, description=name, left=time_left)

    def epoch(self, report: EpochReport) -> None:
        """Show loss, residual and pace, or print a line; and what was decided."""
        if report.note:
            self._print(report.note)
        self._clock.at(report.stage, report.epoch, self._run.stages[report.stage][2])
        numbers = f"loss {report.loss:.6g}  residual {report.residual:.6f}  {report.views_per_s:.0f} views/s"
        self._curve.add(report.stage, report.residual, report.held_out, report.rate)
        numbers = "  ".join((numbers, *progress_words(report)))
        if self._live:
            floor = f"noise floor {report.noise_floor:.4g}; " if report.noise_floor else ""
            self._live.numbers = f"{numbers}\n{floor}{self._curve.judge(report.noise_level)}"
            return
        now = time.monotonic()
        ends = report.epoch in (1, report.epochs)
        if not ends and report.total_epochs > LONG_RUN_EPOCHS and now - self._last_line < LINE_EVERY_S:
            return
        self._last_line = now
        self._print(f"{self._stage(report.stage, report.epoch)}  {numbers}  {_time_left(self._clock)}".rstrip())

    def finish(self, outcome: str) -> None:
        """Leave the terminal as it was."""
        self.close()

    def close(self) -> None:
        """End the live display, however the run ended."""
        if self._live:
            self._live.stop()
            self._live = None

    def _print(self, *lines: str) -> None:
        for line in lines:
            self._console.out(line, highlight=False)
        self._console.file.flush()

    def _stage(self, stage: int, epoch: int) -> str:
        engine, epochs, _ = self._run.stages[min(stage, len(self._run.stages) - 1)]
        which = f"stage {stage + 1}/{len(self._run.stages)} " if len(self._run.stages) > 1 else ""
        return f"{which}{engine}  epoch {epoch}/{epochs}"


class _Bars(Progress):
    """A bar over all batches of the run, and the numbers of the last epoch below it."""

    def __init__(self, console: Console) -> None:
        self.numbers = ""
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            refresh_per_second=4,
            expand=True,
        )

    def add_task(self, description: str, *arguments: Any, **fields: Any) -> Any:
        """Add a task as rich does, with the time left as a field."""
        return super().add_task(description, *arguments, **{"left": "", **fields})

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the bar, then the numbers."""
        yield self.make_tasks_table(self.tasks)
        if self.numbers:
            yield Text(self.numbers)


class LogFile(Watcher):
    """out/log.txt: what ran where, every epoch, every file written, with the time of each."""

    def __init__(self) -> None:
        self._lines: LineFile | None = None

    def start(self, run: RunInfo) -> None:
        """Open the log (a resumed run goes on with it) and describe run and machine."""
        if run.out is None:
            return
        self._lines = LineFile(run.out / "log.txt", anew=not run.resumed)
        for line in (*environment_lines(run), *opening_lines(run), *([run.note] if run.note else [])):
            self._write(line)

    def epoch(self, report: EpochReport) -> None:
        """Write one line."""
        self._write(f"{report}  {report.seconds:.3g} s")
        if report.note:
            self._write(report.note)

    def saved(self, path: Path) -> None:
        """Write one line."""
        self._write(f"wrote {path}")

    def judged(self, verdict: Mapping[str, object]) -> None:
        """Write one line."""
        self._write(f"verdict: {verdict['verdict']}: {verdict['verdict_sentence']}")

    def finish(self, outcome: str) -> None:
        """Write the last line."""
        self._write(outcome)
        self.close()

    def close(self) -> None:
        """Close the file, however the run ended."""
        lines, self._lines = self._lines, None
        if lines:
            lines.close()

    def _write(self, line: str) -> None:
        if lines := self._lines:  # another thread may close it meanwhile
            lines.add(f"{datetime.now().astimezone().isoformat(timespec='seconds')}  {printable(line)}")


def environment_lines(run: RunInfo) -> list[str]:
    """Return versions, machine and threads, one line each."""
    if hasattr(os, "sched_getaffinity"):
        own_cores = sorted(os.sched_getaffinity(0))
        nodes = [str(n) for n, node in enumerate(memory_nodes()) if set(own_cores) & set(node)]
        cores = f"{len(own_cores)} cores ({say_cpus(own_cores)}{', NUMA node ' + ' '.join(nodes) if nodes else ''})"
    else:
        cores = f"{os.cpu_count()} cores"
    device = torch.device(run.device)
    lines = [
        f"ptymesh {version('ptymesh')}, torch {torch.__version__}, numpy {version('numpy')}, h5py {version('h5py')}, "
        f"Python {platform.python_version()}",
        f"{platform.node()}: {platform.platform()}, {cores}, {torch.get_num_threads()} threads per rank",
    ]
    if device.type == "cuda":
        lines.append(f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}")
    return lines


class MetricsFile(Watcher):
    """out/metrics.jsonl: one JSON object per epoch; stages count from 0, epochs of a stage from 1, as in the result.

    Keys: stage, engine, epoch, loss, residual, seconds, views_per_s; held_out, noise_floor, rate where there are
    such; change_* of each unknown that has moved (unknown_changes.py). Numbers that are not finite are null. The last
    line of a run that has ended is of another kind: verdict, verdict_sentence, convergence, final_residual,
    noise_floor. A resumed run first cuts the file back to the epochs that the checkpoint holds, so that none is there
    twice.
    """

    def __init__(self) -> None:
        self._lines: LineFile | None = None

    def start(self, run: RunInfo) -> None:
        """Open the file, cut back to `run.done_epochs` lines."""
        if run.out is not None:
            self._lines = LineFile(run.out / "metrics.jsonl", anew=not run.resumed, keep=run.done_epochs)

    def epoch(self, report: EpochReport) -> None:
        """Write one line, which is on disk when this returns."""
        row: dict[str, object] = {"stage": report.stage, "engine": report.engine, "epoch": report.epoch}
        for name in ("loss", "residual", "seconds", "views_per_s"):
            value = getattr(report, name)
            row[name] = finite(value)
        optional = {"held_out": report.held_out, "noise_floor": report.noise_floor, "rate": report.rate or None}
        row |= {name: finite(value) for name, value in optional.items() if value is not None}
        row |= {name: finite(change) for name, change in report.changes.items() if change}
        if lines := self._lines:
            lines.add(json.dumps(row))

    def judged(self, verdict: Mapping[str, object]) -> None:
        """Write the last line: what is said of the result."""
        if lines := self._lines:
            lines.add(json.dumps(dict(verdict)))

    def finish(self, outcome: str) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Close the file, however the run ended."""
        lines, self._lines = self._lines, None
        if lines:
            lines.close()


#: Bytes of lines that the disk has refused, beyond which no more are tried.
MOST_MISSING = 1 << 20


class LineFile:
    """A text file that grows line by line; what is written about a run is not worth losing the run.

    Where the disk refuses a line, that is said once on stderr, and the file ends with the last whole line; what is
    missing is written with the next one, or at the end, if the disk takes it then.

    anew: an earlier file goes; keep: so many of its lines stay, all where None. Raises BadInput where it cannot be
    opened, before anything is done.
    """

    def __init__(self, path: Path, *, anew: bool, keep: int | None = None) -> None:
        self.path, self._missing, self._has_warned = path, b"", False
        # a process that is told to stop closes the file on another thread (stopping.tidying)
        self._lock = threading.RLock()
        target_of(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if anew:
                path.unlink(missing_ok=True)
            elif keep is not None and path.exists():
                _cut_back(path, keep)
            # ranks that fail append their tracebacks to the log
            self._file: int | None = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as error:
            raise BadInput(f"{path} cannot be written ({error.strerror}); make room, or mend its folder.") from error

    def add(self, line: str) -> None:
        """Write one more line; nothing once the file is closed."""
        with self._lock:
            if self._file is None:
                return
            self._missing += f"{line}\n".encode()
            try:
                self._write(self._file)
            except OSError as error:
                self._warn(error)
                if len(self._missing) > MOST_MISSING:
                    self.close()

    def _warn(self, error: OSError) -> None:
        """Say once on standard error that the file cannot be written."""
        if not self._has_warned:
            sentence = f"{self.path} cannot be written ({error.strerror}); the run goes on, and tries again later."
            print(f"ptymesh: {sentence}", file=sys.stderr, flush=True)
        self._has_warned = True

    def _write(self, file: int) -> None:
        """Write all lines that are missing, or none of them."""
        before, bytes_written = os.fstat(file).st_size, 0
        try:
            while bytes_written < len(self._missing):
                bytes_written += os.write(file, self._missing[bytes_written:])
        except OSError:
            with suppress(OSError):
                if os.fstat(file).st_size == before + bytes_written:
                    os.ftruncate(file, before)
            raise
        self._missing = b""

    def close(self) -> None:
        """Write what is missing and close the file; this may be called more than once, and by another thread."""
        with self._lock:
            if self._file is None:
                return
            with suppress(OSError):
                self._write(self._file)
            with suppress(OSError):
                os.close(self._file)
            self._file = None


def _cut_back(path: Path, epochs: int) -> None:
    """Keep the first `epochs` whole lines; what a kill left of the last one goes."""
    content, place = path.read_bytes(), 0
    for _ in range(epochs):
        place = content.find(b"\n", place) + 1 or place
    os.truncate(path, place)


def _time_left(clock: Clock) -> str:
    seconds = clock.left_s()
    return "" if seconds is None else f"{timedelta(seconds=round(seconds))} left"


def _counted(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{plural}"
