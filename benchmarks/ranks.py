"""Ranks of one thread against one rank with the threads of all: `ptymesh bench --ranks` of several recipes.

    python benchmarks/ranks.py path/to/siemens-star-small.npz.bz2 [--engines rpie,adam,lsqml] [--batches 64,256,32]
        [--layouts replicated,tiled] [--modes 1,4] [--ranks 1,2] [--epochs 10] [--trials 3] [--out ranks.json]

Prints a line as each recipe is done: the speed of the most ranks over that of the threads, the median over trials in
turns and its range, and whether all results have the same bits. What others measured before stays in the file of --out,
and is not measured again. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from record import about, write

PLACES = 4


def measured(given: argparse.Namespace, engine: str, batch: int, layout: str, modes: int) -> dict[str, Any]:
    """Seconds per epoch of every trial by what ran, and what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        recipe, out = Path(folder) / "recipe.yaml", Path(folder) / "scaling"
        stage = {"engine": engine, "epochs": given.epochs, "batch": batch}
        raw = {"data": {"path": str(given.star)}, "layout": layout, "probe": {"modes": modes}, "stages": [stage]}
        recipe.write_text(json.dumps(raw), encoding="utf-8")  # which is YAML
        words = ["--ranks", given.ranks, "--trials", str(given.trials), "--threads", "1", "--also", "threads"]
        subprocess.run([sys.executable, "-m", "ptymesh", "bench", recipe, *words, "--out", out], check=True)
        return summary(json.loads((out / "scaling.json").read_text(encoding="utf-8")))


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Of what `ptymesh bench --ranks` has written."""
    seconds: dict[str, list[float]] = {}
    for trial in found["trials"]:
        name = f"{trial['threads']} threads" if trial["kind"] == "threads" else f"{trial['ranks']} ranks"
        seconds.setdefault(name, []).append(round(statistics.median(trial["epoch_s"][1:]), PLACES))
    return {"seconds": seconds, "same_bits": found["same_bits"]} | {
        name: ratios(own, seconds) for name, own in seconds.items() if name.endswith("ranks") and name != "1 ranks"
    }


def ratios(own: list[float], seconds: dict[str, list[float]]) -> dict[str, float]:
    """Speed over that of the threads, trial by trial."""
    threads = next(values for name, values in seconds.items() if name.endswith("threads"))
    each = sorted(other / mine for mine, other in zip(own, threads, strict=True))
    low, middle, high = (round(value, 3) for value in (each[0], statistics.median(each), each[-1]))
    return {"of_threads": middle, "low": low, "high": high}


def main() -> None:
    """All recipes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("star", type=Path)
    parser.add_argument("--engines", default="rpie,adam,lsqml")
    parser.add_argument("--batches", default="64,256,32")
    parser.add_argument("--layouts", default="replicated,tiled")
    parser.add_argument("--modes", default="1,4")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = json.loads(given.out.read_text(encoding="utf-8")) if given.out and given.out.exists() else about()
    recipes = found.setdefault("recipes", {})
    asked = (given.modes, given.batches, given.layouts, given.engines)
    for modes, batch, layout, engine in itertools.product(*(words.split(",") for words in asked)):
        name = f"{engine}, batch {batch}, {layout}, {modes} modes, ranks {given.ranks}"
        if name not in recipes:
            recipes[name] = measured(given, engine, int(batch), layout, int(modes))
            write(given.out, found)
        print(name, {key: value for key, value in recipes[name].items() if key != "seconds"}, flush=True)


if __name__ == "__main__":
    main()
