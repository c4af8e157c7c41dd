"""Search for numbers of the optics that a file may lack or have wrong: defocus, and the distance in the near field.

Each value is tried by the first epochs of a reconstruction with it, which the residual of held-out views judges.

lambda, d, n    wavelength, object pixel, window side;  FOV = n d
alpha           half the angle of the beam's cone
z               defocus;  |z| alpha the beam's radius at the sample
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ptymesh.auto.candidates import Candidate, OverBudget, is_better
from ptymesh.auto.near_field import Advance, Begin, Note, find_distance, find_near_field
from ptymesh.measurement import Measurement
from ptymesh.recipe.schema import Recipe
from ptymesh.recipe.starts import AutoStart, DataStart, ElectronStart, EmptyBeamStart

#: Radii of the beam that are tried, as shares of FOV, on either side of the focus. A reconstruction converges from the
#: nearest one; finer steps would favour beams that are too wide, which fit any pattern more easily.
RADII = (0.06, 0.12, 0.24)
#: Standard errors by which another number has to lower the held-out residual. No share is required, because with few
#: counts noise is most of the residual.
SURE = 3.0
#: Number of views whose mean pattern measures the beam's cone.
VIEWS = 64


def find_optics(
    recipe: Recipe,
    scan: Measurement,
    begin: Begin,
    advance: Advance,
    note: Note,
    chosen: Collection[str] = frozenset(),
) -> Recipe:
    """Return the recipe with the defocus or the distance that suits best, if one of them is open.

    Args:
        recipe: what is known so far.
        scan: the data as that recipe describes them.
        begin: runs the first epochs of recipes.
        advance: continues a candidate with another recipe.
        note: is called with a key of the recipe and a sentence that says why.
        chosen: keys of the recipe that were set from the look of the patterns, not by a person.
    """
    if scan.geometry.propagation != "far_field":
        told_keys = {key for key in ("distance_m", "focus_distance_m") if getattr(recipe.data, key) is not None}
        if scan.geometry.distance_m is None or any(f"data.{key}" not in chosen for key in told_keys):
            return recipe
        return find_distance(recipe, scan, begin, advance, note)
    unit = _defocus_unit(recipe, scan)

    def focused() -> Candidate | None:
        if unit is None:
            return None
        best, _ = _best(_make_defocus_setter(recipe), 0.0, _defoci(unit), lambda some: begin(some, True, 1.0))
        return None if best is None else best[1]

    near = find_near_field(recipe, scan, begin, advance, note, focused)
    if near is not None:
        return near
    return recipe if unit is None else _defocus(recipe, unit, begin, note)


def bright_radius(scan: Measurement) -> float:
    """Return the radius in detector pixels of a disc as large as the mean pattern above half of its bright level."""
    views = np.unique(np.linspace(0, scan.views - 1, min(VIEWS, scan.views)).astype(int))
    counts = np.maximum(scan.patterns.read(views), 0).mean(axis=0, dtype=np.float64)
    mean = np.where(scan.mask, counts, 0)
    bright = np.sort(mean[scan.mask])[-max(1, mean.size // 100) :].mean()
    return float(np.sqrt(np.count_nonzero(mean > bright / 2) / math.pi))


def _defocus_unit(recipe: Recipe, scan: Measurement) -> float | None:
    """Return |z| (m) at which the beam's radius is FOV; None if the probe's defocus is known or cannot be set."""
    start, geometry = recipe.probe.start, scan.geometry
    if geometry.object_pixel_m is None or geometry.wavelength_m is None or recipe.object.from_result:
        return None
    pixel, side = max(geometry.object_pixel_m), max(scan.window)
    if isinstance(start, ElectronStart):
        defocus_m = start.defocus_m or start.aberrations_m.get("C10")
        return None if defocus_m else side * pixel / start.semiangle_rad
    in_focus = isinstance(start, DataStart | EmptyBeamStart) and not start.defocus_m
    in_focus = in_focus and not (isinstance(start, EmptyBeamStart) and start.aberrations_m.get("C10"))
    if (isinstance(start, AutoStart) and scan.probe is None) or in_focus:
        radius = bright_radius(scan)
        return side * pixel / (radius * geometry.wavelength_m / (side * pixel)) if radius >= 1 else None
    return None


def _make_defocus_setter(recipe: Recipe) -> Callable[[float], Recipe]:
    """Return a function from a defocus in metres to the recipe with that defocus; 0 leaves the recipe as it is."""

    def at(z: float) -> Recipe:
        start = recipe.probe.start
        changed: Any = start if isinstance(start, ElectronStart | EmptyBeamStart) else DataStart(kind="data")
        changed = changed.model_copy(update={"defocus_m": float(f"{z:.3g}")}) if z else start
        return recipe.model_copy(update={"probe": recipe.probe.model_copy(update={"start": changed})})

    return at


def _defoci(unit: float) -> list[float]:
    """Return the defoci (m) that are tried, on either side of the focus."""
    return [sign * share * unit for share in RADII for sign in (1, -1)]


def _defocus(recipe: Recipe, unit: float, begin: Begin, note: Note) -> Recipe:
    """Return the recipe with the defocus that explains held-out views clearly better; `unit`: of `_defocus_unit`."""
    at = _make_defocus_setter(recipe)
    # The probe stays as it is: otherwise it would soon make up for a wrong defocus.
    best, first = _best(at, 0.0, _defoci(unit), lambda some: begin(some, True, 1.0))
    if best is None or first is None:
        return recipe
    z, candidate = best
    if not z or not is_better(candidate, first, errors=SURE):
        note("probe.start", f"Defoci up to {RADII[-1] * unit:.3g} m on either side were tried, and none helps clearly.")
        return recipe
    note(
        "probe.start",
        f"With this defocus the first epochs come to {candidate.formatted_residual}, "
        f"in focus to {first.formatted_residual}.",
    )
    return at(z)


def _best(
    at: Callable[[float], Recipe],
    as_told: float,
    other_candidates: Sequence[float],
    begin: Callable[[Sequence[Recipe]], list[Candidate | None]],
) -> tuple[tuple[float, Candidate] | None, Candidate | None]:
    """Return the best number with its candidate, and the candidate of `as_told`; None for both if that cannot start.

    Args:
        at: makes the recipe with a number.
        as_told: the number that the recipe has.
        other_candidates: numbers that are tried besides.
        begin: runs the first epochs of recipes.
    """
    numbers = list(dict.fromkeys((as_told, *other_candidates)))
    try:
        candidates = begin([at(x) for x in numbers])
    except OverBudget:
        return None, None
    tried = {x: candidate for x, candidate in zip(numbers, candidates, strict=False) if candidate is not None}
    if as_told not in tried:
        return None, None
    best = min(tried, key=lambda x: tried[x].value)
    return (best, tried[best]), tried[as_told]
