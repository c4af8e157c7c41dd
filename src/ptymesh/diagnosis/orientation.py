"""Detector and scan lie otherwise to each other than told (auto/orientation.py)."""

from __future__ import annotations

from typing import ClassVar

from ptymesh.auto.orientation import unexplained
from ptymesh.diagnosis.base import Cause
from ptymesh.diagnosis.look import Look


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
        left = unexplained(look.centres, look.result.positions_px)
        return left["as told"] / max(min(left.values()), 1e-30)

    def sentence(self, look: Look, number: float) -> str:
        return f"with {best(look)} the centres of mass of the patterns are {number:.2g} times closer to a gradient"

    def recipe(self, look: Look) -> str:
        return f"data: {{{best(look)}}}  # or that and a half turn; `ptymesh orient` tries them all"


def best(look: Look) -> str:
    """What a recipe would say of the best orientation."""
    left = unexplained(look.centres, look.result.positions_px)
    return min(left, key=lambda name: left[name])
