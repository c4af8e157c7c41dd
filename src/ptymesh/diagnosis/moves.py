"""Causes in the positions, by the moves that views ask for: wrong scale or rotation, drift, vibration.

d       what a view asks of its position (B, 2) y x, pixels
p, t    its position, about the scan's middle; its time, -1 to 1
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptymesh.diagnosis.evidence import Evidence, Remedy
from ptymesh.diagnosis.view import ResultView

#: Standard errors by which a rotation or a scale must stand out; how far what is smooth in time may exceed it.
STANDARD_ERRORS, SIMILAR = 3.5, 1.3
#: Share of what is not explained that the moves of wrong positions take away: all wrong models ask for some moves.
USUAL_SHARE = 0.08
#: Views from which on their moves tell anything.
MIN_VIEWS = 12


def find_wrong_geometry(view: ResultView) -> Evidence | None:
    """Return evidence, in standard errors, that positions are rotated, scaled or sheared as a whole."""
    moves = move_statistics(view)
    if moves is None:
        return None
    way = {
        "rotation": "as a rotation of the whole scan would",
        "scale": "as another scale would: of the positions, the distance, the detector's pixel or the energy",
        "aspect": "as another ratio of its steps along y and x would",
        "shear": "as axes that are not at right angles would",
    }[moves.largest_term]
    refine = Remedy({"stage.models.scan_geometry": True}, unless="stage.models.scan_geometry")
    number = moves.linear_errors if moves.kind == "geometry" else 0.0
    return Evidence(number, f"views ask to be moved by {moves.parts['geometry']:.2g} px {way}", (refine,))


def find_drift(view: ResultView) -> Evidence | None:
    """Return the root mean square of moves that are smooth in time, in pixels."""
    moves = move_statistics(view)
    if moves is None:
        return None
    number = moves.parts["drift"] if moves.kind == "drift" else 0.0
    sentence = f"views ask to be moved by {moves.parts['drift']:.2g} px smoothly with time"
    return Evidence(number, sentence, (_refine_positions(),))


def find_vibration(view: ResultView) -> Evidence | None:
    """Return the root mean square of moves that are neither a geometry of the scan nor a drift, in pixels.

    It counts less where they take away a smaller share of the misfit than wrong positions usually do.
    """
    moves = move_statistics(view)
    if moves is None:
        return None
    confidence = min(1.0, max(0.0, moves.share) / USUAL_SHARE)
    number = confidence * moves.parts["vibration"] if moves.kind == "vibration" else 0.0
    sentence = f"views ask to be moved by {moves.parts['vibration']:.2g} px each in its own direction"
    return Evidence(number, sentence, (_refine_positions(),))


def _refine_positions() -> Remedy:
    """Return the remedy that refines each position, after the object has formed."""
    return Remedy({"stage.positions.start": 5}, unless="stage.positions")


@dataclass(frozen=True)
class MoveStatistics:
    """Statistics of the moves that views ask of their positions, beyond counting.

    Attributes:
        parts: root mean squares, in pixels, of what is a linear map of p, what is smooth in t, and the rest.
        kind: which of them says most.
        largest_term: of the linear map, rotation, scale, aspect or shear.
        linear_errors: standard errors by which that stands out.
        share: of what counting does not explain, what moves would take away.
    """

    parts: dict[str, float]
    kind: str
    largest_term: str
    linear_errors: float
    share: float


def move_statistics(view: ResultView) -> MoveStatistics | None:
    """Return what the views ask for; None where there are too few. Views that ask for far more are left out."""
    if len(view.views) < MIN_VIEWS:
        return None
    d, error = view.moves
    size = np.linalg.norm(d, axis=1)
    use = size <= 5 * np.median(size) + 1e-12
    d, noise = d[use] - d[use].mean(axis=0), float((error[use] ** 2).sum(axis=1).mean())
    p = view.result.positions_px[view.views][use]
    p = (p - p.mean(axis=0)) / max(float(p.std()), 1e-12)
    t = np.linspace(-1, 1, len(view.views))[use]
    smooth = _explained(d, np.stack([t, t**2, t**3], axis=1))
    y, x = p.T
    terms = {"rotation": (-x, y), "scale": (y, x), "aspect": (y, -x), "shear": (x, y)}
    power = max(float((p**2).sum()), 1e-12)
    sizes = {name: float((d * np.stack(along, axis=1)).sum()) / power for name, along in terms.items()}
    unexplained_moves = d - sum(sizes[name] * np.stack(along, axis=1) for name, along in terms.items())
    error_of_size = float(np.sqrt((unexplained_moves**2).mean() / power))
    linear = float(np.linalg.norm(list(sizes.values())) * np.sqrt(power / len(p)))
    rest = max(0.0, float((d**2).sum(axis=1).mean()) - max(linear**2, smooth) - noise)
    parts = {"geometry": linear, "drift": smooth**0.5, "vibration": rest**0.5}
    largest = max(sizes, key=lambda name: abs(sizes[name]))
    if abs(sizes[largest]) > STANDARD_ERRORS * error_of_size and smooth**0.5 <= SIMILAR * linear:
        kind = "geometry"
    else:
        kind = "drift" if parts["drift"] >= parts["vibration"] else "vibration"
    return MoveStatistics(parts, kind, largest, abs(sizes[largest]) / max(error_of_size, 1e-12), view.share_of_moves)


def _explained(d: np.ndarray, basis: np.ndarray) -> float:
    """Return the mean square of d (n, 2) that the basis (n, k) explains, without what it would by chance."""
    basis = basis - basis.mean(axis=0)
    fitted = basis @ np.linalg.lstsq(basis, d, rcond=None)[0]
    explained, total = (float((part**2).sum(axis=1).mean()) for part in (fitted, d))
    chance = basis.shape[1] / max(1, len(d) - 1 - basis.shape[1]) * (total - explained)
    return max(0.0, explained - chance)
