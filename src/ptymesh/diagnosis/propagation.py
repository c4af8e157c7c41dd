"""The distance to the detector is another.

I       modelled intensities (B, h, w), z distance
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from ptymesh.diagnosis.base import Cause
from ptymesh.diagnosis.look import Look

#: Relative step of the distance over which intensities are differentiated.
STEP = 0.02


class Distance(Cause):
    """Near field: another distance explains the patterns better, all else as it is."""

    name: ClassVar[str] = "distance"
    title: ClassVar[str] = "Wrong propagation distance"
    threshold: ClassVar[float] = 0.001
    weight: ClassVar[float] = 2.0

    def number(self, look: Look) -> float:
        """Relative change of the distance that one Gauss-Newton step asks for."""
        return abs(self._asked(look))

    @staticmethod
    def _asked(look: Look) -> float:
        assert look.scan is not None
        geometry = look.scan.geometry
        if geometry.propagation == "far_field" or geometry.distance_m is None:
            return float("nan")
        roots = [
            np.sqrt(look.model(look.result, replace(geometry, distance_m=geometry.distance_m * (1 + sign * STEP))))
            for sign in (1, -1)
        ]
        slope = (roots[0] - roots[1]) / (2 * STEP)
        return float((slope * look.misfit).sum() / max((slope**2).sum(), 1e-30))

    def sentence(self, look: Look, number: float) -> str:
        way = "longer" if self._asked(look) > 0 else "shorter"
        return f"the patterns ask for a {way} distance, in a first step by {100 * number:.2g} %"

    def recipe(self, look: Look) -> str:
        assert look.scan is not None and look.scan.geometry.distance_m is not None
        return (
            f"data: {{distance_m: {look.scan.geometry.distance_m * (1 + 5 * self._asked(look)):.4g}}}  # and try others"
        )
