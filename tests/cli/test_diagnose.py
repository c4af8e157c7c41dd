"""ptymesh diagnose: with the data, without them, and with those that have moved."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ptymesh.cli import main as module
from ptymesh.diagnosis.causes import CAUSES
from ptymesh.recipe.schema import Recipe
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scan and a result of it."""
    folder = tmp_path_factory.mktemp("made")
    path, _ = write(checked(views=40, window=32, photons_per_view=1e5), folder / "scan.cxi")
    recon = Reconstruction(path)
    for _ in recon.run({"engine": "rpie", "epochs": 6, "batch": 10}):
        pass
    recon.save(folder / "result.h5", Recipe.parse({"data": {"path": str(path)}}).to_yaml())
    return folder


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.delenv(module.DEBUG, raising=False)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ptymesh", "diagnose", *map(str, arguments)])
        status = 0
        try:
            module.main()
        except SystemExit as left:
            status = int(left.code or 0)
        return status, *capfd.readouterr()

    return call


def test_with_its_data_and_without(run: Run, made: Path, tmp_path: Path) -> None:
    status, out, err = run(made / "result.h5", "--json")
    assert (status, err) == (0, "")
    said = json.loads(out)
    assert said["views_looked_at"] == 40 and said["convergence"]["kind"] == "falling"
    assert len(said["numbers"]) == len(CAUSES) and said["numbers"]["distance"]["number"] is None, (
        "that is the far field"
    )

    (made / "scan.cxi").rename(tmp_path / "moved.cxi")
    try:
        status, out, err = run(made)  # the run's folder, with its result
        assert status == 0 and err.startswith("Only the result itself is looked at: ")
        lines = out.splitlines()
        assert lines[0].startswith("Residual 0.0") and "times what counting leaves" in lines[0]
        assert lines[1].startswith("Verdict: ") and lines[2].startswith(
            "Convergence of the iteration: still falling by "
        )
        status, out, err = run(made / "result.h5", "--data", tmp_path / "moved.cxi", "--json")
        assert (status, err) == (0, "")
        assert {**json.loads(out), "result": ""} == {**said, "result": ""}
    finally:
        (tmp_path / "moved.cxi").rename(made / "scan.cxi")


def test_other_data_are_refused(run: Run, made: Path, tmp_path: Path) -> None:
    other, _ = write(checked(views=41, window=32), tmp_path / "other.cxi")
    status, out, err = run(made / "result.h5", "--data", other)
    assert (status, out) == (2, "") and err.startswith("ptymesh: ") and "has 41 views" in err
    assert run(made / "result.h5", "--data", tmp_path / "none.cxi")[0] == 2
    assert run(tmp_path / "none.h5")[0] == 2
