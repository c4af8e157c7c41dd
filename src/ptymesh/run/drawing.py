"""The figures of a run and what writers make of it, by a process of their own once its result is on the disk.

The command has done its work by then. On a terminal it returns, and the figures follow within seconds; elsewhere (a
script, a pipe, a batch job, a container's first process) whoever started it may take its end for the end of everything,
or end all that it has left behind: there it waits for them. PTYMESH_FIGURES=wait or follow says otherwise.

A figure or a writer that fails never fails the run: standard error says so, and the log.

`python -m ptymesh.run.drawing RESULT.h5 [--no-figures] [--write NAME]... [--waited-for PID]` prints the paths.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from ptymesh import stopping
from ptymesh.distributed.child import end_with
from ptymesh.errors import BadInput, PtymeshError

#: Environment variable that says whether a run waits for its figures, and what it may say.
VARIABLE, CHOICES = "PTYMESH_FIGURES", ("auto", "wait", "follow")
#: Set in batch jobs, at whose end all their processes end.
JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "COBALT_JOBID", "PJM_JOBID", "JOB_ID")


def waits() -> bool:
    """Whether a command waits for its figures. Raises BadInput where PTYMESH_FIGURES says something unknown."""
    choice = os.environ.get(VARIABLE, "auto")
    if choice not in CHOICES:
        raise BadInput(f"{VARIABLE} is {choice!r}; set it to {', '.join(CHOICES[:-1])} or {CHOICES[-1]}, or remove it.")
    if choice != "auto":
        return choice == "wait"
    orphan = os.getpid() == 1 or os.getppid() <= 1
    return orphan or any(os.environ.get(job) for job in JOBS) or not sys.stdout.isatty()


def start(
    result: Path, *, waited_for: bool, figures: bool = True, writers: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """Starts to draw, and then to write. Its standard output names the files, where they are waited for.

    writers: their names, as in `run.writers.WRITERS`. Raises OSError.
    """
    command = [sys.executable, "-P", "-m", "ptymesh.run.drawing", str(result)]
    command += ["--no-figures"] * (not figures) + [word for name in writers for word in ("--write", name)]
    command += ["--waited-for", str(os.getpid())] * waited_for
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if waited_for else subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        start_new_session=True,  # a terminal's Ctrl-C, and its end, are not for the figures
    )


def wait(process: subprocess.Popen[str], result: Path) -> list[str]:
    """Paths of the files, when all are there; those that failed, which has been said, are left out."""

    stopped = threading.Event()

    def end() -> None:
        stopped.set()
        process.terminate()
        process.wait(stopping.TIDY_S / 2)

    with stopping.tidying(end):
        drawn, _ = process.communicate()
    if process.returncode < 0 and not stopped.is_set():
        ended = f"their process was ended by {signal.Signals(-process.returncode).name}"
        draws = f"The result is complete; `ptymesh view {result}` draws the figures."
        _say(f"Not all figures and files were written: {ended}. {draws}", result)
    return drawn.splitlines() if process.returncode >= 0 else []


def tell(said: str, result: Path) -> None:
    """On standard error and in the run's log, why there are no figures."""
    _say(f"No figures were drawn: {said} The result is complete; `ptymesh view {result}` draws them.", result)


def _say(sentence: str, result: Path) -> None:
    print(f"ptymesh: {sentence}", file=sys.stderr, flush=True)
    try:
        with (result.parent / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"{datetime.now().astimezone().isoformat(timespec='seconds')}  {sentence}\n")
    except OSError:  # the disk has no room for a line
        pass


def main(arguments: list[str]) -> int:
    """Draws the figures of a result, has it written, and returns the exit status."""
    stopping.watch(speaks=False)
    stopping.at_once("", 0)
    if waiting := [int(word) for flag, word in pairwise(arguments) if flag == "--waited-for"]:
        end_with(*waiting)
    writers = [word for flag, word in pairwise(arguments) if flag == "--write"]
    return attempt(Path(arguments[0]), "--no-figures" not in arguments[1:], writers)


def attempt(path: Path, figures: bool = True, writers: Sequence[str] = ()) -> int:
    """Draws, has each writer write, and prints each path; where one fails, says so. The status."""
    there = _still(path)

    def go_on() -> None:
        if not there():
            raise _Replaced

    status = 0
    try:
        if figures:
            try:
                for drawn in _draw(path, go_on):
                    print(drawn, flush=True)
            except Exception as error:
                if isinstance(error, _Replaced):
                    raise
                tell(_words_of(error), path)
                status = 1
        for name in writers:
            go_on()
            try:
                for written in _write(path, name):
                    print(written, flush=True)
            except Exception as error:
                again = f"The result is complete; `ptymesh view {path} --write {name}` tries again."
                _say(f"{_words_of(error)} {again}", path)
                status = 1
    except _Replaced:
        return 0
    return status


def _words_of(error: Exception) -> str:
    """One sentence, of bounded length."""
    said = str(error) if isinstance(error, PtymeshError) else f"{type(error).__name__}: {error}"
    return f"{' '.join(said.split())[:500].rstrip('.')}."


class _Replaced(Exception):
    """Another run has begun in this folder, whose figures are not to be these."""


def _write(path: Path, name: str) -> list[Path]:
    """What one writer writes of the result, which is read anew: a writer may have changed what it was given."""
    from ptymesh.io.results import Result
    from ptymesh.run.writers import write

    return write(name, Result.load(path), path.parent)


def _draw(path: Path, before_each: Callable[[], None]) -> list[Path]:
    from ptymesh.io.results import Result
    from ptymesh.run import figures, patterns

    result = Result.load(path)
    try:
        shown = patterns.patterns_of(result)
    except PtymeshError as error:
        shown = None
        print(f"ptymesh: No patterns are shown: {error}", file=sys.stderr, flush=True)
    return figures.write_figures(result, path.parent, patterns=shown, before_each=before_each)


def _still(path: Path) -> Callable[[], bool]:
    """Tells whether the file at `path` is the one that is there now."""

    def mark() -> tuple[int, int] | None:
        try:
            found = path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    first = mark()
    return lambda: mark() == first


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
