"""Speeds of engines against a floor that is measured beside them: `ptymesh bench`, and the floor.

    python benchmarks/floor.py siemens-star-small.npz.bz2 --epochs 15 --out floor.json
    python benchmarks/floor.py --batches 16,256 --turns            # simulated scans; options as of `ptymesh bench`

The floor is the fastest that a batch could be: its Fourier transforms on a CPU, its memory traffic on a GPU. It is
measured between the epochs, so that both see the same machine; speeds are those of the median epoch, floors medians.

A view-mode is one mode of one view. What a sweep cannot do without, per view-mode of h x w pixels in single precision:

CPU     a forward and an inverse FFT, timed with torch in chunks of the size that suits the cache best
GPU     96 h w bytes at the bandwidth of a copy on the device: a wave of 8 bytes a pixel, six times read and six times
        written

Both count once in the far field; Fourier sub-pixel positions shift the probe and its gradient, which doubles them; a
near-field detector needs a second pair of transforms too. In double precision bytes and arithmetic are timed as such.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from record import about, write

from ptymesh.cli.dataset import load_dataset
from ptymesh.distributed.devices import device_for
from ptymesh.measurement import Measurement
from ptymesh.run import machine
from ptymesh.run.speed.bench import Measured, Plan, scans_of

#: View-modes in one call of the FFT that are tried on a CPU.
CHUNKS = tuple(2**n for n in range(10))
#: Seconds for which a chunk size is timed, and those of one sample beside an epoch.
TRY_S, SAMPLE_S = 0.06, 0.1
#: Bytes per pixel and view-mode that a GPU must move, single precision.
BYTES_PER_PIXEL = 96
#: Bytes of the array that is copied to learn a GPU's bandwidth (if it has room), more than any cache holds.
COPY_BYTES = 1 << 30


def pairs(propagation: str, subpixel: str) -> int:
    """Pairs of transforms per view-mode."""
    return 1 + (propagation != "far_field") + (subpixel == "fourier")


@dataclass
class Floor:
    """View-modes per second of one pair of transforms.

    Args:
        window: (h, w).
        device: decides how it is measured.
        dtype: complex64 or complex128.
        chunks: view-modes per call that are tried (CPU).
        clock: that times transforms; `time.process_time` on cores that others keep busy.

    `tried` holds what each of them gave, `chunk` the best; `sample` measures once more.
    """

    window: tuple[int, int]
    device: torch.device
    dtype: torch.dtype = torch.complex64
    chunks: tuple[int, ...] = CHUNKS
    clock: Callable[[], float] = time.perf_counter
    tried: dict[int, float] = field(default_factory=dict)
    chunk: int = 0

    def __post_init__(self) -> None:
        if self.device.type == "cuda":
            return
        self.tried = {chunk: self._transforms(chunk, TRY_S) for chunk in self.chunks}
        self.chunk = max(self.tried, key=lambda chunk: self.tried[chunk])

    def sample(self) -> float:
        """View-modes per second of one pair of transforms (the bytes of one sweep), as the machine is now."""
        if self.device.type == "cuda":
            size = self.dtype.itemsize / torch.complex64.itemsize
            return self.bandwidth() / (BYTES_PER_PIXEL * size * self.window[0] * self.window[1])
        return self._transforms(self.chunk, SAMPLE_S)

    def bandwidth(self) -> float:
        """Bytes per second, read and written, of copies on the device."""
        size = min(COPY_BYTES, torch.cuda.mem_get_info(self.device)[0] // 4)
        source = torch.empty(size, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        target.copy_(source)
        torch.cuda.synchronize(self.device)
        began, copies = time.perf_counter(), 20
        for _ in range(copies):
            target.copy_(source)
        torch.cuda.synchronize(self.device)
        return 2 * size * copies / (time.perf_counter() - began)

    def _transforms(self, chunk: int, seconds: float) -> float:
        waves = torch.randn(chunk, *self.window, dtype=self.dtype)
        there, back = torch.empty_like(waves), torch.empty_like(waves)
        began, done = self.clock(), 0
        while (elapsed := self.clock() - began) < seconds or not done:
            torch.fft.fft2(waves, norm="ortho", out=there)
            torch.fft.ifft2(there, norm="ortho", out=back)
            done += chunk
        return done / elapsed


def speeds(plan: Plan, scan: Measurement | None) -> list[dict[str, Any]]:
    """Each case of a plan: the fields of its Speed, the floor, and the fraction of it that was reached."""
    device, dtype = device_for(plan.device, 0), torch.complex64 if plan.precision == "single" else torch.complex128
    floors: dict[tuple[int, int], Floor] = {}
    cases, scans, found = plan.cases(scan is not None), scans_of(plan, scan), []
    for group in [cases] if plan.turns else [[case] for case in cases]:
        beside = [Measured(case, plan, scans(case), device) for case in group]
        samples: list[list[float]] = [[] for _ in beside]
        for _, (measured, own) in itertools.product(range(plan.epochs + 1), zip(beside, samples, strict=True)):
            window = measured.scan.window
            floor = floors[window] if window in floors else floors.setdefault(window, Floor(window, device, dtype))
            measured.step()
            own.append(floor.sample())
        for measured, own in zip(beside, samples, strict=True):
            speed = measured.speed()
            limit = statistics.median(own) / pairs(measured.scan.geometry.propagation, speed.subpixel)
            reached = {"floor_view_modes_per_s": limit, "fraction": speed.view_modes_per_s / limit}
            found.append({**asdict(speed), **reached})
            shown = f"{speed.engine} window {speed.window[0]} modes {speed.modes} batch {speed.batch} {speed.subpixel}"
            print(
                f"{shown}: {speed.view_modes_per_s:.0f} view-modes/s, {reached['fraction']:.0%} of the floor",
                flush=True,
            )
    return found


def main() -> None:
    """All combinations of the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, nargs="?", help="data set or recipe; simulated scans without one")
    for name, default in (("engines", "rpie,lsqml,adam"), ("subpixel", "none,fourier")):
        parser.add_argument(f"--{name}", default=default, type=lambda text: tuple(text.split(",")))
    for name, text in (("modes", "1,4"), ("batches", "64"), ("windows", "128"), ("objects", "")):
        parser.add_argument(f"--{name}", default=text, type=lambda text: tuple(int(n) for n in text.split(",") if n))
    parser.add_argument("--views", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="single")
    parser.add_argument("--turns", action="store_true")
    parser.add_argument("--busy-ok", action="store_true")
    parser.add_argument("--out", type=Path, help="JSON file")
    given = vars(parser.parse_args())
    path, out, busy_ok, sides = (given.pop(name) for name in ("path", "out", "busy_ok", "objects"))
    plan = Plan(**given, sides=sides)
    if not busy_ok:
        machine.refuse_if_busy()
    torch.set_num_threads(plan.threads or torch.get_num_threads())
    here = about(plan.device)
    scan = None if path is None else load_dataset(path, [])
    data = {"data": "simulated" if scan is None else scan.name, "turns": plan.turns}
    write(out, {**here, **data, "cases": speeds(plan, scan)})


if __name__ == "__main__":
    sys.exit(main())
