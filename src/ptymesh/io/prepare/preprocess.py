"""Preparation of a stored scan as a Measurement: counts, window, far-field patterns with DC at the corner.

N       views
H, W    detector pixels as stored
h, w    window pixels

Patterns are prepared when they are read; only the search for the centre reads some here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ptymesh.errors import BadInput
from ptymesh.io.arrays import detector_array, load_array
from ptymesh.io.options import DataOptions, PositionOptions, Region
from ptymesh.io.prepare.positions import stored_positions, window_paths, window_positions
from ptymesh.io.prepare.selected_views import central, selected_views
from ptymesh.io.prepare.window import Window, geometry_of_window, resampled_probe
from ptymesh.io.scan import RawScan
from ptymesh.io.source import SLAB_BYTES, SlabSource, slabs
from ptymesh.limits import check_room
from ptymesh.measurement import NO_CHECKS, Checks, Measurement, evenly_spread, steps_along_lines
from ptymesh.physics.detector.surface import seen_pixels

#: Number of patterns that are averaged to find the centre.
CENTRE_VIEWS = 256
#: Least gain of a detector; its inverse is the largest.
LEAST_GAIN = 1e-12
#: Least share that a view has of the mean incident intensity.
LEAST_INTENSITY = 1e-9
#: Largest intensity, which no unit reaches; larger ones could not be squared.
MOST_INTENSITY = 1e150
#: Least amplitude of a probe whose power, summed over a window, single precision still holds.
LEAST_AMPLITUDE = 1e-18
#: Largest amplitude of such a probe.
MOST_AMPLITUDE = 1e15
_SINGLE = float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)
#: Bytes that preparing a scan takes for each view, at least.
VIEW_BYTES = 100
#: Bytes that it takes for each pixel of the detector, at least.
PIXEL_BYTES = 50


@dataclass(frozen=True)
class PreparedSource:
    """Patterns (N, h, w) prepared as they are read; pixels without data in a view are -1, masked ones 0.

    Attributes:
        raw: patterns as stored.
        view_mask: mask of each view as stored, None if there is none.
        selected: (N,) int64, the stored view of each view.
        window: the detector pixels that make up the window.
        good: (h b, w b) bool, good detector pixels in the window's order; b: detector pixels summed along either axis.
        mask: (h, w) bool, good window pixels.
        dark: (h b, w b) float32, subtracted from values; None: nothing.
        scale: (h b, w b) float32, factor from values to counts after that; None: 1.
        saturation: as in DataOptions.
        invalid: as in DataOptions.
        name: for messages.
        amplitudes: whether stored values are roots of detector values.
    """

    raw: SlabSource
    view_mask: SlabSource | None
    selected: np.ndarray
    window: Window
    good: np.ndarray
    mask: np.ndarray
    dark: np.ndarray | None
    scale: np.ndarray | None
    saturation: float | None
    invalid: str
    name: str
    amplitudes: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, h, w)."""
        return (len(self.selected), *self.window.shape)

    @property
    def dtype(self) -> np.dtype:
        """The detector's own, unless counts are scaled (float32), summed (wider) or can be missing (signed)."""
        dtype = np.dtype(self.raw.dtype)
        if self.dark is not None or self.scale is not None or self.amplitudes:
            dtype = np.dtype(np.float32)
        if dtype.kind == "b":
            dtype = np.dtype(np.uint8)
        return wide_enough(dtype, self.window.binning**2, signed=self._can_miss)

    def read(self, views: np.ndarray) -> np.ndarray:
        """Return patterns (len(views), h, w); raise BadInput, naming the view, for NaN and negative counts."""
        views = np.asarray(views)
        rows, columns = self.window.y.span, self.window.x.span
        frame = max(1, (rows.stop - rows.start) * (columns.stop - columns.start)) * max(4, self.raw.dtype.itemsize)
        step = max(1, SLAB_BYTES // frame)
        if len(views) <= step:
            return self._prepare(self.selected[views], rows, columns)
        out = np.empty((len(views), *self.window.shape), self.dtype)
        for start in range(0, len(views), step):
            part = slice(start, start + step)
            out[part] = self._prepare(self.selected[views[part]], rows, columns)
        return out

    @property
    def _can_miss(self) -> bool:
        return self.saturation is not None or self.invalid == "missing" or self.view_mask is not None

    def _prepare(self, stored: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
        values = self.window.gather(self.raw.read(stored, rows, columns), spanned=True)
        missing = None if self.saturation is None else values >= self.saturation
        if not self.good.all():
            values[:, ~self.good] = 0
        if self.view_mask is not None:
            unseen = ~self.window.gather(self.view_mask.read(stored, rows, columns), spanned=True)
            values[unseen] = 0
            missing = unseen if missing is None else missing | unseen
        values, invalid = self._remove_invalid(values, stored)
        if invalid is not None:
            missing = invalid if missing is None else missing | invalid
        if self.amplitudes:
            values = square_amplitudes(values)
        if self.dark is not None:
            values = np.maximum(values.astype(np.float32) - self.dark, 0)
        if self.scale is not None:
            values = values.astype(np.float32) * self.scale
        counts = self.window.binned(values, self.dtype)
        if missing is not None:
            counts[~self.window.all_of(~missing)] = -1
        if not self.mask.all():
            counts[:, ~self.mask] = 0
        return counts

    def _remove_invalid(self, values: np.ndarray, stored: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return values with all that is no count set to 0, and where they are missing (None: nowhere)."""
        if values.dtype.kind in "bu" or not values.size:
            return values, None
        low, high = values.min(), values.max()
        if low >= 0 and high < np.inf:  # False on NaN too
            return values, None
        broken, negative = ~np.isfinite(values), values < 0
        if self.invalid == "refuse":
            k, y, x = (int(i) for i in np.argwhere(broken | negative)[0])
            row, column = self.window.detector_pixel(y, x)
            raise BadInput(
                f"View {stored[k]} of {self.name} holds {values[k, y, x]} counts at pixel [{row}, {column}]; mask such "
                f"pixels (data.mask), or set data.invalid to missing or zero."
            )
        wrong = broken if self.invalid == "zero" else broken | negative
        return np.where(broken | negative, 0, values).astype(values.dtype), wrong


def square_amplitudes(amplitudes: np.ndarray) -> np.ndarray:
    """Return the squares of amplitudes, float32, rounded to whole numbers if they differ by rounding errors alone."""
    values = np.square(amplitudes.astype(np.float64))
    nearest = np.rint(values)
    resolution = np.finfo(amplitudes.dtype).eps if amplitudes.dtype.kind == "f" else 0.0
    return np.where(np.abs(values - nearest) <= 4 * resolution * values, nearest, values).astype(np.float32)


def wide_enough(dtype: np.dtype, terms: int, *, signed: bool) -> np.dtype:
    """Return the smallest integer type of at most 32 bits that holds sums of values, else float32.

    Args:
        dtype: type of the values; floating-point types are returned as they are.
        terms: number of terms of a sum.
        signed: whether the type must hold -1.
    """
    if dtype.kind == "f":
        return dtype
    if terms == 1 and (not signed or dtype.kind == "i"):
        return dtype
    most = int(np.iinfo(dtype).max) * terms
    kinds = (np.int8, np.int16, np.int32) if signed or dtype.kind == "i" else (np.uint8, np.uint16, np.uint32)
    for kind in kinds:
        if most <= np.iinfo(kind).max and np.dtype(kind).itemsize >= dtype.itemsize:
            return np.dtype(kind)
    return np.dtype(np.float32)


def measurement_of(raw: RawScan, data: DataOptions, positions: PositionOptions, fingerprint: str) -> Measurement:
    """Return the Measurement that a stored scan and the options make.

    Args:
        raw: the scan as stored.
        data: key `data` of the recipe.
        positions: key `positions` of the recipe.
        fingerprint: of the file.

    Raises:
        BadInput: scan and options do not fit each other.
    """
    count, *stored = raw.patterns.shape
    shape = stored[0], stored[1]
    if 0 in (count, *shape):
        raise BadInput(f"{data.path} holds patterns of shape {(count, *shape)}; there is nothing to reconstruct.")
    check_room(VIEW_BYTES * count, f"{data.path} with its {count} views", "use a larger machine, or split the file")
    detector = f"{data.path} with its detector of {shape[0]} x {shape[1]} pixels"
    check_room(PIXEL_BYTES * shape[0] * shape[1], detector, "use a larger machine, or crop the file")
    if data.dc is not None:
        raw = replace(raw, centred=data.dc == "centre")
    checked = data.checked if data.checked and data.checked.fingerprint in (None, fingerprint) else None
    raster_shape = positions.raster.shape if positions.raster is not None else None
    selected = selected_views(count, raster_shape or raw.raster, data, () if checked is None else checked.without)
    geometry = raw.optics.overridden(data).geometry(shape)
    far = geometry.propagation == "far_field"
    good, flat = _good_pixels(raw, data, shape)
    efficiency = _efficiency(raw, data, good)
    if efficiency is not None:
        good = good & (efficiency > 0)
    centre = _centre(raw, data, good, far)
    if checked is not None:  # after the centre was found, as it was before they were
        good = _exclude_regions(good, checked.regions, data)
    window = geometry_of_window(shape, far, raw.centred, centre, data)
    unturned = window.shape[::-1] if data.transpose else window.shape
    final = geometry.rewindowed(unturned, data.bin).flipped(data.flip_y, data.flip_x)
    final = final.transposed() if data.transpose else final
    ratio = geometry.pixel_ratio(unturned, data.bin)
    probe, notes = _probe(raw, window, far, shape)
    if raw.beam is not None:
        notes += (f"The file says that the beam's semi-angle is {1e3 * raw.beam.semiangle_rad:.4g} mrad.",)
    in_window = raw, positions, final, ratio[::-1] if data.transpose else ratio, data.views.stop
    places, paths = window_positions(*in_window), window_paths(*in_window)
    stored_at, _ = stored_positions(raw, positions, data.views.stop)
    selected = central(stored_at, selected, data.views.central)
    good_here = window.gather(good) & window.exists
    mask = window.all_of(good_here) & seen_pixels(final)
    if data.background is not None:
        background: np.ndarray | None = detector_array(data.background, "data.background", shape, data.follow)
    else:
        background = _read_pixel_array(raw.background, "background", data, good)
    return Measurement(
        patterns=PreparedSource(
            raw=raw.patterns,
            view_mask=raw.view_mask,
            selected=selected,
            window=window,
            good=good_here,
            mask=mask,
            dark=_dark(raw, data, window, good),
            scale=_scale(data, flat, window, shape),
            saturation=data.saturation,
            invalid="missing" if raw.negative_is_missing else data.invalid,
            name=str(data.path),
            amplitudes=data.amplitudes,
        ),
        positions=np.ascontiguousarray(places[selected]),
        stored_positions=np.ascontiguousarray(stored_at[selected]),
        steps=None if len(selected) == len(places) else steps_along_lines(places)[selected],
        paths=None if paths is None else np.ascontiguousarray(paths[selected]),
        geometry=final,
        mask=mask,
        background=None if background is None else _background(background, window, good_here),
        efficiency=None if efficiency is None else _relative_efficiency(efficiency, window, good_here),
        intensity=_intensity(raw, data, count, selected),
        probe=probe,
        beam=raw.beam,
        name=raw.name,
        path=str(data.path),
        fingerprint=fingerprint,
        notes=raw.notes + notes,
        checks=Checks(**data.checks.model_dump()) if checked is None else NO_CHECKS,
        left_out=() if checked is None else checked.without,
    )


def _exclude_regions(good: np.ndarray, regions: Sequence[Region], data: DataOptions) -> np.ndarray:
    """Return good pixels (H, W) bool without regions of stored pixels; raise BadInput if no pixel is left."""
    good = good.copy()
    for top, bottom, left, right in regions:
        good[top:bottom, left:right] = False
    if not good.any():
        raise BadInput(
            f"data.checked leaves no pixel of the detector of {data.path}; remove it to check the data anew."
        )
    return good


def _good_pixels(raw: RawScan, data: DataOptions, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the good pixels (H, W) bool, and the flat field (None: there is none)."""
    good = np.ones(shape, bool) if raw.mask is None else raw.mask
    if good.shape != shape or good.dtype != np.bool_:
        raise BadInput(f"The mask of {data.path} has shape {good.shape} {good.dtype}; its patterns are {shape}.")
    if data.mask is not None:
        mask = detector_array(data.mask, "data.mask", shape, data.follow)
        good = good & ((mask != 0) == (data.mask_true == "good"))
    for y, x in data.bad_pixels:
        if y >= shape[0] or x >= shape[1]:
            raise BadInput(
                f"data.bad_pixels names [{y}, {x}], and the detector has {shape[0]} x {shape[1]} pixels, counted from "
                f"[0, 0]; remove that one."
            )
    if data.bad_pixels:
        good = good.copy()
        good[tuple(np.array(data.bad_pixels).T)] = False
    flat = None
    if data.flat is not None:
        flat = detector_array(data.flat, "data.flat", shape, data.follow)
        good = good & (flat > 0)
    if not good.any():
        raise BadInput(
            f"The mask of {data.path} leaves no pixel of the detector; if it is inverted, set data.mask_true to "
            f"{'bad' if data.mask_true == 'good' else 'good'}."
        )
    return good, flat


def _centre(raw: RawScan, data: DataOptions, good: np.ndarray, far: bool) -> tuple[int, int] | None:
    """Return the detector pixel (y, x) of the direct beam, counted with DC in the middle; None: as stored."""
    if data.centre is None:
        return None
    if data.centre != "find":
        y, x = data.centre
        return round(float(y)), round(float(x))
    count, height, width = raw.patterns.shape
    chosen = evenly_spread(count, CENTRE_VIEWS)
    total = np.zeros((height, width))
    for part in slabs(len(chosen), height * width * max(4, raw.patterns.dtype.itemsize)):
        values = raw.patterns.read(chosen[part], slice(0, height), slice(0, width)).astype(np.float64)
        total += np.where(np.isfinite(values) & (values > 0), values, 0).sum(axis=0)
    total *= good
    if far and not raw.centred:
        total, good = np.fft.fftshift(total), np.fft.fftshift(good)
    return centroid(total, good)


def centroid(mean: np.ndarray, good: np.ndarray) -> tuple[int, int]:
    """Return the pixel (y, x) nearest to the centre of mass of a mean pattern (H, W).

    Values count from a tenth of the bright level (the twentieth largest value) up to that level, so that neither a
    diffuse background nor hot pixels shift the centre.

    Raises:
        BadInput: the pattern is dark.
    """
    values = np.sort(mean[good])
    bright = float(values[-min(20, len(values))]) or float(values[-1])
    weight = np.clip(mean, 0, bright) - 0.1 * bright
    weight = np.where(good & (weight > 0), weight, 0)
    if weight.sum() <= 0:
        raise BadInput("data.centre: find needs light, but the mean pattern is dark; give the pixel [y, x].")
    y, x = (float((weight.sum(axis=1 - k) * np.arange(mean.shape[k])).sum() / weight.sum()) for k in (0, 1))
    return round(y), round(x)


def _read_pixel_array(
    array: np.ndarray | None, quantity: str, data: DataOptions, good: np.ndarray
) -> np.ndarray | None:
    """Return an array (H, W) of the file, zero on bad pixels; raise BadInput if it is not finite on good ones."""
    if array is None:
        return None
    if array.shape != good.shape or array.dtype.kind not in "buif":
        raise BadInput(
            f"The {quantity} of {data.path} has shape {array.shape} {str(array.dtype)[:60]}; it must hold numbers, one "
            f"for each pixel of its patterns {good.shape}."
        )
    values = np.where(good, array, 0).astype(np.float64)
    if not np.isfinite(values).all():
        y, x = (int(i) for i in np.argwhere(~np.isfinite(values))[0])
        raise BadInput(
            f"The {quantity} of {data.path} is {values[y, x]} at pixel ({y}, {x}); mask such pixels (data.mask), or "
            f"give data.{quantity}."
        )
    return values


def _dark(raw: RawScan, data: DataOptions, window: Window, good: np.ndarray) -> np.ndarray | None:
    if data.dark is not None:
        dark: np.ndarray | None = detector_array(data.dark, "data.dark", good.shape, data.follow)
    else:
        dark = _read_pixel_array(raw.dark, "dark", data, good)
    if dark is None:
        return None
    with np.errstate(over="ignore"):  # what single precision cannot hold is above every count
        return window.gather(np.clip(dark.astype(np.float32), *_SINGLE))


def _scale(data: DataOptions, flat: np.ndarray | None, window: Window, shape: tuple[int, int]) -> np.ndarray | None:
    """Return the counts per detector unit (h b, w b) float32; None if they are 1."""
    if flat is None and data.gain is None:
        return None
    scale = np.ones(shape)
    if flat is not None:
        with np.errstate(over="ignore"):  # what is too large is told below
            scale = np.where(flat > 0, flat[flat > 0].mean() / np.where(flat > 0, flat, 1), 0)
    if data.gain is not None:
        gain = detector_array(data.gain, "data.gain", shape, data.follow)
        if not ((gain > LEAST_GAIN) & (gain < 1 / LEAST_GAIN)).all():
            odd_gain = gain.min() if gain.min() <= LEAST_GAIN else gain.max()
            raise BadInput(
                f"data.gain holds {odd_gain:g}; detector units per count are positive, and not so far from 1."
            )
        scale = scale / gain
    if not scale.max() < 1 / LEAST_GAIN**2:
        raise BadInput(f"data.flat makes counts {scale.max():.3g} times larger, which cannot be; mask its dark pixels.")
    return window.gather(scale.astype(np.float32))


def _background(background: np.ndarray, window: Window, good: np.ndarray) -> np.ndarray:
    counts = window.gather(background.astype(np.float64))
    if (counts[good] < 0).any():
        raise BadInput(f"The background holds {counts[good].min():g} counts; it cannot be negative.")
    return window.binned(np.where(good, counts, 0), np.dtype(np.float64))


def _efficiency(raw: RawScan, data: DataOptions, good: np.ndarray) -> np.ndarray | None:
    """Return the share of the light (H, W) that each pixel counts, in any unit; None where it is not known."""
    if data.efficiency is not None:
        efficiency: np.ndarray = detector_array(data.efficiency, "data.efficiency", good.shape, data.follow)
    else:
        stored = _read_pixel_array(raw.efficiency, "efficiency", data, good)
        if stored is None:
            return None
        efficiency = stored
    if (efficiency[good] < 0).any() or not (efficiency[good] > 0).any():
        raise BadInput(
            f"The efficiency of the detector is {efficiency[good].min():g} to {efficiency[good].max():g}; give the "
            "share of the light that each pixel counts, 0 for those that count none."
        )
    return efficiency


def _relative_efficiency(efficiency: np.ndarray, window: Window, good: np.ndarray) -> np.ndarray:
    """Return the efficiency (h, w) of a window's pixels, with mean 1 over the good ones and 1 at all others."""
    values = window.gather(efficiency.astype(np.float64))
    is_good, pixels = window.all_of(good), window.binned(np.ones_like(values), np.dtype(np.float64))
    means = window.binned(np.where(good, values, 0), np.dtype(np.float64)) / pixels
    return np.where(is_good, means / means[is_good].mean(), 1.0)


def _intensity(raw: RawScan, data: DataOptions, count: int, selected: np.ndarray) -> np.ndarray | None:
    """Return the incident intensities (N,) of the selected views, with mean 1; None if they are not known."""
    values = raw.intensity
    if data.intensity is not None:
        values = load_array(data.intensity, "data.intensity", most=2 * count, follow=data.follow)
    if values is None:
        return None
    values = np.atleast_1d(values).reshape(-1)
    if values.dtype.kind not in "buif":
        raise BadInput(f"The incident intensities of {data.path} are {str(values.dtype)[:60]}; they must be numbers.")
    if len(values) != count:
        raise BadInput(f"There are {len(values)} incident intensities for {count} views; give one for each.")
    values = values[selected].astype(np.float64)
    if not (np.isfinite(values).all() and (values > 0).all()):
        bad = int(np.flatnonzero(~(np.isfinite(values) & (values > 0)))[0])
        raise BadInput(f"The incident intensity of view {selected[bad]} is {values[bad]}; it must be positive.")
    mean = float(np.mean(values / values.max())) * float(values.max())
    if mean > MOST_INTENSITY or float(values.min()) / mean < LEAST_INTENSITY:
        raise BadInput(
            f"The incident intensities of {data.path} reach from {values.min():g} to {values.max():g}, which cannot "
            f"be: correct them, or give data.intensity."
        )
    return values / values.mean()


def _probe(
    raw: RawScan, window: Window, far: bool, shape: tuple[int, int]
) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Return the file's probe in the window, or None and a note that says why it is left out."""
    if raw.probe is None:
        return None, ()
    if raw.probe.shape[1:] != shape:
        return None, (f"The file's probe is {raw.probe.shape[1:]} pixels, its patterns {shape}: it is left out.",)
    most = float(np.abs(raw.probe).max(initial=0)) if np.isfinite(raw.probe).all() else math.inf
    if not LEAST_AMPLITUDE < most < MOST_AMPLITUDE:
        return None, ("The file's probe is zero, or not finite, or beyond single precision: it is left out.",)
    return resampled_probe(raw.probe, window, far=far, centred=raw.centred), ()
