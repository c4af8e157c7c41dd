"""ptymesh tune on the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from ptymesh.cli import main as module
from ptymesh.recipe.schema import Recipe
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked
from ptymesh.tune.options import load_tuning
from ptymesh.tune.session import checked as checked_space
from ptymesh.tune.space import Space

Run = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """`ptymesh tune ...` in a folder with a tiny scan and a tune file."""
    monkeypatch.chdir(tmp_path)
    write(checked(kind="xray", views=30, window=32, seed=3), tmp_path / "scan.cxi")
    recipe = {"data": {"path": "scan.cxi"}, "stages": [{"engine": "rpie", "epochs": 1, "batch": 15}]}
    tune = {"recipe": recipe, "space": {"stages.0.gamma_object": {"low": 0.1, "high": 2.0}}, "trials": 3}
    (tmp_path / "tune.yaml").write_text(yaml.safe_dump(tune))

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ptymesh", "tune", *arguments])
        with pytest.raises(SystemExit) as left:
            module.main()
        out, err = capfd.readouterr()
        return int(left.value.code or 0), out, err

    return call


def test_tune_and_report(run: Run, tmp_path: Path) -> None:
    status, out, err = run(
        "tune.yaml", "--device", "cpu", "--set", "stages.0.epochs=2", "--trials", "2", "--out", "here"
    )
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "2 trials by held out" and lines[1].startswith("trial 0  done  ")
    assert lines[-2].startswith("Best: trial ") and lines[-1].startswith("Its reconstruction: here/best/result.h5")
    assert Recipe.from_yaml((tmp_path / "here" / "best.yaml").read_text()).stages[0].epochs == 2
    assert len((tmp_path / "here" / "trials.jsonl").read_text().splitlines()) == 2

    status, out, err = run("report", "here")
    assert (status, err) == (0, "") and out.startswith("2 trials by held out: 2 done\nBest: trial ")
    assert (tmp_path / "here" / "report" / "history.html").exists()

    status, out, err = run("tune.yaml", "--device", "cpu", "--out", "here")
    assert status == 2 and "holds a study with another recipe" in err
    status, out, err = run("tune.yaml", "--device", "cpu", "--out", "here", "--force", "--trials", "1")
    assert (status, err) == (0, "") and out.startswith("1 trials by held out\n")
    status, out, err = run("tune.yaml", "--device", "cpu", "--out", "here", "--join", "--trials", "9")
    assert (status, out, err) == (0, "", "")


def test_mistakes(run: Run) -> None:
    for arguments, said in (
        (["tune.yaml", "here"], "here is one argument too many"),
        (["report"], "tune report needs the folder of a study"),
        (["report", "nowhere"], "nowhere holds no study"),
        (["nothing.yaml"], "The tune file nothing.yaml is not there"),
        (["tune.yaml", "--join"], "tune holds no study to join"),
        (["tune.yaml", "--workers", "0"], "--workers is 0; give 1 to 4096."),
        (["tune.yaml", "--device", "cdua"], "Device 'cdua' is unknown"),
    ):
        status, out, err = run(*arguments)
        assert (status, out) == (2, "") and said in err, (arguments, err)


def test_the_example_is_sound() -> None:
    for path in (ROOT / "examples").glob("tune-*.yaml"):
        made = load_tuning(path)
        assert checked_space(made, Space(made.space)) == []
