"""First estimate of a reconstruction (recipe keys `object` and `probe`).

N, M, L     views, probe modes, slices
H, W; h, w  object and window pixels

The frame: an object that holds every window and a margin, sides in whole blocks, the scan in the middle. `origin` is
the object pixel at which the scan's own coordinates have their zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ptymesh.distributed.tiles import Rect
from ptymesh.errors import BadInput
from ptymesh.estimate import BLOCK, REACH, Estimate
from ptymesh.geometry import Geometry
from ptymesh.io.results import Result
from ptymesh.measurement import Measurement
from ptymesh.physics.beam import probes
from ptymesh.physics.object_models import TRANSMISSION, object_model_of
from ptymesh.physics.object_modes import spread_phases
from ptymesh.physics.operators import Piece
from ptymesh.physics.propagate import angular_spectrum_kernel, apply_kernel_adjoint
from ptymesh.recipe.depth import depth_shares, potential_by_shares, slab_shares, transmission_by_shares
from ptymesh.recipe.resampling import load_complex_array, pixel_ratio, resample_images
from ptymesh.recipe.starts import ObjectOptions, ProbeOptions, ProbeStart, ResultStart
from ptymesh.sentences import quote
from ptymesh.types import Precision, complex_dtype

#: Scan positions of an earlier result may differ by this many pixels (after removing the mean) from this scan's.
SAME_SCAN_PX = 20.0
#: Object pixels around the outermost windows, into which positions may move before the object has to grow.
MARGIN_PX = 8


@dataclass(frozen=True)
class _EarlierResult:
    """An earlier result, and how its pixels lie to this scan: i_here = ratio * i_there - offset + origin."""

    result: Result
    path: str
    ratio: np.ndarray
    offset: np.ndarray
    positions: np.ndarray


class StartSettings(NamedTuple):
    """Settings of the tensors that a reconstruction starts from.

    Attributes:
        precision: of the tensors; positions are float64 always.
        device: of the tensors.
        margin_px: object pixels kept free around the outermost windows, for positions that move; at least 2 are.
        seed: of the probe modes that are made.
        place: from the object's sides, its origin and the anchors (N, 2), the part of it that this rank holds; all of
            it unless given.
    """

    precision: Precision
    device: torch.device | str
    margin_px: int
    seed: int
    place: Callable[[tuple[int, int], tuple[float, float], np.ndarray], Rect] | None = None


def initial_estimate(
    measurement: Measurement,
    mean_pattern: np.ndarray,
    settings: StartSettings,
    *,
    object: ObjectOptions,
    probe: ProbeOptions,
    optics: Sequence[Piece] = (),
) -> Estimate:
    """Return the estimate from which a reconstruction starts, the same on every rank but for the part of the object.

    Args:
        measurement: the scan; only its positions, geometry, mask, background, intensity and probe are used.
        mean_pattern: (h, w) over all views of all ranks, laid out as the patterns; masked pixels are ignored. Where
            each scan has a probe of its own, (S, h, w), over the views of each.
        settings: precision, device, margin, seed and part of the object.
        object: the recipe's `object`.
        probe: the recipe's `probe`.
        optics: operators of the model, whose unknowns start where they say.

    Raises:
        BadInput: a start that the geometry, the window or a file does not allow.
    """
    precision, device, margin_px, seed, place = settings
    geometry, dtype = measurement.geometry, complex_dtype(precision)
    earlier = _load_earlier(object.initial, measurement) if object.from_result else None
    scan_px = measurement.positions
    if earlier is not None and object.result_positions:
        if len(earlier.positions) != measurement.views:
            raise BadInput(
                f"object.result_positions is true, and {earlier.path} has {len(earlier.positions)} views, this scan "
                f"{measurement.views}; name the same views (data.views), or leave result_positions out."
            )
        scan_px = earlier.positions
    margin = max(margin_px, REACH)
    origin, sides = frame(scan_px, geometry.shape, margin)
    if earlier is not None:
        # whole pixels between the two frames: equal grids are then copied, not interpolated
        origin = origin + (earlier.offset - np.round(earlier.offset))
    positions = torch.from_numpy(scan_px + origin).to(device)
    weights = np.ones(measurement.views) if measurement.intensity is None else np.sqrt(measurement.intensity)
    real = torch.zeros((), dtype=dtype).real.dtype
    background = np.zeros(measurement.mask.shape) if measurement.background is None else measurement.background
    has_own_probes = probe.scans == "own"
    make_probes = _initial_probes if has_own_probes else _initial_probe
    first = make_probes(measurement, mean_pattern, object, probe, seed)
    if earlier is not None and object.initial_depth_m is not None and _is_of_result(probe.start, object):
        first = _propagate_upstream(first, geometry, _distance_in_front(object, earlier))
    first = first.to(device, dtype)
    shares = np.zeros((measurement.views, probe.opr_modes))
    anchors = torch.floor(positions + 0.5).to(torch.int64)
    zero = (float(origin[0]), float(origin[1]))
    part = Rect(0, 0, *sides) if place is None else place(sides, zero, anchors.cpu().numpy())
    frame_of_object = _ObjectFrame(scan_px, origin, geometry.shape, sides)
    first_object, object_values = _object_modes(object, earlier, frame_of_object, part, dtype, seed)
    estimate = Estimate(
        object=first_object.to(device),
        probe=first,
        positions=positions,
        anchors=anchors,
        nominal=positions.clone(),
        weights=torch.from_numpy(np.concatenate((weights[:, None], shares), axis=1)).to(device, real),
        background=torch.from_numpy(np.ascontiguousarray(background)).to(device, real),
        slice_spacing_m=object.slice_spacing_m or 0.0,
        origin=zero,
        tilt_rad=object.tilt_rad or (earlier.result.tilt_rad if earlier and object.slices > 1 else (0.0, 0.0)),
        opr=opr_modes(first, probe.opr_modes, seed),
        parameters=probe.start.parameters(),
        initial_parameters=probe.start.parameters(),
        corner=part.corner,
        extent=sides,
        probe_count=measurement.scans if has_own_probes else 1,
        scan_index=None if measurement.scan_index is None else torch.from_numpy(measurement.scan_index).to(device),
        object_kind=object.kind,
        object_values=None if object_values is None else object_values.to(device),
        absorption=object.absorption,
        object_modes=object.modes,
    )
    for one in optics:
        estimate.others |= one.starts(estimate.sizes(), device, real)
        for name, values in one.start_values(measurement).items():
            _set_start(estimate, part, one, name, values)
    return estimate


def _set_start(estimate: Estimate, part: Rect, operator: Piece, name: str, values: float | np.ndarray) -> None:
    """Set what an operator says that one of its unknowns starts at.

    Args:
        estimate: the estimate, whose unknown is changed in place.
        part: of the object, that it holds.
        operator: that says so.
        name: of the unknown.
        values: a number, or an array of the unknown's shape, of a tiled one for the whole object.

    Raises:
        BadInput: another shape, or values that the unknown cannot have.
    """
    declared = {one.name: one for one in operator.unknowns}
    array, target, tiled = np.asarray(values), estimate.others[name], declared[name].scope == "tiled"
    shape = (len(target), *estimate.extent) if tiled else tuple(target.shape)
    if array.shape not in ((), shape):
        raise BadInput(
            f"optics.{operator.name} starts {name} with values of shape {array.shape}; give a number, or {shape}."
        )
    if tiled and array.ndim:
        array = array[(slice(None), *part.inside((0, 0)))]
    least = declared[name].least
    if not (np.abs(array) <= declared[name].largest).all() or (least is not None and (array < least).any()):
        bounds = f"up to {declared[name].largest:g}" if least is None else f"{least:g} to {declared[name].largest:g}"
        raise BadInput(f"optics.{operator.name} starts {name} with values beyond its bounds, {bounds}; give others.")
    target.copy_(torch.as_tensor(array).to(target.device, target.dtype).expand(target.shape))


def opr_modes(probe: torch.Tensor, modes: int, seed: int) -> torch.Tensor:
    """Return Hermite-like modes of the first probe mode, each of its norm.

    Args:
        probe: (M, h, w) complex.
        modes: K.
        seed: of the random unitary that mixes modes of one order.

    Returns:
        (K, h, w) complex, on the probe's device.
    """
    if not modes:
        return probe[:0].clone()
    extra = probes.extra_modes(probe[0], modes + 1, [1 / (modes + 1)] * (modes + 1), seed)[1:]
    norms = torch.linalg.vector_norm(extra, dim=(-2, -1), keepdim=True)
    return (extra / norms * torch.linalg.vector_norm(probe[0])).to(probe.device, probe.dtype)


def frame(scan_px: np.ndarray, window: tuple[int, int], margin: int) -> tuple[np.ndarray, tuple[int, int]]:
    """Return where the scan's zero lies in the object, and the object's sides.

    Args:
        scan_px: (N, 2) float, positions in pixels.
        window: (h, w).
        margin: object pixels kept free around the outermost windows.

    Returns:
        Origin (2,) float in whole object pixels, and (H, W).
    """
    low, high = np.floor(scan_px.min(axis=0)), np.ceil(scan_px.max(axis=0))
    needed = high - low + np.array(window) + 2 * margin
    sides = np.ceil(needed / BLOCK) * BLOCK
    origin = margin + np.floor((sides - needed) / 2) - low
    return origin, (int(sides[0]), int(sides[1]))


# --- object ---------------------------------------------------------------------------------------------------------


class _ObjectFrame(NamedTuple):
    """The frame in which the whole object lies.

    Attributes:
        scan_px: (N, 2) positions in the scan's own coordinates.
        origin: (2,) object pixel at their zero.
        window: (h, w).
        sides: of the whole object.
    """

    scan_px: np.ndarray
    origin: np.ndarray
    window: tuple[int, int]
    sides: tuple[int, int]


def _initial_object(
    options: ObjectOptions,
    earlier: _EarlierResult | None,
    frame: _ObjectFrame,
    part: Rect,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return a part of the object, (L, h, w) complex."""
    scan_px, origin, window, _ = frame
    if options.initial == "ones":
        return torch.ones((options.slices, *part.shape), dtype=dtype)
    moved = origin - np.array(part.corner)
    if earlier is not None:
        slices = _match_slices(options, earlier.result.object, earlier)
        resampled = resample_images(slices, earlier.ratio, moved - earlier.offset, part.shape, 1.0)
        return torch.from_numpy(resampled).to(dtype)
    slices = _match_slices(options, load_complex_array(options.initial, "object.initial"), None)
    middle = (scan_px.min(axis=0) + scan_px.max(axis=0)) / 2 + origin + (np.array(window) - 1) / 2
    corner = np.round(middle - (np.array(slices.shape[1:]) - 1) / 2) - np.array(part.corner)
    return torch.from_numpy(resample_images(slices, np.ones(2), corner, part.shape, outside=1.0)).to(dtype)


def _object_and_values(
    options: ObjectOptions,
    earlier: _EarlierResult | None,
    frame: _ObjectFrame,
    part: Rect,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return this rank's part of the object, (L, h, w) complex, and of the values it follows from, where it has some.

    Args:
        options: the recipe's `object`.
        earlier: the result from which it starts, or None.
        frame: where the whole object lies.
        part: what this rank holds.
        dtype: complex.
    """
    if options.kind == TRANSMISSION:
        return _initial_object(options, earlier, frame, part, dtype), None
    model = object_model_of(options.kind)
    of_values = dtype if model.is_complex else dtype.to_real()
    if options.initial == "ones":
        values = torch.zeros((options.slices, *part.shape), dtype=of_values)
    elif model.is_phase and earlier is not None and earlier.result.potential is not None:
        potential = earlier.result.potential
        if model.is_complex:  # phases of the result, and what its transmission absorbs
            potential = potential + 1j * model.values_of(earlier.result.object).imag
        potential = potential_by_shares(potential, _depth_shares(options, len(potential), earlier))
        corner = frame.origin - np.array(part.corner) - earlier.offset
        resampled = resample_images(potential.astype(np.complex128), earlier.ratio, corner, part.shape, 0.0)
        values = torch.from_numpy(np.ascontiguousarray(resampled if model.is_complex else resampled.real)).to(of_values)
    else:  # unwrapping looks at all pixels, whichever of them this rank holds
        full_rect = Rect(0, 0, *frame.sides)
        full_object = _initial_object(options, earlier, frame, full_rect, torch.complex128).numpy()
        full_values = torch.from_numpy(model.values_of(full_object))
        values = full_values[(slice(None), *part.inside((0, 0)))].to(of_values).contiguous()
    return model.transmission(values, options.absorption), values


def _object_modes(
    options: ObjectOptions,
    earlier: _EarlierResult | None,
    frame: _ObjectFrame,
    part: Rect,
    dtype: torch.dtype,
    seed: int,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return this rank's part of all object modes, (Q L, h, w) complex, and of their values, where they have some.

    Args:
        options: the recipe's `object`.
        earlier: the result from which it starts, or None.
        frame: where the whole object lies.
        part: what this rank holds.
        dtype: complex.
        seed: of the phases by which modes differ, where no result tells.
    """
    earlier_modes = None if earlier is None else earlier.result.object_modes
    if options.modes == 1:
        return _object_and_values(options, earlier, frame, part, dtype)
    if earlier is not None and earlier_modes is not None and len(earlier_modes) == options.modes:
        results = [replace(earlier.result, object=mode, potential=None, object_modes=None) for mode in earlier_modes]
        parts = [_object_and_values(options, replace(earlier, result=one), frame, part, dtype) for one in results]
        part_values = [values for _, values in parts if values is not None]
        return torch.cat([obj for obj, _ in parts]), torch.cat(part_values) if part_values else None
    obj, values = _object_and_values(options, earlier, frame, part, dtype)
    pixels = slice(part.top, part.bottom), slice(part.left, part.right)
    phases = spread_phases(options.modes, options.slices, pixels, frame.sides[1], seed)
    phase_offsets = torch.from_numpy(phases).to(dtype.to_real())
    if values is None:
        return (obj * torch.polar(torch.ones_like(phase_offsets), phase_offsets)).flatten(0, 1), None
    values = (values + phase_offsets).flatten(0, 1)
    return object_model_of(options.kind).transmission(values, options.absorption), values


def _depth_shares(options: ObjectOptions, had: int, earlier: _EarlierResult | None) -> np.ndarray:
    """Return which shares of the slices that there are make up those of the recipe, (L, L').

    Args:
        options: the recipe's `object`.
        had: L', number of slices that there are.
        earlier: the result from which it starts, or None for an array.

    Raises:
        BadInput: a depth is given, and the result tells no thickness, or nothing would be left of the object.
    """
    depth = options.initial_depth_m
    if depth is None or earlier is None:
        return depth_shares(had, options.slices)
    thickness = earlier.result.slice_spacing_m
    if not thickness or options.slice_spacing_m is None:
        raise BadInput(
            f"object.initial_depth_m is given, and {earlier.path} tells no distance between slices; leave it out, and "
            "what is there is spread over all slices."
        )
    shares = slab_shares(had, options.slices, thickness, options.slice_spacing_m, depth)
    if not shares.any():
        raise BadInput(
            f"object.initial_depth_m is {depth:g} m, where nothing of the {had} slices of {thickness:g} m in "
            f"{earlier.path} lies in those of the recipe; give a smaller one."
        )
    return shares


def _match_slices(options: ObjectOptions, obj: np.ndarray, earlier: _EarlierResult | None) -> np.ndarray:
    """Return an object (L', H, W) with the slices that the recipe asks for, (L, H, W).

    Raises:
        BadInput: values are not finite, or the depth at which it is put makes no sense.
    """
    if not np.isfinite(obj).all():
        raise BadInput(f"The object in {options.initial} holds values that are not finite; start from another one.")
    return transmission_by_shares(obj, _depth_shares(options, len(obj), earlier))


def _load_earlier(path: str, measurement: Measurement) -> _EarlierResult:
    """Return the result at `path` and where it lies in this scan.

    The beam's axis is at position + window // 2 in both.

    Raises:
        BadInput: its scan is not this one.
    """
    result = Result.load(path)
    ratio = pixel_ratio(result, measurement.geometry, path)
    window_middle = np.array(measurement.window) // 2
    earlier_middle = np.array(result.probe.shape[-2:]) // 2
    pixel = measurement.geometry.object_pixel_m
    earlier_px = result.positions_px if result.nominal_px is None else result.nominal_px
    if len(earlier_px) == measurement.views:
        differences = ratio * (earlier_px + earlier_middle) - (measurement.positions + window_middle)
        stray = float(np.abs(differences - np.median(differences, axis=0)).max())
        if stray > SAME_SCAN_PX:
            raise BadInput(
                f"The positions in {path} differ from this scan's by up to {stray:.3g} px; start from the same scan."
            )
    elif result.positions_m is not None and pixel is not None:
        differences = ratio * (result.positions_px + earlier_middle) - (
            result.positions_m / np.array(pixel) + window_middle
        )
    else:
        raise BadInput(
            f"{path} has {len(earlier_px)} views and this scan {measurement.views}; start from the same scan."
        )
    offset = np.median(differences, axis=0)
    positions = ratio * (result.positions_px + earlier_middle) - window_middle - offset
    return _EarlierResult(result, path, ratio, offset, positions)


# --- probe ----------------------------------------------------------------------------------------------------------


def _initial_probe(
    measurement: Measurement, mean_pattern: np.ndarray, object: ObjectOptions, options: ProbeOptions, seed: int
) -> torch.Tensor:
    """Return the probe, (M, h, w) complex128, scaled to the counts unless it comes from the object's own result."""
    start = options.start
    probe = _make_start(start, measurement, mean_pattern)
    modes = options.modes or len(probe)
    if modes != len(probe) or options.mode_powers is not None:
        probe = probes.extra_modes(probe, modes, options.mode_powers, seed)
    if _is_of_result(start, object):
        return probe
    background = measurement.mean_background
    counts = mean_pattern if background is None else mean_pattern - background
    return probes.rescaled(probe, float(counts[measurement.mask].sum()))


def _initial_probes(
    measurement: Measurement, mean_patterns: np.ndarray, object: ObjectOptions, options: ProbeOptions, seed: int
) -> torch.Tensor:
    """Return the probe of each scan, (S M, h, w) complex128.

    Raises:
        BadInput: starts of two scans have different numbers of modes.
    """
    probes_of_scans = []
    for scan, mean in enumerate(mean_patterns):
        of_scan = replace(measurement, probe=measurement.scan_probes[scan])
        if of_scan.background is not None and of_scan.background.ndim == 3:
            of_scan = replace(of_scan, background=of_scan.background[scan])
        probe = _initial_probe(of_scan, mean, object, options, seed)
        if measurement.intensity is not None and measurement.scan_index is not None:
            # the scan's own intensities are those of its views already
            probe = probe / float(measurement.intensity[measurement.scan_index == scan].mean()) ** 0.5
        probes_of_scans.append(probe)
    if len({len(probe) for probe in probes_of_scans}) > 1:
        modes = ", ".join(str(len(probe)) for probe in probes_of_scans)
        raise BadInput(f"The starts of the scans' probes have {modes} modes; give probe.modes, which all then have.")
    return torch.cat(probes_of_scans)


def _is_of_result(start: ProbeStart, object: ObjectOptions) -> bool:
    """Return True if the probe starts from the result from which the object starts."""
    return isinstance(start, ResultStart) and object.from_result and Path(start.path) == Path(object.initial)


def _distance_in_front(object: ObjectOptions, earlier: _EarlierResult) -> float:
    """Return how far the middle of the recipe's first slice lies in front of that of the result's, in metres."""
    assert object.initial_depth_m is not None and object.slice_spacing_m is not None
    return object.initial_depth_m + (earlier.result.slice_spacing_m - object.slice_spacing_m) / 2


def _propagate_upstream(probe: torch.Tensor, geometry: Geometry, distance_m: float) -> torch.Tensor:
    """Return a probe (M, h, w) as it is so far in front of its plane; of a negative distance, behind it in vacuum."""
    assert geometry.object_pixel_m is not None and geometry.wavelength_m is not None, "several slices need both"
    kernel = angular_spectrum_kernel(geometry.shape, geometry.object_pixel_m, geometry.wavelength_m, distance_m)
    return apply_kernel_adjoint(probe, kernel.to(probe.device, probe.dtype))


def _make_start(start: ProbeStart, measurement: Measurement, mean_pattern: np.ndarray) -> torch.Tensor:
    """Return the probe (M, h, w) complex128 that a start makes. Raises BadInput where it can be none."""
    start_values, window = start.make(measurement, mean_pattern), measurement.window
    try:
        probe = (
            start_values
            if isinstance(start_values, torch.Tensor)
            else torch.from_numpy(np.array(start_values, np.complex128))
        )
        probe = probe.detach().to("cpu", torch.complex128)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"The probe start {start.kind} makes {quote(start_values)}; make an array (h, w) of numbers."
        ) from error
    if probe.ndim not in (2, 3) or 0 in probe.shape or tuple(probe.shape[-2:]) != window:
        raise BadInput(f"The probe is {tuple(probe.shape)} and the window {window}; they must be equal.")
    if not torch.isfinite(probe).all():
        raise BadInput(f"The probe start {start.kind} makes values that are not finite; use another probe.start.")
    return probe.reshape(-1, *window)
