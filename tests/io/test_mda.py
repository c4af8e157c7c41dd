"""Positions of EPICS scans (.mda), made byte by byte: along one axis, along two, cut short, and damaged."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from ptymesh.errors import BadInput
from ptymesh.io.arrays import load_array, unit_of_mda
from ptymesh.io.mda import read_mda


def text(words: str) -> bytes:
    """A text as EPICS writes it: its length twice, then bytes padded to four."""
    padded = words.encode().ljust((len(words) + 3) // 4 * 4, b"\0")
    return struct.pack(">i", 0) if not words else struct.pack(">ii", len(words), len(words)) + padded


def scan(places: np.ndarray, units: list[str], taken: int, within: list[int] | None = None) -> bytes:
    """A scan along one axis with positioners (P, points) and one detector."""
    count, points = places.shape
    rank = 1 if within is None else 2
    parts = [struct.pack(">iii", rank, points, taken), *(struct.pack(">i", one) for one in within or [])]
    parts += [text("2idd:scan1"), text("Nov 28, 2026 18:00:00"), struct.pack(">iii", count, 1, 1)]
    for k, unit in enumerate(units):
        words = (f"m{k}.VAL", "stage", "LINEAR", "", f"m{k}.RBV", "read back", unit)
        parts += [struct.pack(">i", k), *(text(word) for word in words)]
    parts += [struct.pack(">i", 0), text("D01"), text("counts"), text("c"), struct.pack(">i", 0), text("T1")]
    parts += [struct.pack(">f", 1.0), places.astype(">f8").tobytes(), np.zeros(points, ">f4").tobytes()]
    return b"".join(parts)


def two_axes(y: np.ndarray, x: np.ndarray, taken: int | None = None, unit: str = "um") -> bytes:
    """A raster: y (rows,), x (rows, columns)."""
    head = struct.pack(">fiiiiii", 1.4, 7, 2, len(y), x.shape[1], 1, 0)
    start = len(head) + len(scan(y[None], [unit], len(y), [0] * len(y)))
    inner = [scan(row[None], [unit], len(row)) for row in x]
    within = [start + sum(len(one) for one in inner[:k]) for k in range(len(inner))]
    return head + scan(y[None], [unit], len(y) if taken is None else taken, within) + b"".join(inner)


Y, X = np.linspace(-1, 1, 4), np.random.default_rng(0).normal(size=(4, 5))


def test_a_raster(tmp_path: Path) -> None:
    path = tmp_path / "s.mda"
    path.write_bytes(two_axes(Y, X))
    expected = np.stack([np.repeat(Y, 5), X.reshape(-1)], axis=1)
    np.testing.assert_array_equal(load_array(str(path), "data.keys"), expected)
    assert unit_of_mda(str(path)) == "um"
    path.write_bytes(two_axes(Y, X, taken=3))  # stopped after three rows
    np.testing.assert_array_equal(load_array(str(path), "data.keys"), expected[:15])


def test_a_scan_along_one_axis(tmp_path: Path) -> None:
    path = tmp_path / "s.mda"
    places = np.random.default_rng(1).normal(size=(3, 6))
    path.write_bytes(struct.pack(">fiiiii", 1.3, 7, 1, 6, 1, 0) + scan(places, ["mm", "mm", ""], 5))
    np.testing.assert_array_equal(load_array(str(path), "data.keys"), places[[1, 0], :5].T)
    np.testing.assert_array_equal(load_array(f"{path}:0,2", "data.keys"), places[[0, 2], :5].T)
    assert unit_of_mda(str(path)) == "mm" and unit_of_mda(f"{path}:0,2") == ""
    with pytest.raises(BadInput, match="no positioner '3'; there are 0 to 2"):
        load_array(f"{path}:0,3", "data.keys")


def test_damaged_files_end_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "s.mda"
    made = two_axes(Y, X)
    for cut in range(20, len(made), 37):
        path.write_bytes(made[:cut])
        with pytest.raises(BadInput) as error:
            read_mda(path, "", "s.mda")
        assert "\n" not in str(error.value)
    rng = np.random.default_rng(2)
    for _ in range(200):
        spoilt = bytearray(made)
        for place in rng.integers(16, len(made), 3):
            spoilt[place] = rng.integers(256)
        path.write_bytes(bytes(spoilt))
        try:
            found, _ = read_mda(path, "", "s.mda")
        except BadInput as error:
            assert "\n" not in str(error)
        else:
            assert found.shape[1] == 2
