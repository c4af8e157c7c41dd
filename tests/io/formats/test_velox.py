"""Velox: a series of patterns, images refused, metadata that are damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ptymesh.errors import BadInput


def velox(path: Path, frames: np.ndarray, unit: str = "1/m", volts: str = "200000", text: bytes | None = None) -> Path:
    said = {
        "BinaryResult": {"PixelSize": {"height": "5e7", "width": "4e7"}, "PixelUnitX": unit, "PixelUnitY": unit},
        "Optics": {"AccelerationVoltage": volts},
    }
    content = json.dumps(said).encode() + b"\0" if text is None else text
    with h5py.File(path, "w") as file:
        file["Data/Image/abc/Data"] = frames.transpose(1, 2, 0)
        file["Data/Image/abc/Metadata"] = np.tile(np.frombuffer(content, np.uint8)[:, None], (1, len(frames)))
    return path


@pytest.fixture
def frames() -> np.ndarray:
    return np.random.default_rng(2).poisson(9, (6, 16, 20)).astype(np.uint16)


def test_a_series_of_patterns(tmp_path: Path, frames: Any, load: Any, upright: Any) -> None:
    path = velox(tmp_path / "a.emd", frames)
    m = load(path, {"raster": {"step_px": 2}}, frames={"shape": [2, 3]})
    np.testing.assert_array_equal(upright(m), frames)
    assert m.geometry.energy_eV == pytest.approx(200e3) and m.geometry.radiation == "electron"
    np.testing.assert_allclose(m.geometry.object_pixel_m, (1 / (16 * 5e7), 1 / (20 * 4e7)))
    with pytest.raises(BadInput, match="6 patterns and no positions"):
        load(path)


def test_unsound_files(tmp_path: Path, frames: Any, load: Any) -> None:
    for said, word in (
        ({"unit": "m"}, "holds images of 16 x 20 pixels of 5e\\+07 m, not diffraction patterns"),
        ({"volts": "200"}, r"is 200 V, which is no energy .* set data\.energy_eV"),
        ({"text": b"{nothing"}, "cannot be read as JSON"),
    ):
        with pytest.raises(BadInput, match=word):
            load(velox(tmp_path / "a.emd", frames, **said))


def test_an_image_of_an_instrument(samples: Path, load: Any) -> None:
    with pytest.raises(BadInput, match="holds images of 2 x 3 pixels of 1e-10 m, not diffraction patterns"):
        load(samples / "fixture_velox.emd")
