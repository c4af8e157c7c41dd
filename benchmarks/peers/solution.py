"""How long a peer and ptymesh take to the same residual, from what compare.py measured.

    python benchmarks/peers/solution.py peers.json

The goal is the residual that the peer had when it was stopped. Pty-Chi and CDTools report the mean squared difference
of amplitudes per pixel: over the mean count of the star that is ptymesh's residual. PtyRAD's loss is another, so it is
left out. Residuals are running ones, gathered while the estimate moves; seconds are of epochs, none for compiling.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

#: Of a pixel of the Siemens star.
MEAN_COUNT = 28.15020101384599
SAME_MEASURE = ("ptychi", "cdtools")


@dataclass(frozen=True)
class Race:
    """One engine of one peer beside ptymesh's: the residual, and epochs and seconds that each took to it."""

    engine: str
    modes: int
    peer: str
    residual: float
    peer_epochs: int
    peer_seconds: float
    epochs: int
    seconds: float


def races(found: dict[str, Any]) -> list[Race]:
    """Of all comparisons whose losses can be compared. Raises ValueError where ptymesh was stopped before the goal."""
    made = []
    for one in found["comparisons"]:
        name = one["peer"].split()[0]
        if name not in SAME_MEASURE:
            continue
        goal = one["losses"][name][-1] / MEAN_COUNT
        spent = list(accumulate(one["seconds"][name]))
        ours = list(accumulate(one["seconds"]["ptymesh"]))
        reached = [i for i, loss in enumerate(one["losses"]["ptymesh"]) if loss <= goal]
        if not reached:
            raise ValueError(f"ptymesh's {one['engine']} was stopped before {goal:.4f}; measure more --turns.")
        first = reached[0]
        made.append(Race(one["engine"], one["modes"], one["peer"], goal, len(spent), spent[-1], first + 1, ours[first]))
    return made


if __name__ == "__main__":
    print(f"{'engine':8s}{'modes':>6s}  {'peer':14s}{'residual':>10s}{'epochs':>8s}{'s':>8s}{'ptymesh':>9s}{'s':>8s}")
    for race in races(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))):
        print(
            f"{race.engine:8s}{race.modes:6d}  {race.peer:14s}{race.residual:10.4f}{race.peer_epochs:8d}"
            f"{race.peer_seconds:8.2f}{race.epochs:9d}{race.seconds:8.2f}"
        )
