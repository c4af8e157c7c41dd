"""A result's patterns beside their model: intensities of views, and which of them to show.

N, B    all views, views looked at
h, w    window pixels
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.io.results import Result
from ptymesh.measurement import Measurement, evenly_spread
from ptymesh.models import OPTICS, named
from ptymesh.physics.detector.pieces import binning_of
from ptymesh.physics.model import Model, SliceStack
from ptymesh.physics.object_modes import with_object_modes
from ptymesh.physics.operators import (
    Piece,
    Values,
    Views,
    ViewValues,
    ViewWindows,
    pieces_for_scan,
    values_for_views,
)
from ptymesh.physics.scan_energies import with_energies
from ptymesh.recipe.yaml_text import parsed

#: Most views of which the typical and the worst pattern are chosen; in larger scans they are evenly spaced.
LOOKED_AT = 1024
CHUNK = 32
#: Most and fewest views that are averaged, and pixels of modelled waves that are worked out for their mean, which takes
#: a core some seconds.
AVERAGED, FEWEST_AVERAGED, AVERAGED_PIXELS = 256, 16, 2**27


@dataclass(frozen=True)
class PatternPairs:
    """Measured patterns against the model.

    Attributes:
        pairs: title of each -> measured and modelled counts, both (h, w).
        mask: (h, w) bool, True where the detector is good.
        far_field: whether DC is at the corner.
        mean: measured and modelled counts, both (h, w), averaged over the same views, NaN where none has data.
        averaged: number of these views.
    """

    pairs: dict[str, tuple[np.ndarray, np.ndarray]]
    mask: np.ndarray
    far_field: bool
    mean: tuple[np.ndarray, np.ndarray] | None = None
    averaged: int = 0


def patterns_of(result: Result) -> PatternPairs:
    """Return `compared_patterns` with the data set that the result's recipe names.

    Raises:
        BadInput: there is no recipe, or the data set is not there, or not the run's.
    """
    from ptymesh.recipe.scans import load_scan
    from ptymesh.recipe.schema import Recipe

    if not result.recipe:
        raise BadInput("The result holds no recipe, which would say where its data are; runs of a recipe have one.")
    recipe = Recipe.from_yaml(result.recipe)
    return compared_patterns(result, load_scan(recipe))


def compared_patterns(result: Result, scan: Measurement) -> PatternPairs:
    """Return the pattern of typical (median) and that of largest residual and the mean pattern, each with its model.

    The residual is sum (sqrt I - sqrt y)^2 / sum y. Where the result does not hold the residuals of all views, up to
    LOOKED_AT views are looked at.

    Raises:
        BadInput: the scan is not the one that the result was made from.
    """
    check_same(result, scan)
    model = model_of(result, scan.geometry, scan)
    views, residuals = np.arange(scan.views), result.residuals
    if residuals is None:
        views = evenly_spread(scan.views, LOOKED_AT)
        chunks = [views[start : start + CHUNK] for start in range(0, len(views), CHUNK)]
        residuals = np.concatenate([_residuals(scan, chunk, modelled(model, result, chunk, scan)) for chunk in chunks])
    order = np.argsort(residuals, kind="stable")
    few = "" if len(views) == scan.views else f" of {len(views)}"
    pairs = {}
    for name, index in ((f"typical{few}", order[len(order) // 2]), (f"worst{few}", order[-1])):
        view = views[index : index + 1]
        title = f"{name}: view {view[0]}, residual {residuals[index]:.3g}"
        pairs[title] = (scan.patterns.read(view)[0].astype(np.float64), modelled(model, result, view, scan)[0])
    chosen = _averaged_views(result)
    mean = mean_pattern_pair(model, result, scan, chosen)
    return PatternPairs(pairs, scan.mask, scan.geometry.propagation == "far_field", mean, len(chosen))


def mean_pattern_pair(
    model: Model, result: Result, scan: Measurement, views: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of measured patterns, and that of their models where the same pixels have data.

    Args:
        model: of the result.
        result: object, probe and all other unknowns.
        scan: that the result was made from.
        views: (B,) integer, indices.

    Returns:
        Both (h, w) float64, counts; NaN where no view has data.
    """
    sums, count = np.zeros((2, *scan.window)), np.zeros(scan.window)
    for start in range(0, len(views), CHUNK):
        chunk = views[start : start + CHUNK]
        measured = scan.patterns.read(chunk).astype(np.float64)
        good = scan.mask & (measured >= 0)
        for total, patterns in zip(sums, (measured, modelled(model, result, chunk, scan)), strict=True):
            total += np.where(good, patterns, 0).sum(axis=0)
        count += good.sum(axis=0)
    mean = np.where(count > 0, sums / np.maximum(count, 1), np.nan)
    return mean[0], mean[1]


def _averaged_views(result: Result) -> np.ndarray:
    """Return the views whose patterns are averaged, ascending: all, or as many at random as take little time.

    Views at random, as evenly spaced ones may meet a crystal at the same place of each of its cells.
    """
    views = len(result.positions_px)
    waves = len(result.probe) * len(result.planes) * result.probe[0].size
    most = min(max(AVERAGED_PIXELS // waves, FEWEST_AVERAGED), AVERAGED)
    return np.sort(np.random.default_rng(0).choice(views, min(views, most), replace=False))


def model_of(result: Result, geometry: Geometry, scan: Measurement | None = None) -> Model:
    """Return the model by which a result explains patterns of this geometry.

    Args:
        result: of the run.
        geometry: of the patterns.
        scan: that the result was made from; None if it is of a single energy.
    """
    pieces = optics_of(result)
    if scan is not None:
        pieces, _ = pieces_for_scan(pieces, scan)
    pieces = with_object_modes(pieces, 1 if result.object_modes is None else len(result.object_modes))
    return Model.for_geometry(
        geometry.binned(1 / binning_of(pieces)),
        subpixel=result.attrs.get("subpixel", "fourier"),
        slices=SliceStack(len(result.object), result.slice_spacing_m, result.tilt_rad),
        optics=pieces if scan is None else with_energies(pieces, scan),
        dtype=torch.complex64 if result.probe.dtype == np.complex64 else torch.complex128,
    )


def check_same(result: Result, scan: Measurement) -> None:
    """Raise BadInput unless result and scan belong together."""
    window = (result.probe.shape[-2], result.probe.shape[-1])
    expected = scan.geometry.binned(1 / binning_of(optics_of(result))).shape
    if scan.views != len(result.positions_px) or expected != window:
        raise BadInput(
            f"{scan.path} has {scan.views} views of {expected} pixels and the result {len(result.positions_px)} "
            f"of {window}; the data, or what is done to them, are not those of the run."
        )
    reach = result.attrs.get("subpixel") == "bilinear"
    first, last = np.floor(result.positions_px + 0.5) - reach, np.floor(result.positions_px + 0.5) + reach
    if (first < 0).any() or (last + np.array(window) > result.object.shape[-2:]).any():
        raise BadInput("The positions of the result lie beyond its object; take another one, or run again.")
    fingerprint = result.attrs.get("data_fingerprint")
    if fingerprint and scan.fingerprint and fingerprint != scan.fingerprint:
        raise BadInput(f"{scan.path} has changed since the run; put the file back that the run read.")


def modelled(model: Model, result: Result, views: np.ndarray, scan: Measurement | None = None) -> np.ndarray:
    """Return the intensities of views, with the result's weights and background.

    Args:
        model: of the result.
        result: object, probe and all other unknowns.
        views: (B,) integer, indices.
        scan: that the result was made from; None if no operator of the model depends on where views were measured.

    Returns:
        (B, h, w) float64, counts.
    """
    if result.scan_probes is not None and result.scan_index is not None:
        sides = (n // model.binning for n in result.probe.shape[-2:])
        scans, intensities = result.scan_index[views], np.empty((len(views), *sides))
        for number, probe in enumerate(result.scan_probes):
            of_scan = replace(result, probe=probe, scan_probes=None)
            if (scans == number).any():
                intensities[scans == number] = modelled(model, of_scan, views[scans == number], scan)
        return intensities
    positions = result.positions_px[views]
    anchors = np.floor(positions + 0.5)
    real = result.probe.real.dtype
    fractions = torch.as_tensor((positions - anchors).astype(real))
    windows = ViewWindows(torch.as_tensor(views), torch.as_tensor(anchors.astype(np.int64)), result.probe.shape[-2:])
    values: Values = _values(model, result, windows, real)
    if scan is not None:
        measured = torch.as_tensor(scan.positions[views], dtype=torch.float64)
        values = ViewValues(values, Views(torch.as_tensor(positions), fractions, measured, torch.as_tensor(views)))
    weights = np.ones((len(views), 1)) if result.weights is None else result.weights[views]
    background = result.background_of(views)
    return (
        model.intensity(
            torch.as_tensor(result.planes.astype(result.probe.dtype)),
            torch.as_tensor(result.probe),
            windows.anchors,
            fractions,
            torch.as_tensor(weights.astype(real)),
            None if background is None else torch.as_tensor(background.astype(real)),
            None if result.opr is None else torch.as_tensor(result.opr),
            values,
        )
        .numpy()
        .astype(np.float64)
    )


def optics_of(result: Result) -> tuple[Piece, ...]:
    """Return the operators of the model that the result's recipe names. Raises BadInput where one is not known here."""
    raw = parsed(result.recipe, "The recipe of the result") if result.recipe else None
    options = (raw.get("optics") if isinstance(raw, dict) else None) or {}
    return tuple(named(options, OPTICS, "optics").values())


def _values(model: Model, result: Result, windows: ViewWindows, real: np.dtype) -> dict[str, torch.Tensor]:
    """Return the values of the operators' unknowns, as `values_for_views` gives them.

    Raises:
        BadInput: the result does not hold one of them.
    """
    values, index = {}, result.scan_index
    scans = None if index is None else torch.as_tensor(index)
    for one in model.unknowns:
        if one.name not in result.unknowns:
            raise BadInput(f"The result holds no /unknowns/{one.name}, which its recipe's optics need; run again.")
        array, kind = result.unknowns[one.name], result.probe.dtype if one.complex else real
        values[one.name] = values_for_views(one, torch.as_tensor(array.astype(kind)), windows, scans)
    return values


def _residuals(scan: Measurement, views: np.ndarray, modelled: np.ndarray) -> np.ndarray:
    """Return the residual of each view over its good pixels, (B,)."""
    measured = scan.patterns.read(views).astype(np.float64)
    good = scan.mask & (measured >= 0)
    counts = np.where(good, measured, 0)
    difference = np.where(good, (np.sqrt(np.maximum(modelled, 0)) - np.sqrt(counts)) ** 2, 0)
    return difference.sum(axis=(1, 2)) / np.maximum(counts.sum(axis=(1, 2)), 1e-30)
