"""Two workers of one thread against one: seconds for the same study, start to end.

    python benchmarks/tune.py [--data siemens-star-small.npz.bz2] [--trials 20] [--epochs 6]

The star, rPIE; each study is started as a user would, in a process of its own, with OMP_NUM_THREADS=1, and counts from
the start of the command to the end of its last trial. Meant for an idle machine with at least two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

BAR = 1.6


def seconds(folder: Path, data: str, trials: int, epochs: int, workers: int) -> float:
    """Wall time of one study with its own seed and space."""
    tune = {
        "recipe": {"data": {"path": data}, "stages": [{"engine": "rpie", "epochs": epochs, "batch": 64}]},
        "space": {"stages.0.gamma_object": {"low": 0.5, "high": 1.5}},
        "sampler": "random",
        "pruner": "nop",
        "trials": trials,
    }
    file = folder / f"tune{workers}.yaml"
    file.write_text(json.dumps(tune), encoding="utf-8")  # JSON is YAML
    out = folder / f"workers{workers}"
    command = [sys.executable, "-m", "ptymesh", "tune", str(file), "--workers", str(workers), "--device", "cpu"]
    began = time.perf_counter()
    running = subprocess.Popen(
        [*command, "--out", str(out)], env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL
    )
    last = 0.0
    while running.poll() is None:
        if not last and (out / "best.yaml").exists():  # written when the last trial is done
            last = time.perf_counter() - began
        time.sleep(0.02)
    if running.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {running.returncode}")
    lines = [json.loads(line) for line in (out / "trials.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["state"] for line in lines] == ["done"] * trials
    each = sum(line["seconds"] for line in lines) / trials
    print(f"{workers} worker{'s' * (workers > 1)}: {last:.1f} s for {trials} trials, {each:.2f} s each")
    return last


def main() -> None:
    """Prints both times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="sample:siemens-star")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=6)
    given = parser.parse_args()
    data = given.data if given.data.startswith("sample:") else str(Path(given.data).absolute())
    print(f"{psutil.cpu_count(logical=False)} cores, load before {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        one, two = (seconds(Path(folder), data, given.trials, given.epochs, workers) for workers in (1, 2))
    print(f"two workers are {one / two:.2f} times as fast as one (bar {BAR}), load after {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
