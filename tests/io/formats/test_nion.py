"""Nion Swift's data items, written as its export does: calibrations, voltage, lists, and what is damaged."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptymesh.errors import BadInput

SCALES = [(0.5, "nm"), (0.25, "nm"), (1.5e-3, "rad"), (1.5e-3, "rad")]


@pytest.fixture
def counts() -> np.ndarray:
    return np.random.default_rng(3).poisson(9, (3, 4, 16, 16)).astype(np.float32)


def write(
    path: Path, data: np.ndarray, scales: list[tuple[float, str]], volts: float | None = 60e3, **said: Any
) -> Path:
    about = {
        "spatial_calibrations": [{"offset": 0.0, "scale": scale, "units": unit} for scale, unit in scales],
        "collection_dimension_count": data.ndim - 2,
        "datum_dimension_count": 2,
        "metadata": {} if volts is None else {"instrument": {"high_tension": volts}},
    }
    buffer = io.BytesIO()
    np.save(buffer, data)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("metadata.json", json.dumps(about | said))
        file.writestr("data.npy", buffer.getvalue())
    return path


def test_what_the_file_says(tmp_path: Path, counts: Any, load: Any, upright: Any) -> None:
    m = load(write(tmp_path / "a.ndata", counts, SCALES))
    np.testing.assert_array_equal(upright(m), counts.reshape(-1, 16, 16))
    assert m.geometry.energy_eV == pytest.approx(60e3) and m.geometry.radiation == "electron"
    assert m.geometry.object_pixel_m == pytest.approx((m.geometry.wavelength_m / (16 * 1.5e-3),) * 2)
    step = (m.positions[5] - m.positions[0]) * m.geometry.object_pixel_m
    np.testing.assert_allclose(step, (0.5e-9, 0.25e-9), rtol=1e-9)


def test_lists_ask_for_their_shape(tmp_path: Path, counts: Any, load: Any, upright: Any) -> None:
    path = write(tmp_path / "a.ndata", counts.reshape(12, 16, 16), SCALES[1:])
    with pytest.raises(BadInput, match="12 patterns and no positions"):
        load(path)
    m = load(path, {"raster": {"step_m": 1e-10}}, frames={"shape": [4, 3]})
    np.testing.assert_array_equal(upright(m), counts.reshape(-1, 16, 16))


def test_axes_without_units(tmp_path: Path, counts: Any, load: Any) -> None:
    path = write(tmp_path / "a.ndata", counts, [(1.0, "")] * 4, volts=None)
    with pytest.raises(BadInput, match=r"without a step; set positions\.raster\.step_m"):
        load(path)
    m = load(path, {"raster": {"step_m": 1e-10}}, energy_eV=60e3, object_pixel_m=2e-11)
    assert any("without a unit, which is no length" in note for note in m.notes)


def test_what_contradicts_itself(tmp_path: Path, counts: Any, load: Any) -> None:
    path = tmp_path / "a.ndata"
    with pytest.raises(BadInput, match="says 3 calibrations, and its data have 4 axes"):
        load(write(path, counts, SCALES[:3]))
    with pytest.raises(BadInput, match="holds data of 1 axes each"):
        load(write(path, counts, SCALES, datum_dimension_count=1))
    with pytest.raises(BadInput, match=r"is 60 V, which is no energy of such a beam .* set data\.energy_eV"):
        load(write(path, counts, SCALES, volts=60.0))
    write(path, counts, SCALES)
    path.write_bytes(path.read_bytes()[:-400])
    with pytest.raises(BadInput, match="truncated or damaged"):
        load(path)
