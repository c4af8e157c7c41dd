"""From the command to the result: seconds to the first batch, to the complete result file, and its residual.

    python benchmarks/command.py siemens-star-small.npz.bz2 [--repeats 5] [--threads 2] [--out results.json]

Cases are run in turns, each in a process of its own, with kernels that have been compiled before; medians are printed,
with the lowest and the highest. `imports` is what Python takes for torch, numba and h5py, and `file` what it takes to
unpack the patterns besides.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
from record import about, write

#: By name: modes of the probe, and the stage.
CASES = {
    "1 mode, rPIE": (1, "{engine: rpie, epochs: 50, batch: 64}"),
    "3 modes, LSQML": (3, "{engine: lsqml, epochs: 50, batch: 64}"),
    "3 modes, LSQML, momentum": (3, "{engine: lsqml, epochs: 25, batch: 64, momentum: true}"),
    "3 modes, LSQML, positions": (3, "{engine: lsqml, epochs: 50, batch: 64, positions: true, momentum: true}"),
}
IMPORTS = "import torch, numba, h5py"
FILE = IMPORTS + "; import bz2, sys, numpy; numpy.load(bz2.open(sys.argv[1]))['data']"


def seconds(command: list[str], folder: Path, environment: dict[str, str]) -> float:
    """That a command takes."""
    began = time.monotonic()
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def run(star: Path, case: str, folder: Path, environment: dict[str, str]) -> dict[str, float]:
    """One run, watched from outside."""
    modes, stage = CASES[case]
    out = folder / "out"
    recipe = (
        f"data: {{path: '{star}'}}\nprobe: {{modes: {modes}}}\nstages: [{stage}]\noutput: {{checkpoint_every: 1000}}\n"
    )
    (folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
    began = time.monotonic()
    running = subprocess.Popen(
        [sys.executable, "-m", "ptymesh", "run", "recipe.yaml", "--out", "out"],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    first = done = 0.0
    while running.poll() is None:
        lines = (out / "metrics.jsonl").read_text(encoding="utf-8") if (out / "metrics.jsonl").exists() else ""
        if not first and "\n" in lines:
            first = time.monotonic() - began - json.loads(lines.partition("\n")[0])["seconds"]
        if not done and (out / "result.h5").exists():
            done = time.monotonic() - began
        time.sleep(0.005)
    assert running.wait() == 0, "the run failed"
    left = time.monotonic() - began
    with h5py.File(out / "result.h5") as file:
        residual = float(file.attrs["final_residual"])
    return {"first_batch": first, "result": done or left, "left": left, "residual": residual}


def main() -> None:
    """All of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("star", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    environment = {**os.environ, "OMP_NUM_THREADS": str(given.threads)}
    star, taken = given.star.resolve(), about(threads=given.threads)
    rows: dict[str, list[dict[str, float]]] = {}
    for turn in range(given.repeats + 1):  # the first one compiles
        with tempfile.TemporaryDirectory() as place:
            found: dict[str, dict[str, float]] = {
                "imports": {"seconds": seconds([sys.executable, "-c", IMPORTS], Path(place), environment)},
                "file": {"seconds": seconds([sys.executable, "-c", FILE, str(star)], Path(place), environment)},
            }
            for case in CASES:
                (folder := Path(place) / case.replace(" ", "")).mkdir()
                found[case] = run(star, case, folder, environment)
        for name, numbers in found.items() if turn else ():
            rows.setdefault(name, []).append(numbers)
    for name, turns in rows.items():
        for what in turns[0]:
            each = sorted(numbers[what] for numbers in turns)
            print(f"{name}: {what} {statistics.median(each):.4g} ({each[0]:.4g} to {each[-1]:.4g})")
    write(given.out, {**taken, "data": star.name, "cases": CASES, "turns": rows})


if __name__ == "__main__":
    main()
