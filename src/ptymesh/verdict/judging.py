"""Verdict on a final estimate: whether the picture can be believed.

m, f     per pixel, misfit (sqrt y - sqrt I)^2 and its mean by counting for the modelled intensity I
t        sum m / sum f over the views that were looked at: times of what counting leaves
S        misfit of the best model in which all views are alike
u        (sum m - sum f) / (S - sum f): share of what the views tell that the model leaves unexplained

A residual alone does not tell a wrong model from a right one of many counts: at a million counts a view, 25 epochs of a
right model may end at 3 times what counting leaves, with a good picture. So u is asked as well. Thresholds are from
simulated scans with known truth (20 kinds, 5e3 to 2e6 counts a view), where a picture is poor if its error is 1.5 times
that of the right model on the same data:

    right, near its end         t = 0.8 to 1.2, u below 0.14
    right, far from its end     t = 1.3 to 4, u = 0.04 to 0.2, the residual falling by 2 to 6 % an epoch
    wrong                       t above 1.4, u above 0.2 (nine cases of ten)
    wrong views or brightness   single views above 2.5 times the median of m / f; at most 1.8 times in right models
    wrong pixels                0.7 of the excess on 3 % of the detector; in right models at most 0.7 on 2 %
    fog                         u = 0.68 to 0.82, as a fit follows part of what it cannot explain
    wrong, and at its end       t = 2.6, u = 0.15: patterns that wander, and 100 epochs that changed nothing any more

The last is why u counts for more where the residual falls no longer: no right model that is so far ends above t = 1.35.

Noise alone is fitted, too: p numbers take some p / n of it off, of n that were counted. Fits of patterns that hold
nothing else took off 0.78 and 0.91 times as much beyond a single pattern for all views, right models 2.8 times (1e3
counts a view) to 90 times.

What a fit hides is asked of signs.py: any sign makes a result poor. Of 20 right models and as many faults (level 3 of
benchmarks/fog.py) the median over views of what a move takes off the misfit was

    right                       0.32 to 1.1 (noise alone 0.35); positions that are refined up to 48, which is not asked
    wrong                       above 1.15 (twenty cases of twenty-one); 0.5 of a stretch, which a beam takes on

and the median of these moves was above 0.04 pixels where that is the only sign. With many counts a right model asks for
more than noise does, too: that of a crystal whose atoms vibrate (1e5 counts a view) for 1.33 and 0.018 pixels.

Noise may exceed that of counting (a gain, a detector's own). Of a weak sample u is then near 1 with any model: the cryo
set has t = 2.1 and u = 0.98, and a good picture. Residuals do not tell such noise from a fog.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ptymesh.verdict.convergence import FEWEST, has_settled, judge_convergence
from ptymesh.verdict.floor import NoiseFloor
from ptymesh.verdict.misfits import COUNTS, EXPECTED, GOOD, MISFIT, VARIANCE, Misfits
from ptymesh.verdict.signs import Sign

State = Literal["good", "poor", "failed", "unknown"]

#: t above which counting does not explain the misfit, and standard errors by which it must do so.
MOST_TIMES, STANDARD_ERRORS = 1.35, 5.0
#: u above which a picture is poor. The Siemens star with one mode of its three, a good picture, has t = 2 and u = 0.11.
POOR_SHARE = 0.2
#: u above which a picture is poor whose residual falls no longer.
SETTLED_SHARE = 0.1
#: Fall of the residual in an epoch, as a fraction, above which more epochs are worth a word; over so many epochs.
FALLING, LAST_EPOCHS = 0.015, 3
#: The same where no schedule has made steps small: what views ask for may be that the fit is on its way. Its name.
UNFINISHED, UNFINISHED_NAME = 0.008, "unfinished"
#: The same where a schedule has made steps small, by which a residual falls in the end of any run.
FALLING_AT_REST = 0.05
#: u above which, without views that stand out, nothing but a fog is there.
FOG_SHARE = 0.6
#: u and t of noise that may be another than that of counting, lowest and highest u, highest t.
NOISE_SHARES, NOISE_TIMES = (0.9, 1.02), 3.0
#: Times of the median of m / f, and of what counting leaves, from which on a view stands out; their share that is poor.
ODD_TIMES, ODD_SHARE = 2.5, 0.02
#: Times of what counting leaves from which on pixels stand out; the share of the excess that they must hold, and the
#: share of the detector that they are at most; t from which on they make a picture poor.
ODD_PIXEL, ODD_EXCESS, ODD_AREA, ODD_PIXELS_TIMES = 5.0, 0.7, 0.03, 1.2
#: Times of what a fit of noise alone explains, below which no object is seen.
NOTHING_SEEN = 1.5
#: Residual of a model that is all but zero wherever there are counts: sum (0 - sqrt y)^2 / sum y is 1.
DARK_RESIDUAL = 0.999
#: Of what counting would leave, a residual below which patterns vary less than counts do. All 304 runs of
#: benchmarks/fog.py ended above 0.96; means of two frames end at 0.5, whole roots of counts at 0.64.
TOO_SMOOTH = 0.8


@dataclass(frozen=True)
class Verdict:
    """Verdict on a result, with its reason.

    Attributes:
        state: good, poor, failed or unknown.
        sentence: the same with its reason, a clause without a full stop.
        residual: of the final estimate, over all views.
        noise_floor: least residual that counting explains, None where patterns are no counts.
        times: t, None where patterns are no counts.
        views: indices of views that the model does not explain.
        signs: names of causes that do not need a high residual (signs.py), the surest first.
    """

    state: State
    sentence: str
    residual: float
    noise_floor: float | None = None
    times: float | None = None
    views: tuple[int, ...] = ()
    signs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.state}: {self.sentence}"


def judge(
    residual: float,
    floor: NoiseFloor | None,
    fitted: int,
    misfits: Misfits,
    history: Mapping[str, np.ndarray] | None = None,
    signs: Sequence[Sign] = (),
) -> Verdict:
    """Return the verdict on a final estimate.

    Args:
        residual: of all views, frozen.
        floor: what counting leaves, None where the patterns are no counts.
        fitted: real numbers that were fitted.
        misfits: what the estimate leaves of single views and pixels.
        history: columns `stage` and `residual`, one value per epoch.
        signs: of a wrong model, the surest first, which do not need a high residual.
    """
    verdict = _judge_misfits(residual, floor, fitted, misfits, history)
    if not signs or (verdict.state == "failed" and not math.isfinite(residual)):
        return verdict
    if verdict.state == "failed":  # what views ask of a fog is no proof of anything
        signs = [sign for sign in signs if not sign.is_of_fit]
    names = tuple(dict.fromkeys(sign.cause for sign in signs if sign.cause))
    if verdict.state in ("poor", "failed"):
        return replace(verdict, signs=names)
    sentence = next((sign.sentence for sign in signs if sign.cause), signs[0].sentence)
    early = _describe_early_end(history or {}, UNFINISHED) if all(sign.is_of_fit for sign in signs) else ""
    if early:
        names = ()  # what a fit on its way leaves is no proof of any
    if verdict.times is not None:
        link = "and" if early else "but"
        sentence = f"the residual is {factor_in_words(verdict.times)} times what counting leaves, {link} {sentence}"
    sentence = early + sentence
    return replace(verdict, state="poor", sentence=sentence, signs=names)


def _judge_misfits(
    residual: float,
    floor: NoiseFloor | None,
    fitted: int,
    misfits: Misfits,
    history: Mapping[str, np.ndarray] | None,
) -> Verdict:
    """Return the verdict by what is left of the counts alone; arguments as of `judge`."""
    if not math.isfinite(residual):
        return Verdict("failed", "the residual is no finite number", residual)
    odd = unexplained_views(misfits)
    misfit, expected, variance, counts = (
        float(misfits.by_view[:, column].sum()) for column in (MISFIT, EXPECTED, VARIANCE, COUNTS)
    )
    to_explain = misfits.static * counts
    early = "" if odd else _describe_early_end(history or {}, FALLING)
    fog = f"the residual {residual:.3g} is not far below the {misfits.static:.3g} of a single pattern for all views"
    fog = early + fog
    if DARK_RESIDUAL < residual <= 1:
        why = "the model has next to no light on the pixels that hold data, so that nothing moves it: check the mask"
        return Verdict("failed", f"{why} (data.mask_true), saturated pixels and probe.start", residual)
    if floor is None:
        if misfit > FOG_SHARE * to_explain and not odd:
            return Verdict("failed", fog, residual)
        why = "the patterns are no counts (data.gain would make them so), so that nobody knows what noise leaves"
        return Verdict("unknown", f"{why}; the residual is {residual:.3g}", residual, views=odd)
    bound, times = floor.fitted(fitted), misfit / max(expected, 1e-300)
    measured = float(misfits.by_view[:, GOOD].mean()) * len(misfits.by_all)
    if fitted >= measured and misfit <= MOST_TIMES * expected:
        why = f"{fitted:,} numbers were fitted to the {measured:,.0f} that were measured"
        return Verdict("unknown", f"{why}: so many fit whatever the object is", residual, bound, times, odd)
    if residual < TOO_SMOOTH * bound:
        why = f"the residual {residual:.3g} is below what counting would leave ({bound:.3g}): the patterns vary less"
        more = "than counts do, as means or roots of counts would (data.gain, data.amplitudes)"
        return Verdict("unknown", f"{why} {more}", residual, bound, times, odd)
    excess = misfit - expected
    share = excess / (to_explain - expected) if to_explain > expected else 1.0
    unexplained = times > MOST_TIMES and excess > STANDARD_ERRORS * math.sqrt(variance)
    many_odd = len(odd) >= max(2.0, ODD_SHARE * len(misfits.by_all))
    sentence = f"the residual is {factor_in_words(times)} times what counting leaves"
    pixels = "" if odd else _odd_pixels(misfits)
    named = f"{sentence}{_named_views(misfits, odd)}{pixels}"
    if unexplained and not odd and times < NOISE_TIMES and NOISE_SHARES[0] < share < NOISE_SHARES[1]:
        why = f"the views differ by {factor_in_words(times)} times what counting makes, and the model explains next to"
        more = "nothing of it: the patterns are noisier than counts (data.gain?), or the picture is a fog"
        return Verdict("unknown", f"{why} {more}", residual, bound, times)
    if unexplained and share > FOG_SHARE and not odd:
        return Verdict(
            "failed", f"{fog}, and {factor_in_words(times)} times what counting leaves", residual, bound, times
        )
    settled = has_settled(history or {})
    if many_odd or (unexplained and share > (SETTLED_SHARE if settled else POOR_SHARE)):
        more = f", which is {share:.0%} of what the views tell, and falls no longer" if settled and not odd else ""
        return Verdict("poor", f"{early}{named}{more}", residual, bound, times, odd)
    if pixels and times > ODD_PIXELS_TIMES:
        return Verdict("poor", named, residual, bound, times)
    is_nothing_seen = len(misfits.by_view) > 1 and to_explain - misfit < NOTHING_SEEN * _explained_by_chance(
        misfits, fitted
    )
    if is_nothing_seen and not unexplained and not odd:
        why = "a single pattern for all views fits about as well, and so much would be explained of mere noise"
        return Verdict("unknown", f"{why}: nothing of an object is seen", residual, bound, times)
    if unexplained:
        return Verdict("good", f"{named}, which is {share:.0%} of what the views tell", residual, bound, times, odd)
    rest = "; the others are, as far as noise lets them" if odd else ": no more than noise and fitted numbers explain"
    return Verdict("good", f"{named}{rest}", residual, bound, times, odd)


def _explained_by_chance(misfits: Misfits, fitted: int) -> float:
    """Return the misfit of the views that were looked at which so many fitted numbers take off mere noise."""
    numbers = max(float(misfits.by_view[:, GOOD].sum()), 1.0)
    share = len(misfits.by_view) / len(misfits.by_all)  # of the fitted numbers
    return float(misfits.by_view[:, EXPECTED].sum()) * fitted * share / numbers


def unexplained_views(misfits: Misfits) -> tuple[int, ...]:
    """Return indices of views that the model does not explain though it explains the others, the worst first."""
    misfit = misfits.by_all[:, 0]
    expected = np.interp(np.arange(len(misfit)), misfits.views, misfits.by_view[:, EXPECTED])
    deviation = np.sqrt(np.interp(np.arange(len(misfit)), misfits.views, misfits.by_view[:, VARIANCE]))
    # views without counts expect what the model makes of them, brighter ones not much more than others do
    typical = float(np.median(expected))
    expected = np.maximum(expected, 0.2 * typical)
    times = misfit / np.maximum(expected, 1e-300)
    limit = ODD_TIMES * max(1.0, float(np.median(times)))
    odd = (times > limit) & (misfit - expected > STANDARD_ERRORS * deviation)
    if odd.sum() > 0.5 * len(odd):  # then these are what is usual
        return ()
    odd_views = np.flatnonzero(odd)
    return tuple(int(view) for view in odd_views[np.argsort(-times[odd_views], kind="stable")])


def _named_views(misfits: Misfits, odd: Sequence[int]) -> str:
    """Return which views are not explained, empty where there are none."""
    if not odd:
        return ""
    are = "is" if len(odd) == 1 else "are"
    return f"; {len(odd)} of {len(misfits.by_all)} views {are} not explained ({name_views(odd)})"


def _odd_pixels(misfits: Misfits) -> str:
    """Return which part of the detector holds most of what is not explained, empty where no small part does."""
    misfit, expected = misfits.by_pixel[MISFIT], misfits.by_pixel[EXPECTED]
    excess = misfit - expected
    odd = (misfit > ODD_PIXEL * expected) & (excess > 0)
    odd_excess, total = float(excess[odd].sum()), float(excess.sum())
    if total <= 0 or odd_excess < ODD_EXCESS * total or not 0 < odd.mean() < ODD_AREA:
        return ""
    share = min(1.0, odd_excess / total)
    return f"; {int(odd.sum())} of {odd.size} detector pixels hold {share:.0%} of what is not explained"


def _describe_early_end(history: Mapping[str, np.ndarray], least: float) -> str:
    """Return a clause that more epochs come first, as the run has had few or still falls fast; empty where it does not.

    Args:
        history: columns `stage` and `residual`, one value per epoch.
        least: fall of the residual in an epoch, as a fraction, that is fast.
    """
    residual = np.asarray(history.get("residual", ()), dtype=float)
    if 0 < len(residual) < FEWEST:
        return f"more epochs first, as the run has had {len(residual)}: "
    course, last = judge_convergence(history), _fall(residual[-LAST_EPOCHS - 1 :])
    fall = {"falling": course.per_epoch, "unclear": last, "at rest": last}.get(course.kind, 0.0)
    least = max(least, FALLING_AT_REST) if course.kind == "at rest" else least
    return f"more epochs first, as the residual is still falling by {fall:.1%} an epoch: " if fall > least else ""


def _fall(residual: np.ndarray) -> float:
    """Return by which fraction the residual (n,) of some epochs falls in each; 0 where that is unknown."""
    if len(residual) < 2 or not (residual > 0).all() or not np.isfinite(residual).all():
        return 0.0
    return float(1 - (residual[-1] / residual[0]) ** (1 / (len(residual) - 1)))


def factor_in_words(times: float) -> str:
    """Return a factor with two digits, 1.0 for one; one beyond all measure in words."""
    if times >= 1e4:
        return "more than 10,000"
    return f"{times:#.2g}".removesuffix(".") if times < 99.5 else f"{times:,.0f}"


def name_views(views: Sequence[int], most: int = 3) -> str:
    """Return "view 3", "views 3 and 17" or "views 3, 17, 20 and 5 more"."""
    if len(views) == 1:
        return f"view {views[0]}"
    named = [str(view) for view in views[:most]]
    if len(views) > most:
        return f"views {', '.join(named)} and {len(views) - most} more"
    return f"views {', '.join(named[:-1])} and {named[-1]}"
