"""TIFF files carry the pixel size, and the values they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from ptymesh.plot import object_tiffs, probe_tiffs, save_tiff, unwrapped_phase


def per_cm(tag: Any) -> float:
    return tag.value[0] / tag.value[1]


@pytest.mark.parametrize("pixel", [(12e-9, 24e-9), (4.65e-10, 4.65e-10), (3e-6, 1e-6)])
def test_resolution(tmp_path: Path, pixel: tuple[float, float]) -> None:
    """Pixels per centimetre, x and y; the exact size in the description. The tag's 32-bit ratio costs some digits."""
    image = np.arange(12.0).reshape(3, 4)
    save_tiff(tmp_path / "image.tiff", image, pixel, "numbers")
    with tifffile.TiffFile(tmp_path / "image.tiff") as file:
        tags = file.pages[0].tags
        assert tags["ResolutionUnit"].value == 3
        assert per_cm(tags["XResolution"]) == pytest.approx(0.01 / pixel[1], rel=1e-6)
        assert per_cm(tags["YResolution"]) == pytest.approx(0.01 / pixel[0], rel=1e-6)
        about = json.loads(tags["ImageDescription"].value)
        assert about == {"values": "numbers", "pixel_size_m": list(pixel)}
        assert file.pages[0].dtype == np.float32
        np.testing.assert_array_equal(file.asarray(), image)


def test_pixel_units(tmp_path: Path) -> None:
    save_tiff(tmp_path / "image.tiff", np.ones((3, 4)))
    with tifffile.TiffFile(tmp_path / "image.tiff") as file:
        assert file.pages[0].tags["ResolutionUnit"].value == 1
        assert json.loads(file.pages[0].tags["ImageDescription"].value)["pixel_size_m"] is None


def test_object_and_probe(tmp_path: Path, stack: Any) -> None:
    region = stack.illumination > 0.1 * stack.illumination.max()
    amplitude, phase = object_tiffs(tmp_path, stack.object, stack.pixel_size_m, region, "a-")
    assert (amplitude.name, phase.name) == ("a-object_amplitude.tiff", "a-object_phase.tiff")
    np.testing.assert_allclose(tifffile.imread(amplitude), np.abs(stack.object), rtol=1e-6)
    read = tifffile.imread(phase)
    assert read.shape == stack.object.shape and (read[:, ~region] == 0).all()
    np.testing.assert_allclose(read[2][region], unwrapped_phase(stack.object[2], region)[region], rtol=1e-5)
    amplitude, phase = probe_tiffs(tmp_path, stack.probe, stack.pixel_size_m)
    np.testing.assert_allclose(tifffile.imread(amplitude), np.abs(stack.probe), rtol=1e-6)
    np.testing.assert_allclose(tifffile.imread(phase), np.angle(stack.probe), atol=1e-6)
