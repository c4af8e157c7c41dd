"""What pieces under `optics`, and a background that moves, cost: epochs with a piece against epochs without one, for
each wave on the detector.

    python benchmarks/pieces.py --out F
    python benchmarks/pieces.py --views 300 --turns 3 --engines rpie --pieces descan,detector_blur
    python benchmarks/pieces.py --views 128 --slices 8 --modes 4 --pieces detector_transfer,source_size,both

One simulated scan in the far field, one mode, positions between pixels, and one thread. With each engine all models
take turns, epoch by epoch: in each turn the plain one runs before and after each piece, so that a machine that others
slow down slows both. Unknowns of pieces stay as they start, so that it is the waves that are measured.

Seconds are those of the processor, so that others on the same cores count little.

cost        median over turns of the seconds with the piece, over those without it and the number of waves that it makes
            of one; a wave of a window twice as wide counts as four
fraction    of the floor that is reached: the time of the epoch's own transforms (floor.py, measured in each turn) over
            that of the epoch. A wave has a pair of them at its fraction of a pixel, two for each gap between slices
            and one for the detector.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from floor import Floor
from record import about, write

from ptymesh.engines import ENGINES
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.simulate import simulate

#: Pieces, by the names of the rows.
PIECES: dict[str, dict[str, Any]] = {
    "descan": {"descan": {"start": {"descan": 0.7}}},
    "fly_scan 4": {"fly_scan": {"points": 4, "path": [6e-8, 4e-8]}},
    "fly_scan 8": {"fly_scan": {"points": 8, "path": [6e-8, 4e-8]}},
    "source_size": {"source_size": True},
    "changing_object": {"changing_object": {"start": {"object_change": 0.1}}},
    "focal_spread": {"focal_spread": {"start": {"focal_spread": 1e-5}}},
    "view_defocus": {"view_defocus": {"start": {"defocus": 1e-5}}},
    "detector_blur": {"detector_blur": {"start": {"blur_width": 0.7}}},
    "detector_transfer": {"detector_transfer": {"pixel_side": 1}},
    "detector_efficiency": {"detector_efficiency": True},
    "binned_detector": {"binned_detector": {"factor": 2}},
    "both": {"detector_transfer": {"pixel_side": 1}, "source_size": True},
}
#: Row of a background that moves, which is no piece.
BACKGROUND = "background"
TIMED = ("rpie", "lsqml", "adam")
BATCH = 64


def epochs(
    measurement: Any, engine: str, model: dict[str, Any], turns: int, piece: str = ""
) -> tuple[Reconstruction, Iterator[float]]:
    """Return a reconstruction with such slices, modes and piece, and the processor seconds of its epochs."""
    optics = {"optics": PIECES[piece]} if piece in PIECES else {}
    recon = Reconstruction(measurement, **model, **optics, subpixel="fourier", device="cpu", seed=1)
    moving = {"unknowns": {"background": True}} if piece == BACKGROUND else {}
    return recon, timed(recon.run(ENGINES[engine](epochs=turns, batch=BATCH, **moving)))


def timed(reports: Iterator[Any]) -> Iterator[float]:
    """Yield the processor seconds that each takes."""
    began = time.process_time()
    for _ in reports:
        yield time.process_time() - began
        began = time.process_time()


def waves_of(recon: Reconstruction) -> int:
    """Return the number of waves of the plain model's size that the model makes of each mode."""
    return recon.problem.model.fan_out * recon.binning**2


def pairs_of_view(recon: Reconstruction) -> int:
    """Return the pairs of transforms of a view: of each wave, at its fraction, twice per gap, to the detector."""
    slices, modes = len(recon.object), len(recon.probe)
    return modes * waves_of(recon) * 2 * slices


def measure(measurement: Any, engine: str, model: dict[str, Any], names: list[str], turns: int) -> list[dict[str, Any]]:
    """Return one row for each piece."""
    count = 1 + turns * (1 + len(names))
    bare, plain = epochs(measurement, engine, model, count)
    runs = {name: epochs(measurement, engine, model, turns + 1, name) for name in names}
    next(plain)
    for _, one in runs.values():
        next(one)
    floor = Floor(measurement.window, torch.device("cpu"), clock=time.process_time)
    costs: dict[str, list[float]] = {name: [] for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    without, limits = [], []
    for _ in range(turns):
        before = next(plain)
        for name, (recon, one) in runs.items():
            taken, after = next(one), next(plain)
            without.append(after)
            limits.append(floor.sample())
            seconds[name].append(taken)
            costs[name].append(2 * taken / (before + after) / waves_of(recon))
            before = after

    def fraction(recon: Reconstruction, epoch_s: float) -> float:
        return measurement.views * pairs_of_view(recon) / median(limits) / epoch_s

    rows = []
    for name, (recon, _) in runs.items():
        row = {
            "engine": engine,
            "piece": name,
            "waves": waves_of(recon),
            "cost": median(costs[name]),
            "costs": costs[name],
            "epoch_s": median(seconds[name]),
            "plain_epoch_s": median(without),
            "fraction": fraction(recon, median(seconds[name])),
            "plain_fraction": fraction(bare, median(without)),
        }
        print(
            f"{engine} {name}: {row['cost']:.2f} of the built-in path for each of {row['waves']} waves, "
            f"{row['fraction']:.0%} of the floor, {row['plain_fraction']:.0%} without",
            flush=True,
        )
        rows.append(row)
    return rows


def main() -> None:
    """Measure all pieces, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--views", type=int, default=2000, help="views of the scan")
    parser.add_argument("--window", type=int, default=128, help="pixels of a window's side")
    parser.add_argument("--slices", type=int, default=1, help="slices of the object, a micrometre apart")
    parser.add_argument("--modes", type=int, default=1, help="modes of the probe")
    parser.add_argument("--turns", type=int, default=7, help="timed epochs of each piece, after one that is not")
    parser.add_argument("--engines", default=",".join(TIMED), help="engines, with commas")
    parser.add_argument("--pieces", default=",".join([*PIECES, BACKGROUND]), help="pieces, with commas")
    parser.add_argument("--out", type=Path, help="file that the numbers are written to, as JSON")
    given = parser.parse_args()
    torch.set_num_threads(1)
    made = simulate(views=given.views, window=given.window, overlap=0.75, seed=1).measurement
    efficiency = np.random.default_rng(1).uniform(0.8, 1.2, made.window)
    measurement = replace(made, efficiency=efficiency / efficiency.mean())
    found: dict[str, Any] = {
        **about(threads=1),
        "views": given.views,
        "window": given.window,
        "slices": given.slices,
        "modes": given.modes,
        "batch": BATCH,
        "rows": [],
    }
    spacing = {"slice_spacing_m": 1e-6} if given.slices > 1 else {}
    model = {"object": {"slices": given.slices, **spacing}, "probe_modes": given.modes}
    for engine in given.engines.split(","):
        found["rows"] += measure(measurement, engine, model, given.pieces.split(","), given.turns)
        write(given.out, found)


if __name__ == "__main__":
    main()
