"""Small data sets of every kind, written afresh for each test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ptymesh.io import load_measurement
from ptymesh.io.options import DataOptions, PositionOptions
from ptymesh.measurement import Measurement

N, H, W = 6, 16, 20


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTYMESH_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def patterns() -> np.ndarray:
    """(N, H, W) uint16, every value different enough to notice a wrong order."""
    return np.random.default_rng(1).integers(0, 500, (N, H, W)).astype(np.uint16)


@pytest.fixture
def positions() -> np.ndarray:
    """(N, 2) micrometres-sized metres, y x."""
    return np.random.default_rng(2).normal(size=(N, 2)) * 1e-6


@pytest.fixture
def hdf5(tmp_path: Path) -> Callable[..., Path]:
    """`hdf5(name={dataset: array})` writes a file and returns its path."""

    def write(datasets: dict[str, Any], name: str = "scan.h5", **options: Any) -> Path:
        path = tmp_path / name
        with h5py.File(path, "w") as file:
            for key, value in datasets.items():
                file.create_dataset(key, data=value, **(options if np.ndim(value) > 2 else {}))
        return path

    return write


@pytest.fixture
def generic(hdf5: Callable[..., Path], patterns: np.ndarray, positions: np.ndarray) -> Callable[..., Measurement]:
    """`generic(bin=2, ...)`: the measurement of a plain file of N patterns and positions in metres, 10 nm pixels."""
    path = hdf5({"frames": patterns, "places": positions})

    def load(place: dict[str, Any] | None = None, **options: Any) -> Measurement:
        keys = {"patterns": "/frames", "positions": "/places"} | options.pop("keys", {})
        data = {"path": path, "keys": keys, "object_pixel_m": 1e-8} | options
        return load_measurement(DataOptions(**data), PositionOptions(**(place or {})))

    return load


@pytest.fixture
def everything() -> Callable[[Measurement], np.ndarray]:
    """All patterns of a measurement, far-field ones with DC in the middle."""

    def read(measurement: Measurement) -> np.ndarray:
        counts = measurement.patterns.read(np.arange(measurement.views))
        assert counts.dtype == measurement.patterns.dtype
        assert counts.shape == measurement.patterns.shape
        assert counts.flags.c_contiguous
        far = measurement.geometry.propagation == "far_field"
        return np.fft.fftshift(counts, axes=(1, 2)) if far else counts

    return read
