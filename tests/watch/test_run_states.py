"""What the page says of runs that go on, that have failed, and that were killed."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from ptymesh.files import machine
from watched_runs import end, start, summary, summary_of_preview, wait_for


@pytest.mark.sample(1)
@pytest.mark.forked(2)
@pytest.mark.parametrize("ranks", [(), ("--ranks", "2", "--layout", "replicated")])
def test_a_run_that_goes_on_and_is_killed(tmp_path: Path, ranks: tuple[str, ...]) -> None:
    run, out = start(tmp_path, 100_000, *ranks), tmp_path / "out"
    try:
        wait_for(lambda: (out / "status.json").exists() and summary(out)["status"].get("phase") == "stage")
        found = summary(out)
        assert found["state"] == "running" and found["status"]["epochs"] == 100_000
        wait_for(lambda: summary(out)["status"].get("seconds_left", 0) > 1)
        wait_for(lambda: summary_of_preview(out) == "preview", 20)
        beat = found["status"]["beat"]
        wait_for(lambda: summary(out)["status"]["beat"] > beat, 10)
        for pid in {found["status"]["pid"], run.pid}:
            os.kill(pid, signal.SIGKILL)
        run.wait()
        wait_for(lambda: summary(out)["state"] == "silent", 20)
        silent_s = summary(out)["silent_s"]
        wait_for(lambda: summary(out)["silent_s"] > silent_s, 10)
    finally:
        end(run)


def test_a_live_run_goes_on_after_its_last_frame(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "ended").touch()
    (tmp_path / "live.jsonl").write_text(json.dumps({"frames": 500, "residual": 0.1}) + "\n")
    assert summary(tmp_path)["state"] == "running", "as views are used again"
    (tmp_path / "live.json").write_text("{}")
    assert summary(tmp_path)["state"] == "done"
    status = {"phase": "stage", "outcome": None, "beat": time.time()}
    (tmp_path / "status.json").write_text(json.dumps(status))
    assert summary(tmp_path)["state"] == "running", "as it is being polished"
    (tmp_path / "status.json").write_text(json.dumps(status | {"phase": "done"}))
    assert summary(tmp_path)["state"] == "done"


def test_a_live_run_goes_on_where_an_earlier_one_was_polished(tmp_path: Path) -> None:
    """Its metrics, and their verdict, are of fewer frames."""
    rows = [{"stage": 0, "residual": 0.5}, {"verdict": "good", "final_residual": 0.5}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "live.jsonl").write_text(json.dumps({"frames": 500, "unseen": 3, "residual": 0.1}) + "\n")
    status = {"phase": "receiving", "frames": 510, "expected_frames": 900, "outcome": None, "beat": time.time()}
    (tmp_path / "status.json").write_text(json.dumps(status))
    found = summary(tmp_path)
    assert (found["state"], found["residual"], found["verdict"]) == ("running", 0.1, None)
    assert found["live"]["frames"] == 500 and found["status"]["expected_frames"] == 900
    (tmp_path / "status.json").write_text(json.dumps(status | {"phase": "done", "outcome": "good"}))
    assert (summary(tmp_path)["residual"], summary(tmp_path)["verdict"]) == (0.5, "good")


@pytest.mark.forked
def test_a_run_that_is_stopped(tmp_path: Path) -> None:
    run, out = start(tmp_path), tmp_path / "out"
    try:
        wait_for(lambda: (out / "status.json").exists() and summary(out)["status"].get("phase") == "stage")
        run.terminate()
        assert run.wait(60) == 75
        assert summary(out)["state"] == "interrupted" and "resume" in summary(out)["sentence"]
    finally:
        end(run)


@pytest.mark.forked
def test_a_run_that_diverges(tmp_path: Path) -> None:
    run = start(tmp_path, 60, stage="adam, lr: 1.0e+30")
    try:
        assert run.wait(60) == 3
        found = summary(tmp_path / "out")
        assert found["state"] == "diverged" and "smaller steps" in found["sentence"]
    finally:
        end(run)


def test_of_a_run_on_another_machine_the_beats_tell(tmp_path: Path) -> None:
    """Its process cannot be looked at; how often it beats is in the file."""
    (tmp_path / "metrics.jsonl").write_text("")
    now = time.time()
    os.utime(tmp_path / "metrics.jsonl", (now - 1000, now - 1000))

    def state(**changes: object) -> str:
        known = {"phase": "stage", "pid": os.getpid(), "machine": "another", "beat": now, "beat_every_s": 1.0}
        path = tmp_path / "status.json"
        path.write_text(json.dumps({**known, "outcome": None, **changes}))
        os.utime(path, (now - 1000, now - 1000))
        return str(summary(tmp_path)["state"])

    assert state() == "running"
    assert state(beat=now - 60) == "silent" and state(beat=now - 60, beat_every_s=30.0) == "running"
    assert state(beat=now - 60, phase="reading") == "running" and state(beat=now - 200, phase="reading") == "silent"
    assert state(machine=machine()) == "running" and state(machine=machine(), beat=now - 60) == "running"
    assert state(machine=machine(), pid=2**30) == "silent"
    assert state(outcome="failed", phase="reading") == "failed" and state(outcome="failed", phase="done") == "done"


@pytest.mark.parametrize(
    "content", ["", "[1]", "{", '{"pid": "x", "beat": "y", "phase": 3, "stage": true}', '{"pid": -1}']
)
def test_odd_files(tmp_path: Path, content: str) -> None:
    (tmp_path / "status.json").write_text(content)
    found = summary(tmp_path)
    assert found["state"] == "running" and json.dumps(found)
