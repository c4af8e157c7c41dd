"""ptypy's prepared data: chunks, numbers that are missing, weights of a chunk and of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ptymesh.errors import BadInput

Y, X = np.array([0, 0, 1, 1, 2, 2.5]) * 1e-6, np.array([0, 1, 0, 1, 0, 1.5]) * 1e-6


@pytest.fixture
def counts() -> np.ndarray:
    return np.random.default_rng(3).poisson(9, (6, 16, 16)).astype(np.uint16)


def write(path: Path, counts: np.ndarray, weights: np.ndarray | None = None, **meta: Any) -> Path:
    """Write a .ptyd of two chunks, of 4 and of 2 views."""
    said = {
        "energy": 7.2,
        "distance": 7.0,
        "psize": np.array([172e-6, 172e-6]),
        "num_frames": 6,
        "propagation": "farfield",
    }
    with h5py.File(path, "w") as file:
        for name, value in (said | meta).items():
            file[f"meta/{name}"] = value
        for number, part in enumerate((slice(0, 4), slice(4, 6))):
            file[f"chunks/{number}/data"] = counts[part]
            file[f"chunks/{number}/indices"] = np.arange(6)[part]
            file[f"chunks/{number}/positions"] = np.stack([Y, X], axis=1)[part]
            file[f"chunks/{number}/weights"] = np.empty(0) if weights is None else weights[part]
    return path


def test_chunks_are_joined(tmp_path: Path, counts: Any, load: Any, upright: Any) -> None:
    m = load(write(tmp_path / "scan.ptyd", counts))
    np.testing.assert_array_equal(upright(m), counts)
    assert m.geometry.energy_eV == pytest.approx(7200) and m.geometry.distance_m == 7.0
    assert m.geometry.detector_pixel_m == pytest.approx((172e-6, 172e-6)) and m.geometry.radiation == "photon"
    moved = (m.positions - m.positions[0]) * m.geometry.object_pixel_m
    np.testing.assert_allclose(moved, np.stack([Y, X], axis=1), atol=1e-12)


def test_what_is_missing_is_asked_for(tmp_path: Path, counts: Any, load: Any) -> None:
    path = write(tmp_path / "scan.ptyd", counts, energy="None", distance="None")
    m = load(path, energy_eV=7.2e3, distance_m=7.0)
    assert m.geometry.energy_eV == pytest.approx(7200) and m.geometry.distance_m == 7.0


def test_weights_of_all_views(tmp_path: Path, counts: Any, load: Any, upright: Any) -> None:
    weight = np.ones((16, 16))
    weight[3, 5] = 0
    m = load(write(tmp_path / "scan.ptyd", counts, weight2d=weight))
    np.testing.assert_array_equal(upright(m), counts * weight)
    assert not np.fft.fftshift(m.mask)[3, 5] and m.mask.sum() == 255


def test_weights_of_each_view(tmp_path: Path, counts: Any, load: Any, upright: Any) -> None:
    weights = np.ones(counts.shape)
    weights[4, 3, 5] = 0
    m = load(write(tmp_path / "scan.ptyd", counts, weights))
    np.testing.assert_array_equal(upright(m), np.where(weights > 0, counts.astype(int), -1))  # -1: missing


def test_both_numbers_are_said(tmp_path: Path, counts: Any, load: Any) -> None:
    m = load(write(tmp_path / "scan.ptyd", counts, num_frames=9))
    assert any("says 9 frames, and its 2 chunks hold 6" in note for note in m.notes)


def test_chunks_that_do_not_fit(tmp_path: Path, counts: Any, load: Any) -> None:
    path = write(tmp_path / "scan.ptyd", counts)
    with h5py.File(path, "r+") as file:
        del file["chunks/1/positions"]
        file["chunks/1/positions"] = np.zeros((3, 2))
    with pytest.raises(BadInput, match=r"/chunks/1/positions in .* has shape \(3, 2\), and the chunk has 2 patterns"):
        load(path)
    with h5py.File(path, "r+") as file:
        del file["chunks/1/data"]
        file["chunks/1/data"] = counts[:2, :8]
    with pytest.raises(BadInput, match=r"holds frames of \(8, 16\) uint16, and /chunks/0/data of \(16, 16\) uint16"):
        load(path)
