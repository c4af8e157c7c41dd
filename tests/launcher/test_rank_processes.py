"""The launcher: environment, statuses, signals and messages of the ranks, with ranks that load no torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from ptymesh.errors import BadInput, PtymeshError
from ptymesh.launcher import rank_processes as module
from ptymesh.launcher import waiting
from ptymesh.launcher.rank_processes import cores, launch

PRELUDE = """
import os, sys, time
from ptymesh.distributed.child import prepare_process
prepare_process()
rank = int(os.environ["RANK"])
"""


def script(tmp_path: Path, body: str) -> tuple[str, ...]:
    path = tmp_path / "rank.py"
    path.write_text(PRELUDE + textwrap.dedent(body))
    return (str(path),)


def test_ranks_get_the_environment_of_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    body = """
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR OMP_NUM_THREADS TORCHELASTIC_USE_AGENT_STORE"
    with open(f"{sys.argv[1]}/{rank}", "w") as file:
        print(*(os.environ[name] for name in names.split()), *sys.argv[2:], file=file)
    """
    assert launch([str(tmp_path), "a b", "--x"], 2, log_dir=tmp_path / "ranks", program=script(tmp_path, body)) == 0
    for rank in range(2):
        threads = max(1, cores() // 2)
        assert (tmp_path / str(rank)).read_text() == f"{rank} {rank} 2 2 127.0.0.1 {threads} True a b --x\n"
    assert not (tmp_path / "ranks").exists(), "nothing was said, nothing is left"


@pytest.mark.parametrize(("given", "environment", "expected"), [(3, "5", "3"), (None, "5", "5")])
def test_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: int | None, environment: str, expected: str
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", environment)
    body = f"sys.exit(0 if os.environ['OMP_NUM_THREADS'] == '{expected}' else 9)"
    assert launch([], 1, threads_per_rank=given, log_dir=tmp_path / "ranks", program=script(tmp_path, body)) == 0


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("statuses", "expected"),
    [([0, 0], 0), ([2, 2], 2), ([3, 3], 3), ([75, 75], 75), ([1, 2], 2), ([1, 0], 1), ([0, 130], 130), ([1, 3], 3)],
)
def test_status(tmp_path: Path, statuses: list[int], expected: int) -> None:
    body = f"sys.exit({statuses}[rank])"
    assert launch([], len(statuses), log_dir=tmp_path / "ranks", program=script(tmp_path, body)) == expected


def test_a_repeated_signal_does_not_hide_the_checkpoint(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    body = """
    import signal
    if rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    sys.exit(75)
    """
    assert launch([], 2, log_dir=tmp_path / "ranks", program=script(tmp_path, body)) == 75
    assert capfd.readouterr().err == ""


def test_the_first_failure_counts(tmp_path: Path) -> None:
    ending = tmp_path / "ending"
    body = f"""
    from pathlib import Path
    if rank == 1:
        Path({str(ending)!r}).touch()
        sys.exit(1)
    while not Path({str(ending)!r}).exists():  # the other one may have started late
        time.sleep(0.01)
    time.sleep(1)
    sys.exit(75)
    """
    assert launch([], 2, log_dir=tmp_path / "ranks", program=script(tmp_path, body)) == 1


@pytest.mark.parametrize("status", [0, 75])
def test_what_ranks_of_an_earlier_run_said_goes_at_a_good_end(tmp_path: Path, status: int) -> None:
    logs = tmp_path / "ranks"
    logs.mkdir()
    for name in ("rank1.txt", "rank2.txt", "rank10.txt", "rankings.txt"):
        (logs / name).write_text("earlier")
    body = f"print('now', flush=True); sys.exit({status})"
    assert launch([], 2, log_dir=logs, program=script(tmp_path, body)) == status
    assert (logs / "rank1.txt").read_text() == "now\n"
    left = {"rank1.txt", "rankings.txt"} | ({"rank2.txt", "rank10.txt"} if status else set())
    assert {path.name for path in logs.iterdir()} == left


def test_output_of_rank_0_is_ours_and_that_of_others_is_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    body = "print('hello from', rank, flush=True)"
    assert launch([], 3, log_dir=tmp_path / "ranks", program=script(tmp_path, body)) == 0
    assert capfd.readouterr().out == "hello from 0\n"
    assert {p.name: p.read_text() for p in (tmp_path / "ranks").iterdir()} == {
        "rank1.txt": "hello from 1\n",
        "rank2.txt": "hello from 2\n",
    }


def test_a_failing_rank_is_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    body = """
    if rank == 1:
        print("ptymesh: rank one has no patterns.", file=sys.stderr)
        sys.exit(2)
    """
    assert launch([], 2, log_dir=tmp_path / "ranks", program=script(tmp_path, body)) == 2
    err = capfd.readouterr().err
    assert err == f"--- rank 1 (all of it in {tmp_path}/ranks/rank1.txt)\nptymesh: rank one has no patterns.\n"


def test_logs_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=r"file/ranks cannot be made \(Not a directory\); choose another folder"):
        launch([], 2, log_dir=tmp_path / "file" / "ranks")


def test_a_log_that_a_rank_cannot_open(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rank1.txt").mkdir()
    assert launch([], 2, log_dir=tmp_path, program=script(tmp_path, "")) == 2
    err = capfd.readouterr().err
    why = f"{tmp_path}/rank1.txt cannot be written to (Is a directory)"
    assert err == f"ptymesh: {why}; choose another folder, or start again.\n"


def test_a_store_that_nobody_can_speak_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("Broken pipe\nframe #1")

    monkeypatch.setattr(module, "TCPStore", fails)
    with pytest.raises(PtymeshError, match=r"Ranks cannot meet at 127\.0\.0\.1 \(Broken pipe\); .* use --ranks 1\."):
        launch([], 2, log_dir=tmp_path / "ranks", program=script(tmp_path, ""))


def test_ranks_are_waited_for_without_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("Broken pipe")

    monkeypatch.setattr(module, "read_verdict", fails)
    for name in ("read_heartbeat", "post_verdict"):
        monkeypatch.setattr(waiting, name, fails)
    body = """
    if rank == 1:
        os.kill(os.getpid(), 9)
    time.sleep(0.5)
    print(f"ptymesh: {rank} misses it.", file=sys.stderr)
    sys.exit(1)
    """
    assert launch([], 3, log_dir=tmp_path / "ranks", program=script(tmp_path, body)) == 1
    err = capfd.readouterr().err
    assert "ptymesh: Rank 1 (process " in err and ") was ended by SIGKILL (often for want of memory" in err
    assert "ptymesh: 0 misses it." in err and "ptymesh: 2 misses it." in err


def test_what_all_ranks_say_is_shown_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    body = "print('ptymesh: diverged.', file=sys.stderr); sys.exit(3)"
    assert launch([], 3, log_dir=tmp_path / "ranks", program=script(tmp_path, body)) == 3
    assert capfd.readouterr().err == "ptymesh: diverged.\n"


def test_a_killed_rank_is_named_and_the_others_are_ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "PEERS_S", 0.3)
    body = """
    import signal
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)
    """
    began = time.monotonic()
    assert launch([], 3, log_dir=tmp_path / "ranks", program=script(tmp_path, body)) == 1
    assert time.monotonic() - began < 20
    err = capfd.readouterr().err
    assert "ptymesh: Rank 1 (process " in err and ") was ended by SIGKILL (often for want of memory" in err
    assert err.endswith(" before it had joined the others. There is no checkpoint yet.\n")
    one_each = ("rank 0 was ended by SIGKILL because it did not", "rank 2 was ended by SIGTERM because it did not")
    late = "ranks 0, 2 were ended by SIGKILL because they did not end by themselves."  # where the machine is busy
    assert late in err or all(ended in err for ended in one_each)


@pytest.mark.forked
def test_a_rank_that_fails_before_it_joins_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one waits for it, with a sentence of its own for when it is told to stop."""
    monkeypatch.setattr(waiting, "PEERS_S", 4.0)
    body = """
    if rank == 1:
        from torch.distributed import TCPStore
        TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False).wait(["ptymesh/here/0"])
        print("ptymesh: nothing to import.", file=sys.stderr)
        sys.exit(2)
    from ptymesh import stopping
    stopping.watch()
    from ptymesh.distributed.joining import join
    join("cpu")
    """
    assert launch([], 2, log_dir=tmp_path / "ranks", program=script(tmp_path, body)) == 2
    lines = capfd.readouterr().err.splitlines(keepends=True)
    err = "".join(line for line in lines if " waits for r" not in line)  # which is said where that takes long
    tail = f"--- rank 1 (all of it in {tmp_path}/ranks/rank1.txt)\nptymesh: nothing to import.\n"
    assert err.startswith(tail) and "Stopped" not in err
    said = ") ended with status 2 before it had joined the others. There is no checkpoint yet.\n"
    assert err.count("\n") == 3 and err.endswith(said)


def test_ranks_are_bound_to_the_cores_of_a_memory_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("this system binds no process to cores")
    own = sorted(os.sched_getaffinity(0))
    monkeypatch.setattr(module, "memory_nodes", lambda: [own[: len(own) // 2], own[len(own) // 2 :]])
    body = "print(*sorted(os.sched_getaffinity(0)), file=open(f'{sys.argv[1]}/{rank}', 'w'))"
    for bind in (True, False):
        launch([str(tmp_path)], 2, log_dir=tmp_path / "ranks", program=script(tmp_path, body), bind=bind)
        found = [[int(cpu) for cpu in (tmp_path / str(rank)).read_text().split()] for rank in range(2)]
        split = bind and len(own) > 1
        assert found == ([own[: len(own) // 2], own[len(own) // 2 :]] if split else [own, own])


def test_no_ranks_are_refused() -> None:
    with pytest.raises(BadInput, match="--ranks is 0; give 1 to 4096"):
        launch([], 0)


def test_handlers_and_environment_come_back(tmp_path: Path) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT)
    before = [signal.getsignal(number) for number in numbers], dict(os.environ)
    launch([], 1, log_dir=tmp_path / "ranks", program=script(tmp_path, ""))
    assert ([signal.getsignal(number) for number in numbers], dict(os.environ)) == before


#: A launcher of two ranks that run until they are told to stop, then take a moment, as a checkpoint does.
LAUNCHER = """
import sys
from pathlib import Path
from ptymesh.launcher import waiting
from ptymesh.launcher.rank_processes import launch
waiting.PEERS_S = 1.0
sys.exit(launch([sys.argv[1]], 2, log_dir=Path(sys.argv[1]) / "ranks", program=(sys.argv[2],)))
"""
RANK = """
from pathlib import Path
from ptymesh.run_folder.signals import StopSignal
folder = Path(sys.argv[1])
with StopSignal() as stop:
    (folder / f"pid{rank}").write_text(str(os.getpid()))
    for _ in range(2000):
        if stop.requested and not (folder / "stubborn").exists():
            break
        if stop.requested:
            (folder / f"noticed{rank}").touch()
        time.sleep(0.01)
    if not stop.requested:
        sys.exit(1)
    time.sleep(0.5)
    (folder / f"checkpoint{rank}").touch()
    sys.exit(75)
"""


def wait_for(*paths: Path, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not all(path.exists() and (path.stat().st_size or "pid" not in path.name) for path in paths):
        assert time.monotonic() < end, f"still waiting for {paths}"
        time.sleep(0.02)


def start(tmp_path: Path) -> subprocess.Popen[str]:
    program = script(tmp_path, RANK)
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(tmp_path), *program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(tmp_path / "pid0", tmp_path / "pid1")
    return process


@pytest.mark.forked
@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(number, marks=pytest.mark.long) for number in (signal.SIGHUP, signal.SIGUSR1))],
)
def test_signals_are_passed_on_and_ranks_get_their_time(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (out, err, process.returncode) == ("", "", 75)
    assert (tmp_path / "checkpoint0").exists() and (tmp_path / "checkpoint1").exists()


@pytest.mark.forked
def test_a_second_ctrl_c_reaches_the_ranks(tmp_path: Path) -> None:
    (tmp_path / "stubborn").touch()
    process = start(tmp_path)
    process.send_signal(signal.SIGINT)
    wait_for(tmp_path / "noticed0", tmp_path / "noticed1")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1 and "KeyboardInterrupt" in err


@pytest.mark.forked
def test_ranks_do_not_outlive_a_killed_launcher(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("only Linux tells a process that its parent died")
    process = start(tmp_path)
    process.kill()
    process.communicate()
    wait_for(tmp_path / "checkpoint0", tmp_path / "checkpoint1")
