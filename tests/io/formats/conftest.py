"""Files made byte by byte to the layout of their format, and the sample files that instruments wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptymesh.io import load_measurement
from ptymesh.io.options import DataOptions, PositionOptions
from ptymesh.measurement import Measurement

Load = Callable[..., Measurement]


@pytest.fixture
def load() -> Load:
    """`load(path, {"raster": ...}, crop=64)`: the measurement of a file."""

    def read(path: Path, place: dict[str, Any] | None = None, **options: Any) -> Measurement:
        data = DataOptions.parse({"path": path} | options, "data")
        return load_measurement(data, PositionOptions.parse(place or {}, "positions"))

    return read


@pytest.fixture
def upright() -> Callable[[Measurement], np.ndarray]:
    """All far-field patterns of a measurement, DC in the middle."""
    return lambda m: np.fft.fftshift(m.patterns.read(np.arange(m.views)), axes=(1, 2))


@pytest.fixture
def samples(data_dir: Path) -> Path:
    """Folder of the sample files; skips where it is absent."""
    folder = data_dir / "readers"
    if not folder.is_dir():
        pytest.skip(f"the files of instruments are not in {folder}")
    return folder
