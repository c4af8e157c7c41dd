"""Where a reconstruction starts (recipe keys `object` and `probe`).

N, M, L     views, probe modes, slices
H, W; h, w  object and window pixels

The frame: an object that holds every window and a margin, sides in whole blocks, the scan in the middle. `origin` is
the object pixel at which the scan's own coordinates have their zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ptymesh.distributed.tiles import Rect
from ptymesh.errors import BadInput
from ptymesh.estimate import BLOCK, REACH, Estimate
from ptymesh.geometry import Geometry
from ptymesh.io.arrays import ANY, load_array
from ptymesh.io.options import Options
from ptymesh.io.results import Result
from ptymesh.measurement import Measurement
from ptymesh.physics import probes
from ptymesh.physics.operators import WaveOperator
from ptymesh.physics.propagate import angular_spectrum_kernel, apply_kernel_adjoint, fresnel_kernel
from ptymesh.run.starts import (
    ArrayStart,
    AutoStart,
    DataStart,
    ElectronStart,
    FileStart,
    ObjectOptions,
    ProbeOptions,
    ResultStart,
)
from ptymesh.types import Precision, complex_dtype
from ptymesh.unknowns import LARGEST

#: Relative difference of pixel sizes below which two grids are the same.
SAME_PIXEL = 1e-6
#: Scan positions of an earlier result may differ by this many pixels (after removing the mean) from this scan's.
SAME_SCAN_PX = 20.0


@dataclass(frozen=True)
class _Earlier:
    """An earlier result, and how its pixels lie to this scan: i_here = ratio * i_there - offset + origin."""

    result: Result
    path: str
    ratio: np.ndarray
    offset: np.ndarray
    positions: np.ndarray


def initial_estimate(
    measurement: Measurement,
    mean_pattern: np.ndarray,
    *,
    object: ObjectOptions,
    probe: ProbeOptions,
    precision: Precision,
    device: torch.device | str,
    margin_px: int,
    seed: int,
    place: Callable[[tuple[int, int], tuple[float, float], np.ndarray], Rect] | None = None,
    optics: Sequence[WaveOperator] = (),
) -> Estimate:
    """The estimate from which a reconstruction starts; the same on every rank, but for the part of the object.

    Args:
        measurement: the scan; only its positions, geometry, mask, background, intensity and probe are used.
        mean_pattern: (h, w) over all views of all ranks, laid out as the patterns; masked pixels are ignored.
        object, probe: the recipe's keys.
        precision, device: of the tensors (positions are float64 always).
        margin_px: object pixels kept free around the outermost windows, for positions that move; at least 2 are.
        seed: of the probe modes that are made.
        place: from the object's sides, its origin and the anchors (N, 2), the part of it that this rank holds; all of
            it unless given.
        optics: operators of the model, whose unknowns start where they say.

    Raises:
        BadInput: a start that the geometry, the window or a file does not allow.
    """
    geometry, dtype = measurement.geometry, complex_dtype(precision)
    earlier = _earlier(object.initial, measurement) if object.from_result else None
    scan_px = measurement.positions
    if earlier is not None and object.result_positions:
        scan_px = earlier.positions
    margin = max(margin_px, REACH)
    origin, sides = frame(scan_px, geometry.shape, margin)
    if earlier is not None:
        # whole pixels between the two frames: equal grids are then copied, not interpolated
        origin = origin + (earlier.offset - np.round(earlier.offset))
    positions = torch.from_numpy(scan_px + origin).to(device)
    weights = np.ones(measurement.views) if measurement.intensity is None else np.sqrt(measurement.intensity)
    real = torch.zeros((), dtype=dtype).real.dtype
    background = np.zeros(geometry.shape) if measurement.background is None else measurement.background
    first = _probe(measurement, mean_pattern, object, probe, seed).to(device, dtype)
    shares = np.zeros((measurement.views, probe.opr_modes))
    anchors = torch.floor(positions + 0.5).to(torch.int64)
    zero = (float(origin[0]), float(origin[1]))
    part = Rect(0, 0, *sides) if place is None else place(sides, zero, anchors.cpu().numpy())
    made = Estimate(
        object=_object(object, earlier, scan_px, origin, part, geometry.shape, dtype).to(device),
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
        parameters=_parameters(probe.start),
        corner=part.corner,
        extent=sides,
    )
    for one in optics:
        made.others |= one.starts(made.sizes(), device, real)
    return made


def _parameters(start: Any) -> dict[str, dict[str, float]]:
    """What is known of the numbers that make up the probe (ptymesh.models)."""
    if not isinstance(start, ElectronStart):
        return {}
    return {"aberrations": probes.aberration_parts(_aberrations(start))}


def opr_modes(probe: torch.Tensor, modes: int, seed: int) -> torch.Tensor:
    """Hermite-like modes (K, h, w) of the first probe mode, each of its norm."""
    if not modes:
        return probe[:0].clone()
    made = probes.extra_modes(probe[0], modes + 1, [1 / (modes + 1)] * (modes + 1), seed)[1:]
    norms = torch.linalg.vector_norm(made, dim=(-2, -1), keepdim=True)
    return (made / norms * torch.linalg.vector_norm(probe[0])).to(probe.device, probe.dtype)


def frame(scan_px: np.ndarray, window: tuple[int, int], margin: int) -> tuple[np.ndarray, tuple[int, int]]:
    """Origin (2,), whole pixels, and the object's sides."""
    low, high = np.floor(scan_px.min(axis=0)), np.ceil(scan_px.max(axis=0))
    needed = high - low + np.array(window) + 2 * margin
    sides = np.ceil(needed / BLOCK) * BLOCK
    origin = margin + np.floor((sides - needed) / 2) - low
    return origin, (int(sides[0]), int(sides[1]))


# --- object ---------------------------------------------------------------------------------------------------------


def _object(
    options: ObjectOptions,
    earlier: _Earlier | None,
    scan_px: np.ndarray,
    origin: np.ndarray,
    part: Rect,
    window: tuple[int, int],
    dtype: torch.dtype,
) -> torch.Tensor:
    """The part of the object, (L, h, w) complex."""
    if options.initial == "ones":
        return torch.ones((options.slices, *part.shape), dtype=dtype)
    moved = origin - np.array(part.corner)
    if earlier is not None:
        found = _sliced(earlier.result.object, options.slices, earlier.path)
        return torch.from_numpy(_resampled(found, earlier.ratio, moved - earlier.offset, part.shape, 1.0)).to(dtype)
    found = _sliced(_complex_array(options.initial, "object.initial"), options.slices, options.initial)
    middle = (scan_px.min(axis=0) + scan_px.max(axis=0)) / 2 + origin + (np.array(window) - 1) / 2
    corner = np.round(middle - (np.array(found.shape[1:]) - 1) / 2) - np.array(part.corner)
    return torch.from_numpy(_resampled(found, np.ones(2), corner, part.shape, outside=1.0)).to(dtype)


def _sliced(found: np.ndarray, slices: int, path: str) -> np.ndarray:
    """The object (L, H, W) with the wanted number of slices; one slice is split evenly, |O|^(1/L) exp(i arg O / L)."""
    if not np.isfinite(found).all():
        raise BadInput(f"The object in {path} holds values that are not finite; start from another one.")
    if len(found) == slices:
        return found
    if len(found) == 1:
        root = np.abs(found) ** (1 / slices) * np.exp(1j * np.angle(found) / slices)
        return np.repeat(root, slices, axis=0)
    raise BadInput(f"The object in {path} has {len(found)} slices and the recipe asks for {slices}; make them equal.")


def _resampled(
    array: np.ndarray, ratio: np.ndarray, corner: np.ndarray, sides: tuple[int, int], outside: float
) -> np.ndarray:
    """Array (K, h, w) on another grid, (K, *sides): i_new = ratio * i_old + corner; cubic splines, or a plain copy.

    A coarser grid is preceded by a Gaussian filter of half its pixel, so that it does not alias.
    """
    shift = np.round(corner).astype(int)
    if (np.abs(ratio - 1) < SAME_PIXEL).all() and np.allclose(corner, shift, atol=1e-6):
        out = np.full((len(array), *sides), outside, np.complex128)
        here = tuple(slice(max(0, s), max(0, s, min(n, s + m))) for s, n, m in _axes(shift, sides, array))
        there = tuple(slice(h.start - s, h.stop - s) for h, s in zip(here, shift, strict=True))
        out[:, here[0], here[1]] = array[:, there[0], there[1]]
        return out
    from scipy import ndimage

    sigma = np.where(ratio < 1, 0.5 * np.sqrt(np.maximum(1 / ratio**2 - 1, 0)), 0)
    made = [
        ndimage.affine_transform(
            ndimage.gaussian_filter(image.astype(np.complex128) - outside, sigma),
            1 / ratio,
            offset=-corner / ratio,
            output_shape=sides,
            order=3,
        )
        + outside
        for image in array
    ]
    return np.stack(made)


def _axes(shift: np.ndarray, sides: tuple[int, int], array: np.ndarray) -> list[tuple[int, int, int]]:
    return [(int(s), n, m) for s, n, m in zip(shift, sides, array.shape[1:], strict=True)]


def _earlier(path: str, measurement: Measurement) -> _Earlier:
    """The result at `path` and where it lies in this scan: the beam's axis is at position + window // 2 in both.

    Raises BadInput where its scan is not this one.
    """
    result = Result.load(path)
    ratio = _pixel_ratio(result, measurement.geometry, path)
    here = np.array(measurement.window) // 2
    there = np.array(result.probe.shape[-2:]) // 2
    pixel = measurement.geometry.object_pixel_m
    before = result.positions_px if result.nominal_px is None else result.nominal_px
    if len(before) == measurement.views:
        apart = ratio * (before + there) - (measurement.positions + here)
        stray = float(np.abs(apart - np.median(apart, axis=0)).max())
        if stray > SAME_SCAN_PX:
            raise BadInput(
                f"The positions in {path} differ from this scan's by up to {stray:.3g} px; start from the same scan."
            )
    elif result.positions_m is not None and pixel is not None:
        apart = ratio * (result.positions_px + there) - (result.positions_m / np.array(pixel) + here)
    else:
        raise BadInput(f"{path} has {len(before)} views and this scan {measurement.views}; start from the same scan.")
    offset = np.median(apart, axis=0)
    positions = ratio * (result.positions_px + there) - here - offset
    return _Earlier(result, path, ratio, offset, positions)


def _pixel_ratio(result: Result, geometry: Geometry, path: str) -> np.ndarray:
    """The result's pixel over this scan's, (y, x)."""
    if result.pixel_size_m is None or geometry.object_pixel_m is None:
        if result.probe.shape[-2:] == geometry.shape:
            return np.ones(2)
        raise BadInput(
            f"{path} was made with windows of {result.probe.shape[-2:]} and this scan has {geometry.shape}, in pixel "
            f"units; give the wavelength and the pixel sizes of both, or use equal windows."
        )
    ratio = np.array(result.pixel_size_m) / np.array(geometry.object_pixel_m)
    return np.where(np.abs(ratio - 1) < SAME_PIXEL, 1.0, ratio)


# --- probe ----------------------------------------------------------------------------------------------------------


def _probe(
    measurement: Measurement, mean_pattern: np.ndarray, object: ObjectOptions, options: ProbeOptions, seed: int
) -> torch.Tensor:
    """(M, h, w) complex128."""
    start = options.start
    if isinstance(start, AutoStart):
        start = FileStart(kind="file") if measurement.probe is not None else DataStart(kind="data")
    found = _started(start, measurement, mean_pattern)
    if found.shape[-2:] != measurement.window:
        raise BadInput(f"The probe is {tuple(found.shape)} and the window {measurement.window}; they must be equal.")
    found = found.reshape(-1, *measurement.window)
    modes = options.modes or len(found)
    if modes != len(found) or options.mode_powers is not None:
        found = probes.extra_modes(found, modes, options.mode_powers, seed)
    if isinstance(start, ResultStart) and object.from_result and Path(start.path) == Path(object.initial):
        return found
    counts = mean_pattern if measurement.background is None else mean_pattern - measurement.background
    return probes.rescaled(found, float(counts[measurement.mask].sum()))


def _started(start: Any, measurement: Measurement, mean_pattern: np.ndarray) -> torch.Tensor:
    """The probe (h, w) or (m, h, w) that a start describes, of any power."""
    geometry = measurement.geometry
    match start:
        case FileStart():
            if measurement.probe is None:
                raise BadInput(f"{measurement.name} holds no probe; use another probe.start, such as data.")
            return torch.from_numpy(np.asarray(measurement.probe, np.complex128))
        case DataStart():
            return _from_data(measurement, mean_pattern, start.defocus_m)
        case ElectronStart():
            return probes.aberrated(geometry.shape, *_optics(geometry, start), start.semiangle_rad, _aberrations(start))
        case ResultStart():
            return _from_result(start.path, geometry)
        case ArrayStart():
            return torch.from_numpy(_complex_array(start.path, "probe.start", geometry.shape))
    makers: dict[str, Callable[..., torch.Tensor]]
    makers = {"zone_plate": probes.zone_plate, "kb": probes.kb_mirror, "pinhole": probes.pinhole}
    return makers[start.kind](geometry.shape, *_optics(geometry, start), **start.model_dump(exclude={"kind"}))


def _aberrations(start: ElectronStart) -> dict[str, Any]:
    """Those of the lens, its defocus among them."""
    c10 = start.aberrations_m.get("C10", 0.0)
    if not isinstance(c10, float | int):
        raise BadInput(f"Aberration C10 is {c10}; give metres.")
    return {**start.aberrations_m, "C10": c10 - start.defocus_m}


def _from_data(measurement: Measurement, mean_pattern: np.ndarray, defocus_m: float) -> torch.Tensor:
    geometry = measurement.geometry
    counts = mean_pattern if measurement.background is None else mean_pattern - measurement.background
    filled = torch.from_numpy(_filled(counts, measurement.mask, geometry.propagation == "far_field"))
    if geometry.propagation == "far_field":
        probe = probes.from_mean_pattern(filled)
    else:
        make = angular_spectrum_kernel if geometry.propagation == "angular_spectrum" else fresnel_kernel
        kernel = make(geometry.shape, *_optics(geometry, DataStart(kind="data")), geometry.effective_distance_m)
        probe = apply_kernel_adjoint(filled.clamp(min=0).sqrt().to(torch.complex128), kernel)
    if defocus_m == 0:
        return probe
    return probes.defocused(probe, *_optics(geometry, DataStart(kind="data")), -defocus_m)


def _filled(image: np.ndarray, good: np.ndarray, periodic: bool) -> np.ndarray:
    """The image with bad pixels replaced by a mean of good ones near by (of any, where none is near)."""
    from scipy import ndimage

    out = np.where(good, image, image[good].mean())
    todo = ~good
    mode = "wrap" if periodic else "nearest"
    for sigma in (1.0, 2.0, 4.0, 8.0):
        weight = ndimage.gaussian_filter(good.astype(np.float64), sigma, mode=mode)
        near = todo & (weight > 0.1)
        smooth = ndimage.gaussian_filter(np.where(good, image, 0.0), sigma, mode=mode)
        out[near] = smooth[near] / weight[near]
        todo &= ~near
    return out


def _from_result(path: str, geometry: Geometry) -> torch.Tensor:
    """Probe of a result on this window's grid, axis on axis; every mode keeps its power."""
    result = Result.load(path)
    ratio = _pixel_ratio(result, geometry, path)
    corner = np.array(geometry.shape) // 2 - ratio * (np.array(result.probe.shape[-2:]) // 2)
    moved = _resampled(result.probe, ratio, corner, geometry.shape, outside=0.0)
    powers = [(np.abs(array) ** 2).sum(axis=(1, 2), keepdims=True) for array in (result.probe, moved)]
    return torch.from_numpy(moved * np.sqrt(powers[0] / np.maximum(powers[1], np.finfo(np.float64).tiny)))


def _optics(geometry: Geometry, start: Options) -> tuple[tuple[float, float], float]:
    if geometry.object_pixel_m is None or geometry.wavelength_m is None:
        raise BadInput(
            f"A probe of kind {getattr(start, 'kind', '?')} needs the wavelength and the object pixel in metres, which "
            f"this data set does not tell; give data.energy_eV and data.object_pixel_m, or start from file or data."
        )
    return geometry.object_pixel_m, geometry.wavelength_m


def _complex_array(reference: str, option: str, window: tuple[int, int] | None = None) -> np.ndarray:
    """Array (K, h, w) complex128 at `file.npy`, `file.npz:name` or `file.h5:/path`; (h, w) as the window, if given."""
    found = load_array(reference, option, ANY, window=window)
    if found.ndim not in (2, 3) or 0 in found.shape:
        raise BadInput(f"{option}: {reference} has shape {found.shape}; give numbers with two or three axes.")
    with np.errstate(over="ignore", invalid="ignore"):
        largest = float(np.abs(found).max())
    if not largest <= LARGEST:  # True on NaN too
        raise BadInput(f"{option}: {reference} holds values of {largest:.3g}, which cannot be; start from another one.")
    return found.reshape(-1, *found.shape[-2:]).astype(np.complex128)
