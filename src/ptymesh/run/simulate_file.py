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
    simulations = truths(options)
    for one, name in zip(simulations, names, strict=True):
        _write_scan(one, name, compression)
    (truth_result(simulations[0]) if len(simulations) == 1 else _truth_of_scans(options, simulations, names)).save(
        beside
    )
    return *names, beside


def _write_scan(simulation: Truth, path: Path, compression: Literal["gzip"] | None) -> None:
    """Write the data set of one scan."""
    options = simulation.options
    write_cxi(
        path,
        patterns=_centred(simulation),
        count=options.views,
        dtype=simulation.dtype,
        geometry=simulation.of_detector,
        positions_m=(simulation.nominal - np.array(simulation.origin)) * np.array(simulation.geometry.object_pixel_m),
        mask=_shifted(simulation, simulation.mask),
        probe=simulation.guess(),
        background=_shifted(simulation, simulation.background) if options.background_counts else None,
        attributes={"simulation": options.as_json()},
        compression=compression,
    )


def truth_result(simulation: Truth) -> Result:
    """Return the truth in the form of a reconstruction's result."""
    pixel = simulation.geometry.object_pixel_m
    return Result(
        object=simulation.object,
        probe=simulation.probe,
        positions_px=simulation.positions,
        positions_m=(simulation.positions - np.array(simulation.origin)) * np.array(pixel),
        pixel_size_m=pixel,
        slice_spacing_m=simulation.slice_spacing_m,
        tilt_rad=simulation.options.tilt_rad,
        attrs={"engine": "simulate", "subpixel": "fourier", "propagation": simulation.geometry.propagation},
        nominal_px=simulation.nominal,
        background=simulation.background if simulation.options.background_counts else None,
        unknowns=simulation.unknowns,
        potential=simulation.potential,
        object_modes=simulation.object_modes,
    )


def _truth_of_scans(options: Simulation, simulations: list[Truth], names: list[Path]) -> Result:
    """Return the truth of several scans as one result: all views, the probe of each scan, and where it lies."""
    first, pixel = truth_result(simulations[0]), simulations[0].pixel_size_m
    positions = np.concatenate([one.positions for one in simulations])
    names_of_moves = ScanShift(scans=len(simulations), terms=list(UNITS)).units()
    moves = [number for one in options.further_scans for number in one.move]
    return replace(
        first,
        positions_px=positions,
        positions_m=(positions - np.array(simulations[0].origin)) * np.array(pixel),
        nominal_px=np.concatenate([one.nominal for one in simulations]),
        background=np.stack([one.background for one in simulations])
        if any(one.background.any() for one in simulations)
        else None,
        scan_index=np.repeat(np.arange(len(simulations)), [len(one.positions) for one in simulations]),
        scan_probes=np.stack([one.probe for one in simulations]),
        parameters={"scan_shift": dict(zip(names_of_moves, moves, strict=True))},
        attrs={**first.attrs, "scan_names": [name.stem for name in names]},
    )


def _centred(simulation: Truth) -> Iterator[np.ndarray]:
    """Yield patterns as a detector sees them, DC in the middle."""
    for slab in patterns(simulation):
        yield _shifted(simulation, slab)


def _shifted(simulation: Truth, images: np.ndarray) -> np.ndarray:
    if simulation.geometry.propagation != "far_field":
        return images
    return np.fft.fftshift(images, axes=(-2, -1))
