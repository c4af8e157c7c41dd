"""EMPAD: raw frames of 130 x 128 numbers, of which the last two rows are metadata, and an XML file that describes them.

Frames follow each other without a header, little-endian float32, the fast axis of the scan (x) first. Software 0.51 to
1.2.2 and the second generation (G2), whose frames may come without the two rows, are read. Energies are in V, lengths
in metres, the scan's size is a share of the microscope's field of view.

Source: M. W. Tate et al., Microsc. Microanal. 22, 237 (2016), for the detector and its pixel of 150 um.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.geometry import Pair, electron_wavelength_m
from ptymesh.io.formats.contents import first_bytes
from ptymesh.io.options import DataOptions
from ptymesh.io.rasters import Shape, orientation_note, scan_shape
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.source import MappedSource
from ptymesh.io.units import ELECTRON_EV, check_energy

NAME = "EMPAD (its XML file, or the raw one beside it)"
SIDE, STORED_ROWS = 128, 130
DTYPE = np.dtype("<f4")
ROW_BYTES = SIDE * DTYPE.itemsize
FRAME_BYTES, BARE_BYTES = STORED_ROWS * ROW_BYTES, SIDE * ROW_BYTES
PIXEL_M = 150e-6
#: Bytes of the longest description that is read.
XML_BYTES = 4 << 20
#: XML files that are looked into for the one that describes a raw file.
NEIGHBOURS = 200
#: What software of several versions calls the same things.
VOLTAGE = ("high_voltage", "source.get_voltage", "ColumnSourceHighVoltage")
CAMERA_LENGTH = ("nominal_camera_length", "optics.get_cameralength", "ColumnOpticsGetCameraLengthNominalCameraLength")
ANGLE = "calibrated_diffraction_angle"
FIELD = "optics.get_full_scan_field_of_view"


def recognises(path: Path, data: DataOptions) -> bool:
    """Return True for an EMPAD description, and for whole frames of plausible numbers."""
    start = first_bytes(path, XML_BYTES)
    try:
        return b"<raw_file" in start if start.startswith(b"<") else path.is_file() and _is_raw(path)
    except OSError:
        return False


def _is_raw(path: Path) -> bool:
    size = path.stat().st_size
    if _described_by(path) is not None:
        return True
    if size % FRAME_BYTES:
        return False
    first = np.fromfile(path, DTYPE, SIDE * SIDE)
    with np.errstate(invalid="ignore"):
        plausible = (first == 0) | ((np.abs(first) > 1e-6) & (np.abs(first) < 1e9))
    return bool(plausible.mean() > 0.99 and first.any())


def read(path: Path, data: DataOptions) -> RawScan:
    """Return the scan of a description and its raw file, or of a raw file alone.

    Raises:
        BadInput: They contradict each other, or one is damaged or not there.
    """
    xml = path if _starts_as_xml(path) else _described_by(path)
    described = XmlDescription(path, {}, {}, {}, path.name) if xml is None else XmlDescription.of(xml)
    raw = described.raw_file() if xml == path else path
    declared, section = described.scan_shape()
    count, frame_bytes = _frames(raw, declared, data)
    shape = scan_shape(count, declared, data, str(described.path))
    optics, notes = described.optics(data)
    step, more = described.step(shape.shape, section)
    return RawScan(
        patterns=MappedSource(raw, (count, SIDE, SIDE), DTYPE, strides=(frame_bytes, ROW_BYTES, DTYPE.itemsize)),
        optics=optics,
        positions=shape.positions(step),
        raster=shape.shape,
        name=path.stem,
        notes=(*shape.notes, *notes, *more, orientation_note("EMPAD")),
    )


def _starts_as_xml(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(1) == b"<"


def _frames(raw: Path, declared: Shape | None, data: DataOptions) -> tuple[int, int]:
    """Return how many frames a raw file holds, and the bytes of each; BadInput where these are not whole ones."""
    size = raw.stat().st_size
    if declared is not None and size == math.prod(declared) * BARE_BYTES:
        return math.prod(declared), BARE_BYTES
    count, over = divmod(size, FRAME_BYTES)
    if over or not count:
        raise BadInput(
            f"{raw} has {size} bytes, which are {count} frames of {STORED_ROWS} x {SIDE} float32 and {over} bytes: "
            "it is truncated, or of another detector: copy it again."
        )
    return count, FRAME_BYTES


def _described_by(raw: Path) -> Path | None:
    """Return the XML file in the same folder that names this raw file."""
    for index, path in enumerate(sorted(raw.parent.glob("*.xml"))):
        if index >= NEIGHBOURS:
            break
        try:
            if path.stat().st_size <= XML_BYTES and f'"{raw.name}"'.encode() in path.read_bytes():
                return path
        except OSError:
            continue
    return None


@dataclass(frozen=True)
class XmlDescription:
    """The text of an EMPAD XML file.

    Attributes:
        path: of the file.
        sections: scan parameters by their mode, `acquire` and `search`; under "" those of files without modes.
        measured: the microscope's values, by their names.
        scale: of the field of view: `x`, `y`, `scale_factor`.
        raw_name: the file of the frames.
    """

    path: Path
    sections: dict[str, dict[str, str]]
    measured: dict[str, str]
    scale: dict[str, str]
    raw_name: str

    @classmethod
    def of(cls, path: Path) -> XmlDescription:
        """Parse a file; raise BadInput if it is no such description."""
        if path.stat().st_size > XML_BYTES:
            raise BadInput(f"{path} is larger than any description of an EMPAD scan; give that file.")
        content = path.read_bytes()
        if b"<!DOCTYPE" in content or b"<!ENTITY" in content:
            raise BadInput(f"{path} defines entities of its own, as no EMPAD file does; remove them.")
        try:
            root = ElementTree.fromstring(content)
        except (ElementTree.ParseError, ValueError, LookupError) as error:
            raise BadInput(
                f"{path} cannot be read as XML ({error}); it is truncated or damaged: copy it again."
            ) from error
        sections = {
            section.get("mode", ""): {child.tag: (child.text or "").strip() for child in section}
            for section in root.iter("scan_parameters")
        }
        for name in ("pix_x", "pix_y"):
            if (element := root.find(name)) is not None:
                sections.setdefault("pix", {})[name] = (element.text or "").strip()
        measured = {
            one.tag: (one.text or "").strip() for group in root.iter("iom_measurements") for one in group.iter()
        }
        scale = {one.tag: (one.text or "").strip() for group in root.iter("full_scan_field_of_view") for one in group}
        file = next(root.iter("raw_file"), None)
        return cls(
            path, sections, measured, scale, "" if file is None else str(file.get("filename") or file.text or "")
        )

    def raw_file(self) -> Path:
        """Return the file of the frames, which lies beside this one; BadInput where it is not there."""
        name = re.split(r"[/\\]", self.raw_name.strip())[-1]
        file = self.path.parent / name
        if not name or not file.is_file():
            raise BadInput(
                f"{self.path} describes {name!r}, which is not there: copy it to {self.path.absolute().parent}."
            )
        return file

    def scan_shape(self) -> tuple[Shape | None, str]:
        """Return (rows, columns) of the scan, and the mode that it was taken in.

        The raw file's name (`scan_x32_y64.raw`) says it for whichever mode; the parameters of two modes may differ.
        """
        shapes = {mode: self._shape(mode) for mode in ("acquire", "search", "", "pix")}
        named = re.search(r"x(\d+)_y(\d+)", self.raw_name)
        if named is not None:
            shape = int(named[2]), int(named[1])
            if 0 in shape:
                raise BadInput(f"{self.raw_name} says a scan of {shape[0]} x {shape[1]} views; rename it.")
            return shape, next((mode for mode, other in shapes.items() if other == shape), "")
        return next(((shape, mode) for mode, shape in shapes.items() if shape is not None), (None, ""))

    def _shape(self, mode: str) -> Shape | None:
        names = ("pix_y", "pix_x") if mode == "pix" else ("scan_resolution_y", "scan_resolution_x")
        values = [self.sections.get(mode, {}).get(name) for name in names]
        if None in values:
            return None
        if not all(value is not None and re.fullmatch(r"0*[1-9]\d{0,8}", value) for value in values):
            raise BadInput(f"{self.path} says {names[0]} {values[0]!r} and {names[1]} {values[1]!r}; mend it.")
        rows, columns = (int(value) for value in values if value is not None)
        return rows, columns

    def _number(self, *names: str) -> float | None:
        """Return the first value there is, positive; None where there is none, or it is zero or no number."""
        for name in names:
            try:
                value = float(self.measured[name])
            except (KeyError, ValueError):
                continue
            if math.isfinite(value) and value > 0:
                return value
        return None

    def optics(self, data: DataOptions) -> tuple[Optics, tuple[str, ...]]:
        """Return energy, camera length and detector pixel, or the object pixel where the detector is calibrated."""
        energy = self._number(*VOLTAGE)
        if energy is not None and data.energy_eV is None and data.wavelength_m is None:
            check_energy(energy, ELECTRON_EV, f"The high voltage in {self.path}", f"{energy:g} V")
        angle, distance, pixel = self._number(ANGLE), self._number(*CAMERA_LENGTH), (PIXEL_M, PIXEL_M)
        if angle is not None and energy is not None and 1e-7 < angle < 1e-1:
            size = electron_wavelength_m(energy) / (SIDE * angle)
            return Optics(radiation="electron", energy_eV=energy, object_pixel_m=(size, size)), (
                f"The file says {angle * 1e3:.4g} mrad for a detector pixel.",
            )
        optics = Optics(radiation="electron", energy_eV=energy, distance_m=distance, detector_pixel_m=pixel)
        if distance is None:
            return optics, ()
        return optics, (
            f"The camera length, {distance:g} m, is the microscope's nominal one: a calibration of the diffraction "
            "pattern is better (data.distance_m, or data.object_pixel_m).",
        )

    def step(self, shape: Shape | None, mode: str) -> tuple[Pair | None, tuple[str, ...]]:
        """Return the metres from view to view (y, x), None where the file does not say it; and notes."""
        if shape is None:
            return None, ()
        try:
            share = float(self.sections.get(mode, {}).get("scan_size", "1"))
            if self.scale:
                width, factor = float(self.scale["x"]), float(self.scale["scale_factor"])
                # the field of view is that of the longer side, and is written after it was multiplied by the factor
                step = width / factor * share / max(shape)
                return ((step, step), self._other_mode(mode)) if math.isfinite(step) and step > 0 else (None, ())
            x, y = (float(value) for value in json.loads(self.measured[FIELD].replace("(", "[").replace(")", "]")))
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            return None, ()
        if not (math.isfinite(x * y) and x > 0 and y > 0):
            return None, ()
        if share != 1:  # programs differ in whether the field of view is the scan's already
            return None, (f"The file says a field of view of {x:g} x {y:g} m (x, y) and a scan of {share:g} of it.",)
        return (y / shape[0], x / shape[1]), ()

    def _other_mode(self, mode: str) -> tuple[str, ...]:
        sizes = {name: self.sections[name].get("scan_size") for name in ("acquire", "search") if name in self.sections}
        if len(set(sizes.values())) < 2 or self._shape("acquire") != self._shape("search"):
            return ()
        sizes_of_modes = " and ".join(f"{size} in mode {name}" for name, size in sizes.items())
        return (f"The scan's size is {sizes_of_modes}; that of {mode} is taken.",)
