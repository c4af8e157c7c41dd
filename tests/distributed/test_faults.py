"""Ranks that raise, are killed, hang, or meet a full disk: who is blamed, how soon, and what is lost."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import DistStoreError, TCPStore

from ptymesh import stopping
from ptymesh.distributed import heartbeat as heartbeat
from ptymesh.distributed import program, watchdog
from ptymesh.distributed.heartbeat import Heartbeat
from ptymesh.distributed.watchdog import Watchdog
from ptymesh.errors import BadInput
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.io.results import Result
from ptymesh.kernels.cpu.ready import make_ready
from ptymesh.run.simulate_file import write
from ptymesh.run_folder.lock import hold_folder, take_folder
from ptymesh.simulate import checked
from warm import python

EPOCHS = 5
RECIPE = f"""
data: {{path: scan.cxi}}
precision: double
stages: [{{engine: rpie, epochs: {EPOCHS}, batch: 7, positions: true}}]
output: {{figures: false, checkpoint_every: 1}}
"""
#: The launcher, with ranks that are faulty.py.
LAUNCHER = """
import sys
from pathlib import Path
from ptymesh.launcher import rank_processes as module
from ptymesh.launcher import waiting
waiting.PEERS_S = 3.0
ranks, restarts, timeout, faulty, *arguments = sys.argv[1:]
sys.exit(
    module.launch(
        arguments,
        int(ranks),
        log_dir=Path("logs"),
        program=(faulty,),
        max_restarts=int(restarts),
        environment={"PTYMESH_TIMEOUT": timeout},
    )
)
"""
FAULTY = Path(__file__).with_name("faulty.py")
BATCH_TIMEOUT_S = 3.0
PATIENCE_S = 120.0

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")


def start(folder: Path, ranks: int, fault: str, rank: int, epoch: int = 3, restarts: int = 0) -> Any:
    """`ptymesh run` on `ranks` ranks, of which one has a fault."""
    faults = [fault, str(rank), str(epoch), str(folder / "marker")]
    timeout = BATCH_TIMEOUT_S if fault in ("hang", "stop", "stop-save") else 60.0
    launcher = ["-c", LAUNCHER, str(ranks), str(restarts), str(timeout), str(FAULTY)]
    spares = ranks * (1 + (restarts > 0))
    return python([*launcher, *faults, "run", "recipe.yaml", "--device", "cpu"], folder, spares=spares)


def finish(process: Any) -> tuple[int, str]:
    try:
        _, err = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()  # its ranks are told by the system
        raise
    return process.returncode, err


def until_marked(folder: Path, process: Any) -> None:
    """The fault has come."""
    while not (folder / "marker").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    make_ready(torch.complex128)  # kernels that are compiled here need no word about it from a rank
    write(checked(kind="xray", views=20, window=32, seed=3), folder / "scan.cxi")
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def undisturbed(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[int, Result]:
    """Results of so many ranks without a fault, each computed when it is asked for."""

    class Results(dict[int, Result]):
        def __missing__(self, ranks: int) -> Result:
            folder = tmp_path_factory.mktemp("undisturbed")
            link(made, folder)
            assert finish(start(folder, ranks, "none", -1)) == (0, "")
            self[ranks] = Result.load(folder / "out" / "result.h5")
            return self[ranks]

    return Results()


def link(made: Path, folder: Path) -> None:
    for name in ("scan.cxi", "recipe.yaml"):
        (folder / name).symlink_to(made / name)


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    link(made, tmp_path)
    return tmp_path


def assert_same(folder: Path, expected: Result) -> None:
    """The same bits, and every epoch once."""
    found = Result.load(folder / "out" / "result.h5")
    for name in ("object", "probe", "positions_px"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    for name in ("epoch", "loss", "residual"):
        assert np.array_equal(found.history[name], expected.history[name]), name
    rows = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows if "epoch" in row] == list(range(1, EPOCHS + 1))
    assert "verdict" in rows[-1]


CAUSES = {
    "raise": "failed in stage 1, epoch 3, batch 1: ZeroDivisionError: division by zero",
    "kill": "was ended by SIGKILL (often for want of memory",
    "hang": "made no progress for",
}


@pytest.mark.parametrize(
    ("fault", "ranks", "rank"),
    [
        pytest.param("raise", 2, 1, marks=pytest.mark.long),
        ("kill", 2, 0),
        pytest.param("hang", 2, 0, marks=pytest.mark.long),
        pytest.param("raise", 3, 0, marks=pytest.mark.long),
        pytest.param("kill", 3, 2, marks=pytest.mark.long),
        pytest.param("hang", 3, 1, marks=pytest.mark.long),
    ],
)
def test_a_lost_rank_is_named_and_the_restarted_run_ends_as_if_nothing_had_been(
    folder: Path, undisturbed: Mapping[int, Result], fault: str, ranks: int, rank: int
) -> None:
    status, err = finish(start(folder, ranks, fault, rank, restarts=1))
    assert status == 0, err
    (blamed,) = [line for line in err.splitlines() if line.startswith("ptymesh: Rank ")]
    assert blamed.startswith(f"ptymesh: Rank {rank} ") and CAUSES[fault] in blamed and "epoch 3, batch 1" in blamed
    assert "The last checkpoint holds 2 whole epochs; `ptymesh resume out` goes on." in blamed
    assert err.endswith("ptymesh: starting the ranks again, 1 of 1.\n")
    assert_same(folder, undisturbed[ranks])


def test_a_rank_that_fails_waits_for_nobody(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under NCCL, to leave the process group takes all; the others are waiting for the rank that failed."""
    monkeypatch.setenv("FAULTY_DESTROY", "waits")
    process = start(folder, 3, "raise", 1)
    until_marked(folder, process)
    began = time.monotonic()
    status, err = finish(process)
    assert status == 1 and time.monotonic() - began < 30, err
    last = err.splitlines()[-1]
    assert last.startswith("ptymesh: Rank 1 ") and CAUSES["raise"] in last


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "stop", "stop-save"])
def test_every_rank_stops_within_the_stated_time(folder: Path, fault: str) -> None:
    process = start(folder, 3, fault, 2)
    until_marked(folder, process)
    began = time.monotonic()
    status, err = finish(process)
    stated = (0 if fault == "kill" else BATCH_TIMEOUT_S) + 45  # 25 and more on a busy machine
    assert status == 1 and time.monotonic() - began < stated, err
    last = err.splitlines()[-1]
    assert last.startswith("ptymesh: Rank 2 ") and "`ptymesh resume out` goes on." in last
    assert ("answered nothing" in last) == (fault != "kill")
    if fault == "stop-save" and sys.platform == "linux":
        assert " s (stopped), last heard of in " in last
    assert len(checkpoint.load(folder / "out" / "checkpoint").shared["history/epoch"]) == 2
    assert "starting the ranks again" not in err


@pytest.mark.parametrize(("ranks", "rank"), [(2, 1), pytest.param(3, 0, marks=pytest.mark.long)])
def test_a_full_disk_leaves_the_previous_checkpoint(folder: Path, ranks: int, rank: int) -> None:
    status, err = finish(start(folder, ranks, "full", rank))
    assert status == 1
    sentence = err.splitlines()[-1]
    assert sentence.startswith("ptymesh: The checkpoint in out/checkpoint could not be written (")
    assert "File too large" in sentence and f"rank0000{rank}.h5" in sentence
    assert "the previous one, if any, is intact: make room or mend the folder, then resume." in sentence
    assert len(checkpoint.load(folder / "out" / "checkpoint").shared["history/epoch"]) == 2
    assert not (folder / "out" / "result.h5").exists()


@pytest.mark.parametrize(
    ("ranks", "number"), [(2, signal.SIGTERM), pytest.param(3, signal.SIGUSR1, marks=pytest.mark.long)]
)
def test_asked_to_stop_it_is_not_restarted_and_goes_on_when_requeued(
    folder: Path, undisturbed: Mapping[int, Result], ranks: int, number: signal.Signals
) -> None:
    process = start(folder, ranks, "pause", ranks - 1, restarts=3)  # so that the signal comes in time
    until_marked(folder, process)
    process.send_signal(number)
    status, err = finish(process)
    assert "starting the ranks again" not in err
    assert status == 75, err
    again = ["-m", "ptymesh", "resume", "out", "--ranks", str(ranks), "--device", "cpu"]
    assert finish(python(again, folder, spares=ranks)) == (0, "")
    assert_same(folder, undisturbed[ranks])


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.long)])
def test_out_of_memory_on_one_rank(folder: Path, undisturbed: Mapping[int, Result], ranks: int) -> None:
    assert finish(start(folder, ranks, "memory", 1)) == (0, "")
    said = (folder / "logs" / "rank1.txt").read_text()
    assert said.startswith("ptymesh: rank 1 ran out of memory; it goes on with chunks of ") and said.count("\n") == 1
    found = Result.load(folder / "out" / "result.h5")
    assert np.allclose(found.object, undisturbed[ranks].object, rtol=0, atol=1e-12)


#: `ptymesh run` with ranks that are faulty.py.
LOCKED = """
import sys
from ptymesh.cli.main import main
from ptymesh.launcher import rank_processes as module
from ptymesh.launcher import waiting
waiting.PEERS_S = 3.0
faulty = sys.argv[1:6]
module.launch.__kwdefaults__["program"] = faulty
sys.argv = ["ptymesh", "run", "recipe.yaml", "--device", "cpu", "--ranks", "2", "--max-restarts", "1"]
main()
"""


@pytest.mark.long
def test_ranks_that_are_started_again_have_the_folder_still(folder: Path, undisturbed: Mapping[int, Result]) -> None:
    process = python(["-c", LOCKED, str(FAULTY), "kill", "1", "3", str(folder / "marker")], folder, spares=4)
    until_marked(folder, process)
    with pytest.raises(BadInput, match="is in use: process"):
        take_folder(folder / "out")
    status, err = finish(process)
    assert status == 0 and err.endswith("ptymesh: starting the ranks again, 1 of 1.\n"), err
    assert_same(folder, undisturbed[2])
    assert not (folder / "out" / ".lock").exists()


def without_launcher(folder: Path, *command: str) -> list[tuple[int, str]]:
    """How two ranks end that are started as srun does it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    common |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    ranks = [python(command, folder, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]
    return [finish(process) for process in ranks]


def test_ranks_without_a_launcher_are_refused_a_folder_in_use(folder: Path, undisturbed: Mapping[int, Result]) -> None:
    command = ["-m", "ptymesh", "run", "recipe.yaml", "--device", "cpu"]
    with hold_folder(folder / "out"):
        for status, err in without_launcher(folder, *command):
            assert status == 2 and "out is in use: process" in err and err.count("ptymesh: ") == 1, err
        assert [path.name for path in (folder / "out").iterdir()] == [".lock"]
    assert [status for status, _ in without_launcher(folder, *command)] == [0, 0]
    assert_same(folder, undisturbed[2])
    assert not (folder / "out" / ".lock").exists()


@pytest.mark.sample(1)
@pytest.mark.parametrize("killed", [0, 1])
def test_without_a_launcher_the_survivor_names_who_was_killed(folder: Path, killed: int) -> None:
    """As srun starts ranks: nobody watches them but they themselves, and rank 0 keeps the store."""
    faults = [str(FAULTY), "kill", str(killed), "3", str(folder / "marker")]
    ended = without_launcher(folder, *faults, "run", "recipe.yaml", "--device", "cpu")
    assert ended[killed] == (-signal.SIGKILL, "")
    status, err = ended[1 - killed]
    assert status == 1
    (said,) = [line for line in err.splitlines() if line.startswith("ptymesh: ")]  # torch speaks too
    if killed:
        assert (
            said.startswith("ptymesh: Rank 1 (process ") and "stopped answering (killed, or its machine lost)" in said
        )
        assert said.endswith("The last checkpoint holds 2 whole epochs; `ptymesh resume out` goes on.")
    else:
        assert said.startswith("ptymesh: Rank 1 has lost rank 0, which keeps the store of the run (")


#: Keeps the store of two ranks until rank 1 has come, or until it is told to go.
KEEPER = """
import sys, time
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False, timeout=timedelta(seconds=120))
store.wait([sys.argv[2]])
"""


def keeper(folder: Path, key: str) -> tuple[Any, int]:
    """Who keeps a store until there is such a key, and its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return python(["-c", KEEPER, str(port), key], folder), port


def test_a_store_that_goes_while_ranks_meet_is_named(folder: Path) -> None:
    kept, port = keeper(folder, "ptymesh/here/1")
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}
    rank = python(["-m", "ptymesh", "run", "recipe.yaml", "--device", "cpu"], folder, {**os.environ, **place})
    status, err = finish(rank)
    assert finish(kept) == (0, "")
    said = [line for line in err.splitlines() if line.startswith("ptymesh: ")]  # torch speaks too
    assert status == 1 and len(said) == 1, err
    assert said[0].startswith(f"ptymesh: Rank 1 cannot reach rank 0 at 127.0.0.1:{port} (Dist"), err
    assert "Traceback" not in err


def test_ranks_that_nobody_tells_where_to_meet(folder: Path) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "port", "WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}
    status, err = finish(python(["-m", "ptymesh", "run", "recipe.yaml"], folder, {**os.environ, **place}))
    assert (status, err.count("\n")) == (2, 1) and "MASTER_PORT is 'port' for rank 1 of 2; set both" in err


def test_a_store_that_has_gone_is_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch then raises is of many kinds; this rank alone can tell of it."""
    kept, port = keeper(tmp_path, "done")
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=30))
    other = store.clone()
    store.set("done", "")
    assert finish(kept)[0] == 0
    monkeypatch.setattr(program, "_watchdog", Watchdog(other, Heartbeat(), 1, 2))
    monkeypatch.setattr(program, "_failed", False)
    with pytest.raises(RuntimeError) as raised:
        for _ in range(10):
            store.set("anything", "")
    found = program.account_for(raised.value)
    assert found is not None and not found.is_posted
    assert found.sentence.startswith("Rank 1 has lost rank 0, which keeps the store of the run (")
    assert program.is_loss(DistStoreError("wait timeout after 10ms"))
    assert program.account_for(RuntimeError("an error of somebody's")) is None


def test_a_launcher_that_is_killed_leaves_ranks_the_time_for_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are told to stop, and the store has gone: only one that stands still is ended."""
    kept, port = keeper(tmp_path, "done")
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=30))
    dog = Watchdog(store.clone(), Heartbeat(phase="batch"), 1, 2)
    store.set("done", "")
    assert finish(kept)[0] == 0
    ended: list[watchdog.FailureVerdict] = []
    monkeypatch.setattr(watchdog, "TICK_S", 0.02)
    monkeypatch.setattr(watchdog, "GRACE_S", 0.02)
    monkeypatch.setattr(stopping, "_requested", True)
    monkeypatch.setattr(dog, "end", ended.append)
    dog.start()
    try:
        time.sleep(0.5)
        assert not ended
        dog.heartbeat.budgets_s["batch"] = 0.0
        end = time.monotonic() + PATIENCE_S
        while not ended and time.monotonic() < end:
            time.sleep(0.02)
        assert ended and ended[0].stopped
    finally:
        dog.leave(failed=True)
        dog.join()


def test_what_a_stopped_run_says_is_true_after_its_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_watching", "_at_once", "_sentence", "_since"):
        monkeypatch.setattr(stopping, name, getattr(stopping, name))  # for them to come back
    monkeypatch.setattr(stopping, "_watching", True)
    monkeypatch.setattr(stopping, "_requested", False)
    stopping.at_once("It starts anew.", since="It goes on.")
    assert stopping.sentence() == "It starts anew."
    stopping.held()
    assert stopping.sentence() == "It goes on."
