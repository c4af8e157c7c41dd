"""Positions of the windows, from the file or from a raster, in object pixels of the final window.

N       views
"""

from __future__ import annotations

import math

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry, Pair
from ptymesh.io.options import MOST_PER_VIEW, PositionOptions, Raster
from ptymesh.io.scan import RawScan

#: Object pixels on a side of which no machine can hold the square: 80 PB in single precision.
MOST_PX = 1e8
#: Distance from zero at which double precision still resolves a thousandth of a pixel.
FAR_PX = 2.0**42
#: Least number of rows of a raster, and of views in a row.
ROWS_AT_LEAST = 3
#: Units of lengths in metres.
METRES = {"m": 1.0, "mm": 1e-3, "um": 1e-6, "nm": 1e-9, "A": 1e-10}


def stored_positions(raw: RawScan, options: PositionOptions, stop: int | None = None) -> tuple[np.ndarray, str]:
    """Return the positions (N, 2) float64, y x, of the file or of the recipe's raster, not turned yet, and their unit.

    Where the file has several for each view, these are their means.

    Args:
        raw: the scan as stored.
        options: key `positions` of the recipe.
        stop: view before which the recipe stops, see `stored_places`.

    Raises:
        BadInput: as `stored_places`.
    """
    places, unit = stored_places(raw, options, stop)
    return places[:, 0] if places.shape[1] == 1 else places.mean(axis=1), unit


def stored_places(raw: RawScan, options: PositionOptions, stop: int | None = None) -> tuple[np.ndarray, str]:
    """Return the places (N, S, 2) float64, y x, of each view, S = `positions.per_view`, not turned yet, and their unit.

    Args:
        raw: the scan as stored.
        options: key `positions` of the recipe.
        stop: view before which the recipe stops (data.views.stop); if patterns and positions differ in number, only
            those before it are returned.

    Raises:
        BadInput: there are no positions, a wrong number of them, or some are not finite.
    """
    count, several = raw.patterns.shape[0], options.per_view
    if options.raster is not None:
        positions, unit = _raster(options.raster, raw)
    elif raw.positions is not None:
        if raw.unit_doubt and options.unit is None:
            raise BadInput(raw.unit_doubt)
        positions, unit = raw.positions, options.unit or raw.unit
    elif raw.raster is not None:
        raise BadInput(f"{raw.name} is a raster of {raw.raster} views without a step; set positions.raster.step_m.")
    else:
        raise BadInput(
            f"{raw.name} has {count} patterns and no positions; name them (data.keys.positions), or set "
            "positions.raster; where some of them belong to no view, data.frames.shape, too."
        )
    if len(positions) != count * several:
        if stop is None or not 0 < stop <= min(count, len(positions) // several):
            raise BadInput(_numbers_differ(raw.name, raw.patterns.shape, len(positions), several))
        count = stop
        positions = positions[: stop * several]
    if not np.isfinite(positions).all():
        bad = int(np.flatnonzero(~np.isfinite(positions).all(axis=1))[0])
        raise BadInput(
            f"Position {bad} of {raw.name} is {positions[bad].tolist()}; mend it, or leave that view out "
            f"(data.views.without)."
        )
    places = positions.reshape(-1, several, 2)
    if options.serpentine:
        length = row_length(places.mean(axis=1))
        if length is None:
            raise BadInput(f"The positions of {raw.name} are no raster of equal rows; leave positions.serpentine out.")
        places = places[serpentine_order(len(places), length)]
    return np.roll(places, options.lag, axis=0) if options.lag else places, unit


def row_length(positions: np.ndarray) -> int | None:
    """Return how many views a row of a raster has; None for a scan that is no raster of three or more equal rows.

    A row ends where the next step is not as those before: it leads back, or to the next row.

    Args:
        positions: (N, 2) float64, y x, in any unit, in the order of the scan.
    """
    steps = np.diff(positions, axis=0)
    if len(steps) < ROWS_AT_LEAST**2 - 1:
        return None
    typical = np.median(np.abs(steps), axis=0)
    fast = int(np.argmax(typical))
    along = np.abs(np.abs(steps[:, fast]) - typical[fast]) < 0.5 * typical[fast]
    turns = np.abs(steps[:, 1 - fast]) > 0.5 * typical[fast]
    ends = np.flatnonzero(~along | turns) + 1
    lengths = np.diff(np.concatenate(([0], ends, [len(positions)])))
    equal = len(lengths) >= ROWS_AT_LEAST and np.all(lengths == lengths[0]) and lengths[0] >= ROWS_AT_LEAST
    return int(lengths[0]) if equal else None


def serpentine_order(count: int, length: int) -> np.ndarray:
    """Return the indices (count,) of a raster whose rows, of so many views, are run through from either end in turn."""
    order = np.arange(count).reshape(-1, length)
    order[1::2] = order[1::2, ::-1]
    return order.reshape(-1)


def _numbers_differ(name: str, shape: tuple[int, int, int], positions: int, several: int) -> str:
    """Return a sentence that says what to do if there are not `several` positions for each pattern.

    Args:
        name: of the scan.
        shape: (N, H, W) of the patterns.
        positions: number of positions.
        several: positions of each pattern that the recipe asks for.
    """
    patterns = shape[0]
    difference = f"{name} holds {patterns} patterns, but there are {positions} positions"
    if several > 1:
        return f"{difference}, and positions.per_view is {several}: give {patterns * several}, or correct it."
    if positions in shape[1:]:
        axes = "ynx" if shape[1] == positions else "yxn"
        return (
            f"{difference}, as many as another axis of the patterns {shape} has entries: if views lie along that one, "
            f"set data.keys.pattern_axes={axes}; else give one for each pattern."
        )
    if positions > patterns and positions % patterns == 0:
        several = positions // patterns
        if several > MOST_PER_VIEW:
            means = f"positions.reshape({patterns}, {several}, 2).mean(axis=1)"
            return f"{difference}, {several} for each: give their means, as {means} does."
        return f"{difference}, {several} for each: set positions.per_view={several}, which takes their means."
    first = min(patterns, positions)
    return f"{difference}: give one for each; if the first ones belong together, set data.views.stop={first}."


def window_positions(
    raw: RawScan, options: PositionOptions, geometry: Geometry, ratio: Pair, stop: int | None = None
) -> np.ndarray:
    """Return the positions (N, 2) float64 of all views of the file in object pixels, y x.

    Args:
        raw: the scan as stored.
        options: key `positions` of the recipe.
        geometry: of the final window.
        ratio: its object pixel over that of the stored pattern (y, x), by which positions in pixels are divided.
        stop: as for `stored_positions`.

    Raises:
        BadInput: as `stored_positions`, and for metres without a known object pixel.
    """
    positions, unit = stored_positions(raw, options, stop)
    pixels = _convert_to_window(raw.name, positions, unit, options, geometry, ratio)
    _refuse_absurd_extent(raw.name, pixels, unit)
    return pixels


def window_paths(
    raw: RawScan, options: PositionOptions, geometry: Geometry, ratio: Pair, stop: int | None = None
) -> np.ndarray | None:
    """Return the places (N, S, 2) float64 of the beam during each exposure, in object pixels from the view's position.

    Args:
        raw: the scan as stored.
        options: key `positions` of the recipe.
        geometry: of the final window.
        ratio: its object pixel over that of the stored pattern (y, x).
        stop: as for `stored_positions`.

    Returns:
        The places, y x; None where the file has one position for each view.

    Raises:
        BadInput: as `window_positions`.
    """
    if options.per_view == 1:
        return None
    places, unit = stored_places(raw, options, stop)
    return _convert_to_window(raw.name, places - places.mean(axis=1, keepdims=True), unit, options, geometry, ratio)


def _convert_to_window(
    name: str, positions: np.ndarray, unit: str, options: PositionOptions, geometry: Geometry, ratio: Pair
) -> np.ndarray:
    """Return stored positions (..., 2), turned as the recipe says, in object pixels of the final window."""
    with np.errstate(over="ignore", invalid="ignore"):
        turned = positions @ turn(options).T
        if unit == "px":
            return np.asarray(turned / np.array(ratio))
    if geometry.object_pixel_m is None:
        raise BadInput(
            f"The positions of {name} are in {unit}, but its object pixel is unknown; set data.object_pixel_m, or "
            f"the energy, data.distance_m and data.detector_pixel_m."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(turned * METRES[unit] / np.array(geometry.object_pixel_m))


def _refuse_absurd_extent(name: str, pixels: np.ndarray, unit: str) -> None:
    """Raise BadInput if no object can be as large as positions in pixels span, or if they lie too far from zero."""
    with np.errstate(over="ignore", invalid="ignore"):
        y, x = (float(one) for one in pixels.max(axis=0) - pixels.min(axis=0))
        far = float(np.abs(pixels).max())
    if not max(y, x) <= MOST_PX:  # True on NaN too
        raise BadInput(
            f"The positions of {name}, taken as {unit}, span {y:.3g} x {x:.3g} object pixels, more than any object "
            f"has: set positions.unit, or correct the object pixel."
        )
    if not far <= FAR_PX:
        raise BadInput(
            f"The positions of {name}, taken as {unit}, lie {far:.3g} object pixels away from zero, too far to be "
            f"told apart: subtract their mean, or set positions.unit."
        )


def turn(options: PositionOptions) -> np.ndarray:
    """Return the matrix (2, 2) on (y, x) of exchanged axes, then flips, the affine matrix, and the rotation.

    The rotation is y' = y cos - x sin, x' = y sin + x cos.
    """
    exchange = np.array([[0.0, 1.0], [1.0, 0.0]]) if options.transpose else np.eye(2)
    flips = np.diag([-1.0 if options.flip_y else 1.0, -1.0 if options.flip_x else 1.0])
    angle = math.radians(options.rotation_deg)
    rotation = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    return rotation @ np.array(options.affine) @ flips @ exchange


def _raster(raster: Raster, raw: RawScan) -> tuple[np.ndarray, str]:
    """Return the positions (N, 2) of a raster around (0, 0), rows along y, columns along x, and their unit."""
    shape = raster.shape or raw.raster
    if shape is None:
        raise BadInput(
            f"{raw.name} is a list of {raw.patterns.shape[0]} views; set positions.raster.shape, or, where some "
            "of them belong to no view, data.frames.shape."
        )
    if raw.raster is not None and shape != raw.raster:
        raise BadInput(
            f"positions.raster.shape is {shape}, but the patterns are a raster of {raw.raster}; leave it out."
        )
    step, unit = (raster.step_m, "m") if raster.step_m is not None else (raster.step_px, "px")
    if step is None:
        raise BadInput("A raster needs its step; give positions.raster.step_m or step_px.")
    count, places = raw.patterns.shape[0], math.prod(shape)
    if places != count:
        remedy = "; if some patterns belong to no view, set data.frames.shape instead" if places < count else ""
        raise BadInput(
            f"{raw.name} holds {count} patterns, but the raster has {places} positions; give one for each{remedy}."
        )
    index = np.stack(np.meshgrid(*(np.arange(n) for n in shape), indexing="ij"), axis=-1).reshape(-1, 2)
    return (index - (np.array(shape) - 1) / 2) * np.array(step), unit
