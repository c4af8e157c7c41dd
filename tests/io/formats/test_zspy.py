"""hyperspy's signals in zarr stores, written to the documented layout by zarr itself."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptymesh.errors import BadInput
from ptymesh.io.fingerprint import fingerprint
from ptymesh.io.formats.zarr_store import ZarrSource
from ptymesh.paths import is_data

SCAN = [(0.5, "nm", True), (0.25, "nm", True)]
DETECTOR = [(0.2, "1/nm", False), (0.2, "1/nm", False)]
#: (version, whether a zip file, views that a chunk spans along a row)
KINDS = [(2, False, 1), (3, False, 1), (3, True, 1), (2, True, 2), (3, False, 2)]


@pytest.fixture
def counts() -> np.ndarray:
    return np.random.default_rng(3).poisson(9, (3, 4, 16, 16)).astype(np.uint16)


@pytest.fixture
def write(write_store: Any) -> Any:
    def write(path: Path, counts: np.ndarray, kind: tuple[int, bool, int] = (2, False, 1), **options: Any) -> Path:
        name = "Experiments/scan"
        groups: dict[str, dict[str, Any]] = {"": {"file_format": "ZSpy", "file_format_version": "3.3"}, name: {}}
        for index, (scale, unit, navigate) in enumerate(SCAN + DETECTOR):
            groups[f"{name}/axis-{index}"] = {"scale": scale, "units": unit, "offset": 0.0, "navigate": navigate}
        groups[f"{name}/metadata/Acquisition_instrument/TEM"] = {"beam_energy": 200.0}
        return write_store(path, kind, {f"{name}/data": counts}, groups, **options)

    return write


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_the_store_says(tmp_path: Path, write: Any, counts: Any, load: Any, upright: Any, kind: Any) -> None:
    m = load(write(tmp_path / "scan.zspy", counts, kind))
    np.testing.assert_array_equal(upright(m), counts.reshape(-1, 16, 16))
    np.testing.assert_array_equal(m.patterns.read(np.array([7, 2, 3])), m.patterns.read(np.arange(12))[[7, 2, 3]])
    assert m.geometry.energy_eV == pytest.approx(200e3) and m.geometry.radiation == "electron"
    assert m.geometry.object_pixel_m == pytest.approx((1 / (16 * 0.2e9),) * 2)
    step = (m.positions[5] - m.positions[0]) * m.geometry.object_pixel_m
    np.testing.assert_allclose(step, (0.5e-9, 0.25e-9), rtol=1e-9)


def test_pickled_chunks_are_refused(tmp_path: Path, write: Any, counts: Any, load: Any) -> None:
    path = write(tmp_path / "scan.zspy", counts)
    described = path / "Experiments/scan/data/.zarray"
    said = json.loads(described.read_text())
    described.write_text(json.dumps(said | {"filters": [{"id": "pickle", "protocol": 5}]}))
    with pytest.raises(BadInput, match="is packed by 'pickle', which is not read"):
        load(path)


def test_damaged_chunks(tmp_path: Path, write: Any, counts: Any, load: Any) -> None:
    path = write(tmp_path / "scan.zspy", counts)
    m = load(path)
    for chunk in (path / "Experiments/scan/data").rglob("*"):
        if chunk.is_file() and not chunk.name.startswith("."):
            chunk.write_bytes(b"x" * 30)
    with pytest.raises(BadInput, match="it is incomplete or damaged"):
        m.patterns.read(np.arange(12))


def test_other_stores_and_folders(tmp_path: Path, write_store: Any, counts: Any, load: Any) -> None:
    path = write_store(tmp_path / "a.zarr", (3, False, 1), {"a": counts}, {"": {}})
    with pytest.raises(BadInput, match="is a zarr store, but of no layout that is known"):
        load(path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadInput, match="is a folder without data; give the path of a data set"):
        load(tmp_path / "folder")


def test_parts_are_read_in_other_processes_too(tmp_path: Path, write: Any, counts: Any) -> None:
    source = ZarrSource(write(tmp_path / "scan.zspy", counts), "Experiments/scan/data")
    copy = pickle.loads(pickle.dumps(source))  # noqa: S301 (its own bytes)
    part = copy.read(np.array([7, 2, 3]), slice(2, 5), slice(3, 9))
    np.testing.assert_array_equal(part, counts.reshape(12, 16, 16)[[7, 2, 3], 2:5, 3:9])


def test_digests_follow_the_content(tmp_path: Path, write: Any, counts: Any) -> None:
    path = write(tmp_path / "a.zspy", counts, compressors=None)
    shutil.copytree(path, tmp_path / "b.zspy")
    assert fingerprint(path) == fingerprint(tmp_path / "b.zspy")
    chunk = next(
        one for one in sorted((tmp_path / "b.zspy/Experiments/scan/data").rglob("*")) if "." not in one.name[0]
    )
    while chunk.is_dir():
        chunk = next(iter(sorted(chunk.iterdir())))
    content = bytearray(chunk.read_bytes())
    content[0] ^= 1
    chunk.write_bytes(content)
    assert fingerprint(path) != fingerprint(tmp_path / "b.zspy")


def test_zarr_is_imported_when_a_store_is_read_alone(tmp_path: Path) -> None:
    code = "import sys, ptymesh.io.load; sys.exit('zarr' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == 0


def test_the_command_line_tells_stores_from_folders(tmp_path: Path, write: Any, counts: Any) -> None:
    (tmp_path / "folder").mkdir()
    assert is_data(write(tmp_path / "scan.zspy", counts)) and not is_data(tmp_path / "folder")
