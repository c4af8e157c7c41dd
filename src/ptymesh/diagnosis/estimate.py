"""Causes in the estimate itself: vortices, what object and probe have exchanged, too many modes, over-fitting."""

from __future__ import annotations

import shlex

import numpy as np

from ptymesh.diagnosis.evidence import Evidence, Remedy
from ptymesh.diagnosis.view import ResultView
from ptymesh.verdict.convergence import judge_convergence

#: Share of the light below which a mode holds next to nothing.
WEAK = 0.005
#: Probe's offset, as a share of its window, and slope of the object's phase, in detector pixels, that are remarkable.
OFFSET, SLOPE = 0.06, 0.5
#: Rise of the held-out residual above its minimum, and its excess over what noise explains, that are over-fitting.
RISE, EXCESS = 1.03, 1.25


def find_unfinished(view: ResultView) -> Evidence | None:
    """Return the percentage by which the residual falls in an epoch; 0 where it does not, or steps were made small."""
    convergence = judge_convergence(view.result.history, view.noise_level)
    if convergence.kind != "falling":
        return Evidence(0.0)
    stage = 0 if view.recipe is None else len(view.recipe.stages) - 1
    epochs = len(view.result.history.get("residual", ()))
    if view.recipe is not None:
        epochs = view.recipe.stages[-1].epochs
    folder = "OUT" if view.path is None else str(view.path.parent)
    command = shlex.join(
        ["ptymesh", "resume", folder, "--set", f"stages.{stage}.epochs={epochs + convergence.more_epochs}"]
    )
    return Evidence(100 * convergence.per_epoch, f"the residual is {convergence}", (Remedy(advice=command),))


def find_vortices(view: ResultView) -> Evidence | None:
    """Return how many points the object's phase winds around, where the scan has much light."""
    o = view.object
    turn = [
        np.angle(o[:-1, 1:] * o[:-1, :-1].conj()),
        np.angle(o[1:, 1:] * o[:-1, 1:].conj()),
        np.angle(o[1:, :-1] * o[1:, 1:].conj()),
        np.angle(o[:-1, :-1] * o[1:, :-1].conj()),
    ]
    winding = np.abs(np.round(sum(turn) / (2 * np.pi)))
    bright = view.light > 0.2 * view.light.max()
    points = np.argwhere(winding * (bright[:-1, :-1] & bright[1:, 1:]))
    if not len(points):
        return Evidence(0.0)
    several = f"{len(points)} point{'s' * (len(points) > 1)}, such as row {points[0][0]}, column {points[0][1]}"
    remedies = (
        Remedy({"object.initial": "ones"}),
        Remedy({"stages.0.coarsen": 2}, advice="a start with larger pixels has fewer of them"),
        Remedy({"seed": 1 if view.recipe is None else view.recipe.seed + 1}, advice="another seed"),
    )
    return Evidence(float(len(points)), f"its phase winds around {several}", remedies)


def find_exchanged(view: ResultView) -> Evidence | None:
    """Return the larger of the probe's offset in its window and the object's ramp, each over what is remarkable."""
    shift, slope = _probe_offset(view), _object_slope(view)
    if shift / OFFSET > slope / SLOPE:
        sentence = f"the probe lies off the middle of its window by {100 * shift:.2g} % of it, and the object with it"
        remedies = (Remedy({"stage.probe.centre": True}, unless="stage.probe.centre"),)
    else:
        sentence = f"the object's phase has a slope of {slope:.2g} detector pixels, which may belong to the probe"
        remedies = (Remedy({"stage.object.ramp": True}, unless="stage.object.ramp"),)
    return Evidence(max(shift / OFFSET, slope / SLOPE), sentence, remedies)


def _probe_offset(view: ResultView) -> float:
    """Return the distance of the probe's centre of mass from the window's middle, over the window."""
    offsets = []
    for axis, n in enumerate(view.power.shape):
        profile = view.power.sum(axis=1 - axis)
        offsets.append(((np.arange(n) - n // 2) * profile).sum() / max(profile.sum(), 1e-30) / n)
    return float(np.hypot(*offsets))


def _object_slope(view: ResultView) -> float:
    """Return the mean slope of the object's phase, in detector pixels."""
    o, bright = view.object, view.light > 0.3 * view.light.max()
    window = view.result.probe.shape[-2:]
    slopes = []
    for axis in range(2):
        both_bright = bright & np.roll(bright, -1, axis)
        slopes.append(np.angle((np.roll(o, -1, axis) * o.conj())[both_bright].sum()) / (2 * np.pi) * window[axis])
    return float(np.hypot(*slopes))


def find_weak_modes(view: ResultView) -> Evidence | None:
    """Return how many modes hold less than half a per cent of the light."""
    powers = (np.abs(view.result.probe.astype(np.complex128)) ** 2).sum(axis=(1, 2))
    powers = np.sort(powers / max(powers.sum(), 1e-30))
    weak = int((powers < WEAK).sum())
    weakest = f"the weakest {100 * powers[0]:.2g} %"
    sentence = f"{weak} of {len(powers)} modes hold less than half a per cent of the light each, {weakest}"
    return Evidence(float(weak), sentence, (Remedy({"probe.modes": max(1, len(powers) - weak)}),))


def find_over_fitting(view: ResultView) -> Evidence | None:
    """Return the larger of the held-out residual's rise and of its excess over what noise explains; 1 is too much.

    None where no views were held out, or in older results with refined positions: of these, held-out views kept those
    of the start.
    """
    held_out = np.asarray(view.result.history.get("held_out", ()), dtype=float)
    residual = np.asarray(view.result.history.get("residual", ()), dtype=float)
    is_measured = np.isfinite(held_out)
    refined = view.result.nominal_px is not None and "positions" not in (view.result.attrs.get("held_out_fitted") or ())
    if refined or not is_measured.any() or len(held_out) != len(residual) or not is_measured[-1]:
        return None
    stage = np.asarray(view.result.history.get("stage", np.zeros(len(held_out))))
    last = is_measured & (stage == stage[-1])
    lowest, end = float(held_out[last].min()), float(held_out[-1])
    rise = end / max(lowest, 1e-30)
    ratio = end / max(float(residual[-1]), 1e-30)
    explained = view.held_out_by_noise
    number = max((rise - 1) / (RISE - 1) if residual[-1] < end else 0.0, (ratio - 1) / (EXCESS * explained - 1))
    sentence = f"views that no update used have {ratio:.2g} times the residual of the others"
    if rise > RISE:
        sentence += f", and it has risen from {lowest:.3g} to {end:.3g}"
    remedies = (
        Remedy({"stage.object.smooth": True}, unless="stage.object.smooth", advice="or fewer epochs or modes"),
        Remedy(advice="fewer epochs, modes or unknowns"),
    )
    return Evidence(number, sentence, remedies)
