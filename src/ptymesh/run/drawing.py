"""The figures of a run and what writers make of it, by a process of their own once its result is on the disk.

The process is started with the run and imports what it needs, which takes as long as drawing; then it waits for what it
is told to do, or ends with the run. On a terminal the command returns when it has told it, and the figures follow
within seconds; elsewhere (a script, a pipe, a batch job, a container's first process) whoever started it may take its
end for the end of everything, or end all that it has left behind: there it waits for them. PTYMESH_FIGURES=wait or
follow says otherwise.

A figure or a writer that fails never fails the run: standard error says so, and the log.

`python -m ptymesh.run.drawing [--waited-for PID]` reads a line of JSON (a `Job`) and, behind it, the patterns that are
to be shown as an npz archive, if they are known, and prints the paths of what it has drawn.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ptymesh import stopping
from ptymesh.distributed.child import end_with
from ptymesh.distributed.processes import start_python
from ptymesh.errors import BadInput, PtymeshError

if TYPE_CHECKING:
    from ptymesh.io.results import Result
    from ptymesh.run.pairs import Patterns

#: Environment variable that says whether a run waits for its figures, and what it may say.
VARIABLE, CHOICES = "PTYMESH_FIGURES", ("auto", "wait", "follow")
#: Set in batch jobs, at whose end all their processes end.
JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "COBALT_JOBID", "PJM_JOBID", "JOB_ID")
#: Libraries that would start threads of which nobody has use here.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Job:
    """What is made of a result.

    Fields:
        result: path of the file.
        figures: whether they are drawn.
        writers: names of those that write further files then, as in `run.writers.WRITERS`.
    """

    result: str
    figures: bool = True
    writers: tuple[str, ...] = ()


def waits() -> bool:
    """Whether a command waits for its figures. Raises BadInput where PTYMESH_FIGURES says something unknown."""
    choice = os.environ.get(VARIABLE, "auto")
    if choice not in CHOICES:
        raise BadInput(f"{VARIABLE} is {choice!r}; set it to {', '.join(CHOICES[:-1])} or {CHOICES[-1]}, or remove it.")
    if choice != "auto":
        return choice == "wait"
    orphan = os.getpid() == 1 or os.getppid() <= 1
    return orphan or any(os.environ.get(job) for job in JOBS) or not sys.stdout.isatty()


@contextlib.contextmanager
def standing_by(*, waited_for: bool) -> Iterator[subprocess.Popen[bytes]]:
    """A process that draws what `hand_over` tells it; within this.

    waited_for: it ends with this process, and its standard output names the files. Raises OSError where none can be
    started.
    """
    process = _started(waited_for)
    try:
        yield process
    finally:
        if process.stdin is not None:  # there is nothing to draw
            process.kill()
            process.communicate()


def _started(waited_for: bool) -> subprocess.Popen[bytes]:
    return start_python(
        "-m",
        "ptymesh.run.drawing",
        *["--waited-for", str(os.getpid())] * waited_for,
        environment=dict.fromkeys(THREADS, "1"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if waited_for else subprocess.DEVNULL,
        start_new_session=True,  # a terminal's Ctrl-C, and its end, are not for the figures
    )


def hand_over(process: subprocess.Popen[bytes], job: Job, patterns: Patterns | None = None) -> None:
    """Has a process that stands by draw and write.

    patterns: those that a figure shows; without, they are made of the data set that the result names.
    """
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended, which `wait` tells
        process.stdin.write(json.dumps(asdict(job)).encode() + b"\n")
        if patterns is not None:
            process.stdin.write(patterns.packed())
        process.stdin.flush()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    process.stdin = None


def wait(process: subprocess.Popen[bytes], result: Path) -> list[str]:
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
    return os.fsdecode(drawn).splitlines() if process.returncode >= 0 else []


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
    """Waits for a job and does it. The exit status."""
    stopping.watch(speaks=False)
    stopping.at_once("", 0)
    if arguments[:1] == ["--waited-for"]:
        end_with(int(arguments[1]))
    from ptymesh.run import figures, writers  # noqa: F401 - while there is time

    line = sys.stdin.buffer.readline()
    if not line:  # the run has ended, and left nothing to draw
        return 0
    given = json.loads(line)
    return attempt(Job(**given | {"writers": tuple(given["writers"])}), sys.stdin.buffer.read())


def attempt(job: Job, patterns: bytes = b"") -> int:
    """Draws, has each writer write, and prints each path; where one fails, says so. The status.

    patterns: as `Patterns.packed` makes them; empty where they are not known.
    """
    path = Path(job.result)
    there = _still(path)

    def go_on() -> None:
        if not there():
            raise _Replaced

    status = 0
    try:
        if job.figures:
            try:
                for drawn in _draw(path, patterns, go_on):
                    print(drawn, flush=True)
            except Exception as error:
                if isinstance(error, _Replaced):
                    raise
                tell(_words_of(error), path)
                status = 1
        for name in job.writers:
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


def _draw(path: Path, packed: bytes, before_each: Callable[[], None]) -> list[Path]:
    from ptymesh.io.results import Result
    from ptymesh.run import figures

    result = Result.load(path)
    return figures.write_figures(
        result,
        path.parent,
        patterns=_patterns(result, packed),
        before_each=before_each,
        processes=figures.processes_here(),
    )


def _patterns(result: Result, packed: bytes) -> Patterns | None:
    from ptymesh.run.pairs import Patterns

    if packed:
        return Patterns.unpacked(packed)
    from ptymesh.run.patterns import patterns_of  # with torch

    try:
        return patterns_of(result)
    except PtymeshError as error:
        print(f"ptymesh: No patterns are shown: {error}", file=sys.stderr, flush=True)
        return None


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
