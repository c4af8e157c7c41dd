"""One run at a time in an output folder: the lock, with processes that hold it, die, stand still, and race for it."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from ptymesh.errors import BadInput, PtymeshError
from ptymesh.run import lock as module
from ptymesh.run import lock_file
from ptymesh.run.lock import NAME, TOKEN, Fence, Holder, hold, share, take
from ptymesh.run.reports import BatchReport

HOLD = """
import sys, time
from pathlib import Path
from ptymesh.run.lock import take
take(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""
#: Waits for a moment, so that several begin at once; tells whether it got the lock, and keeps it.
RACE = """
import sys, time
from pathlib import Path
from ptymesh.errors import BadInput
from ptymesh.run.lock import take
while not Path(sys.argv[2]).exists():
    time.sleep(0.001)
try:
    take(Path(sys.argv[1]))
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


def forge(folder: Path, **changes: Any) -> Path:
    """The lock of somebody else."""
    folder.mkdir(exist_ok=True)
    (folder / NAME).write_text(json.dumps(asdict(replace(Holder.here(), token="0123", **changes))))
    return folder / NAME


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("BEAT_S", 0.05), ("SILENT_S", 1.0), ("LEAVING_S", 0.5), ("TOLD_S", 0.0), ("POLL_S", 0.02)):
        monkeypatch.setattr(module, name, seconds)


def test_a_folder_made_for_the_lock_goes_with_it(tmp_path: Path) -> None:
    with hold(tmp_path / "a" / "b"):
        assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == [NAME]
    assert not (tmp_path / "a").exists()
    with pytest.raises(ZeroDivisionError), hold(tmp_path / "a"):
        (tmp_path / "a" / "mine").touch()
        raise ZeroDivisionError
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["mine"]


def test_a_lock_that_is_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(lock_file.os, "write", lambda file, text: write(file, text[:7]))
    with hold(tmp_path) as lock:
        assert Holder.read((tmp_path / NAME).read_bytes()).token == lock.token


def test_who_holds_it_may_hold_it_again(tmp_path: Path) -> None:
    with hold(tmp_path) as first, hold(tmp_path / ".") as second:
        assert first is second
    assert not (tmp_path / NAME).exists()


def test_another_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    with process(HOLD, tmp_path) as holder:
        assert holder.stdout.readline() == "held\n"
        said = rf"is in use: process {holder.pid} on \S+ has been writing there since \d+-\d+-\d+ .*; wait until"
        with pytest.raises(BadInput, match=said), hold(tmp_path):
            pass
        holder.send_signal(signal.SIGSTOP)
        with pytest.raises(BadInput, match=said), hold(tmp_path):
            pass
        assert (tmp_path / NAME).exists()
        holder.kill()
        if sys.platform == "linux":
            os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie, and counts as dead
        began = time.monotonic()
        with hold(tmp_path):
            pass
        assert time.monotonic() - began < 5, "at once"
    assert list(tmp_path.iterdir()) == []


def test_process_ids_are_used_again(tmp_path: Path) -> None:
    forge(tmp_path, started="1")
    with hold(tmp_path):
        pass
    forge(tmp_path)
    with pytest.raises(BadInput, match="is in use"), hold(tmp_path):
        pass


def test_a_lock_of_another_host_that_beats(tmp_path: Path, hurried: None, capsys: pytest.CaptureFixture[str]) -> None:
    path, end = forge(tmp_path, host="node7", machine="elsewhere", pid=12), threading.Event()

    def beat() -> None:
        while not end.wait(0.1):
            os.utime(path)

    beats = threading.Thread(target=beat)
    beats.start()
    try:
        with pytest.raises(BadInput, match="process 12 on node7"), hold(tmp_path):
            pass
    finally:
        end.set()
        beats.join()
    assert "held by process 12 on node7" in capsys.readouterr().err


def test_a_lock_of_another_host_that_is_silent(tmp_path: Path, hurried: None) -> None:
    forge(tmp_path, host="node7", machine="elsewhere")
    began = time.monotonic()
    with hold(tmp_path) as lock:
        assert time.monotonic() - began > module.SILENT_S
        before = os.stat(lock.path).st_mtime_ns
        time.sleep(0.3)
        assert os.stat(lock.path).st_mtime_ns > before, "it beats itself"
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_was_cut_short_counts_as_silent(tmp_path: Path, hurried: None) -> None:
    (tmp_path / NAME).touch()
    with hold(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("links", [True, False])
def test_of_many_threads_one_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool, stale: bool) -> None:
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError(1, "no links here")))
        monkeypatch.setattr(lock_file, "fcntl", None)
    for turn in range(5):
        folder = tmp_path / str(turn)
        folder.mkdir()
        if stale:
            forge(folder, started="1")
        gate = threading.Barrier(8)

        def contend(folder: Path = folder, gate: threading.Barrier = gate) -> Any:
            gate.wait()
            try:
                return take(folder)
            except BadInput as error:
                assert "is in use" in str(error)
                return None

        with ThreadPoolExecutor(8) as pool:
            got = [lock for lock in pool.map(lambda _: contend(), range(8)) if lock]
        assert len(got) == 1 and got[0].mine()
        got[0].close()
        assert list(folder.iterdir()) == []


def test_of_many_processes_one_takes_over(tmp_path: Path) -> None:
    folder, go = tmp_path / "out", tmp_path / "go"
    forge(folder, started="1")
    (folder / f"{NAME}.0123").write_text(json.dumps(asdict(replace(Holder.here(), started="2"))))  # died doing so
    with process(RACE, folder, go) as a, process(RACE, folder, go) as b, process(RACE, folder, go) as c:
        time.sleep(0.3)
        go.touch()
        assert sorted(one.stdout.readline() for one in (a, b, c)) == ["lost\n", "lost\n", "won\n"]
    assert [path.name for path in folder.iterdir()] == [NAME]


def test_ranks_have_a_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hurried: None) -> None:
    with hold(tmp_path) as lock:
        assert share(tmp_path) is None, "who was not told the token has none"
        monkeypatch.setenv(TOKEN, lock.token)
        mine = share(tmp_path)
        assert mine is not None
        mine.close()
        assert lock.mine(), "the launcher lives"
        monkeypatch.setenv(TOKEN, "other")
        assert share(tmp_path) is None


@pytest.mark.skipif(lock_file.fcntl is None or sys.platform != "linux", reason="advisory locks")
def test_a_share_in_a_lock_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with hold(tmp_path) as lock:
        monkeypatch.setenv(TOKEN, lock.token)
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", full)
            with pytest.raises(BadInput, match=r"\.lock cannot be read \(Too many open files\)"):
                share(tmp_path)


def test_ranks_of_a_launcher_that_was_killed_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hurried: None, capsys: pytest.CaptureFixture[str]
) -> None:
    forge(tmp_path, started="1")
    monkeypatch.setenv(TOKEN, "0123")
    rank = share(tmp_path)
    assert rank is not None
    monkeypatch.delenv(TOKEN)
    with pytest.raises(BadInput, match="its ranks still write there"):
        take(tmp_path)
    assert "waiting for them" in capsys.readouterr().err
    monkeypatch.setattr(module, "LEAVING_S", 30.0)
    timer = threading.Timer(0.2, rank.close)
    timer.start()
    take(tmp_path).close()
    timer.join()
    other = forge(tmp_path, started="1")
    monkeypatch.setenv(TOKEN, "0123")
    last = share(tmp_path)
    assert last is not None
    monkeypatch.setattr(os, "getppid", lambda: 1)
    last.close()
    assert not other.exists(), "the last rank leaves nothing behind"


def test_a_holder_that_stood_still_writes_nothing_more(tmp_path: Path) -> None:
    with hold(tmp_path) as lock:
        fence = Fence(lock)
        fence.batch(REPORT)
        lock_file.replace(lock.path, replace(Holder.here(), host="node7"))
        with pytest.raises(PtymeshError, match="was taken by another run while this one stood still"):
            fence.batch(REPORT)
        with pytest.raises(PtymeshError, match="was taken by another run"):
            fence.saving(tmp_path)
    assert json.loads((tmp_path / NAME).read_text())["host"] == "node7", "the other's lock stays"


def test_what_is_no_other_run_ends_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = take(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.ESTALE, "stale")))
        lock.check()
    lock.path.unlink()
    lock.check()
    lock.check()
    assert capsys.readouterr().err.count("was removed; this run goes on") == 1
    other = take(tmp_path)
    with pytest.raises(PtymeshError, match="while this one had no lock"):
        lock.check()
    lock.close()
    assert other.mine()
    other.close()


def test_another_run_may_have_come_and_gone(tmp_path: Path, hurried: None, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, now = take(tmp_path), time.time
    monkeypatch.setattr(time, "time", lambda: now() + 60)  # it wakes after a minute
    time.sleep(0.2)
    lock.check()
    lock.path.unlink()
    with pytest.raises(PtymeshError, match="has gone while this run stood still, and another run may"):
        lock.check()
    lock.close()


def test_two_threads_may_let_go(tmp_path: Path) -> None:
    lock = take(tmp_path)
    lock.close()
    other = os.open(tmp_path, os.O_RDONLY)  # may have the same number
    lock.close()
    os.close(other)


@pytest.mark.parametrize("kind", ["text", "numbers", "folder", "pipe", "link"])
def test_what_is_no_lock_is_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / NAME
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("nowhere")
    else:
        path.write_text({"text": "mine", "numbers": json.dumps({**asdict(Holder.here()), "pid": "1"})}[kind])
    with pytest.raises(BadInput, match="is no lock of ptymesh; move it away"), hold(tmp_path):
        pass
    assert os.path.lexists(path)


def test_folders_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file" / "out", tmp_path / ("x" * 300), tmp_path / "a\0b", Path("/proc/ptymesh/out")):
        with pytest.raises(BadInput), hold(folder):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_a_kill_has_left_goes_with_time(tmp_path: Path) -> None:
    elsewhere = {"machine": "elsewhere", "host": "node7"}
    for name, changes in {"-dead": {"started": "1"}, ".0123": {"started": "1"}, "-live": {}, "-far": elsewhere}.items():
        forge(tmp_path, **changes).rename(tmp_path / (NAME + name))
    for name in ("-new", "-old"):
        (tmp_path / (NAME + name)).touch()
    os.utime(tmp_path / f"{NAME}-old", (0, 0))
    (tmp_path / ".locked").touch()
    os.utime(tmp_path / ".locked", (0, 0))
    with hold(tmp_path):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock-far", ".lock-live", ".lock-new", ".locked"]
