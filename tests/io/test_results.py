"""Result files: round trip, plain HDF5, atomic, and one sentence for every bad one."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import numpy as np
import pytest

from ptymesh.errors import BadInput, PtymeshError
from ptymesh.io.results import Result


def example(dtype: type = np.complex64) -> Result:
    """A small result with every field in use."""
    rng = np.random.default_rng(0)

    def waves(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)

    return Result(
        object=waves(2, 40, 48),
        probe=waves(3, 16, 12),
        positions_px=rng.uniform(0, 20, (7, 2)),
        positions_m=rng.uniform(0, 1e-6, (7, 2)),
        pixel_size_m=(1e-8, 2e-8),
        slice_spacing_m=3e-6,
        tilt_rad=(1e-3, -2e-3),
        history={
            "epoch": np.arange(4),
            "stage": np.array(["rpie", "rpie", "lsqml", "lsqml"]),
            "loss": np.geomspace(1, 0.1, 4),
            "residual": np.geomspace(0.5, 0.05, 4),
            "seconds": np.linspace(0.1, 0.4, 4),
        },
        recipe="data: {path: µ-scan.cxi}\n",
        attrs={"final_residual": 0.0131, "engine": "rpie", "ranks": 3, "seed": 0, "device": None, "odd": True},
        nominal_px=rng.uniform(0, 20, (7, 2)),
        background=np.ones((16, 12)),
        weights=np.ones((7, 1)),
    )


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_round_trip(tmp_path: Path, dtype: type) -> None:
    written = example(dtype)
    written.save(tmp_path / "deep" / "result.h5")
    read = Result.load(tmp_path / "deep" / "result.h5")
    for name in ("object", "probe", "positions_px", "positions_m", "nominal_px", "background", "weights"):
        there, back = getattr(written, name), getattr(read, name)
        assert back.dtype == there.dtype
        np.testing.assert_array_equal(back, there)
    assert read.pixel_size_m == written.pixel_size_m
    assert read.slice_spacing_m == written.slice_spacing_m and read.tilt_rad == written.tilt_rad
    assert read.recipe == written.recipe
    assert read.history.keys() == written.history.keys()
    for key, column in written.history.items():
        np.testing.assert_array_equal(read.history[key], column)
    assert read.attrs.pop("ptymesh_version")
    assert read.attrs == {key: value for key, value in written.attrs.items() if value is not None}
    assert os.listdir(tmp_path / "deep") == ["result.h5"]


def test_pixel_units_have_no_pixel_size(tmp_path: Path) -> None:
    written = example()
    bare = Result(written.object, written.probe, written.positions_px)
    bare.save(tmp_path / "bare.h5")
    with h5py.File(tmp_path / "bare.h5") as file:
        assert "pixel_size_m" not in file["object"].attrs
        assert set(file) == {"object", "probe", "positions_px", "history", "recipe"}
    read = Result.load(tmp_path / "bare.h5")
    assert read.pixel_size_m is None and read.positions_m is None and read.weights is None and read.history == {}


def test_file_is_plain_hdf5(tmp_path: Path) -> None:
    """Names, shapes and attributes as the design has them, seen by h5py alone."""
    example().save(tmp_path / "result.h5")
    with h5py.File(tmp_path / "result.h5") as file:
        assert file["object"].shape == (2, 40, 48) and file["object"].dtype == np.complex64
        np.testing.assert_array_equal(file["object"].attrs["pixel_size_m"], [1e-8, 2e-8])
        assert file["object"].attrs["slice_spacing_m"] == 3e-6
        np.testing.assert_array_equal(file["object"].attrs["tilt_rad"], [1e-3, -2e-3])
        assert file["positions_px"].dtype == np.float64
        assert file["history/stage"].asstr()[0] == "rpie"
        assert file["recipe"].asstr()[()].startswith("data:")
        assert file["opr/weights"].shape == (7, 1)
        assert file.attrs["engine"] == "rpie" and file.attrs["ranks"] == 3


def test_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "result.h5"
    example().save(path)
    before = path.read_bytes()
    bad = example()
    bad.attrs["what"] = object()
    with pytest.raises(TypeError):
        bad.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["result.h5"]


def test_unwritable_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(PtymeshError, match="cannot be written"):
        example().save(tmp_path / "file" / "result.h5")
    with pytest.raises(BadInput, match="is a folder"):
        example().save(tmp_path)


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no file"):
        Result.load(tmp_path / "absent.h5")
    with pytest.raises(BadInput, match="is a folder"):
        Result.load(tmp_path)
    (tmp_path / "text.h5").write_text("hello")
    with pytest.raises(BadInput, match="not an HDF5 file"):
        Result.load(tmp_path / "text.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["data"] = np.zeros(3)
    with pytest.raises(BadInput, match="has no /object"):
        Result.load(tmp_path / "other.h5")
    with h5py.File(tmp_path / "groups.h5", "w") as file:
        file.create_group("object")
    with pytest.raises(BadInput, match="has no /object"):
        Result.load(tmp_path / "groups.h5")


def test_truncated_files(tmp_path: Path) -> None:
    """Cut at any length, the file is refused in one sentence."""
    example().save(tmp_path / "whole.h5")
    whole = (tmp_path / "whole.h5").read_bytes()
    for share in (0.0, 0.001, 0.01, 0.1, 0.5, 0.9, 0.999):
        (tmp_path / "cut.h5").write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(BadInput, match=r"not an HDF5 file|truncated or damaged") as caught:
            Result.load(tmp_path / "cut.h5")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"object": np.ones((8, 8), complex)}, r"object is complex128 \(8, 8\)"),
        ({"probe": np.ones((1, 8, 8))}, "probe is float64"),
        ({"positions_px": np.ones((7, 3))}, r"positions_px has shape \(7, 3\)"),
        ({"positions_m": np.ones((6, 2))}, r"positions_m has shape \(6, 2\)"),
    ],
)
def test_wrong_shapes(change: dict[str, np.ndarray], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        Result(**{**vars(example()), **change})
