"""DigitalMicrograph: both versions and byte orders, axes in any order, stacks, damage."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ptymesh.errors import BadInput
from ptymesh.geometry import electron_wavelength_m

ROWS, COLUMNS, SIDES = 3, 4, (12, 16)
CODES = {"u1": (8, 6), "u2": (4, 10), "u4": (5, 11), "f4": (6, 2)}


class Writer:
    """Tags as DigitalMicrograph writes them."""

    def __init__(self, version: int, order: str) -> None:
        self.long, self.version, self.order = version == 4, version, order

    def size(self, *numbers: int) -> bytes:
        return b"".join(struct.pack(">Q" if self.long else ">I", number) for number in numbers)

    def entry(self, kind: int, name: str, body: bytes) -> bytes:
        size = struct.pack(">Q", len(body)) if self.long else b""
        return struct.pack(">BH", kind, len(name)) + name.encode() + size + body

    def group(self, members: dict[str, Any] | list[Any]) -> bytes:
        named = members.items() if isinstance(members, dict) else (("", one) for one in members)
        entries = [
            self.entry(20, name, self.group(value))
            if isinstance(value, dict | list)
            else self.entry(21, name, b"%%%%" + self.value(value))
            for name, value in named
        ]
        return b"\1\0" + self.size(len(entries)) + b"".join(entries)

    def value(self, value: Any) -> bytes:
        if isinstance(value, bool):
            return self.size(1, 8) + struct.pack("?", value)
        if isinstance(value, int):
            return self.size(1, 5) + struct.pack(self.order + "I", value)
        if isinstance(value, float):
            return self.size(1, 6) + struct.pack(self.order + "f", value)
        if isinstance(value, str):
            text = value.encode("utf-16-le" if self.order == "<" else "utf-16-be")
            return self.size(3, 20, 4, len(text) // 2) + text
        if isinstance(value, tuple):  # a structure of numbers
            fields = [number for _ in value for number in (0, 7)]
            return self.size(3 + len(fields), 15, 0, len(value), *fields) + struct.pack(
                f"{self.order}{len(value)}d", *value
            )
        code = CODES[value.dtype.str[1:]][0]
        content = value.astype(value.dtype.newbyteorder(self.order)).tobytes()
        return self.size(3, 20, code, value.size) + content

    def file(self, members: dict[str, Any]) -> bytes:
        body = self.group(members)
        return struct.pack(">I", self.version) + self.size(len(body)) + struct.pack(">I", self.order == "<") + body


def image(values: np.ndarray, units: list[str], steps: list[float], tags: dict[str, Any] | None = None) -> dict:
    """An image; units and steps of its axes slowest first, as those of numpy."""
    dimensions = [
        {"Origin": 0.0, "Scale": step, "Units": unit} for unit, step in zip(units[::-1], steps[::-1], strict=True)
    ]
    return {
        "ImageData": {
            "Calibrations": {"Brightness": {"Scale": 1.0}, "Dimension": dimensions},
            "Data": values.reshape(-1),
            "DataType": CODES[values.dtype.str[1:]][1],
            "Dimensions": list(values.shape[::-1]),
        },
        "ImageTags": {"Microscope Info": {"Voltage": 200000.0, "Name": "Microscope µ"}} | (tags or {}),
        "Area": (0.0, 1.0, 2.0),
    }


def dm(path: Path, *images: dict, version: int = 4, order: str = "<") -> Path:
    thumbnail = image(np.zeros((32, 40), "u4"), ["", ""], [1.0, 1.0])
    path.write_bytes(Writer(version, order).file({"InImageMode": True, "ImageList": [thumbnail, *images]}))
    return path


@pytest.fixture
def frames() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 900, (ROWS, COLUMNS, *SIDES)).astype("u2")


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("axes", ["rcyx", "yxrc"])
def test_axes_are_told_by_their_units(
    tmp_path: Path, frames: Any, load: Any, upright: Any, axes: str, version: int, order: str
) -> None:
    stored = frames if axes == "rcyx" else frames.transpose(2, 3, 0, 1)
    units, steps = ["nm", "nm", "1/nm", "1/nm"], [3.0, 2.0, 0.5, 0.25]
    if axes == "yxrc":
        units, steps = units[2:] + units[:2], steps[2:] + steps[:2]
    path = dm(tmp_path / "a.dm4", image(stored, units, steps), version=version, order=order)
    m = load(path)
    np.testing.assert_array_equal(upright(m), frames.reshape(-1, *SIDES))
    pixel = np.array([1e-9 / (12 * 0.5), 1e-9 / (16 * 0.25)])
    np.testing.assert_allclose(m.geometry.object_pixel_m, pixel, rtol=1e-6)
    np.testing.assert_allclose((m.positions[COLUMNS + 1] - m.positions[0]) * pixel, (3e-9, 2e-9), rtol=1e-6)
    assert m.geometry.energy_eV == pytest.approx(200e3) and m.geometry.radiation == "electron"


def test_angles_need_the_energy_that_the_file_says(tmp_path: Path, frames: Any, load: Any) -> None:
    path = dm(tmp_path / "a.dm4", image(frames, ["nm", "nm", "mrad", "mrad"], [1.0, 1.0, 0.5, 0.5]))
    expected = electron_wavelength_m(200e3) / (np.array(SIDES) * 0.5e-3)
    np.testing.assert_allclose(load(path).geometry.object_pixel_m, expected, rtol=1e-6)
    np.testing.assert_allclose(
        load(path, energy_eV=80e3).geometry.object_pixel_m, electron_wavelength_m(80e3) / (np.array(SIDES) * 0.5e-3)
    )


def test_a_stack_whose_shape_stands_elsewhere(tmp_path: Path, frames: Any, load: Any, upright: Any) -> None:
    sampling = {"SI": {"Acquisition": {"Spatial Sampling": {"Height (pixels)": ROWS, "Width (pixels)": COLUMNS}}}}
    stack = frames.reshape(-1, *SIDES)
    path = dm(tmp_path / "a.dm4", image(stack, ["", "1/nm", "1/nm"], [1.0, 0.5, 0.5], sampling))
    m = load(path, {"raster": {"step_px": 2}})
    np.testing.assert_array_equal(upright(m), stack)
    np.testing.assert_allclose(m.positions[COLUMNS + 1] - m.positions[0], (2, 2))
    short = dm(tmp_path / "b.dm4", image(stack[:9], ["", "1/nm", "1/nm"], [1.0, 0.5, 0.5], sampling))
    with pytest.raises(BadInput, match=r"says 3 x 4 = 12 views, and .* holds 9 frames.* to \[2, 4\]"):
        load(short, {"raster": {"step_px": 2}})


def test_axes_without_units_are_asked_for(tmp_path: Path, frames: Any, load: Any, upright: Any) -> None:
    path = dm(tmp_path / "a.dm4", image(frames, [""] * 4, [1.0] * 4))
    with pytest.raises(BadInput, match=r"3 x 4 x 12 x 16 .*units none, none, none, none, .*set data\.frames\.axes"):
        load(path)
    m = load(path, {"raster": {"step_px": 2}}, frames={"axes": "rcyx"}, object_pixel_m=1e-11)
    np.testing.assert_array_equal(upright(m), frames.reshape(-1, *SIDES))
    assert any("1 without a unit, which does not give the object pixel" in note for note in m.notes)
    with pytest.raises(BadInput, match=r"frames\.axes is nyx, and the image .* has 4 axes"):
        load(path, frames={"axes": "nyx"})


def test_axes_are_for_files_that_do_not_say_them(tmp_path: Path, frames: Any, load: Any) -> None:
    path = tmp_path / "a.emd"
    with h5py.File(path, "w") as file:
        file.create_group("cube").attrs["python_class"] = "DataCube"
        file["cube/data"] = frames
    with pytest.raises(BadInput, match=r"data\.frames\.axes is for files .* leave it out, or name the patterns"):
        load(path, {"raster": {"step_px": 2}}, frames={"axes": "rcyx"})
    with pytest.raises(BadInput, match="axes is 'rcyy'; order the letters"):
        load(path, frames={"axes": "rcyy"})


def test_unsound_files(tmp_path: Path, frames: Any, load: Any) -> None:
    units, steps = ["nm", "nm", "1/nm", "1/nm"], [1.0, 1.0, 0.5, 0.5]
    whole = dm(tmp_path / "a.dm4", image(frames, units, steps)).read_bytes()
    few = image(frames, units, steps)
    few["ImageData"]["Data"] = frames.reshape(-1)[:-5]
    volts = image(frames, units, steps, {"Microscope Info": {"Voltage": 200.0}})
    mark = whole.index(b"%%%%")
    for content, word in (
        (whole[:60], "ends within its tags"),
        (whole[:-2000], "ends within its tags|ends at byte"),
        (whole[:mark] + b"$" + whole[mark + 1 :], "has no value where that of 'InImageMode' must be"),
        (whole[: mark + 11] + b"\7" + whole[mark + 12 :], "describes 'InImageMode' by 7 numbers|of type|ends within"),
        (dm(tmp_path / "b.dm4", few).read_bytes(), "holds 2299; it is damaged"),
        (dm(tmp_path / "c.dm4").read_bytes(), "no image in it has three or four dimensions"),
        (dm(tmp_path / "d.dm4", volts).read_bytes(), r"is 200 V, which is no energy .* set data\.energy_eV"),
    ):
        path = tmp_path / "odd.dm4"
        path.write_bytes(content)
        with pytest.raises(BadInput, match=word):
            load(path)


def test_a_tree_without_end(tmp_path: Path, load: Any) -> None:
    deep: dict[str, Any] = {}
    for _ in range(60):
        deep = {"a": deep}
    path = tmp_path / "a.dm3"
    path.write_bytes(Writer(3, "<").file(deep))
    with pytest.raises(BadInput, match="more tags than a microscope writes"):
        load(path)
