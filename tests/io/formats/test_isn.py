"""APS ISN: a master with links to files of frames, numbers of the beam, and positions of another file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ptymesh.errors import BadInput


@pytest.fixture
def counts() -> np.ndarray:
    return np.random.default_rng(3).poisson(9, (6, 16, 20)).astype(np.uint32)


def master(folder: Path, parts: list[np.ndarray], target: str) -> Path:
    with h5py.File(folder / "isn.h5", "w") as file:
        for k, part in enumerate(parts):
            with h5py.File(folder / f"frames_{k}.h5", "w") as other:
                other["entry/data/data"] = part
            file[f"PTYCHO/link_{k:03d}"] = h5py.ExternalLink(f"frames_{k}.h5", target)
        said = {"det_dist_mm": 1.9, "pix_size_x": 75e-6, "pix_size_y": 80e-6, "photon_energy_eV": 9000.0}
        for name, value in said.items():
            file[f"configs/{name}"] = value
    return folder / "isn.h5"


@pytest.mark.parametrize("target", ["/", "/entry/data/data"])
def test_a_master(tmp_path: Path, counts: Any, load: Any, upright: Any, target: str) -> None:
    path = master(tmp_path, [counts[:4], counts[4:]], target)
    with pytest.raises(BadInput, match="6 patterns and no positions"):
        load(path)
    places = np.random.default_rng(1).uniform(0, 1e-6, (6, 2))
    np.save(tmp_path / "places.npy", places)
    m = load(path, keys={"positions": "places.npy"})
    np.testing.assert_array_equal(upright(m), counts)
    assert m.geometry.energy_eV == pytest.approx(9000) and m.geometry.distance_m == pytest.approx(1.9)
    assert m.geometry.detector_pixel_m == pytest.approx((80e-6, 75e-6))
    moved = (m.positions - m.positions[0]) * m.geometry.object_pixel_m
    np.testing.assert_allclose(moved, places - places[0], atol=1e-12)


def test_files_that_are_missing_or_others(tmp_path: Path, counts: Any, load: Any) -> None:
    path = master(tmp_path, [counts[:4], counts[4:, :8]], "/")
    with pytest.raises(BadInput, match=r"link_001/entry/data/data of .* holds frames of \(8, 20\) uint32, and"):
        load(path)
    (tmp_path / "frames_1.h5").unlink()
    with pytest.raises(BadInput) as error:
        load(path)
    assert "frames_1" in str(error.value) or "link_001" in str(error.value)
