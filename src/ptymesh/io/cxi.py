"""CXI 1.4-1.6 and NXcxi_ptycho.

N       views
H, W    detector pixels

The file holds the sample's translation t (x, y, z); the probe moves by its negative. Detector rows and columns run
along the basis vectors b, so that the window's place is row = -t.b_slow/|b_slow|, column = -t.b_fast/|b_fast|. With
the default basis vectors (0, -p_y, 0) and (-p_x, 0, 0) the two signs cancel: row = t_y, column = t_x.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
from scipy import constants

from ptymesh.errors import BadInput
from ptymesh.io.cxi_writer import DETECTOR, OWN, SOURCE, write_cxi, write_measurement
from ptymesh.io.hdf5 import open_hdf5, read_dataset
from ptymesh.io.options import DataOptions
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.source import Hdf5Source, SlabSource
from ptymesh.io.staging import sliceable

__all__ = ["NAME", "read", "recognises", "write_cxi", "write_measurement"]

NAME = "CXI (entry_1/data_1/data)"
PATTERNS = ("/entry_1/data_1/data", f"{DETECTOR}/data")
TRANSLATIONS = tuple(
    f"/entry_1/{group}/translation" for group in ("sample_1/geometry_1", "data_1", "instrument_1/detector_1")
)
BEAMS = ("/entry_1/instrument_1/beam_1", "/entry_1/beam_1")
#: Mask bit that marks a pixel with signal; such a pixel is good.
HAS_SIGNAL = 0x00001000
ENERGY_J = {"j": 1.0, "ev": constants.e, "kev": 1e3 * constants.e, "mev": 1e6 * constants.e}
LENGTH_M = {"m": 1.0, "mm": 1e-3, "um": 1e-6, "µm": 1e-6, "micron": 1e-6, "nm": 1e-9, "pm": 1e-12}
LENGTH_M |= {"meter": 1.0, "metre": 1.0, "meters": 1.0, "metres": 1.0, "angstrom": 1e-10, "a": 1e-10, "cm": 1e-2}
#: Photons used for imaging lie well inside these bounds (eV); anything else is a mistake of units.
PLAUSIBLE_EV = (1.0, 1e7)


def recognises(path: Path) -> bool:
    """HDF5 with the patterns where CXI keeps them."""
    if not h5py.is_hdf5(path):
        return False
    with open_hdf5(path) as file:
        return any(name in file for name in PATTERNS)


def read(path: Path, options: DataOptions) -> RawScan:
    """The scan of a CXI file; BadInput where something that it needs is missing or has another shape."""
    with open_hdf5(path) as file:
        source = Hdf5Source(path, next(name for name in PATTERNS if name in file))
        count, height, width = source.shape
        slow, fast = _basis(file)
        optics, notes = _optics(file, slow, fast, options)
        own = file.get(OWN)
        positions, unit = _translation(file, count, slow, fast), "m"
        if positions is None and own is not None and "positions_px" in own:
            positions, unit = read_dataset(file, f"{OWN}/positions_px"), "px"
        mask, view_mask = _mask(file, path, source.shape)
        dark = _dark(file)
        notes += _corner_note(file, slow, fast, (height, width))
        if dark is not None:
            notes += ("The file's own dark pattern is subtracted.",)
        return RawScan(
            patterns=sliceable(source, path),
            optics=optics,
            positions=positions,
            unit="px" if unit == "px" else "m",
            raster=source.raster,
            mask=mask,
            view_mask=view_mask,
            dark=dark,
            background=_own_array(file, "background"),
            intensity=_own_array(file, "intensity"),
            probe=_probe(file),
            negative_is_missing=own is not None and bool(own.attrs.get("negative_is_missing", False)),
            name=str(own.attrs["name"]) if own is not None and "name" in own.attrs else options.path.name.split(".")[0],
            notes=notes,
        )


class MaskBits:
    """A per-view CXI mask, as booleans (True where good)."""

    def __init__(self, bits: Hdf5Source) -> None:
        self._bits = bits
        self.shape, self.dtype = bits.shape, np.dtype(bool)

    def read(self, views: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
        """(len(views), rows, columns) bool."""
        return _good(self._bits.read(views, rows, columns))


def _good(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.int64) & ~HAS_SIGNAL) == 0


def _mask(file: h5py.File, path: Path, shape: tuple[int, int, int]) -> tuple[np.ndarray | None, SlabSource | None]:
    name = f"{DETECTOR}/mask"
    if name not in file:
        return None, None
    stored = file[name].shape
    if stored == shape[1:]:
        return _good(read_dataset(file, name)), None
    if len(stored) in (3, 4) and int(np.prod(stored[:-2])) == shape[0] and stored[-2:] == shape[1:]:
        return None, MaskBits(Hdf5Source(path, name))
    raise BadInput(f"{name} in {path} has shape {stored}; the patterns are {shape}: use a mask (H, W) or (N, H, W).")


def _basis(file: h5py.File) -> tuple[np.ndarray, np.ndarray]:
    """Slow and fast pixel vectors (x, y, z) in metres; unit vectors where only the pixel sizes are known."""
    name = f"{DETECTOR}/basis_vectors"
    if name not in file:
        return np.array([0.0, -1.0, 0.0]), np.array([-1.0, 0.0, 0.0])
    basis = read_dataset(file, name).astype(np.float64)
    if basis.shape == (2, 3):
        basis = basis.T
    if basis.shape != (3, 2) or not np.isfinite(basis).all() or (np.linalg.norm(basis, axis=0) == 0).any():
        raise BadInput(
            f"{name} in {file.filename} is {basis.tolist()}; it must hold two pixel vectors, (3, 2) or (2, 3)."
        )
    slow, fast = basis[:, 0], basis[:, 1]
    cosine = slow @ fast / np.linalg.norm(slow) / np.linalg.norm(fast)
    if abs(cosine) > 1e-3:
        raise BadInput(
            f"{name} in {file.filename} are not perpendicular (cosine {cosine:.3g}); skewed detector axes cannot be "
            f"used: set detector and positions through data.keys."
        )
    return slow, fast


def _translation(file: h5py.File, count: int, slow: np.ndarray, fast: np.ndarray) -> np.ndarray | None:
    """(N, 2) metres, y x."""
    name = next((name for name in TRANSLATIONS if name in file), None)
    if name is None:
        return None
    stored = read_dataset(file, name)
    if stored.shape == (3, count) and count != 3:
        stored = stored.T
    if stored.ndim < 2 or stored.shape[-1] != 3 or stored.dtype.kind not in "iuf":
        raise BadInput(f"{name} in {file.filename} has shape {stored.shape}; translations are (N, 3) or (3, N).")
    metres = stored.reshape(-1, 3).astype(np.float64) * _unit(file, name, LENGTH_M, 1.0)
    return -metres @ np.stack([slow / np.linalg.norm(slow), fast / np.linalg.norm(fast)], axis=1)


def _optics(
    file: h5py.File, slow: np.ndarray, fast: np.ndarray, options: DataOptions
) -> tuple[Optics, tuple[str, ...]]:
    own = file.get(OWN)
    if own is not None:
        return _own_optics(own.attrs), tuple(str(note) for note in own.attrs.get("notes", ()))
    wavelength, energy_J = _wavelength_m(file), _energy_J(file)
    if energy_J is not None and wavelength is None:
        energy_eV = energy_J / constants.e
        overridden = options.energy_eV is not None or options.wavelength_m is not None
        if not PLAUSIBLE_EV[0] < energy_eV < PLAUSIBLE_EV[1] and not overridden:
            raise BadInput(
                f"The photon energy in {file.filename} is {energy_J:g} J ({energy_eV:g} eV), which cannot be; CXI "
                f"wants joules: set data.energy_eV."
            )
        wavelength = constants.h * constants.c / energy_J
    pixel = None
    y, x = _length(file, f"{DETECTOR}/y_pixel_size"), _length(file, f"{DETECTOR}/x_pixel_size")
    if y is not None and x is not None:
        # y and x are the laboratory's: a detector whose slow axis lies along x has its rows spaced by x_pixel_size.
        pixel = (y, x) if abs(slow[1]) >= abs(slow[0]) else (x, y)
    elif f"{DETECTOR}/basis_vectors" in file:
        pixel = (float(np.linalg.norm(slow)), float(np.linalg.norm(fast)))
    distance = _length(file, f"{DETECTOR}/distance")
    if distance is None and f"{DETECTOR}/corner_position" in file:
        distance = abs(float(read_dataset(file, f"{DETECTOR}/corner_position").reshape(-1)[2]))
    return Optics(radiation="photon", wavelength_m=wavelength, distance_m=distance, detector_pixel_m=pixel), ()


def _own_optics(attrs: Any) -> Optics:
    """What ptymesh wrote, exactly."""

    def number(name: str) -> float | None:
        return float(attrs[name]) if name in attrs else None

    def pair(name: str) -> tuple[float, float] | None:
        return (float(attrs[name][0]), float(attrs[name][1])) if name in attrs else None

    return Optics(
        propagation=attrs["propagation"],
        radiation=attrs.get("radiation"),
        wavelength_m=number("wavelength_m"),
        distance_m=number("distance_m"),
        focus_distance_m=number("focus_distance_m"),
        detector_pixel_m=pair("detector_pixel_m"),
        object_pixel_m=pair("object_pixel_m"),
    )


def _energy_J(file: h5py.File) -> float | None:
    """Photon energy: the beam's in NXcxi_ptycho, whose source energy is the machine's; the source's in CXI."""
    beam = next((group for group in BEAMS if group in file), None)
    if beam is not None:
        for name in ("incident_beam_energy", "incident_energy", "energy"):
            if f"{beam}/{name}" in file:
                return _number(file, f"{beam}/{name}") * _unit(file, f"{beam}/{name}", ENERGY_J, 1.0)
        return None
    name = f"{SOURCE}/energy"
    return _number(file, name) * _unit(file, name, ENERGY_J, 1.0) if name in file else None


def _wavelength_m(file: h5py.File) -> float | None:
    names = [f"{SOURCE}/wavelength", *(f"{beam}/incident_wavelength" for beam in BEAMS)]
    return next((_length(file, name) for name in names if name in file), None)


def _length(file: h5py.File, name: str) -> float | None:
    return _number(file, name) * _unit(file, name, LENGTH_M, 1.0) if name in file else None


def _number(file: h5py.File, name: str) -> float:
    value = read_dataset(file, name)
    if value.size < 1 or value.dtype.kind not in "iuf":
        raise BadInput(f"{name} in {file.filename} is {value!r}; it must be a number.")
    return float(value.reshape(-1)[0])


def _unit(file: h5py.File, name: str, table: dict[str, float], default: float) -> float:
    unit = file[name].attrs.get("units")
    if isinstance(unit, np.ndarray):
        unit = unit.reshape(-1)[0] if unit.size else None
    if isinstance(unit, bytes):
        unit = unit.decode("utf-8", "replace")
    if unit is None or not str(unit).strip():
        return default
    known = table.get(str(unit).strip().lower().replace("μ", "µ"))
    if known is None:
        raise BadInput(f"{name} in {file.filename} is in {unit!r}; known units are {', '.join(table)}.")
    return known


def _dark(file: h5py.File) -> np.ndarray | None:
    """(H, W) detector units; the mean where several frames were taken."""
    name = next((f"{DETECTOR}/{key}" for key in ("data_dark", "dark") if f"{DETECTOR}/{key}" in file), None)
    if name is None:
        return None
    dark = read_dataset(file, name).astype(np.float64)
    return dark.reshape(-1, *dark.shape[-2:]).mean(axis=0) if dark.ndim > 2 else dark


def _probe(file: h5py.File) -> np.ndarray | None:
    """(M, H, W) complex; anything else under these names (NeXus: a word) is no probe."""
    for name in (f"{SOURCE}/illumination", f"{SOURCE}/probe"):
        item = file.get(name)
        if isinstance(item, h5py.Dataset) and item.dtype.kind == "c" and item.ndim >= 2:
            probe = read_dataset(file, name)
            return probe.reshape(-1, *probe.shape[-2:])
    return None


def _own_array(file: h5py.File, name: str) -> np.ndarray | None:
    return read_dataset(file, f"{OWN}/{name}") if f"{OWN}/{name}" in file else None


def _corner_note(file: h5py.File, slow: np.ndarray, fast: np.ndarray, shape: tuple[int, int]) -> tuple[str, ...]:
    """What corner_position says about the direct beam, where that is not the middle of the patterns."""
    name = f"{DETECTOR}/corner_position"
    if name not in file or f"{DETECTOR}/basis_vectors" not in file:
        return ()
    corner = read_dataset(file, name).reshape(-1)[:3].astype(np.float64)
    y, x = (float(-(corner @ b) / (b @ b)) - 0.5 for b in (slow, fast))
    if abs(y - shape[0] // 2) <= 1 and abs(x - shape[1] // 2) <= 1:
        return ()
    return (
        f"The file's corner_position puts the direct beam at pixel ({y:.1f}, {x:.1f}); the patterns are taken as "
        f"centred: set data.centre to [{y:.0f}, {x:.0f}] if they are not.",
    )
