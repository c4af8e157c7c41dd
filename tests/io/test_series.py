"""A scan in several files: a list of them, a numbered series, positions of each or of all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from scipy.io import savemat

from ptymesh.errors import BadInput
from ptymesh.io import load_measurement
from ptymesh.io.options import DataOptions, PositionOptions
from ptymesh.recipe.schema import load_recipe

Load = Callable[..., Any]


@pytest.fixture
def parts(tmp_path: Path) -> tuple[list[Path], np.ndarray, np.ndarray]:
    """Files 8 to 11 of two views each, their patterns and positions."""
    rng = np.random.default_rng(21)
    frames, places = rng.poisson(9, (8, 16, 20)).astype(np.uint16), rng.normal(size=(8, 2))
    paths = [tmp_path / f"scan_{8 + k}.npz" for k in range(4)]
    for k, path in enumerate(paths):
        np.savez(path, f=frames[2 * k : 2 * k + 2], p=places[2 * k : 2 * k + 2])
    return paths, frames, places


def load(path: Path, further: Any, keys: dict[str, str], place: Any = None, **options: Any) -> Any:
    data = {"path": path, "further": further, "keys": {"patterns": "f"} | keys} | options
    place = {"unit": "px"} if place is None else place
    return load_measurement(DataOptions.parse(data, "data"), PositionOptions.parse(place, "positions"))


def test_a_list_and_a_series(parts: Any, everything: Load) -> None:
    paths, frames, places = parts
    for further in (paths[1:], str(paths[0].with_name("scan_*.npz"))):
        m = load(paths[0], further, {"positions": "p"})
        np.testing.assert_array_equal(everything(m), frames)
        np.testing.assert_allclose(m.positions, places)
        np.testing.assert_array_equal(
            m.patterns.read(np.array([7, 0, 3])), np.fft.ifftshift(frames[[7, 0, 3]], axes=(1, 2))
        )
        assert any("4 files are joined, of 8 views" in note for note in m.notes)
    one, two = (load(paths[0], paths[1:n], {"positions": "p"}) for n in (2, 3))
    assert one.fingerprint != two.fingerprint and len(one.fingerprint) == 32


def test_positions_of_all_files(parts: Any) -> None:
    paths, _, places = parts
    np.save(paths[0].with_name("all.npy"), places)
    np.testing.assert_allclose(load(paths[0], paths[1:], {"positions": "all.npy"}).positions, places)


def test_a_raster_over_files(parts: Any, everything: Load) -> None:
    paths, frames, _ = parts
    m = load(paths[0], paths[1:], {}, {"raster": {"step_px": 2}}, frames={"shape": [2, 3], "skip": 2})
    np.testing.assert_array_equal(everything(m), frames[2:])


def test_files_that_do_not_belong_together(parts: Any) -> None:
    paths = parts[0]
    np.savez(paths[3], f=np.zeros((2, 16, 18), np.uint16), p=np.zeros((2, 2)))
    with pytest.raises(BadInput, match=r"scan_11\.npz holds patterns of \(16, 18\) uint16, and .*scan_8\.npz of"):
        load(paths[0], paths[1:], {"positions": "p"})
    with pytest.raises(BadInput, match="No file matches"):
        load(paths[0], str(paths[0].with_name("other_*.npz")), {"positions": "p"})
    with pytest.raises(BadInput, match="There is no file"):
        load(paths[0], str(paths[0].with_name("absent.npz")), {"positions": "p"})


def test_a_recipe_names_a_series_beside_itself(parts: Any) -> None:
    paths = parts[0]
    recipe = paths[0].with_name("a.yaml")
    recipe.write_text(
        "data: {path: scan_8.npz, further: scan_*.npz, keys: {patterns: f, positions: p}}\npositions: {unit: px}\n"
    )
    found = load_recipe(recipe)
    assert load_measurement(found.data, found.positions).views == 8


def one_pattern_a_file(folder: Path, frames: np.ndarray, kind: str) -> Path:
    """One file for each pattern, as MATLAB or a camera leaves them: `frame_1` comes before `frame_10`."""
    for number, frame in enumerate(frames, 1):
        path = folder / f"frame_{number}.{'h5' if kind == 'hdf5' else 'mat'}"
        if kind == "v5":
            savemat(path, {"cbed": frame, "exposure": 0.1})
            continue
        with h5py.File(path, "w", userblock_size=0 if kind == "hdf5" else 512) as file:
            file["cbed"] = frame if kind == "hdf5" else frame.T  # MATLAB's order
        if kind == "v7.3":
            with path.open("r+b") as stream:
                stream.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(116) + bytes(8) + b"\x00\x02IM")
    return path.with_stem("frame_1")


@pytest.mark.parametrize("kind", ["v5", "v7.3", "hdf5"])
def test_one_pattern_in_each_of_many_files(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    frames = rng.poisson(9, (90, 16, 20)).astype(np.uint8)
    first = one_pattern_a_file(tmp_path, frames, kind)
    data: dict[str, Any] = {"path": first, "further": [tmp_path / f"frame_*{first.suffix}"], "object_pixel_m": 2e-11}
    data |= {"keys": {"patterns": "/cbed", "pattern_axes": "yx"}} if kind == "hdf5" else {}
    raster = {"raster": {"shape": [9, 10], "step_m": 5e-11}}
    before = len(list(Path("/proc/self/fd").iterdir()))
    m = load_measurement(DataOptions.parse(data), PositionOptions.parse(raster))
    views = rng.permutation(90)
    found = np.fft.fftshift(m.patterns.read(views), axes=(1, 2))
    np.testing.assert_array_equal(found, frames[views])
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2, "no file is left open, for there are many"
    if kind != "hdf5":
        with pytest.raises(BadInput, match="no array of real numbers with three or four axes"):
            load_measurement(DataOptions.parse({"path": first, "object_pixel_m": 2e-11}), PositionOptions.parse(raster))
