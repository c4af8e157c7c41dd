"""`ptymesh calibrate`: numbers are recovered from scans made with them; what cannot be calibrated is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tifffile
import typer
import yaml
from typer.testing import CliRunner

from electron_scans import ENERGY_EV, PIXEL_M, RADIUS_PX, SEMIANGLE_RAD, WINDOW, Made, make, recipe_for, write
from ptymesh.calibrate import Calibration, calibrate, twins
from ptymesh.calibrate.centre_of_mass import integrated
from ptymesh.calibrate.disc import fit_disc
from ptymesh.calibrate.parallax import Lens
from ptymesh.calibrate.recipe import calibrated_text, recipe_of
from ptymesh.calibrate.scan_grid import scan_grid
from ptymesh.calibrate.twins import choose_twin, compare_twins
from ptymesh.cli import calibrate as command
from ptymesh.distributed.world import Solo, World
from ptymesh.errors import BadInput
from ptymesh.io import load_measurement
from ptymesh.recipe.schema import Recipe, load_recipe
from ptymesh.run.session import run_recipe
from ptymesh.run.simulate_file import write as simulate_file
from ptymesh.run.trials.twins import TwinTrial
from ptymesh.simulate import Simulation, checked
from warm import python

Run = Callable[..., str]
WHOLE = Made(
    transpose=True, rotation_deg=37.0, c10_m=-1.2e-7, c12_m=(8e-9, -6e-9), centre_px=(1.3, -2.2),
    descan_px=np.array([[1.5, 0.0], [0.0, -2.0]]),
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def residuals_alike() -> Iterator[None]:
    """Reconstructions of both twins are left out, as if they ended alike, but where a test puts them back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(twins, "compare_twins", lambda _: TwinTrial(1.0, 1.0, 100))
        yield


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scan with all that calibrate measures."""
    return write(tmp_path_factory.mktemp("scan") / "scan.h5", WHOLE)


@pytest.fixture(scope="module")
def found(scan: Path) -> Calibration:
    """Its calibration."""
    return calibrate(recipe_for(scan, WHOLE))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """`run(...)` returns what `ptymesh calibrate ...` prints, in a folder of its own; BadInput comes through."""
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command()(command.command)

    def call(*arguments: Any) -> str:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if result.exception is not None:
            raise result.exception
        return result.output

    return call


def degrees_apart(a: float, b: float) -> float:
    return abs((a - b + 180) % 360 - 180)


def test_disc_and_pixel(found: Calibration) -> None:
    assert found.disc.centre == pytest.approx((WINDOW // 2 + 1.3, WINDOW // 2 - 2.2), abs=0.03)
    assert found.disc.radius == pytest.approx(RADIUS_PX, abs=0.05)
    assert found.disc.ellipticity < 0.01
    assert found.pixel_m == pytest.approx((PIXEL_M, PIXEL_M), rel=0.005)


def test_descan_is_a_smooth_field(found: Calibration) -> None:
    assert found.descan.degree == 1
    assert found.descan.wander_px == pytest.approx(2.5, abs=0.05)
    first, last = found.descan.centres[0], found.descan.centres[-1]
    assert last - first == pytest.approx([1.5, -2.0], abs=0.1)


def test_descan_that_no_lens_makes_is_put_into_the_model(found: Calibration, tmp_path: Path) -> None:
    """With axes exchanged and turned by 37 degrees, half of [[1.5, 0], [0, -2]] and its transposed one is left."""
    size, error = found.descan_turn_px
    assert (
        size == pytest.approx(0.5 * (1.5 + 2.0) * math.cos(math.radians(37)) * math.sqrt(2), abs=0.1) and error < 0.02
    )
    recipe, reasons = recipe_of(found, tmp_path)
    assert list(recipe.optics) == ["descan"] and "Patterns wander by 2 +- 0.0" in reasons["optics.descan"][0]
    own = replace(found, description=replace(found.description, recipe={**found.description.recipe, "optics": {}}))
    assert "descan" in recipe_of(own, tmp_path)[0].optics
    own.description.recipe["optics"] = {"descan": False}
    assert not recipe_of(own, tmp_path)[0].optics  # the recipe's word counts


def test_descan_that_is_none_or_a_lens_stays_out_of_the_model(found: Calibration, tmp_path: Path) -> None:
    straight = replace(found, lens=Lens(False, 0.0, 0.0))
    p = (found.grid.positions_m - found.grid.positions_m.mean(axis=0)) / np.ptp(found.grid.positions_m, axis=0)

    def wandering(y: np.ndarray, x: np.ndarray) -> Calibration:
        return replace(straight, descan=replace(found.descan, centres=np.stack((y, x), axis=1)))

    assert wandering(2 * p[:, 1], -2 * p[:, 0]).has_descan
    assert not wandering(2 * p[:, 0], 2 * p[:, 1]).has_descan  # a curvature of the beam
    assert not wandering(0.08 * p[:, 1], -0.08 * p[:, 0]).has_descan  # too little
    scattered = wandering(0.5 * p[:, 1], -0.5 * p[:, 0])
    assert scattered.has_descan
    assert not replace(scattered, descan=replace(scattered.descan, scatter_px=1.0)).has_descan  # within its error
    still = replace(scattered, descan=replace(scattered.descan, degree=0))
    assert not still.has_descan and not recipe_of(still, tmp_path)[0].optics


def test_orientation_and_lens_by_parallax(found: Calibration) -> None:
    assert found.parallax.is_sure and found.lens.transpose
    assert degrees_apart(found.lens.rotation_deg, 37.0) < 1.0
    assert found.lens.c10_m == pytest.approx(-1.2e-7, abs=2.5e-9)
    assert found.lens.c12_m == pytest.approx((8e-9, -6e-9), abs=2.5e-9)
    assert "bright" in found.settled


def test_dose(found: Calibration) -> None:
    assert found.counts_per_view == pytest.approx(WHOLE.electrons, rel=0.005)
    assert found.dose_e_per_A2 == pytest.approx(WHOLE.electrons / 4.0**2, rel=0.005)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("transpose", "angle"), [(True, 20.0), (False, -65.0)])
def test_orientation_in_focus(tmp_path: Path, transpose: bool, angle: float) -> None:
    made = Made(transpose=transpose, rotation_deg=angle, seed=3)
    found = calibrate(recipe_for(write(tmp_path / "s.h5", made), made))
    assert found.lens.transpose == transpose
    assert degrees_apart(found.lens.rotation_deg, angle) < 5
    assert abs(found.lens.c10_m) < 5e-9
    assert found.curl.transpose == transpose and found.curl.other_curl > 1.3 * found.curl.curl
    assert degrees_apart(2 * found.curl.rotation_deg, 2 * angle) < 16  # modulo a half turn


def test_sign_of_c10_and_of_the_phase_choose_the_twin(found: Calibration, monkeypatch: pytest.MonkeyPatch) -> None:
    image, lens = found.images["ssb"], found.lens
    other = replace(found, lens=lens.twin)
    assert choose_twin(found, image, "positive", "bright") == (lens.twin, "C10, said to be positive")
    assert choose_twin(found, image, "negative", "dark") == (lens, "C10, said to be negative")
    trial = TwinTrial(0.02, 0.03, 100)
    monkeypatch.setattr(twins, "compare_twins", lambda _: trial)
    assert choose_twin(found, -image, "unknown", "bright")[0] == lens  # before the image is asked
    assert choose_twin(found, image, "unknown", "dark")[0] == lens.twin
    trial = TwinTrial(0.02, 0.03, 100, standard_errors=20.0, explained=0.4)  # better, but neither is any good
    assert choose_twin(found, image, "unknown", "dark") == (lens, "")
    trial = TwinTrial(0.02, 0.03, 100, standard_errors=2.0)  # by chance: the image is asked
    assert choose_twin(found, image, "unknown", "dark")[0] == lens.twin
    trial = TwinTrial(0.02, 0.0201, 100)
    assert choose_twin(found, image, "unknown", "dark")[0] == lens.twin
    assert choose_twin(other, -image, "unknown", "bright")[0].rotation_deg == pytest.approx(lens.rotation_deg)
    noise = np.random.default_rng(0).normal(size=image.shape)
    assert choose_twin(found, noise, "unknown", "bright") == (lens, "")


@pytest.mark.long
def test_thick_crystal_tells_its_twin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The single side band of 3 nm of gold is dark where atoms are bright; a positive potential is not misled."""
    crystal = {
        "structure": "gold", "thickness_m": 3e-9, "rotation_deg": 5, "dose_e_per_A2": 1e6, "semiangle_rad": 25e-3,
        "step_m": 0.5e-10, "aberrations_m": {"C10": -10e-9},
    }  # fmt: skip
    options = {"kind": "crystal", "scan": "raster", "views": 256, "window": 64, "seed": 6, "crystal": crystal}
    path, _ = simulate_file(checked(Simulation.parse(options)), tmp_path / "gold.cxi")
    monkeypatch.setattr(twins, "compare_twins", compare_twins)
    found = calibrate({"data": {"path": str(path)}, "stages": "auto"})  # stages of one's own are not asked
    assert degrees_apart(found.lens.rotation_deg, 0) < 5 and found.lens.c10_m < 0
    assert "nowhere negative" in found.settled
    assert choose_twin(found, found.images["ssb"], "unknown", "bright")[0] == found.lens
    assert twins.skewness_of(found.images["ssb"])[0] < 0  # what misled before


def test_stages_refine_what_was_measured(found: Calibration) -> None:
    """The lens where parallax is sure, else the rotation alone; stages of one's own stay."""
    (stage,) = recipe_of(found, Path("out"))[0].stages
    assert (stage.name, stage.epochs) == ("adam", 25) and list(stage.models) == ["scan_geometry", "aberrations"]
    unsure = replace(found, parallax=replace(found.parallax, lead=0.0))
    assert not unsure.parallax.is_sure
    stages = recipe_of(unsure, Path("out"))[0].stages
    assert [(one.name, list(one.models)) for one in stages] == [
        ("rpie", ["scan_geometry"]),
        ("adam", ["scan_geometry"]),
    ]
    raw = {**found.description.recipe, "stages": [{"engine": "lsqml", "epochs": 3, "batch": 20}]}
    own = replace(found, description=replace(found.description, recipe=raw))
    (stage,) = recipe_of(own, Path("out"))[0].stages
    assert stage.name == "lsqml" and not stage.models


def test_several_slices_are_a_potential_whose_rotation_follows_the_patterns(found: Calibration) -> None:
    def recipe_with(**settings: Any) -> tuple[Recipe, Any]:
        told = replace(found.description, recipe=found.description.recipe | settings)
        return recipe_of(replace(found, description=told), Path("out"))

    thick = {"slices": 4, "slice_spacing_m": 2e-9}
    recipe, reasons = recipe_with(object=thick)
    assert (recipe.object.kind, recipe.probe.modes) == ("potential", 3)
    lens = recipe.probe.start.parameters()["aberrations"]["C10"]
    assert lens == pytest.approx(found.lens.c10_m - recipe.object.middle_m, rel=1e-3) and recipe.object.middle_m > 3e-9
    assert any("lies 3" in said for said in reasons["probe.start"])
    assert {"object.kind", "probe.modes"} <= reasons.keys()
    for stage in recipe.stages:
        assert vars(stage.models["scan_geometry"])["follow"] == "patterns"
        assert "depth_smoothness" in stage.constraints
    own, _ = recipe_with(
        object={**thick, "kind": "transmission"}, probe={**found.description.recipe["probe"], "modes": 1}
    )
    assert (own.object.kind, own.probe.modes) == ("transmission", 1)


def test_thick_slices_are_made_of_thin_ones_and_begin_coarse(found: Calibration) -> None:
    """Two for each whose beam's edge turns by 1.5 rad, smoothed over the same depth; not of a free transmission."""
    spacing = 1.5 * found.description.wavelength_m / (math.pi * found.semiangle_rad**2)
    small = replace(
        found,
        disc=replace(found.disc, radius=min(found.description.scan.window) / 5, stretch=(0.0, 0.0)),
        descan=replace(found.descan, degree=0),
    )

    def recipe_with(found: Calibration, slices: int = 4, **settings: Any) -> Recipe:
        thick = {"slices": slices, "slice_spacing_m": spacing, **settings.pop("object", {})}
        told = replace(found.description, recipe=found.description.recipe | {"object": thick} | settings)
        return recipe_of(replace(found, description=told), Path("out"))[0]

    recipe = recipe_with(small)
    assert recipe.object.slices == 8 and recipe.object.slice_spacing_m == spacing / 2
    assert [(stage.coarsen, stage.epochs) for stage in recipe.stages] == [(2, 10), (1, 15)]
    first, last = recipe.stages
    assert "identical_slices" in first.constraints and "identical_slices" not in last.constraints
    assert not first.positions and vars(last.positions)["start"] == 5 and list(recipe.optics) == ["detector_transfer"]
    for stage in recipe.stages:
        assert vars(stage.constraints["depth_smoothness"])["weight"] == pytest.approx(1.2)
    assert recipe_with(replace(small, descan=found.descan)).stages[0].coarsen == 1  # descan is on the whole detector
    wide = replace(small, disc=replace(small.disc, radius=min(found.description.scan.window) / 3.9))
    for one in (recipe_with(wide), recipe_with(small, optics={"detector_transfer": {"pixel_side": 1}})):
        assert one.object.slices == 8 and [(stage.coarsen, stage.epochs) for stage in one.stages] == [(1, 25)]
    assert recipe_with(small, optics={}).optics == {}, "pieces that were told stay as they are"
    free = recipe_with(small, object={"kind": "transmission"})
    assert not free.optics and not free.stages[0].positions
    assert free.object.slices == 4 and [stage.coarsen for stage in free.stages] == [1]
    far = recipe_with(small, object={"slice_spacing_m": 49.9 * spacing})
    assert far.object.slices == 300 and vars(far.stages[0].constraints["depth_smoothness"])["weight"] == 1000
    assert recipe_with(small, object={"absorption": 0.1}).object.kind == "potential"
    for key, value in (("slice_spacing_m", "thin"), ("slice_spacing_m", math.inf), ("slices", "two")):
        with pytest.raises(BadInput, match=rf"object\.{key}"):
            recipe_with(small, object={key: value})


def test_twin_of_the_twin() -> None:
    lens = Lens(True, -120.0, 1e-7, (1e-9, -2e-9))
    assert lens.twin == Lens(True, 60.0, -1e-7, (-1e-9, 2e-9)) and lens.twin.twin == lens


def test_patterns_without_a_sample_say_nothing_sure(tmp_path: Path) -> None:
    counts = make(replace(WHOLE, descan_px=np.zeros((2, 2)), c10_m=0.0)).mean(axis=(0, 1))
    path = tmp_path / "vacuum.h5"
    with h5py.File(path, "w") as file:
        file["data"] = np.random.default_rng(5).poisson(counts, (24, 24, WINDOW, WINDOW)).astype(np.uint16)
    found = calibrate(recipe_for(path, WHOLE))
    assert not found.parallax.is_sure and found.lens.c10_m == 0 and "ssb" not in found.images
    text = " ".join(found_sentences(found))
    assert "nothing is sure" in text and "NOTHING TELLS IT" in text


def found_sentences(found: Calibration) -> list[str]:
    return [sentence for said in recipe_of(found, Path("out"))[1].values() for sentence in said]


def calibrated_on(world: World, recipe: dict[str, Any]) -> Calibration:
    """The calibration as a rank finds it, slab by slab."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ptymesh.io.source.SLAB_BYTES", 1 << 20)
        patch.setattr(twins, "compare_twins", lambda _: TwinTrial(1.0, 1.0, 100))
        return calibrate(recipe, world=world)


def test_ranks_share_the_patterns_and_find_the_same_bits(scan: Path, ranks: Any) -> None:
    recipe = recipe_for(scan, WHOLE)
    alone = calibrated_on(Solo(), recipe)
    for other in ranks(2, calibrated_on, recipe):
        assert (other.lens, other.disc, other.settled) == (alone.lens, alone.disc, alone.settled)
        np.testing.assert_array_equal(other.sums.mean, alone.sums.mean)
        for name, image in alone.images.items():
            np.testing.assert_array_equal(other.images[name], image)


def test_the_command_on_two_ranks_writes_and_prints_once(scan: Path, tmp_path: Path) -> None:
    (tmp_path / "told.yaml").write_text(yaml.safe_dump(recipe_for(scan, WHOLE)))
    words = ["-m", "ptymesh", "calibrate", "told.yaml", "--c10", "negative", "--ranks", "2", "--out", "two"]
    done = python(words, tmp_path, spares=2)
    out, err = done.communicate()
    assert (done.returncode, err) == (0, "") and out.count("Lens: By parallax") == 1
    alone = calibrate(recipe_for(scan, WHOLE), c10="negative")
    assert (tmp_path / "two" / "recipe.yaml").read_text() == calibrated_text(alone, tmp_path / "two" / "run")
    with pytest.raises(BadInput, match="--ranks is 0"):
        command.command(scan, ranks=0, out=tmp_path / "three")


def test_bits_do_not_depend_on_the_slabs(scan: Path, found: Calibration, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptymesh.io.source.SLAB_BYTES", 1 << 20)
    other = calibrate(recipe_for(scan, WHOLE))
    assert other.disc.radius == pytest.approx(found.disc.radius, rel=1e-12)
    assert other.lens.rotation_deg == pytest.approx(found.lens.rotation_deg, rel=1e-4)
    for name in ("bf", "abf", "adf"):
        np.testing.assert_array_equal(other.images[name], found.images[name])


@pytest.mark.long
def test_scan_that_is_no_raster(tmp_path: Path) -> None:
    """A spiral, from a file that says positions, energy and pixel: the semi-angle follows from the disc."""
    options = checked(
        Simulation(
            kind="electron", views=500, window=64, slices=1, phase_rad=(0.0, 0.3), overlap=0.85, probe_guess="none"
        )
    )
    path, _ = simulate_file(options, tmp_path / "spiral.cxi")
    found = calibrate({"data": {"path": str(path)}, "stages": "auto"})  # stages of one's own are not asked
    assert not found.grid.is_raster
    truth = load_measurement(recipe_of(found, tmp_path)[0].data)
    assert found.pixel_m == pytest.approx(truth.geometry.object_pixel_m)
    assert found.semiangle_rad > 0
    if found.parallax.is_sure:
        assert not found.lens.transpose


@pytest.mark.usefixtures("coarse_figures")
def test_command_writes_a_recipe_that_runs(run: Run, tmp_path: Path) -> None:
    # without descan and with little noise: the orientation is most of the residual
    made = replace(WHOLE, electrons=3e5, descan_px=np.zeros((2, 2)), centre_px=(1.0, -2.0))
    scan = write(tmp_path / "scan.h5", made)
    numbers = ("--energy", ENERGY_EV, "--semiangle", SEMIANGLE_RAD, "--step", WHOLE.step_m)
    printed = run(scan, *numbers, "--out", "cal")
    assert "transposed, rotation 3" in printed and "e/A^2" in printed
    names = {path.name for path in Path("cal").iterdir()}
    images = ("bf", "abf", "adf", "com", "dpc", "icom", "parallax", "ssb")
    assert names == {"recipe.yaml", "calibration.png", *(f"{one}.{end}" for one in images for end in ("png", "tiff"))}
    with tifffile.TiffFile("cal/com.tiff") as file:
        assert len(file.pages) == 2 and file.pages[0].shape == WHOLE.shape
        about = json.loads(file.pages[0].description)
    assert about["pixel_size_m"] == pytest.approx([WHOLE.step_m] * 2) and "rad" in about["values"]
    recipe = load_recipe(
        Path("cal/recipe.yaml"), ["stages=[{engine: rpie, epochs: 2, batch: 32}]", "output.figures=false"]
    )
    right = run_recipe(recipe, device="cpu").result.attrs["final_residual"]
    turned = {"positions": recipe.positions.model_copy(update={"rotation_deg": recipe.positions.rotation_deg + 90})}
    turned["output"] = recipe.output.model_copy(update={"dir": tmp_path / "turned"})
    assert right < 0.97 * run_recipe(recipe.model_copy(update=turned), device="cpu").result.attrs["final_residual"]
    with pytest.raises(BadInput, match="--force"):
        run(scan, *numbers, "--out", "cal")
    with pytest.raises(BadInput, match="bright or dark"):
        run(scan, *numbers, "--phase", "grey")
    with pytest.raises(BadInput, match="negative, positive or unknown"):
        run(scan, *numbers, "--c10", "0")


def test_command_takes_units(run: Run, scan: Path) -> None:
    """All numbers are read before the lattice is looked for, of which this sample has none."""
    numbers = ("--energy", "200 keV", "--semiangle", "10 mrad", "--step", "4 A", "--lattice", "0.4 nm")
    with pytest.raises(BadInput, match="--lattice needs Bragg discs"):
        run(scan, *numbers)


@pytest.mark.parametrize(
    ("missing", "words"), [("energy_eV", "--energy"), ("raster", "--step"), ("probe", "--semiangle")]
)
def test_what_nothing_says_is_asked_for(scan: Path, missing: str, words: str) -> None:
    recipe = recipe_for(scan, WHOLE)
    for group in (recipe, recipe["data"], recipe["positions"]):
        group.pop(missing, None)
    with pytest.raises(BadInput, match=words):
        calibrate(recipe)


def with_patterns(path: Path, patterns: np.ndarray) -> dict[str, Any]:
    with h5py.File(path, "w") as file:
        file["data"] = patterns
    return recipe_for(path, WHOLE)


def test_patterns_that_cannot_be_calibrated_are_refused(scan: Path, tmp_path: Path) -> None:
    with h5py.File(scan) as file:
        patterns = file["data"][:]
    flat = np.random.default_rng(0).poisson(20, patterns.shape).astype(np.uint16)
    spot = np.zeros_like(patterns)
    spot[..., WINDOW // 2, WINDOW // 2] = np.random.default_rng(0).poisson(500, WHOLE.shape)
    for name, counts, words in (
        ("row", patterns[:1], "1 x 24|24 views"),
        ("same", np.repeat(patterns[:1, :1], 24 * 24, 0).reshape(patterns.shape), "one and the same"),
        ("flat", flat, "no bright disc"),
        ("spot", spot, "no bright disc"),
        ("dark", np.zeros_like(patterns), "no counts"),
    ):
        with pytest.raises(BadInput, match=words):
            calibrate(with_patterns(tmp_path / f"{name}.h5", counts))


@pytest.mark.parametrize(("kind", "words"), [("xray", "X-rays"), ("near", "X-rays|near field")])
def test_photons_are_refused(tmp_path: Path, kind: str, words: str) -> None:
    path, _ = simulate_file(checked(Simulation(kind=kind, views=30, window=32)), tmp_path / "x.cxi")
    with pytest.raises(BadInput, match=words):
        calibrate({"data": {"path": str(path)}})


@pytest.mark.parametrize("long_deg", [20.0, 110.0])
def test_ellipse(long_deg: float) -> None:
    turn = np.radians(long_deg)
    y, x = np.indices((80, 90))
    y, x = y - 38.3, x - 47.8
    along, across = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
    radius = np.hypot(along / 21.0, across / 19.0)
    found = fit_disc(3 + 100 / (1 + np.exp((radius - 1) * 60)), np.ones(y.shape, bool))
    assert found.centre == pytest.approx((38.3, 47.8), abs=0.01)
    assert found.radius == pytest.approx(np.sqrt(21 * 19), rel=2e-3)
    assert found.ellipticity == pytest.approx(21 / 19 - 1, abs=2e-3)
    assert found.long_axis_deg == pytest.approx(long_deg, abs=1)


def test_phase_from_its_gradient() -> None:
    index = np.stack(np.meshgrid(np.arange(30), np.arange(40), indexing="ij"), axis=-1).reshape(-1, 2)
    grid = scan_grid(index * np.array([2e-10, 3e-10]))
    y, x = (index[:, axis].reshape(30, 40) for axis in (0, 1))
    phase = np.exp(-((y - 12) ** 2) / 50 - (x - 22) ** 2 / 80)
    slope = np.stack([-(y - 12) / 25 * phase / 2e-10, -(x - 22) / 40 * phase / 3e-10], axis=-1) / (2 * np.pi)
    ramp = (y * slope[..., 0].mean() * 2e-10 + x * slope[..., 1].mean() * 3e-10) * 2 * np.pi  # which is taken away
    error = integrated(slope, grid) - (phase - ramp)
    assert (error - error.mean()).std() < 0.005 * phase.std()
