"""Files with the names of beamlines and programs: patterns, positions, units and numbers come as each layout says."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ptymesh.errors import BadInput
from ptymesh.io.formats.beamlines import LAYOUTS
from ptymesh.io.formats.changed_source import squared
from ptymesh.io.source import Hdf5Source

ENERGY = {"energy_eV": 8.8e3, "distance_m": 2.0, "detector_pixel_m": 75e-6}


@pytest.fixture
def counts() -> np.ndarray:
    return np.random.default_rng(3).poisson(9, (6, 16, 16)).astype(np.uint16)


def write(path: Path, **arrays: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, value in arrays.items():
            file[name.replace("__", "/")] = value
    return path


def metres(measurement: Any) -> np.ndarray:
    """Return positions against the first one, in metres."""
    found: np.ndarray = (measurement.positions - measurement.positions[0]) * measurement.geometry.object_pixel_m
    return found


Y, X = np.array([0, 0, 1, 1, 2, 2.5]) * 1e-6, np.array([0, 1, 0, 1, 0, 1.5]) * 1e-6


def hxn(path: Path, counts: np.ndarray, **changed: Any) -> Path:
    arrays = {"diffamp": np.sqrt(counts).astype(np.float32), "points": np.stack([X, Y]) * 1e6}
    return write(path, **arrays | {"lambda_nm": 0.1, "z_m": 2.05, "ccd_pixel_um": 55.0, "angle": 15.0} | changed)


def test_amplitudes_of_hxn_become_counts(tmp_path: Path, counts: Any, load: Any, upright: Any) -> None:
    m = load(hxn(tmp_path / "scan.h5", counts))
    np.testing.assert_array_equal(upright(m), counts)  # whole again, as what judges noise takes others for no counts
    assert m.geometry.wavelength_m == pytest.approx(1e-10) and m.geometry.distance_m == 2.05
    assert m.geometry.detector_pixel_m == pytest.approx((55e-6, 55e-6))
    np.testing.assert_allclose(metres(m), np.stack([Y, X], axis=1), atol=1e-12)
    assert any("amplitudes" in note for note in m.notes)


def test_pairs_of_hxn_that_cannot_be_told(tmp_path: Path, counts: Any, load: Any) -> None:
    with pytest.raises(BadInput, match=r"/points in .* has shape \(2, 2\), which can be read either way"):
        load(hxn(tmp_path / "scan.h5", counts[:2], points=np.eye(2)))
    with pytest.raises(BadInput, match=r"/points in .* has shape \(6, 3\), and there are 6 patterns"):
        load(hxn(tmp_path / "scan.h5", counts, points=np.zeros((6, 3))))
    with pytest.raises(BadInput, match="holds 6 patterns, but there are 5 positions"):
        load(hxn(tmp_path / "scan.h5", counts, points=np.zeros((2, 5))))


@pytest.mark.parametrize("patterns", ["diff_data__merlin1__det_images", "entry__data__data"])
def test_counts_of_hxn(tmp_path: Path, counts: Any, load: Any, upright: Any, patterns: str) -> None:
    arrays = {patterns: counts, "scan__scan_positions": np.stack([X, Y]) * 1e6}
    beam = {"radiation": "photon", "distance_m": 0.5, "detector_pixel_m": 55e-6}
    m = load(write(tmp_path / "scan.h5", scan__energy=9000.0, **arrays), **beam)
    np.testing.assert_array_equal(upright(m), counts)
    np.testing.assert_allclose(metres(m), np.stack([Y, X], axis=1), atol=1e-12)
    assert m.geometry.energy_eV == pytest.approx(9000)
    path = write(tmp_path / "keV.h5", scan__energy=9.0, **arrays)
    with pytest.raises(BadInput, match=r"/scan/energy in .* is 9 and says no unit; .* set data\.energy_eV"):
        load(path, **beam)
    with h5py.File(path, "r+") as file:
        file["scan/energy"].attrs["units"] = "keV"
    assert load(path, **beam).geometry.energy_eV == pytest.approx(9000)


def test_ptylab(tmp_path: Path, counts: Any, load: Any, upright: Any) -> None:
    numbers = {"wavelength": np.array([[1e-9]]), "zo": np.array([[0.05]]), "dxd": np.array([[13.5e-6]])}
    path = write(tmp_path / "scan.hdf5", ptychogram=counts, encoder=np.stack([Y, X], axis=1), **numbers)
    m = load(path)
    np.testing.assert_array_equal(upright(m), counts)
    assert m.geometry.wavelength_m == 1e-9 and m.geometry.distance_m == 0.05
    np.testing.assert_allclose(metres(m), np.stack([Y, X], axis=1), atol=1e-12)
    assert load(path, distance_m=0.06).geometry.distance_m == 0.06


def test_stages_of_xpp_move_against_the_probe(tmp_path: Path, counts: Any, load: Any) -> None:
    path = write(
        tmp_path / "scan.h5",
        jungfrau1M__image_img=counts,
        lmc__ch03=X * 1e6,
        lmc__ch05=Y * 1e6,
        ipm2__sum=np.arange(1.0, 7),
    )
    m = load(path, **ENERGY)
    np.testing.assert_allclose(metres(m), -np.stack([Y, X], axis=1), atol=1e-12)


@pytest.mark.parametrize("patterns", ["entry__measurement__eiger1m__frames", "entry__measurement__Eiger__data"])
def test_nanomax(tmp_path: Path, counts: Any, load: Any, patterns: str) -> None:
    places = {"entry__measurement__pseudo__y": Y * 1e6, "entry__measurement__pseudo__x": X * 1e6}
    path = write(tmp_path / "scan.h5", **{patterns: counts}, **places)
    np.testing.assert_allclose(metres(load(path, **ENERGY)), np.stack([Y, X], axis=1), atol=1e-12)
    with h5py.File(path, "r+") as file:
        file["entry/measurement/pseudo/y"].attrs["units"] = "nm"
        file["entry/measurement/pseudo/x"].attrs["units"] = "nm"
    np.testing.assert_allclose(metres(load(path, **ENERGY)), 1e-3 * np.stack([Y, X], axis=1), atol=1e-12)
    with h5py.File(path, "r+") as file:
        file["entry/measurement/pseudo/x"].attrs["units"] = "steps"
    with pytest.raises(BadInput, match=r"are in 'nm' and 'steps': set positions\.unit"):
        load(path, **ENERGY)


def test_layouts_have_names_of_their_own() -> None:
    names = [layout.name for layout in LAYOUTS]
    assert len(set(names)) == len(names)


def test_parts_of_amplitudes_are_squared_in_other_processes_too(tmp_path: Path, counts: Any) -> None:
    path = write(tmp_path / "a.h5", a=np.sqrt(counts.astype(np.float64)))
    source = pickle.loads(pickle.dumps(squared(Hdf5Source(path, "a"))))  # noqa: S301 (its own bytes)
    part = source.read(np.array([4, 1]), slice(2, 5), slice(3, 9))
    np.testing.assert_array_equal(part, counts[[4, 1], 2:5, 3:9])
    assert source.dtype == part.dtype == np.float32 and source.shape == counts.shape


def csaxs(path: Path, counts: np.ndarray, **changed: Any) -> Path:
    places = {"monochromator__energy": 6.2, "monochromator__distance": -7200.0}
    places |= {f"eiger_4__{axis}_pixel_size": 75.0 for axis in "yx"}
    numbers = {f"entry__instrument__{name}": value for name, value in places.items()}
    return write(path, **{"entry__data__data": counts} | numbers | changed)


def test_csaxs_with_positions_in_text(tmp_path: Path, counts: Any, load: Any, upright: Any) -> None:
    """Distance in mm with the sign of its stage, pixels in um, energy in keV; positions as its SPEC writes them."""
    path = csaxs(tmp_path / "e1_1_00123.h5", counts)
    with pytest.raises(BadInput, match="6 patterns and no positions"):
        load(path)
    rows = "".join(f"{k} {x * 1e6:.6f} {y * 1e6:.6f}\n" for k, (y, x) in enumerate(zip(Y, X, strict=True)))
    (tmp_path / "scan_00123.dat").write_text(f"Scan 00123\nDataPoint Target_x Target_y\n{rows}")
    m = load(path, {"unit": "um"}, keys={"positions": "scan_00123.dat:Target_y,Target_x"})
    np.testing.assert_array_equal(upright(m), counts)
    np.testing.assert_allclose(metres(m), np.stack([Y, X], axis=1), atol=1e-11)
    assert m.geometry.distance_m == pytest.approx(7.2) and m.geometry.wavelength_m == pytest.approx(2e-10, rel=1e-3)
    assert m.geometry.detector_pixel_m == pytest.approx((75e-6, 75e-6))
    assert any("scan_00123.dat:Target_y" in note for note in m.notes)


def test_lynx_with_positions_of_orchestra(tmp_path: Path, counts: Any, load: Any, upright: Any) -> None:
    """Numbers of the beam are attributes of the patterns; stages run against the probe."""
    path = write(tmp_path / "scan.h5", entry__data__eiger_4=counts)
    with pytest.raises(BadInput):
        load(path)
    with h5py.File(path, "r+") as file:
        said = {"Photon_energy_kev": 8.8, "Detector_distance_m": 1.92, "Pixel_size": 75e-6}
        file["entry/data/eiger_4"].attrs.update(said)
    head = "Scan 123, Orchestra\nDataPoint TotalPoints Target_x Average_x_st_fzp Target_y Average_y_st_fzp\n"
    rows = [f"{k} 6 0 {-x * 1e6:.6f} 0 {-y * 1e6:.6f}\n" for k, (y, x) in enumerate(zip(Y, X, strict=True))]
    (tmp_path / "scan.dat").write_text(head + "".join(rows))
    places = {"unit": "um", "flip_y": True, "flip_x": True}
    m = load(path, places, keys={"positions": "scan.dat:Average_y_st_fzp,Average_x_st_fzp"})
    np.testing.assert_array_equal(upright(m), counts)
    np.testing.assert_allclose(metres(m), np.stack([Y, X], axis=1), atol=1e-11)
    assert m.geometry.energy_eV == pytest.approx(8800) and m.geometry.distance_m == pytest.approx(1.92)
    assert any("APS LYNX" in note for note in m.notes)


def test_polar_with_a_link_to_the_detectors_file(tmp_path: Path, counts: Any, load: Any, upright: Any) -> None:
    places = {f"entry__instrument__NDAttributes__{axis}pos": v * 1e6 for axis, v in (("Y", Y), ("X", X))}
    write(tmp_path / "eiger.h5", entry__data__data=counts)
    master = write(tmp_path / "master.hdf", **places)
    with h5py.File(master, "r+") as file:
        file["entry/externals/eiger"] = h5py.ExternalLink("eiger.h5", "/entry/data/data")
    alone = write(tmp_path / "alone.h5", entry__data__data=counts, **places)
    for path in (master, alone):
        m = load(path, **ENERGY)
        np.testing.assert_array_equal(upright(m), counts)
        np.testing.assert_allclose(metres(m), np.stack([Y, X], axis=1), atol=1e-12)
        assert any("APS Polar" in note for note in m.notes)
