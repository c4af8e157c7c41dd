"""The command line in this process, on a small simulated scan; files that need another one have their own."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ptymesh.cli import main as module
from ptymesh.io.results import Result
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked
from short_runs import RECIPE, Run
from warm import python, without_verdict


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    write(checked(kind="xray", views=20, window=32, seed=3), folder / "scan.cxi")
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], made: Path, tmp_path: Path
) -> Iterator[Run]:
    """The command line in this process, in an empty folder: status, standard output, standard error.

    On one thread: the arrays are too small for two, which wait for each other on a busy machine.
    """
    monkeypatch.chdir(tmp_path)
    for name in (module.DEBUG, "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ptymesh", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            module.main()
        out, err = capfd.readouterr()
        return int(left.value.code or 0), out, without_verdict(err)

    threads, handler = torch.get_num_threads(), signal.getsignal(signal.SIGTERM)
    torch.set_num_threads(1)
    yield call
    signal.signal(signal.SIGTERM, handler)
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def whole(made: Path) -> Result:
    """The run of the recipe, uninterrupted, on one rank."""
    done = python(["-m", "ptymesh", "run", "recipe.yaml", "--out", "whole"], made)
    _, err = done.communicate(timeout=120)
    assert (done.returncode, err) == (0, "")
    return Result.load(made / "whole" / "result.h5")
