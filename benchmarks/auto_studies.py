"""Recipes that ptymesh finds for simulated scans, beside the best recipe of a study of each scan.

    python benchmarks/auto_studies.py --seeds 101 --trials 100 --out benchmarks/results/DATE-auto-studies.json

For every kind of benchmarks/kinds.py: the scan is written into a file, `ptymesh run FILE` finds a recipe, and what
`ptymesh tune` does searches the space below with as many trials. Both recipes are then run with the same views
held out, and compared by the residual of these (what a recipe refines for each view is fitted on half of its pixels,
and judged on the other half). Seeds below 100 were used to choose what `ptymesh run` does. Measured scans, of --star
and --cryo, are two more kinds.

A command that is stopped loses nothing: with the same --work, studies go on where they were, and those that are in
--out with as many trials are not made again. `--what study` and `--what found` do one half alone. `--what found
borrowed` makes no study: it runs the best recipe of one that is in --out, of the same kind and seed or else of another
seed, and judges it as today's code does.

`python docs/measured.py` makes the table of the newest file (docs/background/stages-found.md).
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ptymesh  # noqa: F401 - before torch, so that both use the same threads

# isort: split
import kinds
import torch
import yaml
from record import about, write

from ptymesh.auto.data import described
from ptymesh.distributed.world import Solo
from ptymesh.errors import Interrupted
from ptymesh.io import load_measurement
from ptymesh.io.options import DataOptions, PositionOptions
from ptymesh.recipe.schema import Recipe, put
from ptymesh.tune import objectives
from ptymesh.tune.options import HeldOut, Tuning
from ptymesh.tune.session import run_study

#: Share of the views that neither recipe sees when they are compared.
FRACTION = 0.15
#: What a study may choose.
SPACE: dict[str, Any] = {
    "stages.0.engine": ["rpie", "lsqml", "adam"],
    "stages.0.epochs": {"low": 10, "high": 30, "log": True},
    "stages.0.batch": {"low": 16, "high": 64, "log": True},
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
    "cryo": {"probe.start.defocus_m": {"low": -3e-5, "high": 3e-5}},
    "near_distance": {"distance": {"low": 0.8, "high": 1.25, "log": True}},
    "turned": {
        "data.transpose": [False, True],
        "data.flip_y": [False, True],
        "data.flip_x": [False, True],
        "probe.start.defocus_m": {"low": -2e-4, "high": 2e-4},
    },
}
#: How; hopeless trials are ended after so many epochs, and three times as many. The best one is run longer at last, so
#: many times, and the best of these is what counts.
SAMPLER = {"name": "tpe", "options": {"multivariate": True, "group": True}}
EVERY = 6
PRUNER = {"name": "successive_halving", "options": {"min_resource": EVERY, "reduction_factor": 3}}
LONGER = (1, 2, 4)
#: Measured scans, and what their files cannot say.
MEASURED: dict[str, tuple[str, ...]] = {
    "star": (),
    "cryo": (
        "data.radiation=electron",
        "data.energy_eV=300000",
        "data.views={central: 320}",
        "positions.raster={shape: [40, 40], step_m: 31.25e-10}",
        "probe.start={kind: electron, semiangle_rad: 1.03e-3}",
    ),
}


@dataclass(frozen=True)
class Case:
    """A scan in a file, and what the file cannot say: settings of the recipe."""

    kind: str
    seed: int
    path: Path
    settings: tuple[str, ...]
    folder: Path


def case(kind: str, seed: int, given: argparse.Namespace, folder: Path) -> Case:
    """Of a measured scan, or a simulated one, which is written where it is not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind in MEASURED:
        return Case(kind, 0, getattr(given, kind), MEASURED[kind], folder)
    path = folder / "scan.cxi"
    return Case(kind, seed, path if path.exists() else kinds.write(kind, seed, path), (), folder)


def found(scan: Case) -> dict[str, Any]:
    """The recipe that the command finds for the file alone, how good it is, and what the whole command takes."""
    out = scan.folder / "auto"
    settings = [part for setting in scan.settings for part in ("--set", setting)]
    command = [sys.executable, "-m", "ptymesh", "run", str(scan.path), *settings, "--out", str(out), "--force"]
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    text = (out / "recipe.yaml").read_text(encoding="utf-8")
    plain = yaml.safe_load(text)
    reasons = [row.strip() for row in text.splitlines() if row.lstrip().startswith("#")]
    return {"command_s": seconds, "command_cpu_s": cpu, **score(plain), "recipe": said(plain), "reasons": reasons}


def score(plain: dict[str, Any]) -> dict[str, float]:
    """Held-out residual of a recipe, and what it takes."""
    recipe = Recipe.parse({**plain, "hold_out": FRACTION, "auto": None})
    began, cpu = time.perf_counter(), time.process_time()
    *_, (_, residual) = objectives.values(HeldOut(every=10**9), recipe, Solo(), lambda: False)
    return {"residual": residual, "run_s": time.perf_counter() - began, "run_cpu_s": time.process_time() - cpu}


def said(plain: dict[str, Any]) -> dict[str, Any]:
    """What of a recipe departs from the defaults, without names of files."""
    recipe = Recipe.parse(plain)
    short = recipe.model_dump(mode="json", exclude_defaults=True, exclude={"stages", "auto", "output"})
    short["data"].pop("path")
    short["stages"] = [
        {"engine": stage.name, "epochs": stage.epochs, **stage.model_dump(mode="json", exclude_defaults=True)}
        for stage in recipe.stages
    ]
    return short


def searched(scan: Case) -> dict[str, Any]:
    """The recipe that a study starts from: what the file says, without stages that were found."""
    raw = described(scan.path, scan.settings, scan.folder / "study")[0]
    data = {**raw["data"]}
    if scan.kind == "turned":
        data = {key: value for key, value in data.items() if key not in ("transpose", "flip_y", "flip_x")}
    recipe = {**{key: raw[key] for key in ("positions", "probe") if key in raw}, "data": data}
    return recipe | {"stages": [{"engine": "rpie", "epochs": 50}], "output": {"dir": str(scan.folder)}}


def borrowed(scan: Case, study: dict[str, Any]) -> dict[str, Any]:
    """How good the best recipe of a study of the same kind is for this scan."""
    recipe = copy.deepcopy(searched(scan))
    for key, value in {**study["settings"], "stages.0.epochs": study["epochs"]}.items():
        if key == "probe.start.defocus_m" and "start" not in (recipe.get("probe") or {}):
            put(recipe, "probe.start.kind", "data", "study")
        put(recipe, key, value, "study")
    return score(recipe)


def studied(scan: Case, trials: int) -> dict[str, Any]:
    """The best recipe of a study, how good it is, and what it took. Raises Interrupted; the same call goes on."""
    recipe, space = searched(scan), {**SPACE, **ALSO.get(scan.kind, {})}
    if scan.kind == "near_distance":  # factors of what the file says
        told = load_measurement(DataOptions.parse(recipe["data"], "data"), PositionOptions()).geometry.distance_m
        low_high = space.pop("distance")
        space["data.distance_m"] = {**low_high, "low": low_high["low"] * told, "high": low_high["high"] * told}
    if scan.kind in ("no_probe", "turned"):
        space["probe.start.kind"] = ["data"]
    tuning = Tuning.parse(
        {
            "recipe": recipe,
            "space": space,
            "objective": {"kind": "held_out", "fraction": FRACTION, "every": EVERY},
            "trials": trials,
            "seed": scan.seed,
            "sampler": SAMPLER,
            "pruner": PRUNER,
            "output": {"dir": str(scan.folder / "study")},
        }
    )
    outcome = run_study(tuning, workers=1, device="cpu", quiet=True, reconstruct=False)
    assert outcome is not None
    best, (stage,) = outcome.best, outcome.best.recipe["stages"]
    longer = {
        times: score({**best.recipe, "stages": [{**stage, "epochs": times * stage["epochs"]}]}) for times in LONGER
    }
    times = min(longer, key=lambda one: longer[one]["residual"])
    return {
        **longer[times],
        "times_longer": times,
        "epochs": times * stage["epochs"],
        "best_trial": best.value,
        "trials": dict(Counter(one.state for one in outcome.trials)),
        "study_s": sum(one.seconds or 0.0 for one in outcome.trials),
        "settings": best.settings,
    }


def line(row: dict[str, Any]) -> str:
    """A row, as far as it is known."""
    ours, best = row.get("found"), row.get("study")
    text = f"{row['kind']:16s} {row['seed']:4d}"
    if ours:
        text += f"  found {ours['residual']:.5f} ({ours['command_s']:.1f} s, the recipe {ours['run_s']:.1f} s)"
    if best:
        text += f"  study {best['residual']:.5f} ({best['run_s']:.1f} s; {best['trials']} in {best['study_s']:.0f} s)"
    if "borrowed" in row:
        text += f"  borrowed of {row['borrowed']['seed']} {row['borrowed']['residual']:.5f}"
    return text + (f"  ratio {row['ratio']:.3f}" if "ratio" in row else "")


def reference(row: dict[str, Any]) -> dict[str, Any]:
    """What a recipe that was found is held against."""
    return row.get("borrowed") or row.get("study") or {}


def main() -> None:
    """All kinds, or those that are asked for; prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[101])
    parser.add_argument("--only", nargs="*", metavar="KIND")
    parser.add_argument("--trials", type=int, default=100, help="of each study")
    parser.add_argument("--what", nargs="+", choices=("found", "study", "borrowed"), default=["found", "study"])
    parser.add_argument("--star", type=Path, help="siemens-star-small.npz.bz2")
    parser.add_argument("--cryo", type=Path, help="cryo-4dstem-40x40.h5")
    parser.add_argument("--work", type=Path, help="folder for scans and studies, which stay there")
    parser.add_argument("--out", type=Path, help="JSON file, in which rows are written")
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    rows = json.loads(given.out.read_text())["rows"] if given.out and given.out.exists() else []
    here = about()
    search = {"space": SPACE, "also": ALSO, "sampler": SAMPLER, "pruner": PRUNER, "hold_out": FRACTION}

    def keep() -> None:
        for row in rows:
            if "found" in row and reference(row):
                row["ratio"] = row["found"]["residual"] / reference(row)["residual"]
        write(given.out, {**here, **search, "rows": rows})

    named = given.only or [*(kind for kind in MEASURED if getattr(given, kind)), *kinds.KINDS]
    with tempfile.TemporaryDirectory() as temporary:
        pairs = [(name, seed) for name in named for seed in ([0] if name in MEASURED else given.seeds)]
        for kind, seed in pairs:
            scan = case(kind, seed, given, (given.work or Path(temporary)) / f"{kind}-{seed}")
            row = next((row for row in rows if (row["kind"], row["seed"]) == (kind, seed)), None)
            if row is None:
                rows.append(row := {"kind": kind, "seed": seed})
            with contextlib.redirect_stdout(io.StringIO()):
                if "found" in given.what:
                    row["found"] = found(scan)
                    keep()
                if "study" in given.what and sum(row.get("study", {}).get("trials", {}).values()) < given.trials:
                    try:
                        row["study"] = studied(scan, given.trials)
                    except Interrupted:
                        sys.exit(f"{kind} {seed}: stopped; the same command goes on with the study.")
                lenders = [one for one in rows if one["kind"] == kind and "study" in one]
                lenders.sort(key=lambda one: one["seed"] != seed)
                for lender in lenders[:1] if "borrowed" in given.what else []:
                    row["borrowed"] = {**borrowed(scan, lender["study"]), "seed": lender["seed"]}
            keep()
            print(line(row), flush=True)


if __name__ == "__main__":
    sys.exit(main())
