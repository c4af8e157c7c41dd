"""Comparison of two reconstructions: object, probe, positions.

N       views
M       incoherent probe modes
L       object slices
H, W    object pixels
h, w    window pixels
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from ptymesh.compare.align import Alignment, align, twin
from ptymesh.compare.region import illuminated, illumination
from ptymesh.compare.rings import RingCorrelation, ring_correlation
from ptymesh.compare.similarity import phase_similarity
from ptymesh.errors import BadInput

#: A is the twin of B if the twin's error, or its distance between positions, is below this share of the direct one.
TWIN = 0.6
#: Pixel sizes that differ by a larger factor cannot belong to the same measurement.
LARGEST_RATIO = 8.0


class ComparableResult(Protocol):
    """Attributes of a reconstruction that are compared, as of `io.results.Result`."""

    object: np.ndarray
    probe: np.ndarray
    positions_px: np.ndarray
    pixel_size_m: tuple[float, float] | None
    weights: np.ndarray | None


@dataclass(frozen=True)
class _Side:
    """One of the two reconstructions, on the common pixel grid.

    Attributes:
        object: (L, H, W) complex.
        probe: (M, h, w) complex.
        positions_px: (N, 2) y x.
        weights: (N, 1 + K) or (N,), amplitude of the incident beam per view first; None: 1.
    """

    object: np.ndarray
    probe: np.ndarray
    positions_px: np.ndarray
    weights: np.ndarray | None

    @property
    def projection(self) -> np.ndarray:
        """Product of all slices, (H, W)."""
        return np.prod(self.object, axis=0)

    @property
    def region(self) -> np.ndarray:
        """Illuminated pixels, (H, W) bool."""
        shape = self.object.shape[-2], self.object.shape[-1]
        return illuminated(illumination(shape, self.probe, self.positions_px, self.weights))

    def twin(self) -> _Side:
        """Return the twin: (p, P, O) -> (-p, P*(-r), O*(-r)) in array coordinates."""
        corner = np.array(self.object.shape[-2:]) - self.probe.shape[-2:]
        return replace(self, object=twin(self.object), probe=twin(self.probe), positions_px=corner - self.positions_px)


@dataclass(frozen=True)
class Comparison:
    """Difference between A and B after the ambiguities have been removed from A.

    Attributes:
        nrmse: of the object (the product of its slices) over the pixels that both illuminated.
        twin_nrmse: the same with the twin of A.
        twin: True if A is the twin of B: everything else here then refers to the twin of A.
        alignment: of A with B.
        rings: Fourier ring correlation over the region, with the resolution.
        similarity: structural similarity (SSIM) of the phases, up to 1; None where the region is too narrow for a
            window of 11 pixels, or the phase of B is flat.
        slice_nrmse: of every slice, each aligned by itself; empty for one slice or different numbers of them.
        probe_nrmse: of all modes together, orthogonalised and ordered by power, after shift, ramp, one scale, and a
            phase for each.
        probe_mode_nrmse: of each mode, relative to the stronger of the two.
        powers: per cent of each mode, of A and of B.
        position_mean_px, position_p95_px: mean and 95th percentile of the distance between the positions of a view
            after their common translation is removed; None where the numbers of views differ.
        pixel_size_m: (y, x) of the grid on which A and B were compared; None: pixel units.
        notes: assumptions, one sentence each.
    """

    nrmse: float
    twin_nrmse: float
    twin: bool
    alignment: Alignment
    rings: RingCorrelation
    similarity: float | None
    slice_nrmse: tuple[float, ...]
    probe_nrmse: float
    probe_mode_nrmse: tuple[float, ...]
    powers: tuple[tuple[float, ...], tuple[float, ...]]
    position_mean_px: float | None
    position_p95_px: float | None
    pixel_size_m: tuple[float, float] | None
    notes: tuple[str, ...]

    def summary(self) -> dict[str, object]:
        """Return the numbers as plain Python objects, ready for JSON."""
        return {
            "nrmse": self.nrmse,
            "twin_nrmse": self.twin_nrmse,
            "twin": self.twin,
            "ssim": self.similarity,
            "resolution": self.rings.resolution,
            "resolution_unit": self.rings.unit,
            "resolution_at_pixel_limit": self.rings.at_limit,
            "shift_px": list(self.alignment.shift),
            "ramp_rad_per_px": list(self.alignment.ramp),
            "scale": abs(self.alignment.factor),
            "pixels": int(self.alignment.region.sum()),
            "slice_nrmse": list(self.slice_nrmse),
            "probe_nrmse": self.probe_nrmse,
            "probe_mode_nrmse": list(self.probe_mode_nrmse),
            "probe_powers_percent": [list(powers) for powers in self.powers],
            "position_mean_px": self.position_mean_px,
            "position_p95_px": self.position_p95_px,
            "pixel_size_m": None if self.pixel_size_m is None else list(self.pixel_size_m),
            "notes": list(self.notes),
        }


def compare_results(a: ComparableResult, b: ComparableResult) -> Comparison:
    """Compare reconstruction A with reference B.

    Global phase, scale, phase ramp, sub-pixel shift, and the twin where it fits much better, are removed from A first.
    Objects of different shapes are compared where they overlap; different pixel sizes are resampled to the finer one.

    Raises:
        BadInput: there is nothing in common, or the pixel sizes differ by more than a factor of 8.
    """
    first, second, pixel_size_m, notes = _resample_to_one_grid(a, b)
    direct = _align(first, second)
    turned = _align(first.twin(), second)
    is_twin = _is_twin(first, second, direct, turned)
    side, alignment = (first.twin(), turned) if is_twin else (first, direct)
    if len(a.object) != len(b.object):
        notes.append(f"A has {len(a.object)} slices and B {len(b.object)}: their products were compared.")
    probe_nrmse, modes, powers = _probes(side.probe, second.probe)
    if len(a.probe) != len(b.probe):
        notes.append(f"A has {len(a.probe)} probe modes and B {len(b.probe)}: the missing ones count as zero.")
    positions = _positions(side, second)
    if positions is None:
        notes.append(f"A has {len(a.positions_px)} views and B {len(b.positions_px)}: positions were not compared.")
    rings = ring_correlation(alignment.aligned, alignment.reference, alignment.region, pixel_size_m)
    if rings.is_too_small:
        notes.append(
            f"The common field of {int(alignment.region.sum())} pixels is too small for a resolution: chance alone "
            "correlates as much."
        )
    return Comparison(
        nrmse=alignment.nrmse,
        twin_nrmse=turned.nrmse,
        twin=is_twin,
        alignment=alignment,
        rings=rings,
        similarity=phase_similarity(alignment.aligned, alignment.reference, alignment.region),
        slice_nrmse=_slices(side, second, alignment),
        probe_nrmse=probe_nrmse,
        probe_mode_nrmse=modes,
        powers=powers,
        position_mean_px=None if positions is None else positions[0],
        position_p95_px=None if positions is None else positions[1],
        pixel_size_m=pixel_size_m,
        notes=tuple(notes),
    )


def _is_twin(a: _Side, b: _Side, direct: Alignment, turned: Alignment) -> bool:
    """Return True if A fits much better turned and conjugated; or better, with positions that are negated.

    With weak objects under noise both errors are similar: then the scan decides.
    """
    if turned.nrmse < TWIN * direct.nrmse:
        return True
    here, there = _positions(a, b), _positions(a.twin(), b)
    return turned.nrmse < direct.nrmse and here is not None and there is not None and there[0] < TWIN * here[0]


def _resample_to_one_grid(
    a: ComparableResult, b: ComparableResult
) -> tuple[_Side, _Side, tuple[float, float] | None, list[str]]:
    """Return both on the finer of their pixel sizes, that size, and notes about the resampling."""
    sides = [_Side(r.object, r.probe, np.asarray(r.positions_px, dtype=np.float64), r.weights) for r in (a, b)]
    if a.pixel_size_m is None or b.pixel_size_m is None:
        lone = a.pixel_size_m is not None or b.pixel_size_m is not None
        notes = ["Only one of the two has a pixel size: they were compared pixel by pixel."] if lone else []
        return sides[0], sides[1], None, notes
    sizes = np.array([a.pixel_size_m, b.pixel_size_m])
    finer = sizes.min(axis=0)
    ratios = sizes / finer
    if ratios.max() > LARGEST_RATIO:
        raise BadInput(
            f"The object pixels are {_nm(a.pixel_size_m)} and {_nm(b.pixel_size_m)} nm; "
            f"compare results of the same measurement, or mend the geometry of one."
        )
    notes = []
    for i, (name, size) in enumerate(zip("AB", (a.pixel_size_m, b.pixel_size_m), strict=True)):
        if np.abs(ratios[i] - 1).max() > 1e-6:
            sides[i] = _finer(sides[i], ratios[i])
            notes.append(f"{name} was brought from {_nm(size)} nm pixels to {_nm(tuple(finer))} nm by cubic splines.")
    return sides[0], sides[1], (float(finer[0]), float(finer[1])), notes


def _nm(pixel: tuple[float, ...]) -> str:
    return " x ".join(f"{1e9 * size:.4g}" for size in pixel)


def _finer(side: _Side, ratio: np.ndarray) -> _Side:
    """Return `side` resampled to pixels `ratio` (y, x) times smaller."""
    window = np.array(side.probe.shape[-2:])
    fine = np.rint(window * ratio).astype(int)
    # The optical axis stays on pixel (h//2, w//2): the window's corner moves, and positions change by as much.
    offset = window // 2 - (fine // 2) / ratio
    return replace(
        side,
        object=_resampled(side.object, ratio, np.zeros(2), np.ceil(side.object.shape[-2:] * ratio).astype(int)),
        probe=_resampled(side.probe, ratio, offset, fine),
        positions_px=(side.positions_px + offset) * ratio,
    )


def _resampled(images: np.ndarray, ratio: np.ndarray, offset: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """Return images (K, H, W) interpolated by cubic splines at r = offset + i / ratio."""
    from scipy import ndimage

    def part(image: np.ndarray) -> np.ndarray:
        return ndimage.affine_transform(image, 1 / ratio, offset, tuple(shape), order=3, mode="nearest")

    wide = images.astype(np.complex128)
    return np.stack([part(image.real) + 1j * part(image.imag) for image in wide])


def _align(a: _Side, b: _Side) -> Alignment:
    """Return the alignment of the projections; between scans of the same views, their median shift is tried."""
    start = None
    if len(a.positions_px) == len(b.positions_px):
        y, x = np.median(b.positions_px - a.positions_px, axis=0)
        start = float(y), float(x)
    return align(a.projection, b.projection, b.region, a.region, start, ("object of A", "object of B"))


def _slices(a: _Side, b: _Side, whole: Alignment) -> tuple[float, ...]:
    """Return the NRMSE of every slice, aligned by itself, starting from the alignment of the projections."""
    if len(a.object) != len(b.object) or len(a.object) == 1:
        return ()
    regions = b.region, a.region
    return tuple(align(*pair, *regions, whole.shift).nrmse for pair in zip(a.object, b.object, strict=True))


def orthogonal(probe: np.ndarray) -> np.ndarray:
    """Return orthogonal modes (M, h, w) of the same density matrix, strongest first."""
    modes = probe.reshape(len(probe), -1).astype(np.complex128)
    turn = np.linalg.eigh(modes @ modes.conj().T)[1][:, ::-1]
    return (turn.conj().T @ modes).reshape(probe.shape)


def _probes(
    a: np.ndarray, b: np.ndarray
) -> tuple[float, tuple[float, ...], tuple[tuple[float, ...], tuple[float, ...]]]:
    """Return the NRMSE of all modes, that of each, and the powers of both sides in per cent."""
    a, b = orthogonal(a), orthogonal(b)
    powers = [(np.abs(modes) ** 2).sum(axis=(1, 2)) for modes in (a, b)]
    percent = tuple(tuple(float(p) for p in 100 * power / power.sum()) for power in powers)
    a, b = (_centred(modes, np.maximum(a.shape, b.shape)) for modes in (a, b))
    alignment = align(a[0], b[0])
    a = np.stack([alignment.apply(mode) for mode in a])
    inner = np.array([np.vdot(u, v) for u, v in zip(a, b, strict=True)])
    a *= (np.abs(inner).sum() / (np.abs(a) ** 2).sum()) * np.exp(1j * np.angle(inner))[:, None, None]
    difference, *norms = ((np.abs(modes) ** 2).sum(axis=(1, 2)) for modes in (a - b, a, b))
    stronger = np.maximum(*norms)
    each = np.sqrt(np.divide(difference, stronger, out=np.zeros(len(a)), where=stronger > 0))
    total = float(np.sqrt(difference.sum() / norms[1].sum()))
    return total, tuple(float(e) for e in each), (percent[0], percent[1])


def _centred(modes: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """Return the modes in a larger window, the optical axis at its centre; missing modes are zero."""
    canvas = np.zeros(tuple(shape), dtype=np.complex128)
    corner = shape[1:] // 2 - np.array(modes.shape[1:]) // 2
    box = tuple(slice(c, c + n) for c, n in zip(corner, modes.shape[1:], strict=True))
    canvas[: len(modes), box[0], box[1]] = modes
    return canvas


def _positions(a: _Side, b: _Side) -> tuple[float, float] | None:
    """Return mean and 95th percentile of |difference| (pixels), without the mean shift.

    None for different numbers of views.
    """
    if len(a.positions_px) != len(b.positions_px):
        return None
    difference = a.positions_px - b.positions_px
    distance = np.linalg.norm(difference - difference.mean(axis=0), axis=1)
    return float(distance.mean()), float(np.percentile(distance, 95))
