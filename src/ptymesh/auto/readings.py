"""Other ways to read a scan, each tried from the start: the order of its views, its rotation, slices of the object.

An object that was made with wrong positions agrees with them, and one slice that was made to explain several explains
a part of them. So these changes are judged by first epochs from the start, on the same held-out views.

lambda, alpha    wavelength, half angle of the beam's cone
n, d             window side, object pixel
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ptymesh.auto.candidates import Candidate
from ptymesh.auto.optics import bright_radius
from ptymesh.io.prepare.positions import row_length
from ptymesh.measurement import Measurement
from ptymesh.recipe.schema import Recipe

#: Frames by which patterns may be behind their positions, or ahead of them.
LAGS = (1, -1, 2, -2, 3, -3)
#: Degrees by which a scan's rotation may be off.
ANGLES_DEG = (-20.0, -10.0, -5.0, 5.0, 10.0, 20.0)
#: Thicknesses that are tried, in depths of focus lambda / alpha^2.
THICKNESSES = (1.0, 2.0, 4.0)
#: Factors of the thickness that are tried once there are slices.
THICKNESS_STEPS = (0.75, 1.33)
#: Largest number of slices that are tried.
MOST_SLICES = 16
#: Largest thickness in metres.
THICKEST_M = 2e-7
#: Share by which a reading has to lower the residual of the held-out views.
LEAST_GAIN = 0.05
#: Standard errors by which it has to lower it.
SURE = 2.0
#: A scan is read correctly if its first epochs end below this many times the noise floor, and has one slice if they end
#: below the second: one slice explains much of two.
NEAR_FLOOR, THIN = 1.5, 1.1


@dataclass(frozen=True)
class Reading:
    """One way to read a scan.

    Attributes:
        what: words for it, at the start of a sentence.
        recipe: the recipe that reads it so.
    """

    what: str
    recipe: Recipe


@dataclass(frozen=True)
class Question:
    """Readings of a scan that exclude each other.

    Attributes:
        what: words for it, after "Whether".
        key: key of the recipe under which the outcome is noted.
        readings: yields the readings for a recipe and its scan; none if there is nothing to try.
        further: yields those that are tried after one was kept, until none is.
        consecutive: whether a part of a large scan has to hold whole rows, which the middle of it does not.
        near_floor: nothing is tried where the first epochs end below this many times the noise floor.
        settled: whether readings are compared after epochs of Adam, because rPIE tells them apart too late.
    """

    what: str
    key: str
    readings: Callable[[Recipe, Measurement], Iterator[Reading]]
    further: Callable[[Recipe, Measurement], Iterator[Reading]] | None = None
    consecutive: bool = False
    near_floor: float = NEAR_FLOOR
    settled: bool = False


def best_reading(as_told: Candidate, readings: Sequence[Reading], candidates: Sequence[Candidate | None]) -> int | None:
    """Return the index of the reading that explains the held-out views best, and clearly better than the recipe as is.

    Gains are not clipped, because a lag shows in only a few views of each row.

    Args:
        as_told: the candidate that reads the scan as the recipe does.
        readings: what was tried.
        candidates: its candidates, None where one could not start.

    Returns:
        None if no reading is clearly better.
    """
    comparable = [
        place
        for place, candidate in enumerate(candidates[: len(readings)])
        if candidate is not None and candidate.judged
    ]
    if not comparable:
        return None
    best = min(comparable, key=lambda place: candidates[place].value)  # type: ignore[union-attr]
    judged = candidates[best].judged  # type: ignore[union-attr]
    if as_told.judged is None or judged is None:
        return best
    share, errors = judged.gain_over(as_told.judged, clipped=False)
    return best if share > LEAST_GAIN and errors > SURE else None


def with_positions(recipe: Recipe, **changes: object) -> Recipe:
    """Return the recipe with other keys of `positions`."""
    return recipe.model_copy(update={"positions": recipe.positions.model_copy(update=changes)})


def other_orders(recipe: Recipe, scan: Measurement) -> Iterator[Reading]:
    """Yield orders of the views: patterns some frames late or early, and every second row reversed."""
    if recipe.positions.model_fields_set & {"lag", "serpentine"}:
        return
    for lag in LAGS:
        direction = "behind" if lag > 0 else "ahead of"
        yield Reading(
            f"Patterns {abs(lag)} frame{'s' * (abs(lag) > 1)} {direction} their positions",
            with_positions(recipe, lag=lag),
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
    """Yield two slices, with several total thicknesses, for an electron scan whose recipe says nothing of slices."""
    geometry = scan.geometry
    if geometry.radiation != "electron" or geometry.propagation != "far_field":
        return
    if recipe.object.model_fields_set - {"kind", "absorption"}:
        return
    if geometry.wavelength_m is None or geometry.object_pixel_m is None:
        return
    angle = bright_radius(scan) * geometry.wavelength_m / (scan.window[0] * geometry.object_pixel_m[0])
    for times in THICKNESSES:
        thickness = times * geometry.wavelength_m / max(angle, 1e-9) ** 2
        if thickness <= THICKEST_M:
            yield _sliced(recipe, 2, thickness)


def more_slices(recipe: Recipe, scan: Measurement) -> Iterator[Reading]:
    """Yield half as many slices again, and twice as many, with the same thickness in all; and other thicknesses."""
    spacing, slices = recipe.object.slice_spacing_m, recipe.object.slices
    if not spacing:
        return
    thickness = spacing * slices
    for more in (slices + (slices + 1) // 2, 2 * slices):
        if more <= MOST_SLICES:
            yield _sliced(recipe, more, thickness)
    for times in THICKNESS_STEPS:
        if times * thickness <= THICKEST_M:
            yield _sliced(recipe, slices, times * thickness)


def _sliced(recipe: Recipe, slices: int, thickness: float) -> Reading:
    """Return the reading with so many slices of this total thickness in metres."""
    spacing = float(f"{thickness / slices:.3g}")
    object_options = recipe.object.model_copy(update={"slices": slices, "slice_spacing_m": spacing})
    return Reading(
        f"{slices} slices {spacing:.3g} m apart, the first one met by the beam first",
        recipe.model_copy(update={"object": object_options}),
    )


QUESTIONS = (
    Question("views are in another order", "positions", other_orders, consecutive=True),
    Question("the scan is turned otherwise", "positions.rotation_deg", other_rotations),
    Question("the object has several slices", "object", two_slices, more_slices, near_floor=THIN, settled=True),
)


def with_matrix(recipe: Recipe, matrix: np.ndarray) -> Recipe:
    """Return the recipe whose positions are a matrix (2, 2) times what they were.

    `positions.affine` applies before the rotation, so the matrix is transformed to there.
    """
    angle = math.radians(recipe.positions.rotation_deg)
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    affine = turn.T @ matrix @ turn @ np.array(recipe.positions.affine)
    rounded = tuple(tuple(round(float(number), 5) for number in row) for row in affine)
    return with_positions(recipe, affine=rounded)
