"""Told to stop at any moment: a sentence and status 75, or 0 with a result; resume ends as if nothing had been."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ptymesh import stopping
from ptymesh.io.results import Result
from ptymesh.kernels.cpu.ready import make_ready
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked
from warm import python

RECIPE = """
data: {path: scan.cxi}
stages: [{engine: rpie, epochs: 30, batch: 7, positions: true}]
output: {figures: false, checkpoint_every: 5}
"""
PATIENCE_S = 200.0

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="finds out in /proc who is ready")

#: A moment of a run, by what is to be seen in its folder.
MOMENTS: dict[str, Callable[[Path], bool]] = {
    "start": lambda out: True,
    "begun": lambda out: (out / "started.yaml").exists() or (out / "result.h5").exists(),
    "read": lambda out: (out / "log.txt").exists(),
    "first epochs": lambda out: lines(out) > 1,
    "checkpoint": lambda out: (out / "checkpoint" / "manifest.json").exists(),
    "middle": lambda out: lines(out) > 14,
}
SENTENCES = {
    "ptymesh: Stopped before the run had begun; start it again.\n",
    "ptymesh: Stopped before the first batch was done; `ptymesh resume out` starts anew.\n",
    "ptymesh: Stopped before anything new was done; `ptymesh resume out` goes on from the last checkpoint.\n",
    "ptymesh: Stopped after a checkpoint; `ptymesh resume out` goes on.\n",
}


def lines(out: Path) -> int:
    """Return how many epochs are in the metrics."""
    path = out / "metrics.jsonl"
    return path.read_text().count('"epoch"') if path.exists() else 0


def start(folder: Path, ranks: int, *arguments: str) -> Any:
    more = ["--ranks", str(ranks)] if ranks > 1 else []
    return python(["-m", "ptymesh", *arguments, *more, "--device", "cpu"], folder, spares=ranks if ranks > 1 else 0)


def finish(process: Any) -> tuple[int, str]:
    try:
        _, err = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, err


def answers(pid: int) -> bool:
    """Whether a process has a handler for SIGTERM."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)


def until(reached: Callable[[], bool], process: Any) -> None:
    end = time.monotonic() + PATIENCE_S
    while not reached() and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    make_ready(torch.complex64)  # kernels that are compiled here need no word about it from a run
    write(checked(kind="xray", views=20, window=32, seed=3), folder / "scan.cxi")
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def undisturbed(made: Path) -> Mapping[int, Result]:
    """Results of so many ranks that nobody stops, each computed when it is asked for."""

    class Results(dict[int, Result]):
        def __missing__(self, ranks: int) -> Result:
            assert finish(start(made, ranks, "run", "recipe.yaml", "--out", f"whole{ranks}")) == (0, "")
            self[ranks] = Result.load(made / f"whole{ranks}" / "result.h5")
            return self[ranks]

    return Results()


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    for name in ("scan.cxi", "recipe.yaml"):
        (tmp_path / name).symlink_to(made / name)
    return tmp_path


def assert_undisturbed(out: Path, expected: Result) -> None:
    found = Result.load(out / "result.h5")
    for name in ("object", "probe", "positions_px"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    assert np.array_equal(found.history["residual"], expected.history["residual"])
    assert lines(out) == len(expected.history["residual"])
    left = {path.name for path in out.iterdir()}
    assert left == {"result.h5", "checkpoint", "log.txt", "metrics.jsonl", "status.json"}, "nothing else is left behind"


CASES = [
    (1, ["start", "read"], signal.SIGTERM),
    pytest.param(1, ["begun", "middle"], signal.SIGHUP, marks=pytest.mark.long),
    pytest.param(2, ["start", "first epochs"], signal.SIGUSR1, marks=pytest.mark.long),
    pytest.param(2, ["begun", "read", "checkpoint"], signal.SIGTERM, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("ranks", "moments", "number"), CASES)
def test_stopped_again_and_again_it_ends_as_if_nothing_had_been(
    folder: Path, undisturbed: Mapping[int, Result], ranks: int, moments: list[str], number: signal.Signals
) -> None:
    out, status = folder / "out", 75
    for moment in [*moments, "never"]:
        pending = (out / "started.yaml").exists() or (out / "checkpoint").exists()
        process = start(folder, ranks, *(["resume", "out"] if pending else ["run", "recipe.yaml"]))
        if moment != "never":
            until(partial(answers, process.pid), process)
            until(partial(MOMENTS[moment], out), process)
            process.send_signal(number)
        status, err = finish(process)
        if status == 0:
            break
        assert (status, err in SENTENCES) == (75, True), (moment, status, err)
        assert not out.exists() or any(path.is_file() for path in out.iterdir()), "no empty folder"
        assert not (out / "ranks").exists() and not (out / "result.h5").exists()
        if "start it again" in err:
            assert out.exists() == pending, "there is what there was"
    assert (status, err) == (0, "")
    assert_undisturbed(out, undisturbed[ranks])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_while_python_imports_a_signal_is_answered(folder: Path, number: signal.Signals) -> None:
    """In a process of its own, which has everything still to import."""
    command = [sys.executable, "-m", "ptymesh", "run", "recipe.yaml"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(partial(answers, process.pid), process)  # of SIGINT Python takes care before
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (75, "", "ptymesh: Stopped before the run had begun; start it again.\n")
    assert not (folder / "out").exists()


#: A rank whose first batch takes for ever.
SLOW = """
import os, sys, tempfile, time
from pathlib import Path
from ptymesh import stopping
tempfile.tempdir = os.getcwd() + "/temporary"
stopping.watch(speaks=os.environ["RANK"] == "0")
from ptymesh.cli.main import main
from ptymesh.engines import RPIE

def step(*_):
    Path("marker" + os.environ["RANK"]).touch()
    time.sleep(600)

RPIE.step = step
sys.argv = ["ptymesh", "run", "recipe.yaml", "--device", "cpu"]
main()
"""


def test_ranks_without_a_launcher_leave_together(folder: Path) -> None:
    """One is told to stop within its first batch, at which the other one waits for it, in C or asleep."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    told = SLOW.replace('"--device"', '"--layout", "replicated", "--device"')  # else rPIE sets the pace of a plan, too
    (folder / "slow.py").write_text(told)
    (folder / "temporary").mkdir()
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    ranks = [
        python(["slow.py"], folder, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"})
        for rank in range(2)
    ]
    for rank, process in enumerate(ranks):
        until((folder / f"marker{rank}").exists, process)
    began = time.monotonic()
    ranks[1].send_signal(signal.SIGTERM)
    first, second = [finish(process) for process in ranks]
    assert time.monotonic() - began < 60, "of which 4 on an idle machine"
    assert first == (75, "ptymesh: Stopped before the first batch was done; `ptymesh resume out` starts anew.\n")
    assert second == (75, "")
    assert {path.name for path in (folder / "out").iterdir()} == {
        "started.yaml",
        "log.txt",
        "metrics.jsonl",
        "status.json",
    }
    assert (folder / "out" / "log.txt").read_text().splitlines()[-1].endswith("  interrupted")
    assert not [path for path in (folder / "temporary").iterdir() if path.suffix != ".lock"]


#: Of `SLOW`: it is not the first batch, but the second.
SECOND = """
first = RPIE.step

def begin(*given):
    RPIE.step = step
    first(*given)

RPIE.step = begin
"""


def test_asked_twice_it_stops_at_once(folder: Path, undisturbed: Mapping[int, Result]) -> None:
    """Within a batch that does not end, after others."""
    (folder / "slow.py").write_text(SLOW.replace("\nRPIE.step = step\n", SECOND))
    (folder / "temporary").mkdir()
    process = python(["slow.py"], folder, {**os.environ, "RANK": "0"})
    until((folder / "marker0").exists, process)
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert process.poll() is None, "it waits for the end of the batch"
    process.send_signal(signal.SIGINT)
    said = "ptymesh: Stopped at once; `ptymesh resume out` goes on from the last checkpoint, if there is one.\n"
    assert finish(process) == (75, said)
    assert finish(start(folder, 1, "resume", "out")) == (0, "")
    assert_undisturbed(folder / "out", undisturbed[1])


#: Of `SLOW`: what its first batch does instead of sleeping, and how often it is asked to stop then; what it says.
HANGS = {
    "in C, where no signal is looked at": (
        "import ctypes; lock, mutex = ctypes.CDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64); "
        "lock(mutex); lock(mutex)",
        2,
        "ptymesh: Stopped; `ptymesh resume out` goes on from the last checkpoint, if there is one.\n",
    ),
    "asleep, and another Ctrl-C before was lost to the main thread": (
        "stopping._interrupts = 1; time.sleep(600)",
        1,
        "ptymesh: Stopped at once; `ptymesh resume out` goes on from the last checkpoint, if there is one.\n",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("how", HANGS)
def test_asked_twice_it_stops_even_if_the_main_thread_hears_nothing_of_it(folder: Path, how: str) -> None:
    hangs, times, said = HANGS[how]
    slow = SLOW.replace("\nRPIE.step = step\n", SECOND).replace("time.sleep(600)", hangs)
    slow = slow.replace("stopping.watch(", "stopping.PATIENCE_S = 2.0\nstopping.watch(")
    (folder / "slow.py").write_text(slow)
    (folder / "temporary").mkdir()
    process = python(["slow.py"], folder, {**os.environ, "RANK": "0"})
    until((folder / "marker0").exists, process)
    for _ in range(times):
        time.sleep(1)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert finish(process) == (75, said)
    assert time.monotonic() - began < 60, "of which 2 on an idle machine"


@pytest.mark.parametrize("told", [0, 1])
def test_told_to_stop_while_it_waits_for_others_to_come(folder: Path, told: int) -> None:
    """Two of three ranks have come; nobody has started them but we."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "3"}
    command = ["-m", "ptymesh", "run", "recipe.yaml", "--device", "cpu"]
    ranks = [
        python(command, folder, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "3"})
        for rank in range(2)
    ]
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=PATIENCE_S))
    store.wait(["ptymesh/here/0", "ptymesh/here/1"])
    ranks[told].send_signal(signal.SIGTERM)
    first, second = [finish(process) for process in ranks]
    assert first == (75, "ptymesh: Stopped before the first batch was done; `ptymesh resume out` starts anew.\n")
    assert second == (75, "")


#: A signal comes when Python has taken its handlers away.
ENDING = """
import os, signal, sys
from ptymesh import stopping
stopping.watch()
class Last:
    def __del__(self, kill=os.kill, pid=os.getpid()):
        for number in stopping.SIGNALS:
            kill(pid, number)
last = Last()
stopping.over()
"""


def test_a_signal_at_the_very_end_changes_nothing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


DRAWING = """
import sys, time
from ptymesh import stopping
stopping.watch()
from ptymesh.cli.main import main
from ptymesh.run_folder import figures

def slow(*given, **named):
    open("marker", "w").close()
    time.sleep(600)

figures.write_figures = slow
sys.argv = ["ptymesh", "run", "recipe.yaml", "--device", "cpu", "--set", "output.figures=true"]
main()
"""


def test_while_figures_are_drawn_the_run_is_done(folder: Path, undisturbed: Mapping[int, Result]) -> None:
    (folder / "drawing.py").write_text(DRAWING)
    process = python(["drawing.py"], folder)
    until((folder / "marker").exists, process)
    process.send_signal(signal.SIGTERM)
    assert finish(process) == (
        0,
        "ptymesh: Stopped before all figures were drawn; `ptymesh view out/result.h5` draws them.\n",
    )
    assert_undisturbed(folder / "out", undisturbed[1])


def test_an_earlier_run_is_not_gone_on_with_for_the_one_that_was_to_replace_it(
    folder: Path, undisturbed: Mapping[int, Result]
) -> None:
    """Stopped before it began, `run --force` is what resume does, not the finished run with another seed."""
    assert finish(start(folder, 1, "run", "recipe.yaml", "--set", "seed=9")) == (0, "")
    (folder / "slow.py").write_text(SLOW.replace('"--device"', '"--force", "--device"'))
    (folder / "temporary").mkdir()
    slow = python(["slow.py"], folder, {**os.environ, "RANK": "0"})
    until((folder / "marker0").exists, slow)
    slow.send_signal(signal.SIGTERM)
    assert finish(slow)[0] == 75
    assert finish(start(folder, 1, "resume", "out")) == (0, "")
    assert_undisturbed(folder / "out", undisturbed[1])


def test_only_commands_that_run_watch() -> None:
    assert all(stopping.wanted(line.split()) for line in ("run r.yaml", "--debug resume out", "demo --ranks 2"))
    assert not any(stopping.wanted(line.split()) for line in ("", "--help", "inspect run", "view resume", "launch run"))
