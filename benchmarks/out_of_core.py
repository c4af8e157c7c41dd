"""A data set of four times the memory budget, swept from disk, beside the same with its patterns in memory.

    python benchmarks/out_of_core.py [--views 4000] [--object 1800] [--engine rpie] [--epochs 3] [--scratch DIR]
                                     [--data scan.cxi] [--budget SIZE] [--device auto] [--out out_of_core.json]

Simulates a scan of 128 x 128 patterns (or takes --data), reconstructs it in turns with and without a budget, from the
same start, and compares the answers bit by bit. What is staged never stays in the page cache (it is flushed, and
dropped again after each read); on Linux the bytes that really came from the device are counted beside those asked for.
The disk's bandwidth is that of the same file: patterns in random order, and in order, with nothing computed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import record

import ptymesh as pm
from ptymesh.engines import ENGINES
from ptymesh.measurement import Measurement
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked
from ptymesh.storage.patterns import Patterns, size

PIECE = 64


def from_device() -> int | None:
    """Bytes that the disks have delivered to this process, where the system counts them."""
    counters = Path("/proc/self/io")
    if not counters.exists():
        return None
    return next(int(line.split()[1]) for line in counters.read_text().splitlines() if line.startswith("read_bytes"))


def reconstructed(scan: Measurement, args: argparse.Namespace, budget: int | None) -> tuple[np.ndarray, dict[str, Any]]:
    """The object, and seconds per epoch, seconds that were waited for patterns, bytes that were read."""
    recon = pm.Reconstruction(scan, memory_budget=budget, scratch=args.scratch, device=args.device)
    kept = recon.problem.loader.patterns
    waited, fetched, read = kept.waited_s, kept.fetched_bytes, from_device()
    worked = time.process_time()
    seconds = [report.seconds for report in recon.run(ENGINES[args.engine](epochs=args.epochs, batch=args.batch))]
    worked = (time.process_time() - worked) / args.epochs
    numbers: dict[str, Any] = {"kind": kept.kind, "epoch_s": seconds, "processor_s": worked}
    if kept.kind == "disk":
        numbers |= {"waited_s": kept.waited_s - waited, "fetched_bytes": kept.fetched_bytes - fetched}
        numbers["from_device_bytes"] = None if read is None else from_device() - read  # type: ignore[operator]
        numbers |= {f"{order}_bytes_per_s": bandwidth(kept, order) for order in ("random", "sequential")}
    recon.close()
    return recon.object, numbers


def bandwidth(kept: Patterns, order: str) -> float:
    """Bytes per second of all patterns, nothing computed."""
    rows = np.arange(len(kept))
    began = time.perf_counter()
    for _ in kept.sweep(np.random.default_rng(0).permutation(rows) if order == "random" else rows, PIECE):
        pass
    return kept.nbytes / (time.perf_counter() - began)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--views", type=int, default=4000)
    parser.add_argument("--object", type=int, default=1800)
    parser.add_argument("--engine", default="rpie", choices=list(ENGINES))
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--budget", type=float, help="bytes; a quarter of the patterns unless given")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    here = record.about()
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        path = args.data or Path(folder) / "scan.cxi"
        if args.data is None:
            options = checked(views=args.views, window=128, object_px=args.object, scan="raster", photons_per_view=5e4)
            write(options, path, compression=None)
        scan = pm.load(path)
        total = int(np.prod(scan.patterns.shape)) * scan.patterns.dtype.itemsize
        budget = int(args.budget or total / 4)
        runs = [reconstructed(scan, args, chosen) for _ in range(args.turns) for chosen in (None, budget)]
    same = all(np.array_equal(found, runs[0][0]) for found, _ in runs)
    memory, disk = (
        [numbers for _, numbers in runs if (numbers["kind"] == "disk") == on_disk] for on_disk in (False, True)
    )
    best = [min(second for one in group for second in one["epoch_s"]) for group in (memory, disk)]
    work = [min(one["processor_s"] for one in group) for group in (memory, disk)]
    passes = sum(one["fetched_bytes"] for one in disk) / total
    read = [one["from_device_bytes"] for one in disk]
    share = "not counted here" if None in read else f"{sum(read) / sum(one['fetched_bytes'] for one in disk):.0%}"
    waited = sum(one["waited_s"] for one in disk) / sum(sum(one["epoch_s"]) for one in disk)
    speeds = [max(one[f"{order}_bytes_per_s"] for one in disk) for order in ("random", "sequential")]
    rows = [
        ("patterns, memory budget", f"{size(total)}, {size(budget)}"),
        ("engine, batch, epochs x turns", f"{args.engine}, {args.batch}, {args.epochs} x {args.turns}"),
        (f"an epoch, patterns in memory ({memory[0]['kind']})", f"{best[0]:.2f} s, {scan.views / best[0]:.0f} views/s"),
        ("an epoch, patterns on disk", f"{best[1]:.2f} s, {scan.views / best[1]:.0f} views/s"),
        ("ratio", f"{best[1] / best[0]:.3f}"),
        ("ratio of processor seconds, which others disturb less", f"{work[1] / work[0]:.3f}"),
        ("share of the time that was spent waiting", f"{waited:.1%}"),
        ("read per epoch, in passes over the data", f"{passes / (args.epochs * args.turns):.2f}"),
        ("of it from the device, not the page cache", share),
        ("the sweep needs", f"{size(total / best[0])}/s"),
        ("the disk gives, random and in order", f"{size(speeds[0])}/s, {size(speeds[1])}/s"),
        ("answers", "the same bits" if same else "DIFFERENT"),
    ]
    for name, value in rows:
        print(f"{name:56}{value}")
    record.write(args.out, here | {"table": dict(rows), "runs": [numbers for _, numbers in runs]})


if __name__ == "__main__":
    main()
