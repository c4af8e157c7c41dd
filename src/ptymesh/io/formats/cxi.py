"""Reader of CXI 1.4-1.6 and NXcxi_ptycho.

N       views
H, W    detector pixels

The file holds the sample's translation t (x, y, z); the probe moves by its negative. Detector rows and columns run
along the basis vectors b, so that the window's place is row = -t.b_slow/|b_slow|, column = -t.b_fast/|b_fast|. With
the default basis vectors (0, -p_y, 0) and (-p_x, 0, 0) the two signs cancel: row = t_y, column = t_x.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args

import numpy as np

from ptymesh import constants
from ptymesh.errors import BadInput
from ptymesh.geometry import LENGTHS_M, Pair, Propagation, Radiation
from ptymesh.io.formats.cxi_writer import DETECTOR, OWN, SOURCE, write_cxi, write_measurement
from ptymesh.io.hdf5.reading import (
    Hdf5File,
    attribute,
    dataset_of,
    has,
    is_hdf5,
    item_of,
    open_hdf5,
    read_dataset,
    text_of,
)
from ptymesh.io.options import DataOptions
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.source import Hdf5Source, SlabSource, slabs
from ptymesh.io.staging import sliceable
from ptymesh.io.units import ENERGY_J, LENGTH_M

__all__ = ["NAME", "read", "recognises", "write_cxi", "write_measurement"]

NAME = "CXI (entry_1/data_1/data)"
PATTERNS = ("/entry_1/data_1/data", f"{DETECTOR}/data")
TRANSLATIONS = tuple(
    f"/entry_1/{group}/translation" for group in ("sample_1/geometry_1", "data_1", "instrument_1/detector_1")
)
BEAMS = ("/entry_1/instrument_1/beam_1", "/entry_1/beam_1")
#: Mask bit that marks a pixel with signal; such a pixel is good.
HAS_SIGNAL = 0x00001000
#: Photons used for imaging lie well inside these bounds (eV, m); anything else is a mistake of units.
PLAUSIBLE_EV = (1.0, 1e7)
PLAUSIBLE_M = (1e-14, 1e-2)
#: Probe modes, and dark frames of a scan of few views, that a file can reasonably hold.
MODES, DARKS = 4096, 10_000
#: Entries that are looked for in a file, at most.
ENTRIES = 10
#: What ptymesh's own group may say, in words.
POSITIVE = {1: "it must be one positive number", 2: "it must be two positive numbers, y and x"}


def recognises(path: Path, options: DataOptions) -> bool:
    """Return True for HDF5 with patterns where CXI keeps them."""
    if not is_hdf5(path):
        return False
    with open_hdf5(path, follow=options.follow) as file:
        return any(has(file, name) for name in PATTERNS)


def read(path: Path, options: DataOptions) -> RawScan:
    """Return the scan of a CXI file; raise BadInput if something that it needs is missing or has another shape."""
    with open_hdf5(path, follow=options.follow) as file:
        name = next(name for name in PATTERNS if has(file, name))
        source = Hdf5Source(path, name, follow=options.follow)
        shape = source.shape
        slow, fast = _basis(file)
        ptymesh_group = item_of(file, OWN)
        optics = (
            _optics(file, slow, fast, options, shape[0])
            if ptymesh_group is None
            else _own_optics(path, ptymesh_group, options)
        )
        positions, unit = _translation(file, shape[0], slow, fast), "m"
        if positions is None and has(file, f"{OWN}/positions_px"):
            positions, unit = _own_positions(file, shape[0]), "px"
        mask, view_mask = _mask(file, path, shape, options)
        dark = _dark(file, path, shape, options)
        probe, notes = _probe(file, shape)
        notes = _own_notes(ptymesh_group) + notes + _corner_note(file, slow, fast, shape[1:])
        notes += _further_entries(file)
        if dark is not None:
            notes += ("The file's own dark pattern is subtracted.",)
        return RawScan(
            patterns=sliceable(source),
            optics=optics,
            positions=positions,
            unit="px" if unit == "px" else "m",
            raster=source.raster,
            mask=mask,
            view_mask=view_mask,
            dark=dark,
            background=_own_array(file, "background", 2 * shape[1] * shape[2]),
            efficiency=_own_array(file, "efficiency", 2 * shape[1] * shape[2]),
            intensity=_own_array(file, "intensity", 2 * shape[0]),
            probe=probe,
            negative_is_missing=ptymesh_group is not None and _flag(path, ptymesh_group, "negative_is_missing"),
            name=(ptymesh_group is not None and text_of(attribute(ptymesh_group, "name"), 100))
            or options.path.name.split(".")[0],
            notes=notes,
        )


def _further_entries(file: Hdf5File) -> tuple[str, ...]:
    """Return a note about other scans in the file, which are not read."""
    names = [f"/entry_{index}/data_1/data" for index in range(2, ENTRIES)]
    names += [f"/entry_1/data_{index}/data" for index in range(2, ENTRIES)]
    other_patterns = [name for name in names if has(file, name)]
    if not other_patterns:
        return ()
    return (
        f"The file holds further patterns ({', '.join(other_patterns)}), which are not read; to read them, name them "
        "in data.keys.patterns, with their positions.",
    )


class MaskBits:
    """A per-view CXI mask, as booleans (True where good)."""

    def __init__(self, bits: Hdf5Source) -> None:
        self._bits = bits
        self.shape, self.dtype = bits.shape, np.dtype(bool)

    def read(self, views: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
        """Return (len(views), rows, columns) bool.

        Args:
            views: (n,) int64, in any order.
            rows: of the detector, with step 1.
            columns: of the detector, with step 1.
        """
        return _good_pixels(self._bits.read(views, rows, columns), self._bits.name)


def _good_pixels(bits: np.ndarray, name: str) -> np.ndarray:
    if bits.dtype.kind == "f" and not (np.abs(bits) < 2.0**62).all():  # False on NaN too
        raise BadInput(f"The mask {name} holds NaN or numbers that are no bits; write whole numbers, 0 where good.")
    return (bits.astype(np.int64) & ~HAS_SIGNAL) == 0


def _mask(
    file: Hdf5File, path: Path, shape: tuple[int, int, int], options: DataOptions
) -> tuple[np.ndarray | None, SlabSource | None]:
    name = f"{DETECTOR}/mask"
    if not has(file, name):
        return None, None
    stored = dataset_of(file, name).shape
    if stored == shape[1:]:
        return _good_pixels(read_dataset(file, name, kinds="buif"), name), None
    if len(stored) in (3, 4) and math.prod(stored[:-2]) == shape[0] and stored[-2:] == shape[1:]:
        return None, MaskBits(Hdf5Source(path, name, follow=options.follow))
    raise BadInput(f"{name} in {path} has shape {stored}; the patterns are {shape}: use a mask (H, W) or (N, H, W).")


def _basis(file: Hdf5File) -> tuple[np.ndarray, np.ndarray]:
    """Return the slow and fast pixel vectors (x, y, z) in metres; unit vectors if only the pixel sizes are known."""
    name = f"{DETECTOR}/basis_vectors"
    if not has(file, name):
        return np.array([0.0, -1.0, 0.0]), np.array([-1.0, 0.0, 0.0])
    basis = read_dataset(file, name, most=100, kinds="iuf").astype(np.float64)
    if basis.shape == (2, 3):
        basis = basis.T
    lengths = np.hypot.reduce(basis, axis=0) if basis.shape == (3, 2) else np.zeros(2)
    if not ((lengths > LENGTHS_M[0]) & (lengths < LENGTHS_M[1])).all():  # False on NaN too
        raise BadInput(
            f"{name} in {file.filename} is {basis.tolist()}; it must hold two pixel vectors, (3, 2) or (2, 3)."
        )
    cosine = (basis[:, 0] / lengths[0]) @ (basis[:, 1] / lengths[1])
    if abs(cosine) > 1e-3:
        raise BadInput(
            f"{name} in {file.filename} are not perpendicular (cosine {cosine:.3g}); skewed detector axes cannot be "
            f"used: set detector and positions through data.keys."
        )
    return basis[:, 0], basis[:, 1]


def _translation(file: Hdf5File, count: int, slow: np.ndarray, fast: np.ndarray) -> np.ndarray | None:
    """Return the positions (N, 2) in metres, y x; None if there are none."""
    name = next((name for name in TRANSLATIONS if has(file, name)), None)
    if name is None:
        return None
    stored = read_dataset(file, name, most=12 * count + 1000, kinds="iuf")
    if stored.shape == (3, count) and count != 3:
        stored = stored.T
    if stored.ndim < 2 or stored.shape[-1] != 3:
        raise BadInput(f"{name} in {file.filename} has shape {stored.shape}; translations are (N, 3) or (3, N).")
    metres = stored.reshape(-1, 3).astype(np.float64) * _unit(file, name, LENGTH_M, 1.0)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused, by its number
        return -metres @ np.stack([slow / np.linalg.norm(slow), fast / np.linalg.norm(fast)], axis=1)


def _own_positions(file: Hdf5File, count: int) -> np.ndarray:
    """Return the positions (N, 2) in object pixels, y x, that ptymesh wrote."""
    name = f"{OWN}/positions_px"
    stored = read_dataset(file, name, most=8 * count + 1000, kinds="iuf").astype(np.float64)
    if stored.ndim != 2 or stored.shape[1] != 2:
        raise BadInput(f"{name} in {file.filename} has shape {stored.shape}; positions in pixels are (N, 2), y x.")
    return stored


def _optics(file: Hdf5File, slow: np.ndarray, fast: np.ndarray, options: DataOptions, count: int) -> Optics:
    """Return the optics in CXI's fields; what the recipe replaces is not read."""
    wavelength = None
    if options.energy_eV is None and options.wavelength_m is None:
        wavelength = _wavelength_m(file, count)
    pixel = None
    y_name, x_name = f"{DETECTOR}/y_pixel_size", f"{DETECTOR}/x_pixel_size"
    if options.detector_pixel_m is None and has(file, y_name) and has(file, x_name):
        y, x = _number(file, y_name, LENGTH_M, count), _number(file, x_name, LENGTH_M, count)
        # y and x are the laboratory's: a detector whose slow axis lies along x has its rows spaced by x_pixel_size.
        pixel = (y, x) if abs(slow[1]) >= abs(slow[0]) else (x, y)
    elif has(file, f"{DETECTOR}/basis_vectors"):
        pixel = (float(np.linalg.norm(slow)), float(np.linalg.norm(fast)))
    distance = None
    if options.distance_m is None and has(file, f"{DETECTOR}/distance"):
        distance = _number(file, f"{DETECTOR}/distance", LENGTH_M, count)
    elif options.distance_m is None and has(file, f"{DETECTOR}/corner_position"):
        distance = abs(float(_corner(file)[2]))
    return Optics(radiation="photon", wavelength_m=wavelength, distance_m=distance, detector_pixel_m=pixel)


def _own_optics(path: Path, group: Any, options: DataOptions) -> Optics:
    """Return the optics exactly as ptymesh wrote them; what the recipe replaces is not read."""

    def word(name: str, choices: tuple[str, ...]) -> Any:
        value = attribute(group, name)
        if getattr(options, name) is not None or (value is None and name != "propagation"):
            return getattr(options, name)
        text = text_of(value)
        if text not in choices:
            stated = "nothing" if value is None else repr(value if text is None else text)[:60]
            raise BadInput(
                f"{OWN} in {path} says {stated} as {name}; it must be {' or '.join(choices)}: set data.{name}."
            )
        return text

    def numbers(name: str, count: int) -> list[float] | None:
        replaced = ("energy_eV", "wavelength_m") if name == "wavelength_m" else (name,)
        if any(getattr(options, one) is not None for one in replaced):
            return None
        value = attribute(group, name)
        if value is None:
            return None
        array = np.asarray(value)
        if array.dtype.kind not in "iuf" or array.size != count or not _positive(array):
            stated = " ".join(str(value).split())[:60]
            raise BadInput(f"{OWN} in {path} says {stated!r} as {name}; {POSITIVE[count]}: set data.{name}.")
        return [float(one) for one in array.reshape(-1)]

    def number(name: str) -> float | None:
        values = numbers(name, 1)
        return None if values is None else values[0]

    def pair(name: str) -> Pair | None:
        values = numbers(name, 2)
        return None if values is None else (values[0], values[1])

    return Optics(
        propagation=word("propagation", get_args(Propagation)) or "far_field",
        radiation=word("radiation", get_args(Radiation)),
        wavelength_m=number("wavelength_m"),
        distance_m=number("distance_m"),
        focus_distance_m=number("focus_distance_m"),
        detector_pixel_m=pair("detector_pixel_m"),
        object_pixel_m=pair("object_pixel_m"),
    )


def _positive(values: np.ndarray) -> bool:
    with np.errstate(over="ignore"):
        single = values.astype(np.float64)
    return bool((np.isfinite(single) & (single > 0)).all())


def _own_notes(group: Any) -> tuple[str, ...]:
    """Return the notes that were written into the file."""
    notes = None if group is None else attribute(group, "notes")
    items: Any = () if notes is None else np.atleast_1d(np.asarray(notes, dtype=object)).reshape(-1)[:100]
    return tuple(text for text in (text_of(note) for note in items) if text)


def _flag(path: Path, group: Any, name: str) -> bool:
    value = attribute(group, name)
    array = np.asarray(False if value is None else value)
    if array.size != 1 or array.dtype.kind not in "bui":
        raise BadInput(f"{OWN} in {path} says {str(value)[:60]!r} as {name}; it must be true or false: correct it.")
    return bool(array.reshape(-1)[0])


def _energy_J(file: Hdf5File, count: int) -> float | None:
    """Return the photon energy in joules: the beam's in NXcxi_ptycho, else the source's, as in CXI.

    The source's energy in NXcxi_ptycho is that of the accelerator.
    """
    beam = next((group for group in BEAMS if has(file, group)), None)
    if beam is not None:
        for name in ("incident_beam_energy", "incident_energy", "energy"):
            if has(file, f"{beam}/{name}"):
                return _number(file, f"{beam}/{name}", ENERGY_J, count)
        return None
    name = f"{SOURCE}/energy"
    return _number(file, name, ENERGY_J, count) if has(file, name) else None


def _wavelength_m(file: Hdf5File, count: int) -> float | None:
    """Return the wavelength in the file, or the one of its energy, in metres; raise BadInput if it cannot be."""
    names = [f"{SOURCE}/wavelength", *(f"{beam}/incident_wavelength" for beam in BEAMS)]
    name = next((name for name in names if has(file, name)), None)
    if name is not None:
        wavelength = _number(file, name, LENGTH_M, count)
        if not PLAUSIBLE_M[0] < wavelength < PLAUSIBLE_M[1]:
            raise BadInput(
                f"{name} in {file.filename} is {wavelength:g} m, which cannot be; CXI wants metres: set "
                f"data.wavelength_m."
            )
        return wavelength
    energy_J = _energy_J(file, count)
    if energy_J is None:
        return None
    energy_eV = energy_J / constants.e
    if not PLAUSIBLE_EV[0] < energy_eV < PLAUSIBLE_EV[1]:
        raise BadInput(
            f"The photon energy in {file.filename} is {energy_J:g} J ({energy_eV:g} eV), which cannot be; CXI "
            f"wants joules: set data.energy_eV."
        )
    return constants.h * constants.c / energy_J


def _number(file: Hdf5File, name: str, units: dict[str, float], count: int) -> float:
    """Return a number in SI units, the first if there is one for each view."""
    value = read_dataset(file, name, most=12 * count + 1000, kinds="iuf")
    if value.size < 1:
        raise BadInput(f"{name} in {file.filename} has shape {value.shape}; it must be a number.")
    number = float(value.reshape(-1)[0]) * _unit(file, name, units, 1.0)
    if units is LENGTH_M and not LENGTHS_M[0] < number < LENGTHS_M[1]:  # True on NaN too
        raise BadInput(
            f"{name} in {file.filename} is {number:g} m, which cannot be; correct it, or set it in the recipe."
        )
    return number


def _unit(file: Hdf5File, name: str, table: dict[str, float], default: float) -> float:
    value = attribute(dataset_of(file, name), "units")
    unit = text_of(value)
    if value is None or unit == "" or (isinstance(value, np.ndarray) and not value.size):
        return default
    size = None if unit is None else table.get(unit.lower().replace("μ", "µ"))
    if size is None:
        stated = str(value)[:60] if unit is None else unit[:60]
        raise BadInput(f"{name} in {file.filename} is in {stated!r}; known units are {', '.join(table)}.")
    return size


def _dark(file: Hdf5File, path: Path, shape: tuple[int, int, int], options: DataOptions) -> np.ndarray | None:
    """Return the dark pattern (H, W) in detector units, the mean of several frames; None if there is none."""
    name = next((f"{DETECTOR}/{key}" for key in ("data_dark", "dark") if has(file, f"{DETECTOR}/{key}")), None)
    if name is None:
        return None
    stored = dataset_of(file, name).shape
    if len(stored) not in (2, 3, 4) or stored[-2:] != shape[1:] or 0 in stored:
        raise BadInput(f"The dark pattern {name} in {path} has shape {stored}; the patterns are {shape}.")
    if len(stored) == 2:
        return read_dataset(file, name, kinds="buif").astype(np.float64)
    frames = Hdf5Source(path, name, follow=options.follow)
    if frames.shape[0] > max(DARKS, shape[0]):
        raise BadInput(f"{name} in {path} holds {frames.shape[0]} dark frames; leave out all but {DARKS}.")
    everywhere = slice(0, shape[1]), slice(0, shape[2])
    total = np.zeros(shape[1:])
    for slab in slabs(frames.shape[0], shape[1] * shape[2] * 8):
        total += frames.read(slab, *everywhere).astype(np.float64).sum(axis=0)
    return total / frames.shape[0]


def _probe(file: Hdf5File, shape: tuple[int, int, int]) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Return the probe (M, H, W) complex, and notes; None if there is none (NeXus keeps a word under these names)."""
    for name in (f"{SOURCE}/illumination", f"{SOURCE}/probe"):
        if not hasattr(item_of(file, name), "shape"):
            continue
        data = dataset_of(file, name)
        if data.ndim < 2 or data.dtype.kind != "c":
            continue
        if data.shape[-2:] != shape[1:]:
            return None, (f"The file's probe is {data.shape[-2:]} pixels, its patterns {shape[1:]}: it is left out.",)
        probe = read_dataset(file, name, most=MODES * shape[1] * shape[2])
        return probe.reshape(-1, *shape[1:]), ()
    return None, ()


def _own_array(file: Hdf5File, name: str, most: int) -> np.ndarray | None:
    return read_dataset(file, f"{OWN}/{name}", most, "buif") if has(file, f"{OWN}/{name}") else None


def _corner(file: Hdf5File) -> np.ndarray:
    """Return the first pixel's corner (3,) in metres."""
    name = f"{DETECTOR}/corner_position"
    corner = read_dataset(file, name, most=1000, kinds="iuf").reshape(-1)[:3].astype(np.float64)
    if len(corner) != 3 or not np.isfinite(corner).all():
        raise BadInput(f"{name} in {file.filename} is {corner.tolist()}; it must be three numbers, x y z in metres.")
    return corner


def _corner_note(file: Hdf5File, slow: np.ndarray, fast: np.ndarray, shape: tuple[int, int]) -> tuple[str, ...]:
    """Return a note if corner_position puts the direct beam off the middle of the patterns."""
    if not (has(file, f"{DETECTOR}/corner_position") and has(file, f"{DETECTOR}/basis_vectors")):
        return ()
    corner = _corner(file)
    with np.errstate(all="ignore"):
        y, x = (float(-(corner @ b) / (b @ b)) - 0.5 for b in (slow, fast))
    if not math.isfinite(y + x) or (abs(y - shape[0] // 2) <= 1 and abs(x - shape[1] // 2) <= 1):
        return ()
    return (
        f"The file's corner_position puts the direct beam at pixel ({y:.1f}, {x:.1f}); the patterns are taken as "
        f"centred: set data.centre to [{y:.0f}, {x:.0f}] if they are not.",
    )
