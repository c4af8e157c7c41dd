"""What the documentation says of its examples, measured again: final residuals, and unknowns that were told wrong.

    python benchmarks/examples.py [--star FILE] [--cryo FILE] [--only NAME ...] [--out examples.json]

FILE are siemens-star-small.npz.bz2 and cryo-4dstem-40x40.h5; without one, its examples are left out. The numbers do not
depend on the machine but for its rounding; seconds are not noted.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import ptymesh as pm  # before torch, so that both use the same threads

# isort: split
from record import about, write

from ptymesh.recipe.schema import load_recipe
from ptymesh.run.session import run_recipe
from ptymesh.simulate import simulate

EXAMPLES = Path(__file__).parents[1] / "examples"
OPPOSITE = ("positions.rotation_deg=54",)
C10 = "probe.start.aberrations_m.C10"

#: Name: (recipe, what is changed by --set).
RECIPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "star": ("siemens-star", ()),
    "cryo": ("cryo-4dstem", ()),
    "cryo, not transposed": ("cryo-4dstem", ("data.transpose=false",)),
    "cryo, turned by 180 degrees": ("cryo-4dstem", OPPOSITE),
    "cryo, its twin": ("cryo-4dstem", (*OPPOSITE, f"{C10}=13.5e-6")),
    "defocus from -10 um": ("cryo-4dstem-aberrations", ()),
    "defocus from -10 um, seed 1": ("cryo-4dstem-aberrations", ("seed=1",)),
    "defocus from -10 um, full steps": ("cryo-4dstem-aberrations", ("stages.0.gamma_object=1",)),
    "defocus from -17 um": ("cryo-4dstem-aberrations", (f"{C10}=-17e-6",)),
    "defocus from -7 um": ("cryo-4dstem-aberrations", (f"{C10}=-7e-6",)),
}


def example(recipe: str, changes: tuple[str, ...], data: Path) -> dict[str, float]:
    """Final residual and R of a recipe of examples/, and C10 where it was refined."""
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"data.path={data.absolute()}", "output.figures=false", *changes]
        result = run_recipe(load_recipe(EXAMPLES / f"{recipe}.yaml", settings, Path(folder)), device="cpu").result
    found = {name: float(result.attrs[name]) for name in ("final_residual", "final_r")}
    return found | {f"{term}_m": value for term, value in result.parameters.get("aberrations", {}).items()}


def scan_geometry() -> dict[str, float]:
    """The largest errors of three scans that were told 1 degree and 1 % wrong, with 0.5 px of jitter besides."""
    errors = []
    for seed in (0, 1, 2):
        options = {"views": 200, "window": 64, "overlap": 0.7, "position_error_px": 0.5, "probe_guess": "true"}
        scan = simulate(kind="xray", seed=seed, **options).measurement
        middle, angle = scan.positions.mean(axis=0), math.radians(1)
        turn = 1.01 * np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        recon = pm.Reconstruction(replace(scan, positions=(scan.positions - middle) @ turn.T + middle), device="cpu")
        stage = {"engine": "lsqml", "epochs": 50, "batch": 50, "positions": True, "models": {"scan_geometry": True}}
        for _ in recon.run(stage):
            pass
        found = recon.state.estimate.parameters["scan_geometry"]
        errors.append((abs(math.degrees(found["rotation"]) + 1), abs(1.01 * (1 + found["scale"]) - 1)))
    rotation, scale = np.max(errors, axis=0)
    return {"rotation_error_deg": float(rotation), "scale_error": float(scale)}


SIMULATED: dict[str, Callable[[], dict[str, float]]] = {"scan geometry": scan_geometry}


def main() -> None:
    """Prints a line as each is done, and writes all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--star", type=Path)
    parser.add_argument("--cryo", type=Path)
    parser.add_argument("--only", nargs="*", choices=[*RECIPES, *SIMULATED], default=[*RECIPES, *SIMULATED])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found: dict[str, Any] = about()
    for name in given.only:
        if name in SIMULATED:
            found[name] = SIMULATED[name]()
        else:
            recipe, changes = RECIPES[name]
            data = given.star if recipe == "siemens-star" else given.cryo
            if data is None:
                continue
            found[name] = example(recipe, changes, data)
        print(f"{name:34s}" + "  ".join(f"{key} {value:.6g}" for key, value in found[name].items()), flush=True)
        write(given.out, found)


if __name__ == "__main__":
    main()
