"""Is the wrong one of two twins believed? Simulated crystals behind a lens, calibrated, and run both ways.

    python benchmarks/twins.py [--only gold_4nm silicon_8nm] [--views 256] [--processes 2] --out F

Each scan is made by the multislice of `ptymesh simulate --kind crystal`, atom by atom. Then

- `ptymesh calibrate` chooses a lens and orientation, from the file alone;
- short runs compare the true lens with its twin, as `calibrate`, the end of a run and `ptymesh diagnose` do;
- both are run with the default stages, as a potential of slices of 2 nm, and as one slice: verdict, times of what
  counting leaves, cause.

`graphene` is so thin and its dose so low that nothing tells the twins apart: whatever is settled there is wrong by
luck or right by luck.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: one thread for each process

from record import about, write

from ptymesh.calibrate import calibrate
from ptymesh.diagnosis.report import report
from ptymesh.io import load_measurement
from ptymesh.io.results import Result
from ptymesh.recipe.schema import Recipe
from ptymesh.run.session import run_recipe
from ptymesh.run.simulate_file import write as write_scan
from ptymesh.run.trials.twins import compare_with_twin
from ptymesh.simulate import Simulation, checked

#: Thickness of a slice of the runs, in metres.
SLICE_M = 2e-9
#: Beams of finer steps and more electrons, and a sheet of carbon.
FINE = {"dose_e_per_A2": 1e6, "semiangle_rad": 25e-3, "step_m": 0.5e-10, "aberrations_m": {"C10": -10e-9}}
SHEET = {
    "cell_m": [2.46e-10, 4.26e-10, 6.7e-10],
    "sites": [["C", 0, 0, 0.25], ["C", 0, 1 / 3, 0.25], ["C", 0.5, 0.5, 0.25], ["C", 0.5, 5 / 6, 0.25]],
}
#: Options of each crystal beyond the defaults of `--crystal`; the seed of its scan.
CRYSTALS: dict[str, tuple[dict[str, Any], int]] = {
    "graphene": ({**SHEET, **FINE, "thickness_m": 3.4e-10, "rotation_deg": 7, "dose_e_per_A2": 1e4}, 5),
    "molybdenum_disulfide_1.3nm": ({**FINE, "structure": "molybdenum_disulfide", "thickness_m": 1.3e-9}, 3),
    "gold_3nm": ({**FINE, "structure": "gold", "thickness_m": 3e-9, "rotation_deg": 5}, 6),
    "gold_4nm": ({**FINE, "structure": "gold", "thickness_m": 4e-9, "rotation_deg": 5}, 7),
    "gold_4nm_coarse": ({"structure": "gold", "thickness_m": 4e-9, "rotation_deg": 5}, 1),
    "aluminium_5nm": ({"structure": "aluminium", "thickness_m": 5e-9, "rotation_deg": 5}, 2),
    "strontium_titanate_6nm": ({"structure": "strontium_titanate", "thickness_m": 6e-9, "rotation_deg": 5}, 1),
    "silicon_8nm": ({"structure": "silicon", "thickness_m": 8e-9, "rotation_deg": 5}, 1),
    "gallium_arsenide_15nm": ({"structure": "gallium_arsenide", "thickness_m": 15e-9, "rotation_deg": 3, **FINE}, 4),
}


@dataclass(frozen=True)
class Task:
    """One crystal.

    Attributes:
        name: in CRYSTALS.
        views: of its scan.
    """

    name: str
    views: int

    def simulate(self, folder: Path) -> tuple[Path, dict[str, Any]]:
        """Return the file of the scan, and the options of its crystal with their defaults."""
        crystal, seed = CRYSTALS[self.name]
        raw = {"kind": "crystal", "scan": "raster", "views": self.views, "window": 64, "seed": seed, "crystal": crystal}
        options = checked(Simulation.parse(raw))
        assert options.crystal is not None
        return write_scan(options, folder / "scan.cxi")[0], options.crystal.model_dump()


def recipe_of(path: Path, crystal: dict[str, Any], *, is_twin: bool, slices: int, out: Path) -> Recipe:
    """Return the recipe of a scan behind the lens that it was made with, or behind the opposite one."""
    c10 = crystal["aberrations_m"]["C10"]
    lens = {"C10": -c10 if is_twin else c10}
    obj: dict[str, Any] = {"kind": "potential"}
    if slices > 1:
        obj |= {"slices": slices, "slice_spacing_m": crystal["thickness_m"] / slices}
    return Recipe.parse(
        {
            "data": {"path": str(path)},
            "positions": {"rotation_deg": 180.0 if is_twin else 0.0},
            "object": obj,
            "probe": {
                "modes": 2,
                "start": {"kind": "electron", "semiangle_rad": crystal["semiangle_rad"], "aberrations_m": lens},
            },
            "optics": {"detector_transfer": {"pixel_side": 1}},
            "output": {"dir": str(out), "figures": False},
        }
    )


def run(recipe: Recipe) -> dict[str, Any]:
    """Run a recipe, and return its verdict and what `ptymesh diagnose` names first, with its trials."""
    began = time.process_time()
    outcome = run_recipe(recipe)
    seconds = time.process_time() - began
    result = Result.load(outcome.path)
    found = report(result, load_measurement(recipe.data, recipe.positions), trials_s=1e-9)
    return {
        "verdict": result.verdict,
        "sentence": result.attrs["verdict_sentence"],
        "times": result.attrs["times_noise"],
        "causes": list(result.attrs.get("verdict_causes", ())),
        "first_cause": found.findings[0].cause if found.findings else None,
        "cpu_s": round(seconds, 1),
    }


def judge(task: Task) -> dict[str, Any]:
    """Return all that is said of one crystal."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        path, crystal = task.simulate(folder)
        lens = calibrate({"data": {"path": str(path)}, "stages": "auto"})
        away = abs((lens.lens.rotation_deg + 180) % 360 - 180)
        row: dict[str, Any] = {
            "crystal": task.name,
            "views": task.views,
            "calibrate": {
                "orientation_from": lens.orientation_from,
                "settled": lens.settled,
                "transpose": lens.lens.transpose,
                "rotation_deg": lens.lens.rotation_deg,
                "c10_m": lens.lens.c10_m,
                "is_right_twin": None if lens.lens.transpose else away < 90,
            },
        }
        right = recipe_of(path, crystal, is_twin=False, slices=1, out=folder / "none")
        began = time.process_time()
        trial = compare_with_twin(right, (64, 64))
        assert trial is not None
        row["trial"] = {
            "right": trial.residual,
            "wrong": trial.of_twin,
            "standard_errors": trial.standard_errors,
            "is_clear": trial.is_clear,
            "cpu_s": round(time.process_time() - began, 1),
        }
        slices = math.ceil(crystal["thickness_m"] / SLICE_M)
        for count in sorted({1, slices}):
            for is_twin in (False, True):
                name = f"{'wrong' if is_twin else 'right'}, {count} slice{'s' * (count > 1)}"
                recipe = recipe_of(path, crystal, is_twin=is_twin, slices=count, out=folder / name.replace(", ", "-"))
                row[name] = run(recipe)
                print(task.name, name, row[name], flush=True)
        print(row["crystal"], row["calibrate"], row["trial"], flush=True)
        return row


def main() -> None:
    """Make, calibrate and run all crystals, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", metavar="CRYSTAL", default=list(CRYSTALS))
    parser.add_argument("--views", type=int, default=256, help="of each scan")
    parser.add_argument("--processes", type=int, default=1, help="of one thread each")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    machine, rows = about(threads=1), []
    with ProcessPoolExecutor(given.processes) as pool:
        for row in pool.map(judge, [Task(name, given.views) for name in given.only]):
            rows.append(row)
            write(given.out, machine | {"crystals": rows})


if __name__ == "__main__":
    main()
