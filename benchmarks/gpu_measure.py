"""The process in which benchmarks/gpu.py has rows measured: a row of JSON comes in, one with what was found goes out.

A row that fails says why, and the next one is measured; if the device is lost, or a row takes too long, gpu.py starts
another process. Scans are made up on the device, for only speed counts: a smooth phase object, a defocused disk as the
probe, counts of 1e5 photons a view.

N, B, M     views, views of a batch, modes
h, w        window pixels
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import ptymesh  # noqa: F401  before torch, so that both use the same threads

# isort: split
import numpy as np
import torch
from gpu_rows import Row, least_bytes, moved_bytes
from torch import Tensor

from ptymesh.distributed.devices import Later, device_for
from ptymesh.distributed.world import Solo
from ptymesh.engines import ENGINES
from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.kernels import VARIABLE
from ptymesh.measurement import ArraySource, Measurement
from ptymesh.physics.propagate import try_transforms
from ptymesh.problem import chunk_sizes
from ptymesh.run import machine
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.run_folder.reports import BatchReport, Callback, EpochReport

Found = dict[str, Any]
PEERS = Path(__file__).parent / "peers"
#: Seconds of epochs that are timed, and how many these are at least and at most.
TIMED_S, FEWEST, MOST = 0.8, 3, 20
#: Bytes that are copied to learn the card's rate, more than its caches hold, and how often.
COPY_BYTES, COPIES = 1 << 30, 7
#: Views that patterns are made of at a time, and photons of each.
TOGETHER, PHOTONS = 64, 1e5
#: Kernels that a profile names.
NAMED = 14
#: Turns with a peer.
TURNS = 3
WAVELENGTH_M, PIXEL_M, SPACING_M = 2e-12, 2e-11, 2e-9


# --- the scan ---


@lru_cache(maxsize=1)
def scan(window: int, views: int, device: torch.device) -> Measurement:
    """A scan of so many views on a raster of sixteenths of a window, with fractions, whose patterns follow from an
    object and a probe."""
    generator, side = np.random.default_rng(0), math.ceil(math.sqrt(views))
    raster = np.stack(np.divmod(np.arange(views), side), axis=1) * max(1.0, window / 16)
    positions = raster + generator.uniform(0, 1, (views, 2)) + 1
    extent = int(positions.max()) + window + 2
    probe, obj = disk(window, device), smooth(extent, device, generator)
    at = torch.from_numpy(np.floor(positions).astype(np.int64)).to(device)
    steps, made = torch.arange(window, device=device), np.empty((views, window, window), np.uint16)
    torch.manual_seed(0)
    for first in range(0, views, TOGETHER):
        y, x = (at[first : first + TOGETHER, axis, None] + steps for axis in (0, 1))
        waves = torch.fft.fft2(probe * obj[y[:, :, None], x[:, None, :]], norm="ortho")
        counts = torch.poisson(waves.real.square() + waves.imag.square()).clamp(max=2**15 - 1)
        made[first : first + TOGETHER] = counts.to(torch.int16).cpu().numpy().view(np.uint16)
    geometry = Geometry(
        (window, window), radiation="electron", wavelength_m=WAVELENGTH_M, object_pixel_m=(PIXEL_M, PIXEL_M)
    )
    mask = np.ones((window, window), dtype=bool)
    return Measurement(ArraySource(made), positions, geometry, mask, probe=probe.cpu().numpy()[None], name="made up")


def disk(window: int, device: torch.device) -> Tensor:
    """A defocused disk (h, w) complex64 of PHOTONS, with its axis in the middle."""
    k = torch.fft.fftfreq(window, dtype=torch.float32, device=device)
    k2 = k[:, None].square() + k.square()
    pupil = torch.polar((k2 < 0.15**2).float(), 0.1 * window**2 * k2 * math.pi)
    focus = torch.fft.fftshift(torch.fft.ifft2(pupil))
    return focus * math.sqrt(PHOTONS) / torch.linalg.vector_norm(focus)


def smooth(extent: int, device: torch.device, generator: np.random.Generator) -> Tensor:
    """An object (extent, extent) of phase alone, whose details are some pixels wide."""
    k = torch.fft.fftfreq(extent, dtype=torch.float32, device=device)
    noise = torch.from_numpy(generator.normal(size=(extent, extent)).astype(np.float32)).to(device)
    phase = torch.fft.ifft2(torch.fft.fft2(noise) * torch.exp(-200 * (k[:, None].square() + k.square()))).real
    return torch.polar(torch.ones_like(phase), phase / phase.abs().max())


# --- ptymesh ---


class Watch(Callback):
    """Notes of each batch when it was queued, and where in the device's queue it ends; of each epoch its report."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.waited_s = device, 0.0
        self.marks: list[tuple[float, float, Any]] = []
        #: Seconds of a batch of each epoch, by (wall, host, device).
        self.batches: list[tuple[float, float, float | None]] = []

    def batch(self, report: BatchReport) -> None:
        """The batch has been queued."""
        event = None
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        self.marks.append((time.perf_counter(), self.waited_s, event))

    def epoch(self, report: EpochReport) -> None:
        """The epoch is over, and so is what the device was asked to do."""
        marks, self.marks = self.marks, []
        count = len(marks) - 1
        if count < 1:
            return
        (began, waited, first), (ended, waited_then, last) = marks[0], marks[-1]
        on_device = None
        if first is not None:
            last.synchronize()
            on_device = 1e-3 * first.elapsed_time(last) / count
        wall = (ended - began) / count
        self.batches.append((wall, wall - (waited_then - waited) / count, on_device))

    @contextmanager
    def timing_waits(self) -> Iterator[None]:
        """What the loop waits for the device between batches is noted."""
        last = Later.last

        def timed(later: Later) -> float:
            began = time.perf_counter()
            try:
                return last(later)
            finally:
                self.waited_s += time.perf_counter() - began

        Later.last = timed  # type: ignore[method-assign]
        try:
            yield
        finally:
            Later.last = last  # type: ignore[method-assign]


@contextmanager
def chosen(row: Row, device: torch.device) -> Iterator[None]:
    """The row's kernels and chunks."""
    before, chunk = os.environ.get(VARIABLE), chunk_sizes.CHUNK_BYTES[device.type]
    os.environ[VARIABLE] = row.kernels
    if row.chunk_mib:
        chunk_sizes.CHUNK_BYTES[device.type] = row.chunk_mib << 20
    try:
        yield
    finally:
        chunk_sizes.CHUNK_BYTES[device.type] = chunk
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def started(row: Row, device: torch.device, watch: Watch) -> Iterator[EpochReport]:
    """Epochs of a reconstruction as users have them, watched."""
    options = {"slices": row.slices, "slice_spacing_m": SPACING_M} if row.slices > 1 else {}
    recon = Reconstruction(
        scan(row.window, row.scan_views(), device),
        probe_modes=row.modes,
        object=options,
        subpixel=row.subpixel,  # type: ignore[arg-type]
        device=Solo(device),
    )
    recon.stages.append(ENGINES[row.engine](epochs=1 + MOST, batch=row.batch))
    return recon.loop(callbacks=[watch]).epochs()


def speed(row: Row, device: torch.device) -> Found:
    """Views per second of the median epoch after the first, and what a batch takes host and device."""
    watch, seconds = Watch(device), []
    machine.forget_peak(device)
    with chosen(row, device), watch.timing_waits():
        epochs = started(row, device, watch)
        first = next(epochs)
        watch.batches.clear()
        while len(seconds) < FEWEST or (sum(seconds) < TIMED_S and len(seconds) < MOST):
            report = next(epochs)
            seconds.append(report.seconds)
    views = row.scan_views()
    per_s = views / statistics.median(seconds)
    found: Found = {
        "views": views,
        "first_epoch_s": first.seconds,
        "epoch_s": seconds,
        "views_per_s": per_s,
        "view_modes_per_s": per_s * row.modes,
        "least_bytes": least_bytes(row),
        "moved_bytes": moved_bytes(row),
        "peak_bytes": machine.peak_bytes(device),
        "residual": report.residual,
    }
    return found | of_batches(row, watch)


def of_batches(row: Row, watch: Watch) -> Found:
    """Seconds of a batch, of the median epoch: from one to the next, of the host, of the device's queue; and the speed
    within batches, without what an epoch does once."""
    if not watch.batches:
        return {}
    wall, host, on_device = zip(*watch.batches, strict=True)
    found: Found = {"batch_s": statistics.median(wall), "host_s": statistics.median(host)}
    if on_device[0] is not None:
        found["device_s"] = statistics.median(on_device)
    found["host_share"] = found["host_s"] / found["batch_s"]
    found["views_per_s_within"] = row.batch / found["batch_s"]
    return found


def profile(row: Row, device: torch.device) -> Found:
    """What the device spends an epoch with, by kernel, the longest first."""
    from torch.profiler import ProfilerActivity

    kinds = [ProfilerActivity.CUDA] if device.type == "cuda" else [ProfilerActivity.CPU]
    watch = Watch(device)
    with chosen(row, device):
        epochs = started(row, device, watch)
        next(epochs), next(epochs)
        with torch.profiler.profile(activities=kinds) as record:
            report = next(epochs)
    own = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    kernels = sorted(((e.key, e.count, float(getattr(e, own))) for e in record.key_averages()), key=lambda k: -k[2])
    batches, total = row.scan_views() // row.batch, sum(us for *_, us in kernels)
    if not total:
        return {"failed": "the profiler has seen no kernel"}
    return {
        "epoch_s": [report.seconds],
        "batches": batches,
        "busy_s": 1e-6 * total,
        "kernels": [
            {"name": name[:120], "per_batch": count / batches, "us_per_batch": us / batches, "share": us / total}
            for name, count, us in kernels[:NAMED]
        ],
    }


# --- peers ---


def peer(row: Row, device: torch.device, folder: str) -> Found:
    """A peer and ptymesh on the same card in turns, as in benchmarks/peers/compare.py; folder: the peer's environment,
    or what pip installed with --target, or "" for this Python's own."""
    sys.path.insert(0, str(PEERS))
    import compare

    python = compare.python_of(Path(folder)) if folder else Path(sys.executable)
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))}
    made = scan(row.window, row.scan_views(), device)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "scan.npz"
        assert made.probe is not None
        counts = made.patterns.read(np.arange(made.views)).astype(np.float32)
        np.savez(path, data=counts[None], scan=made.positions[None], probe=made.probe[None, None, None])
        given = argparse.Namespace(
            star=path,
            batch=row.batch,
            turns=TURNS,
            threads=torch.get_num_threads(),
            device=device.type,
            subpixel=row.subpixel,
            slices=row.slices,
            inner=0,
            positions=False,
        )
        with chosen(row, device):  # which our process takes over
            found = compare.side_by_side(
                python, f"{row.peer}_run.py", row.engine, row.modes, given, made.views, environment if folder else {}
            )
    return {"views": made.views, "views_per_s": found["ptymesh_views_per_s"], **found}


# --- the card ---


def card(device: torch.device, windows: tuple[int, ...]) -> Found:
    """What the machine is, the bytes per second that a copy on the device reads and writes (median), and whether a
    wave's transform has the same bits however many are transformed together."""
    even = {str(n): try_transforms(device, torch.complex64, (n, n)) for n in windows}
    about = machine.describe(device, torch.get_num_threads())
    return {"machine": about, "copy_bytes_per_s": copy_rate(device), "even_transforms": even}


def copy_rate(device: torch.device) -> float:
    """Bytes per second, read and written."""
    on_gpu = device.type == "cuda"
    size = min(COPY_BYTES, torch.cuda.mem_get_info(device)[0] // 4) if on_gpu else COPY_BYTES >> 6
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target, rates = torch.empty_like(source), []
    for _ in range(COPIES + 1):
        if on_gpu:
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        target.copy_(source)
        if on_gpu:
            torch.cuda.synchronize(device)
        rates.append(2 * size / (time.perf_counter() - began))
    return statistics.median(rates[1:])


# --- the process ---


def answer(act: Callable[[], Found], device: torch.device) -> Found:
    """What `act` finds, or why it failed, with the last line of its own code; the device's memory is free again."""
    try:
        found = act()
    except Exception as error:
        import traceback

        traceback.print_exc()
        found = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    if device.type == "cuda":
        import gc

        gc.collect()  # graphs and problems hold each other
        torch.cuda.empty_cache()
    return found


def main() -> None:
    """Answers lines on the standard output that gpu.py opened; what anybody prints goes to its log."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True)
    parser.add_argument("--peers-in", default="")
    given = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        device = device_for(given.device, 0)
    except BadInput as error:
        print(json.dumps({"failed": str(error)}), file=answers)
        return
    measures = {"speed": speed, "profile": profile, "peer": lambda row, on: peer(row, on, given.peers_in)}
    for line in sys.stdin:
        print(f"\n# {line.strip()}", flush=True)
        asked = json.loads(line)
        if "card" in asked:
            found = answer(lambda windows=tuple(asked["card"]): card(device, windows), device)
        else:
            row = Row.read(asked)
            found = answer(lambda row=row: measures[row.kind](row, device), device)
        print(json.dumps(found), file=answers)


if __name__ == "__main__":
    main()
