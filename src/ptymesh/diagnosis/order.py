"""Causes in the order of the views: positions that lag the patterns, rows that run the other way (verdict/order.py)."""

from __future__ import annotations

from ptymesh.diagnosis.evidence import Evidence, Remedy
from ptymesh.diagnosis.view import ResultView
from ptymesh.verdict.order import OrderedViews, lag_gain, serpentine_gain
from ptymesh.verdict.scan_pass import thumbnail_pixels

#: Views that are looked at, at most.
MAX_VIEWS = 4000


def find_lag(view: ResultView) -> Evidence | None:
    """Return the standard errors by which patterns of neighbours are more alike if positions lag by whole frames."""
    gains = lag_gain(_ordered(view))
    if gains is None:
        return None
    gain, lag = gains
    frames = f"{abs(lag)} frame{'s' * (abs(lag) > 1)}"
    way = "behind" if lag > 0 else "ahead of"
    sentence = f"patterns of neighbouring views are alike only if the positions are {frames} {way} the patterns"
    present = 0 if view.recipe is None else view.recipe.positions.lag
    return Evidence(gain, sentence, (Remedy({"positions.lag": present - lag}),))


def find_serpentine(view: ResultView) -> Evidence | None:
    """Return the standard errors by which patterns of neighbours are more alike with every second row reversed."""
    gain = serpentine_gain(_ordered(view))
    if gain is None:
        return None
    sentence = "patterns of neighbouring rows are alike only if every second row is reversed"
    present = view.recipe is not None and view.recipe.positions.serpentine
    return Evidence(gain, sentence, (Remedy({"positions.serpentine": not present}),))


def _ordered(view: ResultView) -> OrderedViews:
    """Return the first views in the order in which they were taken."""
    assert view.scan is not None
    most = min(len(view.result.positions_px), MAX_VIEWS)
    shapes = view.scan_pass.shapes[:most]
    return OrderedViews(view.result_positions[:most], shapes, thumbnail_pixels(view.scan.window))
