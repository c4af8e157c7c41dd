"""Numbers of the optics that a file may lack or have wrong: a probe's defocus, and the distance in the near field.

Each is tried by the first epochs of a reconstruction with it, which the residual of held-out views judges.

lambda, d, n    wavelength, object pixel, window side;  FOV = n d
alpha           half the angle of the beam's cone
z               defocus;  |z| alpha the beam's radius at the sample
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ptymesh.auto.near_field import Advance, Begin, Note, find_distance, find_near_field
from ptymesh.auto.race import OverBudget, Track, better
from ptymesh.measurement import Measurement
from ptymesh.run.recipe import Recipe
from ptymesh.run.starts import AutoStart, DataStart, ElectronStart

#: Radii of the beam that are tried, as shares of FOV, on either side of the focus. Between them a reconstruction finds
#: its way; finer steps would lead to beams that are too wide, which fit any pattern more easily.
RADII = (0.06, 0.12, 0.24)
#: By so many standard errors another number has to lower the held-out residual. A share is not asked for: where counts
#: are few, noise is most of it.
SURE = 3.0
#: Views by whose mean pattern the beam's cone is measured.
VIEWS = 64


def settled(
    recipe: Recipe,
    scan: Measurement,
    begin: Begin,
    advance: Advance,
    note: Note,
    chosen: Collection[str] = frozenset(),
) -> Recipe:
    """The recipe with the numbers that suit best, where there is one to be found.

    Args:
        recipe, scan: as far as they are known.
        begin, advance: run epochs of recipes.
        note: told why, by key of the recipe.
        chosen: keys that nobody gave, which the looks of the patterns told.
    """
    if scan.geometry.propagation != "far_field":
        known = {key for key in ("distance_m", "focus_distance_m") if getattr(recipe.data, key) is not None}
        if scan.geometry.distance_m is None or any(f"data.{key}" not in chosen for key in known):
            return recipe
        return find_distance(recipe, scan, begin, advance, note)
    unit = _defocus_unit(recipe, scan)

    def focused() -> Track | None:
        if unit is None:
            return None
        best, _ = _best(_with_defocus(recipe), 0.0, _defoci(unit), lambda some: begin(some, True, 1.0))
        return None if best is None else best[1]

    near = find_near_field(recipe, scan, begin, advance, note, focused)
    if near is not None:
        return near
    return recipe if unit is None else _defocus(recipe, unit, begin, note)


def bright_radius(scan: Measurement) -> float:
    """Radius in detector pixels of the disc whose area is that of the mean pattern above half of its bright level."""
    views = np.unique(np.linspace(0, scan.views - 1, min(VIEWS, scan.views)).astype(int))
    counts = np.maximum(scan.patterns.read(views), 0).mean(axis=0, dtype=np.float64)
    mean = np.where(scan.mask, counts, 0)
    bright = np.sort(mean[scan.mask])[-max(1, mean.size // 100) :].mean()
    return float(np.sqrt(np.count_nonzero(mean > bright / 2) / math.pi))


def _defocus_unit(recipe: Recipe, scan: Measurement) -> float | None:
    """|z| (m) at which the beam's radius is FOV; None where the probe's defocus is known, or cannot be set."""
    start, geometry = recipe.probe.start, scan.geometry
    if geometry.object_pixel_m is None or geometry.wavelength_m is None or recipe.object.from_result:
        return None
    pixel, side = max(geometry.object_pixel_m), max(scan.window)
    if isinstance(start, ElectronStart):
        known = start.defocus_m or start.aberrations_m.get("C10")
        return None if known else side * pixel / start.semiangle_rad
    if (isinstance(start, AutoStart) and scan.probe is None) or (isinstance(start, DataStart) and not start.defocus_m):
        radius = bright_radius(scan)
        return side * pixel / (radius * geometry.wavelength_m / (side * pixel)) if radius >= 1 else None
    return None


def _with_defocus(recipe: Recipe) -> Callable[[float], Recipe]:
    """Return what makes the recipe of a defocus in metres."""

    def at(z: float) -> Recipe:
        start = recipe.probe.start
        changed: Any = start if isinstance(start, ElectronStart) else DataStart(kind="data")
        changed = changed.model_copy(update={"defocus_m": float(f"{z:.3g}")}) if z else start
        return recipe.model_copy(update={"probe": recipe.probe.model_copy(update={"start": changed})})

    return at


def _defoci(unit: float) -> list[float]:
    """Return the defoci that are tried, on either side."""
    return [sign * share * unit for share in RADII for sign in (1, -1)]


def _defocus(recipe: Recipe, unit: float, begin: Begin, note: Note) -> Recipe:
    at = _with_defocus(recipe)
    # a probe that moves would soon make up for the wrong defocus
    best, first = _best(at, 0.0, _defoci(unit), lambda some: begin(some, True, 1.0))
    if best is None or first is None:
        return recipe
    z, track = best
    if not z or not better(track, first, errors=SURE):
        note("probe.start", f"Defoci up to {RADII[-1] * unit:.3g} m on either side were tried, and none helps clearly.")
        return recipe
    note("probe.start", f"With this defocus the first epochs come to {track.said}, in focus to {first.said}.")
    return at(z)


def _best(
    at: Callable[[float], Recipe],
    told: float,
    others: Sequence[float],
    begin: Callable[[Sequence[Recipe]], list[Track | None]],
) -> tuple[tuple[float, Track] | None, Track | None]:
    """The best number and its track, and that of the one that is told. None where nothing could be begun."""
    numbers = list(dict.fromkeys((told, *others)))
    try:
        tracks = begin([at(x) for x in numbers])
    except OverBudget:
        return None, None
    tried = {x: track for x, track in zip(numbers, tracks, strict=False) if track is not None}
    if told not in tried:
        return None, None
    best = min(tried, key=lambda x: tried[x].value)
    return (best, tried[best]), tried[told]
