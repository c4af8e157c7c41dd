"""The detector lies otherwise to the scan than the recipe has it (auto/orientation.py)."""

from __future__ import annotations

from ptymesh.auto.orientation import unexplained
from ptymesh.diagnosis.cause import Evidence, Remedy
from ptymesh.diagnosis.view import ResultView

#: Views from which on centres of mass are a gradient or not.
MIN_VIEWS = 40


def find_orientation(view: ResultView) -> Evidence | None:
    """Return the variance of the centres of mass that no gradient explains, as given over in the best orientation."""
    scan = view.scan
    assert scan is not None
    if scan.geometry.propagation != "far_field" or scan.views < MIN_VIEWS:
        return None
    left = unexplained(view.centres, view.result.positions_px)
    best = min(left, key=lambda name: left[name])
    as_given = next(iter(left))
    number = left[as_given] / max(left[best], 1e-30)
    if best == as_given:
        return Evidence(number)
    sentence = f"with {best} the centres of mass of the patterns are {number:.2g} times closer to a gradient"
    return Evidence(number, sentence, (Remedy(_toggled(view, best), advice="or that and a half turn"),))


def _toggled(view: ResultView, name: str) -> dict[str, bool]:
    """Return the keys of `data` that bring about an orientation, which is meant beside what the recipe has already.

    Flips come first, then the exchange of axes: a flip of y in the frame of a transposed detector is one of x.
    """
    flip, transpose = "flip_y" in name, "transpose" in name
    data = None if view.recipe is None else view.recipe.data
    axes = data is not None and data.transpose
    settings = {}
    if flip:
        key = "flip_x" if axes else "flip_y"
        settings[f"data.{key}"] = not (data is not None and getattr(data, key))
    if transpose:
        settings["data.transpose"] = not axes
    return settings
