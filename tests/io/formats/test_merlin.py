"""Merlin files: headers, big-endian numbers, one chip and four, flyback, frames too few and too many, lying headers."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptymesh.errors import BadInput

ROWS, COLUMNS = 4, 6
RASTER = {"raster": {"step_px": 2}}
BIG_ENDIAN = {"U08": ">u1", "U16": ">u2", "U32": ">u4"}


def header(number: int, side: tuple[int, int], kind: str, layout: str = "   1x1", size: int = 384) -> bytes:
    """As the camera's software writes it: (rows, columns), columns first."""
    chips = 4 if "2x2" in layout else 1
    text = f"MQ1,{number:06d},{size:05d},{chips:02d},{side[1]:04d},{side[0]:04d},{kind},{layout},01,2021-04-15 15:03:32"
    return text.encode().ljust(size)


def mib(frames: np.ndarray, kind: str = "U16", layout: str = "   1x1", size: int = 384, first: int = 1) -> bytes:
    """All of a file."""
    return b"".join(
        header(first + k, frame.shape, kind, layout, size) + frame.astype(BIG_ENDIAN[kind]).tobytes()
        for k, frame in enumerate(frames)
    )


@pytest.fixture
def frames() -> np.ndarray:
    return np.random.default_rng(3).poisson(90, (ROWS * COLUMNS, 16, 20)).astype(np.uint32)


def described(path: Path, **fields: Any) -> None:
    lines = ["HDR,\t", *(f"{key.replace('_', ' ')}:\t{value}" for key, value in fields.items()), "End\t"]
    path.with_suffix(".hdr").write_text("\n".join(lines))


@pytest.mark.parametrize("kind", ["U08", "U16", "U32"])
def test_types_and_the_shape_of_the_hdr(tmp_path: Path, frames: Any, load: Any, upright: Any, kind: str) -> None:
    path = tmp_path / "a.mib"
    path.write_bytes(mib(frames, kind))
    described(path, ScanX=COLUMNS, ScanY=ROWS)
    m = load(path, RASTER)
    np.testing.assert_array_equal(upright(m), frames)
    assert m.patterns.dtype == np.dtype(BIG_ENDIAN[kind]).newbyteorder("=")
    assert m.geometry.detector_pixel_m == (55e-6, 55e-6)
    np.testing.assert_array_equal(m.positions[COLUMNS] - m.positions[0], (2, 0))
    np.testing.assert_array_equal(
        m.patterns.read(np.array([5, 1, 5])), np.fft.ifftshift(frames[[5, 1, 5]], axes=(1, 2))
    )
    with pytest.raises(BadInput, match=r"set positions\.raster\.step_m"):
        load(path)


def test_rows_by_trigger(tmp_path: Path, frames: Any, load: Any) -> None:
    path = tmp_path / "a.mib"
    path.write_bytes(mib(frames))
    path.with_suffix(".hdr").write_text(
        "HDR,\t\nFrames in Acquisition (Number):\t24\nFrames per Trigger (Number):\t6\nEnd\t"
    )
    np.testing.assert_array_equal(load(path, RASTER).positions[COLUMNS], (-1, -5))


def test_a_shape_is_not_guessed(tmp_path: Path, frames: Any, load: Any) -> None:
    path = tmp_path / "a.mib"
    path.write_bytes(mib(frames))
    with pytest.raises(BadInput, match="24 patterns and no positions"):
        load(path)
    assert load(path, {"raster": {"shape": [4, 6], "step_px": 2}}).views == 24


def test_flyback_and_other_lengths(tmp_path: Path, frames: Any, load: Any, upright: Any) -> None:
    path = tmp_path / "a.mib"
    described(path, ScanX=COLUMNS - 1, ScanY=ROWS)  # each row has a frame more
    path.write_bytes(mib(frames))
    with pytest.raises(BadInput, match=r"says 4 x 5 = 20 views, and .* holds 24 frames: .*shape: \[4, 5\], flyback: 1"):
        load(path, RASTER)
    m = load(path, RASTER, frames={"shape": [4, 5], "flyback": 1})
    np.testing.assert_array_equal(upright(m), frames.reshape(4, 6, 16, 20)[:, :5].reshape(-1, 16, 20))
    described(path, ScanX=COLUMNS, ScanY=ROWS + 1)
    with pytest.raises(BadInput, match=r"says 5 x 6 = 30 views, and .* holds 24 frames: .* \[4, 6\]"):
        load(path, RASTER)


def test_four_chips(tmp_path: Path, load: Any, upright: Any) -> None:
    frames = np.zeros((4, 514, 514), np.uint16)
    frames[:, 100, 200] = np.arange(1, 5)
    path = tmp_path / "quad.mib"
    path.write_bytes(mib(frames, layout="  2x2G", size=768))
    m = load(path, RASTER)
    np.testing.assert_array_equal(upright(m), frames)
    mask = np.fft.fftshift(m.mask)
    assert (~mask).sum() == 4 * 514 - 4 and not mask[256:258].any() and not mask[:, 256:258].any()
    path.write_bytes(mib(frames[:, :512, :512], layout="   2x2", size=768))
    assert load(path, RASTER).mask.all()


def test_a_stopped_acquisition(tmp_path: Path, frames: Any, load: Any, upright: Any) -> None:
    path = tmp_path / "a.mib"
    path.write_bytes(mib(frames)[:-300])
    with pytest.raises(BadInput, match=r"are 23 frames of 1024 bytes and 724 bytes: .* data\.frames\.shape"):
        load(path, RASTER)
    m = load(path, RASTER, frames={"shape": [3, 6]})
    np.testing.assert_array_equal(upright(m), frames[:18])
    assert any("left out" in note for note in m.notes)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda c: c.replace(b"U16", b"U17"), "says the type 'U17'; known are U08"),
        (
            lambda c: c.replace(b"U16", b"R64"),
            r"undecoded frames \(R64\) of 1 chips \(   1x1\)|of 1 chips \(1x1\), 20 columns",
        ),
        (lambda c: c.replace(b",00384,", b",00000,"), "0 bytes of header|00000 bytes of header"),
        (lambda c: c.replace(b"0020,0016", b"99999999,0016"), "which cannot be"),
        (lambda c: c.replace(b"0020,0016", b"0020,001x"), "which cannot be"),
        (lambda c: c[:50], "frames of|seven more fields"),
        (lambda c: c[:-1024] + header(24, (16, 16), "U32") + bytes(640), "ends with such of"),
        (lambda c: c[:-1024] + bytes(1024), r"header at byte 23552 of .* does not begin with MQ1"),
    ],
)
def test_lying_headers(tmp_path: Path, frames: Any, load: Any, change: Any, word: str) -> None:
    path = tmp_path / "a.mib"
    path.write_bytes(change(mib(frames)))
    with pytest.raises(BadInput, match=word) as error:
        load(path, RASTER)
    assert "\n" not in str(error.value)


def test_lost_frames_are_said(tmp_path: Path, frames: Any, load: Any) -> None:
    path = tmp_path / "a.mib"
    path.write_bytes(mib(frames[:8]) + mib(frames[8:16], first=11))
    m = load(path, {"raster": {"shape": [4, 4], "step_px": 2}}, frames={"shape": [4, 4]})
    assert any("numbered from 1 to 18, and there are 16" in note for note in m.notes)


@pytest.mark.parametrize("kind", ["Single", "Quad"])
@pytest.mark.parametrize("depth", [1, 6, 12, 24])
def test_files_of_the_camera(tmp_path: Path, samples: Path, load: Any, kind: str, depth: int) -> None:
    name = f"{kind}_9_Frame_CounterDepth_{depth}_Rows_256"
    with zipfile.ZipFile(samples / "Merlin_Single_Quad.zip") as archive:
        archive.extractall(tmp_path, [f"{name}.mib", f"{name}.hdr"])
    m = load(tmp_path / f"{name}.mib", RASTER)
    side = {"Single": 256, "Quad": 512}[kind]
    assert m.patterns.shape == (9, side, side) and m.patterns.dtype.itemsize == {1: 1, 6: 1, 12: 2, 24: 4}[depth]
    assert m.patterns.read(np.arange(9)).max() < 1 << depth
    if depth == 1:  # of which the camera has written the chips' order, too: the same lamp, the same hot pixels
        raw = name + "RAW"
        with zipfile.ZipFile(samples / "Merlin_Single_Quad.zip") as archive:
            archive.extractall(tmp_path, [f"{raw}.mib", f"{raw}.hdr"])
        other = load(tmp_path / f"{raw}.mib", RASTER)
        assert other.patterns.shape == m.patterns.shape
        means = [np.asarray(one.patterns.read(np.arange(9)), float).mean(axis=0).reshape(-1) for one in (m, other)]
        assert np.corrcoef(means)[0, 1] > 0.95


def chip_order(frame: np.ndarray, depth: int, is_quad: bool = False) -> bytes:
    """Return a frame in 64-bit words whose lowest bits are the first pixel; of four chips, rows of 4, 3, 2, 1."""
    if is_quad:
        upper, lower = np.split(frame, 2)
        second, fourth = upper[:, 256:], lower[::-1, ::-1][:, :256]
        frame = np.hstack([fourth, lower[::-1, ::-1][:, 256:], second, upper[:, :256]])
    bits = {1: 1, 6: 8, 12: 16}[depth]
    pixels = frame.reshape(-1, 64 // bits).astype(object)
    return b"".join(int(sum(value << (bits * k) for k, value in enumerate(row))).to_bytes(8, "big") for row in pixels)


def chip_order_file(frames: np.ndarray, depth: int, is_quad: bool = False) -> bytes:
    side = (256, 1024) if is_quad else (256, 512) if depth == 24 else (256, 256)
    layout = "   2x2" if is_quad else "   1x1"
    parts = []
    for k, frame in enumerate(frames):
        text = header(k + 1, side, "R64", layout, 768).rstrip() + f",0F,0.1,{depth},".encode()
        if depth == 24:  # two of 12 bits, the higher ones first
            stored = chip_order(frame >> 12, 12) + chip_order(frame & 4095, 12)
        else:
            stored = chip_order(frame, depth, is_quad)
        parts += [text.ljust(768, b"\0"), stored]
    return b"".join(parts)


@pytest.mark.parametrize(
    ("depth", "is_quad"), [(1, False), (6, False), (12, False), (24, False), (1, True), (12, True)]
)
def test_frames_in_the_order_of_the_chips(tmp_path: Path, load: Any, upright: Any, depth: int, is_quad: bool) -> None:
    side, path = 512 if is_quad else 256, tmp_path / "a.mib"
    frames = np.random.default_rng(depth).integers(0, 1 << depth, (1, side, side), dtype=np.uint32)
    path.write_bytes(chip_order_file(frames, depth, is_quad))
    m = load(path, {"raster": {"shape": [1, 1], "step_px": 2}})
    np.testing.assert_array_equal(upright(m), frames)
    assert m.patterns.dtype.itemsize == {1: 1, 6: 1, 12: 2, 24: 4}[depth]
    assert any("without the gap" in note for note in m.notes) == is_quad


def test_undecoded_frames_of_other_cameras_are_refused(tmp_path: Path, load: Any) -> None:
    path = tmp_path / "a.mib"
    made = chip_order_file(np.zeros((1, 256, 256), int), 12)
    for change in (lambda c: c.replace(b",12,", b",13,"), lambda c: c.replace(b",01,0256", b",03,0256")):
        path.write_bytes(change(made))
        with pytest.raises(BadInput, match=r"undecoded frames \(R64\) of . chips"):
            load(path, RASTER)
