"""Gatan DigitalMicrograph (.dm3, .dm4): a tree of tags in which the images of a file and their calibration stand.

Lengths and types of tags are big-endian, with 32 bits in version 3 and 64 in version 4; values are in the byte order
that the header names. A tag is a group of tags or a value: a number, a structure, a text, or an array of them. The
first dimension of an image is the fastest. Arrays are passed over, and patterns read from the file when they are asked
for. Versions of the program store the axes of a scan in different orders; the units of the axes tell which are those of
the pattern (inverse lengths or angles) and which those of the scan (lengths).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.geometry import Pair, electron_wavelength_m
from ptymesh.io.formats.contents import first_bytes
from ptymesh.io.options import DataOptions
from ptymesh.io.rasters import Shape, orientation_note, raster_positions, scan_shape
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.source import MappedSource
from ptymesh.io.units import (
    ELECTRON_EV,
    angle_rad,
    check_energy,
    length_m,
    object_pixel_m,
    per_length,
    uncalibrated_note,
)

NAME = "DigitalMicrograph (.dm3, .dm4)"
#: `data.frames.axes` is for such files.
ASKS_AXES = True
VERSIONS = (3, 4)
#: Kinds of entries.
END, GROUP, VALUE = 0, 20, 21
MARK = b"%%%%"
#: Numbers of a tag by their code, without byte order; composite types.
NUMBERS = {2: "i2", 3: "i4", 4: "u2", 5: "u4", 6: "f4", 7: "f8", 8: "u1", 9: "i1", 10: "u1", 11: "i8", 12: "u8"}
STRUCTURE, TEXT, ARRAY = 15, 18, 20
#: Numbers of an image by the code of its `DataType`.
PIXELS = {1: "i2", 2: "f4", 6: "u1", 7: "i4", 9: "i1", 10: "u2", 11: "u4", 12: "f8", 14: "u1", 39: "i8", 40: "u8"}
#: Values that an array may have if it is read with the tags, as texts are.
SHORT = 512
#: Tags of a file, and how deep they lie, at most: more are no file of a microscope.
MOST_TAGS, MOST_DEPTH, MOST_NAME = 200_000, 40, 4096
#: Where things stand.
IMAGES = "ImageList"
SPATIAL = ("ImageTags", "SI", "Acquisition", "Spatial Sampling")
VOLTAGE = ("ImageTags", "Microscope Info", "Voltage")


@dataclass(frozen=True)
class StoredArray:
    """An array that was passed over.

    Attributes:
        offset: byte at which its values begin.
        count: of its values.
        kind: type of its values, None for structures.
    """

    offset: int
    count: int
    kind: str | None


Tag = dict[str, "Tag"] | StoredArray | tuple[float, ...] | float | str


def recognises(path: Path, _: DataOptions) -> bool:
    """Return True for a file that begins with a version and a byte order of DigitalMicrograph."""
    start = first_bytes(path, 16)
    if len(start) < 16 or int.from_bytes(start[:4], "big") not in VERSIONS:
        return False
    at = 8 if start[3] == 3 else 12
    return int.from_bytes(start[at : at + 4], "big") in (0, 1)


def read(path: Path, data: DataOptions) -> RawScan:
    """Return the scan of the image with the most values among those of three or four dimensions.

    Raises:
        BadInput: There is none, the file is damaged, or its axes cannot be told apart.
    """
    with path.open("rb") as file:
        reader = TagReader(file, path)
        tags = reader.read()
    images = [image for image in _images(tags, reader.order) if len(image.shape) in (3, 4)]
    if not images:
        raise BadInput(
            f"{path} holds no scan: no image in it has three or four dimensions; name the file of the camera."
        )
    image = max(images, key=lambda one: math.prod(one.shape))
    end = image.values.offset + math.prod(image.shape) * image.dtype.itemsize
    if math.prod(image.shape) != image.values.count:
        raise BadInput(
            f"{path} says {' x '.join(map(str, image.shape))} values of its image and holds {image.values.count}; it "
            "is damaged: copy it again."
        )
    if end > path.stat().st_size:
        raise BadInput(
            f"{path} ends at byte {path.stat().st_size} and its patterns at {end}; it is truncated: copy it again."
        )
    axes = (data.frames.axes if data.frames else None) or _axes(image, path)
    if len(axes) != len(image.shape):
        raise BadInput(
            f"data.frames.axes is {axes}, and the image in {path} has {len(image.shape)} axes: name each once."
        )
    source = MappedSource(path, image.shape, image.dtype, axes, offset=image.values.offset)
    volts = _number(image.tags, *VOLTAGE)
    if volts is not None and data.energy_eV is None and data.wavelength_m is None:
        check_energy(volts, ELECTRON_EV, f"The voltage in {path}", f"{volts:g} V")
    notes: list[str] = []
    energy = data.energy_eV or volts
    wavelength = data.wavelength_m or (electron_wavelength_m(energy) if energy else None)
    scales = [image.scales[axes.index(axis)] for axis in "yx"]
    pixel = object_pixel_m(source.shape[1:], scales, wavelength)
    if pixel is None:
        notes.append(uncalibrated_note(*scales[0]))
    shape = source.raster
    if shape is None:
        scan_rows = scan_shape(source.shape[0], _declared(image), data, f"The spatial sampling in {path}")
        shape, notes = scan_rows.shape, [*notes, *scan_rows.notes]
    step = _step(image, axes)
    return RawScan(
        patterns=source,
        optics=Optics(radiation="electron", energy_eV=volts, object_pixel_m=pixel),
        positions=None if step is None or shape is None else raster_positions(shape, step),
        raster=shape,
        name=path.stem,
        notes=(*notes, orientation_note("DigitalMicrograph")),
    )


class TagReader:
    """Reads the tags of a file.

    Attributes:
        file: open for reading.
        path: of it, for messages.
        order: "<" or ">", the byte order of values, once they are read.
    """

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file, self.path = file, path
        self._tags_left = MOST_TAGS
        self._long = False
        self.order = "<"

    def read(self) -> dict[str, Tag]:
        """Return the tree of tags, unnamed ones by their number.

        Raises:
            BadInput: The file is truncated or no tree of tags.
        """
        version = self._unpack(">I")
        self._long = version == 4
        self._unpack(">Q" if self._long else ">I")  # bytes that follow
        self.order = "<" if self._unpack(">I") == 1 else ">"
        return self._group(0)

    def _group(self, depth: int) -> dict[str, Tag]:
        self._take(2)  # sorted, open
        tags: dict[str, Tag] = {}
        for number in range(self._count()):
            kind = self._unpack(">B")
            if kind == END:
                break
            self._tags_left -= 1
            if self._tags_left < 0 or depth > MOST_DEPTH:
                raise self._damaged("has more tags than a microscope writes")
            name = self._take(self._unpack(">H")).decode("latin-1") or str(number)
            if self._long:
                self._unpack(">Q")  # bytes of the tag
            if kind == GROUP:
                tags[name] = self._group(depth + 1)
            elif kind == VALUE:
                tags[name] = self._value(name)
            else:
                raise self._damaged(f"has a tag {name!r} of kind {kind}")
        return tags

    def _value(self, name: str) -> Tag:
        if self._take(4) != MARK:
            raise self._damaged(f"has no value where that of {name!r} must be")
        count = self._count()
        if not 0 < count < MOST_NAME:
            raise self._damaged(f"describes {name!r} by {count} numbers")
        kinds = [self._count() for _ in range(count)]
        kind = kinds[0]
        if kind in NUMBERS and count == 1:
            return self._numbers((NUMBERS[kind],))[0]
        if kind == STRUCTURE:
            return self._numbers(self._fields(kinds, name))
        if kind == TEXT and count == 2:
            return self._take(kinds[1]).decode("utf-16-le" if self.order == "<" else "utf-16-be", "replace")
        if kind == ARRAY and count >= 3:
            return self._array(kinds, name)
        raise self._damaged(f"has a value of type {kind} for {name!r}")

    def _fields(self, kinds: list[int], name: str) -> tuple[str, ...]:
        """Return the types of a structure's fields; two numbers stand before them, and one before each."""
        types = kinds[4::2]
        if len(kinds) < 3 or len(types) != kinds[2] or any(kind not in NUMBERS for kind in types):
            raise self._damaged(f"has a structure of unknown fields for {name!r}")
        return tuple(NUMBERS[kind] for kind in types)

    def _array(self, kinds: list[int], name: str) -> Tag:
        count, element = kinds[-1], kinds[1]
        if element == STRUCTURE:
            size = sum(np.dtype(kind).itemsize for kind in self._fields(kinds[1:-1], name))
            kind = None
        elif element in NUMBERS:
            kind = NUMBERS[element]
            size = np.dtype(kind).itemsize
        else:
            raise self._damaged(f"has an array of type {element} for {name!r}")
        offset = self.file.tell()
        if kind == "u2" and count <= SHORT:  # texts are arrays of their characters
            return self._take(2 * count).decode("utf-16-le" if self.order == "<" else "utf-16-be", "replace")
        self.file.seek(count * size, 1)
        return StoredArray(offset, count, kind)

    def _numbers(self, kinds: tuple[str, ...]) -> tuple[float, ...]:
        return tuple(float(np.frombuffer(self._take(np.dtype(kind).itemsize), self.order + kind)[0]) for kind in kinds)

    def _count(self) -> int:
        return self._unpack(">Q" if self._long else ">I")

    def _unpack(self, layout: str) -> int:
        return int(struct.unpack(layout, self._take(struct.calcsize(layout)))[0])

    def _take(self, count: int) -> bytes:
        if count > 1 << 20:
            raise self._damaged(f"has a name or a text of {count} bytes")
        content = self.file.read(count)
        if len(content) < count:
            raise BadInput(f"{self.path} ends within its tags; it is truncated: copy it again.")
        return content

    def _damaged(self, fault: str) -> BadInput:
        return BadInput(f"{self.path} {fault}, which cannot be; it is damaged: copy it again.")


@dataclass(frozen=True)
class Image:
    """An image of a file.

    Attributes:
        tags: all that stands about it.
        shape: of its values, slowest axis first.
        dtype: of its values, with their byte order.
        values: where they are.
        scales: (step, unit) of each axis, slowest first; (0, "") where it has none.
    """

    tags: dict[str, Tag]
    shape: tuple[int, ...]
    dtype: np.dtype
    values: StoredArray
    scales: list[tuple[float, str]]


def _images(tags: dict[str, Tag], order: str) -> Iterator[Image]:
    """Yield the images whose numbers can be patterns."""
    listed = tags.get(IMAGES)
    for one in listed.values() if isinstance(listed, dict) else ():
        stored = _tag(one, "ImageData", "Data")
        code = _number(one, "ImageData", "DataType")
        sides = _tag(one, "ImageData", "Dimensions")
        if not isinstance(one, dict) or not isinstance(stored, StoredArray) or not isinstance(sides, dict):
            continue
        pixel = PIXELS.get(int(code or 0))
        shape = [int(side) for side in sides.values() if isinstance(side, float) and side >= 1]
        if pixel is None or stored.kind is None or len(shape) != len(sides):
            continue
        if np.dtype(pixel).itemsize != np.dtype(stored.kind).itemsize:
            continue
        calibrated = _tag(one, "ImageData", "Calibrations", "Dimension")
        scales = [_scale(calibrated, str(k)) for k in range(len(shape))]
        yield Image(one, tuple(shape[::-1]), np.dtype(order + pixel), stored, scales[::-1])


def _tag(tags: Tag | None, *keys: str) -> Tag | None:
    for key in keys:
        tags = tags.get(key) if isinstance(tags, dict) else None
    return tags


def _number(tags: Tag | None, *keys: str) -> float | None:
    """Return a positive number, None where there is none."""
    value = _tag(tags, *keys)
    return value if isinstance(value, float) and math.isfinite(value) and value > 0 else None


def _scale(calibrated: Tag | None, axis: str) -> tuple[float, str]:
    unit = _tag(calibrated, axis, "Units")
    step = _tag(calibrated, axis, "Scale")
    return (abs(step) if isinstance(step, float) and math.isfinite(step) else 0.0), unit if isinstance(
        unit, str
    ) else ""


def _axes(image: Image, path: Path) -> str:
    """Return the letters of an image's axes, slowest first, as their units tell; BadInput where they do not."""
    of_pattern = [per_length(unit) is not None or angle_rad(unit) is not None for _, unit in image.scales]
    orders = {
        (False, False, True, True): "rcyx",
        (True, True, False, False): "yxrc",
        (False, True, True): "nyx",
        (True, True, False): "yxn",
    }
    if tuple(of_pattern) in orders:
        return orders[tuple(of_pattern)]
    if len(of_pattern) == 3 and not any(of_pattern):
        return "nyx"  # a series in time
    sides = " x ".join(map(str, image.shape))
    units = ", ".join(unit or "none" for _, unit in image.scales)
    raise BadInput(
        f"The axes of {path}, {sides} (slowest first), have the units {units}, which do not tell scan "
        "from pattern; set data.frames.axes to rcyx if the pattern's axes come last, to yxrc if first."
    )


def _declared(image: Image) -> Shape | None:
    """Return (rows, columns) of the scan that a stack is of, None where nothing says them."""
    rows, columns = (_number(image.tags, *SPATIAL, f"{side} (pixels)") for side in ("Height", "Width"))
    return None if rows is None or columns is None else (int(rows), int(columns))


def _step(image: Image, axes: str) -> Pair | None:
    """Return the metres from view to view (y, x), None where they are not calibrated."""
    if "r" not in axes:
        return None
    scales = [image.scales[axes.index(axis)] for axis in "rc"]
    steps = [step * (length_m(unit) or 0.0) for step, unit in scales]
    return (steps[0], steps[1]) if min(steps) > 0 else None
