"""One run at a time in an output folder: the lease, with processes that hold it, die, stand still, and race for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from filelock import SoftFileLease

from ptymesh.distributed import lease as leases
from ptymesh.errors import BadInput, PtymeshError
from ptymesh.run_folder import lock as module
from ptymesh.run_folder.lock import NAME, TOKEN, OwnershipCheck, hold_folder, share_lease, take_folder
from ptymesh.run_folder.reports import BatchReport

HOLD = """
import sys, time
from pathlib import Path
from ptymesh.run_folder.lock import take_folder
lease = take_folder(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""
#: Waits for a moment, so that several begin at once; tells whether it got the lease, and keeps it.
RACE = """
import sys, time
from pathlib import Path
from ptymesh.errors import BadInput
from ptymesh.run_folder.lock import take_folder
while not Path(sys.argv[2]).exists():
    time.sleep(0.001)
try:
    lease = take_folder(Path(sys.argv[1]))
    print("won", flush=True)
except BadInput as error:
    print("lost" if "is in use" in str(error) else error, flush=True)
sys.stdin.read()
"""
REPORT = BatchReport(0, 1, 1, 1, 1, 0.1)


@contextmanager
def process(code: str, *arguments: object) -> Iterator[Any]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as made:
        yield made
        made.kill()


def forge(folder: Path, name: str = NAME, **changes: object) -> Path:
    """The lease of somebody else: as this process would write it, but for these fields."""
    folder.mkdir(exist_ok=True)
    own = SoftFileLease(folder / "own", lease_duration=module.SILENT_S, heartbeat_interval=module.BEAT_S)
    with own:
        first, *lines = (folder / "own").read_text().splitlines()
    fields = dict(line.split("=", 1) for line in lines) | {key: str(value) for key, value in changes.items()}
    text = "".join(f"{key}={value}\n" for key, value in fields.items())
    (folder / name).write_text(f"{first}\n{text}")
    return folder / name


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (
        ("BEAT_S", 0.05),
        ("SILENT_S", 1.0),
        ("LEAVING_S", 0.5),
        ("WARN_AFTER_S", 0.0),
        ("POLL_S", 0.02),
    ):
        monkeypatch.setattr(module, name, seconds)


@pytest.fixture(params=["exchange", "no exchange"])
def any_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disks on which names can be exchanged, and others, as NFS is one: there filelock takes nothing over."""
    if request.param == "no exchange":
        monkeypatch.setattr(SoftFileLease, "_try_break_stale_lock", lambda self: None)


def test_a_folder_made_for_the_lease_goes_with_it(tmp_path: Path) -> None:
    with hold_folder(tmp_path / "a" / "b"):
        assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == [NAME]
    assert not (tmp_path / "a").exists()
    with pytest.raises(ZeroDivisionError), hold_folder(tmp_path / "a"):
        (tmp_path / "a" / "mine").touch()
        raise ZeroDivisionError
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["mine"]


def test_who_holds_it_may_hold_it_again(tmp_path: Path) -> None:
    with hold_folder(tmp_path) as first, hold_folder(tmp_path / ".") as second:
        assert first is second
    assert not (tmp_path / NAME).exists()


def test_another_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    with process(HOLD, tmp_path) as holder:
        assert holder.stdout.readline() == "held\n"
        said = rf"is in use: process {holder.pid} on \S+ writes there; wait until"
        with pytest.raises(BadInput, match=said), hold_folder(tmp_path):
            pass
        holder.send_signal(signal.SIGSTOP)
        with pytest.raises(BadInput, match=said), hold_folder(tmp_path):
            pass
        assert (tmp_path / NAME).exists()
        holder.kill()
        if sys.platform == "linux":
            os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie, and counts as dead
        began = time.monotonic()
        with hold_folder(tmp_path):
            pass
        assert time.monotonic() - began < 5, "at once"
    assert list(tmp_path.iterdir()) == []


def test_process_ids_are_used_again(tmp_path: Path, any_disk: None) -> None:
    forge(tmp_path, start="1")
    with hold_folder(tmp_path):
        pass
    forge(tmp_path)
    with pytest.raises(BadInput, match="is in use"), hold_folder(tmp_path):
        pass


def test_a_lease_of_another_host_that_beats(tmp_path: Path, hurried: None, capsys: pytest.CaptureFixture[str]) -> None:
    path, end = forge(tmp_path, host="node7", pid=12), threading.Event()

    def beat() -> None:
        while not end.wait(0.1):
            os.utime(path)

    beats = threading.Thread(target=beat)
    beats.start()
    try:
        with pytest.raises(BadInput, match="process 12 on node7"), hold_folder(tmp_path):
            pass
    finally:
        end.set()
        beats.join()
    assert "held by process 12 on node7" in capsys.readouterr().err


def test_a_lease_of_another_host_that_is_silent(tmp_path: Path, hurried: None, any_disk: None) -> None:
    forge(tmp_path, host="node7")
    began = time.monotonic()
    with hold_folder(tmp_path) as lease:
        assert time.monotonic() - began > module.SILENT_S
        before = os.stat(lease.path).st_mtime_ns
        time.sleep(0.3)
        assert os.stat(lease.path).st_mtime_ns > before, "it beats itself"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stale", [False, True])
def test_of_many_threads_one_wins(tmp_path: Path, any_disk: None, stale: bool) -> None:
    for turn in range(3):
        folder = tmp_path / str(turn)
        folder.mkdir()
        if stale:
            forge(folder, start="1")
        gate = threading.Barrier(8)

        def contend(folder: Path = folder, gate: threading.Barrier = gate) -> Any:
            gate.wait()
            try:
                return take_folder(folder)
            except BadInput as error:
                assert "is in use" in str(error)
                return None

        with ThreadPoolExecutor(8) as pool:
            got = [lease for lease in pool.map(lambda _: contend(), range(8)) if lease]
        assert len(got) == 1 and got[0].is_held()
        got[0].close()
        assert list(folder.iterdir()) == []


def test_of_many_processes_one_takes_over(tmp_path: Path) -> None:
    folder, go = tmp_path / "out", tmp_path / "go"
    forge(folder, start="1", token="0123")
    forge(folder, f"{NAME}.0123", start="2")  # died doing so
    with process(RACE, folder, go) as a, process(RACE, folder, go) as b, process(RACE, folder, go) as c:
        time.sleep(0.3)
        go.touch()
        assert sorted(one.stdout.readline() for one in (a, b, c)) == ["lost\n", "lost\n", "won\n"]
        assert (folder / NAME).exists()


def test_ranks_have_a_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hurried: None) -> None:
    with hold_folder(tmp_path) as lease:
        assert share_lease(tmp_path) is None, "who was not told the token has none"
        monkeypatch.setenv(TOKEN, lease.token)
        mine = share_lease(tmp_path)
        assert mine is not None and mine.is_held()
        mine.check()
        mine.close()
        assert lease.is_held(), "the launcher lives"
        monkeypatch.setenv(TOKEN, "other")
        assert share_lease(tmp_path) is None


SHARE = """
import os, signal, sys, time
from contextlib import ExitStack
from pathlib import Path
from ptymesh import stopping
from ptymesh.run_folder import lock
stopping.watch()
with ExitStack() as held:
    HOLDING
    assert len(list(Path().glob(".lock-*"))) == 1
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize(
    "holding", ["held.enter_context(lock.hold_folder(Path()))", "lock.hold_share(Path(), held)"], ids=["first", "other"]
)
def test_a_rank_that_a_signal_ends_leaves_no_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holding: str
) -> None:
    with hold_folder(tmp_path) as lease:
        monkeypatch.setenv(TOKEN, lease.token)
        program = [sys.executable, "-c", SHARE.replace("HOLDING", holding)]
        ended = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert (ended.returncode, os.listdir(tmp_path)) == (75, [NAME]), ended.stderr


def test_ranks_of_a_launcher_that_was_killed_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hurried: None, capsys: pytest.CaptureFixture[str]
) -> None:
    forge(tmp_path, start="1", token="0123")
    monkeypatch.setenv(TOKEN, "0123")
    rank = share_lease(tmp_path)
    assert rank is not None
    monkeypatch.delenv(TOKEN)
    with pytest.raises(BadInput, match="its ranks still write there"):
        take_folder(tmp_path)
    assert "waiting for them" in capsys.readouterr().err and not (tmp_path / NAME).exists()
    monkeypatch.setattr(module, "LEAVING_S", 30.0)
    timer = threading.Timer(0.2, rank.close)
    timer.start()
    take_folder(tmp_path).close()
    timer.join()
    other = forge(tmp_path, start="1", token="0123")
    monkeypatch.setenv(TOKEN, "0123")
    last = share_lease(tmp_path)
    assert last is not None
    monkeypatch.setattr(os, "getppid", lambda: 1)
    last.close()
    assert not other.exists(), "the last rank leaves nothing behind"


def test_what_ranks_that_were_killed_have_left_goes(tmp_path: Path, hurried: None) -> None:
    forge(tmp_path, f"{NAME}-dead", start="1")
    forge(tmp_path, f"{NAME}-far", host="node7", start="1")
    (tmp_path / f"{NAME}-mine").write_text("mine")
    (tmp_path / ".locked").touch()
    with pytest.raises(BadInput, match=r"still write there \(process \d+ on node7\)"):
        take_folder(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock-far", ".lock-mine", ".locked"]


def seize(path: Path) -> None:
    """Another run takes the folder."""
    path.unlink()
    forge(path.parent, host="node7")


def test_a_holder_that_stood_still_writes_nothing_more(tmp_path: Path) -> None:
    with hold_folder(tmp_path) as lease:
        check = OwnershipCheck(lease)
        check.batch(REPORT)
        seize(lease.path)
        with pytest.raises(PtymeshError, match="was taken by another run while this one stood still"):
            check.batch(REPORT)
        with pytest.raises(PtymeshError, match="was taken by another run"):
            check.saving(tmp_path)
    assert "host=node7" in (tmp_path / NAME).read_text(), "the other's lease stays"


def test_what_is_no_other_run_ends_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lease = take_folder(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(leases, "file_identity", lambda path: (_ for _ in ()).throw(OSError(116, "stale")))
        lease.check()
    lease.path.unlink()
    lease.check()
    lease.check()
    assert capsys.readouterr().err.count("was removed; this run goes on") == 1
    other = take_folder(tmp_path)
    with pytest.raises(PtymeshError, match="while this one had no lock"):
        lease.check()
    lease.close()
    assert other.is_held()
    other.close()


def test_another_run_may_have_come_and_gone(tmp_path: Path, hurried: None, monkeypatch: pytest.MonkeyPatch) -> None:
    lease, now = take_folder(tmp_path), time.time
    monkeypatch.setattr(time, "time", lambda: now() + 60)  # it wakes after a minute
    time.sleep(0.2)
    lease.check()
    lease.path.unlink()
    with pytest.raises(PtymeshError, match="has gone while this run stood still, and another run may"):
        lease.check()
    lease.close()


def test_two_threads_may_let_go(tmp_path: Path) -> None:
    lease = take_folder(tmp_path)
    lease.close()
    other = os.open(tmp_path, os.O_RDONLY)  # may have the same number
    lease.close()
    os.close(other)


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["text", "empty", "numbers", "folder", "pipe", "link"])
def test_what_is_no_lease_is_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / NAME
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("nowhere")
    elif kind == "numbers":
        forge(tmp_path, pid="one")
    else:
        path.write_text({"text": "mine", "empty": ""}[kind])
    with pytest.raises(BadInput, match="is no lock of ptymesh; move it away"), hold_folder(tmp_path):
        pass
    assert os.path.lexists(path)


def test_folders_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file" / "out", tmp_path / ("x" * 300), tmp_path / "a\0b", Path("/proc/ptymesh/out")):
        with pytest.raises(BadInput), hold_folder(folder):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
