"""Other ways to read a scan, each of which is begun anew: the order of its views, its rotation, slices of the object.

An object that was made with wrong positions agrees with them, and one slice that was made to explain several explains
some of them: what changes these is judged by first epochs from the start, on the same held-out views.

lambda, alpha    wavelength, half angle of the beam's cone
n, d             window side, object pixel
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptymesh.auto.optics import bright_radius
from ptymesh.auto.race import Track
from ptymesh.io.positions import row_length
from ptymesh.measurement import Measurement
from ptymesh.run.recipe import Recipe

#: Frames by which patterns may be behind their positions, or ahead of them.
LAGS = (1, -1, 2, -2, 3, -3)
#: Degrees by which a scan's rotation may be off where it was told by centres of mass, or by nobody.
ANGLES_DEG = (-20.0, -10.0, -5.0, 5.0, 10.0, 20.0)
#: Thicknesses that are tried, in depths of focus lambda / alpha^2; and none above the last number (m).
THICKNESSES, THICKEST_M = (1.0, 2.0, 4.0), 2e-7
#: What is tried has to lower the residual of the held-out views by this share, and by so many standard errors.
LEAST_GAIN, SURE = 0.05, 2.0
#: A scan whose first epochs come within so many times the floor is read rightly.
NEAR_FLOOR = 1.5


@dataclass(frozen=True)
class Reading:
    """One way to read a scan.

    Attributes:
        what: in words, at the start of a sentence.
        recipe: that says so.
    """

    what: str
    recipe: Recipe


@dataclass(frozen=True)
class Question:
    """Readings of a scan that exclude each other.

    Attributes:
        what: in words, behind "Whether".
        key: of the recipe, at which the answer is told.
        readings: makes them from a recipe and its scan; none where there is nothing to ask.
        further: makes those that are tried once one of the first is kept.
        consecutive: whether a part of a large scan has to hold whole rows, as the middle of it does not.
    """

    what: str
    key: str
    readings: Callable[[Recipe, Measurement], Iterator[Reading]]
    further: Callable[[Recipe, Measurement], Iterator[Reading]] | None = None
    consecutive: bool = False


def best_reading(told: Track, readings: Sequence[Reading], tracks: Sequence[Track | None]) -> int | None:
    """Return which reading explains the held-out views best and clearly better than the recipe as it is; None if none.

    Gains are not clipped: a lag shows in a few views of each row alone.
    """
    known = [place for place, track in enumerate(tracks[: len(readings)]) if track is not None and track.judged]
    if not known:
        return None
    best = min(known, key=lambda place: tracks[place].value)  # type: ignore[union-attr]
    judged = tracks[best].judged  # type: ignore[union-attr]
    if told.judged is None or judged is None:
        return best
    share, errors = judged.gain_over(told.judged, clipped=False)
    return best if share > LEAST_GAIN and errors > SURE else None


def with_positions(recipe: Recipe, **changes: Any) -> Recipe:
    """Return the recipe with other keys of `positions`."""
    return recipe.model_copy(update={"positions": recipe.positions.model_copy(update=changes)})


def other_orders(recipe: Recipe, scan: Measurement) -> Iterator[Reading]:
    """Yield orders of the views: patterns that are some frames late, and rows run through from either end in turn."""
    if recipe.positions.model_fields_set & {"lag", "serpentine"}:
        return
    for lag in LAGS:
        where = "behind" if lag > 0 else "ahead of"
        yield Reading(
            f"Patterns {abs(lag)} frame{'s' * (abs(lag) > 1)} {where} their positions", with_positions(recipe, lag=lag)
        )
    stored = scan.positions if scan.stored_positions is None else scan.stored_positions
    if row_length(stored) is not None:
        yield Reading("Every second row reversed", with_positions(recipe, serpentine=True))


def other_rotations(recipe: Recipe, scan: Measurement) -> Iterator[Reading]:
    """Yield rotations of an electron scan about the one that the recipe says."""
    if scan.geometry.radiation != "electron" or scan.geometry.propagation != "far_field":
        return
    for angle in ANGLES_DEG:
        turned = round((recipe.positions.rotation_deg + angle + 180) % 360 - 180, 2)
        yield Reading(f"A scan turned by {turned:g} degrees", with_positions(recipe, rotation_deg=turned))


def two_slices(recipe: Recipe, scan: Measurement) -> Iterator[Reading]:
    """Yield two slices of an electron scan, of several thicknesses together, where no slices are asked for."""
    geometry = scan.geometry
    if geometry.radiation != "electron" or geometry.propagation != "far_field" or recipe.object.model_fields_set:
        return
    if geometry.wavelength_m is None or geometry.object_pixel_m is None:
        return
    angle = bright_radius(scan) * geometry.wavelength_m / (scan.window[0] * geometry.object_pixel_m[0])
    for times in THICKNESSES:
        thickness = times * geometry.wavelength_m / max(angle, 1e-9) ** 2
        if thickness <= THICKEST_M:
            yield _sliced(recipe, 2, thickness)


def more_slices(recipe: Recipe, scan: Measurement) -> Iterator[Reading]:
    """Yield twice the slices of a recipe, of the same thickness together."""
    spacing, slices = recipe.object.slice_spacing_m, recipe.object.slices
    if spacing:
        yield _sliced(recipe, 2 * slices, spacing * slices)


def _sliced(recipe: Recipe, slices: int, thickness: float) -> Reading:
    spacing = float(f"{thickness / slices:.3g}")
    made = recipe.object.model_copy(update={"slices": slices, "slice_spacing_m": spacing})
    return Reading(f"{slices} slices {spacing:.3g} m apart", recipe.model_copy(update={"object": made}))


QUESTIONS = (
    Question("views are in another order", "positions", other_orders, consecutive=True),
    Question("the scan is turned otherwise", "positions.rotation_deg", other_rotations),
    Question("the object has several slices", "object", two_slices, more_slices),
)


def with_matrix(recipe: Recipe, matrix: np.ndarray) -> Recipe:
    """Return the recipe whose positions are A (2, 2) times what they were.

    `positions.affine` comes before the rotation, so that it is seen from there.
    """
    angle = math.radians(recipe.positions.rotation_deg)
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    affine = turn.T @ matrix @ turn @ np.array(recipe.positions.affine)
    rounded = tuple(tuple(round(float(number), 5) for number in row) for row in affine)
    return with_positions(recipe, affine=rounded)
