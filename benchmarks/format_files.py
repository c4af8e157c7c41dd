"""One scan in the files of many formats, as small as each layout allows, for benchmarks/formats.py.

`MAKERS` has one function for each: given a folder and the scan, it writes a file there, and returns its path and what a
recipe says besides (`data`, `positions`).
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tifffile
from scipy.io import savemat

Made = tuple[Path, dict[str, Any], dict[str, Any]]
ROWS = COLUMNS = 12


@dataclass(frozen=True)
class Scan:
    """A scan of X-rays, whose counts fit into a byte.

    Attributes:
        counts: (N, h, w) uint8, the direct beam in the middle.
        places: (N, 2) metres, y x.
        energy_eV, object_pixel_m, step_m: as they say.
        probe: (M, h, w) complex, where reconstructions start.
    """

    counts: np.ndarray
    places: np.ndarray
    energy_eV: float
    object_pixel_m: float
    step_m: float
    probe: np.ndarray

    def beam(self, folder: Path, **keys: str) -> dict[str, Any]:
        """Return what a recipe says of the beam, with the probe, and what else keys name, in files of their own."""
        np.save(folder / "probe.npy", self.probe)
        beam = {"energy_eV": self.energy_eV, "radiation": "photon", "object_pixel_m": self.object_pixel_m}
        return beam | {"keys": {"probe": "probe.npy"} | keys}

    @property
    def raster(self) -> np.ndarray:
        """The counts as (rows, columns, h, w)."""
        return self.counts.reshape(ROWS, COLUMNS, *self.counts.shape[1:])


def in_its_own_file(folder: Path, scan: Scan) -> dict[str, Any]:
    """Return what a recipe says of a scan whose positions lie in a file of their own."""
    np.save(folder / "places.npy", scan.places)
    return scan.beam(folder, positions="places.npy")


def npy(folder: Path, scan: Scan) -> Made:
    np.save(folder / "scan.npy", scan.counts)
    return folder / "scan.npy", in_its_own_file(folder, scan), {}


def tiff(folder: Path, scan: Scan) -> Made:
    tifffile.imwrite(folder / "scan.tif", scan.counts)
    return folder / "scan.tif", in_its_own_file(folder, scan), {}


def raw(folder: Path, scan: Scan) -> Made:
    scan.counts.tofile(folder / "scan.raw")
    layout = {"pixels": list(scan.counts.shape[1:]), "dtype": "uint8"}
    return folder / "scan.raw", in_its_own_file(folder, scan) | {"raw": layout}, {}


def matlab_5(folder: Path, scan: Scan) -> Made:
    savemat(folder / "scan.mat", {"cbed": np.moveaxis(scan.counts, 0, -1)})
    return folder / "scan.mat", in_its_own_file(folder, scan) | {"frames": {"axes": "yxn"}}, {}


def matlab_73(folder: Path, scan: Scan) -> Made:
    path = folder / "scan73.mat"
    with h5py.File(path, "w", userblock_size=512) as file:
        file["cbed"] = scan.counts.transpose(0, 2, 1)  # MATLAB's order, reversed
    matlab_header(path)
    return path, in_its_own_file(folder, scan) | {"frames": {"axes": "yxn"}}, {}


def matlab_header(path: Path) -> None:
    """Write what stands before the HDF5 of MATLAB's version 7.3."""
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(116) + bytes(8) + b"\x00\x02IM")


def npz(folder: Path, scan: Scan) -> Made:
    np.savez(folder / "scan.npz", patterns=scan.counts, places=scan.places)
    return folder / "scan.npz", scan.beam(folder, patterns="patterns", positions="places"), {}


def tike(folder: Path, scan: Scan) -> Made:
    probe = np.ones((1, 1, 1, 1, *scan.counts.shape[1:]), np.complex64)
    places = (scan.places / scan.object_pixel_m).astype(np.float64)[None]
    data = np.fft.ifftshift(scan.counts, axes=(1, 2))[None]
    np.savez(folder / "tike.npz", data=data, scan=places, probe=probe)
    return folder / "tike.npz", scan.beam(folder), {}


def merlin(folder: Path, scan: Scan) -> Made:
    path, (h, w) = folder / "scan.mib", scan.counts.shape[1:]
    with path.open("wb") as file:
        for number, frame in enumerate(scan.counts, 1):
            text = f"MQ1,{number:06d},00384,01,{w:04d},{h:04d},U08,   1x1,01,2026-11-28 18:00:00"
            file.write(text.encode().ljust(384) + frame.tobytes())
    return path, in_its_own_file(folder, scan), {}


def tvips(folder: Path, scan: Scan) -> Made:
    path, (h, w) = folder / "scan_000.tvips", scan.counts.shape[1:]
    volts = round(scan.energy_eV / 1e3)
    with path.open("wb") as file:
        file.write(struct.pack("<13i", 256, 2, w, h, 8, 0, 0, 1, 1, 0, volts, 0, 80).ljust(256, b"\0"))
        for number, frame in enumerate(scan.counts):
            place = struct.pack("<2f", number % COLUMNS, number // COLUMNS)
            file.write(struct.pack("<I", number).ljust(68, b"\0") + place + bytes(4) + frame.tobytes())
    return path, in_its_own_file(folder, scan), {}


def blockfile(folder: Path, scan: Scan) -> Made:
    path, side = folder / "scan.blo", scan.counts.shape[1]
    step = scan.step_m * 1e9
    header = struct.pack(
        "<6sHIIIHHHHHddIHI",
        *(b"IMGBLO", 0, 0x1000, 0x2000, 0, side, 0, COLUMNS, ROWS, 0, step, step, round(scan.energy_eV), 0, 0),
    )
    frames = [b"\xaa\x55" + struct.pack("<I", k) + frame.tobytes() for k, frame in enumerate(scan.counts)]
    path.write_bytes(header.ljust(0x2000, b"\0") + b"".join(frames))
    return path, in_its_own_file(folder, scan), {}


def nion(folder: Path, scan: Scan) -> Made:
    axes = [{"offset": 0.0, "scale": scan.step_m * 1e9, "units": "nm"}] * 2
    axes += [{"offset": 0.0, "scale": 1.0, "units": ""}] * 2
    about = {"spatial_calibrations": axes, "collection_dimension_count": 2, "datum_dimension_count": 2}
    about["metadata"] = {"instrument": {"high_tension": scan.energy_eV}}  # type: ignore[assignment]
    numbers = io.BytesIO()
    np.save(numbers, scan.raster)
    with zipfile.ZipFile(folder / "scan.ndata", "w") as file:
        file.writestr("metadata.json", json.dumps(about))
        file.writestr("data.npy", numbers.getvalue())
    return folder / "scan.ndata", in_its_own_file(folder, scan), {}


def write_hdf5(path: Path, values: dict[str, Any], units: dict[str, str] | None = None) -> Path:
    """Write datasets and the units of some; return the path."""
    with h5py.File(path, "w") as file:
        for name, value in values.items():
            file[name] = value
        for name, unit in (units or {}).items():
            file[name].attrs["units"] = unit
    return path


def hyperspy(folder: Path, scan: Scan) -> Made:
    path = write_hdf5(folder / "scan.hspy", {"Experiments/scan/data": scan.raster})
    with h5py.File(path, "r+") as file:
        for k in range(4):
            about = {"scale": scan.step_m * 1e9, "units": "nm"} if k < 2 else {"scale": 1.0, "units": ""}
            file.create_group(f"Experiments/scan/axis-{k}").attrs.update(navigate=k < 2, **about)
    return path, in_its_own_file(folder, scan), {}


def abtem(folder: Path, scan: Scan) -> Made:
    names = {"array": scan.raster, "sampling": [scan.step_m * 1e10] * 2 + [1.0, 1.0], "offset": np.zeros(4)}
    path = write_hdf5(folder / "scan.hdf5", names | {"units": np.array([b"A", b"A", b"mrad", b"mrad"])})
    return path, in_its_own_file(folder, scan), {}


def py4dstem(folder: Path, scan: Scan) -> Made:
    path = write_hdf5(folder / "cube.h5", {"root/datacube/data": scan.raster})
    with h5py.File(path, "r+") as file:
        file.attrs.update(emd_group_type="file", version_major=1, version_minor=0)
        file["root"].attrs["emd_group_type"] = "root"
        file["root/datacube"].attrs.update(emd_group_type="array", python_class="DataCube")
        for k in range(4):
            file[f"root/datacube/dim{k}"] = [0.0, scan.step_m * 1e10 if k < 2 else 1.0]
            file[f"root/datacube/dim{k}"].attrs.update(name=f"d{k}", units="A" if k < 2 else "pixels")
    return path, in_its_own_file(folder, scan), {}


def nexus(folder: Path, scan: Scan) -> Made:
    values = {"entry/data/data": scan.counts, "entry/data/y": scan.places[:, 0], "entry/data/x": scan.places[:, 1]}
    path = write_hdf5(folder / "scan.nxs", values, {"entry/data/y": "m", "entry/data/x": "m"})
    with h5py.File(path, "r+") as file:
        file["entry"].attrs["NX_class"], file["entry/data"].attrs["NX_class"] = "NXentry", "NXdata"
    return path, scan.beam(folder), {}


def dectris(folder: Path, scan: Scan) -> Made:
    import hdf5plugin

    path, frame = folder / "scan_master.h5", scan.counts.shape[1:]
    with h5py.File(path, "w") as file:
        for number, start in enumerate((0, 100), 1):
            part = folder / f"scan_data_{number:06d}.h5"
            with h5py.File(part, "w") as other:
                some = scan.counts[start : start + 100]
                other.create_dataset("entry/data/data", data=some, chunks=(1, *frame), **hdf5plugin.Bitshuffle())
            file[f"entry/data/data_{number:06d}"] = h5py.ExternalLink(part.name, "/entry/data/data")
        file["entry/instrument/detector/description"] = np.bytes_(b"Dectris ARINA")
    return path, in_its_own_file(folder, scan), {}


def ptypy(folder: Path, scan: Scan) -> Made:
    names = {"meta/energy": scan.energy_eV / 1e3, "meta/distance": 1.0, "meta/psize": 1e-4}
    chunk = {"data": scan.counts, "positions": scan.places, "weights": np.empty(0)}
    chunk["indices"] = np.arange(len(scan.counts))
    path = write_hdf5(folder / "scan.ptyd", names | {f"chunks/0/{name}": value for name, value in chunk.items()})
    return path, scan.beam(folder), {}


def fold_slice(folder: Path, scan: Scan) -> Made:
    path = write_hdf5(folder / "data_roi0_dp.hdf5", {"dp": scan.counts.transpose(0, 2, 1)})
    places = {"ppY": -scan.places[:, 0], "ppX": -scan.places[:, 1]}
    write_hdf5(folder / "data_roi0_para.hdf5", places)
    return path, scan.beam(folder), {}


def ptylab(folder: Path, scan: Scan) -> Made:
    names = {"ptychogram": scan.counts, "encoder": scan.places, "wavelength": 1e-10, "zo": 1.0, "dxd": 1e-4}
    return write_hdf5(folder / "ptylab.hdf5", names), scan.beam(folder), {}


def csaxs(folder: Path, scan: Scan) -> Made:
    numbers = {"monochromator/energy": 6.2, "monochromator/distance": -7200.0}
    numbers |= {"eiger_4/x_pixel_size": 75.0, "eiger_4/y_pixel_size": 75.0}
    names = {f"entry/instrument/{name}": value for name, value in numbers.items()}
    return write_hdf5(folder / "csaxs.h5", {"entry/data/data": scan.counts} | names), in_its_own_file(folder, scan), {}


def empad(folder: Path, scan: Scan) -> Made:
    rows = np.zeros((len(scan.counts), 130, 128), "<f4")
    inset = (128 - scan.counts.shape[1]) // 2
    rows[:, inset : inset + scan.counts.shape[1], inset : inset + scan.counts.shape[2]] = scan.counts
    path = folder / f"scan_x{COLUMNS}_y{ROWS}.raw"
    path.write_bytes(rows.tobytes())
    if not inset:
        return path, in_its_own_file(folder, scan), {}
    # the object pixel is that of the whole pattern, of which the crop leaves the middle
    pixel = scan.object_pixel_m * scan.counts.shape[1] / 128
    said = in_its_own_file(folder, scan) | {"object_pixel_m": pixel, "crop": list(scan.counts.shape[1:])}
    return path, said, {}


MAKERS: dict[str, Callable[[Path, Scan], Made]] = {
    made.__name__: made
    for made in (
        *(npy, tiff, raw, matlab_5, matlab_73, npz, tike, merlin, tvips, blockfile, nion, hyperspy, abtem, py4dstem),
        *(nexus, dectris, ptypy, fold_slice, ptylab, csaxs, empad),
    )
}
