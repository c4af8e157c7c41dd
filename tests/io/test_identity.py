"""Whether a scan is the one that a checkpoint was made with, whichever of its files was exchanged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from ptymesh.distributed.world import World
from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.io import load_measurement
from ptymesh.io.checkpoint import identity
from ptymesh.io.options import DataOptions, PositionOptions
from ptymesh.measurement import ArraySource, Measurement

VIEWS = 40


def made(folder: Path, seed: int = 0) -> None:
    """A scan whose patterns lie in another file, and arrays beside it."""
    rng = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    rng.integers(0, 99, (VIEWS, 16, 16)).astype("<u2").tofile(folder / "patterns.raw")
    with h5py.File(folder / "scan.h5", "w") as file:
        file.create_dataset("patterns", (VIEWS, 16, 16), "<u2", external=[("patterns.raw", 0, h5py.h5f.UNLIMITED)])
        file["positions"] = np.random.default_rng(0).uniform(0, 1e-5, (VIEWS, 2))
    for name, array in {
        "mask": np.ones((16, 16), np.uint8),
        "dark": np.full((16, 16), 0.5),
        "flat": 1 + rng.random((16, 16)),
        "background": np.full((16, 16), 2.0),
        "intensity": np.linspace(1, 2, VIEWS),
    }.items():
        np.save(folder / f"{name}.npy", array)


def options(folder: Path) -> DataOptions:
    arrays = {name: str(folder / f"{name}.npy") for name in ("mask", "dark", "flat", "background", "intensity")}
    keys = {"patterns": "patterns", "positions": "positions"}
    return DataOptions(path=folder / "scan.h5", keys=keys, object_pixel_m=1e-8, **arrays)


def read(folder: Path, rotation: float = 0.0) -> Measurement:
    return load_measurement(options(folder), PositionOptions(rotation_deg=rotation, unit="m"))


def patterns(folder: Path, view: int) -> None:
    stored = np.memmap(folder / "patterns.raw", "<u2", "r+", shape=(VIEWS, 16, 16))
    stored[view, 3, 3] ^= 1
    stored.flush()


def array(name: str, index: int | tuple[int, int], value: float) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = np.load(folder / f"{name}.npy")
        content[index] = value
        np.save(folder / f"{name}.npy", content)

    return change


def positions(folder: Path) -> None:
    with h5py.File(folder / "scan.h5", "r+") as file:
        file["positions"][3, 1] += 1e-9


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: patterns(folder, 0), "differ in patterns;"),
        (lambda folder: patterns(folder, VIEWS - 1), "differ in patterns;"),
        (positions, "differ in file, positions;"),
        (array("mask", (3, 3), 0), "differ in mask"),
        (array("dark", (3, 3), 0.75), "differ in dark;"),
        (array("flat", (3, 3), 1.7), "differ in flat or gain;"),
        (array("background", (3, 3), 2.5), "differ in background;"),
        (array("intensity", 3, 1.5), "differ in intensity;"),
    ],
)
def test_what_changed_is_named(tmp_path: Path, change: Callable[[Path], None], said: str) -> None:
    made(tmp_path / "data")
    before = identity.digests_of_scan(read(tmp_path / "data"))
    change(tmp_path / "data")
    with pytest.raises(BadInput) as error:
        identity.check(before, read(tmp_path / "data"), World())
    assert said in str(error.value) and str(error.value).count(str(tmp_path / "data" / "scan.h5")) == 2
    assert "\n" not in str(error.value) and "--other-data" in str(error.value)


def test_the_same_data_elsewhere_are_the_same(tmp_path: Path) -> None:
    made(tmp_path / "data")
    before = identity.digests_of_scan(read(tmp_path / "data", 30))
    shutil.copytree(tmp_path / "data", tmp_path / "moved")
    found = identity.check(before, read(tmp_path / "moved", 30), World())
    assert found == before | {"path": str(tmp_path / "moved" / "scan.h5")}


def test_rounding_is_no_difference(tmp_path: Path) -> None:
    """Another machine computes positions that differ in the last bits."""
    made(tmp_path / "data")
    scan = read(tmp_path / "data")
    before = identity.digests_of_scan(scan)
    rounded = replace(scan, stored_positions=np.nextafter(scan.stored_positions, 1))
    assert identity.check(before, rounded, World()) == before


def test_all_of_it_on_request(tmp_path: Path) -> None:
    """A sample does not see every view; all of them do."""
    made(tmp_path / "data")
    scan = read(tmp_path / "data")
    sample, whole = identity.digests_of_scan(scan), identity.digests_of_scan(scan, "all")
    patterns(tmp_path / "data", 3)
    identity.check(sample, read(tmp_path / "data"), World())
    with pytest.raises(BadInput, match="differ in patterns;"):
        identity.check(whole, read(tmp_path / "data"), World())


def test_views_are_not_exchanged_for_each_other() -> None:
    scan = in_memory()
    turned = replace(scan, patterns=ArraySource(scan.patterns.read(np.arange(VIEWS)[::-1])))
    with pytest.raises(BadInput, match="differ in patterns;"):
        identity.check(identity.digests_of_scan(scan, "all"), turned, World())


@pytest.mark.parametrize("saved", [None, 3, [], {"file": 1}, {"patterns": None}])
def test_what_no_checkpoint_says(saved: object) -> None:
    with pytest.raises(BadInput, match="does not say which data"):
        identity.check(saved, in_memory(), World())


def in_memory() -> Measurement:
    rng = np.random.default_rng(1)
    counts = rng.integers(0, 99, (VIEWS, 16, 16)).astype(np.uint16)
    return Measurement(ArraySource(counts), rng.uniform(0, 9, (VIEWS, 2)), Geometry((16, 16)), np.ones((16, 16), bool))


def on_ranks(world: World) -> tuple[str, str]:
    """Each looks at its share; where one rank's file is another's, all hear of it."""
    scan = in_memory()
    whole = identity.digests_of_scan(scan, "all", world)
    counts = scan.patterns.read(np.arange(VIEWS)).copy()
    counts[20] += world.rank == 1  # what rank 1 looks at, on two ranks and on three: views lie side by side
    try:
        identity.check(whole, replace(scan, patterns=ArraySource(counts)), world)
    except BadInput as error:
        return whole["patterns"], str(error)
    return whole["patterns"], ""


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_share_the_work_and_agree(ranks: Callable[..., list[tuple[str, str]]], size: int) -> None:
    alone = identity.digests_of_scan(in_memory(), "all")["patterns"]
    for digest, said in ranks(size, on_ranks):
        assert digest == alone and "differ in patterns;" in said
