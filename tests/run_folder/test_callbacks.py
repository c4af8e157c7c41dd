"""What a run shows and writes while it goes on."""

from __future__ import annotations

import io
import json
import math
import os
import re
import resource
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ptymesh.errors import BadInput
from ptymesh.io.checkpoint import manifests
from ptymesh.io.prepare.survey import too_far_apart
from ptymesh.run_folder import callbacks, start_record
from ptymesh.run_folder.callbacks import (
    Clock,
    FreshStart,
    LineFile,
    LogFile,
    MetricsFile,
    ProgressDisplay,
    make_watchers,
    opening_lines,
    size_line,
    stages_line,
)
from ptymesh.run_folder.reports import BatchReport, Callback, EpochReport, RunInfo


def info(out: Path | None = None, epochs: int = 3, resumed: bool = False, done: int = 0) -> RunInfo:
    stages = [("rpie", epochs, 2), ("mpie", 2, 4)]
    return RunInfo(stages, 20, (8, 8), (1, 32, 64), 1, 2, "cpu", "single", out, resumed, done)


def play(watching: Callback, run: RunInfo, first: int = 0, last: int | None = None, loss: float = 1.5) -> None:
    """What the loop tells of epochs `first` to `last` over all stages."""
    done = 0
    for stage, (engine, epochs, batches) in enumerate(run.stages):
        for epoch in range(1, epochs + 1):
            done += 1
            if done <= first or (last is not None and done > last):
                continue
            for batch in range(1, batches + 1):
                watching.batch(BatchReport(stage, epoch, batch, batches, batch * 10, 0.1))
            report = EpochReport(stage, engine, epoch, epochs, loss, 0.25, 0.5, 40.0, done, run.total_epochs)
            watching.epoch(report)


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "JPY_PARENT_PID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")


def test_the_balance_of_each_stage_stands_at_the_head_of_a_run() -> None:
    assert not any("Balance" in line for line in opening_lines(info()))
    told = opening_lines(replace(info(), layout="replicated (asked for)", balance=[0.984, 1.0]))
    assert told[2:] == [
        "Object: replicated (asked for)",
        "Balance: 0.98; then 1.00 of the speed of equal shares at most",
    ]


def test_what_checks_have_led_to_stands_at_the_head_of_a_run() -> None:
    doubt = too_far_apart(np.array([[0.0, 0.0], [0.0, 9.0], [9.0, 0.0]]), (8, 8))
    head = opening_lines(replace(info(), findings=[doubt, "Left out 1 view."]))
    assert head[-2].startswith("Neighbouring views are 9 object pixels apart, more") and head[-1] == "Left out 1 view."
    assert not too_far_apart(np.array([[0.0, 0.0], [0.0, 8.0], [8.0, 0.0]]), (8, 8))
    assert not too_far_apart(np.zeros((3, 2)), (8, 8)), "as of single exposures"


def test_summary_and_plan() -> None:
    assert size_line(info()) == "20 views of 8 x 8, object 32 x 64, 1 mode, 2 ranks on cpu, single precision"
    assert stages_line(info()) == "rpie, 3 epochs of 2 batches; then mpie, 2 epochs of 4 batches"
    assert stages_line(info(resumed=True, done=1)).endswith("(resumed after 1 epoch)")


def test_plain_lines_one_per_epoch() -> None:
    stream = io.StringIO()
    display, run = ProgressDisplay(stream), info()
    display.start(run)
    play(display, run)
    display.finish("done")
    lines = stream.getvalue().splitlines()
    assert lines[:2] == [size_line(run), stages_line(run)] and len(lines) == 2 + 5
    assert re.match(r"stage 1/2 rpie  epoch 1/3  loss 1\.5  residual 0\.250000  40 views/s  0:00:0\d left$", lines[2])
    assert lines[-1].startswith("stage 2/2 mpie  epoch 2/2")
    assert "\x1b" not in stream.getvalue()


def test_long_runs_print_less(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    display, run = ProgressDisplay(stream), info(epochs=200)
    display.start(run)
    play(display, run)
    epochs = re.findall(r"rpie  epoch (\d+)/200", stream.getvalue())
    assert epochs == ["1", "200"]
    monkeypatch.setattr(callbacks, "LINE_EVERY_S", 0.0)
    play(display, run, last=200)
    assert len(re.findall(r"rpie  epoch (\d+)/200", stream.getvalue())) == 202


def test_live_display_on_a_terminal() -> None:
    stream = Terminal()
    display, run = ProgressDisplay(stream), info()
    display.start(run)
    play(display, run)
    display.finish("done")
    text = stream.getvalue()
    assert "\x1b[?25l" in text and text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor comes back"
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).splitlines()
    assert any("stage 2/2 mpie  epoch 2/2" in line and "100%" in line and "0:00:00 left" in line for line in shown)
    assert any("residual 0.250000  40 views/s" in line for line in shown)


def test_a_command_of_a_notebook_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `!ptymesh run` writes to says that it is a terminal; the page cannot move a cursor."""
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    stream = Terminal()
    display, run = ProgressDisplay(stream), info()
    display.start(run)
    play(display, run)
    display.finish("done")
    assert "\x1b" not in stream.getvalue() and len(stream.getvalue().splitlines()) == 2 + 5


@pytest.mark.parametrize("terminal", ["dumb", "unknown"])
def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch, terminal: str) -> None:
    monkeypatch.setenv("TERM", terminal)
    stream = Terminal()
    display, run = ProgressDisplay(stream), info()
    display.start(run)
    play(display, run)
    display.close()
    assert "\x1b[?25l" not in stream.getvalue() and len(stream.getvalue().splitlines()) == 7


def test_time_left_counts_batches_of_all_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    clock = Clock(info(done=1, resumed=True))
    assert (clock.total, clock.done, clock.left_s()) == (14, 2, None)
    now = 104.0
    clock.at(0, 2, 2)
    assert clock.left_s() == pytest.approx(4 / 2 * 10)
    clock.at(1, 2, 4)
    assert clock.left_s() == 0


def test_metrics_one_object_per_epoch(tmp_path: Path) -> None:
    metrics, run = MetricsFile(), info(tmp_path / "out")
    metrics.start(run)
    play(metrics, run, last=2)
    first = {"stage": 0, "engine": "rpie", "epoch": 1, "loss": 1.5, "residual": 0.25, "seconds": 0.5, "views_per_s": 40}
    assert rows(tmp_path / "out" / "metrics.jsonl")[0] == first, "flushed before the run ends"
    play(metrics, run, first=2, loss=math.nan)
    metrics.finish("diverged")
    found = rows(tmp_path / "out" / "metrics.jsonl")
    assert [(r["stage"], r["epoch"]) for r in found] == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2)]
    assert found[-1]["loss"] is None


def test_metrics_have_no_duplicates_after_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    killed, run = MetricsFile(), info(tmp_path)
    killed.start(run)
    play(killed, run, last=4)
    killed.close()
    with path.open("a") as file:
        file.write('{"stage": 1, "epo')
    for done in (2, 4, 5):
        resumed = MetricsFile()
        resumed.start(info(tmp_path, resumed=True, done=done))
        play(resumed, run, first=done)
        resumed.finish("done")
        assert [(r["stage"], r["epoch"]) for r in rows(path)] == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2)]


def test_a_fresh_run_starts_metrics_and_log_anew(tmp_path: Path) -> None:
    for _ in range(2):
        for watching in (MetricsFile(), LogFile()):
            run = info(tmp_path)
            watching.start(run)
            play(watching, run)
            watching.finish("done")
    assert len(rows(tmp_path / "metrics.jsonl")) == 5
    assert (tmp_path / "log.txt").read_text().count("  done\n") == 1


def test_log_tells_environment_epochs_and_files(tmp_path: Path) -> None:
    log, run = LogFile(), info(tmp_path)
    log.start(run)
    play(log, run, last=3)
    log.saved(tmp_path / "checkpoint")
    log.finish("interrupted")
    again = LogFile()
    again.start(info(tmp_path, resumed=True, done=3))
    play(again, run, first=3)
    again.finish("done")
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d  \S", line) for line in lines)
    text = "\n".join(lines)
    for part in ("ptymesh ", "torch ", "threads per rank", size_line(run), "residual 0.25", "wrote ", "interrupted"):
        assert part in text
    assert "resumed after 3 epochs" in text and lines[-1].endswith("  done")
    assert sum("epoch " in line and "loss" in line for line in lines) == 5


def test_without_an_output_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for watching in make_watchers():
        if not isinstance(watching, ProgressDisplay):
            watching.start(info(None))
            play(watching, info(None))
            watching.saved(Path("result.h5"))
            watching.finish("done")
    assert list(tmp_path.iterdir()) == []


def test_a_fresh_start_removes_an_earlier_run_and_a_resumed_one_does_not(tmp_path: Path) -> None:
    (tmp_path / "checkpoint" / "000001").mkdir(parents=True)
    (tmp_path / "result.h5").touch()
    FreshStart().start(info(tmp_path, resumed=True, done=1))
    assert len(list(tmp_path.iterdir())) == 2
    FreshStart().start(info(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_kill_as_the_earlier_checkpoint_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "checkpoint" / "000001").mkdir(parents=True)
    manifests.write(tmp_path / "checkpoint", 1, {})
    start_record.write_record(tmp_path, "seed: 1\n")
    monkeypatch.setattr(shutil, "rmtree", lambda path: (path / "000001" / manifests.MANIFEST).unlink())
    FreshStart().start(info(tmp_path))
    assert (tmp_path / "checkpoint").exists() and start_record.pending_recipe(tmp_path) == "seed: 1\n"


def test_a_disk_that_fills_up_does_not_end_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing may grow beyond a size, which is how a full disk looks; the files end with whole lines."""
    log, metrics, run = LogFile(), MetricsFile(), info(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    log.start(run)
    metrics.start(run)
    play(metrics, run, last=2)
    size = (tmp_path / "metrics.jsonl").stat().st_size
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))
        for watching in (log, metrics):
            play(watching, run, first=2)
            watching.finish("done")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(rows(tmp_path / "metrics.jsonl")) == 2
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 2 and all("cannot be written (File too large); the run goes on" in line for line in err)


@pytest.mark.parametrize("last", [3, 4])
def test_lines_that_the_disk_has_refused_are_written_later(tmp_path: Path, last: int) -> None:
    """With the next one, or at the end."""
    metrics, run, before = MetricsFile(), info(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    metrics.start(run)
    play(metrics, run, last=2)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "metrics.jsonl").stat().st_size + 10, before[1]))
        play(metrics, run, first=2, last=3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(rows(tmp_path / "metrics.jsonl")) == 2
    play(metrics, run, first=3, last=last)
    metrics.finish("done")
    assert [row["epoch"] for row in rows(tmp_path / "metrics.jsonl")] == [1, 2, 3, 1][:last]


def test_a_log_that_is_closed_meanwhile_gets_its_line_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process that is told to stop closes its files on a thread, also while the run writes to them."""
    lines, real = LineFile(tmp_path / "log.txt", anew=True), os.fstat
    closing = threading.Thread(target=lines.close)

    def meanwhile(file: int) -> os.stat_result:
        if closing.ident is None:
            closing.start()
            closing.join(0.2)
        return real(file)

    monkeypatch.setattr("os.fstat", meanwhile)
    lines.add("first")
    closing.join()
    lines.add("none, it is closed")
    assert (tmp_path / "log.txt").read_text() == "first\n"
    assert capsys.readouterr() == ("", "")


def test_a_log_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    for watching, name in ((LogFile(), "log.txt"), (MetricsFile(), "metrics.jsonl")):
        (tmp_path / name).mkdir()
        with pytest.raises(BadInput, match=f"{name} is a folder"):
            watching.start(info(tmp_path))
