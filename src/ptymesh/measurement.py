"""Measured data: patterns, positions and optics. Nothing here is solved for.

N       views
h, w    window pixels

Far-field patterns have DC at the corner (index 0, 0), near-field images are as the detector recorded them; `mask` and
`background` are laid out as the patterns. A pattern value below zero marks a pixel without data in that view alone
(saturation, per-view masks).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol, cast

import numpy as np

from ptymesh.displayed import Displayed
from ptymesh.errors import BadInput
from ptymesh.geometry import Geometry

#: Largest difference of two steps of a line, as a share of the shorter one.
SAME_STEP = 0.5


#: Patterns that are read together where all of a scan are looked at.
PATTERNS_AT_A_TIME = 64


class PatternSource(Protocol):
    """Source of patterns that can be read a few views at a time, in their own dtype."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of views and window, (N, h, w)."""

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the detector (uint8, uint16, float32 ...)."""

    def read(self, views: np.ndarray) -> np.ndarray:
        """Return the patterns (n, h, w) of the views with these indices (n,), in any order, C-contiguous."""


@dataclass(frozen=True)
class ConvergentBeam:
    """A beam that a round lens has focused, as far as a file describes it.

    Attributes:
        semiangle_rad: half-angle of the lens's aperture.
        defocus_m: distance of the focus, C10 = -defocus; 0 where the file does not say it.
    """

    semiangle_rad: float
    defocus_m: float = 0.0


@dataclass(frozen=True)
class ArraySource:
    """Patterns in memory.

    Attributes:
        patterns: (N, h, w).
    """

    patterns: np.ndarray

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of views and window, (N, h, w)."""
        n, h, w = self.patterns.shape
        return n, h, w

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the array."""
        return self.patterns.dtype

    def read(self, views: np.ndarray) -> np.ndarray:
        """Return the patterns (n, h, w) of the views with these indices (n,)."""
        return np.ascontiguousarray(self.patterns[views])


class Sliceable(Protocol):
    """An array that is read when it is sliced, such as those of h5py, zarr and dask."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of its axes."""

    @property
    def dtype(self) -> np.dtype:
        """Type of its numbers."""

    def __getitem__(self, index: slice) -> object:
        """Return consecutive patterns, which `numpy.asarray` makes an array."""


class SlicedSource:
    """Patterns of arrays that are read when they are sliced, one array after the other.

    Args:
        arrays: (N_i, h, w) each, all of the same window and dtype.

    Raises:
        BadInput: one has no patterns of real numbers, or others than the first.
    """

    def __init__(self, *arrays: Sliceable) -> None:
        self._arrays = arrays
        for number, array in enumerate(arrays):
            try:
                shape, dtype = tuple(array.shape), np.dtype(array.dtype)
            except TypeError as error:
                raise BadInput(
                    f"The patterns are of type {type(array).__name__} with a dtype that numpy does not know "
                    f"({array.dtype}); give an array of numpy's."
                ) from error
            if len(shape) != 3 or dtype.kind not in "buif":
                raise BadInput(f"Array {number} of the patterns is {dtype} {shape}; give real numbers, (N, h, w).")
            if (shape[1:], dtype) != (tuple(arrays[0].shape[1:]), np.dtype(arrays[0].dtype)):
                raise BadInput(
                    f"Array {number} of the patterns is {dtype} {shape}, and the first one is "
                    f"{arrays[0].dtype} {tuple(arrays[0].shape)}; give arrays of one window and dtype."
                )
        self._starts = np.cumsum([0, *(array.shape[0] for array in arrays)])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of views and window, (N, h, w)."""
        _, h, w = self._arrays[0].shape
        return int(self._starts[-1]), h, w

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the arrays."""
        return np.dtype(self._arrays[0].dtype)

    def read(self, views: np.ndarray) -> np.ndarray:
        """Return the patterns (n, h, w) of the views with these indices (n,); neighbours are read by one slice."""
        views = np.asarray(views)
        out = np.empty((len(views), *self.shape[1:]), self.dtype)
        order = np.argsort(views, kind="stable")
        part = np.searchsorted(self._starts, views[order], side="right") - 1
        apart = (np.diff(views[order]) > 1) | (np.diff(part) > 0)
        for members in np.split(np.arange(len(order)), np.flatnonzero(apart) + 1) if len(order) else ():
            array, start = self._arrays[part[members[0]]], int(self._starts[part[members[0]]])
            local = views[order[members]] - start
            block = np.asarray(array[slice(int(local[0]), int(local[-1]) + 1)])
            out[order[members]] = block[local - local[0]]
        return out


@dataclass(frozen=True)
class Checks:
    """Treatment of data that look faulty (ptymesh.io.prepare.checks), each `auto`, `warn` or `off`.

    Attributes:
        views: left out if they have no counts, almost none, or far too many, or lie far from all others.
        pixels: masked if they have no counts beside bright ones, hold a marker value, or look hot, dead or stuck.
        scan: refused if positions or units are impossible.
    """

    views: str = "auto"
    pixels: str = "auto"
    scan: str = "auto"


NO_CHECKS = Checks("off", "off", "off")


@dataclass(frozen=True)
class Measurement(Displayed):
    """Scan that is ready to be reconstructed.

    Attributes:
        patterns: source of (N, h, w) counts; or an array of them, in memory or one that is read when it is sliced.
        positions: (N, 2) float64, y x, nominal positions in object pixels, arbitrary origin.
        geometry: of this window; of a model whose pixels are finer than the detector's, of the model's (`divided`).
        mask: (h, w) bool, True where the detector is good.
        background: (h, w) counts that add to every pattern, or None; of S scans whose backgrounds differ (S, h, w).
        efficiency: (h, w) share of the light that each pixel counts, relative to the mean, or None where all are alike;
            of S scans whose detectors differ (S, h, w).
        intensity: (N,) relative incident intensity with mean 1, or None where it was constant.
        probe: (M, h, w) complex, initial probe from the file (optical axis at (h//2, w//2)), or None.
        beam: what the file says of the beam, from which the probe then starts, or None.
        name: short name for titles.
        path: of the file.
        fingerprint: identifies the content.
        notes: assumptions of the reader, one sentence each.
        stored_positions: (N, 2) before the recipe turned and scaled them, or None where nothing did.
        steps: (N, 2) float64, y x, object pixels from each position to the next one of its line in the file, also where
            that is left out (`steps_along_lines`); None: as these positions say.
        paths: (N, S, 2) float64, y x, places of the beam during the exposure of each view, in object pixels from its
            position; None where the file has none.
        checks: treatment of data that look faulty.
        left_out: indices, in the file's order, of the views that were left out as faulty.
        further_distance_m: (N,) distance from sample to detector of each view beyond that of the geometry, both as
            effective distances, of scans at several distances; None where all have that of the geometry.
        interaction_ratios: phase of a potential in each scan over that in the first, of scans of several energies; None
            where all have one energy.
        scan_index: (N,) int64, number of the scan that each view is of, from 0; None for a single scan.
        scan_names: names of these scans.
        scan_probes: initial probe of each scan, as `probe`.
        displaced_px: (S, 2) y, x, pixels by which the positions of each of S scans were displaced so that each has an
            object of its own; None where they share one.
    """

    displayed_by: ClassVar[str] = "ptymesh.notebook.scans"

    patterns: PatternSource
    positions: np.ndarray
    geometry: Geometry
    mask: np.ndarray
    background: np.ndarray | None = None
    intensity: np.ndarray | None = None
    probe: np.ndarray | None = None
    name: str = "scan"
    path: str = ""
    fingerprint: str = ""
    notes: tuple[str, ...] = field(default=())
    stored_positions: np.ndarray | None = None
    steps: np.ndarray | None = None
    paths: np.ndarray | None = None
    checks: Checks = Checks()
    left_out: tuple[int, ...] = ()
    scan_index: np.ndarray | None = None
    scan_names: tuple[str, ...] = ()
    scan_probes: tuple[np.ndarray | None, ...] = ()
    efficiency: np.ndarray | None = None
    further_distance_m: np.ndarray | None = None
    interaction_ratios: tuple[float, ...] | None = None
    displaced_px: np.ndarray | None = None
    beam: ConvergentBeam | None = None

    def __post_init__(self) -> None:
        self._arrays()
        n, h, w = self.patterns.shape
        if n == 0:
            raise BadInput(f"{self.name} has no views; check the path of the patterns in the file.")
        if self.positions.shape != (n, 2):
            raise BadInput(
                f"{self.name} has {n} patterns and positions of shape {self.positions.shape}; "
                f"give one (y, x) pair per pattern."
            )
        if not np.isfinite(self.positions).all():
            bad = int(np.flatnonzero(~np.isfinite(self.positions).all(axis=1))[0])
            raise BadInput(f"Position {bad} of {self.name} is {self.positions[bad]}; remove that view or mend it.")
        k = max(1, self.geometry.shape[0] // h)
        if self.geometry.shape != (k * h, k * w):
            raise BadInput(f"The geometry is for windows of {self.geometry.shape}, the patterns are {(h, w)}.")
        if self.mask.shape != (h, w) or self.mask.dtype != np.bool_:
            raise BadInput(f"The mask is {self.mask.shape} {self.mask.dtype}; it must be a boolean array {(h, w)}.")
        if not self.mask.any():
            raise BadInput(
                "No detector pixel is left: the mask excludes all, or all are negative or NaN in every view; "
                "check data.mask (1 means good here), and which dataset is read (data.keys.patterns)."
            )
        for name in ("background", "efficiency"):
            array = getattr(self, name)
            by_scan = [(self.scans, h, w)] if self.scan_index is not None else []
            if array is not None and array.shape not in ((h, w), *by_scan):
                raise BadInput(f"The {name} is {array.shape}; it must have the patterns' shape {(h, w)}.")
        if self.efficiency is not None and not (self.efficiency[..., self.mask] > 0).all():
            raise BadInput(f"The efficiency of {self.name} is 0 or less at good pixels; mask these, or mend it.")
        if self.intensity is not None and self.intensity.shape != (n,):
            raise BadInput(f"There are {self.intensity.shape} incident intensities for {n} patterns; give one each.")
        if self.scan_index is not None:
            self._check_scans(self.scan_index, n)

    def _check_scans(self, index: np.ndarray, views: int) -> None:
        """Raise BadInput unless each of so many views is of one of the named scans, and each scan has views."""
        if index.shape != (views,) or index.dtype != np.int64:
            raise BadInput(f"scan_index is {index.dtype} {index.shape}; give an int64 number of a scan for each view.")
        if not np.array_equal(np.unique(index), np.arange(len(self.scan_names))):
            raise BadInput(
                f"scan_index holds scans {np.unique(index).tolist()} and there are {len(self.scan_names)} scan_names; "
                "number the scans from 0, each with a name and views."
            )

    def _arrays(self) -> None:
        """Convert lists to arrays, and an array of patterns, in memory or elsewhere, to a source.

        Raises:
            BadInput: something is of another type.
        """
        if isinstance(self.patterns, np.ndarray):
            if self.patterns.ndim != 3 or self.patterns.dtype.kind not in "buif":
                raise BadInput(
                    f"The patterns are {self.patterns.dtype} {self.patterns.shape}; give real numbers, (N, h, w)."
                )
            object.__setattr__(self, "patterns", ArraySource(self.patterns))
        elif all(hasattr(self.patterns, name) for name in ("shape", "dtype", "__getitem__")):
            object.__setattr__(self, "patterns", SlicedSource(cast("Sliceable", self.patterns)))
        if not hasattr(self.patterns, "read") or not hasattr(self.patterns, "shape"):
            raise BadInput(f"The patterns are of type {type(self.patterns).__name__}; give an array (N, h, w).")
        if not isinstance(self.geometry, Geometry):
            raise BadInput(f"The geometry is of type {type(self.geometry).__name__}; give a ptymesh.Geometry.")
        optional = ("background", "intensity", "efficiency")
        for name, kinds in (("positions", "iuf"), ("mask", "b"), *((name, "iuf") for name in optional)):
            value = getattr(self, name)
            if value is None and name in optional:
                continue
            try:
                array = np.asarray(value)
            except ValueError as error:
                raise BadInput(f"The {name} of {self.name} is no array ({error}); give one.") from error
            if array.dtype.kind not in kinds:
                kind_name = "truth values" if kinds == "b" else "real numbers"
                raise BadInput(f"The {name} of {self.name} holds {array.dtype}; it must be an array of {kind_name}.")
            object.__setattr__(self, name, array)

    def __repr__(self) -> str:
        h, w = self.window
        radiation = f", {self.geometry.radiation}" if self.geometry.radiation else ""
        propagation = self.geometry.propagation.replace("_", " ")
        return f"<Measurement {self.name}: {self.views} views of {h} x {w} pixels, {propagation}{radiation}>"

    @property
    def line_steps(self) -> np.ndarray:
        """Step (N, 2), px, from each position to the next of its line: `steps`, or as the positions say."""
        return steps_along_lines(self.positions) if self.steps is None else self.steps

    def divided(self, factor: int) -> Measurement:
        """Return this far-field scan for a model that divides each pixel of the detector into factor x factor.

        Its windows are so many times as wide, at the same object pixel; patterns, mask and background stay.
        """
        if factor == 1:
            return self
        geometry = self.geometry.binned(1 / factor)
        of_scans = tuple(None if probe is None else _surrounded(probe, geometry.shape) for probe in self.scan_probes)
        inner_probe = None if self.probe is None else _surrounded(self.probe, geometry.shape)
        return replace(self, geometry=geometry, probe=inner_probe, scan_probes=of_scans)

    def scan_coordinates(self, positions_px: np.ndarray) -> np.ndarray:
        """Return positions (N, 2) of the views in pixels without what scans were displaced by."""
        if self.displaced_px is None or self.scan_index is None:
            return positions_px
        return np.asarray(positions_px - self.displaced_px[self.scan_index])

    @property
    def mean_background(self) -> np.ndarray | None:
        """Background (h, w) of the mean of all patterns; None without one."""
        if self.background is None or self.background.ndim == 2 or self.scan_index is None:
            return self.background
        shares = np.bincount(self.scan_index, minlength=self.scans) / self.views
        return np.asarray(np.tensordot(shares, self.background, 1))

    @property
    def scans(self) -> int:
        """Number of scans that the views are of."""
        return max(1, len(self.scan_names))

    @property
    def views(self) -> int:
        """Number of views."""
        return self.patterns.shape[0]

    @property
    def window(self) -> tuple[int, int]:
        """Sides of the window, (h, w)."""
        return self.geometry.shape


def _surrounded(probe: np.ndarray, window: tuple[int, int]) -> np.ndarray:
    """Return a probe (M, h, w) in the middle of a larger window that is dark around it."""
    before = [n // 2 - side // 2 for n, side in zip(window, probe.shape[-2:], strict=True)]
    margins = zip(before, window, probe.shape[-2:], strict=True)
    return np.pad(probe, [(0, 0), *((first, n - side - first) for first, n, side in margins)])


def steps_along_lines(positions: np.ndarray) -> np.ndarray:
    """Return the step from each position to the next of its line, (N, 2).

    A step belongs to a line if it is like the one before or after it. A position whose next one lies elsewhere, at the
    end of a row or before one that is missing, has the step that led to it; one off all lines has none, 0.

    Args:
        positions: (N, 2), in the order in which they were measured.
    """
    steps = np.diff(positions, axis=0)
    lengths = np.linalg.norm(steps, axis=1)
    apart = np.linalg.norm(np.diff(steps, axis=0), axis=1)
    is_regular = apart < SAME_STEP * np.minimum(lengths[1:], lengths[:-1])
    on_line = np.zeros(len(steps), bool)
    on_line[1:] |= is_regular
    on_line[:-1] |= is_regular
    line_steps = np.zeros(positions.shape)
    line_steps[1:][on_line] = steps[on_line]
    line_steps[:-1][on_line] = steps[on_line]
    return line_steps


def evenly_spread(views: int, most: int) -> np.ndarray:
    """Return the indices (n,) int64 of at most so many views, spread evenly over a scan."""
    if views <= most:
        return np.arange(views, dtype=np.int64)
    return np.unique(np.linspace(0, views - 1, most).round().astype(np.int64))


def central_views(positions: np.ndarray, most: int) -> np.ndarray:
    """Return the indices (n,) of at most so many views, those nearest to the middle of the scan, in their order.

    Args:
        positions: (N, 2) y x, in any unit.
        most: number of views, at most.
    """
    middle = (positions.min(axis=0) + positions.max(axis=0)) / 2
    return np.sort(np.argsort(((positions - middle) ** 2).sum(axis=1), kind="stable")[:most])


def select_views(scan: Measurement, views: np.ndarray, patterns: PatternSource | None = None) -> Measurement:
    """Return some views of a scan, or of several that are joined, with all that each view has for itself.

    Args:
        scan: the scan; of several, each keeps a view.
        views: (n,) indices.
        patterns: of these views (n, h, w); None reads them into memory.
    """

    def selected(rows: np.ndarray | None) -> np.ndarray | None:
        return None if rows is None else rows[views]

    return replace(
        scan,
        patterns=ArraySource(np.ascontiguousarray(scan.patterns.read(views))) if patterns is None else patterns,
        positions=scan.positions[views],
        stored_positions=selected(scan.stored_positions),
        steps=scan.line_steps[views],
        paths=selected(scan.paths),
        intensity=None if scan.intensity is None else scan.intensity[views] / scan.intensity[views].mean(),
        scan_index=selected(scan.scan_index),
        further_distance_m=selected(scan.further_distance_m),
    )


def centres_of_mass(measurement: Measurement, views: np.ndarray | None = None) -> np.ndarray:
    """Return the centres of mass (n, 2) y x of far-field patterns about their mean, in detector pixels.

    Args:
        measurement: a far-field scan.
        views: (n,) indices; None for all.
    """
    views, centres = np.arange(measurement.views) if views is None else views, []
    for start in range(0, len(views), PATTERNS_AT_A_TIME):
        y = measurement.patterns.read(views[start : start + PATTERNS_AT_A_TIME])
        y = np.fft.fftshift(np.where(measurement.mask & (y >= 0), y, 0).astype(np.float64), axes=(1, 2))
        rows, columns = (np.arange(n) - n // 2 for n in y.shape[1:])
        total = np.maximum(y.sum(axis=(1, 2)), 1e-30)
        centres.append(np.stack([(y.sum(axis=2) @ rows) / total, (y.sum(axis=1) @ columns) / total], axis=1))
    c = np.concatenate(centres)
    return np.asarray(c - c.mean(axis=0))
