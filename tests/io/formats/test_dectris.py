"""Dectris masters: several data files, pixel mask, compression, counts that disagree, units, and what lies beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest

from ptymesh.errors import BadInput

DETECTOR = "entry/instrument/detector"
SPECIFIC = f"{DETECTOR}/detectorSpecific"
RASTER = {"raster": {"step_px": 2}}


@pytest.fixture
def frames() -> np.ndarray:
    return np.random.default_rng(4).poisson(9, (12, 16, 20)).astype(np.uint16)


@pytest.fixture
def master(tmp_path: Path, frames: np.ndarray) -> Path:
    """Of 12 frames in data files of 5, 5 and 2, each frame a chunk, compressed as the detector does."""
    path = tmp_path / "scan_master.h5"
    with h5py.File(path, "w") as file:
        for index, start in enumerate((0, 5, 10), 1):
            part = tmp_path / f"scan_data_{index:06d}.h5"
            with h5py.File(part, "w") as other:
                some = frames[start : start + 5]
                other.create_dataset("entry/data/data", data=some, chunks=(1, 16, 20), **hdf5plugin.Bitshuffle())
            file[f"entry/data/data_{index:06d}"] = h5py.ExternalLink(part.name, "/entry/data/data")
        file[f"{DETECTOR}/description"] = np.bytes_(b"Dectris ARINA CZT")
        for name, value, unit in (
            (f"{SPECIFIC}/photon_energy", 80e3, "eV"),
            (f"{DETECTOR}/detector_distance", 500.0, "mm"),
            (f"{DETECTOR}/x_pixel_size", 100.0, "um"),
            (f"{DETECTOR}/y_pixel_size", 1e-4, "m"),
        ):
            file[name] = value
            file[name].attrs["units"] = np.bytes_(unit.encode())
        file[f"{SPECIFIC}/nimages"], file[f"{SPECIFIC}/ntrigger"] = 1, 12
        mask = np.zeros((16, 20), np.uint32)
        mask[3, 4], mask[7] = 16, 1
        file[f"{SPECIFIC}/pixel_mask"] = mask
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file.create_group("STEM Metadata").attrs.update(NumPixelsX=4, NumPixelsY=3)
    return path


def change(path: Path, name: str, value: Any, unit: str | None = None) -> None:
    with h5py.File(path, "r+") as file:
        file.pop(name, None)
        if value is not None:
            file[name] = value
        if unit is not None:
            file[name].attrs["units"] = unit


def test_a_master(master: Path, frames: Any, load: Any, upright: Any) -> None:
    m = load(master, RASTER)
    mask = np.ones((16, 20), bool)
    mask[3, 4] = mask[7] = False
    np.testing.assert_array_equal(upright(m), frames * mask)
    np.testing.assert_array_equal(np.fft.fftshift(m.mask), mask)
    np.testing.assert_array_equal(
        m.patterns.read(np.array([11, 0, 6, 4, 5])), np.fft.ifftshift((frames * mask)[[11, 0, 6, 4, 5]], axes=(1, 2))
    )
    assert m.geometry.radiation == "electron" and m.geometry.energy_eV == pytest.approx(80e3)
    assert m.geometry.distance_m == 0.5 and m.geometry.detector_pixel_m == pytest.approx((1e-4, 1e-4))
    np.testing.assert_array_equal(m.positions[4] - m.positions[0], (2, 0))
    with pytest.raises(BadInput, match=r"set positions\.raster\.step_m"):
        load(master)


def test_what_is_missing(master: Path, load: Any) -> None:
    master.with_name("scan.h5").unlink()
    with pytest.raises(BadInput, match="12 patterns and no positions"):
        load(master)
    change(master, f"{DETECTOR}/detector_distance", 0.0, "m")
    m = load(master, {"raster": {"shape": [3, 4], "step_px": 2}})
    assert m.geometry.distance_m is None and any("distance is zero" in note for note in m.notes)
    with pytest.raises(BadInput, match=r"object pixel is unknown; set data\.object_pixel_m, .* data\.distance_m"):
        load(master, {"raster": {"shape": [3, 4], "step_m": 1e-10}})


@pytest.mark.parametrize(
    ("name", "value", "unit", "word"),
    [
        (f"{SPECIFIC}/ntrigger", 16, None, r"16 triggers of 1 images, and its data files hold 12 frames"),
        (f"{SPECIFIC}/photon_energy", 80.0, None, r"is 80 and says no unit; .* set data\.energy_eV"),
        (f"{SPECIFIC}/photon_energy", 80.0, "kilovolts", r"is in 'kilovolts'; known are j, ev, kev"),
        (f"{SPECIFIC}/photon_energy", 80.0, "eV", r"no energy of such a beam \(80 eV\)"),
        (f"{DETECTOR}/detector_distance", 500.0, None, r"is 500 and says no unit; .* set data\.distance_m"),
        (f"{DETECTOR}/x_pixel_size", 100.0, None, r"is 100 and says no unit; .* set data\.detector_pixel_m"),
        (f"{SPECIFIC}/pixel_mask", np.zeros((20, 16)), None, r"has shape \(20, 16\), and its frames \(16, 20\)"),
        ("entry/data/data_000002", None, None, "has no data_000002, but later ones"),
    ],
)
def test_contradictions(master: Path, load: Any, name: str, value: Any, unit: str | None, word: str) -> None:
    change(master, name, value, unit)
    with pytest.raises(BadInput, match=word) as error:
        load(master, RASTER)
    assert "\n" not in str(error.value)


def test_units_are_honoured_and_replaced(master: Path, load: Any) -> None:
    change(master, f"{SPECIFIC}/photon_energy", 80.0, "keV")
    assert load(master, RASTER).geometry.energy_eV == pytest.approx(80e3)
    change(master, f"{SPECIFIC}/photon_energy", 80.0)
    assert load(master, RASTER, energy_eV=6e4).geometry.energy_eV == pytest.approx(6e4)


def test_data_files(master: Path, frames: Any, load: Any) -> None:
    second = master.with_name("scan_data_000002.h5")
    content = second.read_bytes()
    second.write_bytes(content[: len(content) // 2])
    with pytest.raises(BadInput, match="scan_data_000002"):
        load(master, RASTER).patterns.read(np.arange(12))
    second.unlink()
    with pytest.raises(BadInput, match=r"'scan_data_000002\.h5', which is not there: copy it to"):
        load(master, RASTER)
    with h5py.File(second, "w") as file:
        file["entry/data/data"] = frames[:5, :8]
    with pytest.raises(BadInput, match=r"data_000002 .* \(8, 20\) uint16, and /entry/data/data_000001 of \(16, 20\)"):
        load(master, RASTER)


def test_a_stopped_acquisition(master: Path, load: Any) -> None:
    change(master, f"{SPECIFIC}/ntrigger", 16)
    m = load(master, RASTER, frames={"shape": [3, 4]})
    assert m.views == 12 and any("16 triggers" in note for note in m.notes)


def test_the_files_of_instruments(samples: Path, load: Any) -> None:
    m = load(samples / "test_00_master.h5", RASTER)
    assert m.patterns.shape == (16, 192, 192) and m.geometry.energy_eV == pytest.approx(300e3)
    assert m.patterns.read(np.arange(16)).max() == 0 and m.geometry.detector_pixel_m == (1e-4, 1e-4)
    m = load(samples / "arina_fixture_master.h5", RASTER)
    assert m.geometry.distance_m == 0.1 and m.geometry.detector_pixel_m == pytest.approx((75e-6, 75e-6))
    assert not m.mask.all()
