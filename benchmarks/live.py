"""How well `ptymesh live` keeps up with a detector, and how good its picture is beside a run that has all frames.

    python benchmarks/live.py --out F [--rates 500 2000 10000] [--views 10000] [--bits 16] [--kill]

A simulated scan is played on one core, and `ptymesh live` reconstructs it on another one; the probe comes from an
earlier scan of another sample with the same beam. Latency is from the arrival of a frame at the receiver to the end of
the segment of updates that used it first. Beside it stands a run with all frames that uses each three times, and both
are polished by as many epochs; the picture 1 s after the last frame is compared with that run after as many uses as
that picture has seen, if these are one for each view. Errors are those of a quarter of the object against the truth.

Frames have numbers of 32 bits, as the simulated file has them; with --bits 16 what most detectors send at such rates.

With --work DIR scans and the run with all frames are kept there, and taken from there by the next call with the same
--views, so that each call can be short.

With --kill the receiver is killed in the middle of the first rate's stream and started anew; the frames that are on
disk at the end are compared with those of the scan.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import about, write

import ptymesh as pm
from ptymesh.compare import illuminated, illumination_of_result, object_error
from ptymesh.io.results import Result
from ptymesh.live.object_parts import paste

WINDOW, BATCH, USES, POLISHING = 128, 64, 3, 10
#: Uses of each view up to which the run with all frames is measured.
MOST_USES = 5
#: Views of the earlier scan, and epochs from which its probe comes.
EARLIER_VIEWS, EARLIER_EPOCHS = 400, 40
#: Pictures of a stream whose error is measured, at most.
MOST_PICTURES = 8
SERVE = """
import sys
from dataclasses import replace
import numpy
import ptymesh
from ptymesh.live.serving import serve_scan
scan = ptymesh.load(sys.argv[1])
counts = scan.patterns.read(numpy.arange(scan.views)).astype(f"u{int(sys.argv[4]) // 8}")
serve_scan(replace(scan, patterns=counts), sys.argv[2], float(sys.argv[3]))
"""
CORES = sorted(os.sched_getaffinity(0))
SOURCE, RECEIVER = CORES[0], CORES[-1]


def start(command: list[str], core: int, folder: Path) -> subprocess.Popen[str]:
    """Start a Python program on one core.

    Args:
        command: what follows `python`.
        core: number of the core.
        folder: where it runs.
    """
    return subprocess.Popen(
        [sys.executable, "-P", *command],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),  # this program has no threads that could hold a lock
    )


def finish(process: subprocess.Popen[str], name: str) -> None:
    """Wait for a program; end this one if it fails."""
    if process.wait(timeout=580):
        sys.exit(f"{name} ended with status {process.returncode}")


def make_scan(folder: Path, views: int) -> None:
    """Simulate the scan and the earlier one, and reconstruct the probe of the latter, if that has not been done."""
    if (folder / "live.yaml").exists():
        return
    for name, count, seed in (("scan", views, 5), ("earlier", min(EARLIER_VIEWS, views), 6)):
        command = ["-m", "ptymesh", "simulate", f"{name}.cxi", "--views", str(count), "--window", str(WINDOW)]
        finish(start([*command, "--seed", str(seed), "--compression", "none"], RECEIVER, folder), "ptymesh simulate")
    recon = pm.Reconstruction(str(folder / "earlier.cxi"))
    for _ in recon.run(pm.RPIE(batch=BATCH), epochs=EARLIER_EPOCHS):
        pass
    recon.result().save(folder / "earlier.h5")
    (folder / "live.yaml").write_text(
        "data: {path: none.cxi}\n"
        "probe: {start: {kind: result, path: earlier.h5}}\n"
        f"stages: [{{engine: rpie, epochs: {POLISHING}, batch: {BATCH}}}]\n"
        "output: {figures: false}\n"
    )


def error(found: Path | Result, folder: Path) -> float:
    """Return the error of an object against the truth, over the illuminated pixels of one quarter of the scan.

    A quarter has views of the beginning and of the end alike, as the scan goes around its middle from there outwards.
    """
    result = Result.load(found) if isinstance(found, Path) else found
    truth = Result.load(folder / "scan.truth.h5")
    views = len(result.positions_px)
    moved = np.rint(np.median(result.positions_px - truth.positions_px[:views], axis=0)).astype(int)
    height, width = (side // 2 for side in truth.object.shape[-2:])
    known = truth.object[:, :height, :width]
    cut = torch.ones(known.shape, dtype=torch.complex64)
    paste(torch.from_numpy(np.asarray(result.object, np.complex64)), cut, -moved)
    lit = illuminated(illumination_of_result(truth))[:height, :width]
    return object_error(cut.numpy(), known, lit)


def measure_offline(folder: Path) -> dict[str, Any]:
    """Return errors of a run with all frames: after each use of all views, and after `USES` and as much polishing."""
    if (kept := folder / "offline.json").exists():
        return dict(json.loads(kept.read_text()))
    start_of_probe = {"kind": "result", "path": str(folder / "earlier.h5")}
    recon = pm.Reconstruction(str(folder / "scan.cxi"), probe={"start": start_of_probe})
    by_uses = []
    for _ in recon.run(pm.RPIE(batch=BATCH), epochs=MOST_USES):
        by_uses.append(error(recon.result(), folder))
    recon = pm.Reconstruction(str(folder / "scan.cxi"), probe={"start": start_of_probe})
    for epochs in (USES, POLISHING):
        for _ in recon.run(pm.RPIE(batch=BATCH), epochs=epochs):
            pass
    found = {"error": by_uses[USES - 1], "error_by_uses": by_uses, "error_polished": error(recon.result(), folder)}
    kept.write_text(json.dumps(found))
    return found


def is_same(folder: Path, out: Path, bits: int) -> dict[str, int]:
    """Return how many frames the spool lacks, and how many differ from those of the scan."""
    scan = pm.load(folder / "scan.cxi")
    wanted = np.fft.fftshift(scan.patterns.read(np.arange(scan.views)), axes=(-2, -1)).astype(f"u{bits // 8}")
    got = np.fromfile(out / "spool" / "frames.raw", wanted.dtype).reshape(-1, WINDOW, WINDOW)
    count = min(len(got), len(wanted))
    different = int((got[:count] != wanted[:count]).any(axis=(1, 2)).sum())
    return {"frames_lost": len(wanted) - count, "frames_changed": different}


def play(folder: Path, out: Path, rate: float, bits: int, *, kill: bool) -> list[Path]:
    """Stream the scan to `ptymesh live`, and return its pictures in their order.

    Args:
        folder: with the scan and the recipe.
        out: folder of the run.
        rate: frames per second.
        bits: of a number.
        kill: True to kill the receiver in the middle, and start it again.
    """
    socket = folder / "frames.ipc"
    source = start(["-c", SERVE, "scan.cxi", f"ipc://{socket}", str(rate), str(bits)], SOURCE, folder)
    while not socket.exists():  # it reads the scan first
        if source.poll() is not None:
            sys.exit(f"the source ended with status {source.returncode}")
        time.sleep(0.05)
    command = ["-m", "ptymesh", "live", "live.yaml", "--from", f"ipc://{socket}", "--out", str(out), "--timeout", "60"]
    receiver, live, pictures, seen = start(command, RECEIVER, folder), out / "live.h5", [], 0
    positions, half = out / "spool" / "positions.raw", 8 * pm.load(folder / "scan.cxi").views
    while receiver.poll() is None:
        if kill and positions.exists() and positions.stat().st_size >= half:
            receiver.send_signal(signal.SIGKILL)
            receiver.wait()
            receiver, kill = start(command, RECEIVER, folder), False
        if live.exists() and (node := live.stat().st_ino) != seen:
            pictures.append(out / f"picture-{len(pictures)}.h5")
            os.link(live, pictures[-1])  # keeps it: live.h5 is replaced, never written to again
            seen = node
        time.sleep(0.05)
    finish(receiver, "ptymesh live")
    finish(source, "the source")
    socket.unlink(missing_ok=True)
    return pictures


def uses_of(picture: Path, out: Path) -> float:
    """Return how often a picture's views have been used, on average over all frames of the stream.

    Args:
        picture: a live.h5.
        out: folder of its run, whose live.jsonl has the views of each segment.
    """
    rows = [json.loads(line) for line in (out / "live.jsonl").read_text().splitlines()]
    return sum(row["views"] for row in rows[: int(Result.load(picture).attrs["segments"])]) / rows[-1]["frames"]


def measure(folder: Path, rate: float, offline: dict[str, Any], bits: int, *, kill: bool = False) -> dict[str, Any]:
    """Return what came out of one stream.

    Args:
        folder: with the scan and the recipe.
        rate: frames per second.
        offline: errors of a run with all frames (`measure_offline`).
        bits: of a number.
        kill: True to kill the receiver in the middle.
    """
    out = folder / f"out-{rate:g}{'-killed' if kill else ''}"
    pictures = play(folder, out, rate, bits, kill=kill)
    found = json.loads((out / "live.json").read_text())
    last_frame = found["seconds"] - found["after_s"]
    attrs = {one: Result.load(one).attrs for one in pictures}
    chosen = sorted({int(k) for k in np.linspace(0, len(pictures) - 1, min(MOST_PICTURES, len(pictures)))})
    shown = [one for one in pictures if attrs[one]["seconds"] <= last_frame + 1]
    at = {one: error(one, folder) for one in {*shown[-1:], *(pictures[k] for k in chosen)}}
    live, polished = error(out / "live.h5", folder), error(out / "result.h5", folder)
    used = uses_of(shown[-1], out) if shown else None
    epochs = range(1, len(offline["error_by_uses"]) + 1)
    alike = None if used is None or used < 1 else float(np.interp(used, epochs, offline["error_by_uses"]))
    row = {
        "rate": rate,
        "killed": kill,
        "bits": bits,
        **is_same(folder, out, bits),
        **found,
        "last_frame_s": last_frame,
        "offline_error": offline["error"],
        "error_1_s_after": at[shown[-1]] if shown else None,
        "uses_1_s_after": used,
        "offline_error_of_as_many_uses": alike,
        "error_live": live,
        "error_live_of_offline": live / offline["error"],
        "error_polished": polished,
        "error_polished_of_offline": polished / offline["error_polished"],
        "pictures": [
            {"seconds": float(attrs[one]["seconds"]), "frames": int(attrs[one]["frames"]), "error": at[one]}
            for one in pictures
            if one in at
        ],
    }
    shutil.rmtree(out)
    return row


def describe(row: dict[str, Any]) -> str:
    """Return a line on a stream: uses, latency, time on the processor, errors."""
    late, uses, shown = row["latency_median_s"], row["uses_at_end_of_stream"]["mean"], row["error_1_s_after"]
    first = "none" if late is None else f"{late:.2f} s"
    alike = row["offline_error_of_as_many_uses"]
    soon = "none" if shown is None or alike is None else f"{shown / alike:.3f}"
    return (
        f"{row['rate']:g}/s: {uses:.2f} uses at the last frame, {first} to the first (median), "
        f"{row['views_per_s']:.0f} views/s, {1e3 * row['cpu_s_per_view']:.2f} ms on the processor for each; "
        f"error of offline after as many uses {soon} 1 s after the last frame, after three "
        f"{row['error_live_of_offline']:.3f} after {row['after_s']:.1f} s, "
        f"{row['error_polished_of_offline']:.3f} polished; {row['frames_lost']} lost, {row['frames_changed']} changed"
    )


def main() -> None:
    """Run all streams, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--views", type=int, default=10000, help="frames of the stream")
    parser.add_argument("--rates", type=float, nargs="+", default=[500, 2000, 10000], help="frames per second")
    parser.add_argument("--bits", type=int, default=32, choices=[16, 32], help="of a number of a frame")
    parser.add_argument("--kill", action="store_true", help="also kill the receiver in the middle, at the first rate")
    parser.add_argument("--work", type=Path, metavar="DIR", help="folder that keeps the scans between calls")
    parser.add_argument("--out", type=Path, help="file that the numbers are written to, as JSON")
    arguments = parser.parse_args()
    if len(CORES) < 2:
        sys.exit("The source and the reconstruction need a core each, and this process has one.")
    found: dict[str, Any] = {**about(threads=1), "views": arguments.views, "window": WINDOW, "streams": []}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) if arguments.work is None else (arguments.work / str(arguments.views)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        make_scan(folder, arguments.views)
        offline = found["offline"] = measure_offline(folder)
        print(f"offline: {offline}", flush=True)
        runs = [(rate, False) for rate in arguments.rates] + [(arguments.rates[0], True)] * arguments.kill
        for rate, kill in runs:
            row = measure(folder, rate, offline, arguments.bits, kill=kill)
            found["streams"].append(row)
            print(describe(row), flush=True)
            write(arguments.out, found)


if __name__ == "__main__":
    main()
