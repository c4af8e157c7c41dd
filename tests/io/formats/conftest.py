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


@pytest.fixture
def write_store() -> Callable[..., Path]:
    """`write_store(path, (version, is a zip file, views of a chunk), arrays, attributes)`: a zarr store."""

    def write(
        path: Path,
        kind: tuple[int, bool, int],
        arrays: dict[str, np.ndarray],
        attributes: dict[str, dict[str, Any]],
        **options: Any,
    ) -> Path:
        """Write arrays and groups' attributes by their names."""
        zarr = pytest.importorskip("zarr")
        from zarr.storage import LocalStore, ZipStore

        version, is_zip, along = kind
        store = ZipStore(path, mode="w") if is_zip else LocalStore(path)
        root = zarr.create_group(store, zarr_format=version, attributes=attributes.get("", {}))
        for name, said in attributes.items():
            if name:
                root.create_group(name, attributes=said)
        for name, array in arrays.items():
            chunks = (1,) * (array.ndim - 3) + (along, *array.shape[-2:])
            root.create_array(name, shape=array.shape, dtype=array.dtype, chunks=chunks, **options)[...] = array
        store.close()
        return path

    return write
