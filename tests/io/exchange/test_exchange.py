"""Results in other programs' files: what is written is what is read, and what is lost is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ptymesh.errors import BadInput
from ptymesh.io.exchange import convert
from ptymesh.io.results import Result

#: Windows and objects with even and odd sides, and pixels that are not square.
SHAPES = [((40, 48), (16, 12)), ((41, 37), (15, 11)), ((40, 37), (16, 11))]


def example(
    shape: tuple[int, int] = (40, 48), window: tuple[int, int] = (16, 12), slices: int = 1, modes: int = 2, **more: Any
) -> Result:
    """Return a result of random numbers, so that any wrong order, sign or place is noticed."""
    rng = np.random.default_rng(3)

    def waves(*sides: int) -> np.ndarray:
        return (rng.normal(size=sides) + 1j * rng.normal(size=sides)).astype(np.complex64)

    positions = rng.uniform(0, np.array(shape) - window, (7, 2))
    pixel = np.array((1e-8, 2e-8))
    fields: dict[str, Any] = {
        "object": waves(slices, *shape),
        "probe": waves(modes, *window),
        "positions_px": positions,
        "positions_m": (positions - (3.3, -4.6)) * pixel,
        "pixel_size_m": (1e-8, 2e-8),
        "slice_spacing_m": 3e-7 if slices > 1 else 0.0,
        "attrs": {"energy_eV": 8000.0, "radiation": "photon", "distance_m": 1.5},
    }
    return Result(**fields | more)


def exchanged(result: Result, path: Path, name: str) -> Result:
    """Return the result as it is read from another program's file, which is found by its content."""
    convert.write_result(result, path, convert.FORMATS[name])
    moved = path.rename(path.with_suffix(".unnamed"))
    back, found, _ = convert.read_result(moved)
    assert found.name == name
    back.save(path.with_suffix(".back.h5"))
    return Result.load(path.with_suffix(".back.h5"))


def assert_same(back: Result, there: Result) -> None:
    """Check arrays to single precision, positions to 1e-6 pixels, and lengths."""
    for name in ("object", "probe"):
        np.testing.assert_allclose(getattr(back, name), getattr(there, name), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(back.positions_px, there.positions_px, rtol=0, atol=1e-6)
    assert back.pixel_size_m == pytest.approx(there.pixel_size_m, rel=1e-9)
    assert back.slice_spacing_m == pytest.approx(there.slice_spacing_m, rel=1e-6)


#: Formats that are read back: name, ending, numbers of slices that they hold.
BOTH_WAYS = [("ptychodus", ".h5", (1, 3)), ("ptychodus", ".npz", (1, 3))]


@pytest.mark.parametrize(("shape", "window"), SHAPES)
@pytest.mark.parametrize(
    ("name", "ending", "slices"), [(name, ending, count) for name, ending, counts in BOTH_WAYS for count in counts]
)
def test_a_round_trip(
    name: str, ending: str, slices: int, shape: tuple[int, int], window: tuple[int, int], tmp_path: Path
) -> None:
    there = example(shape, window, slices)
    back = exchanged(there, tmp_path / f"result{ending}", name)
    assert_same(back, there)
    assert back.positions_m is not None
    np.testing.assert_allclose(back.positions_m, there.positions_m, atol=1e-14)
    assert back.attrs["converted_from"] == convert.FORMATS[name].about.program


@pytest.mark.parametrize("ending", [".h5", ".npz"])
def test_a_product_of_ptychodus(ending: str, tmp_path: Path) -> None:
    """Its own geometry: a position, counted from pixels' edges, is the middle of the window on the object."""
    result = example(opr=example(modes=3).probe, weights=np.random.default_rng(0).uniform(0.5, 1, (7, 4)))
    path = tmp_path / f"product{ending}"
    assert convert.write_result(result, path, convert.FORMATS["ptychodus"]) == []
    if ending == ".npz":
        with np.load(path, allow_pickle=False) as file:
            values = {name: file[name] for name in file}
    else:
        with h5py.File(path) as file:
            values = {name: file[name][()] for name in file} | dict(file.attrs)
            for name in ("object", "probe"):
                values |= {f"{name}_{key}": value for key, value in file[name].attrs.items()}
    assert float(values["probe_energy_eV"]) == 8000 and float(values["detector_object_distance_m"]) == 1.5
    assert float(values["object_pixel_height_m"]) == 1e-8 and float(values["object_pixel_width_m"]) == 2e-8
    x = (values["probe_position_x_m"] - values["object_center_x_m"]) / values["object_pixel_width_m"] + 48 / 2
    y = (values["probe_position_y_m"] - values["object_center_y_m"]) / values["object_pixel_height_m"] + 40 / 2
    np.testing.assert_allclose(np.stack((y - 16 / 2, x - 12 / 2), 1), result.positions_px, atol=1e-9)
    assert values["probe"].shape == (4, 2, 16, 12) and values["object"].shape == (1, 40, 48)
    back, _, notes = convert.read_result(path)
    assert notes == []
    assert back.opr is not None and result.opr is not None and back.weights is not None
    np.testing.assert_array_equal(back.opr, result.opr)
    np.testing.assert_array_equal(back.weights, result.weights)
    assert back.attrs["energy_eV"] == 8000


def test_what_is_lost_is_said(tmp_path: Path) -> None:
    result = example(
        background=np.ones((16, 12)), nominal_px=np.zeros((7, 2)), recipe="a: 1", parameters={"lens": {"C10": 1e-6}}
    )
    said = " ".join(convert.write_result(result, tmp_path / "p.npz", convert.FORMATS["ptychodus"]))
    for word in ("background", "before refinement", "lens/C10", "recipe"):
        assert word in said
    assert convert.write_result(result, tmp_path / "own.h5", convert.FORMATS["ptymesh"]) == []


def test_pixel_units_are_refused_where_there_are_lengths(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="pixel units"):
        bare = example(pixel_size_m=None, positions_m=None)
        convert.write_result(bare, tmp_path / "p.npz", convert.FORMATS["ptychodus"])
    assert not list(tmp_path.iterdir())


def test_endings_choose_the_format() -> None:
    own = convert.FORMATS["ptymesh"]
    assert convert.target_format(Path("a.h5"), own).name == "ptychodus"
    assert convert.target_format(Path("a.h5"), convert.FORMATS["ptychodus"]).name == "ptymesh"
    assert convert.target_format(Path("a.NPZ"), own).name == "ptychodus"
    assert convert.target_format(Path("a.dat"), own, "ptychodus").name == "ptychodus"
    with pytest.raises(BadInput, match=r"\.npz \(ptychodus\)"):
        convert.target_format(Path("a.dat"), own)
    with pytest.raises(BadInput, match="there are ptymesh, ptychodus"):
        convert.target_format(Path("a.dat"), own, "ptychodos")


def _spoil_positions(file: h5py.File) -> None:
    del file["probe_position_x_m"]
    file["probe_position_x_m"] = np.full(7, np.nan)


def _spoil_spacing(file: h5py.File) -> None:
    del file["object"], file["object_layer_spacing_m"]
    file["object"] = np.ones((3, 40, 48), complex)
    file["object"].attrs.update({"center_x_m": 0, "center_y_m": 0, "pixel_height_m": 1e-8, "pixel_width_m": 1e-8})
    file["object_layer_spacing_m"] = [1e-7, 2e-7]


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda file: file["object"].attrs.pop("pixel_width_m"), "object_pixel_width_m"),
        (_spoil_positions, "no finite number"),
        (_spoil_spacing, "equally far apart"),
        (lambda file: file.create_dataset("opr_weights", data=np.ones((7, 3))), "opr_weights"),
    ],
)
def test_unsound_products(spoil: Callable[[h5py.File], Any], word: str, tmp_path: Path) -> None:
    path = tmp_path / "product.h5"
    convert.write_result(example(), path, convert.FORMATS["ptychodus"])
    with h5py.File(path, "r+") as file:
        spoil(file)
    with pytest.raises(BadInput, match=word) as raised:
        convert.read_result(path)
    assert "\n" not in str(raised.value)
