"""hyperspy's signals of patterns, written to the documented layout: axes, units, energy, and signals that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ptymesh.errors import BadInput
from ptymesh.measurement import ConvergentBeam

SCAN = [(0.5, "nm", True), (0.25, "nm", True)]
DETECTOR = [(0.2, "1/nm", False), (0.2, "1/nm", False)]


@pytest.fixture
def counts() -> np.ndarray:
    return np.random.default_rng(3).poisson(9, (3, 4, 16, 16)).astype(np.uint16)


def write(path: Path, data: np.ndarray, axes: list[tuple[float, str, bool]], energy: float | None = 200.0) -> Path:
    with h5py.File(path, "w") as file:
        file.attrs["file_format"], file.attrs["file_format_version"] = "HyperSpy", "3.1"
        group = file.create_group("Experiments/scan")
        group["data"] = data
        for index, (scale, unit, navigate) in enumerate(axes):
            axis = group.create_group(f"axis-{index}")
            axis.attrs.update(scale=scale, units=unit, offset=0.0, size=data.shape[index], navigate=navigate)
        if energy is not None:
            group.create_group("metadata/Acquisition_instrument/TEM").attrs["beam_energy"] = energy
    return path


def test_what_the_file_says(tmp_path: Path, counts: Any, load: Any, upright: Any) -> None:
    m = load(write(tmp_path / "scan.hspy", counts, SCAN + DETECTOR))
    np.testing.assert_array_equal(upright(m), counts.reshape(-1, 16, 16))
    assert m.geometry.energy_eV == pytest.approx(200e3) and m.geometry.radiation == "electron"
    assert m.geometry.object_pixel_m == pytest.approx((1 / (16 * 0.2e9),) * 2)
    step = (m.positions[5] - m.positions[0]) * m.geometry.object_pixel_m
    np.testing.assert_allclose(step, (0.5e-9, 0.25e-9), rtol=1e-9)


def test_the_semi_angle_is_of_the_beam(tmp_path: Path, counts: Any, load: Any) -> None:
    path = write(tmp_path / "scan.hspy", counts, SCAN + DETECTOR)
    assert load(path).beam is None
    with h5py.File(path, "a") as file:
        file["Experiments/scan/metadata/Acquisition_instrument/TEM"].attrs["convergence_angle"] = 21.4
    assert load(path).beam == ConvergentBeam(1e-3 * 21.4)


def test_detectors_calibrated_in_angles(tmp_path: Path, counts: Any, load: Any) -> None:
    path = write(tmp_path / "scan.hspy", counts, [*SCAN, (1.5, "mrad", False), (1.5, "mrad", False)])
    m = load(path)
    assert m.geometry.object_pixel_m == pytest.approx((m.geometry.wavelength_m / (16 * 1.5e-3),) * 2)


def test_units_that_are_missing(tmp_path: Path, counts: Any, load: Any) -> None:
    path = write(tmp_path / "scan.hspy", counts, [(0.5, "", True)] * 2 + [(1.0, "", False)] * 2, energy=None)
    with pytest.raises(BadInput, match=r"raster of \(3, 4\) views without a step; set positions\.raster\.step_m"):
        load(path)
    m = load(path, {"raster": {"step_m": 1e-9}}, energy_eV=200e3, object_pixel_m=2e-11)
    assert m.views == 12 and any("without a unit, which is no length" in note for note in m.notes)


def test_energies_that_cannot_be_in_kev(tmp_path: Path, counts: Any, load: Any) -> None:
    with pytest.raises(BadInput, match=r"is 200000 keV, which is no energy of such a beam .* set data\.energy_eV"):
        load(write(tmp_path / "scan.hspy", counts, SCAN + DETECTOR, energy=200e3))


def test_axes_in_another_order(tmp_path: Path, counts: Any, load: Any) -> None:
    path = write(tmp_path / "scan.hspy", counts.transpose(2, 3, 0, 1), DETECTOR + SCAN)
    with pytest.raises(BadInput, match=r"has the axes detector, detector, scan, scan; .* pattern_axes"):
        load(path)


def test_a_list_of_frames(tmp_path: Path, counts: Any, load: Any) -> None:
    frames = counts.reshape(12, 16, 16)
    path = write(tmp_path / "scan.hspy", frames, [(1.0, "", True), *DETECTOR])
    with pytest.raises(BadInput, match=r"12 patterns and no positions"):
        load(path)
    m = load(path, {"raster": {"step_m": 1e-9}}, frames={"shape": [3, 4]})
    assert m.views == 12


def test_images_are_no_patterns(tmp_path: Path, load: Any) -> None:
    path = write(tmp_path / "image.hspy", np.ones((16, 16)), SCAN)
    with pytest.raises(BadInput, match="no layout that is known"):
        load(path)
