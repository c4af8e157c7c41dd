"""Causes in single views or parts of a scan: bad frames, two beams in one file, patterns that wander."""

from __future__ import annotations

import itertools

import numpy as np

from ptymesh.diagnosis.evidence import Evidence, Remedy
from ptymesh.diagnosis.propagation import defocus_asked
from ptymesh.diagnosis.view import ResultView
from ptymesh.io.prepare.preprocess import PreparedSource

#: Total, over the median of all, below and above which a frame is bad if it does not fit either.
DARK, GLARING = 0.2, 5.0
#: Residual of a view over the median of all that is far off; share of the views up to which bad ones are single ones.
FAR_OFF, FEW = 4.0, 0.25
#: Residual of a view astray over the median of all; share of the views up to which these are single ones.
ASTRAY_TIMES, ASTRAY = 8.0, 0.06
#: Share of a view's misfit from which on another brightness explains it.
OF_BRIGHTNESS = 0.5
#: Views that are named.
NAMED = 6
#: Consecutive parts of a scan whose means are compared; fewest on either side of a change.
PARTS, MIN_PARTS = 16, 3
CUTS = range(MIN_PARTS, PARTS - MIN_PARTS + 1)
#: Fewest views in which wandering is told from the sample's own phase.
MIN_VIEWS = 25
#: What changes where the beam's focus does. Its F counts for more: scans with one beam reached 39, those with two 76.
FOCUS, FOCUS_WEIGHT = "focus", 4 / 3
#: Pixels from one side of the scan to the other by which patterns wander, at least.
MIN_WANDER = 0.5
#: Standard errors from which on patterns wander with the position.
WANDERS = 5.0


def find_bad_frames(view: ResultView) -> Evidence | None:
    """Return how many views have no counts, or far too few or many of them, and do not fit."""
    totals, residuals = view.brightness, view.result.residuals
    middle = float(np.median(totals))
    odd = (totals <= DARK * middle) | (totals > GLARING * middle)
    if residuals is not None and len(residuals) == len(totals):
        # frames that outshine all others are what a fit takes care of first
        sure = (totals == 0) | (totals > GLARING**2 * middle)
        odd &= sure | (residuals > FAR_OFF * np.median(residuals))
    bad = np.flatnonzero(odd)
    if not len(bad) or len(bad) > FEW * len(totals):
        return Evidence(0.0)
    names = ", ".join(str(one) for one in bad[:NAMED]) + (" ..." if len(bad) > NAMED else "")
    counts = f"{totals[bad].min():.3g} to {totals[bad].max():.3g} counts, and the others {middle:.3g}"
    sentence = f"{len(bad)} view{'s' * (len(bad) > 1)} ({names}) hold {counts}"
    remedies = (*_left_out(view, bad), Remedy(advice=f"leave out views {names}"))
    return Evidence(float(len(bad)), sentence, remedies)


def find_astray_views(view: ResultView) -> Evidence | None:
    """Return how many views do not fit though the others do, and are as bright as these: their positions are wrong."""
    totals, residuals = view.brightness, view.result.residuals
    if residuals is None or len(residuals) != len(totals) or len(totals) < MIN_VIEWS:
        return None
    middle, usual = float(np.median(totals)), float(np.median(residuals))
    off = residuals > ASTRAY_TIMES * usual
    astray = np.flatnonzero(off & (totals > DARK * middle) & (totals < GLARING * middle))
    spread = float(np.quantile(residuals[~off], 0.9)) if not off.all() else np.inf
    if not len(astray) or off.sum() > ASTRAY * len(totals) or spread > 3 * usual:
        return Evidence(0.0)
    astray = np.setdiff1d(astray, _find_other_brightness(view))
    if not len(astray):
        return Evidence(0.0)
    names = ", ".join(str(one) for one in astray[:NAMED]) + (" ..." if len(astray) > NAMED else "")
    one = len(astray) == 1
    named = f"{len(astray)} view{'' if one else 's'} ({names}) {'does' if one else 'do'} not fit where positions say"
    sentence = f"{named}, though the others do and {'it is' if one else 'they are'} as bright as these"
    advice = "look for what went wrong at views " + names
    return Evidence(float(len(astray)), sentence, (*_left_out(view, astray), Remedy(advice=advice)))


def _find_other_brightness(view: ResultView) -> np.ndarray:
    """Return the views, of those that are looked at, most of whose misfit a factor of their own takes away."""
    root = np.sqrt(view.modelled)
    along, power = (root * view.misfit).sum(axis=(1, 2)), np.maximum((root**2).sum(axis=(1, 2)), 1e-30)
    share = along**2 / power / np.maximum((view.misfit**2).sum(axis=(1, 2)), 1e-30)
    return view.views[share > OF_BRIGHTNESS]


def _left_out(view: ResultView, bad: np.ndarray) -> tuple[Remedy, ...]:
    """Return the remedy that leaves out views, counted as in their file, beside those that are left out already."""
    assert view.scan is not None
    if view.recipe is None or not isinstance(view.scan.patterns, PreparedSource):
        return ()
    stored = sorted({*view.recipe.data.views.without, *(int(one) for one in view.scan.patterns.selected[bad])})
    return (Remedy({"data.views.without": stored}),)


def find_two_beams(view: ResultView) -> Evidence | None:
    """Return how much further the means of two parts of the scan are apart than means within them, in time order.

    Scans that were joined are looked at one by one: each may have its own dose, and see another part of the sample.
    Looked at are the brightness, the mean pattern, the sizes of speckles, and the defocus that views ask of the beam
    that all share, each by F, the square of the means' distance over what the scatter of consecutive parts lets expect.
    """
    scan = view.scan
    assert scan is not None
    defocus = defocus_asked(view) if len(view.views) >= PARTS * 2 else np.empty(0)
    best = None
    for one in range(scan.scans):
        views = np.arange(scan.views) if scan.scan_index is None else np.flatnonzero(scan.scan_index == one)
        change = _change_of_patterns(view, views)
        if change is not None:
            best = max(best or change, change, _change_of_focus(view, views, defocus))
    if best is None:
        return None
    number, quantity, view_index = best
    of = "beam that views ask for" if quantity == FOCUS else "patterns"
    sentence = f"from about view {view_index} on the {quantity} of the {of} is another than before"
    if scan.scan_index is not None:
        return Evidence(number, sentence, (Remedy(advice="run the parts of that scan by themselves"),))
    split = Remedy({"data.views.stop": view_index}, advice=f"and the rest with data.views.start={view_index}")
    return Evidence(number, sentence, (split,))


def _change_of_patterns(view: ResultView, views: np.ndarray) -> tuple[float, str, int] | None:
    """Return F of what patterns before and after a cut look like, what that is, and the cut's view.

    Args:
        view: the result.
        views: (n,) of one scan, in time order; None is returned where they are too few, or whole parts are bad.
    """
    n = len(views)
    if n < PARTS * 2:
        return None
    statistics, bright = view.scan_pass, view.brightness[views]
    shapes = statistics.thumbnails[views].reshape(n, -1) / np.sqrt(np.maximum(statistics.totals[views], 1e-30))[:, None]
    middle = np.median(bright)
    sound = (bright > DARK * middle) & (bright < GLARING * middle)
    brightness = np.log(np.maximum(bright, 1e-30) / middle)[:, None]
    edges = np.linspace(0, n, PARTS + 1).round().astype(int)
    parts = [np.arange(a, b)[sound[a:b]] for a, b in itertools.pairwise(edges)]
    if any(len(part) == 0 for part in parts):
        return None
    best = (0.0, "", 0)
    for quantity, values in (
        ("brightness", brightness),
        ("mean pattern", shapes),
        ("speckles", statistics.speckles[views]),
    ):
        means = np.stack([values[part].mean(axis=0) for part in parts])
        for cut in CUTS:
            best = max(best, (_change(means, cut), quantity, int(views[edges[cut]])))
    return best


def _change_of_focus(view: ResultView, views: np.ndarray, defocus: np.ndarray) -> tuple[float, str, int]:
    """Return weighted F of the defocus that views before and after a cut ask for, its name, and the cut's view.

    Args:
        view: the result.
        views: of one scan.
        defocus: (B,) defocus that each view that is looked at asks for; empty where these are too few.
    """
    looked_at = np.isin(view.views, views)
    if looked_at.sum() < PARTS * 2:
        return 0.0, FOCUS, 0
    at, defocus = view.views[looked_at], defocus[looked_at]
    parts = np.array_split(np.arange(len(at)), PARTS)
    means = np.array([[np.median(defocus[part])] for part in parts])  # single views may be bad
    # a change within a part leaves that part on neither side
    whole_scan = [(_change(means, cut), FOCUS, int(at[parts[cut][0]])) for cut in CUTS]
    within = [
        (_change(np.delete(means, cut, axis=0), cut), FOCUS, int(at[parts[cut][len(parts[cut]) // 2]]))
        for cut in CUTS[:-1]
    ]
    number, quantity, cut = max(whole_scan + within)
    return FOCUS_WEIGHT * number, quantity, cut


def _change(means: np.ndarray, cut: int) -> float:
    """Return F of the parts' means (n, c) before and after `cut`."""
    first, second = means[:cut], means[cut:]
    apart = float(((first.mean(axis=0) - second.mean(axis=0)) ** 2).sum())
    scatter = [float(((m - m.mean(axis=0)) ** 2).sum()) / (len(m) - 1) / len(m) for m in (first, second)]
    return apart / max(sum(scatter), 1e-30)


def find_descan(view: ResultView) -> Evidence | None:
    """Return the share of the centres' variance that is linear in the position and no gradient, by its size in pixels.

    A pattern that wanders along with the position makes centres of mass linear in it: c = C p. The symmetric part of C
    is what a lens in the sample would do; the antisymmetric part nothing in the sample does.
    """
    scan = view.scan
    assert scan is not None
    if scan.geometry.propagation != "far_field" or scan.views < MIN_VIEWS:
        return None
    linear, unexplained_px = linear_centres(view)
    p = view.result_positions
    reach = np.ptp(p, axis=0)
    curl = 0.5 * abs(linear[0, 1] - linear[1, 0]) * float(reach.mean())
    error = float(np.sqrt((unexplained_px**2).mean() / max((p - p.mean(axis=0)).var() * len(p), 1e-30))) * float(
        reach.mean()
    )
    number = curl / max(error, 1e-12) if curl > MIN_WANDER else 0.0
    sentence = f"patterns wander over the detector along the scan, by {curl:.2g} px from side to side"
    refined = {f"stage.unknowns.{name}": True for name in ("object", "probe", "descan")}
    remedies = Remedy({"optics.descan": True, **refined}), Remedy({"optics.descan": True})
    return Evidence(number, sentence, (*remedies, Remedy(advice="align the descan before the next scan is recorded")))


def linear_centres(view: ResultView) -> tuple[np.ndarray, np.ndarray]:
    """Return C (2, 2) of the best fit C p to the centres of mass, and what is left of these, (N, 2)."""
    p = view.result_positions - view.result_positions.mean(axis=0)
    c = view.scan_pass.centres
    c = c - c.mean(axis=0)
    fitted = np.linalg.lstsq(p, c, rcond=None)[0]
    return np.asarray(fitted.T), np.asarray(c - p @ fitted)
