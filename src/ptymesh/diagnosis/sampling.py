"""Causes in how the scan samples the object.

Too little overlap, a probe in another plane, a regular grid, a beam larger than its window.
"""

from __future__ import annotations

import numpy as np

from ptymesh.diagnosis.evidence import Evidence, Remedy
from ptymesh.diagnosis.shadows import find_hidden_near_field, probe_spread
from ptymesh.diagnosis.view import ResultView
from ptymesh.verdict.signs import SPECKLES, disc_diameter

#: Ratio of a probe's spread to that of its start beyond which the start had another defocus; the number that is given
#: for it, a little above the row's threshold, as other causes may move a focus as well; least spread of a start.
MOVED, MOVED_NUMBER, LEAST_SPREAD = 1.3, 4.1, 0.05
#: Share of the object's modulation at the grid's period that the probe must hold inversely.
SHARED = 0.5
#: The grid's frequencies, in units of one over its steps (y, x).
GRID_ORDERS = ((1, 0), (0, 1), (1, 1), (1, -1))


def find_little_overlap(view: ResultView) -> Evidence | None:
    """Return the distance of neighbouring views over the diameter of the beam.

    The diameter is that of a disc with the probe's effective area, or half of what the width of the speckles in the
    patterns implies, whichever is larger: a probe that was not found may be far too small.
    """
    number = float(np.median(view.nearest_px) / max(disc_diameter(view.power), view.speckle_px / SPECKLES))
    beam = "the beam's" if view.scan is not None else "this probe's"
    remedies = (
        Remedy({"probe.start.kind": "file"} if view.scan is not None and view.scan.probe is not None else {}),
        Remedy(advice="start from a well-known probe; scan with steps of a third of the beam next time"),
    )
    return Evidence(number, f"neighbouring views are {number:.2g} of {beam} width apart", remedies)


def find_other_plane(view: ResultView) -> Evidence | None:
    """Return the width that far-field speckles tell, over that of a disc of the probe's effective area."""
    if view.scan is None or view.scan.geometry.propagation != "far_field":
        return None
    near = find_hidden_near_field(view)
    if near is not None and near.number > 1:  # images have no speckles
        return None
    diameter = disc_diameter(view.power)
    number = view.speckle_px / diameter
    sentence = (
        f"the patterns have speckles of a beam of about {view.speckle_px:.0f} px, and the probe has {diameter:.2g} px"
    )
    spreads = _spreads(view)
    if spreads is not None and number < MOVED_NUMBER and not 1 / MOVED < spreads[1] / spreads[0] < MOVED:
        number = MOVED_NUMBER
        sentence = (
            f"the fit has brought the probe from a spread of {spreads[0]:+.2g} object pixels per detector pixel to "
            f"{spreads[1]:+.2g}, which is another defocus than that of the start"
        )
    remedies = (
        Remedy({"stages": "auto"}, advice="which looks for the defocus"),
        Remedy(advice="give the defocus of the start (probe.start.defocus_m)"),
    )
    return Evidence(number, sentence, remedies)


def _spreads(view: ResultView) -> tuple[float, float] | None:
    """Return `probe_spread` of the file's probe and of the result's.

    None if the run did not start from the file's probe, or if that probe is in focus.
    """
    start = None if view.recipe is None else view.recipe.probe.start.kind
    if view.scan is None or view.scan.probe is None or start not in ("auto", "file"):
        return None
    of_file, of_result = (probe_spread(probe[0]) for probe in (view.scan.probe, view.result.probe))
    return None if abs(of_file) < LEAST_SPREAD else (of_file, of_result)


def find_raster(view: ResultView) -> Evidence | None:
    """Return the power of log |O| at the grid's frequencies over that beside them; 0 where the probe has no part in it.

    On a regular grid a factor with its period can be exchanged between object and probe. An object may have that
    period by itself; a probe that has the inverse of it, at the same phase, has not.
    """
    steps = grid_steps(view.result.positions_px)
    if steps is None:
        return Evidence(0.0)
    illuminated = view.light > 0.3 * view.light.max()
    y, x = np.nonzero(illuminated)
    log_object = np.log(np.maximum(np.abs(view.object[illuminated]), 1e-6))
    window = _window(y, x)
    h, w = view.power.shape
    v, u = (n.ravel() for n in np.indices((h, w)))
    first_row, first_column = view.result.positions_px[0]
    log_probe = 0.5 * np.log(np.maximum(view.power.ravel(), 1e-6 * view.power.max()))
    weight = view.power.ravel() / view.power.max()
    at, beside, shared = 0.0, 0.0, 0.0
    for a, b in GRID_ORDERS:
        fy, fx = a / steps[0], b / steps[1]
        inside = _modulation(log_object, window, y, x, (fy, fx))
        at += abs(inside) ** 2
        beside += float(
            np.mean([abs(_modulation(log_object, window, y, x, (fy * s, fx * s))) ** 2 for s in (0.65, 0.75, 1.3, 1.4)])
        )
        shared -= (np.conj(inside) * _modulation(log_probe, weight, v + first_row, u + first_column, (fy, fx))).real
    number = at / max(beside, 1e-30) if shared > SHARED * at else 0.0
    sentence = (
        f"the scan is a grid of {steps[0]:.3g} x {steps[1]:.3g} px, at its period the object has {number:.2g} "
        "times the power beside it, and the probe has the inverse"
    )
    remedy = Remedy({"probe.start.kind": "file"} if view.scan is not None and view.scan.probe is not None else {})
    smooth = Remedy({"stage.object.smooth": True}, unless="stage.object.smooth")
    scan = Remedy(advice="start from a well-known probe; scan on a spiral next time")
    return Evidence(number, sentence, (remedy, smooth, scan))


def _modulation(
    values: np.ndarray, weight: np.ndarray, y: np.ndarray, x: np.ndarray, frequency: tuple[float, float]
) -> complex:
    """Return c of the least-squares fit Re(c exp(2 pi i f.r)) to values about a weighted quadratic in y and x.

    Args:
        values: (n,) real, at the pixels.
        weight: (n,) of each value.
        y: (n,) rows of the pixels.
        x: (n,) columns of the pixels.
        frequency: (y, x) in periods per pixel.
    """
    phase = 2 * np.pi * (frequency[0] * y + frequency[1] * x)
    t, s = ((c - c.mean()) / max(float(np.ptp(c)), 1.0) for c in (y, x))
    basis = np.stack([np.ones_like(t), t, s, t * t, t * s, s * s, np.cos(phase), np.sin(phase)], axis=1)
    root = np.sqrt(weight)
    fitted = np.linalg.lstsq(basis * root[:, None], values * root, rcond=None)[0]
    return complex(fitted[-2], -fitted[-1])


def _window(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return a Hann window over the pixels (y, x), so that neighbouring frequencies do not leak."""
    parts = [(c - c.min() + 1) / (np.ptp(c) + 2) for c in (y, x)]
    return np.asarray(np.sin(np.pi * parts[0]) ** 2 * np.sin(np.pi * parts[1]) ** 2)


def find_wide_beam(view: ResultView) -> Evidence | None:
    """Return the part of the window's side in which four fifths of the beam lie.

    None in the near field, whose windows are as large as the detector.
    """
    assert view.scan is not None
    if view.scan.geometry.propagation != "far_field":
        return None
    h, w = view.power.shape
    rim = np.ones((h, w), bool)
    rim[h // 12 : h - h // 12, w // 12 : w - w // 12] = False
    core = np.maximum(view.power - 2 * view.power[rim].mean(), 0)  # without a halo, which has other causes
    number = max(_middle_share(core.sum(axis=1 - axis)) for axis in range(2))
    sentence = f"four fifths of the beam take {100 * number:.0f} % of the window: its fringes are finer than the pixels"
    bins = view.recipe is not None and view.recipe.data.bin > 1
    crops = view.recipe is not None and view.recipe.data.crop is not None
    remedies = (
        Remedy({"data.bin": 1} if bins else {}),
        Remedy({"data.pad": [int(1.5 * n) for n in (h, w)]} if not crops else {}),
        Remedy(advice="use finer detector pixels, a longer distance or a smaller beam"),
    )
    return Evidence(number, sentence, remedies)


def _middle_share(profile: np.ndarray) -> float:
    """Return the share of its length in which the middle four fifths of a profile's sum lie."""
    grown = np.concatenate([[0.0], np.cumsum(profile) / max(float(profile.sum()), 1e-30)])
    edges = np.interp([0.1, 0.9], grown, np.arange(len(grown)))
    return float((edges[1] - edges[0]) / len(profile))


def grid_steps(positions: np.ndarray) -> tuple[float, float] | None:
    """Return the steps (y, x) of positions (N, 2) that lie on a grid along the axes, None where they do not."""
    steps = []
    for axis in range(2):
        values = np.sort(positions[:, axis])
        jumps = np.diff(values)
        wide = jumps[jumps > 0.25 * jumps.max()]
        if len(wide) < 2 or len(wide) > len(values) / 3 or wide.std() > 0.1 * wide.mean():
            return None
        steps.append(float(wide.mean()))
    return steps[0], steps[1]
