"""A tiny simulated scan, and studies on it that take a second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked
from ptymesh.tune.options import Tuning, tuning


@pytest.fixture(scope="session")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tune") / "scan.cxi"
    write(checked(kind="xray", views=40, window=32, seed=3), path)
    return path


Make = Callable[..., Tuning]


@pytest.fixture
def make(scan: Path, tmp_path: Path) -> Make:
    """A tune file's content on the tiny scan, with changes."""

    def made(space: dict[str, Any] | None = None, *, epochs: int = 2, **keys: Any) -> Tuning:
        recipe = {"data": {"path": str(scan)}, "stages": [{"engine": "rpie", "epochs": epochs, "batch": 20}]}
        raw: dict[str, Any] = {
            "recipe": recipe,
            "space": space if space is not None else {"stages.0.gamma_object": {"low": 0.1, "high": 2.0}},
            "pruner": "nop",
            "trials": 4,
            "output": {"dir": str(tmp_path / "study")},
        }
        return tuning({**raw, **keys}, tmp_path)

    return made
