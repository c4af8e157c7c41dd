"""The same bits from the Siemens star whoever computes it: ranks 1 to 4, one or two threads, both layouts, chunks of
one view and of seven, and stopped on two ranks to go on with three.

    python tests/conformance/star.py [--runs adam,rpie,lsqml] [--epochs N]

Prints a line for each run and ends with status 1 if any bit of object, probe, positions or history differs.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np

DATA = Path(os.environ.get("PTYMESH_DATA", Path(__file__).parents[3] / "shared" / "data"))
#: By name: modes of the probe, epochs, and the stage.
RUNS = {
    "adam": (1, 75, "engine: adam, batch: 64"),
    "rpie": (3, 100, "engine: rpie, batch: 64"),
    "lsqml": (3, 100, "engine: lsqml, batch: 64, positions: true, momentum: true"),
}
#: Ranks, threads of each, layout, views in a chunk (0: as many as fit).
WAYS = [
    (1, 1, "replicated", 0),
    (1, 2, "replicated", 0),
    (1, 2, "replicated", 7),
    (1, 2, "replicated", 1),
    (2, 1, "replicated", 0),
    (2, 1, "tiled", 0),
    (3, 1, "replicated", 0),
    (4, 1, "tiled", 0),
    (4, 1, "replicated", 0),
]
FIELDS = ("object", "probe", "positions_px", "history/loss", "history/residual")


def started(folder: Path, words: list[str], threads: int, chunk: int = 0) -> subprocess.Popen[str]:
    """`ptymesh` with these words, in this folder."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    program = [str(Path(__file__).resolve()), "--chunk", str(chunk)] if chunk else ["-m", "ptymesh"]
    command = [sys.executable, *program, *words]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, text=True)


def recipe(folder: Path, name: str, epochs: int | None) -> int:
    """Writes what is run; its epochs."""
    modes, usual, stage = RUNS[name]
    lines = (
        f"data: {{path: '{DATA / 'siemens-star-small.npz.bz2'}'}}",
        f"probe: {{modes: {modes}}}",
        f"stages: [{{{stage}, epochs: {epochs or usual}}}]",
        "output: {figures: false, checkpoint_every: 1}",
    )
    (folder / "recipe.yaml").write_text("\n".join(lines))
    return epochs or usual


def found(folder: Path) -> dict[str, np.ndarray]:
    """Arrays of a result."""
    with h5py.File(folder / "result.h5") as file:
        return {name: file[name][()] for name in FIELDS}


def in_chunks(views: int, words: list[str]) -> None:
    """`ptymesh` with these words, as if memory were enough for so many views."""
    from ptymesh.__main__ import main
    from ptymesh.problem import Problem

    made = Problem.__init__

    def limited(self: Problem, *given: Any, **named: Any) -> None:
        made(self, *given, **named)
        self.loader.chunk_sizes.limit = views

    Problem.__init__ = limited  # type: ignore[method-assign]
    sys.argv[1:] = words
    main()


def run(folder: Path, ranks: int, threads: int, layout: str, chunk: int) -> dict[str, np.ndarray]:
    """A run from start to end."""
    out = folder / f"{ranks}-{threads}-{layout}-{chunk}"
    words = ["run", "recipe.yaml", "--out", out.name, "--ranks", str(ranks), "--layout", layout, "--device", "cpu"]
    assert started(folder, words, threads, chunk).wait() == 0
    return found(out)


def resumed(folder: Path, at: int) -> dict[str, np.ndarray]:
    """Told to stop after so many epochs on two ranks, and gone on with on three."""
    out, words = folder / "resumed", ["run", "recipe.yaml", "--out", "resumed", "--ranks", "2", "--device", "cpu"]
    running, metrics = started(folder, words, 1), out / "metrics.jsonl"
    while running.poll() is None and (not metrics.exists() or metrics.read_text().count("\n") < at):
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    assert running.wait() == 75
    assert started(folder, ["resume", "resumed", "--ranks", "3", "--device", "cpu"], 1).wait() == 0
    return found(out)


def differing(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> list[str]:
    """Names of what has other bits, and by how much."""
    pairs = ((name, one[name], other[name]) for name in FIELDS)
    return [f"{n} by {np.abs(a - b).max():.2g}" for n, a, b in pairs if not np.array_equal(a, b, equal_nan=True)]


def main() -> int:
    """All of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--runs", default=",".join(RUNS))
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--chunk", type=int, help="run ptymesh with the words that follow in chunks of so many views")
    given, words = parser.parse_known_args()
    if given.chunk:
        in_chunks(given.chunk, words)
        return 0
    if words:
        parser.error(f"unknown: {' '.join(words)}")
    failed = 0
    for name in given.runs.split(","):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            epochs = recipe(folder, name, given.epochs)
            wanted = run(folder, *WAYS[0])
            ways = [(f"{r} ranks, {t} threads, {way}, chunks of {c or 'all'}", (r, t, way, c)) for r, t, way, c in WAYS]
            for said, way in [*ways[1:], ("stopped on 2 ranks, resumed on 3", None)]:
                got = run(folder, *way) if way else resumed(folder, min(40, epochs // 2))
                wrong = differing(wanted, got)
                failed += bool(wrong)
                print(f"{name}: {said}: {'differs: ' + ', '.join(wrong) if wrong else 'same bits'}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
