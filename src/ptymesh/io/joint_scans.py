"""Several scans of one object as one measurement: one list of views, each with the number of its scan.

N, n    views of all scans, of one scan
h, w    window pixels
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import ArrayLike

from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry
from ptymesh.measurement import NO_CHECKS, Measurement, PatternSource, evenly_spread
from ptymesh.physics.scan_energies import interaction_ratio

#: Relative difference up to which wavelengths and pixels of two scans are equal.
EQUAL = 1e-6
#: Views of each scan whose counts are compared with those of the other scans.
SAMPLED = 64
#: Value of a pixel that holds no data in a view.
MISSING = -1
#: Pixels between the windows of scans that lie side by side: positions may move into them.
GAP_PX = 64


@dataclass(frozen=True)
class JointSource:
    """Patterns of several sources, one after the other.

    Attributes:
        sources: patterns of each scan.
        missing: for each scan, (h, w) bool, pixels without data in all of its views that other scans have; None where
            there are none.
    """

    sources: tuple[PatternSource, ...]
    missing: tuple[np.ndarray | None, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of views of all scans and window, (N, h, w)."""
        _, h, w = self.sources[0].shape
        return sum(source.shape[0] for source in self.sources), h, w

    @property
    def dtype(self) -> np.dtype:
        """Dtype that holds the values of all sources, and negative ones where pixels are missing in one."""
        dtype = np.result_type(*(source.dtype for source in self.sources))
        if all(missing is None for missing in self.missing):
            return dtype
        return np.result_type(dtype, np.int8)

    def read(self, views: np.ndarray) -> np.ndarray:
        """Return the patterns (k, h, w) of the views with these indices (k,)."""
        views = np.asarray(views)
        joint = np.empty((len(views), *self.shape[1:]), self.dtype)
        first = 0
        for source, missing in zip(self.sources, self.missing, strict=True):
            rows = np.flatnonzero((views >= first) & (views < first + source.shape[0]))
            if len(rows):
                patterns = source.read(views[rows] - first).astype(joint.dtype)
                if missing is not None:
                    patterns[:, missing] = MISSING
                joint[rows] = patterns
            first += source.shape[0]
        return joint


def join_measurements(scans: Sequence[Measurement], shifts_px: Sequence[tuple[float, float]]) -> Measurement:
    """Return one measurement with the views of all scans, in their order.

    Positions count in one frame, in which each scan is displaced by its shift. Views of brighter scans have a larger
    incident intensity: that of each scan is estimated from the mean counts of some of its views. A pixel that is masked
    in one scan holds no data in the views of that scan alone. Faulty views and pixels are not looked for.

    Args:
        scans: two or more, of equal windows and object pixels; of equal wavelengths, too, but in the far field, where
            scans of several energies share a potential.
        shifts_px: displacement (y, x) of each scan in object pixels.

    Raises:
        BadInput: two scans differ in what has to be equal.
    """
    first = scans[0]
    if joined_name := next((scan.name for scan in scans if scan.scan_index is not None), None):
        raise BadInput(f"{joined_name} is several scans already; give all single scans in one list.")
    for other in scans[1:]:
        _refuse_difference(first, other)
    mask = reduce(np.logical_or, [scan.mask for scan in scans])
    missing = tuple(None if np.array_equal(scan.mask, mask) else mask & ~scan.mask for scan in scans)
    counts = [scan.views for scan in scans]
    stored = [scan.positions if scan.stored_positions is None else scan.stored_positions for scan in scans]
    shifts = [np.asarray(shift, dtype=np.float64) for shift in shifts_px]
    is_turned = any(scan.stored_positions is not None for scan in scans)
    return replace(
        first,
        patterns=JointSource(tuple(scan.patterns for scan in scans), missing),
        positions=np.concatenate([scan.positions + shift for scan, shift in zip(scans, shifts, strict=True)]),
        stored_positions=(
            np.concatenate([one + shift for one, shift in zip(stored, shifts, strict=True)]) if is_turned else None
        ),
        steps=np.concatenate([scan.line_steps for scan in scans]),
        paths=_paths(scans),
        mask=mask,
        background=_of_each_scan([scan.background for scan in scans], np.zeros(first.window)),
        efficiency=_of_each_scan([scan.efficiency for scan in scans], np.ones(first.window)),
        intensity=_intensities(scans),
        name=" + ".join(scan.name for scan in scans),
        fingerprint=hashlib.sha256("".join(scan.fingerprint for scan in scans).encode()).hexdigest(),
        notes=(
            *(note for scan in scans for note in scan.notes),
            f"{len(scans)} scans of {', '.join(map(str, counts))} views share the object.",
        ),
        checks=NO_CHECKS,
        left_out=(),
        further_distance_m=_further_distances(scans),
        interaction_ratios=_interaction_ratios(scans),
        scan_index=np.repeat(np.arange(len(scans)), counts),
        scan_names=_distinct([scan.name for scan in scans]),
        scan_probes=tuple(scan.probe for scan in scans),
    )


def lay_side_by_side(joint: Measurement) -> Measurement:
    """Return several scans with an object of each scan's own: side by side along x, so that no two windows meet.

    The objects are then parts of one large object, and all else is as for scans that share it. Scans are displaced by
    whole pixels, the first one stays.

    Args:
        joint: what `join_measurements` returned; returned as it is where the scans lie side by side already.

    Raises:
        BadInput: there is a single scan.
    """
    if joint.scan_index is None:
        raise BadInput("object.scans is own, and there is a single scan; give several, or object.scans: shared.")
    if joint.displaced_px is not None:
        return joint
    width, moves = joint.window[1], np.zeros((joint.scans, 2))
    corner = np.floor(joint.positions[joint.scan_index == 0].min(axis=0))
    for number in range(joint.scans):
        positions = joint.positions[joint.scan_index == number]
        moves[number] = corner - np.floor(positions.min(axis=0))
        corner[1] += np.ceil(np.ptp(positions[:, 1])) + width + GAP_PX
    by_view = moves[joint.scan_index]
    stored = None if joint.stored_positions is None else joint.stored_positions + by_view
    return replace(joint, positions=joint.positions + by_view, stored_positions=stored, displaced_px=moves)


def _paths(scans: Sequence[Measurement]) -> np.ndarray | None:
    """Return the places of all exposures, (N, S, 2); None unless all scans have equally many for each view."""
    paths = [scan.paths for scan in scans if scan.paths is not None]
    are_equal = len(paths) == len(scans) and len({one.shape[1] for one in paths}) == 1
    return np.concatenate(paths) if are_equal else None


def _refuse_difference(first: Measurement, other: Measurement) -> None:
    """Raise BadInput if two scans differ in what has to be equal."""
    a, b = first.geometry, other.geometry
    several_energies = (
        a.propagation == b.propagation == "far_field"
        and a.radiation is not None
        and a.radiation == b.radiation
        and None not in (a.wavelength_m, b.wavelength_m)
    )
    wavelengths: tuple[str, Callable[[Geometry], ArrayLike | None], str] = (
        "wavelengths (m)", lambda one: one.wavelength_m, "reconstruct each by itself, or mend data.energy_eV"
    )  # fmt: skip
    of_geometry: tuple[tuple[str, Callable[[Geometry], ArrayLike | None], str], ...] = (
        ("windows", lambda one: one.shape, "crop, bin or pad one of them (data.crop, data.bin, data.pad)"),
        ("propagation", lambda one: one.propagation, "reconstruct each by itself"),
        *(() if several_energies else (wavelengths,)),
        ("object pixels (m)", lambda one: one.object_pixel_m, "pad or crop one of them, or mend data.distance_m"),
    )
    for quantity, value_of, remedy in of_geometry:
        if not _are_equal(value_of(a), value_of(b)):
            raise BadInput(
                f"The {quantity} of {first.name} and {other.name} differ, {value_of(a)} and {value_of(b)}, and one "
                f"object is to be reconstructed from both; {remedy}."
            )


def _of_each_scan(arrays: Sequence[np.ndarray | None], usual: np.ndarray) -> np.ndarray | None:
    """Return the arrays (h, w) of all scans, (S, h, w); the one that they have if these are equal.

    Args:
        arrays: of each scan, or None.
        usual: (h, w), stands for None beside arrays.
    """
    if all(_are_equal(arrays[0], array) for array in arrays[1:]):
        return arrays[0]
    return np.stack([usual if array is None else array for array in arrays])


def _further_distances(scans: Sequence[Measurement]) -> np.ndarray | None:
    """Return the distances (N,) of all views beyond that of the first scan; None in the far field, or if all are equal.

    In the far field intensities depend on the distance by the object pixel alone.
    """
    if scans[0].geometry.propagation == "far_field":
        return None
    distances = np.array([scan.geometry.effective_distance_m for scan in scans])
    if np.allclose(distances, distances[0], rtol=EQUAL, atol=0.0):
        return None
    return np.repeat(distances - distances[0], [scan.views for scan in scans])


def _interaction_ratios(scans: Sequence[Measurement]) -> tuple[float, ...] | None:
    """Return the phase of a potential in each scan over that in the first; None if all have one wavelength."""
    first = scans[0].geometry
    if all(_are_equal(scan.geometry.wavelength_m, first.wavelength_m) for scan in scans):
        return None
    return tuple(interaction_ratio(scan.geometry, first) for scan in scans)


def _are_equal(a: ArrayLike | None, b: ArrayLike | None) -> bool:
    """Return True if two values, numbers or arrays are equal, or None both."""
    if a is None or b is None or isinstance(a, str):
        return a is b or (isinstance(a, str) and a == b)
    return np.shape(a) == np.shape(b) and bool(np.allclose(a, b, rtol=EQUAL, atol=0.0))


def _intensities(scans: Sequence[Measurement]) -> np.ndarray:
    """Return the incident intensity (N,) of all views, relative to their mean.

    Raises:
        BadInput: a scan has no counts on the pixels that all have.
    """
    good = reduce(np.logical_and, [scan.mask for scan in scans])
    intensities = []
    for scan in scans:
        views = evenly_spread(scan.views, SAMPLED)
        counts = np.clip(scan.patterns.read(views)[:, good].astype(np.float64), 0.0, None)
        relative = np.ones(scan.views) if scan.intensity is None else scan.intensity.astype(np.float64)
        dark = 0.0 if scan.background is None else float(scan.background[good].sum())
        level = float(((counts.sum(axis=1) - dark) / relative[views]).mean())
        if not level > 0:
            raise BadInput(
                f"{scan.name} has no counts on the pixels that all scans have, besides its background; check its mask, "
                "window and background."
            )
        intensities.append(relative * level)
    every = np.concatenate(intensities)
    return every / every.mean()


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names, with a number behind those that occur before."""
    labels: list[str] = []
    for name in names:
        label, number = name, 2
        while label in labels:
            label, number = f"{name}-{number}", number + 1
        labels.append(label)
    return tuple(labels)
