"""The detector lies otherwise to the scan than the recipe has it (auto/orientation.py)."""

from __future__ import annotations

from typing import Any

from ptymesh.auto.orientation import unexplained
from ptymesh.diagnosis.evidence import Evidence, Remedy
from ptymesh.diagnosis.frames import linear_centres
from ptymesh.diagnosis.shadows import shadow_map
from ptymesh.diagnosis.view import ResultView
from ptymesh.io.prepare.shadows import AS_GIVEN_DEG, Shadows

#: Views from which on centres of mass are a gradient or not.
MIN_VIEWS = 40
#: Ratio beyond which more says nothing.
MAX_RATIO = 20.0


def find_orientation(view: ResultView) -> Evidence | None:
    """Return how much better another orientation explains the patterns than the one that is given.

    That is the larger of two ratios: of the mean correlations of moved features (shadows.py), and, in the far field, of
    the variances of the centres of mass that no gradient explains.
    """
    scan, shadows = view.scan, shadow_map(view)
    assert scan is not None
    if shadows is not None and shadows.is_clear:
        if shadows.is_as_given:
            return Evidence(0.0)
        number = min(shadows.score / max(shadows.score_as_given, 0.05 * shadows.score), MAX_RATIO)
        settings, words = _turned(view, shadows)
        sentence = f"with {words} the patterns' features move with the scan, {number:.2g} times as clearly as given"
        return Evidence(number, sentence, (Remedy(settings, advice="or that and a half turn"),))
    if scan.geometry.propagation != "far_field" or scan.views < MIN_VIEWS:
        return None
    _, centres = linear_centres(view)  # patterns that wander along with the scan would look like another orientation
    unexplained_share = unexplained(centres, view.result_positions)
    best = min(unexplained_share, key=lambda name: unexplained_share[name])
    as_given = next(iter(unexplained_share))
    number = min(unexplained_share[as_given] / max(unexplained_share[best], 1e-30), MAX_RATIO)
    if best == as_given:
        return Evidence(number)
    sentence = f"with {best} the centres of mass of the patterns are {number:.2g} times closer to a gradient"
    return Evidence(number, sentence, (Remedy(_toggled(view, best), advice="or that and a half turn"),))


def _turned(view: ResultView, shadows: Shadows) -> tuple[dict[str, Any], str]:
    """Return the settings that make A a plain number, and what they are in words.

    A = a R(angle), mirrored or not; angles near a quarter turn are flips, others rotate the scan.
    """
    angle = (shadows.angle_deg + 90) % 180 - 90  # half a turn is a matter of the sign of a
    if shadows.mirrored:  # R M: M exchanges the axes
        near = {0: "transpose: true", 90: "flip_y: true", -90: "flip_y: true"}
    else:
        near = {90: "flip_y: true, transpose: true", -90: "flip_y: true, transpose: true"}
    close = min(near, key=lambda quarter: abs(angle - quarter))
    if abs(angle - close) <= AS_GIVEN_DEG:
        return _toggled(view, near[close]), near[close]
    if shadows.mirrored:
        name, rest = (near[close], angle - close)
    else:
        name, rest = ("", angle)
    present = 0.0 if view.recipe is None else view.recipe.positions.rotation_deg
    turned = float(f"{present + rest:.3g}")
    settings: dict[str, Any] = {**(_toggled(view, name) if name else {}), "positions.rotation_deg": turned}
    return settings, f"{name + ' and ' if name else ''}the scan turned by {rest:+.0f} degrees"


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
