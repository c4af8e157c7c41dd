"""`ptymesh resolution`: two halves of a scan, two results, a transfer function; stopped, and bad inputs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ptymesh.beamtime import SplitScan
from ptymesh.beamtime.split_scan import half_settings
from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.io.results import Result
from ptymesh.measurement import Measurement
from ptymesh.recipe.schema import Recipe
from ptymesh.run.simulate_file import write
from ptymesh.run_folder.patterns import model_of, modelled
from ptymesh.run_folder.transfer import transfer_function
from ptymesh.simulate import checked
from toy import smooth

RECIPE = (
    "data: {path: scan.cxi}\nstages: [{engine: rpie, epochs: EPOCHS, batch: 10}]\n"
    "output: {figures: false, checkpoint_every: 1}\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a simulated scan, and recipes of 20 and of 5000 epochs."""
    made = tmp_path_factory.mktemp("resolution")
    write(checked(views=80, window=32, seed=1, photons_per_view=3e4), made / "scan.cxi")
    (made / "recipe.yaml").write_text(RECIPE.replace("EPOCHS", "20"))
    (made / "long.yaml").write_text(RECIPE.replace("EPOCHS", "5000"))
    return made


def command(*words: object) -> list[str]:
    return [sys.executable, "-P", "-m", "ptymesh", "resolution", *map(str, words)]


def run(*words: object, status: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=200, env=environment, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.mark.long
@pytest.mark.forked(2, 2)
def test_halves_of_a_recipe_and_the_same_bits_on_two_ranks(folder: Path, tmp_path: Path) -> None:
    """Halves have other views and seeds; a second call runs nothing; two ranks end with the same numbers."""
    out = tmp_path / "one"
    found = json.loads(run(folder / "recipe.yaml", "--out", out, "--json").stdout)
    halves = [Result.load(out / name / "result.h5") for name in ("half-1", "half-2")]
    whole = Result.load(folder / "scan.truth.h5").positions_px
    assert [len(half.positions_px) for half in halves] == [40, 40]
    steps = [np.diff(half.positions_px, axis=0) for half in halves]
    for half, step in enumerate(steps):
        np.testing.assert_allclose(step, np.diff(whole[half::2], axis=0), atol=1e-3)
    assert found["half_bit_resolution"] >= 2 * halves[0].pixel_size_m[0] * (1 - 1e-9)  # type: ignore[index]
    assert len(found["correlation"]) == len(found["frequency"]) == len(found["snr"]) == len(found["one_bit_threshold"])
    assert found["transfer"]["value"][5] > 0.5
    assert min(found["field_px"]) > 32 and not found["field_too_small"]
    assert (out / "resolution.png").stat().st_size > 10_000
    again = run(folder / "recipe.yaml", "--out", out)
    assert again.stdout.count("as before") == 2 and "1/2 bit" in again.stdout and " nm " in again.stdout
    two = json.loads(run(folder / "recipe.yaml", "--out", tmp_path / "two", "--json", "-n", 2).stdout)
    assert {**two, "a": "", "b": ""} == {**found, "a": "", "b": ""}
    direct = run(*(out / name / "result.h5" for name in ("half-1", "half-2")), "--out", tmp_path / "direct", "--json")
    assert json.loads(direct.stdout)["correlation"] == found["correlation"]
    same = run(out / "half-1" / "result.h5", out / "half-1" / "result.h5", "--out", tmp_path / "same")
    assert "the resolution is too good" in same.stdout


@pytest.mark.forked(2)
def test_what_was_stopped_goes_on(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = folder / "long.yaml", "--out", out
    process = subprocess.Popen(command(*words), stderr=subprocess.PIPE, text=True)
    for _ in range(600):
        if (out / "half-1" / "checkpoint").is_dir() and any((out / "half-1" / "checkpoint").iterdir()):
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert "the same command goes on" in process.communicate(timeout=60)[1]
    assert process.returncode == 75
    text = (out / "recipe.yaml").read_text()
    recipe = Recipe.from_yaml(text)
    from ptymesh.beamtime.split_scan import HalfRun

    half = HalfRun(recipe.data.path, out / "half-1", out / "recipe.yaml", half_settings(recipe)[0])
    assert half.arguments()[0] == "resume"
    other = HalfRun(recipe.data.path, out / "half-1", out / "recipe.yaml", half_settings(recipe)[1])
    assert other.arguments()[0] == "run"


@pytest.mark.forked(1)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["recipe.yaml", "--set", "stages=auto"], "each half would find stages"),
        (["recipe.yaml", "--set", "data.views.start=-20"], "data.views.start is -20"),
        (["recipe.yaml", "--set", "data.views.stop=6"], "There are 6 views"),
        (["recipe.yaml", "recipe.yaml", "recipe.yaml"], "3 files were given"),
        (["recipe.yaml", "recipe.yaml", "--set", "seed=1"], "--set changes a recipe"),
        (["scan.cxi"], "scan.cxi"),
        (["recipe.yaml", "--ranks", "0"], "--ranks is 0"),
    ],
)
def test_bad_inputs(folder: Path, tmp_path: Path, words: list[str], said: str) -> None:
    given = [folder / word if word.endswith((".yaml", ".cxi")) else word for word in words]
    done = run(*given, "--out", tmp_path / "out", status=2)
    assert said in done.stderr and done.stderr.count("\n") == 1


def test_halves_share_no_view() -> None:
    recipe = Recipe.parse(
        {
            "data": {"path": "a.cxi", "views": {"start": 3, "step": 2, "central": 7}},
            "stages": [{"engine": "rpie", "epochs": 1}],
            "seed": 4,
        }
    )
    first, second = (dict(setting.split("=") for setting in half) for half in half_settings(recipe))
    views = [set(range(int(half["data.views.start"]), 100, int(half["data.views.step"]))) for half in (first, second)]
    assert not views[0] & views[1] and views[0] | views[1] == set(range(3, 100, 2))
    assert (first["seed"], second["seed"]) == ("4", "5")
    assert (first["data.views.central"], second["data.views.central"]) == ("4", "3")


def test_several_scans_are_halved_each() -> None:
    scans = [{"data": {"path": "a.cxi"}}, {"data": {"path": "b.cxi", "views": {"start": 5}}}]
    recipe = Recipe.parse({"scans": scans, "stages": [{"engine": "rpie", "epochs": 1}]})
    halves = [Recipe.from_yaml(recipe.to_yaml(), settings) for settings in half_settings(recipe)]
    found = [[(one.data.views.start, one.data.views.step) for one in half.scans] for half in halves]
    assert found == [[(0, 2), (5, 2)], [(1, 2), (6, 2)]]


def test_an_open_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="give its result"):
        SplitScan(Recipe.parse({"data": {"path": "a.cxi"}, "stages": "auto"}), tmp_path)


def phantom(counts: float, rng: np.random.Generator | None) -> tuple[Result, Measurement]:
    """The truth as a result, and its scan, with noise if there is a generator."""
    y, x = np.indices((32, 32)) - 16
    probe = np.exp(-(x**2 + y**2) / 40 + 0.05j * (x**2 + y**2))[None]
    probe *= np.sqrt(counts / (np.abs(probe) ** 2).sum())
    obj = np.exp(1j * smooth((1, 64, 64), 1.0, np.random.default_rng(0)))
    positions = np.stack(np.meshgrid(*[np.arange(2.0, 30, 7)] * 2, indexing="ij"), axis=-1).reshape(-1, 2)
    result = Result(obj, probe, positions, pixel_size_m=(1e-8, 1e-8))
    geometry = Geometry((32, 32))
    patterns = modelled(model_of(result, geometry), result, np.arange(len(positions)))
    if rng is not None:
        patterns = rng.poisson(patterns).astype(np.float64)
    return result, Measurement(patterns, positions, geometry, np.ones((32, 32), dtype=bool))  # type: ignore[arg-type]


def test_transfer_function_of_the_truth() -> None:
    """1 without noise; with Poisson noise, sum E sqrt(I y) / sum I, which falls to the detector's dim edge."""
    exact = transfer_function(*phantom(1e6, None))
    np.testing.assert_allclose(exact.value, 1.0, atol=1e-9)
    assert exact.at_limit and exact.resolution == pytest.approx(2e-8)
    noisy = transfer_function(*phantom(300.0, np.random.default_rng(1)))
    assert noisy.value[2] > 0.9 and noisy.value[-1] < 0.5 and not noisy.at_limit
    wrong, scan = phantom(1e6, None)
    wrong.object = wrong.object[:, ::-1].copy()
    assert np.nanmin(transfer_function(wrong, scan).value) < 0.95
