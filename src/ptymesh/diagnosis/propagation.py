"""The distance to the detector is another.

I       modelled intensities (B, h, w), z distance
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ptymesh.diagnosis.cause import Evidence, Remedy
from ptymesh.diagnosis.view import ResultView

#: Relative step of the distance over which intensities are differentiated.
STEP = 0.02
#: The object has adapted to the wrong distance: the first step falls short of the error, by about so much.
FURTHER = 5


def find_distance(view: ResultView) -> Evidence | None:
    """Return the relative change of the near-field distance that one Gauss-Newton step asks for."""
    assert view.scan is not None
    geometry = view.scan.geometry
    if geometry.propagation == "far_field" or geometry.distance_m is None:
        return None
    roots = [
        np.sqrt(view.model(view.result, replace(geometry, distance_m=geometry.distance_m * (1 + sign * STEP))))
        for sign in (1, -1)
    ]
    slope = (roots[0] - roots[1]) / (2 * STEP)
    step = float((slope * view.misfit).sum() / max((slope**2).sum(), 1e-30))
    way = "longer" if step > 0 else "shorter"
    sentence = f"the patterns ask for a {way} distance, in a first step by {100 * abs(step):.2g} %"
    further = float(f"{geometry.distance_m * (1 + FURTHER * step):.4g}")
    return Evidence(abs(step), sentence, (Remedy({"data.distance_m": further}, advice="and try others"),))
