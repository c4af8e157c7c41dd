"""Positions that are wrong on purpose, refined: how near they come to those of the same scan with its own positions.

    python benchmarks/positions.py siemens-star-small.npz.bz2 [--cases star near lag scale astray] [--out F]

Positions of the star, and of a simulated near field, are shaken by 3 object pixels (rms of both axes together) and
stretched by 1 % about their middle, and reconstructed by the same stages as the scan with its own positions, which is
also run with another seed. Distances between refined positions are rms lengths after the mean move is removed, which
nothing determines. Held-out residuals are of a tenth of the views, each judged by the half of its pixels to which its
own position was not fitted.

In the case `lag`, positions of the simulated near field are three frames behind the patterns instead, steps are short
against the beam, single positions alone are refined, and no view is held out, as that would break the order of frames.

In the case `scale`, single positions of the star are found by correlation, without the geometry of the scan. Then three
short runs, in which nothing moves and which begin anew, with these positions at three scales, give the scale of the
least residual: the vertex of the parabola through them.

In the case `astray`, positions of simulated far fields, whose truth is known, are shaken by 2 pixels and stretched by
1 %, and found by correlation, with `relocate` and without, and with the geometry of the scan by the patterns; those
that are right, with `relocate`, too. Those of the star, shaken and stretched as above, are held against its own ones.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from record import about, write

import ptymesh as pm
from ptymesh.compare import moves_apart
from ptymesh.measurement import Measurement
from ptymesh.recipe.python_arguments import stages_of
from ptymesh.simulate import simulate
from ptymesh.verdict.signs import signs_of_order

CASES = ["star", "near", "lag", "scale", "astray"]
SHAKEN_PX, STRETCH = 3.0, 0.01
HOLD_OUT = 0.1
#: Frames by which positions are behind the patterns in the case `lag`.
LAG = 3
#: Of the case `scale`: scales that are tried, relative to the recorded positions of the star, and stages of each trial.
SCALES = (-0.055, -0.025, 0.005)
TRIAL = [{"engine": "rpie", "epochs": 20, "batch": 32}, {"engine": "lsqml", "epochs": 10, "batch": 64}]
#: Of the case `scale`: the stage in which single positions are found.
SEARCH: dict[str, Any] = {
    "engine": "rpie",
    "epochs": 40,
    "batch": 32,
    "positions": {"start": 4, "method": "correlation", "limit_px": 1.0, "momentum": 0.5, "judge": False},
}
#: Of the case `astray`: seeds of the scans, pixels by which they are shaken, epochs.
ASTRAY_SEEDS, ASTRAY_PX, ASTRAY_EPOCHS = (3, 7), 2.0, 60
#: What is asked for: pixels, or a multiple of the distance of two seeds; relative excess of the held-out residual.
ALLOWED_PX, ALLOWED_SEEDS, ALLOWED_HELD_OUT = 0.1, 1.5, 0.03


def stages(epochs: tuple[int, int], lag: bool) -> list[dict[str, Any]]:
    """Return the stages: the geometry of the scan and single positions together, then positions with momentum.

    Of a lag, which is no geometry, single positions alone.
    """
    found, finished = epochs
    geometry = {} if lag else {"scan_geometry": {"start": 3, "terms": ["scale", "rotation"]}}
    return [
        {
            "engine": "rpie",
            "epochs": found,
            "batch": 32,
            "models": geometry,
            "positions": {"start": 3, "limit_px": 1.0, "momentum": 0.5},
        },
        {"engine": "lsqml", "epochs": finished, "batch": 64, "positions": {"momentum": 0.5}},
    ]


def shaken(scan: Measurement, seed: int = 0, pixels: float = SHAKEN_PX) -> Measurement:
    """Return the scan with positions that are shaken and stretched."""
    rng = np.random.default_rng(seed)
    middle = scan.positions.mean(axis=0)
    noise = rng.normal(0, pixels / np.sqrt(2), scan.positions.shape)
    return moved(scan, middle + (1 + STRETCH) * (scan.positions - middle) + noise, "shaken")


def lagging(scan: Measurement) -> Measurement:
    """Return the scan whose patterns have the positions of LAG frames before; the first ones have the first one's."""
    before = np.maximum(np.arange(scan.views) - LAG, 0)
    return moved(scan, scan.positions[before], "lagging")


def moved(scan: Measurement, positions: np.ndarray, name: str) -> Measurement:
    """Return the scan with other positions, under a name of its own."""
    return replace(scan, positions=positions, name=name, fingerprint=name)


@dataclass(frozen=True)
class Refined:
    """What comes of a scan.

    Attributes:
        positions: (N, 2) refined, pixels.
        views: of which patterns were used; the others' positions follow the geometry alone.
        residual: of the last epoch.
        held_out: residual of the held-out views then, NaN without any.
    """

    positions: np.ndarray
    views: np.ndarray
    residual: float
    held_out: float


def refine(scan: Measurement, epochs: tuple[int, int], seed: int, lag: bool) -> Refined:
    """Reconstruct a scan with refined positions."""
    recon = pm.Reconstruction(scan, seed=seed)
    recon.stages.extend(stages_of(stages(epochs, lag)))
    loop = recon.loop(hold_out=0.0 if lag else HOLD_OUT)
    *_, last = loop.epochs()
    held_out = math.nan if last.held_out is None else last.held_out
    return Refined(recon.result().positions_px, loop.training, last.residual, held_out)


def apart(a: np.ndarray, b: np.ndarray, views: np.ndarray) -> float:
    """Return the rms distance of positions (N, 2) of these views, in pixels, without the mean move."""
    difference = (a - b)[views]
    return float(np.sqrt(((difference - difference.mean(axis=0)) ** 2).sum(axis=1).mean()))


def compared(scan: Measurement, wrong: Measurement, epochs: tuple[int, int], lag: bool) -> dict[str, Any]:
    """Return how near the wrong positions come to the refined ones of the scan, and whether that is enough."""
    own, other, found = (refine(one, epochs, seed, lag) for one, seed in ((scan, 0), (scan, 1), (wrong, 0)))
    seeds = apart(own.positions, other.positions, np.intersect1d(own.views, other.views))
    both = np.intersect1d(own.views, found.views)  # which views are held out depends on their order along the scan
    left = apart(own.positions, found.positions, both)
    excess = found.held_out / own.held_out - 1
    return {
        "wrong_px": apart(own.positions, wrong.positions, both),
        "left_px": left,
        "seeds_px": seeds,
        "residual": found.residual,
        "residual_of_own_positions": own.residual,
        "held_out": None if lag else found.held_out,
        "held_out_of_own_positions": None if lag else own.held_out,
        "held_out_excess": None if lag else excess,
        "positions_reached": left <= max(ALLOWED_PX, ALLOWED_SEEDS * seeds),
        "held_out_reached": None if lag else excess <= ALLOWED_HELD_OUT,
        "named_by_patterns": [sign.sentence for sign in signs_of_order(wrong, wrong.positions)],
        "named": moves_apart(wrong.positions[found.views], found.positions[found.views]).sentence(),
        "to_be_named": moves_apart(wrong.positions[found.views], scan.positions[found.views]).sentence(),
    }


def scale_of(positions: np.ndarray, recorded: np.ndarray) -> float:
    """Return by which share positions (N, 2) are further apart than recorded ones, by least squares."""
    away = recorded - recorded.mean(axis=0)
    return float((away * (positions - positions.mean(axis=0))).sum() / (away**2).sum()) - 1


def scaled(positions: np.ndarray, factor: float) -> np.ndarray:
    """Return positions (N, 2) further apart by a factor."""
    middle = positions.mean(axis=0)
    return middle + factor * (positions - middle)


def run_stages(scan: Measurement, made: list[dict[str, Any]]) -> Refined:
    """Reconstruct a scan by stages, with views held out."""
    recon = pm.Reconstruction(scan, seed=0)
    recon.stages.extend(stages_of(made))
    loop = recon.loop(hold_out=HOLD_OUT)
    *_, last = loop.epochs()
    return Refined(recon.result().positions_px, loop.training, last.residual, math.nan)


def vertex(scan: Measurement, positions: np.ndarray, scale: float) -> tuple[float, list[float]]:
    """Return the scale of the least residual, and the residuals at SCALES.

    Args:
        scan: patterns.
        positions: (N, 2) pixels, at any scale.
        scale: theirs, relative to what SCALES are relative to.
    """
    tried = [(1 + one) / (1 + scale) for one in SCALES]
    found = [
        run_stages(moved(scan, scaled(positions, factor), f"scaled by {factor}"), TRIAL).residual for factor in tried
    ]
    curved, sloped, _ = np.polyfit(SCALES, found, 2)
    return float(-sloped / curved / 2), found


def found_by_scale(star: Measurement) -> dict[str, Any]:
    """Return how near shaken positions come to the star's own, by correlation and by the scale of least residual."""
    rows: dict[str, Any] = {}
    searched: list[Refined] = []
    ends: list[np.ndarray] = []
    for name, scan in (("own", star), ("shaken", shaken(star))):
        found = run_stages(scan, [SEARCH])
        scale = scale_of(found.positions[found.views], star.positions[found.views])
        best, residuals = vertex(scan, found.positions, scale)
        searched.append(found)
        ends.append(scaled(found.positions, (1 + best) / (1 + scale)))
        rows[name] = {"residual": found.residual, "scale": scale, "vertex": best, "residuals_at_scales": residuals}
        print(name, json.dumps(rows[name]), flush=True)
    both = np.intersect1d(searched[0].views, searched[1].views)
    difference = (ends[0] - ends[1])[both]
    lengths = np.linalg.norm(difference - np.median(difference, axis=0), axis=1)
    return rows | {
        "wrong_px": apart(star.positions, shaken(star).positions, both),
        "searched_px": apart(searched[0].positions, searched[1].positions, both),
        "left_px": apart(ends[0], ends[1], both),
        "left_median_px": float(np.median(lengths)),
    }


def search_astray(scan: Measurement, relocate: bool, models: dict[str, Any]) -> Refined:
    """Find positions by correlation, with views astray looked for or not, and these models."""
    search = {**SEARCH["positions"], "relocate": relocate}
    return run_stages(scan, [{**SEARCH, "epochs": ASTRAY_EPOCHS, "positions": search, "models": models}])


def found_astray(star: Measurement) -> dict[str, Any]:
    """Return how far positions are from the truth, or the star's own, with views astray looked for and without."""
    geometry = {"scan_geometry": {"start": 4, "follow": "patterns", "lr": 1.0}}
    own, found = (search_astray(one, True, geometry) for one in (star, shaken(star)))
    both = np.intersect1d(own.views, found.views)
    rows: dict[str, Any] = {
        "star": {"left_px": apart(own.positions, found.positions, both), "residual": found.residual}
    }
    for seed in ASTRAY_SEEDS:
        scan = simulate(kind="xray", views=200, window=64, overlap=0.78, photons_per_view=1e5, seed=seed).measurement
        wrong = shaken(scan, seed + 10, ASTRAY_PX)
        for name, one, relocate, models in (
            ("plain", wrong, False, {}),
            ("relocated", wrong, True, {}),
            ("relocated, geometry by patterns", wrong, True, geometry),
            ("own relocated", scan, True, {}),
        ):
            found = search_astray(one, relocate, models)
            rows[f"{name}, seed {seed}"] = {
                "wrong_px": apart(scan.positions, one.positions, found.views),
                "left_px": apart(scan.positions, found.positions, found.views),
                "scale": scale_of(found.positions[found.views], scan.positions[found.views]),
                "residual": found.residual,
            }
    return rows


def near_field(case: str) -> Measurement:
    """Return the simulated scan of a case; that of `lag` overlaps more."""
    overlap = {"overlap": 0.98} if case == "lag" else {}
    return simulate(kind="near", views=100, window=64, photons_per_view=1e6, seed=4, **overlap).measurement


def main() -> None:
    """Run the cases that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("star", type=Path)
    parser.add_argument("--cases", nargs="+", default=CASES[:3], choices=CASES)
    parser.add_argument("--epochs", nargs=2, type=int, default=[60, 40], help="of both stages")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    epochs = (arguments.epochs[0], arguments.epochs[1])
    star = pm.load(arguments.star)
    found: dict[str, Any] = {}
    for case in arguments.cases:
        if case in ("scale", "astray"):
            found[case] = found_by_scale(star) if case == "scale" else found_astray(star)
            print(case, json.dumps(found[case], indent=1), flush=True)
            continue
        scan, wrong = star if case == "star" else near_field(case), lagging if case == "lag" else shaken
        found[case] = compared(scan, wrong(scan), epochs, case == "lag")
        print(case, json.dumps(found[case], indent=1), flush=True)
    write(arguments.out, {**about(), "epochs": epochs, "hold_out": HOLD_OUT, "cases": found})


if __name__ == "__main__":
    main()
