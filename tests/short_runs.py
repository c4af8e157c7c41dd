"""A recipe that runs in a second, and what the tests of its runs ask of their folders."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ptymesh.io.results import Result
from ptymesh.run_folder.callbacks import MetricsFile
from ptymesh.run_folder.reports import EpochReport

#: The command line: status, standard output, standard error.
Run = Callable[..., tuple[int, str, str]]

RECIPE = """
data: {path: scan.cxi}
precision: double
stages: [{engine: rpie, epochs: 4, batch: 7, positions: true}]
output: {figures: false, checkpoint_every: 3}
"""


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def epochs(folder: Path) -> list[int]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["epoch"] for row in rows if "epoch" in row]  # the last row is the verdict


def assert_equal(found: Result, expected: Result, tolerance: float) -> None:
    for name in ("object", "probe", "positions_px"):
        a, b = getattr(found, name), getattr(expected, name)
        assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b), name


def stop_after(monkeypatch: pytest.MonkeyPatch, epoch: int) -> None:
    """The process gets SIGTERM in the middle of that epoch."""
    write_line = MetricsFile.epoch

    def signalled(self: MetricsFile, report: EpochReport) -> None:
        write_line(self, report)
        if report.done_epochs == epoch - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(MetricsFile, "epoch", signalled)
