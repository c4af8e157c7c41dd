"""What checks find is acted upon in every way of starting, recorded, and the same on any number of ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

import ptymesh as pm
from ptymesh.distributed.world import Solo, World
from ptymesh.errors import BadInput
from ptymesh.io import load_measurement
from ptymesh.io.prepare.checks import check_patterns
from ptymesh.io.prepare.findings import apply_findings
from ptymesh.io.prepare.survey import survey
from ptymesh.io.results import Result
from ptymesh.measurement import NO_CHECKS, ArraySource, Measurement
from ptymesh.recipe.schema import Recipe, load_recipe
from ptymesh.run.assembly.data_checks import checked_recipe
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.run.session import run_recipe
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked, simulate

VIEWS, DARK, GAP = 40, [3, 17, 18], slice(20, 22)
STAGES = [{"engine": "rpie", "epochs": 2, "batch": 10}]


@pytest.fixture(scope="module")
def scan() -> Measurement:
    """Of a sound scan, three views without counts, and two rows of the detector without any."""
    sound = simulate(views=VIEWS, window=32, seed=3).measurement
    counts = np.fft.fftshift(sound.patterns.read(np.arange(VIEWS)), axes=(1, 2))
    counts[DARK], counts[:, GAP] = 0, 0
    return replace(sound, patterns=ArraySource(np.fft.ifftshift(counts, axes=(1, 2))))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("checked") / "scan.cxi"
    write(checked(kind="xray", views=VIEWS, window=32, seed=3), found)
    with h5py.File(found, "r+") as file:
        name = next(n for n in ("entry_1/data_1/data", "entry_1/instrument_1/detector_1/data") if n in file)
        counts = file[name][...]
        counts[DARK], counts[:, GAP] = 0, 0
        file[name][...] = counts
    return found


def assert_left_out(result: Result, path: Path | None = None) -> None:
    assert len(result.positions_px) == VIEWS - len(DARK)
    assert list(result.attrs["left_out"]) == DARK
    first, second = result.attrs["findings"]
    assert first.startswith("Left out 3 views without counts (3, 17, 18) of 40: ")
    rows = "4:6" if path is None else "20:22"  # in memory, as the array has them
    assert second.startswith(f"Masked 64 pixels without counts between bright ones ([{rows}, 0:32]); ")
    if path is not None:
        recipe = Recipe.from_yaml(result.recipe)
        again = load_measurement(recipe.data, recipe.positions)
        assert (again.views, int((~again.mask).sum()), again.checks) == (VIEWS - len(DARK), 64, NO_CHECKS)


def test_a_scan_in_memory(scan: Measurement, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = pm.reconstruct(scan, STAGES)
    assert_left_out(result)
    assert "ptymesh: Left out 3 views" in capsys.readouterr().err
    result.save(tmp_path / "result.h5")
    assert_left_out(Result.load(tmp_path / "result.h5"))
    kept = pm.reconstruct(replace(scan, checks=NO_CHECKS), STAGES)
    said = capsys.readouterr().err
    assert len(kept.positions_px) == VIEWS and "Left out" not in said and "Masked" not in said
    assert kept.attrs["findings"] is None


def test_a_loaded_file_and_its_options(path: Path) -> None:
    assert list(pm.reconstruct(pm.load(path), STAGES).attrs["left_out"]) == DARK
    kept = pm.reconstruct(pm.load(path, checks={"views": "warn", "pixels": "off"}), STAGES)
    assert len(kept.positions_px) == VIEWS and kept.attrs["findings"][0].startswith("There are 3 views without counts")


def test_a_recipe_and_what_it_leaves(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(f"data: {{path: {path}}}\nstages: {STAGES}\noutput: {{figures: false}}")
    outcome = run_recipe(load_recipe(Path("recipe.yaml")), device="cpu")
    assert_left_out(outcome.result, path)
    assert_left_out(Result.load(outcome.path), path)


def test_what_is_left_is_reconstructed_as_if_nothing_else_had_been(scan: Measurement) -> None:
    left = apply_findings(scan, check_patterns(scan, survey(scan)))
    assert (left.views, int((~left.mask).sum())) == (VIEWS - len(DARK), 64)
    found, expected = pm.reconstruct(scan, STAGES), pm.reconstruct(replace(left, checks=NO_CHECKS), STAGES)
    np.testing.assert_array_equal(found.object, expected.object)
    np.testing.assert_array_equal(found.probe, expected.probe)


def test_sound_data_are_read_once(scan: Measurement) -> None:
    class Counted(ArraySource):
        def read(self, views: np.ndarray) -> np.ndarray:
            np.add.at(reads, views, 1)
            return super().read(views)

    sound = simulate(views=VIEWS, window=32, seed=3).measurement
    reads = np.zeros(VIEWS, int)
    counted = replace(sound, patterns=Counted(sound.patterns.read(np.arange(VIEWS))))
    Reconstruction(counted, device="cpu")
    few = reads > 1
    assert reads.min() == 1 and few.sum() <= 40, "once, but for the few that are looked at before"


def recorded_on(world: World, path: str) -> str:
    recipe = Recipe.parse({"data": {"path": path}, "stages": STAGES})
    return checked_recipe(recipe, world)[0].to_yaml()


def result_on(world: World, path: str, precise: bool) -> tuple[bytes, list[str], tuple[int, ...]]:
    scan = pm.load(path)
    if precise:  # counts that are no whole numbers
        counts = scan.patterns.read(np.arange(scan.views)) * np.float64(1 / 3)
        scan = replace(scan, patterns=ArraySource(counts))
    recon = Reconstruction(scan, device=world)
    for _ in recon.run(STAGES):
        pass
    return recon.result().object.tobytes(), recon.findings, recon.scan.left_out


@pytest.mark.sample(1)
@pytest.mark.parametrize("precise", [False, True])
def test_any_number_of_ranks_decides_alike(ranks, path: Path, precise: bool) -> None:  # type: ignore[no-untyped-def]
    alone, records = result_on(Solo(), str(path), precise), recorded_on(Solo(), str(path))
    assert alone[2] == tuple(DARK) and "without:" in records
    for count in (2, 3):
        assert all(found == alone for found in ranks(count, result_on, str(path), precise))
        assert set(ranks(count, recorded_on, str(path))) == {records}


def test_what_cannot_be_is_refused_on_all_ranks(ranks, path: Path) -> None:  # type: ignore[no-untyped-def]
    for found in ranks(2, refused_on, str(path)):
        assert "0.00" in found and "object pixels apart" in found and "data.energy_eV (" in found


def refused_on(world: World, path: str) -> str:
    try:
        Reconstruction(pm.load(path, energy_eV=8.8, radiation="photon"), device=world)
    except BadInput as error:
        return str(error)
    return "accepted"
