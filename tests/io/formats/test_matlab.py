"""MATLAB files: level 5 as scipy writes them, packed and not, and HDF5 as MATLAB lays it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from scipy.io import savemat

from ptymesh.errors import BadInput

OPTICS = {"energy_eV": 80e3, "radiation": "electron", "object_pixel_m": 2e-11}
STEP = {"raster": {"step_m": 5e-11}}
PIXEL = {"object_pixel_m": 2e-11}


@pytest.fixture
def counts() -> np.ndarray:
    """(rows, columns, y, x)."""
    return np.random.default_rng(3).poisson(9, (3, 4, 16, 20)).astype(np.uint16)


def in_matlab(counts: np.ndarray) -> np.ndarray:
    """(y, x, rows, columns)."""
    return counts.transpose(2, 3, 0, 1)


def write_73(path: Path, **arrays: Any) -> Path:
    """HDF5 behind 512 bytes, axes reversed: as MATLAB writes."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, value in arrays.items():
            file[name] = np.asarray(value).T
            file[name].attrs["MATLAB_class"] = np.bytes_("uint16")
    with path.open("r+b") as stream:
        stream.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64")
    return path


def write(path: Path, version: str, **arrays: Any) -> Path:
    if version == "-v7.3":
        return write_73(path, **arrays)
    savemat(path, arrays, do_compression=version == "-v7")
    return path


VERSIONS = pytest.mark.parametrize("version", ["-v6", "-v7", "-v7.3"])


@VERSIONS
@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_fold_slice(tmp_path: Path, counts: Any, load: Any, upright: Any, version: str, dtype: type) -> None:
    numbers = {"voltage": np.array([[80.0]]), "ADU": np.array([[151.0]]), "alpha": np.array([[24.9]])}
    path = (
        write(tmp_path / "a.mat", version, text="words", dp=in_matlab(counts).astype(dtype), **numbers)
        if version != "-v7.3"
        else write_73(tmp_path / "a.mat", dp=in_matlab(counts).astype(dtype), **numbers)
    )
    m = load(path, STEP, **PIXEL)
    np.testing.assert_array_equal(upright(m), counts.reshape(-1, 16, 20))
    assert m.geometry.wavelength_m == pytest.approx(4.1757e-12, rel=1e-4) and m.geometry.radiation == "electron"
    assert any("ADU = 151 detector units" in note for note in m.notes)
    step = (m.positions[5] - m.positions[0]) * m.geometry.object_pixel_m
    np.testing.assert_allclose(step, (5e-11, 5e-11), rtol=1e-9)


@VERSIONS
def test_other_arrays_ask_for_their_axes(tmp_path: Path, counts: Any, load: Any, upright: Any, version: str) -> None:
    path = write(tmp_path / "a.mat", version, cbed=counts)
    with pytest.raises(BadInput, match=r"cbed in .* has the size \(3, 4, 16, 20\), .* yxrc .* or to rcyx"):
        load(path, STEP, **OPTICS)
    m = load(path, STEP, frames={"axes": "rcyx"}, **OPTICS)
    np.testing.assert_array_equal(upright(m), counts.reshape(-1, 16, 20))
    with pytest.raises(BadInput, match=r"data\.frames\.axes is 'nyx', and cbed"):
        load(path, STEP, frames={"axes": "nyx"}, **OPTICS)


@VERSIONS
def test_lists_of_patterns(tmp_path: Path, counts: Any, load: Any, upright: Any, version: str) -> None:
    frames = counts.reshape(12, 16, 20)
    path = write(tmp_path / "a.mat", version, dp=frames.transpose(1, 2, 0))
    with pytest.raises(BadInput, match="12 patterns and no positions"):
        load(path, **OPTICS)
    m = load(path, STEP, frames={"shape": [4, 3]}, **OPTICS)
    np.testing.assert_array_equal(upright(m), frames)


@VERSIONS
def test_several_arrays_and_none(tmp_path: Path, counts: Any, load: Any, version: str) -> None:
    path = write(tmp_path / "a.mat", version, a=counts, b=counts[0])
    with pytest.raises(BadInput, match=r"several arrays, a \(3, 4, 16, 20\), b \(4, 16, 20\)"):
        load(path, **OPTICS)
    path = write(tmp_path / "b.mat", version, a=counts[0, 0])
    with pytest.raises(BadInput, match="holds no array of real numbers with three or four axes"):
        load(path, **OPTICS)


def test_sides_that_speak_against_the_order(tmp_path: Path, counts: Any, load: Any) -> None:
    path = write(tmp_path / "a.mat", "-v6", dp=counts[..., :16])
    with pytest.raises(BadInput, match=r"set data\.frames\.axes to yxrc"):
        load(path, STEP, **OPTICS)


@VERSIONS
@pytest.mark.parametrize("voltage", [3e5, 0.3])
def test_a_voltage_that_is_not_in_kV(tmp_path: Path, counts: Any, load: Any, version: str, voltage: float) -> None:
    path = write(tmp_path / "a.mat", version, dp=in_matlab(counts), voltage=np.array([[voltage]]))
    with pytest.raises(BadInput, match=r"voltage in .* is (300000|0\.3), .* set data\.energy_eV"):
        load(path, STEP, **PIXEL)
    assert load(path, STEP, **OPTICS).views == 12


@pytest.mark.parametrize("version", ["-v6", "-v7"])
def test_cut_files(tmp_path: Path, counts: Any, load: Any, version: str) -> None:
    path = write(tmp_path / "a.mat", version, dp=in_matlab(counts))
    content = path.read_bytes()
    path.write_bytes(content[:-9])
    with pytest.raises(BadInput, match=f"up to byte {len(content)}, and has {len(content) - 9} bytes; it is truncated"):
        load(path, STEP, **OPTICS)


def test_damaged_packed_numbers(tmp_path: Path, counts: Any, load: Any) -> None:
    path = write(tmp_path / "a.mat", "-v7", dp=np.repeat(in_matlab(counts), 30, axis=3))
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 40] = bytes(40)
    path.write_bytes(content)
    with pytest.raises(BadInput, match="cannot be unpacked"):
        load(path, STEP, **OPTICS)


def test_big_endian_files(tmp_path: Path, counts: Any, load: Any, upright: Any) -> None:
    def element(kind: int, content: bytes) -> bytes:
        return np.array([kind, len(content)], ">u4").tobytes() + content + bytes(-len(content) % 8)

    stored = in_matlab(counts)
    parts = element(6, np.array([11, 0], ">u4").tobytes()) + element(5, np.array(stored.shape, ">i4").tobytes())
    parts += np.array([(2 << 16) | 1], ">u4").tobytes() + b"dp\0\0" + element(4, stored.astype(">u2").tobytes("F"))
    header = b"MATLAB 5.0 MAT-file".ljust(124) + np.array([0x0100], ">u2").tobytes() + b"MI"
    (tmp_path / "a.mat").write_bytes(header + element(14, parts))
    m = load(tmp_path / "a.mat", STEP, **OPTICS)
    np.testing.assert_array_equal(upright(m), counts.reshape(-1, 16, 20))
