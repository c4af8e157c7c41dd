"""`ptymesh bench` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ptymesh.cli import bench, scaling
from ptymesh.cli.launching import LaunchOptions
from ptymesh.errors import BadInput
from ptymesh.run import machine
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked

Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run(...)` returns what is printed on an 80-column screen; BadInput comes through."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(machine, "WATCH_S", 0.01)
    app = typer.Typer()
    app.command()(bench.command)

    def call(*arguments: Any) -> str:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if result.exception is not None:
            raise result.exception
        return result.stdout

    return call


SMALL = ("--engines", "rpie", "--epochs", "2", "--busy-ok")


def test_simulated_scans(run: Run, tmp_path: Path) -> None:
    sizes = ("--windows", "32,48", "--views", "20", "--modes", "2", "--batches", "10")
    shown = run(*SMALL, *sizes, "--precision", "double", "--threads", "1", "--out", tmp_path / "b.json")
    assert max(len(line) for line in shown.splitlines()) <= 80
    rows = [line.split() for line in shown.splitlines() if line.strip().startswith("rpie")]
    assert [row[1] for row in rows] == ["32x32", "32x32", "48x48", "48x48"]
    said = json.loads((tmp_path / "b.json").read_text())
    assert said["machine"]["threads"] == 1 and said["data"] == "simulated"
    assert [(c["subpixel"], c["modes"], c["batch"]) for c in said["cases"]] == [("none", 2, 10), ("fourier", 2, 10)] * 2
    for row, case in zip(rows, said["cases"], strict=True):
        assert f"{case['views_per_s']:.0f}" in row and f"{case['view_modes_per_s']:.0f}" in row


def test_data_of_ones_own(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "scan.cxi"
    write(checked(views=20, window=32), path)
    shown = run(path, *SMALL, "--modes", "1", "--subpixel", "none", "--objects", "128,256", "--device", "cpu")
    assert "Data: scan" in shown and "128x128" in shown and "256x256" in shown
    with pytest.raises(BadInput, match="leave them out, or leave out the data set"):
        run(path, *SMALL, "--windows", "32")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--modes", "one"), "--modes is 'one'"),
        (("--engines", "nonsense"), "no engine 'nonsense'"),
        (("--precision", "half"), "precision is 'half'"),
        (("--out", "nowhere/b.json"), "The folder of --out"),
        (("--device", "abacus"), "Device 'abacus'"),
    ],
)
def test_mistakes(run: Run, arguments: tuple[str, str], word: str) -> None:
    with pytest.raises(BadInput, match=word):
        run("--busy-ok", *arguments)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--ranks", "1,2", "--engines", "rpie"), "--engines does not go with --ranks, which runs a recipe as it is"),
        (("--ranks", "1,2", "--views", "0"), "--views does not go with --ranks"),
        (("--ranks", "1,2", "--turns"), "--turns does not go with --ranks"),
        (("--ranks", "1,2"), "--ranks 1,2 needs a recipe; give `ptymesh bench RECIPE.yaml --ranks 1,2`."),
        (("--trials", "2"), "--trials is of runs on several ranks; give --ranks 1,2 as well, or leave it out."),
        (("--also", "weak"), "--also is of runs on several ranks"),
        (("--set", "seed=2"), "--set is of runs on several ranks"),
        (("--backend", "gloo"), "--backend is of runs on several ranks"),
    ],
)
def test_options_of_the_other_comparison(run: Run, arguments: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(BadInput) as refused:
        run(*arguments)
    assert str(refused.value).startswith(sentence)


def test_scaling_is_the_comparison_of_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By either name: the same numbers of ranks, the same options, the same folder."""
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(bench, "compare_ranks", lambda *given: asked.append(given))
    monkeypatch.setattr(scaling, "compare_ranks", lambda *given: asked.append(given))
    options = ["--trials", "2", "--device", "cpu", "--threads", "1", "--also", "weak", "--set", "seed=2"]
    for more in ([], [*options, "--out", str(tmp_path)]):
        for command in (bench.command, scaling.command):
            app = typer.Typer()
            app.command()(command)
            assert CliRunner().invoke(app, ["recipe.yaml", "--ranks", "1,2", *more]).exit_code == 0
    assert (
        asked[0]
        == asked[1]
        == (Path("recipe.yaml"), "1,2", 3, LaunchOptions(None), None, "threads,weak", [], Path("scaling"))
    )
    assert asked[2] == asked[3] and asked[2][2] == 2 and asked[2][-1] == tmp_path


def test_not_under_torchrun(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BadInput, match="without torchrun"):
        run("--busy-ok")
