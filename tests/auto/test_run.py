"""`ptymesh run DATA`: a result, and the recipe that repeats it; the same decisions on any number of ranks."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import ptymesh as pm
from ptymesh.auto.data import described
from ptymesh.auto.deciding import decide
from ptymesh.cli import main as module
from ptymesh.distributed.world import Solo, World
from ptymesh.errors import BadInput, Poor
from ptymesh.io.results import Result
from ptymesh.recipe.schema import Recipe, load_recipe
from ptymesh.run.session import run_recipe
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked
from short_runs import Run
from warm import without_verdict

#: Enough for a few of the questions.
FEW = "auto.sweeps=110"


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("auto") / "scan.cxi"
    write(checked(kind="xray", views=30, window=32, position_error_px=1.5, seed=3), path)
    return path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Run]:
    """The command line in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

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


def same(a: Result, b: Result) -> None:
    for name in ("object", "probe", "positions_px"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


def test_operators_are_not_left_out_in_silence(scan: Path) -> None:
    recipe = Recipe.parse({"data": {"path": str(scan)}, "optics": {"view_defocus": True}, "stages": "auto"})
    with pytest.raises(BadInput, match=r"stages: auto tries no operators of optics \(view_defocus\); name the stages"):
        decide(recipe, Solo(), lambda: False)


def test_a_file_alone(run: Run, scan: Path, tmp_path: Path) -> None:
    status, out, err = run("run", scan, "--set", FEW, "--set", "output.figures=false")
    assert (status, err) == (0, ""), err
    assert "A position of each view: " in out
    recipe = (tmp_path / "scan" / "recipe.yaml").read_text()
    assert "# A position of each view: " in recipe and "stages:\n  - {engine: rpie, epochs: 12" in recipe
    status, _, err = run("run", tmp_path / "scan" / "recipe.yaml", "--out", "again")
    assert (status, err) == (0, "")
    same(*(Result.load(tmp_path / name / "result.h5") for name in ("scan", "again")))
    assert not (tmp_path / "again" / "recipe.yaml").exists()
    status, _, err = run("run", scan)
    assert status == 2 and "scan/result.h5 exists; choose another folder with --out" in err


def test_time_becomes_sweeps_before_anything_is_asked(run: Run, scan: Path, tmp_path: Path) -> None:
    status, _, err = run("run", scan, "--time", "0.001", "--out", "fast", "--set", "output.figures=false")
    assert (status, err) == (0, "")
    assert "0.001 seconds were taken for " in (tmp_path / "fast" / "recipe.yaml").read_text()
    stages = load_recipe(tmp_path / "fast" / "recipe.yaml").stages
    assert [(stage.name, stage.epochs) for stage in stages] == [("rpie", 12)], "nothing else could be afforded"
    for wrong, said in (
        (["--time", "-1"], "--time is -1"),
        (["--time", "9", "--set", "auto.sweeps=9"], "--time is for a run whose stages are to be found"),
        (["--time", "9", "--set", "stages=[{engine: epie}]"], "--time is for a run whose stages are to be found"),
    ):
        status, _, err = run("run", scan, "--out", "none", *wrong)
        assert status == 2 and said in err, err


def test_a_recipe_may_leave_stages_open(run: Run, scan: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        f"data: {{path: {scan}}}\nstages: auto\nauto: {{sweeps: 20}}\nprobe: {{modes: 2}}\n"
    )
    status, _, err = run("run", "mine.yaml", "--set", "output.figures=false")
    assert (status, err) == (0, "")
    assert len(Result.load(tmp_path / "out" / "result.h5").probe) == 2
    assert load_recipe(tmp_path / "out" / "recipe.yaml").probe.modes == 2
    (tmp_path / "out" / "result.h5").unlink()
    (tmp_path / "out" / "recipe.yaml").write_text((tmp_path / "mine.yaml").read_text())
    status, _, err = run("run", "out/recipe.yaml", "--force")
    assert status == 2 and "would replace out/recipe.yaml; choose another folder" in err


def test_open_stages_are_nothing_to_run_as_they_are(scan: Path, tmp_path: Path) -> None:
    recipe = Recipe.parse(described(scan, [], tmp_path / "out")[0])
    with pytest.raises(BadInput, match="stages is auto, and nothing here finds them"):
        run_recipe(recipe, device="cpu")


def test_from_python(scan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = pm.reconstruct(scan, progress=True, device="cpu", probe_modes=1, auto={"sweeps": 110})
    assert capsys.readouterr().out.count("epoch") == len(result.history["residual"])
    assert "# A position of each view: " in result.recipe and "modes: 1" in result.recipe
    assert result.attrs["final_residual"] < 0.1
    with pytest.raises(BadInput, match="zigzag is unknown; the keys here are progress, strict, object, "):
        pm.reconstruct(scan, zigzag=3)
    with pytest.raises(BadInput, match=r"tries no operators of optics .descan.; name the stages"):
        pm.reconstruct(scan, device="cpu", optics={"descan": True})


def test_a_poor_picture_from_python(scan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The patterns belong to other positions."""
    wrong = tmp_path / "wrong.cxi"
    shutil.copy(scan, wrong)
    with h5py.File(wrong, "r+") as file:
        counts = file["entry_1/data_1/data"]
        counts[...] = counts[:][np.random.default_rng(1).permutation(len(counts))]
    how = {"device": "cpu", "probe_modes": 1, "auto": {"sweeps": 60}}
    result = pm.reconstruct(wrong, **how)
    assert f"ptymesh: the result is {result.verdict}: " in capsys.readouterr().err and result.verdict != "good"
    with pytest.raises(Poor) as caught:
        pm.reconstruct(wrong, strict=True, **how)
    assert caught.value.result.verdict == result.verdict


def found(world: World, path: str) -> tuple[str, dict[str, list[str]]]:
    recipe = Recipe.parse(described(Path(path), [FEW])[0])
    made = decide(recipe, world, write=False)
    return made.recipe.to_yaml(), made.reasons


@pytest.mark.long
def test_decisions_are_the_same_on_any_number_of_ranks(ranks, scan: Path) -> None:  # type: ignore[no-untyped-def]
    alone, *_ = ranks(1, found, str(scan))
    assert any("A position of each view" in said for said in alone[1]["stages"])
    for size in (2, 3):
        assert ranks(size, found, str(scan)) == [alone] * size
