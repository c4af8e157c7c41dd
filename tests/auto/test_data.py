"""A file alone becomes a recipe, or is asked about in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from numpy_scans import WINDOW, patterns, raster, recipe_for
from ptymesh.auto.data import complete_recipe, described, described_recipe
from ptymesh.auto.deciding import decide
from ptymesh.distributed.world import Solo
from ptymesh.errors import BadInput
from ptymesh.io import load_measurement
from ptymesh.io.formats.cxi_writer import write_measurement
from ptymesh.io.options import DataOptions
from ptymesh.measurement import ArraySource, Measurement
from ptymesh.paths import is_data, named_after, refuse_folder
from ptymesh.recipe.schema import Recipe, load_recipe
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked, simulate


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("auto") / "scan.cxi"
    write(checked(kind="xray", views=16, window=32, seed=3), path)
    return path


def test_data_are_told_from_text(scan: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("data: {path: scan.cxi}\n" + "# größer\n" * 1000, encoding="utf-8")
    assert is_data(scan) and is_data(Path("sample:siemens-star"))
    assert not is_data(tmp_path / "recipe.yaml") and not is_data(tmp_path / "nothing") and not is_data(tmp_path)
    (tmp_path / "scan.xml").write_text("\ufeff<root><raw_file filename='größer.raw'/></root>", encoding="utf-8")
    assert is_data(tmp_path / "scan.xml"), "EMPAD's description"
    for name in ("gone", "empty"):
        assert is_data(tmp_path / f"{name}.cxi") and not is_data(tmp_path / f"{name}.yaml"), "by its ending"
        (tmp_path / "empty.cxi").touch()
        (tmp_path / "empty.yaml").touch()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ((), "is a folder without a recipe or data; give the path of a recipe or of a data set."),
        (("notes.txt", "object.png"), "is a folder without a recipe or data; give"),
        (
            ("scan.h5", "scan.truth.h5", "notes.txt", "object.png", "result.h5"),
            "is a folder; give the data in it, {path}/scan.h5.",
        ),
        (("recipe.yaml", "result.h5"), "is a folder; give the recipe in it, {path}/recipe.yaml."),
        (
            ("a_2.tif", "a_1.tif", "dark.h5"),
            "is a folder; give one of the 2 data files in it, such as {path}/a_1.tif. If they are of one scan, "
            "add --set data.further='{path}/*.tif'.",
        ),
    ],
)
def test_a_folder_in_place_of_data(files: tuple[str, ...], said: str, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"data: {}\n" if name.endswith((".yaml", ".txt")) else b"\x89\x00\xff")
    with pytest.raises(BadInput) as raised:
        refuse_folder(tmp_path)
    assert str(raised.value).startswith(f"{tmp_path} {said.format(path=tmp_path)}")


def test_a_folder_where_a_recipe_or_data_alone_are_meant(tmp_path: Path) -> None:
    (tmp_path / "scan.cxi").write_bytes(b"\x89\x00\xff")
    with pytest.raises(BadInput, match="is a folder without a tune file; give the path of a tune file"):
        refuse_folder(tmp_path, "tune file", data=False)
    (tmp_path / "recipe.yaml").write_text("data: {path: scan.cxi}\n")
    with pytest.raises(BadInput, match=r"is a folder; give the data in it, .*/scan\.cxi\.$"):
        refuse_folder(tmp_path, "")
    with pytest.raises(BadInput, match=r"is a folder; give the recipe in it, .*/recipe\.yaml\.$"):
        load_recipe(tmp_path)


def test_paths_that_are_no_folder_of_files_pass(scan: Path, tmp_path: Path) -> None:
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "a.zarr" / "zarr.json").write_text("{}")
    for path in (scan, tmp_path / "a.zarr", tmp_path / "none", Path("x" * 300)):
        refuse_folder(path)


@pytest.mark.parametrize(
    "name, folder",
    [("a/scan_01.cxi", "scan_01"), ("star.npz.bz2", "star"), ("sample:siemens-star", "siemens-star"), ("s.5", "s.5")],
)
def test_results_are_named_after_the_file(name: str, folder: str) -> None:
    assert named_after(Path(name)) == Path(folder)


def test_what_is_set_stays(scan: Path) -> None:
    raw, reasons = described(scan, ["data.crop=16", "stages=[{engine: epie}]", "output.figures=false"], Path("there"))
    recipe = Recipe.parse(raw)
    assert recipe.data.path == scan and recipe.data.crop == (16, 16) and not reasons
    assert [stage.name for stage in recipe.stages] == ["epie"] and recipe.auto is None
    assert recipe.output.dir == Path("there") and not recipe.output.figures


def test_stages_are_open_unless_given(scan: Path) -> None:
    recipe = Recipe.parse(described(scan)[0])
    assert recipe.auto is not None and recipe.auto.sweeps is None and recipe.output.dir == Path("scan")
    again = Recipe.from_yaml(recipe.to_yaml())
    assert again == recipe and "stages: auto" in recipe.to_yaml()
    assert Recipe.parse(described(scan, ["auto.sweeps=7"])[0]).auto.sweeps == 7  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"stages": "often"}, r"stages is 'often'; give a list.*or auto\."),
        ({"auto": {"sweeps": 5}}, "auto says how stages are found; set stages to auto"),
        ({"stages": "auto", "auto": {"sweeps": 0}}, r"auto\.sweeps"),
    ],
)
def test_open_stages_that_cannot_be(scan: Path, wrong: dict, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Recipe.parse({"data": {"path": str(scan)}, **wrong})


def test_what_the_patterns_show_is_set_and_said(scan: Path, tmp_path: Path) -> None:
    path = tmp_path / "clipped.cxi"
    path.write_bytes(scan.read_bytes())
    with h5py.File(path, "r+") as file:
        name = next(n for n in ("entry_1/data_1/data", "entry_1/instrument_1/detector_1/data") if n in file)
        data = file[name]
        data[...] = np.minimum(data[...], 50)
    raw, reasons = described(path)
    assert raw["data"]["saturation"] == 50.0
    assert "saturated" in reasons["data.saturation"][0]


def generic(path: Path, views: int = 9, **more: np.ndarray) -> Path:
    rng = np.random.default_rng(2)
    arrays = {"counts": rng.poisson(5.0, (views, 16, 16)).astype(np.uint16), **more}
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return path


@pytest.mark.parametrize(("counts", "said"), [(5, "the same count on every pixel"), (0, "have no counts")])
def test_patterns_that_show_no_object_are_refused(scan: Path, tmp_path: Path, counts: int, said: str) -> None:
    """Their centres of mass do not move, so that no orientation can be asked for."""
    path = tmp_path / "even.cxi"
    path.write_bytes(scan.read_bytes())
    with h5py.File(path, "r+") as file:
        data = file["entry_1/instrument_1/detector_1/data"]
        data[...] = np.full(data.shape, counts)
    with pytest.raises(BadInput, match=said):
        described(path)


def test_one_view_finds_no_stages(scan: Path) -> None:
    with pytest.raises(BadInput, match="has one view, and stages are found by views that are held out"):
        decide(Recipe.parse(described(scan, ["data.views.stop=1"])[0]), Solo(), write=False)


def test_datasets_of_no_known_format_are_guessed(tmp_path: Path) -> None:
    places = np.random.default_rng(3).uniform(0, 20, (9, 2))
    path = generic(tmp_path / "any.h5", where=places, other=np.zeros(3))
    raw, reasons = described(path, ["positions.unit=px"])
    assert raw["data"]["keys"] == {"patterns": "/counts", "positions": "/where"}
    assert "/counts is the largest array, and /where alone" in reasons["data.keys"][0]


@pytest.mark.parametrize(
    "settings, said",
    [
        ([], r"9 patterns and no positions; name them \(data\.keys\.positions\), or set positions\.raster; .*frames"),
        (["positions.raster.step_m=1e-6"], r"set positions\.raster\.shape"),
        (
            ["positions.raster={shape: 3, step_m: 1e-6}"],
            r"object pixel is unknown; set data\.object_pixel_m, or the energy, data\.distance_m and data\.detector_p",
        ),
    ],
)
def test_what_the_file_does_not_say_is_asked_for(tmp_path: Path, settings: list[str], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        described(generic(tmp_path / "any.h5"), settings)


def test_views_that_lie_apart_are_refused(tmp_path: Path) -> None:
    where = np.random.default_rng(1).normal(0, 1e-3, (9, 2))
    settings = ["data.object_pixel_m=1e-8"]
    with pytest.raises(BadInput, match="more than the window of 16 x 16: check the unit of the positions"):
        described(generic(tmp_path / "any.h5", where=where), settings)
    described(generic(tmp_path / "near.h5", where=1e-4 * where), settings)


def test_arrays_of_one_size_are_not_guessed_between(tmp_path: Path) -> None:
    twice = np.ones((9, 16, 16), np.uint16)
    with pytest.raises(BadInput, match=r"name its datasets in data\.keys"):
        described(generic(tmp_path / "any.h5", others=twice))


def stored(scan: Measurement, path: Path, change: Callable[[np.ndarray], np.ndarray]) -> Path:
    """The scan in a file, its patterns changed as the detector stores them, zero frequency in the middle."""
    seen = change(np.fft.fftshift(scan.patterns.read(np.arange(scan.views)), axes=(1, 2)))
    source = ArraySource(np.ascontiguousarray(np.fft.ifftshift(seen, axes=(1, 2))))
    write_measurement(replace(scan, patterns=source, probe=None), path)
    return path


def test_hot_pixels_are_named_as_the_file_stores_them(tmp_path: Path) -> None:
    def heated(y: np.ndarray) -> np.ndarray:
        y[:, 3, 5] += 200
        y[:, 20, 11] += y.mean(axis=0).max().astype(y.dtype)
        return y

    made = simulate(kind="xray", views=48, window=32, seed=3).measurement
    path = stored(made, tmp_path / "hot.cxi", heated)
    raw, reasons = described(path)
    assert raw["data"]["bad_pixels"] == [[3, 5], [20, 11]] and "hot (2)" in reasons["data.bad_pixels"][0]
    mask = np.fft.fftshift(load_measurement(Recipe.parse(raw).data).mask)
    assert not mask[3, 5] and not mask[20, 11] and mask.sum() == 32**2 - 2
    with pytest.raises(BadInput, match=r"data\.bad_pixels names \[3, 32\], and the detector has 32 x 32 pixels"):
        load_measurement(DataOptions.parse({"path": str(path), "bad_pixels": [[3, 32]]}, "data"))


def test_a_detector_that_lies_transposed(tmp_path: Path) -> None:
    made = simulate(kind="xray", views=120, window=32, seed=3).measurement
    raw, reasons = described(stored(made, tmp_path / "turned.cxi", lambda y: y.transpose(0, 2, 1)))
    assert raw["data"]["transpose"] is True and "closer to a gradient" in reasons["data.transpose"][0]
    assert "transpose" not in described(stored(made, tmp_path / "as_told.cxi", lambda y: y))[0]["data"]
    assert "transpose" not in described(tmp_path / "turned.cxi", ["positions.rotation_deg=0"])[0]["data"]


@pytest.mark.parametrize("told", [{}, {"flip_y": True}])
def test_a_masked_corner_of_the_beam_leaves_the_orientation(told: dict[str, bool], tmp_path: Path) -> None:
    """A twentieth of the detector is masked on one side of the beam: auto asks for the same flips as without it."""
    places, mask = raster(14, 0.4, 1), np.ones((WINDOW, WINDOW), bool)
    mask[14:25, 25:36] = False
    counts = patterns(places)
    counts = counts[:, ::-1] if told else counts
    np.save(tmp_path / "mask.npy", mask)
    for more in ({}, {"mask": str(tmp_path / "mask.npy")}):
        raw = recipe_for(tmp_path / "scan.npz", np.where(mask, counts, 0) if more else counts, places)
        raw["data"] |= more
        complete_recipe(raw)
        assert {key: True for key in ("flip_y", "flip_x", "transpose") if raw["data"].get(key)} == told


def test_the_bright_disc_of_electrons_tells_the_pixel(tmp_path: Path) -> None:
    made = simulate(kind="electron", views=100, window=32, seed=3, slices=1, scan="raster").measurement
    wavelength, pixel = made.geometry.wavelength_m, made.geometry.object_pixel_m
    assert wavelength and pixel
    patterns = np.fft.fftshift(made.patterns.read(np.arange(100)), axes=(1, 2)).reshape(10, 10, 32, 32)
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file["counts"] = patterns
    settings = [
        "data.radiation=electron",
        "data.energy_eV=200e3",
        "positions.raster.step_m=7e-11",
        f"probe.start={{kind: electron, semiangle_rad: {0.35 * wavelength / (2 * pixel[0])}}}",
    ]
    raw, reasons = described(tmp_path / "scan.h5", settings)
    assert raw["data"]["object_pixel_m"] == pytest.approx(pixel[0], rel=0.1)
    assert "The bright disc" in reasons["data.object_pixel_m"][0]


def test_a_recipe_whose_stages_are_open_is_described_as_a_file_is(scan: Path, tmp_path: Path) -> None:
    """What it says stays; what it leaves open about the data is found; with stages, nothing is."""
    places = np.random.default_rng(3).uniform(0, 20, (9, 2))
    generic(tmp_path / "any.h5", where=places)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("data: {path: any.h5}\npositions: {unit: px}\nstages: auto\nseed: 4\n")
    made, reasons = described_recipe(recipe, ["output.dir=there"])
    assert made.data.keys is not None and made.data.keys.patterns == "/counts" and "data.keys" in reasons
    assert made.auto is not None and made.seed == 4 and made.output.dir.name == "there"
    recipe.write_text(f"data: {{path: {scan}, bin: 2}}\nstages: [{{engine: rpie}}]")
    made, reasons = described_recipe(recipe)
    assert not reasons and made.auto is None and made.data.bin == 2


@pytest.mark.parametrize(
    "stages, found",
    [("", True), ("stages: auto", True), ("stages: default", False), ("stages: [{engine: rpie}]", False)],
)
def test_stages_that_a_recipe_does_not_name_are_found(scan: Path, tmp_path: Path, stages: str, found: bool) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"data: {{path: {scan}}}\n{stages}\n")
    made, _ = described_recipe(recipe)
    assert (made.auto is not None) == found
    named, _ = described_recipe(recipe, ["stages.0.epochs=7"] if stages != "stages: auto" else ["stages=default"])
    assert named.auto is None


def test_the_pixel_of_electrons_is_found_for_a_recipe_as_for_a_file(data_dir: Path, tmp_path: Path) -> None:
    settings = [
        "data.keys={patterns: /data}",
        "data.radiation=electron",
        "data.energy_eV=300e3",
        "positions.raster={shape: 40, step_m: 31.25e-10}",
        "probe.start={kind: electron, semiangle_rad: 1.03e-3}",
    ]
    data = data_dir / "cryo-4dstem-40x40.h5"
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"data: {{path: {data}}}\nstages: auto\n")
    made, reasons = described_recipe(recipe, settings)
    alone = Recipe.parse(described(data, settings)[0])
    assert made.data == alone.data and made.positions == alone.positions and "data.object_pixel_m" in reasons
