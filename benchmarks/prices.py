"""What epochs cost beside one of rPIE, one mode, far field: measured, beside what ptymesh/auto/price.py declares.

    python benchmarks/prices.py --out benchmarks/results/DATE-prices.json

CPU time on one thread, of simulated scans of 200 views of 64 x 64 pixels (100 of electrons).
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from record import about, write

from ptymesh.auto.judging import judge
from ptymesh.auto.race import Arena, Budget, Track
from ptymesh.distributed.world import Solo
from ptymesh.measurement import Measurement
from ptymesh.run.recipe import Recipe
from ptymesh.simulate import simulate

EPOCHS, TIMES = 2, 4


def arena(scan: Measurement, slices: int) -> Arena:
    """Whose first engine is rPIE in batches of 16."""
    several = {"slices": slices, "slice_spacing_m": 2e-9} if slices > 1 else {}
    recipe = Recipe.parse({"data": {"path": Path("scan.cxi")}, "object": several})
    return Arena(recipe, scan, Solo(), lambda: False, Budget(1e9), scan.views)


def ways(on: Arena) -> dict[str, Track]:
    """What is priced."""
    plain = on.start({"engine": "rpie", "batch": 16})
    adam: dict[str, Any] = {"engine": "adam", "lr": 0.01}
    moving = plain.sharing({"positions": True}, "positions")
    return {
        "rpie": plain,
        "rpie, 4 modes": on.with_modes(plain, 4),
        "rpie, positions": moving,
        "rpie, intensity": plain.sharing({"probe": {"intensity": True}}, "intensity"),
        "rpie, 2 OPR modes": on.with_opr(plain, 2),
        "adam": plain.using({**adam, "batch": 64}),
        "adam, positions": moving.using({**adam, "batch": 64}),
        "adam, background": plain.using({**adam, "batch": 16, "unknowns": {"background": {"lr": 0.1}}}),
        "lsqml": plain.using({"engine": "lsqml", "batch": 64}),
    }


def measured(on: Arena, track: Track) -> tuple[float, float]:
    """CPU seconds of an epoch, and of a judgement: the least of several times, of which others on this machine have
    slowed some."""
    on.run(track, 1)  # warm
    epochs, judgements = [], []
    for _ in range(TIMES):
        began = time.process_time()
        run = on.run(track, EPOCHS)
        ran = time.process_time()
        judge(on.recon.problem, run.estimate, on.held, run.own)
        judgements.append(time.process_time() - ran)
        epochs.append(ran - began)
    return (min(epochs) - min(judgements)) / EPOCHS, min(judgements)


def described(on: Arena, track: Track) -> dict[str, Any]:
    """What the price depends on."""
    waves = track.modes + len(track.estimate.opr)
    return {
        "model": {"near": on.price.near, "slices": on.price.slices},
        "engine": track.engine["engine"],
        "waves": waves,
        "own": sorted(track.own),
        "lit": "unknowns" in track.engine,
        "held": len(on.held) / on.views,
    }


def main() -> None:
    """A table in markdown: measured (declared), in sweeps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| scan | way | epoch | judgement |\n|---|---|---|---|")
    scans = {
        "far": (simulate(kind="xray", views=200, window=64, seed=3).measurement, 1),
        "near": (simulate(kind="near", views=200, window=64, seed=3).measurement, 1),
    }
    for slices in (1, 2, 4):
        made = simulate(kind="electron", views=100, window=64, seed=3, slices=slices).measurement
        scans[f"electrons, {slices} slice" + "s" * (slices > 1)] = made, slices
    here, rows, sweep = about(), [], 0.0
    for name, (scan, slices) in scans.items():
        on = arena(scan, slices)
        for way, track in ways(on).items():
            epoch, judged = measured(on, track)
            if way == "rpie" and slices == 1 and name != "near":
                sweep = epoch
            row = {"scan": name, "way": way, "epoch": epoch / sweep, "judgement": judged / sweep, "sweep_s": sweep}
            rows.append({**row, **described(on, track)})
            cost = on.cost(track, 2) - on.cost(track, 1), 2 * on.cost(track, 1) - on.cost(track, 2)
            print(f"| {name} | {way} | {epoch / sweep:.1f} ({cost[0]:.1f}) | {judged / sweep:.1f} ({cost[1]:.1f}) |")
    write(given.out, {**here, "rows": rows})


if __name__ == "__main__":
    sys.exit(main())
