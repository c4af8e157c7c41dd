"""Orientations: what is equal, what is the twin, and that the search finds what was hidden."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import yaml

from ptymesh.cli import main as cli
from ptymesh.errors import BadInput
from ptymesh.io import load_measurement
from ptymesh.recipe.schema import Recipe, put, raw_recipe
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked
from ptymesh.tune.options import tuning
from ptymesh.tune.orient import Crop, _cheap, bright_side, defocus_key, likeness, orient
from ptymesh.tune.orientation import Orientation, apart_but_for_twin_deg, apart_deg, discrete, wrapped
from ptymesh.tune.session import run_study

NONE: dict[str, Any] = {}


def test_the_eight_are_all_there_are() -> None:
    matrices = [one.relative(NONE) for one in discrete()]
    assert len({tuple(matrix.round().ravel().tolist()) for matrix in matrices}) == 8
    assert sum(np.linalg.det(matrix) > 0 for matrix in matrices) == 4


@pytest.mark.parametrize("one", list(discrete()), ids=str)
def test_twins(one: Orientation) -> None:
    for by_rotation in (False, True):
        twin = one.twin(by_rotation=by_rotation)
        assert np.allclose(twin.relative(NONE), -one.relative(NONE))
        assert twin.twin(by_rotation=by_rotation) == one or by_rotation
    assert Orientation.of(one.settings()) == one


def test_angles() -> None:
    first, second = Orientation(rotation_deg=-170.0), Orientation(rotation_deg=175.0)
    assert apart_deg(first.relative(NONE), second.relative(NONE)) == pytest.approx(15)
    assert apart_but_for_twin_deg(first.relative(NONE), Orientation(rotation_deg=5).relative(NONE)) == pytest.approx(5)
    assert apart_deg(first.relative(NONE), Orientation(transpose=True).relative(NONE)) == np.inf
    assert [wrapped(angle) for angle in (190, -190, 180, 359)] == [-170, 170, -180, -1]


def test_the_recipes_own_positions_count() -> None:
    """The scan exchanged and its rows reversed is undone by the detector's columns reversed and exchanged."""
    positions = {"transpose": True, "flip_y": True}
    assert np.allclose(Orientation(flip_x=True, transpose=True).relative(positions), np.eye(2))
    stretched = {"affine": [[2.0, 0.0], [0.0, 2.0]]}
    assert np.allclose(Orientation(rotation_deg=30).relative(stretched), Orientation(rotation_deg=30).relative(NONE))


def recipe_for(scan: Path, **positions: Any) -> dict[str, Any]:
    return {"data": {"path": str(scan)}, "positions": positions}


HIDDEN = [
    ({"transpose": True, "flip_y": True}, Orientation(flip_x=True, transpose=True)),
    pytest.param({"flip_x": True}, Orientation(flip_x=True), marks=pytest.mark.long),
    pytest.param({"transpose": True}, Orientation(transpose=True), marks=pytest.mark.long),
]
QUICK = Crop(views=40, epochs=6, batch=8)


@pytest.mark.long
@pytest.mark.parametrize(("hidden", "expected"), HIDDEN, ids=["turned", "mirrored", "exchanged"])
def test_a_hidden_orientation_is_found(scan: Path, hidden: dict[str, Any], expected: Orientation) -> None:
    """The file's probe has a defocus, which tells the twins apart."""
    found = orient(recipe_for(scan, **hidden), crop=QUICK, device="cpu")
    assert found.best == expected and found.settled.startswith("the recipe's probe")
    assert np.allclose(found.best.relative(hidden), np.eye(2)) and found.margin > 0.1 and found.confidence != "unsure"
    assert found.residual < found.twin_residual, "the probe tells"
    assert found.lines() == {
        "data": {"flip_y": expected.flip_y, "flip_x": expected.flip_x, "transpose": expected.transpose},
        "positions": {"rotation_deg": 0.0},
    }
    undecided = orient(recipe_for(scan, **hidden), crop=QUICK, c10="unknown", device="cpu")
    assert undecided.settled == "" and undecided.best == found.best and undecided.twin == found.twin


def test_views_that_are_too_few_tell_no_orientation(scan: Path) -> None:
    recipe = recipe_for(scan)
    recipe["data"]["views"] = {"stop": 2}
    found = orient(recipe, crop=Crop(views=2, epochs=1, batch=2), device="cpu")
    assert found.confidence == "none" and np.isnan(found.errors)
    recipe["data"]["views"] = {"stop": 1}
    with pytest.raises(BadInput, match="has one view, and an orientation is found by views that are held out"):
        orient(recipe, device="cpu")


def test_even_patterns_tell_no_orientation(scan: Path, tmp_path: Path) -> None:
    path = tmp_path / "even.cxi"
    path.write_bytes(scan.read_bytes())
    with h5py.File(path, "r+") as file:
        data = file["entry_1/instrument_1/detector_1/data"]
        data[...] = np.full(data.shape, 5)
    with pytest.raises(BadInput, match="the same count on every pixel"):
        orient(recipe_for(path), device="cpu")
    with pytest.raises(BadInput, match="the same count on every pixel"):
        raw = {"recipe": recipe_for(path), "space": {"seed": [0, 1]}, "trials": 2}
        run_study(tuning({**raw, "output": {"dir": str(tmp_path / "study")}}, tmp_path))


@pytest.mark.long
def test_a_rotation_is_found(scan: Path) -> None:
    recipe = recipe_for(scan, affine=[[np.cos(0.7), np.sin(0.7)], [-np.sin(0.7), np.cos(0.7)]])  # by -40 degrees
    found = orient(recipe, crop=QUICK, rotation_step_deg=45.0, device="cpu")
    assert not found.best.transpose and found.trials == 2 * 8 + 4
    assert abs(found.best.rotation_deg - 40.1) <= 15, "a third of a step"


def test_the_views_that_are_used_are_the_same_in_every_orientation(scan: Path) -> None:
    loaded = []
    for turned in ({}, {"rotation_deg": 33.0, "transpose": True}):
        raw = recipe_for(scan, **turned)
        raw["data"]["views"] = {"central": 15}
        parsed = Recipe.parse(raw)
        loaded.append(load_measurement(parsed.data, parsed.positions))
    assert loaded[0].views == 15
    everything = np.arange(15)
    assert np.array_equal(loaded[0].patterns.read(everything), loaded[1].patterns.read(everything))
    parsed = Recipe.parse(recipe_for(scan))
    whole = load_measurement(parsed.data, parsed.positions).positions
    middle = whole.mean(axis=0)
    reach = np.hypot(*(loaded[0].positions - middle).T).max()
    assert np.sum(np.hypot(*(whole - middle).T) <= reach + 1e-6) == 15, "the nearest ones"


def test_the_defocus_of_every_start(scan: Path, tmp_path: Path) -> None:
    def found(**start: Any) -> tuple[str, float | None]:
        parsed = Recipe.parse({"data": {"path": str(scan)}, "probe": {"start": start}})
        return defocus_key(parsed, load_measurement(parsed.data, parsed.positions))

    assert found(kind="electron", semiangle_rad=1e-3, aberrations_m={"C10": -3e-6}, defocus_m=1e-6) == (
        "probe.start.aberrations_m.C10",
        -4e-6,
    )
    assert found(kind="data", defocus_m=2e-6) == ("probe.start.defocus_m", -2e-6)
    assert found(kind="kb", aperture_m=1e-4, focal_length_m=0.1, defocus_m=[1e-6, 3e-6])[1] == -2e-6
    assert found(kind="file") == found(kind="auto") == ("", None)


@pytest.mark.long
def test_what_is_known_of_c10(scan: Path) -> None:
    """A probe from the data alone is its own twin; values of C10 are tried, and the found one is said."""
    recipe = {**recipe_for(scan), "probe": {"start": "data"}}
    quick = Crop(views=24, epochs=1, batch=12)
    plain = orient(recipe, crop=quick, device="cpu")
    assert plain.settled == "" and not plain.set_c10
    tried = orient(recipe, crop=quick, c10=[-4e-5, -2e-5], device="cpu")
    assert tried.trials == 16 and tried.settled == "C10, known to be negative" and tried.c10_m in (-4e-5, -2e-5)
    assert tried.lines()["probe"]["start"]["defocus_m"] == -tried.c10_m > 0
    assert tried.lines(tried.twin)["probe"]["start"]["defocus_m"] == tried.c10_m
    assert orient(recipe, crop=quick, c10=[-2e-5, 2e-5], device="cpu").settled == ""
    with pytest.raises(BadInput, match="the recipe's probe has none; give values"):
        orient(recipe, crop=quick, c10="negative", device="cpu")
    with pytest.raises(BadInput, match="is given as an array"):
        orient(recipe_for(scan), crop=quick, c10=[1e-6], device="cpu")
    with pytest.raises(BadInput, match="The rotation step is 50 degrees"):
        orient(recipe, crop=quick, rotation_step_deg=50.0, device="cpu")


def test_the_bright_part_of_the_detector(scan: Path) -> None:
    parsed = Recipe.parse({"data": {"path": str(scan), "pad": 96}})
    loaded = load_measurement(parsed.data, parsed.positions)
    assert bright_side(loaded) <= 40, "padding is dark"


def test_likeness() -> None:
    rng = np.random.default_rng(0)
    wave = rng.standard_normal((16, 16)) + 1j * rng.standard_normal((16, 16))
    assert likeness(wave, 2j * np.roll(wave, (3, 5), (0, 1))) == pytest.approx(1)
    assert likeness(wave, wave.conj()) < 0.6


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ptymesh", *arguments])
        with pytest.raises(SystemExit) as left:
            cli.main()
        out, err = capfd.readouterr()
        return int(left.value.code or 0), out, err

    return call


def test_orient_on_the_command_line(scan: Path, tmp_path: Path, command: Any) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(recipe_for(scan, flip_x=True)))
    few = ["--views", "30", "--epochs", "4", "--device", "cpu"]
    status, out, err = command("orient", str(recipe), *few)
    assert (status, err) == (0, "") and "Best: detector columns reversed, scan rotated by 0 degrees" in out
    lines = yaml.safe_load(out.partition("\n\n")[2])
    assert lines["data"] == {"flip_y": False, "flip_x": True, "transpose": False}
    assert Recipe.parse({**raw_recipe(recipe), "data": {"path": str(scan), **lines["data"]}})

    status, out, err = command("orient", str(recipe), *few, "--json", "--c10", "unknown", "--set", "seed=1")
    found = json.loads(out)
    assert (status, err) == (0, "") and found["settled_by"] == "" and found["best"]["data.flip_x"]
    for arguments, said in (
        (["--c10", "both"], "--c10 is 'both'; give recipe, negative"),
        (["--phase", "white"], "--phase is 'white'; give bright or dark."),
        (["--views", "3"], "--views is 3"),
    ):
        status, out, err = command("orient", str(recipe), *arguments)
        assert (status, out) == (2, "") and said in err


def simulated(path: Path, **options: Any) -> dict[str, Any]:
    write(checked(seed=2, **options), path)
    return recipe_for(path)


@pytest.mark.long
def test_the_sign_of_the_phase(tmp_path: Path) -> None:
    """Atoms advance the phase of electrons: bright is what was simulated, dark its twin."""
    recipe = simulated(tmp_path / "atoms.cxi", kind="electron", views=60, window=48)
    few = Crop(views=60, epochs=6, batch=8)
    settings: dict[str, Any] = {"crop": few, "c10": "unknown", "rotation_step_deg": 0.0, "device": "cpu"}
    found = {sign: orient(recipe, phase=sign, **settings) for sign in ("bright", "dark")}
    assert {one.settled for one in found.values()} == {"the sign of the phase"}
    assert found["bright"].best == Orientation() == found["dark"].twin
    assert found["dark"].best == found["bright"].twin == Orientation(flip_y=True, flip_x=True)


def test_the_near_field_has_no_twin(tmp_path: Path) -> None:
    recipe = simulated(tmp_path / "near.cxi", kind="near", views=24, window=48)
    found = orient(recipe, crop=Crop(views=24, epochs=2, batch=6), c10="unknown", device="cpu")
    assert found.settled == "the near field, which has no twin" and found.window == (48, 48), "not cropped"
    assert found.best == Orientation()


def test_haiders_defocus_is_set_as_krivaneks(scan: Path) -> None:
    """C10 that is tried replaces C1 of the recipe, instead of standing beside it."""
    lens = {"kind": "electron", "semiangle_rad": 5e-3, "aberrations_m": {"C1": 1e-6}}
    recipe = {**recipe_for(scan), "probe": {"start": lens}}
    raw, parsed, _ = _cheap(recipe, QUICK)
    put(raw, "probe.start.aberrations_m.C10", -1e-6, "orient")
    assert Recipe.parse(raw).probe.start.parameters()["aberrations"]["C10"] == -1e-6
    assert parsed.probe.start.parameters()["aberrations"]["C10"] == 1e-6
