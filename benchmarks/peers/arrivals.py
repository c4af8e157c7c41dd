"""Who was where first: what solution.py has measured, in a few numbers per program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: A program has arrived where its held-out residual is within so much of the lowest that it reaches.
ARRIVED = 1.01


@dataclass(frozen=True)
class Arrival:
    """Where a program ends, when it is within 1 % of that, and when ptymesh is as good (None: never)."""

    case: dict[str, Any]
    lowest: float
    epoch: int
    seconds: float
    ours: float | None

    @property
    def ratio(self) -> float | None:
        """Its seconds over ptymesh's."""
        return None if self.ours is None else self.seconds / self.ours


def reached(curve: list[dict[str, Any]], goal: float) -> dict[str, Any] | None:
    """The first snapshot that is as good."""
    return next((point for point in curve if point["held_out"] <= goal), None)


def arrivals(cases: list[dict[str, Any]]) -> list[Arrival]:
    """Of all programs, ptymesh first, by number of modes."""
    made = []
    for case in sorted(cases, key=lambda case: (case["modes"], case["program"] != "ptymesh")):
        (ours,) = [one for one in cases if one["program"] == "ptymesh" and one["modes"] == case["modes"]]
        lowest = min(point["held_out"] for point in case["curve"])
        there, here = (reached(one["curve"], ARRIVED * lowest) for one in (case, ours))
        assert there is not None, "the lowest is one of them"
        made.append(Arrival(case, lowest, there["epoch"], there["seconds"], here and here["seconds"]))
    return made
