"""NeXus files: where patterns, places, beam and detector are found, and units that are said or missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ptymesh.errors import BadInput


@pytest.fixture
def counts() -> np.ndarray:
    return np.random.default_rng(12).poisson(9, (6, 16, 20)).astype(np.uint16)


def put(file: h5py.File, name: str, value: Any, unit: str | None = None) -> None:
    file[name] = value
    if unit is not None:
        file[name].attrs["units"] = np.bytes_(unit.encode())


@pytest.fixture
def diamond(tmp_path: Path, counts: np.ndarray) -> Path:
    path = tmp_path / "scan.nxs"
    with h5py.File(path, "w") as file:
        file.create_group("entry_1").attrs["NX_class"] = "NXentry"
        put(file, "entry_1/data/data", counts)
        file["entry_1/data"].attrs["NX_class"] = "NXdata"
        put(file, "entry_1/data/y", np.arange(6) * 0.5, "um")
        put(file, "entry_1/data/x", np.arange(6) % 3 * 0.25, "um")
        put(file, "entry_1/instrument_1/beam_1/incident_beam_energy", 8.8, "keV")
        put(file, "entry_1/instrument_1/source_1/energy", 3.0, "GeV")
        put(file, "entry_1/instrument_1/detector_1/distance", 1920.0, "mm")
        put(file, "entry_1/instrument_1/detector_1/y_pixel_size", 55.0, "um")
        put(file, "entry_1/instrument_1/detector_1/x_pixel_size", 75.0, "um")
        mask = np.zeros((16, 20), np.uint32)
        mask[2, 3] = 1
        put(file, "entry_1/instrument_1/detector_1/pixel_mask", mask)
    return path


def change(path: Path, name: str, value: Any, unit: str | None) -> None:
    with h5py.File(path, "r+") as file:
        file.pop(name, None)
        put(file, name, value, unit)


def test_diamond(diamond: Path, counts: Any, load: Any, upright: Any) -> None:
    m = load(diamond)
    wanted = counts.copy()
    wanted[:, 2, 3] = 0
    np.testing.assert_array_equal(upright(m), wanted)
    assert m.geometry.energy_eV == pytest.approx(8.8e3) and m.geometry.radiation == "photon"
    assert m.geometry.distance_m == pytest.approx(1.92)
    assert m.geometry.detector_pixel_m == pytest.approx((55e-6, 75e-6))
    step = (m.positions[4] - m.positions[0]) * m.geometry.object_pixel_m
    np.testing.assert_allclose(step, (2e-6, 0.25e-6), rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "value", "unit", "word"),
    [
        ("instrument_1/beam_1/incident_beam_energy", 8.8, None, r"is 8\.8 and says no unit; .* data\.energy_eV"),
        ("instrument_1/beam_1/incident_beam_energy", 8.8, "GeV", r"is in 'GeV'; known are"),
        ("instrument_1/detector_1/distance", 1920.0, None, r"is 1920 and says no unit; .* data\.distance_m"),
        ("data/y", np.arange(6.0), None, r"say no unit and 'um': set positions\.unit"),
        ("data/y", np.arange(5.0), "um", "has 5 values and /entry_1/data/x 6"),
    ],
)
def test_what_is_asked(diamond: Path, load: Any, name: str, value: Any, unit: str | None, word: str) -> None:
    change(diamond, f"entry_1/{name}", value, unit)
    with pytest.raises(BadInput, match=word):
        load(diamond)


def test_the_recipe_answers(diamond: Path, load: Any) -> None:
    change(diamond, "entry_1/data/y", np.arange(6) * 0.5, None)
    change(diamond, "entry_1/instrument_1/beam_1/incident_beam_energy", 8.8, None)
    m = load(diamond, {"unit": "um"}, energy_eV=8.8e3)
    step = (m.positions[4] - m.positions[0]) * m.geometry.object_pixel_m
    np.testing.assert_allclose(step, (2e-6, 0.25e-6), rtol=1e-9)


def test_a_signal_of_another_name(tmp_path: Path, counts: Any, load: Any, upright: Any) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_group("scan").attrs["NX_class"] = "NXentry"
        file.create_group("scan/camera").attrs.update(NX_class="NXdata", signal="frames")
        file["scan/camera/frames"] = counts.reshape(2, 3, 16, 20)
    m = load(path, {"raster": {"step_px": 2}})
    np.testing.assert_array_equal(upright(m), counts)
    with pytest.raises(BadInput, match=r"raster of \(2, 3\) views without a step"):
        load(path)


def test_the_file_of_a_beamline(samples: Path, load: Any) -> None:
    with pytest.raises(BadInput, match=r"say no unit: set positions\.unit"):
        load(samples / "nexus_dls_example.nxs")


def test_groups_that_only_look_alike(tmp_path: Path, counts: Any, load: Any) -> None:
    """Names of such files are guessed elsewhere, positions too."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["exchange/data/data"] = counts
    with pytest.raises(BadInput, match=r"name its datasets in data\.keys"):
        load(path)
