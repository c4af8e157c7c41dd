"""Files of many formats: what is understood, whether it is reconstructed, and how fast patterns come from the disk.

    python benchmarks/formats.py [readers sparse files rates] [--out formats.json] [--scratch DIR] [--samples DIR]

readers  One scan in each format that is made here: what `ptymesh inspect` says, and whether 20 epochs of rPIE end at
         the same bits as from `.npy`. Patterns are of 128 x 128, as EMPAD's are. Then files that instruments and
         other programs wrote (--samples).
sparse   20 GB with holes in five formats on two ranks (tests/io/formats/test_large_files.py, which asserts both): the
         test's own words.
files    127 x 127 views of 256 x 256 uint8 as one raw file, and as 16,129 MATLAB files of version 7.3: seconds until
         loaded, most memory of two epochs within --memory-budget 500MB, also beyond that of 64 of these views (imports,
         kernels, engine) in budgets, and whether the objects have the same bits.
rates    bytes per second of patterns in order with the file's cache dropped, as stored and as prepared (turned, masked,
         zero frequency at the corner), of raw formats over those of `dd`, and of compressed HDF5 over h5py's alone.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import record
from format_beamlines import BEAMLINES
from format_files import MAKERS, ROWS, Scan, matlab_header
from format_microscopes import MICROSCOPES

import ptymesh as pm
from ptymesh.io import load_measurement
from ptymesh.io.options import DataOptions, PositionOptions
from ptymesh.simulate import checked, simulate

HERE = Path(__file__).parent
PARTS = ("readers", "sparse", "files", "rates")
BUDGET = "500MB"
#: Functions that write the scan in one format each, by name.
FORMATS = MAKERS | MICROSCOPES | BEAMLINES


def small_scan() -> Scan:
    """Return a scan of X-rays on a raster, whose counts fit into a byte."""
    made = simulate(checked(kind="xray", views=ROWS * ROWS, window=128, scan="raster", seed=3, photons_per_view=1.5e4))
    scan = made.measurement
    pixel = scan.geometry.object_pixel_m
    counts = np.fft.fftshift(scan.patterns.read(np.arange(scan.views)), axes=(1, 2))
    places = np.asarray(scan.positions) * pixel
    step = float(np.abs(np.diff(places[:, 1])).min())
    energy = float(scan.geometry.energy_eV)
    counts = np.minimum(counts, 255).astype(np.uint8)
    return Scan(counts, places, energy, float(pixel[0]), step, np.asarray(scan.probe))


def load(path: Path, data: dict[str, Any], positions: dict[str, Any]) -> pm.Measurement:
    """Return the measurement of a file."""
    options = DataOptions.parse({"path": path} | data, "data"), PositionOptions.parse(positions, "positions")
    return load_measurement(*options)


def inspected(path: Path, data: dict[str, Any]) -> str:
    """Return what `ptymesh inspect` says of a file, or its sentence of refusal."""
    settings = [f"--set=data.{name}={value}" for name, value in data.items()]
    command = [sys.executable, "-m", "ptymesh", "inspect", path.name, *settings]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, timeout=300, check=False)
    lines = (done.stdout if done.returncode == 0 else done.stderr).splitlines()
    said = "\n".join(line.rstrip() for line in lines if line.strip())
    return said.replace(f"{path.parent}/", "").replace(str(path.parent), "its folder")


def readers(scratch: Path, samples: Path | None) -> dict[str, Any]:
    """Return what is said of each format's file, and whether it is reconstructed."""
    scan, rows, bits = small_scan(), {}, {}
    for name, make in FORMATS.items():
        folder = scratch / name
        folder.mkdir()
        path, data, positions = make(folder, scan)
        rows[name] = {"said": inspected(path, data)}
        try:
            result = pm.reconstruct(load(path, data, positions), pm.RPIE(epochs=20, batch=32))
        except pm.PtymeshError as error:
            rows[name]["refused"] = str(error)
            continue
        residual = np.asarray(result.history["residual"])
        rows[name]["verdict"] = str(result.verdict)
        rows[name]["residual"] = [float(residual[0]), float(residual[-1])]
        bits[name] = hashlib.sha256(np.ascontiguousarray(result.object).tobytes()).hexdigest()
    for name, digest in bits.items():
        rows[name]["same_bits_as_npy"] = digest == bits["npy"]
    others = sorted(one for one in samples.iterdir() if one.is_file()) if samples and samples.is_dir() else []
    return {"made": rows, "samples": {one.name: inspected(one, {}) for one in others}}


def sparse() -> dict[str, Any]:
    """Return what the test of large files says."""
    test = HERE.parent / "tests" / "io" / "formats" / "test_large_files.py"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "long", "-p", "no:cacheprovider", str(test)]
    done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, timeout=900, check=False)
    return {"passed": done.returncode == 0, "said": done.stdout.strip().splitlines()[-1:]}


#: Memory is the kernel's VmHWM: the largest resident set that `getrusage` says begins with that of the parent.
PROGRAM = """
import json, re, sys, time
import numpy as np
data = json.loads(sys.argv[1])
start = time.monotonic()
import ptymesh as pm
from ptymesh.io import load_measurement
from ptymesh.io.options import DataOptions, PositionOptions
import hashlib
peak = lambda: 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
before, began = peak(), time.monotonic()
scan = load_measurement(DataOptions.parse(data["data"], "data"), PositionOptions.parse(data["positions"], "positions"))
loaded, seconds = peak(), time.monotonic() - began
recon = pm.Reconstruction(scan, memory_budget=data["budget"], scratch=data["scratch"])
for report in recon.run(pm.RPIE(epochs=2, batch=64)):
    pass
digest = hashlib.sha256(np.ascontiguousarray(recon.object).tobytes()).hexdigest()
print(json.dumps({"imported_bytes": before, "loaded_bytes": loaded, "load_s": seconds, "most_bytes": peak(),
                  "kind": recon.problem.loader.patterns.kind, "object": digest, "views": scan.views}))
"""


def files(scratch: Path, side: int, budget: str) -> dict[str, Any]:
    """Return memory, seconds and bits of one raw file and of as many MATLAB files as there are views."""
    import json

    window, rng = 256, np.random.default_rng(5)
    raw, folder = scratch / "scan.raw", scratch / "frames"
    folder.mkdir()
    y, x = np.mgrid[:window, :window] - window // 2
    mean = 40 * np.exp(-(y**2 + x**2) / 2000.0)
    with raw.open("wb") as file:
        for number in range(side * side):
            frame = rng.poisson(mean).astype(np.uint8)
            file.write(frame.tobytes())
            path = folder / f"frame_{number + 1:05d}.mat"
            with h5py.File(path, "w", userblock_size=512, libver="earliest") as one:
                one["cbed"] = frame.T
            matlab_header(path)
    beam = {"energy_eV": 80e3, "radiation": "electron", "object_pixel_m": 2e-11}
    raster = {"raster": {"shape": [side, side], "step_m": 1e-10}}
    as_raw = {"path": str(raw), "raw": {"pixels": [window, window], "dtype": "uint8"}}
    cases: dict[str, dict[str, Any]] = {
        "64 views": as_raw | {"views": {"central": 64}},
        "one raw file": as_raw,
        f"{side * side} MATLAB files": {
            "path": str(folder / "frame_00001.mat"),
            "further": [str(folder / "frame_*.mat")],
        },
    }
    found: dict[str, Any] = {"bytes": raw.stat().st_size, "memory_budget": budget}
    size = int(float(budget.removesuffix("MB")) * 1e6)
    for name, data in cases.items():
        said = {"data": data | beam, "positions": raster, "budget": size, "scratch": str(scratch)}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps(said)], capture_output=True, text=True, timeout=3600, check=False
        )
        if done.returncode:
            found[name] = {"refused": done.stderr.strip().splitlines()[-1:]}
            continue
        found[name] = json.loads(done.stdout.splitlines()[-1])
        floor = found["64 views"].get("most_bytes", found[name]["imported_bytes"])
        found[name]["beyond_64_views_in_budgets"] = (found[name]["most_bytes"] - floor) / size
    objects = {found[name].get("object") for name in list(cases)[1:]}
    return found | {"same_bits": len(objects) == 1 and None not in objects}


def drop_cache(path: Path) -> None:
    """Write a file to the disk, and let go of its pages in memory."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def seconds_of(read: Any, path: Path, turns: int) -> list[float]:
    """Return the seconds of reading a file whose pages are not in memory, several times."""
    found = []
    for _ in range(turns):
        drop_cache(path)
        start = time.perf_counter()
        read()
        found.append(time.perf_counter() - start)
    return found


def rates(scratch: Path, megabytes: int, turns: int) -> dict[str, Any]:
    """Return bytes per second of raw formats beside `dd`'s, and of compressed HDF5 beside h5py's alone."""
    frame = (256, 256)
    views = megabytes * 10**6 // (2 * frame[0] * frame[1])
    counts = np.random.default_rng(0).poisson(9, (views, *frame)).astype("<u2")
    np.save(scratch / "scan.npy", counts)
    counts.tofile(scratch / "scan.raw")
    text = f"MQ1,000001,00384,01,{frame[1]:04d},{frame[0]:04d},U16,   1x1,01,2026-11-28 18:00:00".encode().ljust(384)
    with (scratch / "scan.mib").open("wb") as file:
        for one in counts:
            file.write(text + one.astype(">u2").tobytes())
    with h5py.File(scratch / "scan.h5", "w") as packed:
        packed.create_dataset("frames", data=counts, chunks=(1, *frame), **hdf5plugin.Bitshuffle())
    beam = {"energy_eV": 80e3, "radiation": "electron", "object_pixel_m": 2e-11}
    raster = {"raster": {"shape": [1, views], "step_m": 1e-10}}
    cases: dict[str, dict[str, Any]] = {
        "scan.npy": {},
        "scan.raw": {"raw": {"pixels": list(frame), "dtype": "uint16"}},
        "scan.mib": {"frames": {"shape": [1, views]}},
        "scan.h5": {"keys": {"patterns": "/frames"}},
    }
    found: dict[str, Any] = {"bytes": counts.nbytes, "turns": turns}
    for name, data in cases.items():
        path = scratch / name
        scan = load(path, data | beam, raster)

        def patterns(scan: pm.Measurement = scan) -> None:
            for start in range(0, scan.views, 64):
                scan.patterns.read(np.arange(start, min(start + 64, scan.views)))

        def stored(source: Any = scan.patterns.raw) -> None:  # type: ignore[attr-defined]
            for start in range(0, views, 64):
                source.read(np.arange(start, min(start + 64, views)), slice(0, frame[0]), slice(0, frame[1]))

        def beside(path: Path = path) -> None:
            if path.suffix == ".h5":
                with h5py.File(path) as file:
                    for start in range(0, views, 64):
                        file["frames"][start : start + 64]
            else:
                command = ["dd", f"if={path}", "of=/dev/null", "bs=8M", "status=none"]
                subprocess.run(command, check=True)

        seconds = {"stored_s": stored, "prepared_s": patterns, "theirs_s": beside}
        timed = {key: seconds_of(read, path, turns) for key, read in seconds.items()}
        best = min(timed["theirs_s"])
        ratios = {f"{key}_ratio": best / min(timed[f"{key}_s"]) for key in ("stored", "prepared")}
        found[name] = timed | ratios
    return found


def main() -> None:
    """Runs the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=PARTS, help=f"of {', '.join(PARTS)}; all unless given")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--samples", type=Path, default=Path(os.environ.get("PTYMESH_DATA", ".")) / "readers")
    parser.add_argument("--side", type=int, default=127, help="of the scan in many files")
    parser.add_argument("--budget", default=BUDGET)
    parser.add_argument("--megabytes", type=int, default=1000, help="of each file whose rate is measured")
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    found = record.about()
    for part in args.parts:
        with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
            if part == "readers":
                found[part] = readers(Path(folder), args.samples)
            elif part == "sparse":
                found[part] = sparse()
            elif part == "files":
                found[part] = files(Path(folder), args.side, args.budget)
            elif part == "rates":
                found[part] = rates(Path(folder), args.megabytes, args.turns)
            else:
                parser.error(f"{part} is no part; there are {', '.join(PARTS)}")
        record.write(args.out, found)
        print(f"{part} done", flush=True)


if __name__ == "__main__":
    main()
