"""Detector and scan lie otherwise to each other than told.

c       centre of mass of a pattern (N, 2): the mean slope of the exit wave's phase there
p       positions

Slopes are a gradient: c = grad f(p) for some f, whatever the object, if the beam is about round. Patterns that are
turned by a quarter, transposed or reversed along one axis break this. A half turn does not, and cannot be told.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ptymesh.diagnosis.base import Cause
from ptymesh.diagnosis.look import Look

#: How (y, x) of the detector may lie to that of the scan, each for itself and its half turn; and what a recipe says.
TURNS = {
    "as told": ((1, 0), (0, 1)),
    "transpose: true": ((0, 1), (1, 0)),
    "flip_y: true": ((-1, 0), (0, 1)),
    "flip_y: true, transpose: true": ((0, -1), (1, 0)),
}
#: Waves of f along either axis, at most; fewer where there are fewer than twice as many views.
WAVES = 12


class Orientation(Cause):
    """Another orientation makes the centres of mass a gradient."""

    name: ClassVar[str] = "orientation"
    title: ClassVar[str] = "Wrong orientation of the detector"
    threshold: ClassVar[float] = 1.5
    weight: ClassVar[float] = 4.0

    def number(self, look: Look) -> float:
        """Variance of the centres of mass that no gradient explains, as told over in the best orientation."""
        scan = look.scan
        assert scan is not None
        if scan.geometry.propagation != "far_field" or scan.views < 40:
            return float("nan")
        left = unexplained(look)
        return left["as told"] / max(min(left.values()), 1e-30)

    def sentence(self, look: Look, number: float) -> str:
        return f"with {best(look)} the centres of mass of the patterns are {number:.2g} times closer to a gradient"

    def recipe(self, look: Look) -> str:
        return f"data: {{{best(look)}}}  # or that and a half turn; `ptymesh orient` tries them all"


def best(look: Look) -> str:
    """What a recipe would say of the best orientation."""
    left = unexplained(look)
    return min(left, key=lambda name: left[name])


def unexplained(look: Look) -> dict[str, float]:
    """Variance of c that is no gradient, over all of it, by orientation."""
    c, p = look.centres, look.result.positions_px
    p = p - p.min(axis=0)
    side = max(float(p.max()), 1e-9)
    waves = int(min(WAVES, np.sqrt(len(p) / 2)))
    basis = []
    for a in range(waves + 1):
        for b in range(waves + 1):
            if a or b:
                ky, kx = np.pi * a / (1.1 * side), np.pi * b / (1.1 * side)
                sy, cy, sx, cx = np.sin(ky * p[:, 0]), np.cos(ky * p[:, 0]), np.sin(kx * p[:, 1]), np.cos(kx * p[:, 1])
                basis.append(np.concatenate([-ky * sy * cx, -kx * cy * sx]))  # of cos cos, of even boundary
    basis += [np.repeat(np.eye(2)[axis], len(p)) for axis in range(2)]  # of y and x
    for power in (p[:, 0], p[:, 1]):
        basis.append(np.concatenate([power * (power is p[:, 0]), power * (power is p[:, 1])]))
    design = np.stack(basis, axis=1)
    design /= np.linalg.norm(design, axis=0) + 1e-30
    found = {}
    for name, turn in TURNS.items():
        target = (c @ np.array(turn, float).T).T.reshape(-1)
        left = target - design @ np.linalg.lstsq(design, target, rcond=1e-8)[0]
        found[name] = float((left**2).sum() / max((target**2).sum(), 1e-30))
    return found
