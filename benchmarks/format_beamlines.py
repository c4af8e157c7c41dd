"""The scan of benchmarks/formats.py in the files of X-ray beamlines, with the names of their layouts.

`BEAMLINES` has one function for each, as `MAKERS` of format_files.py has. What a layout says of the beam is in its
file, in its own units; the object pixel is the recipe's, which every format of the benchmark shares.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import h5py
import numpy as np
from format_files import Made, Scan, write_hdf5

#: Joules of an electronvolt; energy times wavelength (eV m).
JOULES_PER_EV, ENERGY_WAVELENGTH = 1.602176634e-19, 1.239841984e-6


def cxi(folder: Path, scan: Scan) -> Made:
    """Write the sample's translation (x, y, z) in metres and the photon's energy in joules."""
    detector = "entry_1/instrument_1/detector_1"
    values = {
        f"{detector}/data": scan.counts,
        f"{detector}/distance": 1.0,
        f"{detector}/x_pixel_size": 1e-4,
        f"{detector}/y_pixel_size": 1e-4,
        "entry_1/instrument_1/source_1/energy": scan.energy_eV * JOULES_PER_EV,
        "entry_1/sample_1/geometry_1/translation": np.pad(scan.places[:, ::-1], ((0, 0), (0, 1))),
        "cxi_version": 150,
    }
    path = write_hdf5(folder / "scan.cxi", values)
    with h5py.File(path, "r+") as file:
        file["entry_1/data_1/data"] = h5py.SoftLink(f"/{detector}/data")
    return path, scan.beam(folder), {}


def ptychodus(folder: Path, scan: Scan) -> Made:
    """Write patterns and the product beside them."""
    path = write_hdf5(folder / "scan_dp.hdf5", {"dp": scan.counts})
    values = {f"probe_position_{axis}_m": scan.places[:, k] for k, axis in enumerate("yx")}
    beside = write_hdf5(folder / "scan_para.hdf5", values)
    with h5py.File(beside, "r+") as file:
        file.attrs.update(probe_energy_eV=scan.energy_eV, detector_object_distance_m=1.0)
    return path, scan.beam(folder), {}


def hxn_amplitudes(folder: Path, scan: Scan) -> Made:
    """Write roots of the counts and positions (x, y) in micrometres."""
    numbers = {"lambda_nm": ENERGY_WAVELENGTH / scan.energy_eV * 1e9, "z_m": 1.0, "ccd_pixel_um": 100.0, "angle": 0.0}
    arrays = {"diffamp": np.sqrt(scan.counts.astype(np.float64)), "points": scan.places.T[::-1] * 1e6}
    return write_hdf5(folder / "scan_320045.h5", arrays | numbers), scan.beam(folder), {}


def hxn_counts(patterns: str, folder: Path, scan: Scan) -> Made:
    """Write counts, and positions (x, y) in micrometres."""
    values = {patterns: scan.counts, "scan/scan_positions": scan.places.T[::-1] * 1e6, "scan/energy": scan.energy_eV}
    return write_hdf5(folder / "hxn.h5", values), scan.beam(folder), {}


def xpp(folder: Path, scan: Scan) -> Made:
    """Write stages that move against the probe, in micrometres, and the intensity of each pulse."""
    stages = {f"lmc/ch{channel:02d}": -1e6 * scan.places[:, k] for k, channel in enumerate((5, 3))}
    pulses = {"ipm2/sum": np.ones(len(scan.counts))}
    return write_hdf5(folder / "xpp.h5", {"jungfrau1M/image_img": scan.counts} | stages | pulses), scan.beam(folder), {}


def nanomax(patterns: str, folder: Path, scan: Scan) -> Made:
    """Write frames, and positions in micrometres."""
    values = {f"pseudo/{axis}": 1e6 * scan.places[:, k] for k, axis in enumerate("yx")} | {patterns: scan.counts}
    path = write_hdf5(folder / "nanomax.h5", {f"entry/measurement/{name}": value for name, value in values.items()})
    return path, scan.beam(folder), {}


def swing(folder: Path, scan: Scan) -> Made:
    """Write a flyscan of SOLEIL's SWING, with stages in millimetres."""
    stages = {f"scan_data/{name}": 1e3 * scan.places[:, k] for k, name in enumerate(("tz4", "tx4"))}
    detector = {f"SWING/EIGER-4M/{name}": [value] for name, value in (("distance", 6000.0), ("pixel_size_x", 75.0))}
    values = {"scan_data/eiger_image": scan.counts} | stages | detector
    path = write_hdf5(folder / "swing.nxs", {f"ptycho_00042/{name}": value for name, value in values.items()})
    return path, scan.beam(folder), {}


def id16a(folder: Path, scan: Scan) -> Made:
    """Write frames of ESRF ID16A, with stages as text in micrometres."""
    header = "entry_0000/instrument/Frelon/header"
    moved = {"spz": scan.places[:, 0], "spy": -scan.places[:, 1]}
    stages = {f"{header}/{name}": " ".join(f"{1e6 * one:.12g}" for one in values) for name, values in moved.items()}
    path = write_hdf5(folder / "id16a.h5", {"entry_0000/measurement/data": scan.counts} | stages)
    return path, scan.beam(folder), {}


BEAMLINES: dict[str, Callable[[Path, Scan], Made]] = {
    "cxi": cxi,
    "ptychodus": ptychodus,
    "hxn_amplitudes": hxn_amplitudes,
    "hxn_merlin": partial(hxn_counts, "diff_data/merlin1/det_images"),
    "hxn_eiger": partial(hxn_counts, "entry/data/data"),
    "xpp": xpp,
    "nanomax": partial(nanomax, "eiger1m/frames"),
    "nanomax_old": partial(nanomax, "Eiger/data"),
    "swing": swing,
    "id16a": id16a,
}
