"""What all runs share: the Siemens star without ptymesh, the same starting modes, and how a run talks to others.

N, M        views, probe modes
h, w        window pixels

For compare.py, a run is a process that waits for a line on its standard input, does an epoch, and answers with a line
of JSON: epoch, seconds (of the epoch alone), loss (the program's own). Two such processes take turns.

For solution.py (`--snapshots`), it does epochs until its time is over, and saves what it has found as it goes.
"""

from __future__ import annotations

import argparse
import bz2
import json
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

#: What a program has found, in its own conventions; solution.py reads them.
Saved = dict[str, np.ndarray]


@dataclass(frozen=True)
class Star:
    """patterns (N, h, w) float32 with DC at the corner; positions (N, 2) pixels, y x; probe (h, w) complex64."""

    patterns: np.ndarray
    positions: np.ndarray
    probe: np.ndarray

    def modes(self, count: int) -> np.ndarray:
        """(M, h, w): the probe in counts, and its products with x, y, x^2 ... of 2 % of the power each."""
        power = float(self.patterns.sum(axis=(1, 2), dtype=np.float64).mean())
        y, x = ((np.arange(n) - n // 2) / n for n in self.probe.shape)
        orders = sorted(((a, b) for a in range(count) for b in range(count)), key=lambda order: (sum(order), order))
        made = np.stack([self.probe * y[:, None] ** a * x[None] ** b for a, b in orders[:count]])
        share = np.array([1 - 0.02 * (count - 1)] + [0.02] * (count - 1))
        made *= np.sqrt(share * power / (np.abs(made) ** 2).sum(axis=(1, 2)))[:, None, None]
        return made.astype(np.complex64)

    def without(self, held_out: Path | None) -> Star:
        """Without the views whose indices are in this file."""
        if held_out is None:
            return self
        kept = np.setdiff1d(np.arange(len(self.positions)), np.load(held_out))
        return replace(self, patterns=self.patterns[kept], positions=self.positions[kept])


def load(path: Path, inner: int | None = None) -> Star:
    """The star from tike's npz, packed with bz2 or not; of so many pixels a side in the middle of the detector."""
    with (bz2.open if path.suffix == ".bz2" else open)(path, "rb") as packed:
        arrays = np.load(packed, allow_pickle=False)
        patterns, scan, probe = arrays["data"], arrays["scan"], arrays["probe"]
    h, w = patterns.shape[-2:]
    patterns, scan, probe = (
        patterns.reshape(-1, h, w),
        scan.reshape(-1, 2).astype(np.float64),
        probe.reshape(-1, h, w)[0],
    )
    if inner is None:
        return Star(patterns, scan, probe)
    spectrum = np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(probe)))
    coarse = np.fft.fftshift(np.fft.ifft2(np.fft.ifftshift(_middle(spectrum, inner)))).astype(probe.dtype)
    kept = np.fft.ifftshift(_middle(np.fft.fftshift(patterns, axes=(1, 2)), inner), axes=(1, 2))
    return Star(kept, scan * (inner / h), coarse)


def _middle(arrays: np.ndarray, side: int) -> np.ndarray:
    """So many pixels a side around the middle one, (..., h, w)."""
    top, left = (n // 2 - side // 2 for n in arrays.shape[-2:])
    return arrays[..., top : top + side, left : left + side]


def arguments() -> argparse.Namespace:
    """Options of a run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("star", type=Path)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--modes", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--subpixel", default="fourier", help="ptymesh alone")
    parser.add_argument("--rate", type=float, help="of the engine's steps; each run says what that is")
    parser.add_argument("--momentum", type=float, default=0.0, help="Pty-Chi's LSQML")
    parser.add_argument("--unblurred", action="store_true", help="PtyRAD: leave out the blur that it gives the object")
    parser.add_argument("--settings", type=Path, help="PtyRAD: JSON of sections of its parameters")
    parser.add_argument("--held-out", type=Path, help="npy: views that the run must not see")
    parser.add_argument("--snapshots", type=Path, help="do epochs for --seconds, and save into this folder")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--began", type=float, default=time.monotonic(), help="when the process was started")
    add_several(parser)
    return parser.parse_args()


def add_several(parser: argparse.ArgumentParser) -> None:
    """Options of several slices, for compare.py ptymesh's and PtyRAD's; lengths are in Angstrom."""
    parser.add_argument("--slices", type=int, default=1, help="of the object, of electrons where there are several")
    parser.add_argument("--spacing", type=float, default=10.0, help="of slices")
    parser.add_argument("--pixel", type=float, default=1.0, help="of the object")
    parser.add_argument("--kilovolts", type=float, default=80.0, help="that electrons have passed, for PtyRAD")
    parser.add_argument("--wavelength", type=float, default=0.04176, help="of these electrons, for the others")
    parser.add_argument("--distance", type=float, help="of a near field, in metres; the far field if it is left out")
    parser.add_argument("--positions", action="store_true", help="ptymesh and PtyRAD: refine them")
    parser.add_argument("--inner", type=int, help="ptymesh and PtyRAD: so many pixels a side of the detector's middle")


def serve(epoch: Callable[[], float], given: argparse.Namespace, about: str, saved: Callable[[], Saved]) -> None:
    """Does epochs, each of which returns its loss, as compare.py or solution.py wants them.

    saved: what has been found. What epochs print is kept off the way. StopIteration says that there are no more.
    """
    if given.snapshots:
        solve(epoch, given, about, saved)
        return
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print(json.dumps({"ready": about}), file=answers)
    for number in range(1, given.epochs + 1):
        if not sys.stdin.readline():
            return
        began = clock(given)
        loss = epoch()
        seconds = clock(given) - began
        print(json.dumps({"epoch": number, "seconds": seconds, "loss": float(loss)}), file=answers)


def solve(epoch: Callable[[], float], given: argparse.Namespace, about: str, saved: Callable[[], Saved]) -> None:
    """Epochs until the time is over, or there are no more; what was found by then after each, later after every 20th
    part more of them, and after the last.

    A snapshot's seconds are those that the process would have taken if it had ended with it: from its start (--began)
    until the arrays are on the disk, without the snapshots before.
    """
    off, number, written, due, over = 0.0, 0, 0, 1, False
    while not over:
        try:
            loss = epoch()
            number += 1
        except StopIteration:
            over = True
        before = clock(given)
        over = over or before - off >= given.seconds
        if number == written or (number < due and not over):
            continue
        np.savez(given.snapshots / f"{number}.npz", **saved())
        line = {"about": about, "epoch": number, "seconds": clock(given) - off, "loss": float(loss)}
        with (given.snapshots / "snapshots.jsonl").open("a", encoding="utf-8") as notes:
            print(json.dumps(line), file=notes)
        written, due = number, number + 1 + number // 20
        off += clock(given) - before


def clock(given: argparse.Namespace) -> float:
    """Seconds since the process was started, or those that it kept processors busy."""
    return time.process_time() if given.clock == "cpu" else time.monotonic() - given.began


def synchronise(device: str) -> None:
    """Waits until a GPU has done what it was asked to."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize()


def mend_torchvision() -> None:
    """Lets torchvision be imported beside a torch without CUDA.

    Its wheel on PyPI is for CUDA. Where that part cannot load, operators are missing that its import wants and that
    the peers, which take a Gaussian filter from it, never call: they are declared here.
    """
    import torch

    for _ in range(10):
        try:
            import torchvision  # noqa: F401
        except RuntimeError as error:
            missing = re.search(r"operator (torchvision::\w+) does not exist", str(error))
            if not missing:
                raise
            torch.library.define(missing.group(1), "(Tensor x) -> Tensor")
            for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
                del sys.modules[name]
        else:
            return
