"""Pairs NAME_dp and NAME_para: order of axes, signs and units of fold_slice, and products of Ptychodus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ptymesh.errors import BadInput

ENERGY = {"energy_eV": 8.8e3, "distance_m": 2.0, "detector_pixel_m": 75e-6}
Y, X = np.array([0, 0, 1, 1, 2, 2.5]) * 1e-6, np.array([0, 1, 0, 1, 0, 1.5]) * 1e-6


@pytest.fixture
def counts() -> np.ndarray:
    return np.random.default_rng(3).poisson(9, (6, 16, 20)).astype(np.uint16)


@pytest.fixture
def fold_slice(tmp_path: Path, counts: np.ndarray) -> Path:
    path = tmp_path / "data_roi0_Ndp128_dp.hdf5"
    with h5py.File(path, "w") as file:
        file["dp"] = counts.transpose(0, 2, 1)
    with h5py.File(tmp_path / "data_roi0_Ndp128_para.hdf5", "w") as file:
        file["ppX"], file["ppY"] = X, Y
    return path


def test_fold_slice(fold_slice: Path, counts: Any, load: Any, upright: Any) -> None:
    m = load(fold_slice, radiation="photon", **ENERGY)
    np.testing.assert_array_equal(upright(m), counts)
    moved = (m.positions - m.positions[0]) * m.geometry.object_pixel_m
    np.testing.assert_allclose(moved, -np.stack([Y, X], axis=1), atol=1e-12)
    assert m.name == "data_roi0_Ndp128"
    assert any("taken in m" in note for note in m.notes)


def test_units_of_fold_slice_are_asked_for(fold_slice: Path, load: Any) -> None:
    with pytest.raises(
        BadInput, match=r"in metres .* of photons, and in angstrom if of electrons: set data\.radiation"
    ):
        load(fold_slice, wavelength_m=1e-10, distance_m=2.0, detector_pixel_m=75e-6)


def test_fold_slice_of_electrons(fold_slice: Path, load: Any) -> None:
    with h5py.File(fold_slice.with_name("data_roi0_Ndp128_para.hdf5"), "r+") as file:
        file["ppX"][:], file["ppY"][:] = X * 1e6, Y * 1e6
    m = load(fold_slice, radiation="electron", energy_eV=80e3, object_pixel_m=2e-11)
    moved = (m.positions - m.positions[0]) * m.geometry.object_pixel_m
    np.testing.assert_allclose(moved, -1e-4 * np.stack([Y, X], axis=1), atol=1e-15)


def test_coordinates_that_do_not_pair(fold_slice: Path, load: Any) -> None:
    beside = fold_slice.with_name("data_roi0_Ndp128_para.hdf5")
    with h5py.File(beside, "r+") as file:
        del file["ppX"]
        file["ppX"] = X[:4]
    with pytest.raises(BadInput, match=r"ppY in .* has 6 values and /ppX 4"):
        load(fold_slice, radiation="photon", **ENERGY)
    beside.unlink()
    with pytest.raises(BadInput, match=r"no layout that is known"):
        load(fold_slice, radiation="photon", **ENERGY)


def test_ptychodus(tmp_path: Path, counts: Any, load: Any, upright: Any) -> None:
    path = tmp_path / "ptychodus_dp.hdf5"
    probe = np.random.default_rng(1).normal(size=(1, 2, 16, 20)) + 0j
    with h5py.File(path, "w") as file:
        file["dp"] = counts
    with h5py.File(tmp_path / "ptychodus_para.hdf5", "w") as file:
        file.attrs.update(probe_energy_eV=8.8e3, detector_object_distance_m=1.92)
        file["probe"] = probe
        file["probe"].attrs.update(pixel_height_m=11e-9, pixel_width_m=12e-9)
        file["probe_position_y_m"], file["probe_position_x_m"] = Y, X
    m = load(path)
    np.testing.assert_array_equal(upright(m), counts)
    assert m.geometry.energy_eV == pytest.approx(8.8e3) and m.geometry.distance_m == pytest.approx(1.92)
    assert m.geometry.object_pixel_m == pytest.approx((11e-9, 12e-9))
    moved = (m.positions - m.positions[0]) * m.geometry.object_pixel_m
    np.testing.assert_allclose(moved, np.stack([Y, X], axis=1), atol=1e-12)
    assert m.probe is not None and m.probe.shape == (2, 16, 20)
