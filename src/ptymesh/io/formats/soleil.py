"""Flyscans of SOLEIL (.nxs): arrays of one scan side by side in `scan_data` of the file's first group.

SWING has `eiger_image` with the stages `tz4` and `tx4`, and distance (mm) and pixels (um) of its EIGER-4M; Nanoscopium
has `Image_merlin_image`, four chips without the pixels between them, with `sample_Piezo_Tz` and `sample_Piezo_Tx`, of
which x runs against the probe; Cristal has `data_NN` with `trajectory_1_2` and `trajectory_1_1`, in units of the scan.
Stages are in mm elsewhere. Energies are asked for: that of Nanoscopium is not calibrated, and SWING's says no unit.

Source: what PyNX's runners and PtychoShelves read of such files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.formats.changed_source import GapSource
from ptymesh.io.formats.contents import is_hdf5_with
from ptymesh.io.hdf5.reading import DAMAGE, Hdf5File, item_of, open_hdf5, read_dataset
from ptymesh.io.options import DataOptions
from ptymesh.io.quantities import holds_numbers, read_first_positive
from ptymesh.io.rasters import orientation_note
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.source import Hdf5Source, SlabSource
from ptymesh.io.staging import sliceable

NAME = "SOLEIL (SWING, Nanoscopium, Cristal)"
#: Pixels of a side of Nanoscopium's four chips as stored, and pixels between two of them.
MERLIN_SIDE, MERLIN_GAP = 512, 4
MERLIN_PIXEL_M = 55e-6
MILLIMETRE, MICROMETRE = 1e-3, 1e-6


@dataclass(frozen=True)
class Beamline:
    """Names of one beamline's datasets within `scan_data`.

    Attributes:
        name: of the beamline.
        images: pattern of the name of the images.
        y, x: names of the stages, one of several spellings, and the sign against the probe.
        has_unit: whether stages are in mm; else the recipe says it.
    """

    name: str
    images: str
    y: tuple[tuple[str, ...], int]
    x: tuple[tuple[str, ...], int]
    has_unit: bool = True


BEAMLINES = (
    Beamline("SWING", "eiger_image", (("tz4",), 1), (("tx4",), 1)),
    Beamline(
        "Nanoscopium",
        "Image_merlin_image",
        (("sample_Piezo_Tz", "sample_Piezo_TZ"), 1),
        (("sample_Piezo_Tx", "sample_Piezo_TX"), -1),
    ),
    Beamline("Cristal", r"data_\d+", (("trajectory_1_2",), 1), (("trajectory_1_1",), 1), has_unit=False),
)


@dataclass(frozen=True)
class FoundNames:
    """Full names of what a file has of a beamline's datasets.

    Attributes:
        beamline: whose file it is.
        group: the file's first group.
        images, y, x: datasets.
    """

    beamline: Beamline
    group: str
    images: str
    y: str
    x: str


def recognises(path: Path, data: DataOptions) -> bool:
    """Return True for HDF5 with images and stages of one of the beamlines."""
    return is_hdf5_with(path, data, _names)


def read(path: Path, data: DataOptions) -> RawScan:
    """Return the scan of a file.

    Raises:
        BadInput: its stages have different numbers of values.
    """
    with open_hdf5(path, follow=data.follow) as file:
        layout = _names(file)
        assert layout is not None
        stored = Hdf5Source(path, layout.images, follow=data.follow)
        y, x = (
            sign * read_dataset(file, name, 64 * stored.shape[0] + 1000, "iuf").reshape(-1).astype(np.float64)
            for name, (_, sign) in ((layout.y, layout.beamline.y), (layout.x, layout.beamline.x))
        )
        if len(y) != len(x):
            raise BadInput(f"{layout.y} in {path} has {len(y)} values and {layout.x} {len(x)}; mend them.")
        detector = f"{layout.group}/SWING/EIGER-4M"
        away = read_first_positive(file, f"{detector}/distance")
        sides = [read_first_positive(file, f"{detector}/pixel_size_{axis}") for axis in "zx"]
    patterns, mask, notes = _insert_chip_gaps(sliceable(stored), layout.beamline)
    distance = None if away is None else away * MILLIMETRE
    pixel = (sides[0] * MICROMETRE, sides[1] * MICROMETRE) if sides[0] and sides[1] else None
    if layout.beamline.name == "Nanoscopium":
        pixel = (MERLIN_PIXEL_M, MERLIN_PIXEL_M)
    doubt = "" if layout.beamline.has_unit else f"{layout.y} and {layout.x} in {path} say no unit: set positions.unit."
    return RawScan(
        patterns=patterns,
        optics=Optics(radiation=data.radiation or "photon", distance_m=distance, detector_pixel_m=pixel),
        positions=np.stack([y, x], axis=1),
        unit="mm",
        unit_doubt=doubt,
        mask=mask,
        name=path.stem,
        notes=(f"The file's names are those of SOLEIL's {layout.beamline.name}.", *notes, orientation_note("SOLEIL")),
    )


def _names(file: Hdf5File) -> FoundNames | None:
    """Return the datasets of the first beamline that fits; None where none does."""
    try:
        group = "/" + next(iter(file.keys()), "")
        members = item_of(file, f"{group}/scan_data")
        names = [] if not isinstance(members, h5py.Group) else [str(name) for name in members]
    except DAMAGE:
        return None
    for one in BEAMLINES:
        images = [name for name in names if re.fullmatch(one.images, name)]
        stages = [next((name for name in spellings if name in names), "") for spellings, _ in (one.y, one.x)]
        full = [f"{group}/scan_data/{name}" for name in (*images[:1], *stages)]
        if images and all(stages) and all(holds_numbers(file, name) for name in full):
            item = item_of(file, full[0])
            if isinstance(item, h5py.Dataset) and item.ndim in (3, 4):
                return FoundNames(one, group, *full)
    return None


def _insert_chip_gaps(stored: SlabSource, beamline: Beamline) -> tuple[SlabSource, np.ndarray | None, tuple[str, ...]]:
    """Return the patterns with the pixels between four chips, the mask of these and a note, where they are missing."""
    if beamline.name != "Nanoscopium" or stored.shape[1:] != (MERLIN_SIDE, MERLIN_SIDE):
        return stored, None, ()
    side = MERLIN_SIDE + MERLIN_GAP
    line = np.ones(side, bool)
    line[MERLIN_SIDE // 2 - 1 : MERLIN_SIDE // 2 + MERLIN_GAP + 1] = False  # with the larger pixels beside the gap
    note = f"{MERLIN_GAP} pixels between the chips are put in, and masked with those beside them."
    return GapSource(stored, MERLIN_GAP), np.logical_and.outer(line, line), (note,)
