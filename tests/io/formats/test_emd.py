"""Data cubes of py4DSTEM, version 1.0 and before, and of Prismatic: axes, units, rotation, energy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ptymesh.errors import BadInput
from ptymesh.geometry import electron_wavelength_m

SHAPE = (3, 5, 16, 20)
RASTER = {"raster": {"step_px": 2}}
CALIBRATION: dict[str, Any] = {
    "Q_pixel_size": 0.05,
    "Q_pixel_units": "A^-1",
    "R_pixel_size": 0.2,
    "R_pixel_units": "nm",
    "QR_rotation_degrees": -12.5,
    "QR_flip": True,
    "accelerating_voltage": 200e3,
}


@pytest.fixture
def counts() -> np.ndarray:
    return np.random.default_rng(6).poisson(9, SHAPE).astype(np.uint16)


def version_1(path: Path, counts: np.ndarray, **calibration: Any) -> Path:
    """As py4DSTEM 0.14 and later write it; a value of None is left out."""
    with h5py.File(path, "w") as file:
        file.attrs.update(emd_group_type="file", version_major=1, version_minor=0)
        root = file.create_group("experiment")
        root.attrs["emd_group_type"] = "root"
        cube = root.create_group("scan")
        cube.attrs.update(emd_group_type="array", python_class="DataCube")
        cube["data"] = counts
        for k in range(4):
            cube[f"dim{k}"] = np.array([0.0, 1.0])
            cube[f"dim{k}"].attrs.update(name="RxRyQxQy"[2 * k : 2 * k + 2], units="pixels")
        values = root.create_group("metadatabundle/calibration")
        for name, value in (CALIBRATION | calibration).items():
            if value is not None:
                values[name] = value
    return path


def legacy(path: Path, counts: np.ndarray, units: tuple[str, str], array: str = "data") -> Path:
    with h5py.File(path, "w") as file:
        cube = file.create_group("4DSTEM_experiment/data/datacubes/datacube_0")
        cube[array] = counts
        for k, (side, unit) in enumerate(zip(counts.shape, (units[0], units[0], units[1], units[1]), strict=True), 1):
            cube[f"dim{k}"] = np.arange(side) * (0.5 if k < 3 else 0.1)
            cube[f"dim{k}"].attrs["units"] = np.bytes_(unit.encode())
    return path


def test_version_1(tmp_path: Path, counts: Any, load: Any, upright: Any) -> None:
    m = load(version_1(tmp_path / "a.h5", counts))
    np.testing.assert_array_equal(upright(m), counts.reshape(-1, 16, 20))
    np.testing.assert_allclose(m.geometry.object_pixel_m, (1 / (16 * 0.05e10), 1 / (20 * 0.05e10)))
    step = (m.positions[6] - m.positions[0]) * m.geometry.object_pixel_m
    np.testing.assert_allclose(step, 2e-10, rtol=1e-9)
    assert m.geometry.energy_eV == pytest.approx(200e3) and m.geometry.radiation == "electron"
    assert any("rotated by -12.5 degrees against the scan, transposed" in note for note in m.notes)


def test_angles(tmp_path: Path, counts: Any, load: Any) -> None:
    path = version_1(tmp_path / "a.h5", counts, Q_pixel_size=0.5, Q_pixel_units="mrad")
    assert load(path).geometry.object_pixel_m[0] == pytest.approx(electron_wavelength_m(200e3) / (16 * 0.5e-3))
    path = version_1(tmp_path / "a.h5", counts, Q_pixel_size=0.5, Q_pixel_units="mrad", accelerating_voltage=None)
    with pytest.raises(BadInput, match="object pixel is unknown"):
        load(path)
    assert any("0.5 mrad, which does not give the object pixel and the energy" in n for n in load(path, RASTER).notes)
    wavelength = electron_wavelength_m(300e3)
    m = load(path, energy_eV=300e3)
    assert m.geometry.object_pixel_m[0] == pytest.approx(wavelength / (16 * 0.5e-3))


@pytest.mark.parametrize(
    ("calibration", "word"),
    [
        ({"R_pixel_units": "pixels"}, r"raster of \(3, 5\) views without a step; set positions\.raster\.step_m"),
        ({"R_pixel_units": None}, r"without a step"),
        ({"accelerating_voltage": 200.0}, r"accelerating_voltage in .* is 200, which is no energy .* data\.energy_eV"),
        ({"Q_pixel_units": "pixels"}, r"object pixel is unknown; set data\.object_pixel_m"),
    ],
)
def test_what_has_no_unit_is_asked_for(tmp_path: Path, counts: Any, load: Any, calibration: Any, word: str) -> None:
    with pytest.raises(BadInput, match=word):
        load(version_1(tmp_path / "a.h5", counts, **calibration))


@pytest.mark.parametrize(("units", "metres"), [(("[n_m]", "[n_m^-1]"), 1e-9), (("A", "1/A"), 1e-10)])
def test_legacy(tmp_path: Path, counts: Any, load: Any, upright: Any, units: Any, metres: float) -> None:
    m = load(legacy(tmp_path / "a.h5", counts, units))
    np.testing.assert_array_equal(upright(m), counts.reshape(-1, 16, 20))
    np.testing.assert_allclose(m.geometry.object_pixel_m, (metres / 1.6, metres / 2))
    step = (m.positions[6] - m.positions[0]) * m.geometry.object_pixel_m
    np.testing.assert_allclose(step, 0.5 * metres, rtol=1e-9)


def test_damage(tmp_path: Path, counts: Any, load: Any) -> None:
    path = version_1(tmp_path / "a.h5", counts)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])
    with pytest.raises(BadInput, match="is truncated"):
        load(path)
    with pytest.raises(BadInput, match=r"has shape \(15, 16, 20\)"):
        load(version_1(tmp_path / "b.h5", counts.reshape(15, 16, 20)))


def test_prismatic_means_angstrom(samples: Path, load: Any) -> None:
    """Its cell is 5.43 angstrom wide, and the detector's step one over that."""
    m = load(samples / "Si100_4D.emd")
    assert m.patterns.shape == (121, 8, 8) and m.geometry.energy_eV == pytest.approx(100e3)
    step = (m.positions[12] - m.positions[0]) * m.geometry.object_pixel_m
    np.testing.assert_allclose(step, 0.5e-10, rtol=1e-5)
    np.testing.assert_allclose(m.geometry.object_pixel_m, 5.43e-10 / 8, rtol=1e-5)
    assert any("Of 2 data cubes" in note for note in m.notes)
