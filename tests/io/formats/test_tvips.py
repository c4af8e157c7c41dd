"""TVIPS sequences: both versions, files that follow each other, the scan generator's coordinates, lying headers."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptymesh.errors import BadInput

ROWS, COLUMNS, H, W = 4, 6, 16, 20
RASTER = {"raster": {"step_px": 2}}
SHAPED = {"raster": {"shape": [ROWS, COLUMNS], "step_px": 2}}


def series_header(version: int = 2, bits: int = 16, before: int = 80, kilovolts: int = 200, pixel: int = 7) -> bytes:
    """As the recorder writes it: size, version, columns, rows, bits, offsets, binning, pixel, voltage, ..."""
    return struct.pack("<13i", 256, version, W, H, bits, 0, 0, 2, 2, pixel, kilovolts, 0, before).ljust(256, b"\0")


def frame(pixels: np.ndarray, number: int, place: tuple[int, int] | None, before: int = 80) -> bytes:
    """A frame behind its header, which has the scan generator's x and y at byte 68."""
    text = struct.pack("<I", number).ljust(before, b"\0")
    if place is not None:
        text = text[:68] + struct.pack("<2f", *place) + text[76:]
    return text + pixels.tobytes()


def places(skip: int = 0) -> list[tuple[int, int]]:
    return [(0, 0)] * skip + [(column, row) for row in range(ROWS) for column in range(COLUMNS)]


@pytest.fixture
def frames() -> np.ndarray:
    return np.random.default_rng(3).poisson(90, (ROWS * COLUMNS, H, W)).astype("<u2")


def written(path: Path, frames: np.ndarray, scan: list[tuple[int, int]] | None) -> Path:
    found = [frame(one, k, None if scan is None else scan[k]) for k, one in enumerate(frames)]
    path.write_bytes(series_header() + b"".join(found))
    return path


def test_scan_energy_and_patterns(tmp_path: Path, frames: Any, load: Any, upright: Any) -> None:
    m = load(written(tmp_path / "a_000.tvips", frames, places()), RASTER)
    np.testing.assert_array_equal(upright(m), frames)
    np.testing.assert_array_equal(m.positions[COLUMNS] - m.positions[0], (2, 0))
    assert m.geometry.wavelength_m == pytest.approx(2.5079e-12, rel=1e-4) and m.name == "a"
    assert any("pixel size, 7, is not used" in note for note in m.notes)


@pytest.mark.parametrize(("version", "bits"), [(1, 8), (1, 16), (2, 8), (2, 32)])
def test_versions_and_depths(tmp_path: Path, load: Any, upright: Any, version: int, bits: int) -> None:
    pixels = np.random.default_rng(4).integers(0, 200, (ROWS * COLUMNS, H, W)).astype(f"<u{bits // 8}")
    before = 12 if version == 1 else 60
    path = tmp_path / "a_000.tvips"
    found = [frame(one, k, None, before) for k, one in enumerate(pixels)]
    path.write_bytes(series_header(version, bits, before if version == 2 else 0) + b"".join(found))
    with pytest.raises(BadInput, match="24 patterns and no positions"):
        load(path)
    m = load(path, SHAPED)
    np.testing.assert_array_equal(upright(m), pixels)
    assert m.patterns.dtype.itemsize == bits // 8


def test_files_that_follow_each_other(tmp_path: Path, frames: Any, load: Any, upright: Any) -> None:
    scan = places()
    written(tmp_path / "a_000.tvips", frames[:10], scan)
    for number, part in ((1, slice(10, 20)), (2, slice(20, 24))):
        found = [frame(one, k, scan[k]) for k, one in zip(range(24)[part], frames[part], strict=True)]
        (tmp_path / f"a_{number:03d}.tvips").write_bytes(b"".join(found))
    m = load(tmp_path / "a_000.tvips", RASTER)
    np.testing.assert_array_equal(upright(m), frames)
    assert any("3 files are joined, of 24 frames" in note for note in m.notes)
    np.testing.assert_array_equal(m.patterns.read(np.array([23, 3, 15]))[1], m.patterns.read(np.array([3]))[0])


def test_frames_before_the_scan_are_named(tmp_path: Path, frames: Any, load: Any, upright: Any) -> None:
    more = np.concatenate([frames[:5], frames])
    path = written(tmp_path / "a_000.tvips", more, places(skip=5))
    with pytest.raises(BadInput, match=r"begin at frame 5, with rows of 6: .* \{shape: \[4, 6\], skip: 5\}"):
        load(path, RASTER)
    m = load(path, RASTER, frames={"shape": [ROWS, COLUMNS], "skip": 5})
    np.testing.assert_array_equal(upright(m), frames)


def test_frames_behind_the_scan_are_a_contradiction(tmp_path: Path, frames: Any, load: Any) -> None:
    more = np.concatenate([frames, frames[:3]])
    path = written(tmp_path / "a_000.tvips", more, [*places(), (0, 0), (0, 0), (0, 0)])
    with pytest.raises(BadInput, match=r"says 4 x 6 = 24 views, and .* holds 27 frames"):
        load(path, RASTER)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda c: c[:-7], "24 frames of|23 frames of 720 bytes and 713 bytes; it is truncated"),
        (lambda c: c[:256], "0 frames of 720 bytes"),
        (lambda c: c[:40] + struct.pack("<i", 3) + c[44:], "The beam's energy in .* is 3 kV"),
        (lambda c: c[:4] + struct.pack("<i", 9) + c[8:], "of no known format"),
        (lambda c: c[:16] + struct.pack("<i", 12) + c[20:], "of no known format"),
    ],
)
def test_lying_headers(tmp_path: Path, frames: Any, load: Any, change: Any, word: str) -> None:
    path = written(tmp_path / "a_000.tvips", frames, places())
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(BadInput, match=word) as error:
        load(path, RASTER)
    assert "\n" not in str(error.value)
