"""Files of SOLEIL and of ESRF ID16A: groups of any name, stages in mm and in text, gaps between chips."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ptymesh.errors import BadInput
from ptymesh.io.formats.changed_source import GapSource
from ptymesh.io.source import Hdf5Source

BEAM = {"energy_eV": 8e3, "distance_m": 2.0, "detector_pixel_m": 75e-6}
Y, X = np.array([0, 0, 1, 1, 2, 2.5]) * 1e-6, np.array([0, 1, 0, 1, 0, 1.5]) * 1e-6


@pytest.fixture
def counts() -> np.ndarray:
    return np.random.default_rng(3).poisson(9, (6, 16, 20)).astype(np.uint16)


def metres(measurement: Any) -> np.ndarray:
    """Return positions against the first one, in metres."""
    found: np.ndarray = (measurement.positions - measurement.positions[0]) * measurement.geometry.object_pixel_m
    return found


def scan_data(path: Path, arrays: dict[str, Any], others: dict[str, Any] | None = None) -> Path:
    """Write a flyscan, whose group has the name of the scan."""
    with h5py.File(path, "w") as file:
        for name, value in ({f"scan_data/{name}": value for name, value in arrays.items()} | (others or {})).items():
            file[f"ptycho_00042/{name}"] = value
    return path


@pytest.mark.parametrize("shape", [(6, 16, 20), (6, 1, 16, 20), (2, 3, 16, 20)])
def test_swing(tmp_path: Path, counts: Any, load: Any, upright: Any, shape: tuple[int, ...]) -> None:
    arrays = {"eiger_image": counts.reshape(shape), "tz4": Y * 1e3, "tx4": X * 1e3}
    detector = {"distance": [6000.0], "pixel_size_x": [75.0], "pixel_size_z": [80.0]}
    others = {f"SWING/EIGER-4M/{name}": value for name, value in detector.items()}
    m = load(scan_data(tmp_path / "a.nxs", arrays, others), energy_eV=8e3)
    np.testing.assert_array_equal(upright(m), counts)
    np.testing.assert_allclose(metres(m), np.stack([Y, X], axis=1), atol=1e-12)
    assert m.geometry.distance_m == pytest.approx(6) and m.geometry.detector_pixel_m == pytest.approx((80e-6, 75e-6))
    with pytest.raises(BadInput, match=r"set data\.energy_eV|the energy"):
        load(scan_data(tmp_path / "b.nxs", arrays, others))


def test_stages_that_do_not_pair(tmp_path: Path, counts: Any, load: Any) -> None:
    path = scan_data(tmp_path / "a.nxs", {"eiger_image": counts, "tz4": Y, "tx4": X[:4]})
    with pytest.raises(BadInput, match=r"tz4 in .* has 6 values and .*tx4 4; mend them"):
        load(path, **BEAM)


@pytest.mark.parametrize("letter", ["x", "X"])
def test_nanoscopium_gets_its_gaps(tmp_path: Path, load: Any, upright: Any, letter: str) -> None:
    stored = np.random.default_rng(1).poisson(2, (2, 3, 512, 512)).astype(np.uint8)
    places = {"sample_Piezo_Tz": Y * 1e3, f"sample_Piezo_T{letter}": X * 1e3}
    m = load(scan_data(tmp_path / "a.nxs", {"Image_merlin_image": stored} | places), energy_eV=8e3, distance_m=3.265)
    found, mask = upright(m), np.fft.fftshift(m.mask)
    assert found.shape == (6, 516, 516) and not mask[255:261].any() and not mask[:, 255:261].any()
    assert (~mask).sum() == 516**2 - 510**2
    chips = np.delete(np.delete(found, np.s_[256:260], axis=1), np.s_[256:260], axis=2)
    good = np.delete(np.delete(mask, np.s_[256:260], axis=0), np.s_[256:260], axis=1)
    np.testing.assert_array_equal(chips, np.where(good, stored.reshape(6, 512, 512), 0))
    np.testing.assert_allclose(metres(m), np.stack([Y, -X], axis=1), atol=1e-12)


def test_parts_across_a_gap(tmp_path: Path, counts: Any) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"] = counts
    source = pickle.loads(pickle.dumps(GapSource(Hdf5Source(tmp_path / "a.h5", "a"), 3)))  # noqa: S301 (its own)
    expected = np.zeros((6, 19, 23), counts.dtype)
    expected[np.ix_(range(6), [*range(8), *range(11, 19)], [*range(10), *range(13, 23)])] = counts
    for rows, columns in ((slice(0, 19), slice(0, 23)), (slice(5, 13), slice(11, 20)), (slice(8, 11), slice(0, 4))):
        np.testing.assert_array_equal(source.read(np.array([4, 0]), rows, columns), expected[[4, 0], rows, columns])


def test_cristal_asks_for_the_unit(tmp_path: Path, counts: Any, load: Any) -> None:
    path = scan_data(tmp_path / "a.nxs", {"data_04": counts, "trajectory_1_1": X * 1e9, "trajectory_1_2": Y * 1e9})
    with pytest.raises(BadInput, match=r"trajectory_1_1 in .* say no unit: set positions\.unit"):
        load(path, **BEAM)
    np.testing.assert_allclose(metres(load(path, {"unit": "nm"}, **BEAM)), np.stack([Y, X], axis=1), atol=1e-12)


def id16a(path: Path, counts: np.ndarray, spy: str, spz: str) -> Path:
    with h5py.File(path, "w") as file:
        file["entry_0000/measurement/data"] = counts
        header = file.create_group("entry_0000/instrument/Frelon/header")
        header["spy"], header["spz"] = spy, np.bytes_(spz)
    return path


def test_id16a(tmp_path: Path, counts: Any, load: Any, upright: Any) -> None:
    spy, spz = (" ".join(f"{value * 1e6:.4f}" for value in values) for values in (X, Y))
    m = load(id16a(tmp_path / "a.h5", counts, spy, spz), **BEAM)
    np.testing.assert_array_equal(upright(m), counts)
    np.testing.assert_allclose(metres(m), np.stack([Y, -X], axis=1), atol=1e-12)
    with pytest.raises(BadInput, match=r"spy in .* holds 5 numbers, and there are 6 patterns"):
        load(id16a(tmp_path / "b.h5", counts, spy.rpartition(" ")[0], spz), **BEAM)
    with pytest.raises(BadInput, match=r"spz in .* holds other words than numbers"):
        load(id16a(tmp_path / "b.h5", counts, spy, spz.replace("1.0000", "none")), **BEAM)
