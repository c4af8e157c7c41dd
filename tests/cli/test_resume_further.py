"""ptymesh resume --set stages...: for longer, or with other stages behind; what does not fit is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from ptymesh.errors import BadInput
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.io.results import Result
from ptymesh.recipe.schema import load_recipe
from ptymesh.run.checkpoint_counters import Counters, counters_of
from ptymesh.run.resumed_recipe import resumed_recipe
from ptymesh.run.session import run_recipe
from short_runs import Run
from warm import python

RECIPE = """
data: {path: scan.cxi}
precision: double
stages: [{engine: rpie, epochs: 2, batch: 7}, {engine: mpie, epochs: 3, batch: 7, positions: true}]
output: {figures: false, checkpoint_every: 1, dir: OUT}
"""


@pytest.fixture(scope="module")
def done(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is done, whose last checkpoint is of its last epoch."""
    folder = tmp_path_factory.mktemp("further")
    shutil.copy(made / "scan.cxi", folder / "scan.cxi")
    (folder / "recipe.yaml").write_text(RECIPE.replace("OUT", str(folder / "out")))
    run_recipe(load_recipe(folder / "recipe.yaml"), device="cpu")
    return folder


@pytest.fixture
def here(done: Path, tmp_path: Path) -> Path:
    shutil.copytree(done / "out", tmp_path / "out")
    return tmp_path


def counters(folder: Path) -> Counters:
    return counters_of(checkpoint.read_meta(folder / "out" / "checkpoint"))


def test_more_epochs_are_what_a_longer_run_would_have_done(run: Run, here: Path, done: Path) -> None:
    at = counters(here)
    assert (at.stage, at.epoch) == (1, 3)
    status, out, err = run("resume", here / "out")
    assert (status, err) == (0, "") and "All epochs are done; for more, add --set stages.1.epochs=6." in out
    status, out, err = run("resume", here / "out", "--set", "stages.1.epochs=5")
    assert (status, err) == (0, "") and "resumed after 5 epochs" in out and "are done" not in out
    longer = load_recipe(done / "recipe.yaml", ["stages.1.epochs=5"], here / "longer")
    whole = run_recipe(longer, device="cpu").result
    found = Result.load(here / "out" / "result.h5")
    for name in ("object", "probe", "positions_px"):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))
    assert "epochs: 5" in found.recipe


def test_another_stage_may_follow_on_other_ranks(run: Run, here: Path) -> None:
    more = "stages.2={engine: lsqml, epochs: 2, batch: 20}"
    begun = python(["-m", "ptymesh", "resume", "out", "--ranks", "2", "--set", more], here, spares=2)
    _, err = begun.communicate(timeout=120)
    assert (begun.returncode, err) == (0, "")
    found = Result.load(here / "out" / "result.h5")
    assert found.attrs["engine"] == "rpie+mpie+lsqml" and found.history["stage"].tolist() == [0, 0, 1, 1, 1, 2, 2]
    status, _, err = run("resume", here / "out", "--set", "stages.2.epochs=3")
    assert (status, err) == (0, ""), "and once more, from there"
    assert len(Result.load(here / "out" / "result.h5").history["stage"]) == 8


@pytest.mark.parametrize(
    "setting, said",
    [
        ("stages.0.epochs=9", r"stages\.0 is done, and its epochs cannot become 9; add a stage instead"),
        ("stages.0.engine=mpie", r"stages\.0 is done, and its engine cannot become mpie"),
        ("stages.1.batch=5", r"within stages\.1, whose batch cannot become 5; set stages\.1\.epochs=3 to end it there"),
        ("stages.1.epochs=2", r"stages\.1\.epochs would be 2, and the checkpoint lies in epoch 3; give 3 or more"),
        ("stages=[{engine: rpie, epochs: 2, batch: 7}]", r"in stage 2 \(stages\.1\), and there would be 1; keep"),
        ("output.dir=other", r"output\.dir cannot become other: a run goes on in its folder"),
        ("stages=auto", "has found its stages; name those that are to follow"),
        ("seed=4", "seed was 0 when the run began and cannot become 4"),
        ("probe.modes=3", r"probe\.modes was None when the run began and cannot become 3"),
        ("data.crop=16", r"data\.crop was None when the run began and cannot become \(16, 16\)"),
    ],
)
def test_what_does_not_fit_the_checkpoint_is_refused(run: Run, here: Path, setting: str, said: str) -> None:
    before = sorted(path.name for path in (here / "out").iterdir())
    status, _, err = run("resume", here / "out", "--set", setting)
    assert status == 2 and len(err.splitlines()) == 1, err
    with pytest.raises(BadInput, match=said):
        text = checkpoint.read_meta(here / "out" / "checkpoint")["recipe"]
        resumed_recipe(text, [setting], counters(here))
    assert sorted(path.name for path in (here / "out").iterdir()) == before


def test_a_checkpoint_that_may_not_be_read(run: Run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a folder without permissions, which the superuser of a test does not meet."""
    is_file = Path.is_file

    def refused(path: Path) -> bool:
        if path.parent.name == "checkpoint":
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refused)
    status, _, err = run("resume", here / "out")
    assert status == 2 and len(err.splitlines()) == 1, err
    assert "cannot be used (Permission denied); mend its permissions." in err


def test_within_an_epoch_one_more_has_begun(here: Path) -> None:
    text = checkpoint.read_meta(here / "out" / "checkpoint")["recipe"]
    at = counters(here).model_copy(update={"epoch": 1, "batch": 1})
    assert resumed_recipe(text, ["stages.1.epochs=2"], at).stages[1].epochs == 2
    with pytest.raises(BadInput, match="lies in epoch 2; give 2 or more"):
        resumed_recipe(text, ["stages.1.epochs=1"], at)


def test_files_may_move(here: Path) -> None:
    text = checkpoint.read_meta(here / "out" / "checkpoint")["recipe"]
    moved = resumed_recipe(text, ["data.path=elsewhere.cxi", "output.figures=true", "layout=tiled"], counters(here))
    assert moved.data.path == Path("elsewhere.cxi") and moved.output.figures
