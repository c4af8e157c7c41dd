"""How good an object a fly scan gives, beside a scan that stops for each view, and what the model of the motion costs.

    python benchmarks/fly_scan.py --out F

Simulated rasters of 8 x 8 views, 8 px apart, 10^6 photons each. In the fly scan each view counts over the whole step,
32 points of it in the truth. It is reconstructed with 8 points, and without the motion in the model; the scan that
stops has the same dose. Rows say what else there is: a beam of three modes at positions 1 px off, reconstructed with
three modes, two OPR modes and refined positions.

Speed is that of epochs, against the Fourier transforms alone that they need, at the speed that floor.py measures for
them: two for each of K waves of a mode and direction, and one more for the shift of the mode.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from floor import Floor
from record import about, write

import ptymesh as pm
from ptymesh.compare import compare_results
from ptymesh.engines import ENGINES
from ptymesh.simulate import Simulated, simulate

WINDOW, STEP_PX, PHOTONS, TRUE_POINTS, POINTS = 90, 8, 1e6, 32, 8
#: Of a beam whose width is 0.35 of the window.
OVERLAP = 1 - STEP_PX / (0.35 * WINDOW)
FLY = {"fly_scan": {"points": POINTS}}
#: Epochs over which a speed is measured, after one that is not.
TIMED_EPOCHS = 5


@dataclass(frozen=True)
class Case:
    """A reconstruction of both scans.

    Attributes:
        engine: its name.
        epochs: of each reconstruction.
        hard: True for three modes, two OPR modes and positions that are 1 px off.
    """

    engine: str
    epochs: int
    hard: bool = False


CASES = (
    Case("adam", 60),
    Case("adam", 60, hard=True),
    Case("rpie", 120),
    Case("lsqml", 80),
)


def width_px(probe: np.ndarray) -> float:
    """Full width at half maximum of the beam's power, summed over the other axis, the mean of both axes."""
    power = (np.abs(probe) ** 2).sum(axis=0)
    return float(np.mean([_full_width(power.sum(axis=axis)) for axis in (0, 1)]))


def _full_width(line: np.ndarray) -> float:
    """Distance between the outermost crossings of half of the maximum."""
    half, at = line.max() / 2, np.arange(len(line))
    above = np.flatnonzero(line >= half)
    first, last = above[0], above[-1]
    left = np.interp(half, line[first - 1 : first + 1], at[first - 1 : first + 1])
    right = np.interp(-half, -line[last : last + 2], at[last : last + 2])
    return float(right - left)


def scan(case: Case, points: int) -> Simulated:
    """A scan that counts while it moves, over so many points, or for 0 one that stops."""
    options: dict[str, Any] = {"scan": "raster", "window": WINDOW, "overlap": OVERLAP, "photons_per_view": PHOTONS}
    if case.hard:
        options |= {"modes": 3, "position_error_px": 1.0}
    optics = {"fly_scan": {"points": points}} if points else {}
    return simulate(**options, views=64, optics=optics, seed=1)


def solved(case: Case, made: Simulated, optics: dict[str, Any] | None) -> dict[str, float]:
    """Error of the object, residual, and seconds of a reconstruction."""
    probe = {"modes": 3, "opr_modes": 2} if case.hard else {}
    recon = pm.Reconstruction(made.measurement, optics=optics, probe=probe, seed=1)
    begun = time.process_time()
    positions = {"positions": {"start": 5}} if case.hard else {}
    *_, last = (one.residual for one in recon.run(ENGINES[case.engine](epochs=case.epochs, batch=8, **positions)))
    truth = made.truth
    found = compare_results(recon.result(), truth)
    return {"nrmse": float(found.nrmse), "residual": float(last), "seconds": time.process_time() - begun}


def speed(engine: str, threads: int) -> dict[str, float]:
    """Views per second with 8 points, and those that their Fourier transforms alone allow."""
    made = simulate(scan="raster", window=128, overlap=0.8, views=64, optics={"fly_scan": {"points": 2}})
    recon = pm.Reconstruction(made.measurement, optics=FLY)
    floor = Floor((128, 128), torch.device("cpu"))
    times, floors, before = [], [], 0.0
    for report in recon.run(ENGINES[engine](epochs=1 + TIMED_EPOCHS, batch=16)):
        now = time.perf_counter()
        if report.epoch > 1:
            times.append(now - before)
        floors.append(floor.sample())
        before = time.perf_counter()
    allowed = median(floors) / (2 * POINTS + 1)
    views = 64 / median(times)
    return {"views_per_s": views, "allowed_views_per_s": allowed, "fraction": views / allowed, "threads": threads}


def main() -> None:
    """Run all cases, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file that the numbers are written to, as JSON")
    parser.add_argument("--speed", action="store_true", help="speeds alone")
    arguments = parser.parse_args()
    found: dict[str, Any] = {**about(), "photons_per_view": PHOTONS, "true_points": TRUE_POINTS, "points": POINTS}
    found["speeds"] = {name: speed(name, torch.get_num_threads()) for name in ("adam", "rpie", "lsqml")}
    for name, one in found["speeds"].items():
        print(f"{name}: {one['views_per_s']:.0f} views/s, {one['fraction']:.2f} of {one['allowed_views_per_s']:.0f}")
    found["cases"] = []
    for case in () if arguments.speed else CASES:
        fly, still = scan(case, TRUE_POINTS), scan(case, 0)
        found["beam_px"] = width_px(fly.truth.probe)
        row = {
            "engine": case.engine,
            "epochs": case.epochs,
            "hard": case.hard,
            "step": solved(case, still, None),
            "fly": solved(case, fly, FLY),
            "ignored": solved(case, fly, None),
        }
        found["cases"].append(row)
        print(row, flush=True)
        write(arguments.out, found)
    write(arguments.out, found)


if __name__ == "__main__":
    main()
