"""Files of 20 GB with holes: two ranks open them and read their first batch without a pass over the patterns."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ptymesh.distributed.world import World
from ptymesh.io import load_measurement
from ptymesh.io.options import DataOptions, PositionOptions

pytestmark = pytest.mark.long
SIDE, FRAME, BATCH = 404, (256, 256), 32
VIEWS = SIDE * SIDE
#: Of each rank: bytes of the whole process, and seconds until it has its first batch.
MOST_BYTES, MOST_SECONDS = 2 << 30, 5.0
RASTER = {"raster": {"step_m": 1e-10}}
ELECTRONS = {"energy_eV": 80e3, "radiation": "electron", "object_pixel_m": 2e-11}
PHOTONS = {"energy_eV": 8.8e3, "radiation": "photon", "distance_m": 2.0, "detector_pixel_m": 75e-6}
Case = tuple[Path, dict[str, Any], dict[str, Any]]


def put(file: h5py.File, name: str, shape: tuple[int, ...], dtype: str) -> None:
    """Make a dataset of which one pattern alone is written."""
    ones = (1,) * (len(shape) - 2)
    data = file.create_dataset(name, shape, dtype, chunks=(*ones, *FRAME))
    data[(0,) * len(ones)] = 1


def places() -> tuple[np.ndarray, np.ndarray]:
    y, x = np.divmod(np.arange(VIEWS), SIDE)
    return y * 1e-7, x * 1e-7


def npy(folder: Path) -> Case:
    path = folder / "scan.npy"
    shape = (SIDE, SIDE, *FRAME)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<u2", "fortran_order": False, "shape": shape})
        file.truncate(file.tell() + 2 * int(np.prod(shape)))
    return path, ELECTRONS, RASTER


def hyperspy(folder: Path) -> Case:
    path = folder / "scan.hspy"
    with h5py.File(path, "w") as file:
        put(file, "Experiments/scan/data", (SIDE, SIDE, *FRAME), "u2")
        for k, unit in enumerate(("nm", "nm", "1/nm", "1/nm")):
            file.create_group(f"Experiments/scan/axis-{k}").attrs.update(scale=0.1, units=unit, navigate=k < 2)
    return path, {"energy_eV": 80e3}, {}


def hxn(folder: Path) -> Case:
    path = folder / "scan.h5"
    with h5py.File(path, "w") as file:
        put(file, "diffamp", (VIEWS, *FRAME), "f4")
        file["points"] = 1e6 * np.stack(places()[::-1])
        file["lambda_nm"], file["z_m"], file["ccd_pixel_um"] = 0.1, 2.0, 55.0
    return path, {}, {}


def fold_slice(folder: Path) -> Case:
    path = folder / "data_roi0_dp.hdf5"
    with h5py.File(path, "w") as file:
        put(file, "dp", (VIEWS, *FRAME), "u2")
    with h5py.File(folder / "data_roi0_para.hdf5", "w") as file:
        file["ppY"], file["ppX"] = places()
    return path, PHOTONS, {}


def ptypy(folder: Path) -> Case:
    path = folder / "scan.ptyd"
    with h5py.File(path, "w") as file:
        file["meta/energy"], file["meta/distance"], file["meta/psize"] = 8.8, 2.0, 75e-6
        for number in range(4):
            part = slice(number * VIEWS // 4, (number + 1) * VIEWS // 4)
            put(file, f"chunks/{number}/data", (VIEWS // 4, *FRAME), "u2")
            file[f"chunks/{number}/positions"] = np.stack(places(), axis=1)[part]
            file[f"chunks/{number}/weights"] = np.empty(0)
    return path, {}, {}


def open_and_read(world: World, path: Path, data: dict[str, Any], positions: dict[str, Any]) -> tuple[int, float, int]:
    """Return views, seconds until the first batch of this rank was read, and the most bytes of this process."""
    start = time.monotonic()
    m = load_measurement(
        DataOptions.parse({"path": path} | data, "data"), PositionOptions.parse(positions, "positions")
    )
    batch = m.patterns.read(np.arange(BATCH) + world.rank * (m.views // world.size))
    assert batch.shape == (BATCH, *FRAME)
    seconds = time.monotonic() - start
    return m.views, seconds, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("make", [npy, hyperspy, hxn, fold_slice, ptypy])
def test_two_ranks_open_20_gigabytes(
    tmp_path: Path, ranks: Callable[..., list[tuple[int, float, int]]], make: Callable[[Path], Case]
) -> None:
    for views, seconds, most in ranks(2, open_and_read, *make(tmp_path)):
        assert views == VIEWS and seconds < MOST_SECONDS and most < MOST_BYTES
