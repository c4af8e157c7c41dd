"""`ptymesh view` and `ptymesh compare`: what they write and say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner
from typer.testing import Result as Ran

from ptymesh.cli import compare, diagnose, view
from ptymesh.cli.running import FIGURES
from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry, photon_wavelength_m
from ptymesh.io import load_measurement
from ptymesh.io.results import Result
from ptymesh.measurement import ArraySource
from ptymesh.physics.beam.probes import kb_mirror
from ptymesh.physics.model import Model
from ptymesh.recipe.schema import Recipe
from ptymesh.run_folder import figures
from ptymesh.run_folder.figures import title_of, write_figures
from ptymesh.run_folder.patterns import compared_patterns, mean_pattern_pair, model_of, modelled
from ptymesh.simulate import simulate
from toy import smooth

app = typer.Typer()
app.command("view")(view.command)
app.command("compare")(compare.command)
app.command("diagnose")(diagnose.command)

WORST = 17

pytestmark = pytest.mark.usefixtures("coarse_figures")


def run(*arguments: object) -> Ran:
    ran = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    assert ran.exit_code == 0, ran.output
    return ran


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A simulated scan in a file, view 17 spoilt, and the true result of it beside."""
    folder = tmp_path_factory.mktemp("scan")
    rng = np.random.default_rng(0)
    y, x = np.indices((24, 24)) - 12
    first = 40 * np.exp(-(x**2 + y**2) / 30 + 0.05j * (x**2 + y**2))
    probe = np.stack([first, 0.05 * x * first]).astype(np.complex64)
    obj = np.exp(0.5j * smooth((1, 64, 64), 2.0, rng)).astype(np.complex64)
    steps = np.arange(4, 37, 6.0)
    positions = np.stack(np.meshgrid(steps, steps, indexing="ij"), axis=-1).reshape(-1, 2)
    positions += rng.uniform(-1, 1, positions.shape)
    anchors = np.floor(positions + 0.5)
    patterns = Model.for_geometry(Geometry((24, 24))).intensity(
        torch.as_tensor(obj),
        torch.as_tensor(probe),
        torch.as_tensor(anchors).long(),
        torch.as_tensor(positions - anchors).float(),
    )
    data = rng.poisson(patterns.numpy()).astype(np.float32)
    data[WORST] = data[WORST, ::-1]
    np.savez(folder / "scan.npz", data=data[None], scan=positions[None], probe=probe[None, None, None])
    recipe = Recipe.parse({"data": {"path": str(folder / "scan.npz")}, "stages": [{"engine": "rpie", "epochs": 2}]})
    result = Result(
        obj,
        probe,
        positions,
        history={"epoch": np.array([1, 2]), "stage": np.zeros(2, int), "loss": np.ones(2), "residual": np.ones(2)},
        recipe=recipe.to_yaml(),
        attrs={"engine": "rpie", "final_residual": 0.01, "data_path": str(folder / "scan.npz")},
    )
    result.save(folder / "result.h5")
    return folder, result


def test_view_writes_every_figure(scan: tuple[Path, Result], tmp_path: Path) -> None:
    ran = run("view", scan[0] / "result.h5", "--out", tmp_path / "figures", "--tiff")
    images = {"object_amplitude", "object_phase", "probe_amplitude", "probe_phase"}
    figures = {"overview", "object", "spectrum", "probe", "pupil", "coverage", "positions", "history", "patterns"}
    figures |= {"mean_pattern"}
    expected = {f"{name}.png" for name in figures} | {f"{name}.tiff" for name in images}
    assert {path.name for path in (tmp_path / "figures").iterdir()} == expected
    assert {Path(line).name for line in ran.stdout.splitlines()} == expected
    assert ran.stderr == ""


def test_view_has_a_writer_write(scan: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "write_figures", lambda *_, **__: [])
    ran = run("view", scan[0] / "result.h5", "--out", tmp_path / "files", "--write", "tiff")
    assert str(tmp_path / "files" / "object_phase.tiff") in ran.stdout.splitlines()
    refused = CliRunner().invoke(app, ["view", str(scan[0] / "result.h5"), "--write", "tif"])
    assert str(refused.exception) == "--write: 'tif' is not a writer; did you mean tiff."


@pytest.mark.long
def test_view_tells_moves_apart(scan: tuple[Path, Result], tmp_path: Path) -> None:
    """Of refined positions there is a figure, and diagnose has the sentence and the numbers."""
    result = scan[1]
    centre = result.positions_px.mean(axis=0)
    recorded = centre + (result.positions_px - centre) / 1.02
    replace(result, nominal_px=recorded).save(tmp_path / "result.h5")
    said = run("view", tmp_path / "result.h5").stdout
    assert str(tmp_path / "moves.png") in said.splitlines() and (tmp_path / "moves.png").stat().st_size > 10_000
    found = json.loads(run("diagnose", tmp_path / "result.h5", "--json").stdout)["positions"]
    assert found["scale"] == pytest.approx(0.02, abs=1e-6) and found["shares"]["scale"] == pytest.approx(1)
    told = [line for line in run("diagnose", tmp_path / "result.h5").stdout.splitlines() if "Positions: " in line]
    assert len(told) == 1 and "100% scale of +2 %" in told[0]
    replace(result, nominal_px=result.positions_px).save(tmp_path / "still.h5")
    assert json.loads(run("diagnose", tmp_path / "still.h5", "--json").stdout)["positions"] is None


def test_view_follows_the_beam(tmp_path: Path) -> None:
    """Waists of mirrors are where they were put: sentences, figure and file."""
    probe = kb_mirror((64, 64), (1e-8, 1e-8), photon_wavelength_m(8e3), (1e-4, 2e-4), (0.05, 0.05), (40e-6, -20e-6))
    seen = {"energy_eV": 8e3, "radiation": "photon", "propagation": "far_field"}
    positions = np.array([[0.0, 0.0], [0.0, 9.0], [9.0, 0.0]])
    object_ = np.ones((1, 80, 80), complex)
    result = Result(object_, probe.numpy()[None], positions, pixel_size_m=(1e-8, 1e-8), attrs=seen)
    result.save(tmp_path / "result.h5")
    said = run("view", tmp_path / "result.h5", "--caustic").stdout
    assert "40 µm downstream of the sample" in said and "20 µm upstream of the sample" in said
    assert "astigmatism   60 µm: the waist of x is so far upstream of that of y" in said
    assert (tmp_path / "caustic.png").stat().st_size > 10_000
    numbers = json.loads((tmp_path / "caustic.json").read_text())
    np.testing.assert_allclose(numbers["waist_m"], (40e-6, -20e-6), rtol=1e-6)
    assert np.shape(numbers["width_m"]) == (len(numbers["z_m"]), 2)
    for without, reason in (({"energy_eV": None}, "does not say energy"), ({"propagation": "fresnel"}, "fresnel")):
        replace(result, attrs={**seen, **without}).save(tmp_path / "other.h5")
        refused = CliRunner().invoke(app, ["view", str(tmp_path / "other.h5"), "--caustic"])
        assert isinstance(refused.exception, BadInput) and reason in str(refused.exception)


def test_view_without_the_data(scan: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is drawn, and it is said why not all; figures go beside the result, named after it."""
    result = scan[1]
    moved = replace(result, recipe=result.recipe.replace("scan.npz", "gone.npz"))
    moved.save(tmp_path / "moved.h5")
    ran = run("view", tmp_path / "moved.h5", "--format", "svg")
    names = {path.name for path in tmp_path.iterdir()}
    assert "moved-object.svg" in names and "moved-patterns.svg" not in names
    assert "No patterns are shown: There is no file" in ran.stderr and "gone.npz" in ran.stderr
    monkeypatch.setattr(figures, "write_figures", lambda *_, **__: [])
    replace(result, recipe="").save(tmp_path / "bare.h5")
    assert "holds no recipe" in run("view", tmp_path / "bare.h5").stderr


def test_typical_and_worst_pattern(scan: tuple[Path, Result]) -> None:
    """The spoilt view is found, and the model of the truth is the truth."""
    recipe = Recipe.from_yaml(scan[1].recipe)
    measurement = load_measurement(recipe.data, recipe.positions)
    found = compared_patterns(scan[1], measurement)
    typical, worst = found.pairs
    assert worst.startswith(f"worst: view {WORST}, ") and typical.startswith("typical: view ")
    assert found.far_field and found.mask.all()
    measured, modelled = found.pairs[typical]
    residual = ((np.sqrt(measured) - np.sqrt(modelled)) ** 2).sum() / measured.sum()
    assert float(typical.split()[-1]) == pytest.approx(residual, rel=0.01)
    draws = np.random.default_rng(1).poisson(modelled, (100, *modelled.shape))
    assert residual == pytest.approx(((np.sqrt(draws) - np.sqrt(modelled)) ** 2).sum() / draws.sum(), rel=0.15)


def test_mean_patterns_are_over_the_same_views_and_pixels(scan: tuple[Path, Result]) -> None:
    """Where a pixel has no data in a view, its model does not count either; a masked one has no mean."""
    recipe = Recipe.from_yaml(scan[1].recipe)
    measurement = load_measurement(recipe.data, recipe.positions)
    found = compared_patterns(scan[1], measurement)
    assert found.averaged == 36 and found.mean is not None
    views = np.arange(36)
    model = model_of(scan[1], measurement.geometry, measurement)
    measured, modelled_ = measurement.patterns.read(views).astype(float), modelled(model, scan[1], views)
    np.testing.assert_allclose(found.mean[0], measured.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(found.mean[1], modelled_.mean(axis=0), rtol=1e-6)
    measured[:10, 3, 4] = -1
    mask = measurement.mask.copy()
    mask[5, 6] = False
    gaps = replace(measurement, patterns=ArraySource(measured.astype(np.float32)), mask=mask)
    some = mean_pattern_pair(model, scan[1], gaps, views)
    assert np.isnan([one[5, 6] for one in some]).all()
    assert some[0][3, 4] == pytest.approx(measured[10:, 3, 4].mean())
    assert some[1][3, 4] == pytest.approx(modelled_[10:, 3, 4].mean())


def test_weights_and_background_are_in_the_model(scan: tuple[Path, Result]) -> None:
    """Twice the amplitude is four times the counts, and the background adds."""
    model, views = Model.for_geometry(Geometry((24, 24))), np.array([3, 5])
    plain = modelled(model, scan[1], views)
    more = replace(scan[1], weights=np.full((36, 1), 2.0), background=np.full((24, 24), 3.0))
    np.testing.assert_allclose(modelled(model, more, views), 4 * plain + 3, rtol=1e-4)


def test_the_tilt_of_slices_is_in_the_model() -> None:
    geometry = simulate(views=4, window=32).measurement.geometry
    flat = Result(np.ones((2, 64, 64), complex), np.ones((1, 32, 32), complex), np.zeros((4, 2)), slice_spacing_m=1e-6)
    assert model_of(replace(flat, tilt_rad=(0.01, -0.02)), geometry).tilt_rad == (0.01, -0.02)


def test_other_data_are_refused(scan: tuple[Path, Result]) -> None:
    recipe = Recipe.from_yaml(scan[1].recipe)
    measurement = load_measurement(recipe.data, recipe.positions)
    with pytest.raises(BadInput, match="has 36 views of"):
        compared_patterns(replace(scan[1], positions_px=scan[1].positions_px[:30]), measurement)
    with pytest.raises(BadInput, match="has changed since the run"):
        compared_patterns(replace(scan[1], attrs={"data_fingerprint": "other"}), measurement)


def test_slices_and_simulated_truth(scan: tuple[Path, Result], tmp_path: Path) -> None:
    """A result without history, engine or residual is drawn too; several slices get a figure of their own."""
    truth = Result(np.repeat(scan[1].object, 2, axis=0), scan[1].probe, scan[1].positions_px, slice_spacing_m=1e-6)
    names = {path.name for path in write_figures(truth, tmp_path)}
    assert names <= {f"{name}.png" for name in FIGURES[".png"]}, "what a run looks at before it begins"
    assert "slices.png" in names and "history.png" not in names
    assert title_of(truth) == "36 views"
    assert title_of(scan[1]) == "scan.npz, 36 views, rpie, final residual 0.01"


def test_compare_says_it_all(scan: tuple[Path, Result], tmp_path: Path) -> None:
    result = scan[1]
    rng = np.random.default_rng(1)
    noise = 0.05 * (rng.normal(size=result.object.shape) + 1j * rng.normal(size=result.object.shape))
    other = replace(
        result,
        object=(2j * np.roll(result.object + noise, 2, axis=1)).astype(np.complex64),
        positions_px=result.positions_px + rng.normal(scale=0.1, size=result.positions_px.shape) + [2, 0],
    )
    other.save(tmp_path / "b.h5")
    ran = run("compare", tmp_path / "b.h5", scan[0] / "result.h5", "--figure", tmp_path / "figure.pdf")
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")
    lines = {line[:11].strip(): line[12:] for line in ran.stdout.splitlines() if line[:1].strip()}
    assert lines["object"].startswith("NRMSE 0.07")
    assert lines["similarity"].startswith("SSIM of the phases 0.9")
    assert lines["twin"].startswith("no: ")
    assert "full period" in lines["resolution"]
    assert "powers of the modes" in lines["probe"]
    assert lines["positions"].startswith("differ by 0.1")
    assert "A was moved by -2.0" in ran.stdout and "scaled by 0.49" in ran.stdout


def test_compare_as_json(scan: tuple[Path, Result], tmp_path: Path) -> None:
    """The twin is said; the numbers are for it."""
    result = scan[1]
    flip = (slice(None), slice(None, None, -1), slice(None, None, -1))
    twin = Result(result.object[flip].conj(), result.probe[flip].conj(), 64 - 24 - result.positions_px)
    twin.save(tmp_path / "twin.h5")
    said = json.loads(run("compare", tmp_path / "twin.h5", scan[0] / "result.h5", "--json").stdout)
    assert said["twin"] is True and said["nrmse"] < 1e-5 and said["position_p95_px"] < 1e-9
    assert said["ssim"] == pytest.approx(1, abs=1e-6)
    assert said["resolution_at_pixel_limit"] is True and said["resolution"] == 2.0
    text = run("compare", tmp_path / "twin.h5", scan[0] / "result.h5").stdout
    assert "A is the twin of B" in text and "or better" in text


def test_bad_arguments(scan: tuple[Path, Result], tmp_path: Path) -> None:
    result = scan[0] / "result.h5"
    with pytest.raises(BadInput, match="no file"):
        run("view", tmp_path / "none.h5")
    with pytest.raises(BadInput, match="unknown ending"):
        run("compare", result, result, "--figure", "x.gif")
    with pytest.raises(BadInput, match="cannot be written"):
        run("compare", result, result, "--figure", tmp_path / "no" / "x.png")
