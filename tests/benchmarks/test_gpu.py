"""The benchmark of a GPU, as far as it goes without one: its order, its arithmetic, and rows that fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # behind tests, which has a module `ranks` too
import gpu
from gpu_rows import GOALS, LOOKS, PEERS, Goal, Row, least_bytes, moved_bytes, ordered, reached, small

FOLDER = Path(gpu.__file__).parent
#: What a row of ptymesh finds.
FOUND = {"views_per_s": 30e3, "view_modes_per_s": 120e3, "least_bytes": 1e6, "moved_bytes": 2e6, "peak_bytes": 1e9}
ABOUT = {
    "machine": {"gpu": "a card", "cpu": "", "torch": "2", "triton": "3", "python": "3.12", "ptymesh": "0.1"},
    "copy_bytes_per_s": 3e12,
    "even_transforms": {"128": True, "256": False},
    "started": "2026-11-27",
}


def test_what_was_asked_for_comes_first() -> None:
    rows = ordered(peers=True, quick=False, stand_in=False)
    first = [*GOALS, *PEERS, *LOOKS]
    assert rows[: len(first)] == first
    assert len({(*row.written.values(),)[:-1] for row in rows}) == len(rows), "no row twice"
    axes = {"engine": 3, "subpixel": 2, "batch": 5, "modes": 3, "slices": 2, "window": 3}
    for name, count in axes.items():
        assert len({getattr(row, name) for row in rows}) == count, name
    assert ordered(peers=False, quick=True, stand_in=False) == list(GOALS)
    after = rows[len(first) :]
    assert after[0].engine == "lsqml", "one thing at a time is changed first"


def test_arithmetic_of_two_transforms() -> None:
    """1.05 MB per view-mode of 128 x 128: 3.2 million view-modes/s of 3.35 TB/s."""
    assert least_bytes(Row()) == pytest.approx(1.05e6, rel=2e-3)
    assert 3.35e12 / least_bytes(Row()) == pytest.approx(3.2e6, rel=2e-3)
    assert least_bytes(Row(subpixel="fourier")) == 2 * least_bytes(Row())
    assert least_bytes(Row(slices=6)) == 11 * least_bytes(Row())
    for row in (Row(), Row(subpixel="fourier"), Row(slices=6), Row(engine="lsqml", subpixel="fourier")):
        moved = moved_bytes(row)
        assert moved is not None and moved > least_bytes(row), "passes go over waves besides transforms"
    assert moved_bytes(Row(engine="lsqml", slices=6)) is None


def test_scans_are_of_whole_batches_and_fit_a_card() -> None:
    for row in ordered(peers=True, quick=False, stand_in=False):
        views = row.scan_views()
        assert views % row.batch == 0 and views * row.window**2 * 2 <= 2 << 30
        assert row.kind == "peer" or views >= 2 * row.batch, "a graph is captured in the second batch"


def test_a_row_survives_being_written() -> None:
    for row in (*GOALS, *PEERS, *LOOKS):
        assert Row.read(json.loads(json.dumps(row.written))) == row


class Answers:
    """A process that finds what it is told to, or is gone."""

    def __init__(self, found: list[Any]) -> None:
        self.found, self.asked, self.stopped = found, [], False  # type: ignore[var-annotated]

    def ask(self, asked: dict[str, Any], limit_s: float) -> dict[str, Any]:
        self.asked.append(limit_s)
        found = self.found.pop(0)
        if isinstance(found, Exception):
            raise found
        return dict(found)

    def stop(self) -> None:
        self.stopped = True


def test_rows_that_fail_do_not_end_the_others() -> None:
    memory, broken = {"failed": "OutOfMemoryError: 9 GB"}, {"failed": "AcceleratorError: CUDA error: illegal access"}
    found: list[Any] = [memory, FOUND, gpu.RowFailed("it took longer than its limit of 60 s"), FOUND, broken, FOUND]
    started: list[Answers] = []

    def start() -> Answers:
        started.append(Answers(found))
        return started[-1]

    rows = [*GOALS[:6]]
    done = list(gpu.measure(rows, start, until=1e9, clock=lambda: 0.0))
    assert [row for row, _ in done] == rows
    assert ["failed" in one for _, one in done] == [True, False, True, False, True, False]
    assert [len(one.asked) for one in started] == [3, 2, 1], "a new process after one that hung, or lost the device"
    assert all(one.stopped for one in started)


def test_what_is_left_of_the_time_bounds_a_row() -> None:
    process, now = Answers([FOUND] * 9), iter([0.0, 0.0, 50.0, 50.0, 50.0, 90.0, 97.0, 97.0])
    done = list(gpu.measure([*GOALS], lambda: process, until=100.0, clock=lambda: next(now)))
    assert process.asked == [60.0, 50.0] and len(done) == 2 and process.stopped


def test_goals_are_a_column() -> None:
    row = Row(goal=Goal("view-modes/s", 100e3))
    assert reached(row, FOUND) == pytest.approx(1.2) and reached(row, {"failed": "why"}) is None
    late = Row(modes=1, goal=Goal("views/s", 60e3))
    peer = {"peer": "ptyrad 1.0.0", "peer_views_per_s": 1e3, "views_per_s": 12.5e3, "ratio": 12.5}
    done = [(row, FOUND), (late, FOUND), (late, {"failed": "OutOfMemoryError: 9 | 8"}), (PEERS[1], peer)]
    text = gpu.table(ABOUT, done, left=3)
    assert "100,000 view-modes/s: reached (1.20 of it)" in text and "60,000 views/s: missed (0.50 of it)" in text
    assert "failed: OutOfMemoryError: 9 / 8" in text and "60,000 views/s: not measured" in text
    assert "| ptyrad 1.0.0 | 1,000 | 12,500 | 12.5 | 10 times: reached (1.25 of it) |" in text
    assert "in groups for windows of 256 pixels" in text and "4 rows measured, 1 of them failed, 3 left" in text
    for block in text.split("\n\n"):
        widths = {line.count("|") for line in block.splitlines() if line.startswith("|")}
        assert len(widths) <= 1, block


def ran(out: Path, *options: str, numba: bool = True) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if not numba:
        (out / "without").mkdir(parents=True)
        (out / "without" / "numba.py").write_text("raise ImportError('numba is not here')\n")
        environment["PYTHONPATH"] = os.pathsep.join((str(out / "without"), environment.get("PYTHONPATH", "")))
    command = [sys.executable, str(FOLDER / "gpu.py"), "--out", str(out), *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)


@pytest.mark.long
def test_it_runs_without_a_gpu_and_without_numba(tmp_path: Path) -> None:
    done = ran(tmp_path, "--seconds", "200", "--stand-in", "--quick", numba=False)
    log = (tmp_path / "gpu-log.txt").read_text()
    assert done.returncode == 0, done.stderr + log
    found = json.loads((tmp_path / "gpu.json").read_text())
    rows = ordered(peers=False, quick=True, stand_in=True)
    assert len(found["rows"]) == len(rows) == len({small(row) for row in rows}) and found["left"] == 0
    for row in found["rows"]:
        assert "failed" not in row, row["failed"] + log
        assert row["view_modes_per_s"] == row["modes"] * row["views_per_s"] > 0 and 0 < row["residual"] < 1
        assert 0 < row["host_s"] <= row["batch_s"] and 0 < row["of_goal"] < 1
    assert found["copy_bytes_per_s"] > 0 and found["machine"]["device"] == "cpu"
    assert (tmp_path / "gpu.md").read_text().count("missed") == len(rows) == done.stdout.count("missed")


@pytest.mark.forked
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = ran(tmp_path, "--seconds", "100")
    assert done.returncode == gpu.NO_GPU and "There is no CUDA device here" in done.stderr
    assert not (tmp_path / "gpu.json").exists()
