"""Worker processes: shared out, killed, told to stop, joined from elsewhere."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ptymesh.errors import BadInput, PtymeshError
from ptymesh.launcher.device_shares import Share
from ptymesh.tune import storage, workers
from ptymesh.tune.workers import WorkerProcesses
from warm import python

PATIENCE_S = 250.0
pytestmark = pytest.mark.timeout(3 * PATIENCE_S)
GAMMAS = {"stages.0.gamma_object": {"low": 0.05, "high": 2.0, "log": True}}


Started = Callable[..., Any]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    """Starts ptymesh tune in a process of its own; whatever happens, none stays behind."""
    processes: list[Any] = []

    def start(*arguments: str) -> Any:
        command = ["-m", "ptymesh", "tune", "tune.yaml", "--device", "cpu", *arguments]
        processes.append(python(command, tmp_path, spares=6))
        return processes[-1]

    yield start
    for process in processes:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=PATIENCE_S)


def write(folder: Path, scan: Path, *, epochs: int, trials: int, **keys: Any) -> None:
    stage = {"engine": "rpie", "epochs": epochs, "batch": 4}
    raw = {
        "recipe": {"data": {"path": str(scan)}, "stages": [stage], "output": {"figures": False}},
        "space": GAMMAS,
        "trials": trials,
        "pruner": "nop",
        "output": {"dir": "study"},
        **keys,
    }
    (folder / "tune.yaml").write_text(yaml.safe_dump(raw))


def trials_of(folder: Path) -> list[Any]:
    """All trials; none before the study is there."""
    try:
        return storage.reopen_study(folder / "study").get_trials(deepcopy=False)
    except (BadInput, PtymeshError):
        return []


def wait_until(reached: Callable[[], bool], process: Any) -> None:
    end = time.monotonic() + PATIENCE_S
    while not reached():
        assert process.poll() is None and time.monotonic() < end, process.communicate(timeout=PATIENCE_S)
        time.sleep(0.05)


def in_the_middle(folder: Path) -> list[Any]:
    """Running trials that have values for at least two epochs."""
    return [t for t in trials_of(folder) if t.state.name == "RUNNING" and len(t.intermediate_values) >= 2]


def test_a_killed_worker_loses_nothing(tmp_path: Path, scan: Path, started: Started) -> None:
    """SIGKILL in the middle of a trial, once some are done: each finished trial stays, its own is done again."""
    write(tmp_path, scan, epochs=25, trials=6)
    running = started("--workers", "2")
    victims: list[Any] = []

    def found_victims() -> bool:  # a second look might find that they have ended meanwhile
        victims[:] = in_the_middle(tmp_path)
        return bool(victims) and any(t.state.name == "COMPLETE" for t in trials_of(tmp_path))

    wait_until(found_victims, running)
    victim = random.choice(victims)
    os.kill(victim.user_attrs["worker"]["pid"], signal.SIGKILL)
    before = {t.number: t.value for t in trials_of(tmp_path) if t.state.name == "COMPLETE"}
    out, err = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 0 and "6 trials by held out" in out, (out, err)

    after = trials_of(tmp_path)
    done = [t for t in after if t.state.name == "COMPLETE"]
    assert {number: after[number].value for number in before} == before
    assert len(done) == 6 and len({str(t.params) for t in done}) == 6
    lost = after[victim.number]
    if lost.state.name != "COMPLETE":  # else it was quicker than the signal
        (retry,) = (t for t in after if t.user_attrs.get("retry_of") == lost.number)
        assert retry.state.name == "COMPLETE" and retry.params == lost.params == victim.params
    lines = [json.loads(line) for line in (tmp_path / "study" / "trials.jsonl").read_text().splitlines()]
    assert sum(line["state"] == "done" for line in lines) == 6
    assert len({line["worker"] for line in lines}) >= 2


@pytest.mark.long
def test_everything_killed_then_resumed(tmp_path: Path, scan: Path, started: Started) -> None:
    """The command and its worker vanish; the same command finishes the study, with no trial twice."""
    write(tmp_path, scan, epochs=20, trials=4)
    first = started()
    wait_until(
        lambda: any(t.state.name == "COMPLETE" for t in trials_of(tmp_path)) and bool(in_the_middle(tmp_path)), first
    )
    first.kill()
    first.communicate(timeout=PATIENCE_S)
    before = {t.number: t.value for t in trials_of(tmp_path) if t.state.name == "COMPLETE"}
    (lost,) = (t for t in trials_of(tmp_path) if t.state.name == "RUNNING")

    second = started()
    out, err = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 0, (out, err)
    after = trials_of(tmp_path)
    done = [t for t in after if t.state.name == "COMPLETE"]
    assert len(done) == len({str(t.params) for t in done}) == 4 and len(after) == 5
    assert {number: after[number].value for number in before} == before
    (retry,) = (t for t in after if t.user_attrs.get("retry_of") == lost.number)
    assert retry.params == lost.params


@pytest.mark.long
def test_told_to_stop_and_joined(tmp_path: Path, scan: Path, started: Started) -> None:
    write(tmp_path, scan, epochs=25, trials=5)
    first = started("--workers", "2")
    wait_until(lambda: bool(in_the_middle(tmp_path)), first)
    first.send_signal(signal.SIGTERM)
    out, err = first.communicate(timeout=PATIENCE_S)
    assert first.returncode == 75 and err.startswith("ptymesh: Stopped after "), (out, err)
    assert not any(t.state.name == "RUNNING" for t in trials_of(tmp_path)), "nobody is left"

    helper = started("--join")
    out, err = helper.communicate(timeout=PATIENCE_S)
    assert (helper.returncode, out, err) == (0, "", ""), (out, err)
    done = [t for t in trials_of(tmp_path) if t.state.name == "COMPLETE"]
    assert len(done) == len({str(t.params) for t in done}) == 5
    assert not (tmp_path / "study" / "best.yaml").exists(), "results are for the one who was asked to tune"
    assert any("told to stop" in t.user_attrs.get("released", "") for t in trials_of(tmp_path))


@pytest.mark.long
def test_two_ranks_per_trial(tmp_path: Path, scan: Path, started: Started) -> None:
    space = {"stages.0.gamma_object": [1.0, 0.5]}
    found: list[dict[float, dict[str, Any]]] = []
    for folder, ranks in (("one", 1), ("two", 2)):
        keys = {"epochs": 6, "trials": 2, "sampler": "grid", "ranks_per_trial": ranks, "output": {"dir": folder}}
        write(tmp_path, scan, space=space, **keys)
        process = started()
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, (out, err)
        lines = [json.loads(line) for line in (tmp_path / folder / "trials.jsonl").read_text().splitlines()]
        found.append({line["settings"]["stages.0.gamma_object"]: line for line in lines})
        assert (tmp_path / folder / "best" / "result.h5").exists()
    alone, both = found
    assert {key: one["state"] for key, one in alone.items()} == {key: one["state"] for key, one in both.items()}
    for gamma in (1.0, 0.5):
        assert both[gamma]["value"] == pytest.approx(alone[gamma]["value"], rel=1e-3)
        assert len(both[gamma]["values_by_epoch"]) == 6, "every epoch is told to the pruner"


#: `ptymesh tune` whose trials run on ranks that are faulty.py.
FAULTY = """
import sys
from ptymesh.cli.main import main
from ptymesh.launcher import waiting
from ptymesh.tune import trial
waiting.PEERS_S = 3.0
launch, faulty = trial.launch, (*sys.argv[1:6], "trial")
trial.launch = lambda *given, program, **named: launch(*given, program=faulty, **named)
sys.argv = ["ptymesh", "tune", "tune.yaml", "--device", "cpu"]
main()
"""


@pytest.mark.parametrize(
    ("fault", "rank"),
    [("raise", 1), *(pytest.param(*case, marks=pytest.mark.long) for case in (("refuse", 1), ("refuse", 0)))],
)
def test_a_rank_of_a_trial_that_fails_waits_for_nobody(
    tmp_path: Path, scan: Path, monkeypatch: pytest.MonkeyPatch, fault: str, rank: int
) -> None:
    """As NCCL has it, leaving the process group takes all ranks, of which the others wait for the one that failed."""
    monkeypatch.setenv("FAULTY_DESTROY", "waits")
    write(tmp_path, scan, epochs=2, trials=1, ranks_per_trial=2)
    faulty = Path(__file__).parents[1] / "distributed" / "faulty.py"
    began = time.monotonic()
    process = python(["-c", FAULTY, str(faulty), fault, str(rank), "2", str(tmp_path / "marker")], tmp_path, spares=2)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1 and time.monotonic() - began < 30, (out, err)
    (failed,) = trials_of(tmp_path)
    why = failed.user_attrs["error"]
    cause = {"raise": "ZeroDivisionError: division by zero", "refuse": "There is no light."}[fault]
    assert f"ptymesh: Rank {rank} failed in stage 1, epoch 2, batch 1: {cause}" in err
    if rank:
        assert why.startswith("Its ranks ended with status 1; what they said is in ")
        assert cause in (tmp_path / "study" / "trials" / "00000" / "ranks" / "rank1.txt").read_text()
    else:
        assert why == cause


def test_workers_that_are_killed_are_replaced_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = 0

    def start(self: WorkerProcesses, place: int) -> subprocess.Popen[bytes]:
        nonlocal begun
        begun += 1
        return subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])

    monkeypatch.setattr(WorkerProcesses, "_start", start)
    processes = WorkerProcesses(tmp_path, [Share("cpu", "cpu (1 thread)", {"OMP_NUM_THREADS": "1"})])
    end = time.monotonic() + PATIENCE_S
    while processes.any_running() and time.monotonic() < end:
        time.sleep(0.02)
    assert begun == 1 + workers.REPLACED and processes.statuses == {0: -9}
    processes._log(0).write_text("ptymesh: what it said\n")
    with pytest.raises(PtymeshError, match=r"Worker 0 ended with status -9 \(what it said\)"):
        processes.raise_if_any_failed()
