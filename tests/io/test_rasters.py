"""Frames that are a raster with others between them: flyback after each row, junk in front and behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptymesh.errors import BadInput
from ptymesh.io import load_measurement
from ptymesh.io.options import DataOptions, PositionOptions
from ptymesh.measurement import Measurement

Load = Callable[..., Measurement]
STEP = {"raster": {"step_px": 3}}


@pytest.fixture
def load(hdf5: Callable[..., Path]) -> Load:
    """`load(frames, {...})`: of a file of these frames, with `data.frames`."""

    def read(frames: np.ndarray, said: dict[str, Any], place: dict[str, Any] | None = None) -> Measurement:
        path = hdf5({"f": frames})
        data = DataOptions.parse({"path": path, "keys": {"patterns": "f"}, "frames": said}, "data")
        return load_measurement(data, PositionOptions.parse(STEP if place is None else place, "positions"))

    return read


def stored(rows: int, columns: int, skip: int, flyback: int, behind: int) -> tuple[np.ndarray, np.ndarray]:
    """(frames as stored, those that are views); junk is 999."""
    views = np.arange(rows * columns * 16, dtype=np.uint16).reshape(rows, columns, 4, 4) % 997
    junk = np.full((rows, flyback, 4, 4), 999, np.uint16)
    body = np.concatenate([views, junk], axis=1).reshape(-1, 4, 4)
    ends = [np.full((n, 4, 4), 999, np.uint16) for n in (skip, behind)]
    return np.concatenate([ends[0], body, ends[1]]), views.reshape(-1, 4, 4)


@pytest.mark.parametrize(("skip", "flyback", "behind"), [(0, 1, 0), (3, 1, 0), (3, 0, 2), (0, 2, 5), (0, 0, 0)])
def test_frames_that_are_no_views(
    load: Load, everything: Callable[[Measurement], np.ndarray], skip: int, flyback: int, behind: int
) -> None:
    frames, views = stored(4, 6, skip, flyback, behind)
    m = load(frames, {"shape": [4, 6], "skip": skip, "flyback": flyback})
    np.testing.assert_array_equal(everything(m), views)
    assert m.positions.shape == (24, 2) and bool(behind) == any("are left out" in note for note in m.notes)


def test_the_last_row_needs_no_flyback(load: Load, everything: Callable[[Measurement], np.ndarray]) -> None:
    frames, views = stored(4, 6, 0, 1, 0)
    np.testing.assert_array_equal(everything(load(frames[:-1], {"shape": [4, 6], "flyback": 1})), views)


def test_skip_alone(load: Load, everything: Callable[[Measurement], np.ndarray]) -> None:
    frames, views = stored(4, 6, 3, 0, 0)
    m = load(frames, {"skip": 3}, {"raster": {"shape": [4, 6], "step_px": 3}})
    np.testing.assert_array_equal(everything(m), views)


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ({"shape": [4, 7]}, r"needs 28 frames \(shape \[4, 7\], skip 0, flyback 0\), and .* holds 24"),
        ({"shape": [4, 6], "flyback": 1}, "needs 27 frames"),
        ({"skip": 24}, "needs 25 frames"),
        ({"flyback": 1}, "flyback frames come after each row; give shape too"),
        ({"skip": -1}, "greater than or equal to 0|at least 0"),
    ],
)
def test_numbers_that_do_not_fit(load: Load, said: dict[str, Any], word: str) -> None:
    with pytest.raises(BadInput, match=word):
        load(stored(4, 6, 0, 0, 0)[0], said)


def test_patterns_that_are_a_raster_already(load: Load) -> None:
    frames = stored(4, 6, 0, 0, 0)[0].reshape(4, 6, 4, 4)
    with pytest.raises(BadInput, match=r"leaves 20 views .* are a raster of \(4, 6\)"):
        load(frames, {"shape": [4, 5]})
