"""What epochs take beside a batch of rPIE, one mode, far detector: measured, beside what is declared.

    python benchmarks/prices.py --out benchmarks/results/DATE-prices.json

Engines declare what they cost (`Engine.cost`), ptymesh/planning/cost_model.py what models add.

CPU times on one thread, of simulated scans. All ways to reconstruct a scan take turns, epoch by epoch, and so does the
measure (ptymesh/planning/device_pace.py): a machine that others slow down slows all of them. The least of several turns
counts.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import about, write

from ptymesh.engines import ENGINES
from ptymesh.estimate import BLOCK
from ptymesh.measurement import Measurement
from ptymesh.planning.batches import draw, hold_out
from ptymesh.planning.cost_model import EpochCost, EpochSize
from ptymesh.planning.device_pace import DevicePace, measure_pace
from ptymesh.recipe.schema import engine_of
from ptymesh.run.reconstruction import Reconstruction
from ptymesh.run.speed.bench import spread_views
from ptymesh.simulate import simulate
from ptymesh.verdict.held_out import judge_held_out

TURNS, HELD = 6, 0.2
POSITIONS, INTENSITY = {"positions": True}, {"probe": {"intensity": True}}
BACKGROUND = {"unknowns": {"object": True, "probe": True, "background": {"lr": 0.1}}}
#: Of any scan: engine, its options, probe modes and OPR modes.
WAYS: tuple[tuple[str, dict[str, Any], int, int], ...] = (
    ("rpie", {"batch": 16}, 1, 0),
    ("rpie", {"batch": 64}, 1, 0),
    ("rpie", {"batch": 64}, 4, 0),
    ("rpie", {"batch": 16, **POSITIONS}, 1, 0),
    ("rpie", {"batch": 64, **POSITIONS}, 4, 0),
    ("rpie", {"batch": 64, **INTENSITY}, 1, 0),
    ("rpie", {"batch": 64}, 1, 2),
    ("rpie", {"batch": 64}, 4, 2),
    ("rpie", {"batch": 64}, 1, 4),
    ("lsqml", {"batch": 64}, 1, 2),
    ("adam", {"batch": 64}, 1, 2),
    ("adam", {"batch": 16}, 1, 0),
    ("adam", {"batch": 64}, 1, 0),
    ("adam", {"batch": 64}, 4, 0),
    ("adam", {"batch": 64, **POSITIONS}, 1, 0),
    ("adam", {"batch": 16, **BACKGROUND}, 1, 0),
    ("adam", {"batch": 64, **BACKGROUND}, 1, 0),
    ("adam", {"batch": 64, **BACKGROUND}, 4, 0),
    ("lsqml", {"batch": 16}, 1, 0),
    ("lsqml", {"batch": 64}, 1, 0),
    ("lsqml", {"batch": 64}, 4, 0),
    ("lsqml", {"batch": 64, **POSITIONS}, 1, 0),
)
#: Of one slice in the far field, besides.
FURTHER: tuple[tuple[str, dict[str, Any], int, int], ...] = (
    ("mpie", {"batch": 64}, 1, 0),
    *((name, {"batch": None}, 1, 0) for name in ("dm", "raar", "ap", "cg", "bh", "lbfgs")),
)


@dataclass
class Way:
    """One of them, on a scan: seconds of its epochs and of judging held-out views, turn by turn."""

    engine: str
    options: dict[str, Any]
    modes: int
    opr: int
    recon: Reconstruction
    epochs: Iterator[Any]
    seconds: list[float]
    judged: list[float]

    @property
    def own(self) -> frozenset[str]:
        """What each view has for itself."""
        found = {"positions"} if "positions" in self.options else set()
        found |= {"intensity"} if "probe" in self.options else set()
        return frozenset(found | ({"opr"} if self.opr else set()))

    def turn(self) -> None:
        """An epoch and a judgement."""
        began = time.process_time()
        next(self.epochs)
        self.seconds.append(time.process_time() - began)
        problem, estimate = self.recon.problem, self.recon.state.estimate
        held = hold_out(problem.unturned, HELD, 0)
        began = time.process_time()
        judge_held_out(problem, estimate, held, self.own)
        self.judged.append(time.process_time() - began)


def ways(scan: Measurement, slices: int, further: bool) -> list[Way]:
    """All that are priced."""
    several = {"slices": slices, "slice_spacing_m": 2e-9} if slices > 1 else {}
    found = []
    for engine, options, modes, opr in WAYS + FURTHER * further:
        recon = Reconstruction(scan, object=several, probe={"modes": modes, "opr_modes": opr}, device="cpu")
        stage = engine_of("stages.0", {"engine": engine, **options, "epochs": TURNS + 1})
        found.append(Way(engine, options, modes, opr, recon, iter(recon.run(stage)), [], []))
    return found


def rows(name: str, scan: Measurement, slices: int) -> Iterator[dict[str, Any]]:
    """What each way takes, in turns."""
    further = scan.geometry.propagation == "far_field" and name.startswith("far")
    found, paces = ways(scan, slices, further), []
    for _ in range(TURNS + 1):  # of which the first makes workspaces
        paces.append(measure_pace(scan.window))
        for way in found:
            way.turn()
    rate = max(pace.rate for pace in paces)
    pace = DevicePace(rate, min(pace.batch_s + 1 / pace.rate for pace in paces) - 1 / rate)  # of a batch of one view
    for way in found:
        size = way.options["batch"]
        yield {
            "scan": name,
            "engine": way.engine,
            "near": scan.geometry.propagation != "far_field",
            "slices": slices,
            "waves": way.modes,
            "opr": way.opr,
            "own": sorted(way.own),
            "lit": "unknowns" in way.options,
            "views": scan.views,
            "window": list(scan.window),
            "batches": 1 if size is None else -(-scan.views // size),
            "stepped": touched(way, scan),
            "object": math.prod(way.recon.state.estimate.extent),
            "held": HELD,
            "rate": pace.rate,
            "batch_s": pace.batch_s,
            "epoch_s": min(way.seconds[1:]),
            "median_s": float(np.median(way.seconds[1:])),
            "judgement_s": min(way.judged[1:]),
        }


def touched(way: Way, scan: Measurement) -> float:
    """Pixels of the object that a batch touches, on average."""
    problem, estimate = way.recon.problem, way.recon.state.estimate
    drawn = draw(scan.positions, way.options["batch"], 0, 0)
    return BLOCK**2 * float(np.mean([len(problem.loader.local_views.blocks(estimate, one).rows) for one in drawn]))


def main() -> None:
    """A table in markdown: what was measured, and what is declared over that."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    scans = {
        "far": (simulate(kind="xray", views=200, window=64, seed=3).measurement, 1),
        "far, large": (simulate(kind="xray", views=128, window=128, seed=3).measurement, 1),
        "far, wide": (spread_views(simulate(kind="xray", views=200, window=64, seed=3).measurement, 1024), 1),
        "near": (simulate(kind="near", views=200, window=64, seed=3).measurement, 1),
    }
    for slices in (1, 2, 4):
        made = simulate(kind="electron", views=100, window=64, seed=3, slices=slices).measurement
        scans[f"electrons, {slices} slice" + "s" * (slices > 1)] = made, slices
    here, found = about(), []
    print("| scan | engine | modes | OPR modes | own | batches | epoch, ms | declared |")
    print("|---|---|---|---|---|---|---|---|")
    for name, (scan, slices) in scans.items():
        for row in rows(name, scan, slices):
            found.append(row)
            own = ", ".join([*row["own"], *["background"] * row["lit"]])
            took, model = row["epoch_s"], [row[key] for key in ("engine", "waves", "opr")]
            of = (name, *model, own, row["batches"], f"{1e3 * took:.1f}", f"{seconds(row) / took:.2f}")
            print(f"| {' | '.join(map(str, of))} |", flush=True)
            write(given.out, {**here, "rows": found})


def seconds(row: dict[str, Any]) -> float:
    """Of an epoch, as declared."""
    model = row["near"], row["slices"], row["waves"], row["opr"], frozenset(row["own"]), row["lit"]
    price = EpochCost(ENGINES[row["engine"]].cost, *model)
    stepped = row["object"] if price.engine_cost.whole else row["stepped"]
    size = EpochSize(row["views"], math.prod(row["window"]), row["batches"], stepped, row["object"])
    return DevicePace(row["rate"], row["batch_s"]).epoch_seconds(price, size)


if __name__ == "__main__":
    sys.exit(main())
