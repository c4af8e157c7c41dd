"""Whether the picture can be believed: the verdict on a final estimate.

R        residual of the final estimate
F, B     noise floor: residual of the true intensities; least residual that counting explains after a fit (floor.py)
S        residual of the best model in which all views are alike
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ptymesh.verdict.evidence import Evidence
from ptymesh.verdict.floor import NoiseFloor

State = Literal["good", "poor", "failed", "unknown"]
STATES: tuple[State, ...] = ("good", "poor", "failed", "unknown")

#: Times of the noise floor from which on a result is poor.
POOR_TIMES = 3.0
#: Share of what is to be explained (S - B) that is left (R - B) in a fog.
FOG_SHARE = 0.7


@dataclass(frozen=True)
class Verdict:
    """What is said of a result.

    Attributes:
        state: good, poor, failed or unknown.
        sentence: the same with its reason, a clause without a full stop.
        residual: R.
        noise_floor: B, None where patterns are no counts.
        views: indices of views that the model does not explain.
    """

    state: State
    sentence: str
    residual: float
    noise_floor: float | None = None
    views: tuple[int, ...] = ()

    @property
    def times(self) -> float | None:
        """The residual as a multiple of the noise floor."""
        return self.residual / self.noise_floor if self.noise_floor else None

    def __str__(self) -> str:
        return f"{self.state}: {self.sentence}"

    def as_dict(self) -> dict[str, Any]:
        """Return its fields by name, for JSON."""
        return asdict(self) | {"times_noise_floor": self.times}


def judge(residual: float, floor: NoiseFloor | None, fitted: int, evidence: Evidence) -> Verdict:
    """Return the verdict on a final estimate.

    Args:
        residual: R, over all views.
        floor: what counting leaves, None where the patterns are no counts.
        fitted: real numbers that were fitted.
        evidence: what the estimate leaves of single views and pixels.
    """
    if not math.isfinite(residual):
        return Verdict("failed", "the residual is no finite number", residual)
    static, bound = evidence.static, 0.0 if floor is None else floor.fitted(fitted)
    left = (residual - bound) / max(static - bound, 1e-300)
    said = f"the residual {residual:.3g} is hardly below the {static:.3g} of one pattern for all views"
    if floor is None:
        if left > FOG_SHARE:
            return Verdict("failed", said, residual)
        why = "the patterns are no counts (or data.gain is missing), so that nobody knows what noise would leave"
        return Verdict("unknown", f"{why}; the residual is {residual:.3g}", residual)
    times = f"{factor_in_words(residual / bound)} times the noise floor"
    if residual > POOR_TIMES * bound and left > FOG_SHARE:
        return Verdict("failed", f"{said}, and {times}", residual, bound)
    if residual > POOR_TIMES * bound:
        return Verdict("poor", f"the residual is {times}", residual, bound)
    return Verdict("good", f"the residual is {times}, which counting explains", residual, bound)


def factor_in_words(times: float) -> str:
    """Return a factor with two digits; one beyond all measure in words."""
    if times >= 1e4:
        return "more than 10,000"
    return f"{times:.2g}" if times < 99.5 else f"{times:,.0f}"


def name_views(views: Sequence[int], most: int = 3) -> str:
    """Return "view 3", "views 3 and 17" or "views 3, 17, 20 and 5 more"."""
    if len(views) == 1:
        return f"view {views[0]}"
    named = [str(view) for view in views[:most]]
    if len(views) > most:
        return f"views {', '.join(named)} and {len(views) - most} more"
    return f"views {', '.join(named[:-1])} and {named[-1]}"
