"""Pairs of HDF5 files, `NAME_dp` with the patterns and `NAME_para` with the rest: fold_slice's and Ptychodus'.

fold_slice (PtychoShelves; APS Velociprobe): `/dp` is (N, x, y) as h5py sees MATLAB's (y, x, N); `/ppX` and `/ppY` are
used as (-ppY, -ppX), metres for X-rays and angstrom for electrons. Ptychodus, Pty-Chi: `/dp` is (N, y, x), and the
other file is a product: `probe_position_y_m`, `probe_position_x_m`, attributes for energy and distance, and pixels of
`probe`.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from ptymesh.errors import BadInput
from ptymesh.geometry import Pair
from ptymesh.io.formats.contents import is_hdf5_with
from ptymesh.io.hdf5.reading import Hdf5File, attribute, item_of, open_hdf5, read_dataset
from ptymesh.io.options import DataOptions, Unit
from ptymesh.io.quantities import holds_numbers
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.source import Hdf5Source
from ptymesh.io.staging import sliceable

NAME = "a pair of files (NAME_dp.hdf5, NAME_para.hdf5)"
PATTERNS = "/dp"
STAGES = ("/ppY", "/ppX")
PRODUCT = ("/probe_position_y_m", "/probe_position_x_m")


def recognises(path: Path, data: DataOptions) -> bool:
    """Return True for HDF5 with `/dp` that has a file of parameters beside it."""
    parameters = _parameters(path)
    return (
        parameters is not None
        and is_hdf5_with(path, data, _has_patterns)
        and is_hdf5_with(parameters, data, lambda file: _names(file))
    )


def read(path: Path, data: DataOptions) -> RawScan:
    """Return the scan of a pair.

    Raises:
        BadInput: its coordinates do not pair.
    """
    parameters = _parameters(path)
    assert parameters is not None
    with open_hdf5(parameters, follow=data.follow) as file:
        names = _names(file)
        assert names is not None
        is_product = names == PRODUCT
        source = Hdf5Source(path, PATTERNS, "nyx" if is_product else "nxy", data.follow)
        count, *window = source.shape
        y, x = (read_dataset(file, name, 64 * count + 1000, "iuf").reshape(-1).astype(np.float64) for name in names)
        if len(y) != len(x):
            raise BadInput(f"{names[0]} in {parameters} has {len(y)} values and {names[1]} {len(x)}; mend them.")
        positions = np.stack([y, x], axis=1)
        unit: Unit = "m"
        doubt, optics, probe = "", Optics(radiation=data.radiation), None
        notes = [f"Positions are those of {parameters.name}."]
        if is_product:
            optics = _optics(file, (window[0], window[1]), data)
            probe = _probe(file, (window[0], window[1]), notes)
        else:
            positions = -positions
            unit = "A" if data.radiation == "electron" else "m"
            if data.radiation is None:
                doubt = (
                    f"ppX and ppY in {parameters} are in metres if the beam is of photons, and in angstrom if of "
                    "electrons:"
                    " set data.radiation."
                )
            else:
                notes.append(f"ppX and ppY are taken in {unit}, as is usual for {data.radiation}s (positions.unit).")
    return RawScan(
        patterns=sliceable(source),
        optics=optics,
        positions=positions,
        unit=unit,
        unit_doubt=doubt,
        probe=probe,
        name=path.stem.removesuffix("_dp"),
        notes=tuple(notes),
    )


def _parameters(path: Path) -> Path | None:
    """Return the file of parameters beside `NAME_dp`; None where there is none."""
    if not path.stem.endswith("dp"):
        return None
    companion = path.with_name(f"{path.stem.removesuffix('dp')}para{path.suffix}")
    return companion if companion.is_file() else None


def _has_patterns(file: Hdf5File) -> bool:
    patterns = item_of(file, PATTERNS)
    return isinstance(patterns, h5py.Dataset) and patterns.ndim == 3


def _names(file: Hdf5File) -> tuple[str, str] | None:
    """Return the names of the coordinates (y, x)."""
    pairs = (PRODUCT, STAGES)
    return next((pair for pair in pairs if all(holds_numbers(file, name) for name in pair)), None)


def _attribute(file: Hdf5File, name: str, key: str) -> float | None:
    """Return a positive number that an attribute says; None where it says none."""
    item = item_of(file, name)
    value = None if item is None else np.asarray(attribute(item, key))
    if value is None or value.dtype.kind not in "iuf" or value.size != 1:
        return None
    number = float(value.reshape(-1)[0])
    return number if np.isfinite(number) and number > 0 else None


def _optics(file: Hdf5File, window: tuple[int, int], data: DataOptions) -> Optics:
    """Return what a product says of the beam, and the object pixel of a whole pattern, whose pixels are `window`."""
    probe = item_of(file, "/probe")
    pixel: Pair | None = None
    if isinstance(probe, h5py.Dataset) and probe.ndim >= 2:
        sides_m = [_attribute(file, "/probe", f"pixel_{side}_m") for side in ("height", "width")]
        if sides_m[0] and sides_m[1]:
            height, width = probe.shape[-2:]
            pixel = sides_m[0] * height / window[0], sides_m[1] * width / window[1]
    return Optics(
        radiation=data.radiation or "photon",
        energy_eV=_attribute(file, "/", "probe_energy_eV"),
        distance_m=_attribute(file, "/", "detector_object_distance_m"),
        object_pixel_m=pixel,
    )


def _probe(file: Hdf5File, window: tuple[int, int], notes: list[str]) -> np.ndarray | None:
    """Return the product's probe (M, H, W); None, with a note, where it is of another size than the patterns."""
    stored = item_of(file, "/probe")
    if not isinstance(stored, h5py.Dataset) or stored.dtype.kind != "c" or stored.ndim not in (2, 3, 4):
        return None
    if stored.shape[-2:] != window:
        notes.append(f"The file's probe is {stored.shape[-2:]} pixels, its patterns {window}: it is left out.")
        return None
    probe = read_dataset(file, "/probe", 4096 * window[0] * window[1], "c")
    return (probe[0] if probe.ndim == 4 else probe).reshape(-1, *window)
