"""ESRF ID16A: a stack in `entry_0000/measurement/data`, and the stages as text in the header of its detector.

`entry_0000/instrument/DETECTOR/header/spy` and `spz` hold one number in micrometres for each frame, set apart by
blanks. The probe's x is -spy, its y spz. Energy, distances and pixel are in a file of their own, of another layout.

Source: what PyNX's runner for near-field ptychography at ID16A reads.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.formats.contents import is_hdf5_with
from ptymesh.io.hdf5.reading import DAMAGE, Hdf5File, dataset_of, item_of, open_hdf5, reading, text_of
from ptymesh.io.options import DataOptions
from ptymesh.io.rasters import orientation_note
from ptymesh.io.scan import Optics, RawScan
from ptymesh.io.source import Hdf5Source
from ptymesh.io.staging import sliceable

NAME = "ESRF ID16A (entry_0000)"
PATTERNS, INSTRUMENT = "/entry_0000/measurement/data", "/entry_0000/instrument"
#: Stages along y and x, with the sign against the probe.
STAGES = (("spz", 1), ("spy", -1))


def recognises(path: Path, data: DataOptions) -> bool:
    """Return True for HDF5 with a stack and the stages in a header."""
    return is_hdf5_with(path, data, _header)


def read(path: Path, data: DataOptions) -> RawScan:
    """Return the scan of a file.

    Raises:
        BadInput: its stages are no numbers, or have not as many as there are frames.
    """
    with open_hdf5(path, follow=data.follow) as file:
        header = _header(file)
        source = Hdf5Source(path, PATTERNS, "nyx", data.follow)
        positions = np.stack(
            [sign * _stage(file, f"{header}/{name}", source.shape[0]) for name, sign in STAGES], axis=1
        )
    return RawScan(
        patterns=sliceable(source),
        optics=Optics(radiation=data.radiation or "photon"),
        positions=positions,
        unit="um",
        name=path.stem,
        notes=(
            "Energy, distances and pixel are in ID16A's file of the scan's description, which is not read; a near "
            "field is said by data.propagation.",
            orientation_note("ID16A"),
        ),
    )


def _header(file: Hdf5File) -> str | None:
    """Return the group of the header that has both stages; None where there is none, or no stack."""
    stack, instrument = item_of(file, PATTERNS), item_of(file, INSTRUMENT)
    if not isinstance(stack, h5py.Dataset) or stack.ndim != 3 or not isinstance(instrument, h5py.Group):
        return None
    try:
        names = [f"{INSTRUMENT}/{name}/header" for name in list(instrument)[:100]]
    except DAMAGE:
        return None
    stages = [stage for stage, _ in STAGES]
    return next(
        (one for one in names if all(isinstance(item_of(file, f"{one}/{stage}"), h5py.Dataset) for stage in stages)),
        None,
    )


def _stage(file: Hdf5File, name: str, count: int) -> np.ndarray:
    """Return the numbers (count,) float64 of a stage."""
    subject = f"{name} in {file.filename}"
    with reading(subject):
        text = text_of(dataset_of(file, name)[()], 64 * count + 1000)
    try:
        values = np.array((text or "").split(), np.float64)
    except ValueError as error:
        raise BadInput(f"{subject} holds other words than numbers ({error}); name positions in data.keys.") from error
    if len(values) != count or not np.isfinite(values).all():
        raise BadInput(
            f"{subject} holds {len(values)} numbers, and there are {count} patterns: name positions in data.keys."
        )
    return values
