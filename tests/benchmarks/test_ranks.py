"""Ranks against threads: what `ptymesh bench --ranks` has written becomes ratios of trials that ran side by side."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    spec = importlib.util.spec_from_file_location("benchmarks_ranks", FOLDER / "ranks.py")
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, made)
    spec.loader.exec_module(made)
    return made


def trial(ranks: int, seconds: float, threads: int = 1) -> dict[str, Any]:
    """The first epoch, which is slow, does not count."""
    kind = "threads" if threads > 1 else "ranks"
    epochs = [9.0, seconds, seconds, 7 * seconds]
    return {"ranks": ranks, "threads": threads, "kind": kind, "epoch_s": epochs}


def test_speed_of_ranks_is_over_that_of_the_threads_of_the_same_trial(ranks: ModuleType) -> None:
    """A machine that is four times slower for one trial changes no ratio."""
    trials = [trial(1, 1.0), trial(2, 0.8), trial(1, 0.6, 2), trial(1, 4.0), trial(2, 2.4), trial(1, 2.4, 2)]
    found = ranks.summary({"trials": trials, "same_bits": True})
    assert found["2 ranks"] == {"of_threads": 0.875, "low": 0.75, "high": 1.0}
    assert found["seconds"]["2 threads"] == [0.6, 2.4]
    assert found["same_bits"] and "1 ranks" not in found
