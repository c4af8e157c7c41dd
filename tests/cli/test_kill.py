"""A run of two ranks is killed at a random moment, resumed, told to stop, and resumed again: the same bits come out."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptymesh.io.results import Result
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked
from warm import python

EPOCHS = 24
RECIPE = f"""
data: {{path: scan.cxi}}
stages:
  - {{engine: mpie, epochs: {EPOCHS}, batch: 9, positions: true, probe: {{power: true}}}}
output: {{figures: false, checkpoint_every: 1}}
"""
#: Longest that anything is waited for.
PATIENCE_S = 120.0

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds the ranks in /proc")


def start(folder: Path, *arguments: str) -> Any:
    """ptymesh on two ranks, each on one thread."""
    command = ["-m", "ptymesh", *arguments, "--ranks", "2", "--device", "cpu"]
    return python(command, folder, spares=2)


def ranks_of(launcher: Any) -> list[int]:
    """Process ids of the launcher's children."""
    lists = Path(f"/proc/{launcher.pid}/task").glob("*/children")
    return [int(pid) for children in lists for pid in children.read_text().split()]


def epochs(out: Path) -> int:
    """Whole epochs in the metrics."""
    path = out / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def wait_until(reached: Callable[[], bool], launcher: Any) -> None:
    end = time.monotonic() + PATIENCE_S
    while not reached():
        assert launcher.poll() is None and time.monotonic() < end, launcher.communicate(timeout=PATIENCE_S)
        time.sleep(0.002)


@pytest.mark.long
def test_killed_resumed_stopped_resumed(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    rng = random.Random(seed)
    write(checked(kind="xray", views=30, window=32, seed=3), tmp_path / "scan.cxi")
    (tmp_path / "recipe.yaml").write_text(RECIPE)

    whole = start(tmp_path, "run", "recipe.yaml", "--out", "whole")
    _, err = whole.communicate(timeout=PATIENCE_S)
    assert (whole.returncode, err) == (0, "")

    out = tmp_path / "out"
    killed = start(tmp_path, "run", "recipe.yaml")
    moment = rng.randint(2, EPOCHS // 2)
    wait_until(lambda: epochs(out) >= moment, killed)
    time.sleep(rng.random() * 0.05)
    ranks = ranks_of(killed)
    for pid in (killed.pid, *ranks):
        os.kill(pid, signal.SIGKILL)
    killed.communicate(timeout=PATIENCE_S)
    assert len(ranks) == 2 and killed.returncode == -signal.SIGKILL and not (out / "result.h5").exists()

    stopped = start(tmp_path, "resume", "out")
    moment = epochs(out) + rng.randint(2, 10)
    wait_until(lambda: epochs(out) >= moment, stopped)
    stopped.send_signal(signal.SIGTERM)
    _, err = stopped.communicate(timeout=PATIENCE_S)
    assert (stopped.returncode, err) == (75, "ptymesh: Stopped after a checkpoint; `ptymesh resume out` goes on.\n")
    assert not (out / "result.h5").exists()

    resumed = start(tmp_path, "resume", "out")
    _, err = resumed.communicate(timeout=PATIENCE_S)
    assert (resumed.returncode, err) == (0, "")

    found, expected = Result.load(out / "result.h5"), Result.load(tmp_path / "whole" / "result.h5")
    for name in ("object", "probe", "positions_px"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    for name in ("epoch", "stage", "loss", "residual"):
        assert np.array_equal(found.history[name], expected.history[name]), name
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    lines = [row for row in rows if "epoch" in row]  # the last row is the verdict
    assert [line["epoch"] for line in lines] == list(range(1, EPOCHS + 1))
