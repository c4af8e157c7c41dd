"""Block files: header, marks before the patterns, lengths that lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptymesh.errors import BadInput
from ptymesh.io.formats.astar import HEADER

ROWS, COLUMNS, SIDE = 3, 5, 16


@pytest.fixture
def frames() -> np.ndarray:
    return np.random.default_rng(8).integers(0, 255, (ROWS * COLUMNS, SIDE, SIDE)).astype(np.uint8)


def blo(frames: np.ndarray, **said: Any) -> bytes:
    fields = {"rows": ROWS, "volts": 200_000, "step": 4.0} | said
    offset = 0x1000 + ROWS * COLUMNS
    header = HEADER.pack(
        b"IMGBLO", 0x0102, 0x1000, offset, 131141, SIDE, 0, COLUMNS, fields["rows"], 2500, fields["step"],
        2 * fields["step"], fields["volts"], 6226, 2000,
    )  # fmt: skip
    marked = b"".join(b"\xaa\x55" + k.to_bytes(4, "little") + frame.tobytes() for k, frame in enumerate(frames))
    return header.ljust(offset, b"\0") + marked


def test_a_block_file(tmp_path: Path, frames: Any, load: Any, upright: Any) -> None:
    path = tmp_path / "a.blo"
    path.write_bytes(blo(frames))
    m = load(path, object_pixel_m=1e-11)
    np.testing.assert_array_equal(upright(m), frames)
    step = (m.positions[COLUMNS + 1] - m.positions[0]) * 1e-11
    np.testing.assert_allclose(step, (8e-9, 4e-9), rtol=1e-9)
    assert m.geometry.energy_eV == pytest.approx(200e3)
    assert any("0.2 m" in note for note in m.notes) and any("25 degrees" in note for note in m.notes)
    m = load(path)
    assert m.geometry.distance_m == pytest.approx(0.2) and m.geometry.detector_pixel_m == pytest.approx((1 / 6226,) * 2)


def test_unsound_files(tmp_path: Path, frames: Any, load: Any) -> None:
    path = tmp_path / "a.blo"
    whole = blo(frames)
    for content, word in (
        (whole[:-10], r"15 patterns of 16 x 16, which end at byte 8041, and has 8031 bytes, 14\.\d+ patterns"),
        (whole[:40], "ends within its header"),
        (blo(frames, rows=4), "says 4 x 5 = 20 patterns .* 15 patterns"),
        (blo(frames, rows=0), "which cannot be"),
        (blo(frames, volts=200), "is 200 V, which is no energy"),
        (whole.replace(b"\xaa\x55\0\0\0\0", b"\0" * 6), "no pattern at byte 4111"),
    ):
        path.write_bytes(content)
        with pytest.raises(BadInput, match=word):
            load(path, object_pixel_m=1e-11)
    path.write_bytes(blo(frames, step=0.0))
    with pytest.raises(BadInput, match=r"set positions\.raster\.step_m"):
        load(path, object_pixel_m=1e-11)


def test_the_file_of_an_instrument(samples: Path, load: Any) -> None:
    m = load(samples / "test2.blo", object_pixel_m=1e-11)
    assert m.patterns.shape == (6, 5, 5) and m.geometry.energy_eV == pytest.approx(200e3)
    np.testing.assert_allclose((m.positions[4] - m.positions[0]) * 1e-11, 64e-9)
