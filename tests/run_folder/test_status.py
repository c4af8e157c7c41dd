"""status.json says what a run does, how far it is, how it ended, and whether it lives."""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ptymesh.errors import BadInput, Interrupted, PtymeshError
from ptymesh.run.simulate_file import write
from ptymesh.run_folder import status as status_file
from ptymesh.run_folder.reports import BatchReport, EpochReport, RunInfo, StreamReport
from ptymesh.run_folder.status import StatusFile, Throttle, end_silent
from ptymesh.simulate import checked


def info(out: Path | None, done: int = 0) -> RunInfo:
    return RunInfo(
        [("rpie", 4, 10), ("lsqml", 2, 5)], 100, (32, 32), (1, 64, 64), 1, 2, "cpu", "single", out, bool(done), done
    )


def said(out: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((out / "status.json").read_text())
    return found


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every word is written."""
    monkeypatch.setattr(Throttle, "is_due", lambda self: True)


@pytest.mark.usefixtures("at_once")
def test_a_run_from_reading_to_its_result(tmp_path: Path) -> None:
    watching = StatusFile()
    watching.entering("reading", tmp_path)
    assert said(tmp_path)["phase"] == "reading" and said(tmp_path)["pid"] == os.getpid()
    watching.start(info(tmp_path))
    assert said(tmp_path)["phase"] == "preparing" and said(tmp_path)["total_epochs"] == 6
    watching.batch(BatchReport(0, 2, 3, 10, 30, 1.0))
    now = said(tmp_path)
    assert (now["stage"], now["stages"], now["engine"], now["epoch"], now["epochs"]) == (1, 2, "rpie", 2, 4)
    # 13 batches of 50 are done
    took = float(now["beat"]) - float(now["started"])  # type: ignore[arg-type]
    assert 0 <= float(now["seconds_left"]) <= took / 13 * 37 + 0.2  # type: ignore[arg-type]
    watching.epoch(EpochReport(0, "rpie", 2, 4, 1.0, 0.25, 1.0, 100.0, 2, 6))
    assert said(tmp_path)["residual"] == 0.25 and said(tmp_path)["done_epochs"] == 2
    watching.saving(tmp_path / "checkpoint")
    assert said(tmp_path)["phase"] == "saving"
    watching.saved(tmp_path / "checkpoint")
    watching.batch(BatchReport(0, 3, 1, 10, 30, 1.0))
    assert said(tmp_path)["phase"] == "stage"
    watching.saving(tmp_path / "result.h5")
    watching.judged({"verdict": "poor", "verdict_sentence": "it is blurred"})
    assert said(tmp_path)["outcome"] is None, "not before the run has ended"
    watching.finish("done")
    assert (said(tmp_path)["phase"], said(tmp_path)["outcome"]) == ("done", "poor")
    watching.fail(PtymeshError("A figure could not be drawn."))
    assert said(tmp_path)["outcome"] == "poor", "what follows the result is no failure of the run"
    assert {path.name for path in tmp_path.iterdir()} == {"status.json"}


@pytest.mark.usefixtures("at_once")
def test_a_live_run(tmp_path: Path) -> None:
    watching = StatusFile()
    watching.entering("receiving", tmp_path)
    watching.follow_stream(StreamReport("rpie", 2, 40, 100, False, None))
    now = said(tmp_path)
    assert (now["phase"], now["frames"], now["expected_frames"], now["ranks"]) == ("receiving", 40, 100, 2)
    assert now["engine"] == "rpie" and now["residual"] is None and now["outcome"] is None
    watching.follow_stream(StreamReport("rpie", 2, 100, 100, True, 0.25))
    assert said(tmp_path)["phase"] == "finishing" and said(tmp_path)["residual"] == 0.25
    watching.follow_stream(StreamReport("rpie", 2, 100, 100, True, math.nan))
    assert said(tmp_path)["residual"] is None
    watching.end_stream(followed=False)
    assert (said(tmp_path)["phase"], said(tmp_path)["frames"]) == ("done", 100)
    end_silent(tmp_path, "The ranks have ended.")
    assert said(tmp_path)["outcome"] is None, "it was done"


def test_what_is_not_written_yet_is_in_the_last_word(tmp_path: Path) -> None:
    watching = StatusFile()
    watching.entering("receiving", tmp_path)
    watching.follow_stream(StreamReport("rpie", 1, 7, None, True, 0.5))
    assert said(tmp_path)["frames"] is None, "at most once a second"
    watching.fail(Interrupted("Stopped with 7 frames."))
    now = said(tmp_path)
    assert (now["outcome"], now["sentence"], now["frames"]) == ("interrupted", "Stopped with 7 frames.", 7)


def test_at_most_once_a_second_and_seldom_on_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, took, written = [0.0], [0.0], []
    monkeypatch.setattr(status_file.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(status_file.time, "perf_counter", lambda: clock[0])

    def slow(path: Path, content: bytes) -> None:
        clock[0] += took[0]
        written.append(clock[0])

    monkeypatch.setattr(status_file, "_replace", slow)
    watching = StatusFile()
    watching.start(info(tmp_path))
    for took[0], most in ((0.0, 11), (0.1, 2)):
        written.clear()
        for batch in range(100):
            clock[0] += 0.1
            watching.batch(BatchReport(0, 1, 1 + batch % 10, 10, 30, 1.0))
        assert 1 <= len(written) <= most, "10 s at 10 batches a second"


@pytest.mark.usefixtures("at_once")
def test_the_longest_time_between_batches_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(status_file.time, "monotonic", lambda: clock[0])
    watching = StatusFile()
    watching.start(info(tmp_path))
    for between in (0.1, 7.0, 0.1):
        watching.batch(BatchReport(0, 1, 1, 10, 30, 1.0))
        clock[0] += between
    watching.batch(BatchReport(0, 1, 4, 10, 30, 1.0))
    assert said(tmp_path)["beat_every_s"] == 7.0


def test_failures(tmp_path: Path) -> None:
    watching = StatusFile()
    watching.entering("reading", tmp_path)
    watching.fail(PtymeshError("The disk is full; make room.\x1b[31m"))
    assert said(tmp_path)["outcome"] == "failed" and said(tmp_path)["phase"] == "reading"
    assert "The disk is full" in str(said(tmp_path)["sentence"]) and "\x1b" not in str(said(tmp_path)["sentence"])
    diverged = StatusFile()
    diverged.start(info(tmp_path))
    diverged.judged({"verdict": "failed", "verdict_sentence": "the residual rose"})
    diverged.finish("diverged")
    assert (said(tmp_path)["outcome"], said(tmp_path)["sentence"]) == ("diverged", "the residual rose")


def test_a_run_that_is_refused_leaves_what_was(tmp_path: Path) -> None:
    for before in (None, b"of an earlier run"):
        if before is not None:
            (tmp_path / "status.json").write_bytes(before)
        watching = StatusFile()
        watching.entering("reading", tmp_path)
        watching.fail(BadInput("scan.cxi is not there; give another path."))
        watching.close()
        left = (tmp_path / "status.json").read_bytes() if (tmp_path / "status.json").exists() else None
        assert left == before


def test_a_residual_that_is_no_number(tmp_path: Path) -> None:
    watching = StatusFile()
    watching.start(info(tmp_path))
    watching.epoch(EpochReport(0, "rpie", 1, 4, math.nan, math.nan, 1.0, 100.0, 1, 6))
    watching.finish("interrupted")
    assert said(tmp_path)["residual"] is None


def test_a_disk_that_refuses_is_no_reason_to_fail(tmp_path: Path) -> None:
    watching = StatusFile()
    (tmp_path / "status.json").mkdir()
    watching.start(info(tmp_path))
    watching.batch(BatchReport(0, 1, 1, 10, 30, 1.0))
    watching.finish("done")
    gone = StatusFile()
    gone.start(info(tmp_path / "not-there"))
    gone.finish("done")


def test_a_link_beside_is_not_written_through(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine")
    (tmp_path / "status.json.new").symlink_to(other)
    watching = StatusFile()
    watching.start(info(tmp_path))
    assert other.read_text() == "mine"


def test_ranks_that_end_without_a_word(tmp_path: Path) -> None:
    end_silent(tmp_path, "nothing to say it of")
    assert not (tmp_path / "status.json").exists()
    watching = StatusFile()
    watching.start(info(tmp_path))
    end_silent(tmp_path, "The ranks have ended.")
    assert (said(tmp_path)["outcome"], said(tmp_path)["sentence"]) == ("failed", "The ranks have ended.")
    end_silent(tmp_path, "again")
    assert said(tmp_path)["sentence"] == "The ranks have ended."


@pytest.mark.sample(1)
@pytest.mark.forked(2)
@pytest.mark.parametrize("ranks", [2, 1])
def test_runs_of_one_and_two_ranks(tmp_path: Path, ranks: int) -> None:
    write(checked(views=25, window=32, seed=3), tmp_path / "scan.cxi")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"data: {{path: {tmp_path / 'scan.cxi'}}}\nstages: [{{engine: rpie, epochs: 3, batch: 8}}]\n"
        "output: {figures: false}\n"
    )
    command = [sys.executable, "-P", "-m", "ptymesh", "run", str(recipe), "--out", str(tmp_path / "out")]
    command += ["--ranks", str(ranks)] if ranks > 1 else []
    before = time.time()
    subprocess.run(command, check=True, capture_output=True, timeout=200)
    found = said(tmp_path / "out")
    assert found["phase"] == "done" and found["outcome"] in ("good", "poor", "failed") and found["sentence"]
    assert (found["ranks"], found["done_epochs"], found["total_epochs"]) == (ranks, 3, 3)
    assert len(found["rank_waited_s"]) == ranks and all(held > 1e7 for held in found["rank_peak_bytes"])
    computed, most = found["rank_computed_s"], float(found["beat"]) - float(found["started"])  # type: ignore[arg-type]
    assert len(computed) == ranks and all(0 < seconds < most for seconds in computed)
    sent, received = found["rank_sent_bytes_per_epoch"], found["rank_received_bytes_per_epoch"]
    assert len(sent) == len(received) == ranks and sum(sent) == pytest.approx(sum(received))
    assert all((count > 0) == (ranks > 1) for count in (*sent, *received))
    assert before < float(found["started"]) <= float(found["beat"]) <= time.time()  # type: ignore[arg-type]
