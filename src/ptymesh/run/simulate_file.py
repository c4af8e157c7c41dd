"""Simulated data sets as files: what an instrument would have written, and the truth beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.formats.cxi_writer import write_cxi
from ptymesh.io.results import Result
from ptymesh.models.scan_shift import UNITS, ScanShift
from ptymesh.simulate import Simulation, Truth, patterns, truths

SUFFIXES = (".cxi", ".h5", ".hdf5")


def write(
    options: Simulation, path: str | Path, *, force: bool = False, compression: Literal["gzip"] | None = "gzip"
) -> tuple[Path, ...]:
    """Simulate into a CXI file, a few views at a time, and write the truth beside it.

    The data set is CXI whatever its name's ending (CXI is HDF5). The truth (`scan.cxi` -> `scan.truth.h5`) is a result
    file, so that `ptymesh compare` and `ptymesh view` read it: object, probe, true and nominal positions. Further scans
    go to files of their own (`scan-2.cxi`), and one truth holds all.

    Args:
        options: what to simulate.
        path: of the data set: .cxi, .h5 or .hdf5.
        force: replace files that exist.
        compression: None stores the patterns as they are, so that any of them is read at the disk's speed.

    Returns:
        Paths of the data set, or that of each scan, and of the truth.

    Raises:
        BadInput: another ending, a file that exists, or options that cannot be simulated; nothing is written then.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise BadInput(f"The name {path} ends in {path.suffix or 'nothing'}; end it in .cxi, .h5 or .hdf5.")
    beside = path.with_suffix(".truth.h5")
    names = [path, *(path.with_stem(f"{path.stem}-{n + 2}") for n in range(len(options.further_scans)))]
    for file in (*names, beside):
        if file.is_dir():
            raise BadInput(f"{file} is a folder; give another name.")
        if file.exists() and not force:
            raise BadInput(f"{file} exists already; give another name, or --force to replace it.")
    made = truths(options)
    for one, name in zip(made, names, strict=True):
        _write_scan(one, name, compression)
    (truth_result(made[0]) if len(made) == 1 else _truth_of_scans(options, made, names)).save(beside)
    return *names, beside


def _write_scan(made: Truth, path: Path, compression: Literal["gzip"] | None) -> None:
    """Write the data set of one scan."""
    options = made.options
    write_cxi(
        path,
        patterns=_centred(made),
        count=options.views,
        dtype=made.dtype,
        geometry=made.of_detector,
        positions_m=(made.nominal - np.array(made.origin)) * np.array(made.geometry.object_pixel_m),
        mask=_shifted(made, made.mask),
        probe=made.guess(),
        background=_shifted(made, made.background) if options.background_counts else None,
        attributes={"simulation": options.as_json()},
        compression=compression,
    )


def truth_result(made: Truth) -> Result:
    """Return the truth in the form of a reconstruction's result."""
    pixel = made.geometry.object_pixel_m
    return Result(
        object=made.object,
        probe=made.probe,
        positions_px=made.positions,
        positions_m=(made.positions - np.array(made.origin)) * np.array(pixel),
        pixel_size_m=pixel,
        slice_spacing_m=made.slice_spacing_m,
        tilt_rad=made.options.tilt_rad,
        attrs={"engine": "simulate", "subpixel": "fourier", "propagation": made.geometry.propagation},
        nominal_px=made.nominal,
        background=made.background if made.options.background_counts else None,
        unknowns=made.unknowns,
        potential=made.potential,
        object_modes=made.object_modes,
    )


def _truth_of_scans(options: Simulation, made: list[Truth], names: list[Path]) -> Result:
    """Return the truth of several scans as one result: all views, the probe of each scan, and where it lies."""
    first, pixel = truth_result(made[0]), made[0].pixel_size_m
    positions = np.concatenate([one.positions for one in made])
    names_of_moves = ScanShift(scans=len(made), terms=list(UNITS)).units()
    moves = [number for one in options.further_scans for number in one.move]
    return replace(
        first,
        positions_px=positions,
        positions_m=(positions - np.array(made[0].origin)) * np.array(pixel),
        nominal_px=np.concatenate([one.nominal for one in made]),
        background=np.stack([one.background for one in made]) if any(one.background.any() for one in made) else None,
        scan_index=np.repeat(np.arange(len(made)), [len(one.positions) for one in made]),
        scan_probes=np.stack([one.probe for one in made]),
        parameters={"scan_shift": dict(zip(names_of_moves, moves, strict=True))},
        attrs={**first.attrs, "scan_names": [name.stem for name in names]},
    )


def _centred(made: Truth) -> Iterator[np.ndarray]:
    """Yield patterns as a detector sees them, DC in the middle."""
    for slab in patterns(made):
        yield _shifted(made, slab)


def _shifted(made: Truth, images: np.ndarray) -> np.ndarray:
    if made.geometry.propagation != "far_field":
        return images
    return np.fft.fftshift(images, axes=(-2, -1))
