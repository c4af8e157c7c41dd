"""Stacks of patterns as one array of numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptymesh.errors import BadInput

OPTICS = {"energy_eV": 80e3, "radiation": "electron", "object_pixel_m": 2e-11}
STEP = {"raster": {"step_m": 5e-11}}


@pytest.fixture
def counts() -> np.ndarray:
    return np.random.default_rng(3).poisson(9, (3, 4, 16, 20)).astype(np.uint16)


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("fortran", [False, True])
def test_a_raster(tmp_path: Path, counts: Any, load: Any, upright: Any, fortran: bool, big_endian: bool) -> None:
    stored = counts.astype(">u2") if big_endian else counts
    np.save(tmp_path / "a.npy", np.asfortranarray(stored) if fortran else stored)
    m = load(tmp_path / "a.npy", STEP, **OPTICS)
    np.testing.assert_array_equal(upright(m), counts.reshape(-1, 16, 20))
    step = (m.positions[5] - m.positions[0]) * m.geometry.object_pixel_m
    np.testing.assert_allclose(step, (5e-11, 5e-11), rtol=1e-9)


def test_axes_in_another_order(tmp_path: Path, counts: Any, load: Any, upright: Any) -> None:
    np.save(tmp_path / "a.npy", counts.transpose(2, 3, 0, 1))
    m = load(tmp_path / "a.npy", STEP, frames={"axes": "yxrc"}, **OPTICS)
    np.testing.assert_array_equal(upright(m), counts.reshape(-1, 16, 20))


def test_shapes_are_not_guessed(tmp_path: Path, counts: Any, load: Any, upright: Any) -> None:
    frames = counts.reshape(12, 16, 20)
    np.save(tmp_path / "a.npy", frames)
    with pytest.raises(BadInput, match="12 patterns and no positions"):
        load(tmp_path / "a.npy", **OPTICS)
    m = load(tmp_path / "a.npy", STEP, frames={"shape": [4, 3]}, **OPTICS)
    np.testing.assert_array_equal(upright(m), frames)
    np.save(tmp_path / "a.npy", frames[:9])
    m = load(tmp_path / "a.npy", STEP, **OPTICS)
    assert any("9 frames are scanned; they are taken as 3 x 3" in note for note in m.notes)


def test_unsound_arrays(tmp_path: Path, counts: Any, load: Any) -> None:
    path = tmp_path / "a.npy"
    np.save(path, counts[0, 0])
    with pytest.raises(BadInput, match=r"has shape \(16, 20\); patterns have three axes"):
        load(path, **OPTICS)
    np.save(path, counts + 0j)
    with pytest.raises(BadInput, match="holds complex128 values; it must be real numbers"):
        load(path, **OPTICS)
    np.save(path, counts)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadInput, match=r"which needs 7808 bytes, and has 7807; it is truncated"):
        load(path, STEP, **OPTICS)
