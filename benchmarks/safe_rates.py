"""What switching any one unknown on, at its default rate, does to the held-out residual.

    python benchmarks/safe_rates.py --star siemens-star-small.npz.bz2 --cryo cryo-4dstem-40x40.h5

On the Siemens star, 320 views of the cryo set, a simulated near field and a simulated multislice scan: each unknown
that means something there is refined, with defaults, from the first epoch on, beside the same stage without it.
Held-out views judge; what a view has for itself is fitted on half of its pixels and judged on the other half. A defocus
of each view, which that cannot fit, stays at zero in held-out views. The bar: 2 % above the residual without.

`python docs/measured.py` makes the table of the newest file (docs/background/stages-found.md).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import ptymesh  # noqa: F401 - before torch, so that both use the same threads

# isort: split
import torch
from record import about
from record import write as write_record

from ptymesh.distributed.world import Solo
from ptymesh.errors import BadInput, Diverged
from ptymesh.recipe.schema import Recipe
from ptymesh.run.session import reconstruction
from ptymesh.run.simulate_file import write
from ptymesh.simulate import checked

BAR, FRACTION = 1.02, 0.1
RPIE: dict[str, Any] = {"engine": "rpie"}
ADAM: dict[str, Any] = {"engine": "adam"}
#: Name: the stage without it, what the stage says more, and what the recipe does.
UNKNOWNS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "positions": (RPIE, {"positions": True}, {}),
    "intensity": (RPIE, {"probe": {"intensity": True}}, {}),
    "opr": (RPIE, {}, {"probe": {"opr_modes": 2}}),
    "aberrations": (RPIE, {"models": {"aberrations": {"residue": True}}}, {}),
    "scan_geometry": (RPIE, {"models": {"scan_geometry": True}}, {}),
    "lsqml positions": ({"engine": "lsqml"}, {"positions": True}, {}),
    "lsqml intensity": ({"engine": "lsqml"}, {"probe": {"intensity": True}}, {}),
    "adam positions": (ADAM, {"positions": True}, {}),
    "adam intensity": (ADAM, {"probe": {"intensity": True}}, {}),
    "background": (ADAM, {"unknowns": {"background": True}}, {}),
    "view_defocus": (ADAM, {"unknowns": {"defocus": True}}, {"optics": {"view_defocus": True}}),
    "slice_spacing": (ADAM, {"unknowns": {"slice_spacing": True}}, {}),
    "tilt": (ADAM, {"unknowns": {"tilt": True}}, {}),
}


def data_sets(folder: Path, star: Path | None, cryo: Path | None) -> dict[str, dict[str, Any]]:
    """Recipes without stages, by name."""
    found: dict[str, dict[str, Any]] = {}
    if star:
        found["star"] = {"data": {"path": str(star)}}
    if cryo:
        found["cryo"] = {
            "data": {
                "path": str(cryo),
                "keys": {"patterns": "/data", "pattern_axes": "rcyx"},
                "radiation": "electron",
                "energy_eV": 300e3,
                "object_pixel_m": 4.65e-10,
                "transpose": True,
                "views": {"central": 320},
            },
            "positions": {"raster": {"shape": [40, 40], "step_m": 31.25e-10}, "rotation_deg": -126},
            "probe": {
                "start": {"kind": "electron", "semiangle_rad": 1.03e-3, "aberrations_m": {"C10": -13.5e-6}},
            },
        }
    simulated = {
        "near": {"kind": "near", "views": 150, "window": 64},
        "multislice": {"kind": "electron", "views": 150, "window": 64},
    }
    for name, options in simulated.items():
        made = checked(seed=7, **options)
        write(made, folder / f"{name}.cxi", force=True)
        found[name] = {"data": {"path": str(folder / f"{name}.cxi")}}
    found["multislice"]["object"] = {"slices": 2, "slice_spacing_m": 1.5 * 0.25e-10 / (2.5079e-12 / (6 * 0.25e-10))}
    return found


def residual(raw: dict[str, Any], stage: dict[str, Any], epochs: int) -> float:
    """Held out, after so many epochs."""
    recipe = Recipe.parse({**raw, "stages": [{**stage, "epochs": epochs, "batch": 32}], "hold_out": FRACTION})
    recon = reconstruction(recipe, Solo())
    try:
        loop = recon.loop(hold_out=FRACTION)
        loop.run()
        return float(recon.state.history["held_out"][-1])
    finally:
        recon.close()


def main() -> None:
    """Prints a line per data set and unknown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--star", type=Path)
    parser.add_argument("--cryo", type=Path)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=list(UNKNOWNS), metavar="UNKNOWN")
    parser.add_argument("--data", nargs="*", metavar="SET", help="of star, cryo, near, multislice")
    parser.add_argument("--out", type=Path, help="JSON file")
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    began, rows, here = time.process_time(), [], about()
    with tempfile.TemporaryDirectory() as name:
        for data, raw in data_sets(Path(name), given.star, given.cryo).items():
            if given.data and data not in given.data:
                continue
            without: dict[str, float] = {}
            for unknown in given.only:
                plain, stage, more = UNKNOWNS[unknown]
                key = str(plain)
                try:
                    if key not in without:
                        without[key] = residual(raw, plain, given.epochs)
                    merged = {**raw, **{k: {**raw.get(k, {}), **v} for k, v in more.items()}}
                    ratio = residual(merged, {**plain, **stage}, given.epochs) / without[key]
                except BadInput:  # it has no meaning there
                    continue
                except Diverged:
                    ratio = float("inf")
                rows.append({"data": data, "unknown": unknown, "without": without[key], "ratio": ratio})
                print(f"{data:12s} {unknown:16s} {ratio:.4f} of {without[key]:.5f}", flush=True)
                took = {"epochs": given.epochs, "bar": BAR, "cpu_seconds": round(time.process_time() - began)}
                write_record(given.out, {**here, **took, "rows": rows})


if __name__ == "__main__":
    main()
