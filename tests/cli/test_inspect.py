"""`ptymesh inspect` and `ptymesh convert` as a user meets them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from ptymesh.cli import convert, inspect
from ptymesh.errors import BadInput
from ptymesh.io import load_measurement
from ptymesh.io.options import DataOptions

Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """`run("inspect", ...)` returns what is printed on an 80-column screen; BadInput comes through."""
    monkeypatch.setenv("PTYMESH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    app = typer.Typer()
    app.command("inspect")(inspect.command)
    app.command("convert")(convert.command)

    def call(*arguments: Any) -> str:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if result.exception is not None:
            raise result.exception
        return result.output

    return call


@pytest.fixture
def scan(tmp_path: Path) -> Path:
    """A plain HDF5 file: a disc over a raster of 8 x 8, with a hot and a negative-free detector."""
    rng = np.random.default_rng(0)
    r = np.hypot(*np.meshgrid(*[np.arange(32) - 16] * 2))
    mean = np.where(r < 8, 200.0, 0.2)
    counts = rng.poisson(mean, (64, 32, 32)).astype(np.uint16)
    counts[:, 3, 4] = rng.poisson(900, 64)
    path = tmp_path / "plain.h5"
    with h5py.File(path, "w") as file:
        file["frames"] = counts
    return path


SETTINGS = (
    "--set", "data.keys.patterns=frames", "--set", "positions.raster={shape: [8, 8], step_m: 2.0e-8}",
    "--set", "data.object_pixel_m=1e-8", "--set", "data.energy_eV=8000", "--set", "data.radiation=photon",
)  # fmt: skip


def test_inspect(run: Run, scan: Path) -> None:
    shown = run("inspect", scan, *SETTINGS)
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "\x1b" not in shown
    for words in ("64, windows of 32 x 32 pixels, uint16", "X-ray, 8 keV", "10 nm", "step 2 px (20 nm)", "1 hot"):
        assert words in shown
    assert "Suspicious: 1 pixel far brighter than all around ([3, 4]) would be masked;" in " ".join(shown.split())


def test_inspect_empty_patterns(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "dark.h5"
    with h5py.File(path, "w") as file:
        file["frames"] = np.zeros((64, 16, 16), np.uint16)
    shown = run("inspect", path, *SETTINGS)
    assert "nan" not in shown and "Suspicious: None of the 64 views has counts: check" in shown


def test_inspect_positions_in_another_unit(run: Run, scan: Path) -> None:
    shown = run("inspect", scan, *SETTINGS, "--set", "positions.raster.step_m=2e-5")
    assert "Suspicious: Neighbouring views are 2e+03 object pixels apart, more than the" in shown


def test_inspect_in_colour_on_a_terminal(run: Run, scan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in run("inspect", scan, *SETTINGS)


def test_inspect_as_json(run: Run, scan: Path) -> None:
    said = json.loads(run("inspect", scan, "--json", *SETTINGS))
    assert said["views"] == 64 and said["hot"] == [[3, 4]] and said["object_pixel_m"] == [1e-8, 1e-8]
    said = json.loads(run("inspect", scan, "--json", *SETTINGS, "--set", "data.bin=2"))
    assert said["window"] == [16, 16]


def test_inspect_draws(run: Run, scan: Path, tmp_path: Path) -> None:
    run("inspect", scan, *SETTINGS, "--figure", tmp_path / "look.png")
    assert (tmp_path / "look.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(BadInput, match="unknown ending"):
        run("inspect", scan, *SETTINGS, "--figure", tmp_path / "look.docx")
    with pytest.raises(BadInput, match="cannot be written"):
        run("inspect", scan, *SETTINGS, "--figure", tmp_path / "nowhere" / "look.png")


def test_inspect_a_recipe(run: Run, scan: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"data: {{path: {scan.name}, keys: {{patterns: frames}}, object_pixel_m: 1.0e-8}}\n"
        "positions: {raster: {shape: [8, 8], step_m: 2.0e-8}}\n"
    )
    assert "64, windows of 16 x 16" in run("inspect", recipe, "--set", "data.bin=2")


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (["data.bim=2"], "data.bim is unknown; did you mean data.bin"),
        (["positions.rotate=2"], "positions.rotat"),
        (["data.bin=many"], "data.bin is 'many'"),
        (["data.energy_eV=1", "data.wavelength_m=1"], "energy_eV and wavelength_m"),
        (["data.bin"], "is not data.KEY=VALUE"),
        (["stages.0.epochs=2"], "is not data.KEY=VALUE"),
        (["data.crop=[1"], "not valid YAML"),
    ],
)
def test_settings_that_are_wrong(run: Run, scan: Path, settings: list[str], word: str) -> None:
    with pytest.raises(BadInput, match=word) as error:
        run("inspect", scan, *(part for setting in settings for part in ("--set", setting)))
    assert "\n" not in str(error.value)


def test_convert(run: Run, scan: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.cxi"
    assert "64 views of 32 x 32 pixels (uint16)" in run("convert", scan, out, *SETTINGS)
    m = load_measurement(DataOptions(path=out))
    with h5py.File(scan) as file, h5py.File(out) as written:
        np.testing.assert_array_equal(m.patterns.read(np.arange(64)), np.fft.ifftshift(file["frames"], axes=(1, 2)))
        assert written["/entry_1/data_1/data"].compression == "gzip"
    assert m.geometry.object_pixel_m == (1e-8, 1e-8)
    with pytest.raises(BadInput, match="--force"):
        run("convert", scan, out, *SETTINGS)
    run("convert", scan, out, *SETTINGS, "--set", "data.crop=16", "--force", "--uncompressed")
    with h5py.File(out) as written:
        assert written["/entry_1/data_1/data"].compression is None
        assert written["/entry_1/data_1/data"].shape == (64, 16, 16)
    before = out.read_bytes()
    with pytest.raises(BadInput, match="is the file to convert itself"):
        run("convert", out, out, "--force")
    with pytest.raises(BadInput, match="There is no file"):
        run("convert", tmp_path / "absent.h5", out, "--force")
    assert out.read_bytes() == before


def test_unsound_counts_leave_nothing_behind(run: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", data=-np.ones((3, 8, 8), np.float32), scan=np.zeros((3, 2)))
    with pytest.raises(BadInput, match="View 0"):
        run("convert", tmp_path / "a.npz", tmp_path / "out.cxi")
    with pytest.raises(BadInput, match="View 0"):
        run("inspect", tmp_path / "a.npz")
    assert not list(tmp_path.glob("*out.cxi*"))


def test_convert_of_pixel_units_says_so(run: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    scan = rng.normal(size=(3, 2))
    np.savez(tmp_path / "a.npz", data=rng.poisson(5, (3, 8, 8)).astype(np.uint8), scan=scan)
    assert "only ptymesh finds" in run("convert", tmp_path / "a.npz", tmp_path / "out.cxi")
    m = load_measurement(DataOptions(path=tmp_path / "out.cxi"))
    np.testing.assert_array_equal(m.positions, scan)


def test_converted_star_is_the_same(run: Run, data_dir: Path, tmp_path: Path) -> None:
    star, out = data_dir / "siemens-star-small.npz.bz2", tmp_path / "star.cxi"
    run("convert", star, out)
    before, after = load_measurement(DataOptions(path=star)), load_measurement(DataOptions(path=out))
    views = np.arange(516)
    np.testing.assert_array_equal(after.patterns.read(views), before.patterns.read(views))
    np.testing.assert_array_equal(after.positions, before.positions)
    np.testing.assert_allclose(after.probe, before.probe, atol=1e-6)
    assert after.geometry == before.geometry and after.notes == before.notes
