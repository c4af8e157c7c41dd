"""Recipes: read, overridden, written back, and refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ptymesh.engines import ENGINES, MPIE, RPIE
from ptymesh.errors import BadInput
from ptymesh.io.options import DataOptions
from ptymesh.recipe.schema import Recipe, load_recipe

FULL = """
data: {path: scan.cxi, mask: masks/m.npy, dark: dark.h5:/a/b, energy_eV: 3e5, crop: 64, centre: [31.5, 32]}
seed: 3
precision: double
object: {slices: 2, slice_spacing_m: 1.0e-6, tilt_rad: [1.0e-3, 0], initial: earlier.h5}
probe: {modes: 3, start: {kind: array, path: probe.npz:p}}
positions: {subpixel: bilinear, rotation_deg: -126}
stages:
  - {engine: rpie, epochs: 20, batch: 32, alpha: 0.7}
  - {engine: mpie, epochs: 5, positions: {start: 2}, probe: {orthogonalise: false}, fidelity: poisson}
output: {dir: somewhere, checkpoint_every: 3, tiff: true}
"""


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    path = tmp_path / "folder" / "recipe.yaml"
    path.parent.mkdir()
    path.write_text(FULL)
    return path


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return path


def test_every_key_arrives(recipe_file: Path) -> None:
    recipe = load_recipe(recipe_file)
    assert recipe.seed == 3 and recipe.precision == "double"
    assert recipe.data.energy_eV == 3e5 and recipe.data.crop == (64, 64)
    assert recipe.positions.rotation_deg == -126 and recipe.object.tilt_rad == (1e-3, 0)
    first, second = recipe.stages
    assert isinstance(first, RPIE) and (first.epochs, first.batch, first.alpha) == (20, 32, 0.7)
    assert isinstance(second, MPIE) and second.positions is not None and second.positions.start == 2
    assert second.probe.orthogonalise is None
    assert recipe.output.dir == Path("somewhere") and recipe.output.checkpoint_every == 3 and recipe.output.tiff


def test_paths_are_relative_to_the_recipe(recipe_file: Path) -> None:
    recipe, folder = load_recipe(recipe_file), recipe_file.parent
    assert recipe.data.path == folder / "scan.cxi"
    assert recipe.data.mask == str(folder / "masks/m.npy")
    assert recipe.data.dark == f"{folder}/dark.h5:/a/b"
    assert recipe.object.initial == str(folder / "earlier.h5")
    assert recipe.probe.start.path == f"{folder}/probe.npz:p"


def test_paths_on_the_command_line_are_relative_to_the_working_folder(
    recipe_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe(
        recipe_file, ["data.path=other.cxi", "data.dark=2.5", "object.initial=ones"], Path("elsewhere")
    )
    assert recipe.data.path == tmp_path / "other.cxi"
    assert recipe.data.dark == 2.5 and recipe.object.initial == "ones"
    assert recipe.output.dir == Path("elsewhere")


def test_yaml_reproduces_the_recipe(recipe_file: Path) -> None:
    recipe = load_recipe(recipe_file)
    text = recipe.to_yaml()
    assert Recipe.from_yaml(text) == recipe
    assert Recipe.from_yaml(text).to_yaml() == text
    written = yaml.safe_load(text)
    # one scan has `data`, and not `scans`, which stands in its place
    assert list(written) == [name for name in Recipe.model_fields if name != "scans"]
    assert written["stages"][0]["engine"] == "rpie" and written["stages"][0]["beta"] == 0.5


def test_defaults(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, "data: {path: a.cxi}\nprobe:\nobject: {}\n"))
    stages = [(stage.name, stage.epochs, stage.batch) for stage in recipe.stages]
    assert stages == [("rpie", 5, 32), ("adam", 20, 32)]
    assert recipe.output.checkpoint_every == 10
    assert recipe == Recipe(data=DataOptions(path=tmp_path / "a.cxi"))


@pytest.mark.parametrize(
    ("override", "check"),
    [
        ("seed=9", lambda r: r.seed == 9),
        ("stages.0.epochs=5", lambda r: r.stages[0].epochs == 5),
        ("stages.1.positions.gain=0.25", lambda r: r.stages[1].positions.gain == 0.25),
        ("stages.0.positions=true", lambda r: r.stages[0].positions.start == 1),
        ("stages.2.engine=epie", lambda r: [s.name for s in r.stages] == ["rpie", "mpie", "epie"]),
        ("stages=[{engine: rpie, epochs: 5, batch: 64}]", lambda r: len(r.stages) == 1),
        ("data.views.stop=10", lambda r: r.data.views.stop == 10),
        ("probe.start=data", lambda r: r.probe.start.kind == "data"),
        ("precision=double", lambda r: r.precision == "double"),
        ("data.dark=1e-3", lambda r: r.data.dark == 1e-3),
        ("data.name_with=equals=sign", None),
    ],
)
def test_overrides(recipe_file: Path, override: str, check: Any) -> None:
    if check is None:
        with pytest.raises(BadInput, match=r"data\.name_with is unknown"):
            load_recipe(recipe_file, [override])
    else:
        assert check(load_recipe(recipe_file, [override]))


def test_overrides_reach_the_default_stage_and_switched_upkeep(tmp_path: Path) -> None:
    path = write(tmp_path, "data: {path: a.cxi}")
    recipe = load_recipe(path, ["stages.0.positions=true", "stages.0.positions.start=4", "probe.modes=2"])
    assert recipe.stages[0].positions is not None and recipe.stages[0].positions.start == 4
    assert recipe.stages[0].epochs == 5 and len(recipe.stages) == 2 and recipe.probe.modes == 2


def test_overrides_leave_the_default_as_it_is(tmp_path: Path) -> None:
    path = write(tmp_path, "data: {path: a.cxi}")
    before = load_recipe(path).stages
    changed = load_recipe(path, ["stages.1.scheduler.eta_min=0.01", "stages.1.unknowns.probe.lr=0.5"]).stages
    assert changed != before == load_recipe(path).stages


BASE: dict[str, Any] = {"data": {"path": "/scan.cxi"}}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"stagse": []}, "stagse is unknown; did you mean stages?"),
        ({"data": {"pth": "x"}}, "data.pth is unknown; did you mean data.path?"),
        ({"data": {}}, "data.path is missing; add it to the recipe, or give it with --set data.path=VALUE."),
        ({"seed": -1}, "seed is -1; it should be greater than or equal to 0."),
        ({"seed": "one"}, "seed is 'one'; it should be a whole number."),
        (
            {"precision": "doubel"},
            "precision is 'doubel'; it should be 'single', 'mixed' or 'double' (did you mean double?).",
        ),
        ({"modes": 3}, "modes is unknown; did you mean object.modes or probe.modes?"),
        ({"epochs": 3}, "epochs is unknown; did you mean stages.0.epochs?"),
        (
            {"data": {"path": "/a", "energy_eV": "8 kg"}},
            "data.energy_eV is '8 kg'; it should be an energy, such as 80 keV.",
        ),
        (
            {"data": {"path": "/a"}, "positions": {"raster": {"step_px": "75 px"}}},
            "positions.raster.step_px is '75 px'; it should be a number in pixels, without the unit.",
        ),
        ({"probe": 3}, "probe is 3; it should be a group of keys (modes, "),
        ({"probe": {"modes": 5000}}, "probe.modes is 5000; it should be less than or equal to 500."),
        ({"probe": {"modes": 0}}, "probe.modes is 0; it should be greater than or equal to 1."),
        ({"probe": {"start": "dta"}}, "probe.start is 'dta'; it should be one of auto, file, data, "),
        ({"probe": {"start": {"kind": "dta"}}}, "probe.start.kind is 'dta'; it should be one of auto, file, "),
        ({"probe": {"start": {"path": "x"}}}, "probe.start.kind is empty; it should be one of auto, file, "),
        ({"probe": {"start": {"kind": "pinhole"}}}, "probe.start.diameter_m is missing;"),
        (
            {"probe": {"start": {"kind": "pinhole", "diametre_m": 1}}},
            "probe.start.diametre_m is unknown; did you mean probe.start.diameter_m?",
        ),
        (
            {"probe": {"start": {"kind": "pinhole", "zzz": 1}}},
            "probe.start.zzz is unknown; the keys here are kind, diameter_m, distance_m.",
        ),
        ({"data": {"path": "/a", "centre": "fnd"}}, "data.centre is 'fnd'; it should be a list or 'find' (did you"),
        ({"data": {"path": "/a", "centre": [1, "a"]}}, "data.centre.1 is 'a'; it should be a number."),
        ({"data": {"path": "/a", "crop": [1]}}, "data.crop.1 is missing;"),
        ({"data": {"path": "/a", "energy_eV": 1, "wavelength_m": 1}}, "data: energy_eV and wavelength_m say the same"),
        ({"positions": {"affine": [[1, 1], [1, 1]]}}, "positions: the affine matrix"),
        ({"data": "scan.cxi"}, "data: the file belongs under path; write data: {path: scan.cxi}."),
        ({"stages": {}}, "stages is {}; it should be a list (each item on a line that begins with a dash"),
        ({"stages": []}, "stages is an empty list; give at least one"),
        ({"stages": ["rpie"]}, "stages.0 is 'rpie'; it should be a group of keys, such as {engine: rpie"),
        ({"stages": [{"epochs": 3}]}, "stages.0.engine is missing; it should be one of epie, "),
        ({"stages": [{"engin": "rpie"}]}, "stages.0.engin is unknown; did you mean stages.0.engine?"),
        ({"stages": [{"engine": "rpi"}]}, "stages.0.engine is 'rpi'; it should be one of epie, "),
        (
            {"stages": [{"engine": "RPIE"}]},
            f"stages.0.engine is 'RPIE'; it should be one of {', '.join(ENGINES.names())} (did you mean rpie?).",
        ),
        ({"stages": [{"engine": "rpie"}, {"engine": "rpie", "epochs": 0}]}, "stages.1.epochs is 0; it should be great"),
        ({"stages": [{"engine": "rpie", "epoch": 1}]}, "stages.0.epoch is unknown; did you mean stages.0.epochs?"),
        (
            {"stages": [{"engine": "rpie", "positions": {"strat": 1}}]},
            "stages.0.positions.strat is unknown; did you mean stages.0.positions.start?",
        ),
        (
            {"stages": [{"engine": "rpie", "positions": {"start": 5, "stop": 1}}]},
            "stages.0.positions: stop (1) comes before start (5).",
        ),
        ({"output": {"checkpoint_every": 0}}, "output.checkpoint_every is 0; it should be greater than 0."),
        ({"output": {"figures": "maybe"}}, "output.figures is 'maybe'; it should be true or false."),
        ({"output": {"writers": ["tif"]}}, "output.writers: 'tif' is not a writer; did you mean tiff"),
        ({"output": {"writers": ["tiff", "tiff"]}}, "output.writers: 'tiff' is named twice; name each writer once"),
        ([1], "The recipe is [1]; it should be a group of keys (data, seed, precision, "),
    ],
)
def test_one_sentence(raw: Any, expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        Recipe.parse({**BASE, **raw} if isinstance(raw, dict) else raw)
    message = str(caught.value)
    assert message.startswith(expected)
    assert "\n" not in message and message[-1] in ".?"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["seed"], "--set 'seed' is not KEY=VALUE"),
        (["=3"], "--set '=3' is not KEY=VALUE"),
        (
            ["stages.7.epochs=1"],
            "--set stages.7 is no item of stages: 0 to 1 are there, and stages.2 adds one.",
        ),
        (["stages.x.epochs=1"], "--set stages.x is no item"),
        (["seed.x=1"], "--set seed.x goes into seed, which is 3, not a group of keys."),
        (["seed=[1"], "The value of --set 'seed=[1' is not valid YAML"),
        (["stages.0.epohcs=1"], "stages.0.epohcs is unknown; did you mean stages.0.epochs?"),
    ],
)
def test_bad_overrides(recipe_file: Path, overrides: list[str], expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        load_recipe(recipe_file, overrides)
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data: {path: [", "is not valid YAML"),
        ("seed: 1\nseed: 2\n", "the key 'seed' is given twice (line 1)"),
        ("data:\n\tpath: a.cxi\n", "is not valid YAML: a tab, where only blanks may indent (line 2); mend that line."),
        ("data: {path: a.cxi\n", "but got the end of the text (line 2)"),
        ("- 1\n", " holds [1]; it should hold keys with their values, at least data: {path: FILE}."),
        ("", " is empty; it should hold keys"),
        ("x: !!python/object:os.system {}", "is not valid YAML"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        load_recipe(write(tmp_path, text))
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"missing\.yaml is not there"):
        load_recipe(tmp_path / "missing.yaml")
    (tmp_path / "image.yaml").write_bytes(b"\xff\xd8\xff\xe0")
    with pytest.raises(
        BadInput,
        match=r"image\.yaml is not a recipe; if it is a data set, write a recipe \(a YAML file\) with data: {path: ",
    ):
        load_recipe(tmp_path / "image.yaml")


def test_folders_to_follow_are_relative_to_the_recipe(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("data: {path: scan.cxi, follow: [more, /absolute]}\n")
    assert load_recipe(path).data.follow == (tmp_path / "more", Path("/absolute"))
    path.write_text("data: {path: scan.cxi, follow: more}\n")
    assert load_recipe(path).data.follow == (tmp_path / "more",)


def test_default_stages_follow_slices_and_lens() -> None:
    """A prior along the beam with several slices; a lens that is told is refined, and so is the rotation."""
    data = {"path": "scan.cxi"}
    slices = {"slices": 4, "slice_spacing_m": 2e-9}
    lens = {"kind": "electron", "semiangle_rad": 0.02, "aberrations_m": {"C10": -1e-8}}
    assert not any(one.constraints or one.models for one in Recipe.parse({"data": data}).stages)
    thick = Recipe.parse({"data": data, "object": slices})
    assert [(one.name, list(one.constraints)) for one in thick.stages] == [
        ("rpie", ["depth_smoothness"]),
        ("adam", ["depth_smoothness"]),
    ]
    assert Recipe.from_yaml(thick.to_yaml()) == thick
    (stage,) = Recipe.parse({"data": data, "object": slices, "probe": {"start": lens}}).stages
    assert (stage.name, stage.epochs, list(stage.constraints)) == ("adam", 25, ["depth_smoothness"])
    assert list(stage.models) == ["scan_geometry", "aberrations"]
    assert not stage.models["scan_geometry"].moves_between_epochs
    potential = {"kind": "potential"}
    for obj, by_patterns in (({**slices, **potential}, True), (potential, False)):
        (stage,) = Recipe.parse({"data": data, "object": obj, "probe": {"start": lens}}).stages
        assert stage.models["scan_geometry"].moves_between_epochs is by_patterns
    aperture = Recipe.parse({"data": data, "probe": {"start": {**lens, "aberrations_m": {}}}})
    assert [one.name for one in aperture.stages] == ["rpie", "adam"] and not aperture.stages[0].models
    raw = f"data: {{path: scan.cxi}}\nobject: {json.dumps(slices)}\n"
    changed = Recipe.from_yaml(raw, ["stages.1.epochs=7"])
    assert changed.stages[1].epochs == 7 and list(changed.stages[1].constraints) == ["depth_smoothness"]


def test_the_quick_stages_have_a_word() -> None:
    """`stages: default` is what a list of them says, and single keys of it can be set."""
    plain, word = (Recipe.parse({"data": {"path": "scan.cxi"}, **more}) for more in ({}, {"stages": "default"}))
    assert word == plain and word.auto is None and [stage.name for stage in word.stages] == ["rpie", "adam"]
    changed = Recipe.from_yaml("data: {path: scan.cxi}\nstages: default\n", ["stages.1.epochs=7"])
    assert [stage.epochs for stage in changed.stages] == [5, 7]
    with pytest.raises(BadInput, match=r"give a list, such as .*, default or auto"):
        Recipe.parse({"data": {"path": "scan.cxi"}, "stages": "quick"})
