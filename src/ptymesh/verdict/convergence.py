"""Convergence of the iteration, judged from its history alone; it says nothing of the picture (judging.py does).

e       epoch of the last stage
r(e)    residual of the epoch, or the held-out residual where views were held out

What more epochs would bring is foretold by a power law: -d log r / de = s (e0 / e)^p, its exponent from two stretches
of the curve; a fall that slows down by p > 1 ends somewhere, one with p < 1 goes on. Where a scheduler makes steps
small, the curve falls with them and then lies flat, whatever larger steps would still find: it foretells nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

Kind = Literal["converged", "falling", "diverging", "over-fitting", "at rest", "unclear"]

#: Epochs of a stage below which its curve says nothing.
FEWEST = 5
#: Rise above its minimum, for so many epochs, that is a divergence.
RISE, RISING = 0.03, 3
#: Fall per epoch that is not worth an epoch, and the fall altogether that makes more of them worth while.
SLOW, WORTH = 0.001, 0.01
#: Residual, relative to that of the true intensities, below which only noise is left to be fitted.
AT_NOISE = 1.02
#: Part of a stage's largest learning rate below which its steps are too small to move far.
SMALL = 0.2
#: Longest stretch of the curve over which a slope is taken.
STRETCH = 15
#: Epochs of a stage from which on a flat curve says that its model comes no further.
SETTLED = 20


@dataclass(frozen=True)
class Convergence:
    """Convergence of the iteration at the end of a history.

    Attributes:
        kind: one of the words above.
        sentence: the same in words.
        per_epoch: fraction by which the curve falls in an epoch now (negative where it rises).
        more_epochs: number of further epochs that would pay, 0 where none would.
        since: epoch of the last stage from which on the curve has risen, or None.
    """

    kind: Kind
    sentence: str
    per_epoch: float = 0.0
    more_epochs: int = 0
    since: int | None = None

    def __str__(self) -> str:
        return self.sentence


def judge_convergence(history: Mapping[str, np.ndarray], noise: float | None = None) -> Convergence:
    """Judge how the last stage ends.

    Args:
        history: columns `stage` and `residual`, and `held_out` and `rate` where there are such; one value per epoch.
        noise: residual that counting leaves of the true intensities, None where it is not known.

    Returns:
        Convergence of the held-out residual where views were held out, else of the training residual. Over-fitting
        is said of a held-out residual alone.
    """
    residual, held_out, rate = _last_stage(history)
    if len(residual) < FEWEST:
        word = f"{len(residual)} epoch{'s' * (len(residual) != 1)}"
        return Convergence("unclear", f"too early to tell: the last stage has {word}")
    has_held_out = len(held_out) == len(residual) and bool(np.isfinite(held_out).all() and (held_out > 0).all())
    curve, name = (held_out, "held-out residual") if has_held_out else (residual, "residual")
    if not (np.isfinite(curve).all() and (curve > 0).all()):
        return Convergence("unclear", "unclear: the residual is not a positive number in every epoch")
    return (
        _worse(curve, residual, name)
        or _judge_by_noise(curve, None if has_held_out else noise)
        or _judge_by_schedule(curve, rate)
        or _better(curve, name)
    )


def has_settled(history: Mapping[str, np.ndarray]) -> bool:
    """Return True if the residual lies flat at the end of a long last stage, whose steps no schedule has made small.

    Args:
        history: columns `stage` and `residual`, and `rate` where there is one; one value per epoch.
    """
    residual, _, rate = _last_stage(history)
    if len(residual) < SETTLED or not (np.isfinite(residual).all() and (residual > 0).all()):
        return False
    return _judge_by_schedule(residual, rate) is None and abs(_now(residual)[1]) < SLOW


class Curve:
    """A history that grows epoch by epoch, as watchers see it."""

    def __init__(self) -> None:
        self.columns: dict[str, list[float]] = {"stage": [], "residual": [], "held_out": [], "rate": []}

    def add(self, stage: int, residual: float, held_out: float | None, rate: float) -> None:
        """Add one epoch.

        Args:
            stage: number of its stage.
            residual: of the fitted views.
            held_out: residual of the held-out views, None where none are.
            rate: learning rate.
        """
        for column, value in zip(self.columns.values(), (stage, residual, held_out, rate), strict=True):
            column.append(math.nan if value is None else value)

    def judge(self, noise: float | None) -> Convergence:
        """Judge the convergence as far as the run has come."""
        return judge_convergence({name: np.asarray(column) for name, column in self.columns.items()}, noise)


def _last_stage(history: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return residual, held-out residual and learning rate of the last stage; the last two may be empty."""
    residual = np.asarray(history.get("residual", ()), dtype=float)
    stage = np.asarray(history.get("stage", np.zeros(len(residual))))
    last = stage == stage[-1] if len(stage) == len(residual) and len(stage) else np.ones(len(residual), dtype=bool)
    further_columns = (np.asarray(history.get(name, ()), dtype=float) for name in ("held_out", "rate"))
    held_out, rate = (column[last] if len(column) == len(residual) else column for column in further_columns)
    return residual[last], held_out, rate


def _worse(curve: np.ndarray, residual: np.ndarray, name: str) -> Convergence | None:
    """Return "diverging" or "over-fitting" where the end lies above the minimum by more than the curve jumps."""
    best = int(curve.argmin())
    after = curve[best + 1 :]
    if len(after) < RISING or after[-RISING:].min() < (1 + RISE) * curve[best]:
        return None
    slope, error = _slope(np.log(curve[best:]))
    if slope <= 2 * error:
        return None
    since, rise = best + 1, f"from {curve[best]:.3g} to {curve[-1]:.3g}"
    per_epoch = 1 - math.exp(slope)
    if residual is not curve and residual[-1] < residual[best]:
        sentence = f"over-fitting since epoch {since}: the held-out residual rose {rise} while the residual fell"
        return Convergence("over-fitting", sentence, per_epoch, 0, since)
    return Convergence("diverging", f"diverging since epoch {since}: the {name} rose {rise}", per_epoch, 0, since)


def _judge_by_noise(curve: np.ndarray, noise: float | None) -> Convergence | None:
    """Return "converged" where nothing but noise is left to be fitted."""
    if noise is None or curve[-1] > AT_NOISE * noise:
        return None
    sentence = (
        f"the residual {curve[-1]:.3g} is no more than counting alone makes of the true intensities ({noise:.3g})"
    )
    return Convergence("converged", f"converged: {sentence}", _now(curve)[1])


def _judge_by_schedule(curve: np.ndarray, rate: np.ndarray) -> Convergence | None:
    """Return "at rest" where a scheduler has made steps small."""
    if not (len(rate) and rate.max() > 0) or rate[-1] > SMALL * rate.max():
        return None
    sentence = (
        f"at rest: the stage's schedule has lowered its learning rate to {100 * rate[-1] / rate.max():.2g} % of the"
    )
    return Convergence(
        "at rest",
        f"{sentence} largest, so that hardly anything moves; more epochs in the stage may lower the residual",
        _now(curve)[1],
    )


def _stretch(n: int) -> int:
    """Return the number of epochs, of n, over which a slope is taken."""
    return int(np.clip(n // 3, 3, STRETCH))


def _now(curve: np.ndarray) -> tuple[float, float, float]:
    """Return the slope of log r at the end, the fraction by which r falls an epoch, and the slope's error."""
    slope, error = _slope(np.log(curve[-_stretch(len(curve)) :]))
    return slope, 1 - math.exp(slope), error


def _better(curve: np.ndarray, name: str) -> Convergence:
    """Return "converged" or "falling"."""
    n, logs, stretch = len(curve), np.log(curve), _stretch(len(curve))
    slope, per_epoch, error = _now(curve)
    now = max(0.0, -slope)
    if now <= 2 * error or now < SLOW / 2:
        return Convergence("converged", f"converged: the {name} falls by {100 * now:.2g} % an epoch", per_epoch)
    before = max(now, -_slope(logs[-2 * stretch : -stretch])[0]) if n >= 2 * stretch else now
    middle, earlier = n - stretch / 2, n - 1.5 * stretch
    power = float(np.clip(math.log(before / now) / math.log(middle / earlier), 0, 4))
    end = now * (middle / n) ** power  # the slope at the last epoch
    more = _count_epochs_until_slow(end, power, n)
    gain = _gain(end, power, n, more)
    if gain < WORTH:
        return Convergence("converged", f"converged: the {name} falls by {100 * end:.2g} % an epoch", per_epoch)
    sentence = f"still falling by {100 * (1 - math.exp(-end)):.2g} % an epoch: {more} more epochs would pay"
    return Convergence("falling", sentence, per_epoch, more)


def _count_epochs_until_slow(slope: float, power: float, n: int) -> int:
    """Return the epochs until the fall is slow, at most as many again as there were; in round numbers."""
    most = max(20, n)
    if slope <= SLOW:
        epochs = float(most)
    else:
        exponent = math.log(slope / SLOW) / power if power > 0 else math.inf
        epochs = min(float(most), n * math.expm1(min(exponent, 50.0)))
    step = 5 if epochs < 50 else 10
    return max(5, step * round(epochs / step))


def _gain(slope: float, power: float, n: int, more: int) -> float:
    """Return the fall of log r in so many more epochs."""
    grown = 1 + more / n
    return slope * n * (math.log(grown) if abs(power - 1) < 1e-6 else (grown ** (1 - power) - 1) / (1 - power))


def _slope(values: np.ndarray) -> tuple[float, float]:
    """Return the slope of a straight line through the values, and its standard error."""
    x = np.arange(len(values)) - (len(values) - 1) / 2
    spread = float((x**2).sum())
    slope = float((x * values).sum()) / spread
    rest = values - values.mean() - slope * x
    return slope, math.sqrt(float((rest**2).sum()) / max(1, len(values) - 2) / spread)
