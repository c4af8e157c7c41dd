"""Folders as the data sets of a batch."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tifffile
import zarr

from ptymesh.beamtime.scan_files import files_of_scan, is_scan, size_and_time
from ptymesh.beamtime.scan_run import ScanRun
from ptymesh.cli.batch import _find_scans
from ptymesh.errors import BadInput
from ptymesh.io import load_measurement
from ptymesh.recipe.schema import load_recipe


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two scans of 12 TIFF files each, one zarr store, and a folder that is no data set."""
    root = tmp_path_factory.mktemp("scans")
    rng = np.random.default_rng(3)
    for scan in ("scan_2", "scan_10"):
        (root / scan).mkdir()
        for view in range(12):
            tifffile.imwrite(root / scan / f"frame_{view}.tif", rng.poisson(9, (16, 16)).astype(np.uint16))
        (root / scan / "notes.txt").write_text("12 frames")
    zarr.save_group(root / "stored.zarr", patterns=rng.poisson(9, (3, 4, 16, 16)).astype(np.uint16))
    (root / "empty").mkdir()
    return root


def test_folders_are_found_as_scans(folders: Path) -> None:
    assert _find_scans([str(folders / "*")]) == [folders / one for one in ("scan_2", "scan_10", "stored.zarr")]
    assert not is_scan(folders / "empty") and not is_scan(folders / "none")
    with pytest.raises(
        BadInput, match=r"empty is a folder, but no data set; give those in it, such as '.*empty/\*\.cxi'"
    ):
        _find_scans([str(folders / "empty")])
    with pytest.raises(BadInput, match="There is no file"):
        _find_scans([str(folders / "none*")])


def test_all_files_of_a_folder_are_one_scan(folders: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("data: {path: none.cxi, radiation: photon, energy_eV: 8 keV, object_pixel_m: 10 nm}\n"
                      "positions: {raster: {shape: [3, 4], step_m: 50 nm}}\n")  # fmt: skip
    words = ScanRun(folders / "scan_2", tmp_path / "out", recipe, ["seed=1"]).arguments()
    made = load_recipe(recipe, [setting for key, setting in pairwise(words) if key == "--set"])
    assert load_measurement(made.data, made.positions).views == 12 and made.seed == 1
    words = ScanRun(folders / "stored.zarr", tmp_path / "out", recipe, ()).arguments()
    assert words[-1] == f"data.path={folders / 'stored.zarr'}"
    words = ScanRun(folders / "scan_2", tmp_path / "out", None, ()).arguments()
    assert words[:2] == ["run", str(folders / "scan_2" / "frame_0.tif")] and "data.further=" in words[-1]
    assert files_of_scan(folders / "stored.zarr") == (folders / "stored.zarr", None)


def test_a_changed_file_in_a_folder_is_a_changed_scan(folders: Path, tmp_path: Path) -> None:
    scan = shutil.copytree(folders / "scan_2", tmp_path / "scan")
    before = ScanRun(scan, tmp_path / "out", None, ()).request()
    assert ScanRun(scan, tmp_path / "out", None, ()).request() == before
    bytes_before, _ = size_and_time(scan)
    tifffile.imwrite(scan / "frame_12.tif", np.ones((16, 16), np.uint16))
    assert size_and_time(scan)[0] > bytes_before
    assert ScanRun(scan, tmp_path / "out", None, ()).request() != before
