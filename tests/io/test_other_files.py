"""Arrays that lie in files of their own, in text among others; units that are said, missing, or unusable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ptymesh.errors import BadInput
from ptymesh.io import load_measurement
from ptymesh.io.options import DataOptions, PositionOptions
from ptymesh.io.tables import read_table
from ptymesh.recipe.schema import load_recipe

Load = Callable[..., Any]


@pytest.fixture
def load(tmp_path: Path, hdf5: Load, patterns: np.ndarray) -> Load:
    """`load({"positions": "places.csv"})`: of a file of N patterns, /frames, with other keys."""
    path = hdf5({"frames": patterns})

    def read(keys: dict[str, Any], place: dict[str, Any] | None = None, **options: Any) -> Any:
        data = {"path": path, "keys": {"patterns": "/frames"} | keys, "object_pixel_m": 1e-8} | options
        return load_measurement(DataOptions.parse(data, "data"), PositionOptions.parse(place or {}, "positions"))

    return read


def test_positions_of_every_kind_of_file(tmp_path: Path, load: Load, hdf5: Load, positions: np.ndarray) -> None:
    np.save(tmp_path / "p.npy", positions)
    np.savez(tmp_path / "p.npz", places=positions)
    hdf5({"/a/b": positions, "/y": positions[:, 0], "/x": positions[:, 1]}, "p.h5")
    rows = positions.tolist()
    (tmp_path / "p.csv").write_text(
        "# scan\nx, y, n\n" + "".join(f"{x!r},{y!r},{k}\n" for k, (y, x) in enumerate(rows))
    )
    (tmp_path / "p.txt").write_text("".join(f"{y!r}     {x!r}  \n" for y, x in rows))
    for keys in (
        {"positions": "p.npy"},
        {"positions": str(tmp_path / "p.npz")},
        {"positions": "p.npz:places"},
        {"positions": "p.h5:/a/b"},
        {"positions_y": "p.h5:/y", "positions_x": "p.h5:/x"},
        {"positions": "p.csv:y,x"},
        {"positions": "p.csv:0,1", "position_order": "xy"},
        {"positions_y": "p.csv:y", "positions_x": "p.csv:x"},
        {"positions": "p.txt"},
    ):
        np.testing.assert_allclose(load(keys).positions, positions / 1e-8, rtol=1e-12, err_msg=str(keys))
    with pytest.raises(BadInput, match=r"p\.csv has no column 'z'|no column 'z'; there are x, y, n"):
        load({"positions": "p.csv:z"})


def test_a_recipe_names_files_beside_itself(tmp_path: Path, hdf5: Load, patterns: Any, positions: Any) -> None:
    (tmp_path / "recipes").mkdir()
    np.save(tmp_path / "recipes" / "p.npy", positions)
    path = hdf5({"frames": patterns})
    recipe = tmp_path / "recipes" / "a.yaml"
    recipe.write_text(f"data: {{path: {path}, keys: {{patterns: frames, positions: p.npy}}, object_pixel_m: 1e-8}}\n")
    found = load_recipe(recipe)
    assert found.data.keys is not None and found.data.keys.patterns == "frames"
    np.testing.assert_allclose(load_measurement(found.data, found.positions).positions, positions / 1e-8)


def test_positions_of_another_number(tmp_path: Path, load: Load, positions: np.ndarray) -> None:
    np.save(tmp_path / "p.npy", np.repeat(positions, 10, axis=0))
    with pytest.raises(BadInput, match="6 patterns, but there are 60 positions, 10 for each"):
        load({"positions": "p.npy"})


def unit(path: Path, name: str, value: Any, said: str | None) -> None:
    with h5py.File(path, "r+") as file:
        file.pop(name, None)
        file[name] = value
        if said is not None:
            file[name].attrs["units"] = np.bytes_(said.encode())


@pytest.mark.parametrize(
    ("name", "value", "said", "wanted"),
    [
        ("energy_eV", 8.8, "keV", 8.8e3),
        ("energy_eV", 8800.0, "eV", 8.8e3),
        ("energy_eV", 8800.0, None, 8.8e3),
        ("energy_eV", 8.8e3 * 1.602176634e-19, "J", 8.8e3),
        ("energy_eV", 8.8, None, r"is 8\.8 and says no unit; .* set data\.energy_eV"),
        ("energy_eV", 300.0, None, r"is 300 and says no unit"),
        ("energy_eV", 1.41e-15, None, r"says no unit"),
        ("energy_eV", 8.8, "kilo", "is in 'kilo'; known are"),
        ("distance_m", 1920.0, "mm", 1.92),
        ("distance_m", 1.92, None, 1.92),
        ("distance_m", 1920.0, None, r"is 1920 and says no unit; .* set data\.distance_m"),
        ("detector_pixel_m", 75.0, "um", 75e-6),
        ("detector_pixel_m", 75.0, None, r"is 75 and says no unit; .* set data\.detector_pixel_m"),
        ("detector_pixel_m", 0.075, None, r"is 0\.075 and says no unit"),
    ],
)
def test_units_of_numbers(
    tmp_path: Path, load: Load, positions: Any, name: str, value: Any, said: Any, wanted: Any
) -> None:
    path = tmp_path / "scan.h5"
    unit(path, "number", value, said)
    np.save(tmp_path / "p.npy", positions)
    keys = {"positions": "p.npy", name: "number"}
    if isinstance(wanted, str):
        with pytest.raises(BadInput, match=wanted):
            load(keys, radiation="photon")
        return
    found = getattr(load(keys, radiation="photon").geometry, name)
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_units_of_positions(tmp_path: Path, load: Load, positions: np.ndarray) -> None:
    path = tmp_path / "scan.h5"
    for said, metres in (("um", 1e-6), ("nm", 1e-9), ("micron", 1e-6), ("mm", 1e-3), (None, 1.0)):
        unit(path, "places", positions / metres, said)
        np.testing.assert_allclose(load({"positions": "places"}).positions, positions / 1e-8, rtol=1e-9)
    unit(path, "places", positions * 1e9, "counts")
    with pytest.raises(BadInput, match=r"places in 'counts'; known are .* set positions\.unit"):
        load({"positions": "places"})
    m = load({"positions": "places"}, {"unit": "nm"})
    np.testing.assert_allclose(m.positions, positions / 1e-8, rtol=1e-9)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("1 2\n3 4 5\n", "no row of 2 numbers"),
        ("1,2\n3,x\n", "no row of 2 numbers"),
        ("y x\n", "no row of any numbers"),
        ("1;2\n3;4\n", ""),
        ('"y";"x"\n1;2\n3;4;\n', ""),
        ("1\t2\n\n3\t4\n", ""),
        ("% a comment\n1   2\n 3      4\n", ""),
    ],
)
def test_text(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text)
    if word:
        with pytest.raises(BadInput, match=word):
            read_table(path, "", "a.txt")
    else:
        np.testing.assert_array_equal(read_table(path, "", "a.txt"), [[1, 2], [3, 4]])
