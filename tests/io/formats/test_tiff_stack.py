"""TIFF stacks, written by tifffile: in one piece, page by page, packed, and as single images."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from ptymesh.errors import BadInput
from ptymesh.io.formats.tiff_stack import PagedSource

OPTICS = {"energy_eV": 80e3, "radiation": "electron", "object_pixel_m": 2e-11}
STEP = {"raster": {"step_m": 5e-11}}


@pytest.fixture
def counts() -> np.ndarray:
    return np.random.default_rng(3).poisson(9, (3, 4, 16, 20)).astype(np.uint16)


@pytest.mark.parametrize(
    "how",
    [{}, {"byteorder": ">"}, {"bigtiff": True}, {"compression": "zlib"}, {"rowsperstrip": 3}, {"imagej": True}],
    ids=str,
)
def test_a_raster(tmp_path: Path, counts: Any, load: Any, upright: Any, how: dict[str, Any]) -> None:
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, counts, photometric="minisblack", **how)
    m = load(path, STEP, **OPTICS)
    np.testing.assert_array_equal(upright(m), counts.reshape(-1, 16, 20))
    np.testing.assert_array_equal(m.patterns.read(np.array([7, 2])), m.patterns.read(np.arange(12))[[7, 2]])
    step = (m.positions[5] - m.positions[0]) * m.geometry.object_pixel_m
    np.testing.assert_allclose(step, (5e-11, 5e-11), rtol=1e-9)


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_pages_are_a_list(tmp_path: Path, counts: Any, load: Any, upright: Any, compression: Any) -> None:
    path, frames = tmp_path / "a.tif", counts.reshape(12, 16, 20).astype(np.float32)
    with tifffile.TiffWriter(path) as file:
        for frame in frames:
            file.write(frame, contiguous=False, compression=compression, metadata=None)
    with pytest.raises(BadInput, match="12 patterns and no positions"):
        load(path, **OPTICS)
    m = load(path, STEP, frames={"shape": [4, 3]}, **OPTICS)
    np.testing.assert_array_equal(upright(m), frames)


def test_one_image_a_file(tmp_path: Path, counts: Any, load: Any, upright: Any) -> None:
    for index, frame in enumerate(counts.reshape(12, 16, 20)):
        tifffile.imwrite(tmp_path / f"f_{index}.tif", frame)
    options = {"further": [tmp_path / "f_*.tif"], "frames": {"shape": [3, 4]}}
    m = load(tmp_path / "f_0.tif", STEP, **options, **OPTICS)
    np.testing.assert_array_equal(upright(m), counts.reshape(-1, 16, 20))


def test_axes_in_another_order(tmp_path: Path, counts: Any, load: Any, upright: Any) -> None:
    path, stored = tmp_path / "a.tif", counts.transpose(2, 3, 0, 1)
    tifffile.imwrite(path, stored, photometric="minisblack")
    m = load(path, STEP, frames={"axes": "yxrc"}, **OPTICS)
    np.testing.assert_array_equal(upright(m), counts.reshape(-1, 16, 20))
    tifffile.imwrite(path, stored, photometric="minisblack", compression="zlib")
    with pytest.raises(BadInput, match="single patterns cannot be read; save it uncompressed"):
        load(path, STEP, frames={"axes": "yxrc"}, **OPTICS)


def test_unsound_stacks(tmp_path: Path, counts: Any, load: Any) -> None:
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, counts, photometric="minisblack")
    path.write_bytes(path.read_bytes()[: 16 * 20 * 2 * 6])
    with pytest.raises(BadInput, match="which needs 7936 bytes, and has 3840; it is truncated"):
        load(path, STEP, **OPTICS)
    tifffile.imwrite(path, counts[0].astype(np.complex64), photometric="minisblack")
    with pytest.raises(BadInput, match="holds complex64 values; patterns are real numbers"):
        load(path, STEP, **OPTICS)
    tifffile.imwrite(path, counts[None, None, :2, :2].repeat(2, 0), photometric="minisblack")
    with pytest.raises(BadInput, match="patterns have three axes"):
        load(path, STEP, **OPTICS)


def test_a_damaged_page(tmp_path: Path, counts: Any, load: Any) -> None:
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, counts[0], photometric="minisblack", compression="zlib")
    with tifffile.TiffFile(path) as file:
        offset, size = file.pages[2].dataoffsets[0], file.pages[2].databytecounts[0]
    content = bytearray(path.read_bytes())
    content[offset + 10 : offset + size // 2] = bytes(size // 2 - 10)
    path.write_bytes(content)
    with pytest.raises(BadInput, match="cannot be read as TIFF"):
        load(path, STEP, frames={"shape": [2, 2]}, **OPTICS).patterns.read(np.arange(4))


def test_pages_are_read_in_other_processes_too(tmp_path: Path, counts: Any) -> None:
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, counts[0], photometric="minisblack", compression="zlib")
    source = PagedSource(path, counts[0].shape, counts.dtype)
    source.read(np.arange(1), slice(0, 1), slice(0, 1))
    copy = pickle.loads(pickle.dumps(source))  # noqa: S301 (its own bytes)
    np.testing.assert_array_equal(copy.read(np.array([3, 1]), slice(2, 5), slice(3, 9)), counts[0][[3, 1], 2:5, 3:9])
