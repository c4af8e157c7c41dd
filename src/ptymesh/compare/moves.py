"""Moves from recorded to refined positions, told apart: geometry of the scan, lag of the stage, drift, and the rest.

N       views, in the order in which they were taken
p       recorded positions about their mean (N, 2) y x, pixels; p_j that of view j
d       moves from recorded to refined positions (N, 2), without their mean, which nothing determines
t       time of a view, -1 to 1

    d_j = rotation (-x, y) + scale (y, x) + aspect (y, -x) + shear (x, y) + lag a (p_(j+k) - p_j) + drift(t) + rest

Drift is a polynomial of degree DEGREE in t on each axis. In a raster a steady drift looks like a stretched and sheared
slow axis: where drift alone explains as much as drift and geometry, all counts as drift, and else what both can explain
counts as geometry. A lag of k frames has a = 1; for k = 1 or -1, a may be any share of a frame. Parts that do not stand
out of the rest are left out. The share of a part x in the power of d is sum x.d / sum d.d, so that the shares add up to
1 (Pratt, in Proc. 2nd Tampere Conf. Statist. 245, 1987).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.polynomial import legendre

from ptymesh.errors import BadInput

#: Views from which on moves are told apart.
MIN_VIEWS = 12
#: Degree of the drift in time.
DEGREE = 4
#: Frames by which positions may lag, at most.
MAX_LAG = 12
#: Coefficients of a lag of two frames or more: those of a true one are near 1.
WHOLE = (0.5, 1.5)
#: Moves beyond so many typical ones are outliers; steps beyond so many typical ones are jumps to the next row.
OUTLIER, JUMP = 6.0, 4.0
#: Least ratio of a part's power by degree of freedom to that of the rest; of a lag, which is the best of many.
STANDS_OUT, LAG_STANDS_OUT = 12.0, 25.0
#: Root mean square in pixels below which moves are rounding errors.
STILL_PX = 1e-3
#: Frames below which a lag is more likely a stage whose positions depend on the direction in which it comes.
BACKLASH = 0.05
#: Least share of a part that is named.
NAMED = 0.01
#: Share of a drift that a geometry does not explain, above which the two are taken to be separate.
SEPARATE = 0.9
TERMS = ("scale", "rotation", "aspect", "shear")


@dataclass(frozen=True)
class Moves:
    """Moves from recorded to refined positions, told apart.

    Attributes:
        rms_px: root mean square length of the moves without their mean, outliers left out.
        shares: of the power of the moves, by name: scale, rotation, aspect, shear, lag, drift and own, which each view
            has for itself; they add up to 1.
        rms_own_px: root mean square length of what each view has for itself.
        terms: scale, rotation (rad), aspect and shear of the recorded positions, 0 where they do not stand out.
        lag: frames by which positions are behind the patterns, negative if they are ahead; 0 if they are not.
        drift_px: largest distance between two places of the drift.
        or_slow_axis: True if the drift could as well be another step of a raster's slow axis, or its direction.
        outliers: (k,) views that moved far more than the others, which were left out.
        held_out: (k,) views that no update has moved, which were left out.
        affine: (N, 2) recorded positions moved by the mean move and the geometry, in pixels.
        fitted: (N, 2) the same, and by lag and drift.
    """

    rms_px: float
    shares: dict[str, float]
    rms_own_px: float
    terms: dict[str, float]
    lag: float
    drift_px: float
    or_slow_axis: bool
    outliers: np.ndarray
    held_out: np.ndarray
    affine: np.ndarray
    fitted: np.ndarray

    @property
    def has_moved(self) -> bool:
        """True unless the moves are rounding errors."""
        return self.rms_px >= STILL_PX

    def sentence(self) -> str:
        """Return what the moves are, in a sentence or two."""
        if not self.has_moved:
            return "The positions are as recorded, but for a move of all of them together"
        parts = [f"{share:.0%} {words}" for share, words in sorted(self._named_parts(), reverse=True)]
        sentence = f"Views moved by {self.rms_px:.2g} px rms: " + ", ".join(parts)
        if len(self.outliers):
            many = f"{len(self.outliers)} views that moved" if len(self.outliers) > 1 else "one view that moved"
            sentence += f"; {many} far more left out"
        return sentence

    def _named_parts(self) -> Iterator[tuple[float, str]]:
        """Yield share and words of each part that is named."""
        behind = "behind" if self.lag > 0 else "ahead of"
        backlash = abs(self.lag) < BACKLASH
        longer = "y longer and x shorter" if self.terms["aspect"] > 0 else "x longer and y shorter"
        words = {
            "scale": f"scale of {100 * self.terms['scale']:+.2g} %",
            "rotation": f"rotation of {math.degrees(self.terms['rotation']):+.2g} degrees",
            "aspect": f"{longer} by {100 * abs(self.terms['aspect']):.2g} %",
            "shear": f"shear of {100 * self.terms['shear']:+.2g} %",
            "drift": f"drift over {self.drift_px:.2g} px{', or a stretched or sheared slow axis' * self.or_slow_axis}",
            "lag": f"lag of positions {abs(self.lag):.2g} frames {behind} the patterns{', or backlash' * backlash}",
            "own": f"each view's own ({self.rms_own_px:.2g} px rms)",
        }
        for name, share in self.shares.items():
            if share >= NAMED or (name == "own" and len(self.shares) == 1):
                yield share, words[name]

    def summary(self) -> dict[str, object]:
        """Return the numbers as plain Python objects, ready for JSON."""
        return {
            "sentence": self.sentence(),
            "rms_px": self.rms_px,
            "shares": self.shares,
            "rms_own_px": self.rms_own_px,
            "scale": self.terms["scale"],
            "rotation_rad": self.terms["rotation"],
            "aspect": self.terms["aspect"],
            "shear": self.terms["shear"],
            "lag_frames": self.lag,
            "drift_px": self.drift_px,
            "drift_or_slow_axis": self.or_slow_axis,
            "outliers": [int(view) for view in self.outliers],
            "held_out": [int(view) for view in self.held_out],
        }


def moves_apart(recorded_px: np.ndarray, refined_px: np.ndarray, held_out: np.ndarray | None = None) -> Moves:
    """Tell apart what the moves from recorded to refined positions are.

    Args:
        recorded_px: (N, 2) y x, pixels, in the order in which the views were taken.
        refined_px: (N, 2) y x, pixels, whose origin may differ.
        held_out: (k,) int64, views that no update has moved; None for none.

    Raises:
        BadInput: there are fewer than 12 views, or the two do not fit together.
    """
    if recorded_px.shape != refined_px.shape or recorded_px.ndim != 2 or recorded_px.shape[-1] != 2:
        raise BadInput(
            f"Recorded positions have the shape {recorded_px.shape} and refined ones {refined_px.shape}; give (N, 2) "
            "for both."
        )
    unmoved = np.empty(0, dtype=np.int64) if held_out is None else held_out
    use = np.ones(len(recorded_px), dtype=bool)
    use[unmoved] = False
    if use.sum() < MIN_VIEWS:
        raise BadInput(f"There are {use.sum()} views; {MIN_VIEWS} are needed to tell their moves apart.")
    p = recorded_px - recorded_px.mean(axis=0, dtype=np.float64)
    moved = refined_px.astype(np.float64) - recorded_px
    length = np.linalg.norm(moved - np.median(moved[use], axis=0), axis=1)
    far = length > OUTLIER * np.median(length[use]) + STILL_PX
    outliers = np.flatnonzero(use & far)
    use &= ~far
    columns = {name: column[..., None] for name, column in _geometry(p).items()}
    drift, or_slow_axis = _drift(len(p)), False
    beside = _without(drift, np.concatenate(list(columns.values()), axis=-1), use)
    if _is_enough(drift, columns | {"drift": beside}, moved, use):
        or_slow_axis = float((_centred(beside, use) ** 2).sum()) < SEPARATE * float((_centred(drift, use) ** 2).sum())
        columns = {"drift": drift}
    else:
        columns["drift"] = beside
    k, away = _lag(p, moved, columns, use)
    if k:
        use = use & ~away
        columns["lag"] = _lag_moves(p, k)[..., None]
    fit = _standing_out(columns, moved, use)
    power = float((fit.moves[use] ** 2).sum())
    shares = {name: float((part * fit.moves)[use].sum()) / max(power, 1e-300) for name, part in fit.parts.items()}
    still = np.zeros_like(p)
    geometry = sum((fit.parts[name] for name in TERMS if name in fit.parts), still)
    affine = recorded_px + fit.mean + geometry
    return Moves(
        rms_px=math.sqrt(power / use.sum()),
        shares={**shares, "own": 1 - sum(shares.values())},
        rms_own_px=math.sqrt(fit.rest / use.sum()),
        terms={name: float(fit.numbers[name][0]) if name in fit.numbers else 0.0 for name in TERMS},
        lag=_frames(k, float(fit.numbers["lag"][0])) if "lag" in fit.numbers else 0.0,
        drift_px=float(np.linalg.norm(np.ptp(fit.parts.get("drift", still), axis=0))),
        or_slow_axis=or_slow_axis and "drift" in fit.parts,
        outliers=outliers,
        held_out=unmoved,
        affine=affine,
        fitted=affine + fit.parts.get("drift", still) + fit.parts.get("lag", still),
    )


class RefinedResult(Protocol):
    """Positions of a reconstruction, as of `io.results.Result`."""

    positions_px: np.ndarray
    nominal_px: np.ndarray | None
    scan_index: np.ndarray | None
    held_out_views: np.ndarray | None


def moves_of_result(result: RefinedResult) -> Moves | None:
    """Return the moves of a result's positions; None where none were refined, or too few.

    Views of several scans are not told apart: each has a stage, and a time, of its own.
    """
    nominal = result.nominal_px
    held_out = result.held_out_views
    moved = 0 if nominal is None else len(nominal) - (0 if held_out is None else len(held_out))
    if nominal is None or moved < MIN_VIEWS or result.scan_index is not None:
        return None
    moves = moves_apart(nominal, result.positions_px, held_out)
    return moves if moves.has_moved else None


def _geometry(p: np.ndarray) -> dict[str, np.ndarray]:
    """Return the moves (N, 2) of each term of the geometry, by one unit of it."""
    y, x = p.T
    along = {"scale": (y, x), "rotation": (-x, y), "aspect": (y, -x), "shear": (x, y)}
    return {name: np.stack(along[name], axis=1) for name in TERMS}


def _drift(views: int) -> np.ndarray:
    """Return the moves (N, 2, 2 DEGREE) of polynomials in time, along y and along x."""
    smooth = legendre.legvander(np.linspace(-1, 1, views), DEGREE)[:, 1:]
    none = np.zeros_like(smooth)
    return np.stack([np.concatenate([smooth, none], axis=1), np.concatenate([none, smooth], axis=1)], axis=1)


def _without(drift: np.ndarray, geometry: np.ndarray, use: np.ndarray) -> np.ndarray:
    """Return the moves of a drift (N, 2, q) without what the geometry (N, 2, 4) explains of them."""
    known, wanted = (_flat(_centred(columns, use), use) for columns in (geometry, drift))
    return np.asarray(drift - geometry @ np.linalg.lstsq(known, wanted, rcond=1e-9)[0])


def _is_enough(drift: np.ndarray, columns: dict[str, np.ndarray], moved: np.ndarray, use: np.ndarray) -> bool:
    """Return True if the geometry adds nothing clear to a drift, which itself stands out.

    Args:
        drift: (N, 2, q) moves.
        columns: moves of geometry and of what the drift has beside it.
        moved: (N, 2) moves.
        use: (N,) bool, views that are fitted.
    """
    alone, both = _Fit({"drift": drift}, moved, use), _Fit(columns, moved, use)
    added = (alone.rest - both.rest) / len(TERMS)
    return alone.clearness("drift") > STANDS_OUT and added < STANDS_OUT * both.noise


def _lag_moves(p: np.ndarray, k: int) -> np.ndarray:
    """Return p_(j+k) - p_j, (N, 2); at the ends of the scan that of the last views that have it."""
    views = np.arange(len(p))
    return np.asarray(p[np.clip(views + k, 0, len(p) - 1)] - p)


def _frames(k: int, coefficient: float) -> float:
    """Return the lag of which p_(j+k) - p_j has this coefficient: a share of one frame, or whole frames."""
    return k * coefficient if abs(k) == 1 else float(k)


def _lag(p: np.ndarray, moved: np.ndarray, columns: dict[str, np.ndarray], use: np.ndarray) -> tuple[int, np.ndarray]:
    """Return the frames k by which positions lag most clearly, or 0, and the views (N,) where that cannot be told.

    Args:
        p: (N, 2) recorded positions, pixels.
        moved: (N, 2) moves.
        columns: moves of the other parts, (N, 2, q) each.
        use: (N,) bool, views that are looked at.
    """
    best, clearest, views = (0, ~use), LAG_STANDS_OUT, np.arange(len(p))
    for k in [k for k in range(-MAX_LAG, MAX_LAG + 1) if k and abs(k) < len(p) // 4]:
        step = _lag_moves(p, k)
        length = np.linalg.norm(step, axis=1)
        away = (views + k < 0) | (views + k >= len(p)) | (length > JUMP * np.median(length) + STILL_PX)
        telling = use & ~away
        if telling.sum() < max(MIN_VIEWS, 0.6 * use.sum()):
            continue
        fit = _Fit(columns | {"lag": step[..., None]}, moved, telling)
        coefficient = float(fit.numbers["lag"][0])
        low, high = (0.0, WHOLE[1]) if abs(k) == 1 else WHOLE
        clear = fit.clearness("lag")
        if low < coefficient < high and clear > clearest:
            best, clearest = (k, away), clear
    return best


class _Fit:
    """Least-squares fit of moves by parts.

    Args:
        columns: moves of each part, (N, 2, q), by one unit of each of its q numbers.
        moved: (N, 2) moves.
        use: (N,) bool, views that are fitted.
    """

    def __init__(self, columns: dict[str, np.ndarray], moved: np.ndarray, use: np.ndarray) -> None:
        self.columns, self.use = columns, use
        self.mean = moved[use].mean(axis=0)
        self.moves = moved - self.mean
        centred = {name: _centred(column, use) for name, column in columns.items()}
        numbers, self.rest = self._solve(centred)
        ends = np.cumsum([column.shape[-1] for column in centred.values()])
        self.numbers = dict(zip(centred, np.split(numbers, ends[:-1]), strict=True)) if centred else {}
        self.parts = {name: column @ self.numbers[name] for name, column in centred.items()}
        self._centred = centred

    def clearness(self, name: str) -> float:
        """Return the power that a part explains by number, over that of the rest by degree of freedom."""
        others = {other: column for other, column in self._centred.items() if other != name}
        gain = self._solve(others)[1] - self.rest
        return gain / self._centred[name].shape[-1] / self.noise

    @property
    def noise(self) -> float:
        """Power of the rest by degree of freedom, in pixels squared, no less than that of rounding."""
        numbers = sum(column.shape[-1] for column in self._centred.values())
        return max(self.rest / max(1, 2 * int(self.use.sum()) - 2 - numbers), STILL_PX**2)

    def _solve(self, centred: dict[str, np.ndarray]) -> tuple[np.ndarray, float]:
        """Return the numbers of parts, and the power that they leave."""
        wanted = self.moves[self.use].ravel()
        if not centred:
            return np.zeros(0), float((wanted**2).sum())
        design = np.concatenate([_flat(column, self.use) for column in centred.values()], axis=1)
        # Columns of very different sizes, pixels and times, are made alike.
        size = np.maximum(np.linalg.norm(design, axis=0), 1e-12)
        numbers = np.linalg.lstsq(design / size, wanted, rcond=1e-9)[0] / size
        return numbers, float(((wanted - design @ numbers) ** 2).sum())


def _standing_out(columns: dict[str, np.ndarray], moved: np.ndarray, use: np.ndarray) -> _Fit:
    """Return the fit by those parts that stand out of what is left; the least clear ones go first.

    Args:
        columns: moves of each part, (N, 2, q).
        moved: (N, 2) moves.
        use: (N,) bool, views that are fitted.
    """
    while True:
        fit = _Fit(columns, moved, use)
        clear = {name: fit.clearness(name) for name in columns}
        least = min(clear, key=lambda name: clear[name], default=None)
        if least is None or clear[least] > STANDS_OUT:
            return fit
        columns = {name: column for name, column in columns.items() if name != least}


def _centred(columns: np.ndarray, use: np.ndarray) -> np.ndarray:
    """Return moves (N, 2, q) without their mean over the views that are used."""
    return np.asarray(columns - columns[use].mean(axis=0))


def _flat(columns: np.ndarray, use: np.ndarray) -> np.ndarray:
    """Return moves (N, 2, q) of the views that are used as rows of equations, (2n, q)."""
    return columns[use].reshape(-1, columns.shape[-1])
