"""Numbers that make up the probe or the positions: derivatives, options, refusals, and what they find.

Scans are simulated with known aberrations and geometry, and reconstructed with wrong ones.
"""

import math
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import ptymesh as pm
from ptymesh import models
from ptymesh.engines import ENGINES, LSQML
from ptymesh.engines.positions import affine_part
from ptymesh.engines.strain import MOST_VIEWS, views_of_epoch
from ptymesh.errors import BadInput
from ptymesh.estimate import Estimate
from ptymesh.measurement import Measurement
from ptymesh.models import MODELS
from ptymesh.models.scan_geometry import matrix_of
from ptymesh.physics.beam import probes
from ptymesh.recipe.schema import Recipe
from ptymesh.registry import register_classes
from ptymesh.simulate import patterns, simulate
from toy import make

WRONG = 0.8


def of_two_scans(e: Estimate) -> Estimate:
    """The second half of the views is of another scan."""
    return replace(e, scan_index=torch.arange(len(e.positions)) // (len(e.positions) // 2))


@pytest.mark.parametrize("name", list(MODELS))
def test_directions_are_derivatives(name: str) -> None:
    """Of `moved`, but for what no pattern tells: a phase of the whole probe."""
    toy = make(modes=2)
    one, e, geometry = MODELS[name](), of_two_scans(toy.start()), toy.problem().geometry
    x, J = getattr(e, one.of), one.directions(geometry, e)
    assert len(J) == len(one.units())
    zero = torch.zeros(len(J), dtype=torch.float64)
    for k, wanted in enumerate(J):
        step = zero.clone()
        step[k] = 1e-6 * float(x.abs().max() / wanted.abs().max())
        there, back = (one.moved(geometry, e, x, zero, sign * step) for sign in (1, -1))
        found = (there - back) / (2 * step[k])
        if one.of == "probe":
            turned = 1j * x
            found, wanted = (
                d - (turned.conj() * d).sum() / turned.abs().square().sum() * turned for d in (found, wanted)
            )
        elif one.of == "positions":
            found, wanted = (d - d.mean(0) for d in (found, wanted))
        assert float((found - wanted).abs().max()) < 1e-6 * float(wanted.abs().max())


@pytest.mark.parametrize("name", list(MODELS))
def test_moves_add_up(name: str) -> None:
    toy = make(modes=2)
    one, e, geometry = MODELS[name](), of_two_scans(toy.start()), toy.problem().geometry
    x = getattr(e, one.of)
    scale = 1e-2 * x.abs().max() / one.directions(geometry, e).abs().flatten(1).amax(1)
    zero, half, full = (f * scale for f in (0, 0.5, 1))
    twice = one.moved(geometry, e, one.moved(geometry, e, x, zero, half), half, full)
    once = one.moved(geometry, e, x, zero, full)
    assert float((once - x).abs().max()) > 1e-3 * float(x.abs().max())
    assert torch.allclose(twice, once, rtol=0, atol=1e-12 * float(x.abs().max()))
    assert torch.allclose(one.moved(geometry, e, once, full, zero), x, rtol=0, atol=1e-12 * float(x.abs().max()))


def test_recipes_say_what_moves() -> None:
    stage = {"engine": "rpie", "models": {"aberrations": {"terms": ["C10"]}, "scan_geometry": True}}
    recipe = Recipe.parse({"data": {"path": "scan.cxi"}, "stages": [stage]})
    again = Recipe.from_yaml(recipe.to_yaml())
    for one in (recipe, again):
        found = one.stages[0].models
        assert found["aberrations"] == MODELS["aberrations"](terms=["C10"])  # type: ignore[call-arg]
        assert found["scan_geometry"].lr == 0.1
    assert not LSQML(models={"aberrations": False}).models


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"abberations": True}, "'abberations' is not a model; did you mean aberrations"),
        ({"aberrations": {"terms": ["C11"]}}, "There is no aberration C11; m is at most n \\+ 1"),
        ({"aberrations": {"terms": ["C10", "C10"]}}, "names an aberration twice: C10, C10"),
        ({"aberrations": {"lr": 0}}, "models.aberrations.lr is 0"),
        ({"scan_geometry": {"terms": ["turn"]}}, "models.scan_geometry.terms"),
        ({"scan_geometry": 3}, "models.scan_geometry"),
    ],
)
def test_what_cannot_be_is_refused(options: dict, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        LSQML(models=options)


def test_what_an_engine_cannot_move_is_refused() -> None:
    toy = make()
    for engine, name, said in (
        ("dm", "aberrations", "models.aberrations needs an engine whose batches ask for steps of the probe"),
        ("bh", "scan_geometry", "which bh is not: use one of these, or remove models.scan_geometry"),
    ):
        with pytest.raises(BadInput, match=said):
            ENGINES[engine](models={name: True}).check(toy.problem())
    with pytest.raises(BadInput, match=r"models\.scan_geometry moves positions, which subpixel 'none' does not"):
        LSQML(models={"scan_geometry": True}).check(make(subpixel="none").problem())
    pixels = replace(toy.problem().geometry, wavelength_m=None, object_pixel_m=None)
    with pytest.raises(BadInput, match=r"models\.aberrations needs the wavelength and the object pixel"):
        MODELS["aberrations"]().check(pixels)


def lens(seed: int) -> tuple[Measurement, dict[str, float], dict]:
    """A noisy scan by an aberrated electron probe, its aberrations, and a start that has 20 % less of each."""
    made = simulate(
        kind="electron", slices=1, views=200, window=64, seed=seed, overlap=0.75, photons_per_view=1e6
    ).truth
    pixel, wavelength = made.geometry.object_pixel_m, made.geometry.wavelength_m
    assert pixel is not None and wavelength is not None
    angle = 0.35 * wavelength / (2 * pixel[0])
    defocus = 0.35 * 64 * pixel[0] / (2 * angle)
    true = {"C10": -defocus, "C12": [0.15 * defocus, 0.4], "C21": [0.3 * defocus / angle, -0.7]}
    true |= {"C30": 0.5 * defocus / angle**2}
    told = {name: [WRONG * v[0], v[1]] if isinstance(v, list) else WRONG * v for name, v in true.items()}
    probe = probes.aberrated(made.geometry.shape, pixel, wavelength, angle, true)[None]
    made = replace(made, probe=probes.rescaled(probe, float((np.abs(made.probe) ** 2).sum())).numpy())
    start = {"kind": "electron", "semiangle_rad": angle, "aberrations_m": told}
    return made.measurement(np.concatenate(list(patterns(made)))), probes.aberration_parts(true), start


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_aberrations_that_were_told_wrong_are_found(seed: int) -> None:
    scan, true, start = lens(seed)
    recon = pm.Reconstruction(scan, device="cpu", probe={"start": start})
    told = dict(recon.state.estimate.parameters["aberrations"])
    for _ in recon.run(
        {"engine": "lsqml", "epochs": 40, "batch": 50, "fidelity": "poisson", "models": {"aberrations": True}}
    ):
        pass
    found = recon.state.estimate.parameters["aberrations"]
    for name, value in true.items():
        assert abs(told[name] / value - WRONG) < 1e-12
        assert abs(found[name] / value - 1) < 0.02, name


@pytest.mark.long
def test_aberrations_are_those_of_the_probe_where_its_pixels_move_too() -> None:
    """Adam's pixels take most of what was told wrong: by their own steps the numbers would be up to 27 % off."""
    scan, true, start = lens(0)
    recon = pm.Reconstruction(scan, device="cpu", probe={"start": start})
    for _ in recon.run({"engine": "adam", "epochs": 20, "batch": 32, "models": {"aberrations": {"residue": True}}}):
        pass
    found = recon.state.estimate.parameters["aberrations"]
    assert {name: round(found[name] / value, 3) for name, value in true.items()} == {
        name: pytest.approx(1, abs=0.025) for name in true
    }


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_a_scan_that_was_told_turned_and_stretched_is_found(seed: int) -> None:
    """By 1 degree and 1 %, with 0.5 px of jitter and Poisson noise, to 0.1 degree and 0.1 %."""
    scan = simulate(
        kind="xray", views=200, window=64, probe_guess="true", position_error_px=0.5, seed=seed, overlap=0.7
    ).measurement
    middle, angle = scan.positions.mean(axis=0), math.radians(1)
    turn = 1.01 * np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    recon = pm.Reconstruction(replace(scan, positions=(scan.positions - middle) @ turn.T + middle), device="cpu")
    stage = {"engine": "lsqml", "epochs": 50, "batch": 50, "positions": True, "models": {"scan_geometry": True}}
    for _ in recon.run(stage):
        pass
    found = recon.state.estimate.parameters["scan_geometry"]
    assert abs(math.degrees(found["rotation"]) + 1) < 0.1
    assert abs(1.01 * (1 + found["scale"]) - 1) < 1e-3


@pytest.mark.sample(1)
@pytest.mark.parametrize(("wrong_deg", "stretch"), [(0.0, 0.0), (1.0, 0.0), (0.0, 0.01), (0.0, -0.01)])
def test_patterns_tell_rotation_and_scale(wrong_deg: float, stretch: float) -> None:
    """Of a scan that is told right, and of those told wrong by 1 degree or 1 %, to 0.1 degree, 0.1 % and 0.1 px."""
    scan = simulate(kind="xray", views=120, window=48, probe_guess="true", seed=3, overlap=0.7).measurement
    middle, wrong = scan.positions.mean(axis=0), {"rotation": math.radians(wrong_deg), "scale": stretch}
    recon = pm.Reconstruction(
        replace(scan, positions=(scan.positions - middle) @ matrix_of(wrong).T + middle), device="cpu"
    )
    geometry = {"terms": ["rotation", "scale"], "follow": "patterns", "lr": 1.0, "start": 5}
    for _ in recon.run({"engine": "adam", "epochs": 20, "batch": 32, "models": {"scan_geometry": geometry}}):
        pass
    found = recon.state.estimate.parameters["scan_geometry"]
    assert abs(math.degrees(found["rotation"]) + wrong_deg) < 0.1
    assert abs((1 + stretch) * (1 + found["scale"]) - 1) < 1e-3
    moved = recon.result().positions_px - scan.positions
    moved -= moved.mean(axis=0)
    assert np.sqrt((moved**2).sum(axis=1).mean()) < 0.1


def test_the_strain_is_of_other_views_after_each_epoch() -> None:
    """Few and evenly spread after each, nearly all after 25; all of them where they are few."""
    views = np.arange(400) + 7
    each = [views_of_epoch(views, epoch) for epoch in range(1, 26)]
    for some in each:
        assert len(some) == MOST_VIEWS
        assert set(np.diff(some)) == {12, 13}
    assert len(np.unique(np.concatenate(each))) > 0.9 * len(views)
    assert np.array_equal(views_of_epoch(views[:MOST_VIEWS], 3), views[:MOST_VIEWS])


def test_the_geometry_takes_over_what_single_positions_have_of_it() -> None:
    """Beside single moves by correlation, which would strain it by 0.37 px, the numbers are those of all."""
    scan = simulate(
        kind="xray", views=30, window=32, probe_guess="true", seed=1, photons_per_view=1e5, position_error_px=1.0
    ).measurement
    recon = pm.Reconstruction(scan, device="cpu")
    geometry = {"follow": "patterns", "lr": 1.0}
    stage = {"engine": "rpie", "epochs": 4, "batch": 15, "positions": {"method": "correlation"}}
    for _ in recon.run({**stage, "models": {"scan_geometry": geometry}}):
        pass
    estimate = recon.state.estimate
    moves = estimate.positions - estimate.nominal
    alike = affine_part(estimate.nominal, moves)
    assert moves.abs().max() > 0.1 and (alike - alike.mean(0)).abs().max() < 2e-2


def test_the_former_name_of_a_geometry_by_patterns() -> None:
    assert MODELS["scan_geometry"].parse({"terms": ["rotation"], "rotation_from": "patterns"}).moves_between_epochs
    with pytest.raises(BadInput, match="rotation_from"):
        MODELS["scan_geometry"].parse({"rotation_from": "patterns", "follow": "positions"})


def test_patterns_of_a_near_field_tell_the_rotation_alone() -> None:
    """A beam of another curvature makes up for the other terms; where nothing is wrong, nothing is turned."""
    with pytest.raises(BadInput, match=r"tells the rotation alone.*use terms: \[rotation\], or follow: positions"):
        LSQML(models={"scan_geometry": {"follow": "patterns"}}).check(make(propagation="angular_spectrum").problem())
    made = simulate(kind="near", views=64, window=64, photons_per_view=1e6, seed=3).measurement
    middle = made.positions.mean(axis=0)
    stage = pm.RPIE(
        epochs=15,
        batch=16,
        models={"scan_geometry": {"start": 4, "terms": ["rotation"], "follow": "patterns", "lr": 1.0}},
    )
    for turn in (0.0, math.radians(1)):
        told = replace(made, positions=(made.positions - middle) @ matrix_of({"rotation": turn}) + middle)
        found = pm.reconstruct(told, stage, seed=1).parameters["scan_geometry"]["rotation"]
        assert found == pytest.approx(turn, abs=math.radians(0.1))


@pytest.mark.parametrize("engine", ["lsqml", "adam"])
def test_the_geometry_of_a_small_scan_that_is_right_stays(engine: str) -> None:
    """All four terms on 30 views, which tell them badly: positions stay within a twentieth of a pixel."""
    scan = simulate(kind="xray", views=30, window=32, probe_guess="true", seed=1, photons_per_view=1e5).measurement
    recon = pm.Reconstruction(scan, device="cpu")
    for _ in recon.run({"engine": engine, "epochs": 30, "batch": 15, "models": {"scan_geometry": True}}):
        pass
    assert set(recon.state.estimate.parameters["scan_geometry"]) == {"rotation", "scale", "aspect", "shear"}
    moved = recon.result().positions_px - scan.positions
    moved -= moved.mean(axis=0)
    assert 0 < np.sqrt((moved**2).sum(axis=1).mean()) < 0.05


def test_an_engine_that_is_used_again_may_move_others() -> None:
    scan, _, start = lens(0)
    recon = pm.Reconstruction(scan, device="cpu", probe={"start": start})
    seen = [dict(recon.state.estimate.parameters["aberrations"])]
    for terms in (["C10"], ["C12"], ["C12", "C30"]):
        stage = {"engine": "rpie", "epochs": 1, "batch": 50, "models": {"aberrations": {"terms": terms}}}
        list(recon.run(stage))
        seen.append(dict(recon.state.estimate.parameters["aberrations"]))
    moved = [{name for name in before if before[name] != after[name]} for before, after in pairwise(seen)]
    assert moved == [{"C10"}, {"C12a", "C12b"}, {"C12a", "C12b", "C30"}]
    steps = [abs(seen[3][name] - seen[2][name]) for name in ("C12a", "C12b", "C30")]
    assert steps[2] > 10 * max(steps[:2]) and steps[0] != steps[1], "each in its own combinations"


def test_numbers_stay_in_the_result(tmp_path: Path) -> None:
    scan, _, start = lens(0)
    recon = pm.Reconstruction(scan, device="cpu", probe={"start": start})
    for _ in recon.run({"engine": "rpie", "epochs": 1, "batch": 50, "models": {"aberrations": {"terms": ["C10"]}}}):
        pass
    recon.save(tmp_path / "result.h5")
    found = pm.Result.load(tmp_path / "result.h5").parameters
    assert found == recon.state.estimate.parameters
    assert set(found["aberrations"]) == {"C10", "C12a", "C12b", "C21a", "C21b", "C30"}


@pytest.fixture
def brightness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """That of CONTRIBUTING.md, in a file of its own in the package."""
    guide = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (program,) = [
        block for block in re.findall(r"^```python\n(.*?)^```", guide, re.S | re.M) if "class Brightness" in block
    ]
    (tmp_path / "brightness.py").write_text(program)
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    register_classes(models.MODELS, models.Parametrisation, models.__name__, models.__path__)
    yield
    del models.MODELS._own["brightness"], sys.modules["ptymesh.models.brightness"]


def test_a_file_in_the_package_is_all_that_a_new_one_takes(brightness: None, tmp_path: Path) -> None:
    scan = simulate(views=60, window=64, probe_guess="true").measurement
    recon = pm.Reconstruction(scan, device="cpu")
    recon.state.estimate.probe *= 0.9
    for _ in recon.run({"engine": "epie", "epochs": 10, "batch": 20, "models": {"brightness": {"lr": 0.05}}}):
        pass
    assert recon.state.estimate.parameters["brightness"]["b"] > 0.02
    recon.save(tmp_path / "result.h5")
    assert pm.Result.load(tmp_path / "result.h5").parameters == recon.state.estimate.parameters
