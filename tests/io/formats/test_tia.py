"""TIA series: places of the beam, both widths of offsets, spectra refused, damage."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptymesh.errors import BadInput
from ptymesh.io.formats.tia import ELEMENT, HEADER, TAG

ROWS, COLUMNS = 3, 4


@pytest.fixture
def frames() -> np.ndarray:
    return np.random.default_rng(9).integers(0, 4000, (ROWS * COLUMNS, 16, 20)).astype("<u2")


def ser(frames: np.ndarray, version: int = 0x0220, kind: int = 0x4122, valid: int | None = None) -> bytes:
    """A series in steps of 2 nm along x and 3 nm along y."""
    width = "<Q" if version >= 0x0220 else "<I"
    head = HEADER.pack(0x4949, 0x0197, version, kind, 0x4142, len(frames), len(frames) if valid is None else valid)
    table = len(head) + struct.calcsize(width) + 4
    body, offsets, tags = b"", [], []
    start = table + 2 * len(frames) * struct.calcsize(width)
    for k, frame in enumerate(frames):
        offsets.append(start + len(body))
        body += ELEMENT.pack(0, 0.5, 0, 0, 0.5, 0, 2, frame.shape[1], frame.shape[0]) + frame.tobytes()
        tags.append(start + len(body))
        body += TAG.pack(0x4142, 0, 1456168868, (k % COLUMNS) * 2e-9, k // COLUMNS * 3e-9)
    numbers = b"".join(struct.pack(width, offset) for offset in offsets + tags)
    return head + struct.pack(width, table) + struct.pack("<I", 0) + numbers + body


@pytest.mark.parametrize("version", [0x0210, 0x0220])
def test_a_series(tmp_path: Path, frames: Any, load: Any, upright: Any, version: int) -> None:
    path = tmp_path / "a.ser"
    path.write_bytes(ser(frames, version))
    m = load(path, object_pixel_m=1e-11, energy_eV=300e3)
    np.testing.assert_array_equal(upright(m), frames)
    np.testing.assert_allclose((m.positions[COLUMNS + 1] - m.positions[0]) * 1e-11, (3e-9, 2e-9), rtol=1e-9)
    assert m.geometry.radiation == "electron"
    with pytest.raises(BadInput, match=r"object pixel is unknown; set data\.object_pixel_m"):
        load(path)


def test_a_stopped_series(tmp_path: Path, frames: Any, load: Any, upright: Any) -> None:
    path = tmp_path / "a.ser"
    path.write_bytes(ser(frames, valid=7))
    m = load(path, object_pixel_m=1e-11)
    np.testing.assert_array_equal(upright(m), frames[:7])
    assert any("7 of 12 patterns are valid" in note for note in m.notes)


def test_unsound_series(tmp_path: Path, frames: Any, load: Any) -> None:
    path, whole = tmp_path / "a.ser", ser(frames)
    odd = bytearray(whole)
    odd[38:46] = struct.pack("<Q", 10**6)  # where the second pattern begins
    for content, word in (
        (ser(frames, kind=0x4120), "holds 12 spectra, not patterns"),
        (ser(frames, kind=0x4121), "elements of kind 0x4121"),
        (ser(frames, valid=13), "13 of 12 elements are valid"),
        (whole[:20], "ends within its header"),
        (whole[:100], "ends within its header or its table"),
        (whole[:-100], r"12 patterns, the last of which ends at byte|ends within"),
        (bytes(odd), "table"),
    ):
        path.write_bytes(content)
        with pytest.raises(BadInput, match=word):
            load(path, object_pixel_m=1e-11)


def test_spectra_of_an_instrument(samples: Path, load: Any) -> None:
    with pytest.raises(BadInput, match="holds 25 spectra, not patterns; name the series of the camera"):
        load(samples / "tia_5x5x256x256_1.ser")
