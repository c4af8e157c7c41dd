"""PtyRAD on the two crystals of ../electrons.py, told wrongly in the same way, beside our own reconstructions.

    python benchmarks/peers/ptyrad_crystals.py --python PEERS/bin/python --seeds 1 2 3 --side 20 --out F

PEERS is the environment that compare.py makes. PtyRAD gets the same counts, positions (turned by 1 degree), thickness
and starting beam as ours, and three probe modes; the slices that are told, or as thin ones as ours; its batches are
drawn anew in each run. Its `SETTINGS` are tried on the first seed and dose, 25 epochs each. The one with the largest
`sum` + `single`, which nobody knows who measures, runs on all other scans too, and ours beside it.

The functions of electrons.py judge all. PtyRAD refines the position of each view and the pixels of the probe: rotation
and lens are read from these, as they are of ours.

cpu_seconds     processor time of 25 epochs, on one thread: PtyRAD's from the first epoch to the last, times 25 / 24;
                ours with what is prepared before the first
residual        frozen, by ptymesh's model
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ptymesh as pm  # before torch, so that both use the same threads

# isort: split
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from electrons import (
    SEMIANGLE_RAD,
    SLICES,
    crystal,
    frozen_residual,
    geometry_errors,
    judged,
    patterns_without_noise,
    recipes,
    run,
    shown,
    told,
)
from record import about, write

from ptymesh.measurement import Measurement
from ptymesh.physics.model import Model, SliceStack
from ptymesh.simulate import Truth

EPOCHS, MODES = 25, 3


def setting(
    rates: float = 1.0, zblur: float | None = 1.0, kz_beta: float | None = None, sparsity: float = 0.0, **more: bool
) -> dict[str, Any]:
    """Return sections of PtyRAD's parameters: its template `standard`, but for what is said.

    Args:
        rates: factor of all learning rates.
        zblur: slices, standard deviation of the blur along the beam; None for no blur.
        kz_beta: strength of the filter along the beam, or None.
        sparsity: weight of the mean |phase|.
        more: `positive` keeps phases above zero, `falling` lets the rates fall to zero as a cosine.
    """
    learning: dict[str, float] = {"obja": 5e-4, "objp": 5e-4, "probe": 1e-4, "probe_pos_shifts": 5e-4}
    constraints: dict[str, Any] = {"obj_rblur": {"start_iter": None}, "obja_thresh": {"start_iter": 1}}
    constraints["obj_zblur"] = {"start_iter": None} if zblur is None else {"start_iter": 1, "std": zblur}
    if kz_beta is not None:
        constraints["kz_filter"] = {"start_iter": 1, "beta": kz_beta}
    if more.get("positive"):
        constraints["objp_postiv"] = {"start_iter": 1}
    model: dict[str, Any] = {
        "update_params": {key: {"start_iter": 1, "lr": rates * one} for key, one in learning.items()}
    }
    if more.get("falling"):
        model["scheduler_params"] = {"name": "CosineAnnealingLR", "configs": {"T_max": EPOCHS}}
    return {
        "init_params": {"probe_conv_angle": 1e3 * SEMIANGLE_RAD},
        "model_params": model,
        "constraint_params": constraints,
        "loss_params": {"loss_sparse": {"state": sparsity > 0, "weight": sparsity}},
    }


class Setting(NamedTuple):
    """What a run of PtyRAD is given.

    Attributes:
        batch: views of a batch.
        sections: of its parameters.
        parts: slices that each one which is told is made of.
    """

    batch: int
    sections: dict[str, Any]
    parts: int = 1


#: By name.
SETTINGS: dict[str, Setting] = {
    "template": Setting(32, setting()),
    "rates x 10": Setting(32, setting(10)),
    "rates x 10, batches of 16": Setting(16, setting(10)),
    "rates x 30, batches of 16": Setting(16, setting(30)),
    "rates x 30, batches of 16, positive": Setting(16, setting(30, positive=True)),
    "rates x 30, batches of 16, blur 0.5": Setting(16, setting(30, 0.5)),
    "rates x 60, batches of 16": Setting(16, setting(60)),
    "rates x 30, batches of 16, kz filter": Setting(16, setting(30, None, 1.0)),
    "rates x 30, batches of 16, blur 0.5, falling": Setting(16, setting(30, 0.5, falling=True)),
    "rates x 30, batches of 16, blur 0.5, positive, sparse": Setting(16, setting(30, 0.5, positive=True, sparsity=0.1)),
    "12 slices, rates x 15, batches of 16": Setting(16, setting(15), parts=2),
    "12 slices, rates x 15, batches of 16, falling": Setting(16, setting(15, falling=True), parts=2),
    "12 slices, rates x 30, batches of 16": Setting(16, setting(30), parts=2),
}


def write_scan(path: Path, scan: Measurement) -> None:
    """Write a scan as turns.py reads it."""
    assert scan.probe is not None
    counts = scan.patterns.read(np.arange(scan.views)).astype(np.float32)
    arrays = {"data": counts[None], "scan": scan.positions[None], "probe": scan.probe[None, None, :1]}
    np.savez(path, **arrays)


def run_ptyrad(python: Path, made: Truth, scan: Measurement, chosen: Setting) -> tuple[pm.Result, float, str]:
    """Return what PtyRAD has found, its seconds of all epochs, and its name with the version.

    Args:
        python: of an environment that has PtyRAD.
        made: the simulation.
        scan: as it is told.
        chosen: its setting.
    """
    pixel, spacing_m = made.geometry.object_pixel_m, made.slice_spacing_m / chosen.parts
    assert pixel is not None
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_scan(folder / "scan.npz", scan)
        (folder / "settings.json").write_text(json.dumps(chosen.sections), encoding="utf-8")
        words = {"engine": "adam", "modes": MODES, "batch": chosen.batch, "epochs": EPOCHS, "threads": 1}
        words |= {
            "slices": SLICES * chosen.parts,
            "spacing": spacing_m * 1e10,
            "pixel": pixel[0] * 1e10,
            "kilovolts": 300,
        }
        words |= {"settings": folder / "settings.json", "snapshots": folder, "seconds": "inf", "clock": "cpu"}
        command = [str(python), str(Path(__file__).with_name("ptyrad_run.py")), str(folder / "scan.npz"), "--positions"]
        command += [part for key, value in words.items() for part in (f"--{key}", str(value))]
        threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL")}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **threads})
        lines = [json.loads(line) for line in (folder / "snapshots.jsonl").read_text(encoding="utf-8").splitlines()]
        with np.load(folder / f"{EPOCHS}.npz") as found:
            saved = dict(found)
    taken = lines[-1]["seconds"] - lines[0]["seconds"]
    seconds = taken * EPOCHS / (lines[-1]["epoch"] - lines[0]["epoch"])
    phase = saved["objp"][0]
    result = pm.Result(
        object=saved["obja"][0] * np.exp(1j * phase),
        probe=saved["probe"] * np.sqrt(saved["scale"]),
        positions_px=saved["positions"].astype(float),
        pixel_size_m=pixel,
        slice_spacing_m=spacing_m,
        potential=phase,
    )
    return result, seconds, lines[-1]["about"]


def residual(made: Truth, scan: Measurement, result: pm.Result) -> float:
    """Return the frozen residual of a result by ptymesh's model."""
    stack = SliceStack(len(result.object), result.slice_spacing_m, (0.0, 0.0))
    model = Model.for_geometry(made.geometry, slices=stack, dtype=torch.complex128)
    obj, probe = (torch.from_numpy(one).to(torch.complex128) for one in (result.object, result.probe))
    at = torch.from_numpy(result.positions_px)
    anchors = torch.floor(at + 0.5).to(torch.int64)
    counts, left = scan.patterns.read(np.arange(scan.views)).astype(float), 0.0
    for start in range(0, scan.views, 16):
        views = slice(start, start + 16)
        found = model.intensity(obj, probe, anchors[views], (at - anchors)[views])
        left += float(((np.sqrt(found.numpy()) - np.sqrt(counts[views])) ** 2).sum())
    return left / float(counts.sum())


@cache
def scan_of(seed: int, dose: float, side: int, work: Path | None) -> tuple[Truth, Measurement, float]:
    """Return a simulation, its scan as it is told, and the frozen residual of its truth."""
    made = crystal(seed, side)
    scan = told(made, patterns_without_noise(made, work, f"crystal-{seed}-{side}.npy"), dose)
    return made, scan, frozen_residual(made, scan)


def measured(python: Path, chosen: Setting | str, simulated: tuple[Truth, Measurement, float]) -> dict[str, Any]:
    """Return what the result of a run is worth.

    Args:
        python: of an environment that has PtyRAD.
        chosen: setting of PtyRAD, or the name of our recipe.
        simulated: what `scan_of` returns.
    """
    made, scan, truth_residual = simulated
    if isinstance(chosen, Setting):
        result, taken, version = run_ptyrad(python, made, scan, chosen)
        seconds, left = {"cpu_seconds": taken}, residual(made, scan, result)
    else:
        result, seconds = run(made, scan, recipes()[chosen], made.options.seed)
        version, left = f"ptymesh {pm.__version__}", float(result.attrs["final_residual"])  # type: ignore[arg-type]
    found = {"about": version, **judged(made, result), **geometry_errors(made, result, scan), "residual": left}
    return found | {"truth_residual": truth_residual, **seconds}


def main() -> None:
    """One line a run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", type=Path, required=True, help="of an environment that has PtyRAD")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--doses", type=float, nargs="+", default=[1e6, 5e4])
    parser.add_argument("--side", type=int, default=20, help="views along a side of the scan")
    parser.add_argument("--search", nargs="+", choices=list(SETTINGS), default=list(SETTINGS), help="PtyRAD's settings")
    parser.add_argument("--ours", nargs="+", choices=list(recipes()), default=["potential"], help="our recipes")
    parser.add_argument("--work", type=Path, help="folder in which patterns without noise are kept")
    parser.add_argument("--out", type=Path, required=True, help="runs that it holds are not done again")
    given = parser.parse_args()
    rows = json.loads(given.out.read_text(encoding="utf-8"))["runs"] if given.out.exists() else []

    def judge(program: str, name: str, seed: int, dose: float) -> dict[str, Any]:
        """Return the row of a run, done before or now."""
        key = {"program": program, "setting": name, "epochs": EPOCHS, "dose": dose, "seed": seed}
        done = [row for row in rows if key.items() <= row.items()]
        if not done:
            chosen = SETTINGS[name] if program == "ptyrad" else name
            done = [key | measured(given.python.absolute(), chosen, scan_of(seed, dose, given.side, given.work))]
            rows.extend(done)
            print(
                f"{done[0]['cpu_seconds']:.1f} s, {program} {shown({**done[0], 'recipe': name})}",
                flush=True,
            )
            write(given.out, {**about(), "side": given.side, "runs": rows})
        return done[0]

    searched = [judge("ptyrad", name, given.seeds[0], given.doses[0]) for name in given.search]
    best = max(searched, key=lambda one: float(one["sum"]) + float(one["single"]))["setting"]
    for dose in given.doses:
        for seed in given.seeds:
            judge("ptyrad", best, seed, dose)
            for name in given.ours:
                judge("ptymesh", name, seed, dose)


if __name__ == "__main__":
    main()
