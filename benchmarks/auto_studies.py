"""Recipes that ptymesh finds for simulated scans, beside the best recipe of a study of each scan.

    python benchmarks/auto_studies.py --seeds 101 --trials 100 --out benchmarks/results/DATE-auto-studies.json

For every kind of benchmarks/kinds.py: the scan is written into a file, `ptymesh run FILE` finds a recipe, and
`ptymesh tune` searches the space below with as many trials. Both recipes are then run with the same views held out, and
compared by the residual of these (what a recipe refines for each view is fitted on half of its pixels, and judged on
the other half). Seeds below 100 were used to choose what `ptymesh run` does.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import kinds
import torch
import yaml
from record import about, write

from ptymesh.auto import decide, described
from ptymesh.distributed.world import Solo
from ptymesh.run.recipe import Recipe
from ptymesh.tune import objectives
from ptymesh.tune.options import HeldOut, Tuning
from ptymesh.tune.session import run_study

#: Share of the views that neither recipe sees when they are compared.
FRACTION = 0.15
#: What a study may choose.
SPACE: dict[str, Any] = {
    "stages.0.engine": ["rpie", "lsqml", "adam"],
    "stages.0.epochs": {"low": 20, "high": 80, "log": True},
    "stages.0.batch": {"low": 8, "high": 64, "log": True},
    "stages.0.fidelity": ["amplitude", "poisson"],
    "stages.0.gamma_object": {"low": 0.2, "high": 2.0, "log": True, "when": {"stages.0.engine": "rpie"}},
    "stages.0.gamma_probe": {"low": 0.1, "high": 2.0, "log": True, "when": {"stages.0.engine": "rpie"}},
    "stages.0.momentum": {"choices": [False, True], "when": {"stages.0.engine": "lsqml"}},
    "stages.0.lr": {"low": 0.002, "high": 0.1, "log": True, "when": {"stages.0.engine": "adam"}},
    "stages.0.positions": [False, True],
    "stages.0.probe.intensity": [False, True],
    "probe.modes": {"low": 1, "high": 4},
}
LIT = {"stages.0.unknowns.background": {"choices": [False, True], "when": {"stages.0.engine": "adam"}}}
#: ... and of some kinds. A background costs so much that it is searched where there is one.
ALSO: dict[str, dict[str, Any]] = {
    "background": LIT,
    "near_background": LIT,
    "no_probe": {"probe.start.defocus_m": {"low": -2e-4, "high": 2e-4}},
    "near_distance": {"distance": {"low": 0.8, "high": 1.25, "log": True}},
    "turned": {"data.transpose": [False, True], "data.flip_y": [False, True], "data.flip_x": [False, True]},
}


def found(path: Path, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The recipe that is found, as plain dicts, and what finding and running it took."""
    raw, reasons = described(path, [], folder / "auto")
    began, cpu = time.perf_counter(), time.process_time()
    made = decide(Recipe.parse(raw), Solo(), reasons=reasons, write=False)
    took = {"find_s": time.perf_counter() - began, "find_cpu_s": time.process_time() - cpu}
    plain = yaml.safe_load(made.recipe.to_yaml())
    return plain, {**took, "reasons": made.reasons}


def score(plain: dict[str, Any]) -> dict[str, float]:
    """Held-out residual of a recipe, and what it takes."""
    recipe = Recipe.parse({**plain, "hold_out": FRACTION, "auto": None})
    began, cpu = time.perf_counter(), time.process_time()
    *_, (_, residual) = objectives.values(HeldOut(every=10**9), recipe, Solo(), lambda: False)
    return {"residual": residual, "run_s": time.perf_counter() - began, "run_cpu_s": time.process_time() - cpu}


def studied(kind: str, path: Path, folder: Path, trials: int, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The best recipe of a study, as plain dicts, and what it was."""
    scan = described(path, [], folder / "study")[0]
    data = {**scan["data"]}
    space = {**SPACE, **ALSO.get(kind, {})}
    if kind == "near_distance":  # factors of what the file says
        from ptymesh.io import load_measurement
        from ptymesh.io.options import DataOptions, PositionOptions

        told = load_measurement(DataOptions.parse(data, "data"), PositionOptions()).geometry.distance_m
        low_high = space.pop("distance")
        space["data.distance_m"] = {**low_high, "low": low_high["low"] * told, "high": low_high["high"] * told}
    if kind == "no_probe":
        space["probe.start.kind"] = ["data"]
    if kind == "turned":
        data = {key: value for key, value in data.items() if key not in ("transpose", "flip_y", "flip_x")}
    tuning = Tuning.parse(
        {
            "recipe": {"data": data, "stages": [{"engine": "rpie", "epochs": 50}], "output": {"dir": str(folder)}},
            "space": space,
            "objective": {"kind": "held_out", "fraction": FRACTION, "every": 10**9},
            "trials": trials,
            "seed": seed,
            "sampler": {"name": "tpe", "options": {"multivariate": True, "group": True}},
            "pruner": "nop",
            "output": {"dir": str(folder / "study")},
        }
    )
    began, cpu = time.perf_counter(), time.process_time()
    outcome = run_study(tuning, workers=1, device="cpu", force=True, quiet=True, reconstruct=False)
    assert outcome is not None
    took = {"study_s": time.perf_counter() - began, "study_cpu_s": time.process_time() - cpu}
    done = sum(one.state == "done" for one in outcome.trials)
    best = outcome.best
    plain = {**best.recipe}
    return plain, {**took, "trials": len(outcome.trials), "done": done, "best": best.value, "settings": best.settings}


def compared(kind: str, seed: int, trials: int) -> dict[str, Any]:
    """One scan."""
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(name)
        path = kinds.write(kind, seed, folder / "scan.cxi")
        ours, how = found(path, folder)
        row: dict[str, Any] = {"kind": kind, "seed": seed, "found": {**how, **score(ours), "stages": ours["stages"]}}
        if trials:
            best, study = studied(kind, path, folder, trials, seed)
            row["study"] = {**study, **score(best)}
            row["ratio"] = row["found"]["residual"] / row["study"]["residual"]
        return row


def main() -> None:
    """All kinds, or those that are asked for; prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[101])
    parser.add_argument("--only", nargs="*", default=list(kinds.KINDS), metavar="KIND")
    parser.add_argument("--trials", type=int, default=100, help="of each study; 0: none")
    parser.add_argument("--out", type=Path, help="JSON file, to which rows are added")
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    rows = json.loads(given.out.read_text())["rows"] if given.out and given.out.exists() else []
    here = about()
    for seed in given.seeds:
        for kind in given.only:
            row = compared(kind, seed, given.trials)
            rows.append(row)
            beside = f"  {row['ratio']:.3f} of the study's {row['study']['residual']:.5f}" if given.trials else ""
            took = f"{row['found']['find_cpu_s']:.1f} + {row['found']['run_cpu_s']:.1f} CPU s"
            print(f"{kind:16s} {seed}  {row['found']['residual']:.5f}{beside}  {took}", flush=True)
            write(given.out, {**here, "space": SPACE, "also": ALSO, "rows": rows})


if __name__ == "__main__":
    sys.exit(main())
