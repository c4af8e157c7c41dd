"""ptymesh resume, given other data than the run began with, or a damaged checkpoint; on one rank and on two."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import ptymesh as pm
from ptymesh.cli import main as module
from ptymesh.distributed.world import Solo
from ptymesh.errors import BadInput
from ptymesh.io.checkpoint import store as checkpoint
from ptymesh.io.hdf5 import digests
from ptymesh.io.results import Result
from ptymesh.recipe.schema import Recipe, load_recipe
from ptymesh.run import session
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked
from warm import python, without_verdict

Resume = Callable[..., tuple[int, str]]

RECIPE = """
data: {path: scan.cxi}
precision: double
stages: [{engine: rpie, epochs: 3, batch: 7}]
output: {figures: false, checkpoint_every: 1, dir: OUT}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scan, another one with as many views, and a run that has checkpoints of its last two epochs but one."""
    folder = tmp_path_factory.mktemp("made")
    for name, seed in (("scan.cxi", 3), ("other.cxi", 4)):
        write(checked(kind="xray", views=20, window=32, seed=seed), folder / name)
    (folder / "recipe.yaml").write_text(RECIPE.replace("OUT", str(folder / "out")))
    session.run_recipe(load_recipe(folder / "recipe.yaml"), device="cpu")
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path) -> Path:
    """The interrupted run and its scan, in a folder of their own; the recipe's path is the copy's."""
    shutil.copytree(made / "out", tmp_path / "out")
    (tmp_path / "out" / "result.h5").unlink()
    shutil.copy(made / "scan.cxi", tmp_path / "scan.cxi")
    for manifest in (tmp_path / "out" / "checkpoint").glob("0*/manifest.json"):
        content = json.loads(manifest.read_text())
        content["meta"]["recipe"] = content["meta"]["recipe"].replace(f"{made}/scan.cxi", f"{tmp_path}/scan.cxi")
        content[digests.NAME] = digests.of_json(content)
        manifest.write_text(json.dumps(content))
    return tmp_path


@pytest.fixture
def resume(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], here: Path) -> Iterator[Resume]:
    """Status and standard error of `ptymesh resume out`: in this process on one rank, in others on several."""
    threads, handler = torch.get_num_threads(), signal.getsignal(signal.SIGTERM)
    torch.set_num_threads(1)

    def call(ranks: int, *options: str) -> tuple[int, str]:
        if ranks > 1:
            arguments = ["-m", "ptymesh", "resume", "out", "--ranks", str(ranks), *options]
            done = python(arguments, here, spares=ranks)
            _, err = done.communicate(timeout=120)
            return done.returncode, err
        monkeypatch.chdir(here)
        monkeypatch.setattr(sys, "argv", ["ptymesh", "resume", "out", *options])
        with pytest.raises(SystemExit) as left:
            module.main()
        return int(left.value.code or 0), without_verdict(capfd.readouterr().err)

    yield call
    signal.signal(signal.SIGTERM, handler)
    torch.set_num_threads(threads)


def files(here: Path) -> list[str]:
    """All that a run keeps; what ranks printed is not of it."""
    return sorted(str(path) for path in (here / "out").rglob("*") if "ranks" not in path.parts)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("ranks", [1, 2])
def test_other_data_are_refused_unless_allowed(resume: Resume, here: Path, made: Path, ranks: int) -> None:
    shutil.copy(made / "other.cxi", here / "scan.cxi")
    before = files(here)
    status, err = resume(ranks)
    assert status == 2 and len(err.splitlines()) == 1, err
    assert f"it is of {made / 'scan.cxi'} (fingerprint " in err and f"{here / 'scan.cxi'} (fingerprint " in err
    assert "differ in file, patterns" in err and "--other-data" in err
    assert files(here) == before
    assert resume(ranks, "--other-data") == (0, "")
    assert Result.load(here / "out" / "result.h5").attrs["data_path"] == str(here / "scan.cxi")


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_damaged_checkpoint_is_left_for_the_one_before(resume: Resume, here: Path, made: Path, ranks: int) -> None:
    """The data have moved, and are the same."""
    folder = here / "out" / "checkpoint"
    newest = folder / f"{checkpoint.load(folder).generation:06d}"
    flip(newest / "rank00000.h5")
    status, err = resume(ranks)
    said = f"The checkpoint's out/checkpoint/{newest.name}/rank00000.h5 is damaged: it does not hold what was written"
    assert status == 0 and err.startswith(f"ptymesh: {said}") and len(err.splitlines()) == 1, err
    assert said in (here / "out" / "log.txt").read_text()
    found, expected = Result.load(here / "out" / "result.h5"), Result.load(made / "out" / "result.h5")
    np.testing.assert_allclose(found.object, expected.object, atol=1e-12)
    assert checkpoint.load(folder).note == ""


@pytest.mark.parametrize("ranks", [1, 2])
def test_where_none_is_sound_that_is_said(resume: Resume, here: Path, ranks: int) -> None:
    for shard in (here / "out" / "checkpoint").glob("0*/rank00000.h5"):
        flip(shard)
    status, err = resume(ranks)
    assert status == 2 and len(err.splitlines()) == 1 and "No generation in out/checkpoint is sound" in err
    assert not (here / "out" / "result.h5").exists()


def test_from_python(here: Path, made: Path) -> None:
    recipe = load_recipe(made / "recipe.yaml", [f"data.path={made / 'other.cxi'}"], here / "out")
    with pytest.raises(BadInput, match=r"differ in file, patterns.*other_data=True in Python"):
        session.run_recipe(recipe, device="cpu", resume=True)
    saved = checkpoint.load(here / "out" / "checkpoint")
    with pytest.raises(BadInput, match="differ in file, patterns"):
        Reconstruction(pm.load(made / "other.cxi"), device=Solo(), saved=saved)
    for scan, other in (("scan.cxi", False), ("other.cxi", True)):
        recon = Reconstruction(pm.load(made / scan), device=Solo(), precision="double", saved=saved, other_data=other)
        assert recon.state.done_epochs == len(saved.shared["history/epoch"])
    session.run_recipe(recipe, device="cpu", resume=True, other_data=True)
    assert checkpoint.load(here / "out" / "checkpoint").meta["data"]["path"].endswith("scan.cxi"), "no save since then"


def test_every_pattern_on_request(here: Path, made: Path) -> None:
    recipe = load_recipe(made / "recipe.yaml", ["fingerprint=all", "stages.0.epochs=1"], here / "all")
    session.run_recipe(recipe, device="cpu")
    meta = checkpoint.load(here / "all" / "checkpoint").meta
    assert meta["data"]["extent"] == "all" and Recipe.from_yaml(meta["recipe"]).fingerprint == "all"


def change(here: Path, edit: str) -> None:
    """The counters of both generations, with digests that hold."""
    for manifest in (here / "out" / "checkpoint").glob("0*/manifest.json"):
        content = json.loads(manifest.read_text())
        exec(edit, {"meta": content["meta"], "run": content["meta"].get("run")})
        content[digests.NAME] = digests.of_json(content)
        manifest.write_text(json.dumps(content))


@pytest.mark.parametrize(
    "edit",
    [
        "meta.pop('run')",
        "meta.update(run=[1])",
        "run.pop('stage')",
        "run.update(stage='1')",
        "run.update(epoch=-1)",
        "run.update(batch=10**30)",
        "run.update(epoch_seconds=None)",
        "run.update(extent=[0, 10])",
        "run.update(extent=[64, 64, 64])",
        "run.update(extent=[33, 33])",
        "run.update(layout='round')",
        "run.update(window=[0, 32])",
        "run.update(parts=[[0, 0, 10**9, 10**9]])",
        "run.update(origin='here')",
        "run.update(unknown=1)",
        "meta.update(data=3)",
    ],
)
def test_counters_that_cannot_be(here: Path, made: Path, edit: str) -> None:
    change(here, edit)
    recipe = load_recipe(made / "recipe.yaml", out=here / "out")
    with pytest.raises(BadInput) as error:
        session.run_recipe(recipe, device="cpu", resume=True)
    assert "\n" not in str(error.value) and "heckpoint" in str(error.value)


@pytest.mark.parametrize("edit", ["meta.pop('recipe')", "meta.update(recipe=3)"])
def test_a_checkpoint_without_a_recipe(resume: Resume, here: Path, edit: str) -> None:
    change(here, edit)
    status, err = resume(1)
    assert status == 2 and "holds no recipe" in err


def test_on_one_rank_nothing_stays_of_what_several_said(resume: Resume, here: Path) -> None:
    (here / "out" / "ranks").mkdir()
    (here / "out" / "ranks" / "rank1.txt").write_text("Stopped after a checkpoint.\n")
    assert resume(1) == (0, "")
    assert not (here / "out" / "ranks").exists()
